//! Each component sees what it declared, and nothing else.

use super::*;

const GROUPS: [WorkerInputs; 3] = [
    WorkerInputs::CACHE,
    WorkerInputs::LOAD,
    WorkerInputs::PREFERRED_TAINT,
];

/// All eight combinations of groups.
fn combinations() -> impl Iterator<Item = WorkerInputs> {
    (0..8).map(|bits| {
        let chosen = GROUPS
            .iter()
            .enumerate()
            .filter(|(index, _)| bits >> index & 1 == 1);
        chosen.fold(WorkerInputs::NONE, |all, (_, group)| all | *group)
    })
}

/// The groups that a row shows.
fn seen(row: &WorkerCandidate) -> WorkerInputs {
    let shown = [
        row.cache().is_some(),
        row.load().is_some(),
        row.preferred_taint_multiplier().is_some(),
    ];
    let shown = GROUPS.into_iter().zip(shown).filter(|(_, shown)| *shown);
    shown.fold(WorkerInputs::NONE, |all, (group, _)| all | group)
}

#[test]
fn views_are_masked_a_component_that_did_not_declare_a_group_reads_none() {
    for declared in combinations() {
        let other = if declared == WorkerInputs::NONE {
            WorkerInputs::CACHE
        } else {
            WorkerInputs::NONE
        };
        let check_row = move |row: &WorkerCandidate| assert_eq!(seen(row), declared);
        let mut policy = policy(
            vec![
                Box::new(From(other, |_: &WorkerCandidate| Ok(true))),
                Box::new(From(declared, move |row: &WorkerCandidate| {
                    check_row(row);
                    Ok(true)
                })),
            ],
            vec![
                Box::new(From(other, |_: &WorkerCandidate| Ok(0.0))),
                Box::new(From(declared, move |row: &WorkerCandidate| {
                    check_row(row);
                    Ok(0.0)
                })),
            ],
            Box::new(From(declared, move |view: WorkerInputView<'_>| {
                assert_eq!(
                    view.cache().is_some(),
                    declared.contains(WorkerInputs::CACHE)
                );
                assert_eq!(view.load().is_some(), declared.contains(WorkerInputs::LOAD));
                for row in view.candidates() {
                    let taint = declared
                        .contains(WorkerInputs::PREFERRED_TAINT)
                        .then_some(0.5);
                    assert_eq!(row.preferred_taint_multiplier(), taint);
                }
                Ok(0)
            })),
        );
        assert_eq!(policy.required_worker_inputs(), declared | other);
        assert_eq!(select(&mut policy, &[1, 2]), Ok(1));
    }
}

#[test]
fn a_pickers_arrays_are_aligned_with_its_rows() {
    let aligned = From(
        WorkerInputs::CACHE | WorkerInputs::LOAD,
        |view: WorkerInputView<'_>| {
            let (cache, load) = (view.cache().unwrap(), view.load().unwrap());
            for (index, row) in view.candidates().iter().enumerate() {
                let id = usize::try_from(row.worker().worker_id).unwrap();
                assert_eq!(load[index].active_requests(), id);
                assert_eq!(cache[index].shared_beyond_device_blocks() as usize, id);
            }
            Ok(view.candidates().len() - 1)
        },
    );
    let mut policy = policy(
        vec![filter(|row| Ok(id(row) % 2 == 1))],
        Vec::new(),
        Box::new(aligned),
    );
    let mut rows: Vec<WorkerCandidate> = (1..8_u32)
        .map(|id| {
            let cache = CacheOverlap {
                shared_beyond_device_blocks: id,
                ..CacheOverlap::default()
            };
            let load = ActiveLoad {
                requests: id as usize,
                ..ActiveLoad::default()
            };
            WorkerCandidate::new(WorkerWithDpRank::from_worker_id(id.into()))
                .with_cache(WorkerCacheInput::new(cache))
                .with_load(WorkerLoadInput::new(load))
        })
        .collect();
    let signals = RequestSignals::default();
    let selection = policy
        .select(&WorkerSelectionContext::new(&signals), &mut rows)
        .unwrap();
    assert_eq!(selection.worker.worker_id, 7);
}

#[test]
fn a_picker_gets_no_array_with_gaps() {
    let mut policy = policy(
        Vec::new(),
        Vec::new(),
        Box::new(From(WorkerInputs::LOAD, |view: WorkerInputView<'_>| {
            Ok(usize::from(view.load().is_none()))
        })),
    );
    let mut rows = vec![
        row(1),
        WorkerCandidate::new(WorkerWithDpRank::from_worker_id(2)),
    ];
    let signals = RequestSignals::default();
    let selection = policy
        .select(&WorkerSelectionContext::new(&signals), &mut rows)
        .unwrap();
    assert_eq!(selection.worker.worker_id, 2);
}

/// Declares something else each time it is asked.
struct Fickle(std::cell::Cell<bool>);

impl WorkerPicker for Fickle {
    fn required_worker_inputs(&self) -> WorkerInputs {
        if self.0.replace(true) {
            WorkerInputs::NONE
        } else {
            WorkerInputs::LOAD
        }
    }
    fn pick(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        view: WorkerInputView<'_>,
    ) -> Outcome<usize> {
        Ok(usize::from(view.load().is_some()))
    }
}

#[test]
fn declarations_are_read_once_when_the_policy_is_built() {
    let mut policy = policy(Vec::new(), Vec::new(), Box::new(Fickle(false.into())));
    for _ in 0..3 {
        assert_eq!(policy.required_worker_inputs(), WorkerInputs::LOAD);
        assert_eq!(select(&mut policy, &[1, 2]), Ok(2));
    }
}

#[test]
fn afterwards_the_rows_that_passed_show_everything_in_their_order() {
    let mut policy = policy(vec![filter(|row| Ok(id(row) != 2))], Vec::new(), lowest());
    let mut rows = vec![row(3), row(2), row(1)];
    let signals = RequestSignals::default();
    policy
        .select(&WorkerSelectionContext::new(&signals), &mut rows)
        .unwrap();
    assert_eq!(rows, [row(3), row(1)]);
}
