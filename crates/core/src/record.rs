//! Everything that decided one selection, written down for whoever asks why or wants to decide it again; it is data alone.

use std::time::Instant;

use pointsman_plugin::{ActiveLoad, CacheOverlap, PolicyTrace, RequestSignals, WorkerWithDpRank};

use crate::partition::PartitionId;

/// One decision, complete: a policy given the same signals and candidates decides the same again.
#[derive(Clone, Debug)]
pub struct DecisionRecord {
    pub partition: PartitionId,
    /// Name of the policy instance.
    pub policy: String,
    /// Hash of that instance's parameters.
    pub policy_fingerprint: u64,
    pub decided_at: Instant,
    /// What the policy knew of the request; its seed is among them.
    pub signals: RequestSignals,
    /// The rows offered to the policy, in order.
    pub candidates: Vec<CandidateRecord>,
    /// The workers that were not offered.
    pub excluded: Vec<Excluded>,
    /// What each filter and scorer said of each row.
    pub trace: PolicyTrace,
    pub picked: WorkerWithDpRank,
    pub cost: f64,
}

/// One row with everything known of it, whether or not the policy had asked for it.
#[derive(Clone, Debug, PartialEq)]
pub struct CandidateRecord {
    pub worker: WorkerWithDpRank,
    pub cache: CacheOverlap,
    pub load: ActiveLoad,
    /// None for pinned requests.
    pub preferred_taint_multiplier: Option<f64>,
}

/// A worker that was not offered, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excluded {
    pub worker: WorkerWithDpRank,
    pub reason: Ineligible,
}

/// What keeps a worker rank from serving a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ineligible {
    /// It is not among the allowed workers.
    NotAllowed,
    /// It lacks a required taint.
    MissingTaint,
    Overloaded,
    /// The request is pinned to another rank.
    NotPinned,
    /// The session is bound to another rank, and the policy honours that.
    NotAffinityTarget,
    /// It left while the request was being placed.
    Left,
}
