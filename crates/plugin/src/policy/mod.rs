//! The three traits of a policy, and their execution over the rows a host offers.
//!
//! It never trusts a component: costs must be finite, the picked row must exist, and each component sees only what it
//! declared. It never catches a panic; the host does.

use std::fmt;
use std::sync::Arc;

use crate::candidate::{
    ScoredWorkerCandidate, WorkerCacheInput, WorkerCandidate, WorkerInputView, WorkerInputs,
    WorkerLoadInput,
};
use crate::config::KvRouterConfig;
use crate::identity::{RoutingPartitionRef, WorkerType, WorkerWithDpRank};
use crate::signals::WorkerSelectionContext;

/// A hard requirement: decides for each worker on its own whether it may serve the request.
pub trait WorkerFilter: Send {
    /// The groups of worker data that [`keep`](Self::keep) reads. Read once, when the policy is built.
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::NONE
    }

    /// Whether `candidate` stays. Filters run in declaration order; a row that one rejects is not shown to the next.
    fn keep(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidate: &WorkerCandidate,
    ) -> Result<bool, WorkerSelectionPolicyError>;
}

/// A preference: gives each worker a cost, lower is better. The costs of all scorers of a policy are added.
pub trait WorkerScorer: Send {
    /// The groups of worker data that this scorer reads. Read once, when the policy is built.
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::NONE
    }

    /// The cost of `candidate`; must be finite.
    fn score(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidate: &WorkerCandidate,
    ) -> Result<f64, WorkerSelectionPolicyError>;

    /// The costs of all rows that passed the filters, for scorers whose costs depend on the other rows (a minimum, a
    /// mean, a rank). Hosts call only this method; as given here it calls [`score`](Self::score) for each row.
    ///
    /// `costs` has the length and order of `candidates` and holds NaN: whoever overrides this writes every entry, and
    /// one left unwritten is refused like any other cost that is not finite. Nothing of earlier scorers is in it, and
    /// the host does the adding.
    fn score_batch(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: &[WorkerCandidate],
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        for (candidate, cost) in candidates.iter().zip(costs) {
            *cost = self.score(context, candidate)?;
        }
        Ok(())
    }
}

/// The choice: takes one of the rows that passed all filters, by cost or by any other rule.
pub trait WorkerPicker: Send {
    /// The groups of worker data that [`pick`](Self::pick) reads. Read once, when the policy is built.
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::NONE
    }

    /// Index of the picked row in `input.candidates()`, which is never empty and in no particular order.
    fn pick(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError>;
}

/// Builds the policy of one partition; a host calls it once per partition, and again if a policy panicked.
pub type WorkerSelectionPolicyFactory = Arc<
    dyn for<'a> Fn(&KvRouterConfig, WorkerType, RoutingPartitionRef<'a>) -> WorkerSelectionPolicy
        + Send
        + Sync,
>;

/// Why a policy selected nobody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerSelectionPolicyError {
    /// A component gave up.
    #[error("worker selection policy failed: {0}")]
    Failed(String),
    /// A scorer's cost, or the sum up to it, is not a finite number.
    #[error("scorer {scorer_index} made the cost of row {row} non-finite")]
    NonFiniteCost {
        /// The scorer, in declaration order from 0.
        scorer_index: usize,
        /// The row among those that passed the filters.
        row: usize,
    },
    /// The picker returned a row that is not there.
    #[error("picker returned row {row} of {candidate_count}")]
    InvalidPickerRow {
        /// What the picker returned.
        row: usize,
        /// How many rows it was offered.
        candidate_count: usize,
    },
    /// No row passed the filters, or none was offered.
    #[error("filters rejected all {candidate_count} candidates")]
    AllFiltered {
        /// How many rows were offered.
        candidate_count: usize,
    },
}

impl WorkerSelectionPolicyError {
    /// Failure of a component, for `reason`.
    pub fn failed(reason: impl Into<String>) -> Self {
        Self::Failed(reason.into())
    }
}

/// What a policy selected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicySelection {
    /// The picked worker and rank.
    pub worker: WorkerWithDpRank,
    /// Its total cost; 0 where the policy has no scorer.
    pub cost: f64,
}

/// How a selection came about: filled by [`WorkerSelectionPolicy::select_traced`], as far as the selection came.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyTrace {
    /// Every row offered, in the order of the offer.
    pub rows: Vec<TracedRow>,
    /// Index in `rows` of the picked row; `None` where the selection failed.
    pub picked: Option<usize>,
}

/// One offered row of a [`PolicyTrace`].
#[derive(Clone, Debug, PartialEq)]
pub struct TracedRow {
    /// The row as it was offered, with all its inputs.
    pub candidate: WorkerCandidate,
    /// The first filter that rejected it, in declaration order from 0; `None` if it passed all.
    pub rejected_by: Option<usize>,
    /// What each scorer added, in declaration order; shorter where scoring failed, empty for rejected rows. The last
    /// entry of a failed selection may be non-finite: it is the cause.
    pub contributions: Vec<f64>,
}

/// A component with the inputs it declared when the policy was built.
struct Declared<C: ?Sized> {
    inputs: WorkerInputs,
    component: Box<C>,
}

/// Buffers that selections reuse, so that a policy in steady state allocates nothing.
#[derive(Default)]
struct Scratch {
    contributions: Vec<f64>,
    scored: Vec<ScoredWorkerCandidate>,
    cache: Vec<WorkerCacheInput>,
    load: Vec<WorkerLoadInput>,
}

/// Filters, scorers and a picker that together choose a worker. A host runs one instance per partition, one selection
/// at a time, so components may keep state without locks.
pub struct WorkerSelectionPolicy {
    config: KvRouterConfig,
    label: &'static str,
    filters: Vec<Declared<dyn WorkerFilter>>,
    scorers: Vec<Declared<dyn WorkerScorer>>,
    picker: Declared<dyn WorkerPicker>,
    exclusive_affinity: bool,
    scratch: Scratch,
}

impl WorkerSelectionPolicy {
    /// Policy without filters. Without scorers every cost is 0 and the picker decides alone.
    pub fn new(
        config: KvRouterConfig,
        label: &'static str,
        scorers: Vec<Box<dyn WorkerScorer>>,
        picker: Box<dyn WorkerPicker>,
    ) -> Self {
        Self::new_with_filters(config, label, Vec::new(), scorers, picker)
    }

    /// Policy with filters, which run before the scorers, both in the order given.
    ///
    /// `config` and `label` are kept for the host: what the policy was built from and under which name it is reported.
    pub fn new_with_filters(
        config: KvRouterConfig,
        label: &'static str,
        filters: Vec<Box<dyn WorkerFilter>>,
        scorers: Vec<Box<dyn WorkerScorer>>,
        picker: Box<dyn WorkerPicker>,
    ) -> Self {
        Self {
            config,
            label,
            filters: filters
                .into_iter()
                .map(|component| Declared {
                    inputs: component.required_worker_inputs(),
                    component,
                })
                .collect(),
            scorers: scorers
                .into_iter()
                .map(|component| Declared {
                    inputs: component.required_worker_inputs(),
                    component,
                })
                .collect(),
            picker: Declared {
                inputs: picker.required_worker_inputs(),
                component: picker,
            },
            exclusive_affinity: false,
            scratch: Scratch::default(),
        }
    }

    /// Whether the host should offer only the affinity target where it is eligible, instead of leaving the advice to
    /// the policy. Off unless set.
    #[must_use]
    pub fn with_exclusive_affinity(self, exclusive_affinity: bool) -> Self {
        Self {
            exclusive_affinity,
            ..self
        }
    }

    /// Whether the host offers only the affinity target where it is eligible.
    pub fn exclusive_affinity(&self) -> bool {
        self.exclusive_affinity
    }

    /// The settings the policy was built from.
    pub fn config(&self) -> &KvRouterConfig {
        &self.config
    }

    /// The name the policy is reported under.
    pub fn label(&self) -> &'static str {
        self.label
    }

    /// Every group of worker data that some component declared: what the host computes for each candidate.
    pub fn required_worker_inputs(&self) -> WorkerInputs {
        let filters = self.filters.iter().map(|filter| filter.inputs);
        let scorers = self.scorers.iter().map(|scorer| scorer.inputs);
        filters
            .chain(scorers)
            .fold(self.picker.inputs, |all, inputs| all | inputs)
    }

    /// Chooses one of `candidates`.
    ///
    /// Afterwards `candidates` holds the rows that passed the filters, in the order offered, and they show all their
    /// inputs again; where a filter failed it holds every row, in any order. The caller clears it before the next
    /// selection.
    pub fn select(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: &mut Vec<WorkerCandidate>,
    ) -> Result<PolicySelection, WorkerSelectionPolicyError> {
        self.run(context, candidates, None)
    }

    /// Like [`select`](Self::select), and writes down in `trace` how the choice came about. The selection is the same.
    pub fn select_traced(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: &mut Vec<WorkerCandidate>,
        trace: &mut PolicyTrace,
    ) -> Result<PolicySelection, WorkerSelectionPolicyError> {
        trace.picked = None;
        trace.rows.clear();
        trace
            .rows
            .extend(candidates.iter().map(|candidate| TracedRow {
                candidate: candidate.clone(),
                rejected_by: None,
                contributions: Vec::new(),
            }));
        self.run(context, candidates, Some(trace))
    }

    fn run(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: &mut Vec<WorkerCandidate>,
        mut trace: Option<&mut PolicyTrace>,
    ) -> Result<PolicySelection, WorkerSelectionPolicyError> {
        let scored = self
            .filter(context, candidates, trace.as_deref_mut())
            .and_then(|()| self.score(context, candidates, trace.as_deref_mut()));
        candidates
            .iter_mut()
            .for_each(WorkerCandidate::show_everything);
        let picked = scored.and_then(|()| self.pick(context, candidates));
        let row = picked?;
        if let Some(trace) = trace {
            let picked = trace.survivors().nth(row).map(|(index, _)| index);
            trace.picked = picked;
        }
        let scored = self.scratch.scored[row];
        Ok(PolicySelection {
            worker: scored.worker,
            cost: scored.cost,
        })
    }

    /// Leaves the rows that pass every filter, in their order.
    fn filter(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: &mut Vec<WorkerCandidate>,
        mut trace: Option<&mut PolicyTrace>,
    ) -> Result<(), WorkerSelectionPolicyError> {
        let candidate_count = candidates.len();
        if !self.filters.is_empty() {
            let mut kept = 0;
            for row in 0..candidate_count {
                let rejected_by =
                    first_rejection(&mut self.filters, context, &mut candidates[row])?;
                if rejected_by.is_none() {
                    candidates.swap(kept, row);
                    kept += 1;
                }
                if let Some(trace) = trace.as_deref_mut() {
                    trace.rows[row].rejected_by = rejected_by;
                }
            }
            candidates.truncate(kept);
        }
        if candidates.is_empty() {
            Err(WorkerSelectionPolicyError::AllFiltered { candidate_count })
        } else {
            Ok(())
        }
    }

    /// Fills `scratch.scored` with the sum of all scorers for each row.
    fn score(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: &mut [WorkerCandidate],
        mut trace: Option<&mut PolicyTrace>,
    ) -> Result<(), WorkerSelectionPolicyError> {
        let Scratch {
            contributions,
            scored,
            ..
        } = &mut self.scratch;
        scored.clear();
        scored.extend(candidates.iter().map(|candidate| ScoredWorkerCandidate {
            worker: candidate.worker(),
            cost: 0.0,
            preferred_taint_multiplier: None,
        }));
        for (scorer_index, scorer) in self.scorers.iter_mut().enumerate() {
            for candidate in candidates.iter_mut() {
                candidate.show_only(scorer.inputs);
            }
            contributions.clear();
            contributions.resize(candidates.len(), f64::NAN);
            scorer
                .component
                .score_batch(context, candidates, contributions)?;
            if let Some(trace) = trace.as_deref_mut() {
                for ((_, traced), contribution) in trace.survivors().zip(contributions.iter()) {
                    traced.contributions.push(*contribution);
                }
            }
            for (row, (total, contribution)) in
                scored.iter_mut().zip(contributions.iter()).enumerate()
            {
                // A sum with a part that is not finite is not finite either, so this checks both.
                total.cost += contribution;
                if !total.cost.is_finite() {
                    return Err(WorkerSelectionPolicyError::NonFiniteCost { scorer_index, row });
                }
            }
        }
        Ok(())
    }

    /// The picked row of `candidates`, checked. The picker is given what it declared of them, and no candidate.
    fn pick(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: &[WorkerCandidate],
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let Scratch {
            scored,
            cache,
            load,
            ..
        } = &mut self.scratch;
        cache.clear();
        load.clear();
        let inputs = self.picker.inputs;
        if inputs.contains(WorkerInputs::PREFERRED_TAINT) {
            for (candidate, scored) in candidates.iter().zip(scored.iter_mut()) {
                scored.preferred_taint_multiplier = candidate.preferred_taint_multiplier();
            }
        }
        if inputs.contains(WorkerInputs::CACHE) {
            cache.extend(candidates.iter().filter_map(WorkerCandidate::cache));
        }
        if inputs.contains(WorkerInputs::LOAD) {
            load.extend(candidates.iter().filter_map(WorkerCandidate::load));
        }
        let candidate_count = scored.len();
        let input = WorkerInputView {
            candidates: scored,
            cache: (cache.len() == candidate_count).then_some(cache),
            load: (load.len() == candidate_count).then_some(load),
        };
        let row = self.picker.component.pick(context, input)?;
        if row < candidate_count {
            Ok(row)
        } else {
            Err(WorkerSelectionPolicyError::InvalidPickerRow {
                row,
                candidate_count,
            })
        }
    }
}

/// The first filter that rejects `candidate`, each shown what it declared.
fn first_rejection(
    filters: &mut [Declared<dyn WorkerFilter>],
    context: &WorkerSelectionContext<'_>,
    candidate: &mut WorkerCandidate,
) -> Result<Option<usize>, WorkerSelectionPolicyError> {
    for (filter_index, filter) in filters.iter_mut().enumerate() {
        candidate.show_only(filter.inputs);
        if !filter.component.keep(context, candidate)? {
            return Ok(Some(filter_index));
        }
    }
    Ok(None)
}

impl PolicyTrace {
    /// The rows that passed all filters, with their index: row `n` of scorers and pickers is the `n`th of these.
    fn survivors(&mut self) -> impl Iterator<Item = (usize, &mut TracedRow)> {
        self.rows
            .iter_mut()
            .enumerate()
            .filter(|(_, row)| row.rejected_by.is_none())
    }
}

impl TracedRow {
    /// Sum of the contributions: the total cost where scoring succeeded, 0 for a row no scorer saw.
    pub fn cost(&self) -> f64 {
        self.contributions
            .iter()
            .fold(0.0, |total, contribution| total + contribution)
    }
}

impl fmt::Debug for WorkerSelectionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerSelectionPolicy")
            .field("label", &self.label)
            .field("filters", &self.filters.len())
            .field("scorers", &self.scorers.len())
            .field("required_worker_inputs", &self.required_worker_inputs())
            .field("exclusive_affinity", &self.exclusive_affinity)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
