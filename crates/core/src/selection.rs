//! What a selection is asked with and answered with; it decides nothing.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;

use pointsman_plugin::{
    ConfigOverrides, SessionContext, WorkerAffinityTarget, WorkerSelectionPolicyError,
    WorkerWithDpRank,
};

use crate::hash::{BlockHash, SequenceHash};
use crate::load::Charge;
use crate::partition::RankOverlap;
use crate::record::DecisionRecord;
use crate::reservation::Reservation;

/// One request to place.
#[derive(Clone, Debug, Default)]
pub struct SelectionRequest {
    pub prompt: Prompt,
    /// Adapter of the request; empty counts as none.
    pub lora_name: Option<String>,
    /// Cache namespace of the request; empty counts as none.
    pub cache_salt: Option<String>,
    pub session_context: Option<SessionContext>,
    /// Where the session was served before: advice to the policy, never a demand.
    pub affinity_target: Option<WorkerAffinityTarget>,
    /// The one rank that may serve the request.
    pub pinned_worker: Option<WorkerWithDpRank>,
    /// The workers that may serve the request; `None` allows all, an empty set none.
    pub allowed_worker_ids: Option<HashSet<u64>>,
    pub constraints: RoutingConstraints,
    pub expected_output_tokens: Option<u32>,
    pub priority_jump: f64,
    pub strict_priority: u32,
    /// Blocks of the prompt that the shared cache has, as ranges of block positions, ascending and
    /// apart from each other.
    pub shared_hits: Vec<Range<u32>>,
    /// Settings this request replaces; `track_prefill_tokens` is among them.
    pub overrides: ConfigOverrides,
    /// Seed of the policy's randomness; the partition makes one if there is none.
    pub random_seed: Option<u64>,
    /// Whether [`Selection::record`] is wanted.
    pub record: bool,
}

/// What is known of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    Tokens {
        ids: Vec<u32>,
        /// Media hashes by block index; may be shorter than the prompt.
        media: Vec<Vec<u64>>,
    },
    /// Hashes computed by the caller. The index is asked by `block_hashes` alone;
    /// `sequence_hashes` say which active blocks the request shares.
    Hashes {
        block_hashes: Vec<BlockHash>,
        sequence_hashes: Vec<SequenceHash>,
        isl_tokens: u64,
    },
    /// Nothing but a size: the request is routed by load.
    Unknown { estimated_tokens: u64 },
}

impl Default for Prompt {
    fn default() -> Self {
        Self::Unknown {
            estimated_tokens: 0,
        }
    }
}

impl Prompt {
    /// Prompt length in tokens.
    pub fn isl_tokens(&self) -> u64 {
        match self {
            Self::Tokens { ids, .. } => ids.len().try_into().unwrap_or(u64::MAX),
            Self::Hashes { isl_tokens, .. } => *isl_tokens,
            Self::Unknown { estimated_tokens } => *estimated_tokens,
        }
    }
}

/// What a request demands and prefers of workers, by their taints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoutingConstraints {
    /// Only workers that carry all of them may serve the request.
    pub required_taints: BTreeSet<String>,
    /// Weights by taint; the sum of the matching ones makes a worker cheaper.
    pub preferred_taints: BTreeMap<String, f64>,
}

/// The decision for one request.
#[derive(Clone, Debug)]
pub struct Selection {
    pub worker: WorkerWithDpRank,
    pub block_size: u32,
    pub isl_tokens: u64,
    /// Leading blocks the picked rank holds on the device.
    pub overlap_blocks: u64,
    /// The same for every rank of the picked worker, zeros included, by rank.
    pub rank_overlaps: Vec<(u32, u64)>,
    /// Blocks that the picked rank holds in host memory behind those.
    pub host_overlap_blocks: u64,
    /// Blocks that it holds on disk or in external storage behind those.
    pub disk_overlap_blocks: u64,
    /// The same, by tier, for every rank of the picked worker, by rank.
    pub rank_tiers: Vec<RankOverlap>,
    /// What the engine is expected to report as cached; never the whole prompt.
    pub predicted_cached_tokens: u64,
    /// What its report is to be judged by.
    pub forecast: CacheForecast,
    /// What is left to compute after cache credit.
    pub effective_prefill_tokens: u64,
    /// Active blocks of the picked rank with this request on it.
    pub potential_decode_blocks: u64,
    /// Whether the request is charged as prefill until `prefill_complete`.
    pub track_prefill_tokens: bool,
    /// By which the request's blocks are shared with others in the active load; empty where blocks
    /// may not be shared or are not tracked.
    pub sequence_hashes: Arc<[SequenceHash]>,
    /// Blocks of the request that it shares with nobody.
    pub private_blocks: u64,
    /// What the index was asked by, where what is routed is believed in; else empty.
    pub looked_up: Arc<[SequenceHash]>,
    pub cost: f64,
    pub record: Option<Box<DecisionRecord>>,
}

/// How much of a prompt an engine can be held to have cached, and how much it may have. Neither counts a block that
/// holds the last prompt token: that one is computed whatever is cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheForecast {
    /// Leading blocks that the engine itself says are on its device.
    pub confirmed_blocks: u64,
    /// The most that it may find: beside those, blocks that were routed there or are active there now, and blocks in
    /// other tiers and in the shared cache.
    pub possible_blocks: u64,
}

impl CacheForecast {
    pub(crate) fn limit_confirmed(&mut self, blocks: u64) {
        self.confirmed_blocks = self.confirmed_blocks.min(blocks);
    }
}

impl Selection {
    /// What the picked rank is charged with when this selection is reserved.
    pub fn charge(&self) -> Charge {
        Charge {
            sequence_hashes: Arc::clone(&self.sequence_hashes),
            private_blocks: self.private_blocks,
            prefill_tokens: if self.track_prefill_tokens {
                self.effective_prefill_tokens
            } else {
                0
            },
        }
    }
}

/// A decision and the load it holds.
#[derive(Debug)]
pub struct Reserved {
    pub selection: Selection,
    pub reservation: Reservation,
}

/// What is charged to a rank now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankLoad {
    pub worker: WorkerWithDpRank,
    pub active_prefill_tokens: u64,
    pub decode_blocks: u64,
    pub active_requests: u64,
}

/// What is charged in a partition at one moment, in order of worker and rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Charged {
    /// Every rank that may be selected.
    pub ranks: Vec<RankLoad>,
    /// Ranks that left, until their requests end.
    pub leaving: Vec<RankLoad>,
}

/// Why a request was not placed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SelectError {
    #[error("no worker is registered")]
    NoWorkers,
    #[error("no worker may serve the request")]
    NoneEligible,
    #[error("pinned worker {} is not among the allowed ones", worker.worker_id)]
    PinnedNotAllowed { worker: WorkerWithDpRank },
    #[error("pinned worker {} is overloaded", worker.worker_id)]
    PinnedOverloaded { worker: WorkerWithDpRank },
    #[error("every worker that may serve the request is overloaded")]
    AllOverloaded,
    #[error("the policy's filters rejected all {candidate_count} candidates")]
    AllFiltered { candidate_count: usize },
    #[error("the policy failed")]
    Policy(#[source] WorkerSelectionPolicyError),
    #[error("the policy panicked")]
    PolicyPanicked,
    #[error("bad selection request: {0}")]
    BadRequest(String),
    #[error("reservation {id} is held already")]
    DuplicateReservation { id: String },
    #[error("the selected worker left before its load was reserved")]
    WorkerGone,
}

/// How many shared blocks are at `position` or behind it.
pub(crate) fn hits_beyond(hits: &[Range<u32>], position: u32) -> u32 {
    let beyond = |hit: &Range<u32>| hit.end.saturating_sub(hit.start.max(position));
    hits.iter().map(beyond).fold(0, u32::saturating_add)
}
