//! Who is selected and for whom: workers, their roles and the partitions they serve.
//!
//! It never says whether a worker exists or may serve.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::suggest::{Choices, by_name};

/// One rank of one worker: what a selection yields.
///
/// Ordered by `worker_id`, then `dp_rank`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkerWithDpRank {
    /// Id of the registered worker.
    pub worker_id: u64,
    /// Data-parallel rank within the worker, counted from the rank the worker registered first (usually 0).
    pub dp_rank: u32,
}

impl WorkerWithDpRank {
    /// Rank `dp_rank` of worker `worker_id`.
    pub const fn new(worker_id: u64, dp_rank: u32) -> Self {
        Self { worker_id, dp_rank }
    }

    /// Rank 0 of worker `worker_id`.
    pub const fn from_worker_id(worker_id: u64) -> Self {
        Self::new(worker_id, 0)
    }
}

/// Written `worker_id:dp_rank`.
impl fmt::Display for WorkerWithDpRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.worker_id, self.dp_rank)
    }
}

/// Where a session was served before: advice, not an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WorkerAffinityTarget {
    /// Id of the worker the session is bound to. It may have left since.
    pub worker_id: u64,
    /// The one rank meant, or `None` for every rank of the worker.
    #[serde(default)]
    pub dp_rank: Option<u32>,
}

impl WorkerAffinityTarget {
    /// Whether `worker` is the target: the same worker, and the same rank where the target names one.
    pub fn matches(&self, worker: WorkerWithDpRank) -> bool {
        self.worker_id == worker.worker_id
            && self.dp_rank.is_none_or(|dp_rank| dp_rank == worker.dp_rank)
    }
}

impl From<WorkerWithDpRank> for WorkerAffinityTarget {
    fn from(worker: WorkerWithDpRank) -> Self {
        Self {
            worker_id: worker.worker_id,
            dp_rank: Some(worker.dp_rank),
        }
    }
}

/// The role of a pool of workers. A host that serves whole requests from one pool uses [`WorkerType::Aggregated`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerType {
    /// Serves prefill and decode of a request.
    Aggregated,
    /// Computes prompts only.
    Prefill,
    /// Generates output from a cache computed elsewhere.
    Decode,
    /// Encodes media.
    Encode,
}

impl WorkerType {
    /// Every role, in the order in which configuration lists them.
    pub const EVERY: [Self; 4] = [Self::Aggregated, Self::Prefill, Self::Decode, Self::Encode];

    /// The lower-case name used in YAML and labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Aggregated => "aggregated",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Encode => "encode",
        }
    }

    /// Label of the default policy of this role: `prefill` for prefill, `decode` for all others.
    pub const fn default_selector_label(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Aggregated | Self::Decode | Self::Encode => "decode",
        }
    }
}

impl fmt::Display for WorkerType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that names no [`WorkerType`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown worker type {value:?}; {choices}")]
pub struct WorkerTypeError {
    /// The word as given.
    pub value: String,
    choices: Choices,
}

/// Reads the lower-case name; case and surrounding white space do not matter.
impl FromStr for WorkerType {
    type Err = WorkerTypeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        by_name(text, "known types", Self::EVERY, Self::as_str).map_err(|choices| WorkerTypeError {
            value: text.to_owned(),
            choices,
        })
    }
}

/// The partition a policy instance serves: one model, one routing group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RoutingPartitionRef<'a> {
    /// Name of the model that clients ask for.
    pub model_name: &'a str,
    /// Group within the model, `default` unless the deployment splits its workers.
    pub routing_group: &'a str,
}

impl<'a> RoutingPartitionRef<'a> {
    /// Partition of `model_name` and `routing_group`.
    pub const fn new(model_name: &'a str, routing_group: &'a str) -> Self {
        Self {
            model_name,
            routing_group,
        }
    }

    /// Name of the model that clients ask for.
    pub const fn model_name(&self) -> &'a str {
        self.model_name
    }

    /// Group within the model.
    pub const fn routing_group(&self) -> &'a str {
        self.routing_group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_without_rank_matches_every_rank_of_its_worker() {
        let target = WorkerAffinityTarget {
            worker_id: 7,
            dp_rank: None,
        };
        assert!(
            target.matches(WorkerWithDpRank::new(7, 0))
                && target.matches(WorkerWithDpRank::new(7, 3))
        );
        assert!(!target.matches(WorkerWithDpRank::new(8, 0)));
    }

    #[test]
    fn a_target_with_rank_matches_that_rank_alone() {
        let target = WorkerAffinityTarget::from(WorkerWithDpRank::new(7, 2));
        assert!(target.matches(WorkerWithDpRank::new(7, 2)));
        assert!(!target.matches(WorkerWithDpRank::new(7, 0)));
    }

    #[test]
    fn a_worker_type_is_read_trimmed_and_in_any_case() {
        assert_eq!(" PreFill\n".parse(), Ok(WorkerType::Prefill));
        for role in WorkerType::EVERY {
            assert_eq!(role.as_str().parse(), Ok(role));
        }
    }

    #[test]
    fn an_unknown_worker_type_is_told_the_nearest_one() {
        let error = "prefil".parse::<WorkerType>().unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown worker type \"prefil\"; did you mean prefill? known types: aggregated, prefill, decode, encode"
        );
    }

    #[test]
    fn only_prefill_has_a_label_of_its_own_in_the_default_policy() {
        let labels = WorkerType::EVERY.map(WorkerType::default_selector_label);
        assert_eq!(labels, ["decode", "prefill", "decode", "decode"]);
    }
}
