//! What a policy may know about each worker it chooses from.
//!
//! It never computes a value: hosts fill candidates, and [`crate::policy`] decides which part a component sees.

use std::ops::{BitOr, BitOrAssign};

use crate::identity::WorkerWithDpRank;

/// The groups of optional worker data that a component reads. A host computes only what some component asked for.
///
/// Combine groups with `|`. There is no constant for all of them on purpose: ask for what is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerInputs(u8);

impl WorkerInputs {
    /// Nothing but the worker's identity.
    pub const NONE: Self = Self(0);
    /// [`WorkerCacheInput`].
    pub const CACHE: Self = Self(1);
    /// [`WorkerLoadInput`].
    pub const LOAD: Self = Self(2);
    /// The multiplier from preferred routing taints.
    pub const PREFERRED_TAINT: Self = Self(4);

    /// Whether every group of `other` is in `self`; true for [`WorkerInputs::NONE`].
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for WorkerInputs {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for WorkerInputs {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

/// What a host found in the cache index for one worker, in blocks of the request's prompt; the default is no overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CacheOverlap {
    /// Leading blocks resident on the device.
    pub device_blocks: f64,
    /// Blocks beyond those in pinned host memory.
    pub host_blocks: f64,
    /// Blocks beyond those on disk.
    pub disk_blocks: f64,
    /// Blocks of the shared cache beyond the device-resident prefix.
    pub shared_beyond_device_blocks: u32,
    /// The host's single estimate of what the cache is worth: tiers weighted, or an approximate index's guess.
    pub effective_blocks: f64,
}

/// Cache overlap of one worker with the prompt: raw counts per tier, zero where nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerCacheInput(CacheOverlap);

impl WorkerCacheInput {
    /// Input of `overlap`.
    pub const fn new(overlap: CacheOverlap) -> Self {
        Self(overlap)
    }

    /// Leading blocks of the prompt resident on the worker's device.
    pub fn device_overlap_blocks(&self) -> f64 {
        self.0.device_blocks
    }

    /// Blocks in pinned host memory, beyond the device's.
    pub fn host_overlap_blocks(&self) -> f64 {
        self.0.host_blocks
    }

    /// Blocks on disk, beyond the host's.
    pub fn disk_overlap_blocks(&self) -> f64 {
        self.0.disk_blocks
    }

    /// Blocks the shared cache holds beyond the device-resident prefix (rounded to whole blocks).
    pub fn shared_beyond_device_blocks(&self) -> u32 {
        self.0.shared_beyond_device_blocks
    }

    /// The host's weighted estimate over all tiers, in blocks. It stands in for the device count where no tier matched,
    /// as with an index that only guesses.
    pub fn effective_overlap_blocks(&self) -> f64 {
        self.0.effective_blocks
    }
}

/// What a host has charged to one worker, this request included where the field says so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActiveLoad {
    /// Prompt tokens whose prefill is not complete, without this request's.
    pub prefill_tokens: usize,
    /// Active blocks, plus this request's blocks that are not active there yet.
    pub decode_cost_blocks: f64,
    /// Active requests, without this one.
    pub requests: usize,
    /// Whether the load is known. Where it is not, `prefill_tokens` and `requests` say nothing.
    pub available: bool,
}

/// An idle worker whose load is known.
impl Default for ActiveLoad {
    fn default() -> Self {
        Self {
            prefill_tokens: 0,
            decode_cost_blocks: 0.0,
            requests: 0,
            available: true,
        }
    }
}

/// Active load of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerLoadInput(ActiveLoad);

impl WorkerLoadInput {
    /// Input of `load`.
    pub const fn new(load: ActiveLoad) -> Self {
        Self(load)
    }

    /// Tokens in the worker's prefill stage now, without this request's.
    pub fn active_prefill_tokens(&self) -> usize {
        self.0.prefill_tokens
    }

    /// Blocks that would be active if this request came: those active now and the request's own that are not yet.
    pub fn decode_cost_blocks(&self) -> f64 {
        self.0.decode_cost_blocks
    }

    /// Requests active on the worker now, without this one.
    pub fn active_requests(&self) -> usize {
        self.0.requests
    }

    /// Whether the worker's load is known; if not, the other numbers say nothing.
    pub fn is_available(&self) -> bool {
        self.0.available
    }
}

/// One row offered to filters and scorers.
///
/// Each component sees only the groups it declared in `required_worker_inputs`; the accessors of all others return
/// `None`, as they do for a group the host has nothing for. A candidate that was just built shows everything it was given.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerCandidate {
    worker: WorkerWithDpRank,
    visible: WorkerInputs,
    cache: Option<WorkerCacheInput>,
    load: Option<WorkerLoadInput>,
    preferred_taint_multiplier: Option<f64>,
}

impl WorkerCandidate {
    const EVERYTHING: WorkerInputs = WorkerInputs(
        WorkerInputs::CACHE.0 | WorkerInputs::LOAD.0 | WorkerInputs::PREFERRED_TAINT.0,
    );

    /// Row of `worker` without optional inputs.
    pub const fn new(worker: WorkerWithDpRank) -> Self {
        Self::of_parts(worker, None, None, None)
    }

    /// Row of `worker` with all that a host has for it at once.
    pub const fn of_parts(
        worker: WorkerWithDpRank,
        cache: Option<WorkerCacheInput>,
        load: Option<WorkerLoadInput>,
        preferred_taint_multiplier: Option<f64>,
    ) -> Self {
        Self {
            worker,
            visible: Self::EVERYTHING,
            cache,
            load,
            preferred_taint_multiplier,
        }
    }

    /// The same row with its cache overlap.
    #[must_use]
    pub fn with_cache(self, cache: WorkerCacheInput) -> Self {
        Self {
            cache: Some(cache),
            ..self
        }
    }

    /// The same row with its load.
    #[must_use]
    pub fn with_load(self, load: WorkerLoadInput) -> Self {
        Self {
            load: Some(load),
            ..self
        }
    }

    /// The same row with its multiplier from preferred taints: below 1 where taints match, never given for pinned requests.
    #[must_use]
    pub fn with_preferred_taint_multiplier(self, multiplier: f64) -> Self {
        Self {
            preferred_taint_multiplier: Some(multiplier),
            ..self
        }
    }

    /// The worker and rank of this row.
    pub fn worker(&self) -> WorkerWithDpRank {
        self.worker
    }

    /// Cache overlap, if declared through [`WorkerInputs::CACHE`].
    pub fn cache(&self) -> Option<&WorkerCacheInput> {
        self.cache
            .as_ref()
            .filter(|_| self.visible.contains(WorkerInputs::CACHE))
    }

    /// Load, if declared through [`WorkerInputs::LOAD`].
    pub fn load(&self) -> Option<&WorkerLoadInput> {
        self.load
            .as_ref()
            .filter(|_| self.visible.contains(WorkerInputs::LOAD))
    }

    /// Cost multiplier from matching preferred taints, if declared through [`WorkerInputs::PREFERRED_TAINT`] and if the
    /// request prefers any.
    pub fn preferred_taint_multiplier(&self) -> Option<f64> {
        self.preferred_taint_multiplier
            .filter(|_| self.visible.contains(WorkerInputs::PREFERRED_TAINT))
    }

    pub(crate) fn show_only(&mut self, inputs: WorkerInputs) {
        self.visible = inputs;
    }

    pub(crate) fn show_everything(&mut self) {
        self.visible = Self::EVERYTHING;
    }
}

/// One row offered to a picker: a worker with its total cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoredWorkerCandidate {
    pub(crate) worker: WorkerWithDpRank,
    pub(crate) cost: f64,
    pub(crate) preferred_taint_multiplier: Option<f64>,
}

impl ScoredWorkerCandidate {
    /// The worker and rank of this row.
    pub fn worker(&self) -> WorkerWithDpRank {
        self.worker
    }

    /// Sum of all scorers' costs: finite; 0 where the policy has no scorer.
    pub fn cost(&self) -> f64 {
        self.cost
    }

    /// Cost multiplier from matching preferred taints, if the picker declared [`WorkerInputs::PREFERRED_TAINT`].
    pub fn preferred_taint_multiplier(&self) -> Option<f64> {
        self.preferred_taint_multiplier
    }
}

/// A picker's view of all remaining rows, in arrays of the same order and length.
#[derive(Clone, Copy, Debug)]
pub struct WorkerInputView<'a> {
    pub(crate) candidates: &'a [ScoredWorkerCandidate],
    pub(crate) cache: Option<&'a [WorkerCacheInput]>,
    pub(crate) load: Option<&'a [WorkerLoadInput]>,
}

impl<'a> WorkerInputView<'a> {
    /// The rows. Their order is unspecified; a picker returns an index into this slice.
    pub fn candidates(self) -> &'a [ScoredWorkerCandidate] {
        self.candidates
    }

    /// Cache overlap per row, if the picker declared [`WorkerInputs::CACHE`] and every row has one.
    pub fn cache(self) -> Option<&'a [WorkerCacheInput]> {
        self.cache
    }

    /// Load per row, if the picker declared [`WorkerInputs::LOAD`] and every row has one.
    pub fn load(self) -> Option<&'a [WorkerLoadInput]> {
        self.load
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_candidate_shows_what_it_was_given() {
        let row =
            WorkerCandidate::new(WorkerWithDpRank::new(1, 0)).with_load(WorkerLoadInput::default());
        assert!(row.load().is_some());
        assert_eq!(
            (row.cache(), row.preferred_taint_multiplier()),
            (None, None)
        );
    }

    #[test]
    fn inputs_contain_their_parts_and_nothing_else() {
        let both = WorkerInputs::CACHE | WorkerInputs::LOAD;
        assert!(
            both.contains(WorkerInputs::CACHE)
                && both.contains(WorkerInputs::NONE)
                && both.contains(both)
        );
        assert!(!both.contains(WorkerInputs::PREFERRED_TAINT));
        assert!(!WorkerInputs::CACHE.contains(both));
    }
}
