//! Who may serve, as a table of cases.

use super::*;
use crate::load::LoadBook;
use crate::partition::workers::Slots;

/// Workers 1 to 4 with two ranks each: 1 is plain, 2 has taint `gpu`, 3 has `gpu` and `big` and is
/// overloaded, 4 has `big`.
fn table() -> WorkerTable {
    let entries: Vec<_> = [
        (1, &[][..], false),
        (2, &["gpu"], false),
        (3, &["gpu", "big"], true),
        (4, &["big"], false),
    ]
    .into_iter()
    .map(|(worker_id, taints, overloaded)| WorkerEntry {
        worker_id,
        rank_count: 2,
        taints: taints.iter().map(ToString::to_string).collect(),
        overloaded,
        ..WorkerEntry::default()
    })
    .collect();
    let slots = LoadBook::default().set_ranks(entries.iter().flat_map(WorkerEntry::ranks));
    let slots = slots.into_iter().map(|slot| Slots {
        index: slot,
        load: slot,
    });
    WorkerTable::new(1, entries, slots)
}

#[derive(Default)]
struct Case {
    allowed: Option<&'static [u64]>,
    required: &'static [&'static str],
    pinned: Option<(u64, u32)>,
}

fn request(case: &Case) -> SelectionRequest {
    SelectionRequest {
        allowed_worker_ids: case.allowed.map(|ids| ids.iter().copied().collect()),
        constraints: RoutingConstraints {
            required_taints: case.required.iter().map(ToString::to_string).collect(),
            ..RoutingConstraints::default()
        },
        pinned_worker: case
            .pinned
            .map(|(id, rank)| WorkerWithDpRank::new(id, rank)),
        ..SelectionRequest::default()
    }
}

fn check(case: &Case, expected: Result<&[(u64, u32)], &str>) {
    let table = table();
    let mut rows = vec![7];
    let outcome = eligible_rows(&table, &request(case), &mut rows);
    let workers: Vec<_> = rows
        .iter()
        .map(|row| table.rows()[*row].worker)
        .map(|worker| (worker.worker_id, worker.dp_rank))
        .collect();
    match (outcome, expected) {
        (Ok(()), Ok(expected)) => assert_eq!(workers, expected),
        (Err(error), Err(expected)) => {
            let name = format!("{error:?}");
            assert!(name.starts_with(expected), "{name} is not {expected}");
        }
        (outcome, expected) => panic!("{outcome:?} is not {expected:?}"),
    }
}

#[test]
fn all_ranks_of_workers_that_are_not_overloaded_may_serve() {
    check(
        &Case::default(),
        Ok(&[(1, 0), (1, 1), (2, 0), (2, 1), (4, 0), (4, 1)]),
    );
}

#[test]
fn allowed_workers_limit_the_choice() {
    let allowed = |ids| Case {
        allowed: Some(ids),
        ..Case::default()
    };
    check(&allowed(&[2, 9]), Ok(&[(2, 0), (2, 1)]));
    check(&allowed(&[9]), Err("NoneEligible"));
    check(&allowed(&[]), Err("NoneEligible"));
    check(&allowed(&[3]), Err("AllOverloaded"));
}

#[test]
fn required_taints_must_all_be_there() {
    let required = |taints| Case {
        required: taints,
        ..Case::default()
    };
    check(&required(&["gpu"]), Ok(&[(2, 0), (2, 1)]));
    check(&required(&["gpu", "big"]), Err("AllOverloaded"));
    check(&required(&["tpu"]), Err("NoneEligible"));
}

#[test]
fn a_pin_leaves_one_rank_or_says_why_not() {
    let pinned = |worker| Case {
        pinned: Some(worker),
        ..Case::default()
    };
    check(&pinned((2, 1)), Ok(&[(2, 1)]));
    check(&pinned((2, 2)), Err("NoneEligible"));
    check(&pinned((9, 0)), Err("NoneEligible"));
    check(&pinned((3, 0)), Err("PinnedOverloaded"));
    check(
        &Case {
            allowed: Some(&[1]),
            ..pinned((2, 1))
        },
        Err("PinnedNotAllowed"),
    );
    check(
        &Case {
            required: &["big"],
            ..pinned((2, 1))
        },
        Err("NoneEligible"),
    );
}

#[test]
fn without_workers_there_is_nobody_to_be_ineligible() {
    let outcome = eligible_rows(
        &WorkerTable::default(),
        &SelectionRequest::default(),
        &mut Vec::new(),
    );
    assert!(matches!(outcome, Err(SelectError::NoWorkers)));
}

#[test]
fn an_affinity_target_narrows_only_where_it_may_serve() {
    let table = table();
    let narrowed = |worker_id, dp_rank| {
        let mut rows = vec![0, 1, 2, 3];
        narrow_to_affinity(
            &table,
            WorkerAffinityTarget { worker_id, dp_rank },
            &mut rows,
        );
        rows
    };
    assert_eq!(narrowed(2, None), [2, 3]);
    assert_eq!(narrowed(2, Some(1)), [3]);
    assert_eq!(narrowed(4, None), [0, 1, 2, 3]);
}

#[test]
fn preferred_taints_make_a_worker_cheaper_by_their_sum() {
    let constraints = RoutingConstraints {
        preferred_taints: [("gpu", 0.5), ("big", 1.5), ("old", -1.0)]
            .map(|(taint, weight)| (taint.to_owned(), weight))
            .into(),
        ..RoutingConstraints::default()
    };
    let of = |taints: &[&str]| {
        let taints = taints.iter().map(ToString::to_string).collect();
        preferred_taint_multiplier(&constraints, &taints)
    };
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} is not {b}");
    close(of(&[]), 1.0);
    close(of(&["tpu"]), 1.0);
    close(of(&["gpu", "big"]), (-2.0_f64.tanh()).exp());
    close(of(&["old"]), 1.0_f64.tanh().exp());
}
