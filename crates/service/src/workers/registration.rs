//! What is said about a worker, as discovery, files and `POST /workers` send it, and what is answered.
//!
//! It parses and prints. Whether a worker can serve is judged in `assessment`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::audit::RankAudit;

/// The most data-parallel ranks that one worker may have.
pub const MAX_DATA_PARALLEL_SIZE: u32 = 4096;

/// One worker as registered. Unknown fields are ignored here; a workers file refuses them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerRegistration {
    pub worker_id: u64,
    #[serde(default = "default_name", deserialize_with = "name_or_default")]
    pub model_name: String,
    #[serde(default = "default_name", deserialize_with = "name_or_default")]
    pub routing_group: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Where KV events are published; with several ranks, rank `r` publishes at port + `r`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_events_endpoint: Option<String>,
    /// Per rank; it wins over `kv_events_endpoint`.
    #[serde(
        default,
        deserialize_with = "by_rank",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub kv_events_endpoints: BTreeMap<u32, String>,
    /// Where lost events can be asked for; with several ranks, rank `r` answers at port + `r`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_endpoint: Option<String>,
    /// Per rank; it wins over `replay_endpoint`.
    #[serde(
        default,
        deserialize_with = "by_rank",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub replay_endpoints: BTreeMap<u32, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_parallel_start_rank: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_parallel_size: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_num_batched_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_kv_blocks: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stable_routing_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_eagle: Option<bool>,
    #[serde(
        default,
        deserialize_with = "null_is_empty",
        skip_serializing_if = "BTreeSet::is_empty"
    )]
    pub taints: BTreeSet<String>,
    #[serde(
        default,
        deserialize_with = "null_is_empty",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub topology_domains: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_transfer_domain: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_transfer_enforcement: Option<KvTransferEnforcement>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_transfer_preferred_weight: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router_hint_worker_type: Option<String>,
    #[serde(
        default,
        deserialize_with = "by_rank",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub router_hint_source_control_endpoints: BTreeMap<u32, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_event_source_mode: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum KvTransferEnforcement {
    Required,
    Preferred,
}

/// Every key that a registration may have; the workers file refuses any other.
pub(super) const FIELDS: [&str; 23] = [
    "worker_id",
    "model_name",
    "routing_group",
    "endpoint",
    "kv_events_endpoint",
    "kv_events_endpoints",
    "replay_endpoint",
    "replay_endpoints",
    "block_size",
    "data_parallel_start_rank",
    "data_parallel_size",
    "max_num_batched_tokens",
    "total_kv_blocks",
    "stable_routing_id",
    "is_eagle",
    "taints",
    "topology_domains",
    "kv_transfer_domain",
    "kv_transfer_enforcement",
    "kv_transfer_preferred_weight",
    "router_hint_worker_type",
    "router_hint_source_control_endpoints",
    "kv_event_source_mode",
];

impl WorkerRegistration {
    /// A worker of the default model and group, of which nothing else is known.
    pub fn new(worker_id: u64) -> Self {
        Self {
            worker_id,
            model_name: default_name(),
            routing_group: default_name(),
            endpoint: None,
            kv_events_endpoint: None,
            kv_events_endpoints: BTreeMap::new(),
            replay_endpoint: None,
            replay_endpoints: BTreeMap::new(),
            block_size: None,
            data_parallel_start_rank: None,
            data_parallel_size: None,
            max_num_batched_tokens: None,
            total_kv_blocks: None,
            stable_routing_id: None,
            is_eagle: None,
            taints: BTreeSet::new(),
            topology_domains: BTreeMap::new(),
            kv_transfer_domain: None,
            kv_transfer_enforcement: None,
            kv_transfer_preferred_weight: None,
            router_hint_worker_type: None,
            router_hint_source_control_endpoints: BTreeMap::new(),
            kv_event_source_mode: None,
        }
    }

    pub fn first_rank(&self) -> u32 {
        self.data_parallel_start_rank.unwrap_or(0)
    }

    pub fn rank_count(&self) -> u32 {
        self.data_parallel_size.unwrap_or(1)
    }

    pub fn ranks(&self) -> std::ops::Range<u32> {
        let first_rank = self.first_rank();
        first_rank..first_rank.saturating_add(self.rank_count())
    }
}

fn default_name() -> String {
    "default".to_owned()
}

/// A null, as clients send for what they leave out, is the default name.
fn name_or_default<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_else(default_name))
}

fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A map whose keys are ranks: as text in JSON, and in YAML as a number or, pasted from JSON, as text.
fn by_rank<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<u32, String>, D::Error> {
    let map = Option::<BTreeMap<Rank, String>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(map
        .into_iter()
        .map(|(Rank(rank), text)| (rank, text))
        .collect())
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Rank(u32);

impl<'de> Deserialize<'de> for Rank {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RankVisitor)
    }
}

struct RankVisitor;

impl Visitor<'_> for RankVisitor {
    type Value = Rank;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a data-parallel rank, a whole number from 0 to 4294967295")
    }

    fn visit_u64<E: de::Error>(self, rank: u64) -> Result<Rank, E> {
        let rank = u32::try_from(rank);
        rank.map(Rank)
            .map_err(|_| E::custom("a data-parallel rank is at most 4294967295"))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Rank, E> {
        let rank = text.parse().map(Rank);
        rank.map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

/// What a worker can be used for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Lifecycle {
    /// Something is missing or wrong; the reasons say what.
    Incomplete,
    Schedulable,
    /// Finishes what it has, gets nothing more.
    Draining,
    Unschedulable,
}

impl Lifecycle {
    pub(crate) const ALL: [Self; 4] = [
        Self::Incomplete,
        Self::Schedulable,
        Self::Draining,
        Self::Unschedulable,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Incomplete => "incomplete",
            Self::Schedulable => "schedulable",
            Self::Draining => "draining",
            Self::Unschedulable => "unschedulable",
        }
    }
}

impl fmt::Display for Lifecycle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// A registration with what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct WorkerRecord {
    #[serde(flatten)]
    pub registration: WorkerRegistration,
    pub lifecycle: Lifecycle,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_schedulable_reasons: Vec<String>,
    /// What its operator should know though it serves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Per rank; empty where no events are known of: the worker is routed by load, and by what was routed to it
    /// before where that is believed.
    pub kv_events: BTreeMap<u32, RankEvents>,
    /// Per rank: how the cached tokens that its engine reports compare with what its events promise; without the ranks
    /// of which nothing was reported.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cache_audit: BTreeMap<u32, RankAudit>,
}

impl WorkerRecord {
    pub fn worker_id(&self) -> u64 {
        self.registration.worker_id
    }

    pub fn is_schedulable(&self) -> bool {
        self.lifecycle == Lifecycle::Schedulable
    }
}

/// What is known of one rank's event stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct RankEvents {
    pub connected: bool,
    /// Blocks of this rank may be stale until a replay confirms them.
    pub suspect: bool,
    /// The number of the batch applied last.
    pub last_sequence: Option<u64>,
    pub applied_batches: u64,
    /// Store events whose blocks were cut again to the partition's block size.
    pub recut_events: u64,
    /// Store events dropped because their block size is no multiple or divisor of the partition's.
    pub block_size_mismatches: u64,
    /// The block size last seen in an event that is not the partition's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatched_block_size: Option<u32>,
}

#[cfg(test)]
mod tests;
