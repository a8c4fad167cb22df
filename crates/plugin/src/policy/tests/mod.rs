//! How a policy is executed: its order and what the host checks.

mod masks;
mod traces;

use std::sync::{Arc, Mutex};

use super::*;
use crate::candidate::{ActiveLoad, CacheOverlap};
use crate::rng::SeededRng;
use crate::signals::RequestSignals;

type Outcome<T> = Result<T, WorkerSelectionPolicyError>;
type Log = Arc<Mutex<Vec<String>>>;

/// A filter, scorer or picker made of a closure.
struct From<F>(WorkerInputs, F);

impl<F: FnMut(&WorkerCandidate) -> Outcome<bool> + Send> WorkerFilter for From<F> {
    fn required_worker_inputs(&self) -> WorkerInputs {
        self.0
    }
    fn keep(&mut self, _: &WorkerSelectionContext<'_>, row: &WorkerCandidate) -> Outcome<bool> {
        (self.1)(row)
    }
}

impl<F: FnMut(&WorkerCandidate) -> Outcome<f64> + Send> WorkerScorer for From<F> {
    fn required_worker_inputs(&self) -> WorkerInputs {
        self.0
    }
    fn score(&mut self, _: &WorkerSelectionContext<'_>, row: &WorkerCandidate) -> Outcome<f64> {
        (self.1)(row)
    }
}

impl<F: FnMut(WorkerInputView<'_>) -> Outcome<usize> + Send> WorkerPicker for From<F> {
    fn required_worker_inputs(&self) -> WorkerInputs {
        self.0
    }
    fn pick(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        view: WorkerInputView<'_>,
    ) -> Outcome<usize> {
        (self.1)(view)
    }
}

fn filter(
    keep: impl FnMut(&WorkerCandidate) -> Outcome<bool> + Send + 'static,
) -> Box<dyn WorkerFilter> {
    Box::new(From(WorkerInputs::NONE, keep))
}

fn scorer(
    score: impl FnMut(&WorkerCandidate) -> Outcome<f64> + Send + 'static,
) -> Box<dyn WorkerScorer> {
    Box::new(From(WorkerInputs::NONE, score))
}

fn picker(
    pick: impl FnMut(WorkerInputView<'_>) -> Outcome<usize> + Send + 'static,
) -> Box<dyn WorkerPicker> {
    Box::new(From(WorkerInputs::NONE, pick))
}

/// Picks the lowest cost, then the lowest worker.
fn lowest() -> Box<dyn WorkerPicker> {
    picker(|view| {
        let rows = view.candidates();
        let best = (0..rows.len()).min_by(|&left, &right| {
            let by_cost = rows[left].cost().total_cmp(&rows[right].cost());
            by_cost.then_with(|| rows[left].worker().cmp(&rows[right].worker()))
        });
        best.ok_or_else(|| WorkerSelectionPolicyError::failed("no rows"))
    })
}

fn policy(
    filters: Vec<Box<dyn WorkerFilter>>,
    scorers: Vec<Box<dyn WorkerScorer>>,
    picker: Box<dyn WorkerPicker>,
) -> WorkerSelectionPolicy {
    WorkerSelectionPolicy::new_with_filters(
        KvRouterConfig::default(),
        "test",
        filters,
        scorers,
        picker,
    )
}

/// A row of worker `id` with every input filled in.
fn row(id: u64) -> WorkerCandidate {
    WorkerCandidate::new(WorkerWithDpRank::from_worker_id(id))
        .with_cache(WorkerCacheInput::new(CacheOverlap {
            device_blocks: 1.0,
            ..CacheOverlap::default()
        }))
        .with_load(WorkerLoadInput::new(ActiveLoad {
            requests: 1,
            ..ActiveLoad::default()
        }))
        .with_preferred_taint_multiplier(0.5)
}

fn select(policy: &mut WorkerSelectionPolicy, ids: &[u64]) -> Outcome<u64> {
    let mut rows: Vec<WorkerCandidate> = ids.iter().copied().map(row).collect();
    let signals = RequestSignals::default();
    policy
        .select(&WorkerSelectionContext::new(&signals), &mut rows)
        .map(|selection| selection.worker.worker_id)
}

fn id(row: &WorkerCandidate) -> u64 {
    row.worker().worker_id
}

#[expect(clippy::cast_precision_loss, reason = "test ids are small")]
fn cost_of(row: &WorkerCandidate) -> f64 {
    id(row) as f64
}

#[test]
fn filters_run_in_declaration_order_and_stop_at_the_first_rejection() {
    let log = Log::default();
    let logged = |name: &'static str, rejects: u64| {
        let log = Arc::clone(&log);
        filter(move |row| {
            log.lock().unwrap().push(format!("{name}{}", id(row)));
            Ok(id(row) != rejects)
        })
    };
    let mut policy = policy(vec![logged("a", 1), logged("b", 2)], Vec::new(), lowest());
    assert_eq!(select(&mut policy, &[1, 2, 3]), Ok(3));
    assert_eq!(*log.lock().unwrap(), ["a1", "a2", "b2", "a3", "b3"]);
}

#[test]
fn scorers_see_only_rows_that_passed() {
    let mut policy = policy(
        vec![filter(|row| Ok(id(row) > 1))],
        vec![scorer(|row| {
            if id(row) > 1 {
                Ok(cost_of(row))
            } else {
                Err(WorkerSelectionPolicyError::failed("seen"))
            }
        })],
        lowest(),
    );
    assert_eq!(select(&mut policy, &[1, 2, 3]), Ok(2));
}

#[test]
fn costs_of_all_scorers_are_added() {
    let mut policy = policy(
        Vec::new(),
        vec![
            scorer(|row| Ok(cost_of(row))),
            scorer(|row| Ok(-3.0 * cost_of(row))),
        ],
        lowest(),
    );
    let mut rows = vec![row(1), row(2)];
    let signals = RequestSignals::default();
    let selection = policy.select(&WorkerSelectionContext::new(&signals), &mut rows);
    assert_eq!(
        selection,
        Ok(PolicySelection {
            worker: WorkerWithDpRank::from_worker_id(2),
            cost: -4.0
        })
    );
}

#[test]
fn a_policy_without_scorers_picks_among_zero_costs() {
    let all_zero = picker(|view| {
        Ok(usize::from(
            view.candidates().iter().all(|row| row.cost() == 0.0),
        ))
    });
    assert_eq!(
        select(&mut policy(Vec::new(), Vec::new(), all_zero), &[4, 5]),
        Ok(5)
    );
}

#[test]
fn no_survivors_is_an_error_and_the_picker_is_not_asked() {
    let unasked = picker(|_| Err(WorkerSelectionPolicyError::failed("asked")));
    let mut policy = policy(vec![filter(|_| Ok(false))], Vec::new(), unasked);
    assert_eq!(
        select(&mut policy, &[1, 2]),
        Err(WorkerSelectionPolicyError::AllFiltered { candidate_count: 2 })
    );
    assert_eq!(
        select(&mut policy, &[]),
        Err(WorkerSelectionPolicyError::AllFiltered { candidate_count: 0 })
    );
}

#[test]
fn a_policy_serves_on_after_each_kind_of_failure() {
    let fails = |id: u64| {
        move |row: &WorkerCandidate| {
            if self::id(row) == id {
                Ok(f64::NAN)
            } else {
                Ok(0.0)
            }
        }
    };
    let mut policy = policy(
        vec![
            filter(|row| Ok(id(row) != 9)),
            filter(|row| {
                if id(row) == 8 {
                    Err(WorkerSelectionPolicyError::failed("no"))
                } else {
                    Ok(true)
                }
            }),
        ],
        vec![scorer(fails(7))],
        picker(|view| {
            Ok(if view.candidates()[0].worker().worker_id == 6 {
                usize::MAX
            } else {
                0
            })
        }),
    );
    for bad in [9, 8, 7, 6] {
        assert!(select(&mut policy, &[bad]).is_err(), "{bad}");
        assert_eq!(select(&mut policy, &[1]), Ok(1));
    }
}

#[test]
fn a_contribution_that_is_not_finite_names_scorer_and_row() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let mut policy = policy(
            vec![filter(|row| Ok(id(row) != 1))],
            vec![
                scorer(|_| Ok(1.0)),
                scorer(move |row| Ok(if id(row) == 3 { bad } else { 0.0 })),
            ],
            lowest(),
        );
        let expected = WorkerSelectionPolicyError::NonFiniteCost {
            scorer_index: 1,
            row: 1,
        };
        assert_eq!(select(&mut policy, &[1, 2, 3]), Err(expected), "{bad}");
    }
}

#[test]
fn a_total_that_overflows_names_the_scorer_that_made_it() {
    let mut policy = policy(
        Vec::new(),
        vec![scorer(|_| Ok(f64::MAX)), scorer(|_| Ok(f64::MAX))],
        lowest(),
    );
    let expected = WorkerSelectionPolicyError::NonFiniteCost {
        scorer_index: 1,
        row: 0,
    };
    assert_eq!(select(&mut policy, &[1]), Err(expected));
}

#[test]
fn contributions_of_both_infinities_do_not_cancel_unnoticed() {
    let mut policy = policy(
        Vec::new(),
        vec![
            scorer(|_| Ok(f64::INFINITY)),
            scorer(|_| Ok(f64::NEG_INFINITY)),
        ],
        lowest(),
    );
    let expected = WorkerSelectionPolicyError::NonFiniteCost {
        scorer_index: 0,
        row: 0,
    };
    assert_eq!(select(&mut policy, &[1]), Err(expected));
}

#[test]
fn a_picked_row_must_exist() {
    for beyond in [2, 3, usize::MAX] {
        let mut policy = policy(Vec::new(), Vec::new(), picker(move |_| Ok(beyond)));
        let expected = WorkerSelectionPolicyError::InvalidPickerRow {
            row: beyond,
            candidate_count: 2,
        };
        assert_eq!(select(&mut policy, &[1, 2]), Err(expected));
    }
}

#[test]
fn an_error_of_a_component_is_passed_on() {
    let failed = || WorkerSelectionPolicyError::failed("why");
    let policies = [
        policy(vec![filter(move |_| Err(failed()))], Vec::new(), lowest()),
        policy(Vec::new(), vec![scorer(move |_| Err(failed()))], lowest()),
        policy(Vec::new(), Vec::new(), picker(move |_| Err(failed()))),
    ];
    for mut policy in policies {
        let error = select(&mut policy, &[1]).unwrap_err();
        assert_eq!(
            (error.to_string().as_str(), error),
            ("worker selection policy failed: why", failed())
        );
    }
}

/// Costs every row by its distance from the cheapest: only possible with all rows in sight.
struct AboveLeast;

impl WorkerScorer for AboveLeast {
    fn score(&mut self, _: &WorkerSelectionContext<'_>, _: &WorkerCandidate) -> Outcome<f64> {
        Err(WorkerSelectionPolicyError::failed("hosts call score_batch"))
    }
    fn score_batch(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        rows: &[WorkerCandidate],
        costs: &mut [f64],
    ) -> Outcome<()> {
        assert!(costs.iter().all(|cost| cost.is_nan()) && costs.len() == rows.len());
        let least = rows.iter().map(cost_of).fold(f64::INFINITY, f64::min);
        for (row, cost) in rows.iter().zip(costs) {
            *cost = cost_of(row) - least;
        }
        Ok(())
    }
}

#[test]
fn a_batch_scorer_sees_all_rows_that_passed_and_nothing_of_earlier_scorers() {
    let mut policy = policy(
        vec![filter(|row| Ok(id(row) != 1))],
        vec![scorer(|_| Ok(10.0)), Box::new(AboveLeast)],
        lowest(),
    );
    let mut rows = vec![row(1), row(5), row(3)];
    let signals = RequestSignals::default();
    let selection = policy.select(&WorkerSelectionContext::new(&signals), &mut rows);
    assert_eq!(
        selection,
        Ok(PolicySelection {
            worker: WorkerWithDpRank::from_worker_id(3),
            cost: 10.0
        })
    );
}

/// A batch scorer that forgets the last row.
struct Forgetful;

impl WorkerScorer for Forgetful {
    fn score(&mut self, _: &WorkerSelectionContext<'_>, _: &WorkerCandidate) -> Outcome<f64> {
        Ok(0.0)
    }
    fn score_batch(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        _: &[WorkerCandidate],
        costs: &mut [f64],
    ) -> Outcome<()> {
        costs[0] = 0.0;
        Ok(())
    }
}

#[test]
fn a_row_that_a_batch_scorer_leaves_out_is_refused() {
    let expected = WorkerSelectionPolicyError::NonFiniteCost {
        scorer_index: 0,
        row: 1,
    };
    assert_eq!(
        select(
            &mut policy(Vec::new(), vec![Box::new(Forgetful)], lowest()),
            &[1, 2]
        ),
        Err(expected)
    );
}

#[test]
fn the_host_may_ask_what_a_policy_was_built_with() {
    let policy = policy(Vec::new(), Vec::new(), lowest());
    assert_eq!(
        (policy.label(), policy.exclusive_affinity()),
        ("test", false)
    );
    assert_eq!(policy.config(), &KvRouterConfig::default());
    assert!(policy.with_exclusive_affinity(true).exclusive_affinity());
}

/// Filters reject ids by remainder, scorers are linear in the id; checked against the definition, written out.
#[test]
fn random_policies_select_what_their_definition_says() {
    let seed = 42;
    println!("seed {seed}");
    let mut rng = SeededRng::new(seed);
    let mut outcomes = [0_u32; 2];
    for _ in 0..2_000 {
        let remainders: Vec<u64> = (0..rng.below(3)).map(|_| 2 + rng.below(3) as u64).collect();
        let slopes: Vec<i8> = (0..rng.below(4))
            .map(|_| i8::try_from(rng.below(5)).unwrap() - 2)
            .collect();
        let ids: Vec<u64> = (0..=rng.below(7))
            .map(|_| 1 + rng.below(30) as u64)
            .collect();

        let filters = remainders
            .iter()
            .map(|&remainder| filter(move |row| Ok(!id(row).is_multiple_of(remainder))))
            .collect();
        let scorers = slopes
            .iter()
            .map(|&slope| scorer(move |row| Ok(f64::from(slope) * cost_of(row))))
            .collect();
        let mut policy = policy(filters, scorers, lowest());

        let slope: i64 = slopes.iter().copied().map(i64::from).sum();
        let survivors = ids
            .iter()
            .copied()
            .filter(|id| remainders.iter().all(|remainder| id % remainder != 0));
        let expected = survivors.min_by_key(|id| (slope * i64::try_from(*id).unwrap(), *id));

        let picked = select(&mut policy, &ids);
        let signals = RequestSignals::default();
        let mut rows: Vec<WorkerCandidate> = ids.iter().copied().map(row).collect();
        let mut trace = PolicyTrace::default();
        let traced = policy.select_traced(
            &WorkerSelectionContext::new(&signals),
            &mut rows,
            &mut trace,
        );

        assert_eq!(
            picked.as_ref().ok().copied(),
            expected,
            "{ids:?} {remainders:?} {slopes:?}"
        );
        assert_eq!(
            traced.as_ref().map(|selection| selection.worker.worker_id),
            picked.as_ref().copied()
        );
        assert_eq!(
            trace.picked.map(|index| id(&trace.rows[index].candidate)),
            expected
        );
        assert_eq!(
            trace
                .rows
                .iter()
                .filter(|row| row.rejected_by.is_none())
                .count(),
            rows.len()
        );
        outcomes[usize::from(expected.is_some())] += 1;
    }
    assert!(outcomes.iter().all(|&count| count > 100), "{outcomes:?}");
}

#[test]
fn a_policy_in_steady_state_keeps_its_buffers() {
    let inputs = WorkerInputs::CACHE | WorkerInputs::LOAD;
    let pick: Box<dyn WorkerPicker> = Box::new(From(inputs, |_: WorkerInputView<'_>| Ok(0)));
    let mut policy = policy(Vec::new(), vec![scorer(|_| Ok(0.0))], pick);
    let ids: Vec<u64> = (0..100).collect();
    let buffers = |policy: &WorkerSelectionPolicy| {
        let Scratch {
            contributions,
            scored,
            cache,
            load,
        } = &policy.scratch;
        [
            contributions.as_ptr().cast::<()>(),
            scored.as_ptr().cast(),
            cache.as_ptr().cast(),
            load.as_ptr().cast(),
        ]
    };
    select(&mut policy, &ids).unwrap();
    let first = buffers(&policy);
    for count in [1, 50, 100, 7] {
        select(&mut policy, &ids[..count]).unwrap();
        assert_eq!(buffers(&policy), first);
    }
}
