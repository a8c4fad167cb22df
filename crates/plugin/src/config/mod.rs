//! Settings of the router that policies and hosts share, and which policy each role uses.
//!
//! It never reads a file or the environment: whoever starts the program fills it in.

use std::fmt;
use std::str::FromStr;

use crate::identity::WorkerType;
use crate::policy_yaml::{RequestClassifierConfig, WorkerSelectionConfig};
use crate::suggest::by_name;

/// Environment variable that selects the policy of every role.
pub const DYN_ROUTER_WORKER_SELECTION_POLICY: &str = "DYN_ROUTER_WORKER_SELECTION_POLICY";
/// Environment variable that selects the policy of the prefill role; goes before all others.
pub const DYN_ROUTER_PREFILL_POLICY: &str = "DYN_ROUTER_PREFILL_POLICY";
/// Environment variable that selects the policy of the decode role; goes before all others.
pub const DYN_ROUTER_DECODE_POLICY: &str = "DYN_ROUTER_DECODE_POLICY";

/// The word that selects the built-in policy.
pub(crate) const BUILT_IN: &str = "default";

/// Settings of one router. [`Default`] gives the published defaults; all weights are finite and at least 0.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "published settings, each switched on its own"
)]
pub struct KvRouterConfig {
    /// What one block cached on the device takes off the cost, in blocks. 1.0.
    pub overlap_score_credit: f64,
    /// How fast that credit fades on workers with more active prefill than the least busy one. 0.0: not at all.
    pub overlap_score_credit_decay: f64,
    /// What one block left to prefill costs. 1.0.
    pub prefill_load_scale: f64,
    /// What one active request costs, in blocks. 0.0.
    pub decode_active_request_weight: f64,
    /// Worth of a block cached in host memory, in blocks on the device. 0.75.
    pub host_cache_hit_weight: f64,
    /// Worth of a block cached on disk, in blocks on the device. 0.25.
    pub disk_cache_hit_weight: f64,
    /// Randomness of the choice: 0 takes the lowest cost, more spreads over higher ones. 0.0.
    pub router_temperature: f64,
    /// Worth of a block in the shared cache, 0 to 1. Unset counts as 0; where a shared cache is asked, as 0.5.
    pub shared_cache_multiplier: Option<f64>,
    /// Whether the cache index is fed by the workers' events. true.
    pub use_kv_events: bool,
    /// Whether replicas tell each other about active load. false.
    pub router_replica_sync: bool,
    /// Whether blocks of active requests are tracked. true.
    pub router_track_active_blocks: bool,
    /// Whether generated blocks are tracked too; needs `router_track_active_blocks`. false.
    pub router_track_output_blocks: bool,
    /// Whether requests with a common prefix are taken to share blocks. true.
    pub router_assume_kv_reuse: bool,
    /// Whether prompts count as load until their prefill is complete. true.
    pub router_track_prefill_tokens: bool,
    /// Share of `max_num_batched_tokens` above which a worker counts as busy. Unset: requests never wait.
    pub router_queue_threshold: Option<f64>,
    /// Order in which waiting requests are admitted. First come, first served.
    pub router_queue_policy: QueuePolicy,
    /// How long an index without events believes in a block, in seconds. 120.
    pub router_ttl_secs: f64,
    /// How long a block is taken as cached before its event arrives, in seconds; needs `use_kv_events`. Unset: not at all.
    pub router_predicted_ttl_secs: Option<f64>,
    /// Threads that apply events. 4.
    pub router_event_threads: usize,
    /// The `worker_selection` part of the policy file.
    pub worker_selection: Option<WorkerSelectionConfig>,
    /// The `request_classifier` part of the policy file.
    pub request_classifier: Option<RequestClassifierConfig>,
    /// Value of [`DYN_ROUTER_WORKER_SELECTION_POLICY`] or its flag. Empty counts as unset.
    pub worker_selection_override: Option<String>,
    /// Value of [`DYN_ROUTER_PREFILL_POLICY`] or its flag. Empty counts as unset.
    pub prefill_override: Option<String>,
    /// Value of [`DYN_ROUTER_DECODE_POLICY`] or its flag. Empty counts as unset.
    pub decode_override: Option<String>,
}

impl Default for KvRouterConfig {
    fn default() -> Self {
        Self {
            overlap_score_credit: 1.0,
            overlap_score_credit_decay: 0.0,
            prefill_load_scale: 1.0,
            decode_active_request_weight: 0.0,
            host_cache_hit_weight: 0.75,
            disk_cache_hit_weight: 0.25,
            router_temperature: 0.0,
            shared_cache_multiplier: None,
            use_kv_events: true,
            router_replica_sync: false,
            router_track_active_blocks: true,
            router_track_output_blocks: false,
            router_assume_kv_reuse: true,
            router_track_prefill_tokens: true,
            router_queue_threshold: None,
            router_queue_policy: QueuePolicy::Fcfs,
            router_ttl_secs: 120.0,
            router_predicted_ttl_secs: None,
            router_event_threads: 4,
            worker_selection: None,
            request_classifier: None,
            worker_selection_override: None,
            prefill_override: None,
            decode_override: None,
        }
    }
}

impl KvRouterConfig {
    /// Checks the scalar settings; all mistakes are reported at once. Selections are checked where they are resolved.
    pub fn validate(&self) -> Result<(), Vec<ConfigMistake>> {
        let numbers = [
            ConfigMistake::weight("overlap_score_credit", Some(self.overlap_score_credit)),
            ConfigMistake::weight(
                "overlap_score_credit_decay",
                Some(self.overlap_score_credit_decay),
            ),
            ConfigMistake::weight("prefill_load_scale", Some(self.prefill_load_scale)),
            ConfigMistake::weight(
                "decode_active_request_weight",
                Some(self.decode_active_request_weight),
            ),
            ConfigMistake::weight("host_cache_hit_weight", Some(self.host_cache_hit_weight)),
            ConfigMistake::weight("disk_cache_hit_weight", Some(self.disk_cache_hit_weight)),
            ConfigMistake::weight("router_temperature", Some(self.router_temperature)),
            ConfigMistake::fraction("shared_cache_multiplier", self.shared_cache_multiplier),
            ConfigMistake::weight("router_queue_threshold", self.router_queue_threshold),
            ConfigMistake::duration("router_ttl_secs", Some(self.router_ttl_secs)),
            ConfigMistake::duration("router_predicted_ttl_secs", self.router_predicted_ttl_secs),
        ];
        ConfigMistake::collect(numbers.into_iter().flatten().chain(self.contradictions()))
    }

    fn contradictions(&self) -> impl Iterator<Item = ConfigMistake> {
        let rules = [
            (
                self.router_event_threads == 0,
                "router_event_threads",
                "0".to_owned(),
                "at least 1",
            ),
            (
                self.router_track_output_blocks && !self.router_track_active_blocks,
                "router_track_output_blocks",
                "true".to_owned(),
                "false, as router_track_active_blocks is false",
            ),
            (
                self.router_predicted_ttl_secs.is_some() && !self.use_kv_events,
                "router_predicted_ttl_secs",
                format!("{:?}", self.router_predicted_ttl_secs.unwrap_or_default()),
                "no value, as use_kv_events is false",
            ),
        ];
        rules
            .into_iter()
            .filter(|(broken, ..)| *broken)
            .map(|(_, field, value, expected)| ConfigMistake {
                field,
                value,
                expected,
            })
    }

    /// The policy instance that `role` uses and where that was said, or `None` for the built-in policy.
    ///
    /// For prefill and decode: the role's override, the override of all roles, the policy file. For aggregated and
    /// encode: the override of all roles, the policy file. Values are trimmed, an empty one counts as unset, and
    /// `default` selects the built-in policy. Roles never fall back to each other.
    pub fn selection_for(&self, role: WorkerType) -> Option<(&str, SelectionSource)> {
        let of_every_role = (
            self.worker_selection_override.as_deref(),
            SelectionSource::EveryRole,
        );
        [
            self.override_of(role),
            of_every_role,
            self.file_selection_of(role),
        ]
        .into_iter()
        .find_map(|(value, source)| Some((set(value)?, source)))
        .filter(|(name, _)| *name != BUILT_IN)
    }

    /// What was said about `role` alone: its override, else its line in the policy file; `default` included.
    pub(crate) fn role_selection(&self, role: WorkerType) -> Option<(&str, SelectionSource)> {
        [self.override_of(role), self.file_selection_of(role)]
            .into_iter()
            .find_map(|(value, source)| Some((set(value)?, source)))
    }

    fn override_of(&self, role: WorkerType) -> (Option<&str>, SelectionSource) {
        let value = match role {
            WorkerType::Prefill => &self.prefill_override,
            WorkerType::Decode => &self.decode_override,
            WorkerType::Aggregated | WorkerType::Encode => &None,
        };
        (value.as_deref(), SelectionSource::Role(role))
    }

    fn file_selection_of(&self, role: WorkerType) -> (Option<&str>, SelectionSource) {
        let value = self
            .worker_selection
            .as_ref()
            .and_then(|selection| selection.selection_of(role));
        (value, SelectionSource::File(role))
    }
}

/// The trimmed value, if there is one that is not empty.
fn set(value: Option<&str>) -> Option<&str> {
    value.map(str::trim).filter(|value| !value.is_empty())
}

/// Where a role's policy was selected. Displays as the name of the setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectionSource {
    /// The override of one role.
    Role(WorkerType),
    /// The override of every role.
    EveryRole,
    /// The policy file's line for one role.
    File(WorkerType),
}

impl fmt::Display for SelectionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Role(WorkerType::Prefill) => f.write_str(DYN_ROUTER_PREFILL_POLICY),
            Self::Role(WorkerType::Decode) => f.write_str(DYN_ROUTER_DECODE_POLICY),
            Self::EveryRole => f.write_str(DYN_ROUTER_WORKER_SELECTION_POLICY),
            Self::Role(role) | Self::File(role) => write!(f, "worker_selection.{role}"),
        }
    }
}

/// Order in which requests that wait for room are admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QueuePolicy {
    /// First come, first served.
    #[default]
    Fcfs,
    /// Last come, first served.
    Lcfs,
    /// Weighted shortest processing time: least left to prefill first.
    Wspt,
}

impl QueuePolicy {
    const EVERY: [Self; 3] = [Self::Fcfs, Self::Lcfs, Self::Wspt];

    /// The name used in settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fcfs => "fcfs",
            Self::Lcfs => "lcfs",
            Self::Wspt => "wspt",
        }
    }
}

impl fmt::Display for QueuePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Reads the name; case and surrounding white space do not matter. The error lists the known names.
impl FromStr for QueuePolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        by_name(text, "known policies", Self::EVERY, Self::as_str)
            .map_err(|choices| format!("unknown queue policy {text:?}; {choices}"))
    }
}

/// One setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}; expected {expected}")]
pub struct ConfigMistake {
    /// Name of the field of [`KvRouterConfig`] or [`ConfigOverrides`](crate::ConfigOverrides).
    pub field: &'static str,
    /// The value as given.
    pub value: String,
    /// What would do.
    pub expected: &'static str,
}

impl ConfigMistake {
    pub(crate) fn weight(field: &'static str, value: Option<f64>) -> Option<Self> {
        Self::unless(
            |value| value.is_finite() && value >= 0.0,
            field,
            value,
            "a finite number of at least 0",
        )
    }

    pub(crate) fn fraction(field: &'static str, value: Option<f64>) -> Option<Self> {
        Self::unless(
            |value| (0.0..=1.0).contains(&value),
            field,
            value,
            "a number from 0 to 1",
        )
    }

    fn duration(field: &'static str, value: Option<f64>) -> Option<Self> {
        Self::unless(
            |value| value.is_finite() && value > 0.0,
            field,
            value,
            "a finite number above 0",
        )
    }

    fn unless(
        holds: impl Fn(f64) -> bool,
        field: &'static str,
        value: Option<f64>,
        expected: &'static str,
    ) -> Option<Self> {
        let value = value.filter(|value| !holds(*value))?;
        Some(Self {
            field,
            value: format!("{value:?}"),
            expected,
        })
    }

    /// `Ok` if there is no mistake.
    pub(crate) fn collect(mistakes: impl Iterator<Item = Self>) -> Result<(), Vec<Self>> {
        let mistakes: Vec<Self> = mistakes.collect();
        if mistakes.is_empty() {
            Ok(())
        } else {
            Err(mistakes)
        }
    }
}

#[cfg(test)]
mod tests;
