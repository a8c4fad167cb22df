//! What a policy may know about a request.
//!
//! It never holds the prompt itself, its hashes or anything of a worker.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigMistake, KvRouterConfig};
use crate::identity::{WorkerAffinityTarget, WorkerWithDpRank};

/// Everything a host says about one request, once, before the policy runs.
///
/// Policies read it through [`WorkerSelectionContext`]; hosts and tests fill the fields.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestSignals {
    /// Length of the prompt in KV blocks, rounded up.
    pub request_blocks: u64,
    /// Tokens in one KV block.
    pub block_size: u32,
    /// Length of the prompt in tokens. An estimate where the prompt was not tokenized.
    pub prompt_tokens: usize,
    /// Whether the request's prompt is charged to the worker until its prefill is complete. The host has already
    /// applied [`ConfigOverrides::track_prefill_tokens`].
    pub tracks_prefill_tokens: bool,
    /// The client's session, where it names one.
    pub session_context: Option<SessionContext>,
    /// Where the session was served before, where session affinity is soft.
    pub affinity_target: Option<WorkerAffinityTarget>,
    /// The one worker that may serve the request, where the caller insists. It is then the only row.
    pub pinned_worker: Option<WorkerWithDpRank>,
    /// How many tokens the client expects to be generated.
    pub expected_output_tokens: Option<u32>,
    /// Boost in the admission queue, in seconds; below zero counts as zero there.
    pub priority_jump: f64,
    /// Priority above everything else in the admission queue; larger goes first.
    pub strict_priority: u32,
    /// Temperature that replaces the configured one for this request; goes before [`ConfigOverrides::router_temperature`].
    pub router_temperature_override: Option<f64>,
    /// Seed of every random choice about this request: the same seed and inputs yield the same selection.
    pub random_seed: u64,
    /// Settings that replace the configured ones for this request.
    pub overrides: ConfigOverrides,
}

/// An empty prompt in blocks of 16 tokens whose prefill is tracked; nothing else is known.
impl Default for RequestSignals {
    fn default() -> Self {
        Self {
            request_blocks: 0,
            block_size: 16,
            prompt_tokens: 0,
            tracks_prefill_tokens: true,
            session_context: None,
            affinity_target: None,
            pinned_worker: None,
            expected_output_tokens: None,
            priority_jump: 0.0,
            strict_priority: 0,
            router_temperature_override: None,
            random_seed: 0,
            overrides: ConfigOverrides::default(),
        }
    }
}

/// Router settings that one request replaces; `None` keeps the configured value.
///
/// `assume_kv_reuse` and `track_prefill_tokens` are acted on by the host; the others are read by the default policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigOverrides {
    /// Replaces [`KvRouterConfig::overlap_score_credit`].
    pub overlap_score_credit: Option<f64>,
    /// Replaces [`KvRouterConfig::prefill_load_scale`].
    pub prefill_load_scale: Option<f64>,
    /// Replaces [`KvRouterConfig::router_temperature`].
    pub router_temperature: Option<f64>,
    /// Replaces [`KvRouterConfig::router_assume_kv_reuse`].
    pub assume_kv_reuse: Option<bool>,
    /// Replaces [`KvRouterConfig::router_track_prefill_tokens`].
    pub track_prefill_tokens: Option<bool>,
    /// Replaces [`KvRouterConfig::shared_cache_multiplier`].
    pub shared_cache_multiplier: Option<f64>,
}

impl ConfigOverrides {
    /// Checks every number by the rules of [`KvRouterConfig::validate`]; all mistakes are reported at once.
    pub fn validate(&self) -> Result<(), Vec<ConfigMistake>> {
        ConfigMistake::collect(
            [
                ConfigMistake::weight("overlap_score_credit", self.overlap_score_credit),
                ConfigMistake::weight("prefill_load_scale", self.prefill_load_scale),
                ConfigMistake::weight("router_temperature", self.router_temperature),
                ConfigMistake::fraction("shared_cache_multiplier", self.shared_cache_multiplier),
            ]
            .into_iter()
            .flatten(),
        )
    }

    /// Whether cached blocks may be reused by this request under `config`.
    pub fn assumes_kv_reuse(&self, config: &KvRouterConfig) -> bool {
        self.assume_kv_reuse
            .unwrap_or(config.router_assume_kv_reuse)
    }

    /// Whether this request's prefill is tracked under `config`.
    pub fn tracks_prefill_tokens(&self, config: &KvRouterConfig) -> bool {
        self.track_prefill_tokens
            .unwrap_or(config.router_track_prefill_tokens)
    }
}

/// A policy's view of one request. Always available, whatever a component declares.
#[derive(Clone, Debug)]
pub struct WorkerSelectionContext<'a> {
    signals: &'a RequestSignals,
}

impl<'a> WorkerSelectionContext<'a> {
    /// View of `signals`.
    pub const fn new(signals: &'a RequestSignals) -> Self {
        Self { signals }
    }

    /// Length of the prompt in KV blocks, rounded up.
    pub fn request_blocks(&self) -> u64 {
        self.signals.request_blocks
    }

    /// Tokens in one KV block.
    pub fn block_size(&self) -> u32 {
        self.signals.block_size
    }

    /// Length of the prompt in tokens; an estimate where the prompt was not tokenized.
    pub fn prompt_tokens(&self) -> usize {
        self.signals.prompt_tokens
    }

    /// Whether the request's prompt counts as load of its worker until its prefill is complete.
    pub fn tracks_prefill_tokens(&self) -> bool {
        self.signals.tracks_prefill_tokens
    }

    /// The client's session, or `None` where the request names none.
    pub fn session_context(&self) -> Option<&SessionContext> {
        self.signals.session_context.as_ref()
    }

    /// Where the session was served before, or `None` without soft affinity. The target may not be among the candidates.
    pub fn affinity_target(&self) -> Option<WorkerAffinityTarget> {
        self.signals.affinity_target
    }

    /// The one worker the caller insists on, or `None`.
    pub fn pinned_worker(&self) -> Option<WorkerWithDpRank> {
        self.signals.pinned_worker
    }

    /// How many tokens the client expects to be generated, where it says.
    pub fn expected_output_tokens(&self) -> Option<u32> {
        self.signals.expected_output_tokens
    }

    /// Boost in the admission queue, in seconds; may be below zero.
    pub fn priority_jump(&self) -> f64 {
        self.signals.priority_jump
    }

    /// Integer priority in the admission queue; larger goes first.
    pub fn strict_priority(&self) -> u32 {
        self.signals.strict_priority
    }

    /// Temperature that replaces the configured one for this request. Finite and at least 0 where a host checked it.
    pub fn router_temperature_override(&self) -> Option<f64> {
        self.signals
            .router_temperature_override
            .or(self.signals.overrides.router_temperature)
    }

    /// All settings that replace configured ones for this request.
    pub fn config_overrides(&self) -> &ConfigOverrides {
        &self.signals.overrides
    }

    /// Seed of every random choice about this request. A policy that draws from it (see
    /// [`SeededRng`](crate::SeededRng)) can be replayed exactly.
    pub fn random_seed(&self) -> u64 {
        self.signals.random_seed
    }
}

/// What a client says about the conversation that a request belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionContext {
    session_id: String,
    parent_session_id: Option<String>,
    session_final: Option<bool>,
    input_trigger: Option<WorkerSelectionInputTrigger>,
    agent_headers: BTreeMap<String, Vec<String>>,
}

impl SessionContext {
    /// Session `session_id` without agent headers.
    pub fn new(
        session_id: String,
        parent_session_id: Option<String>,
        session_final: Option<bool>,
        input_trigger: Option<WorkerSelectionInputTrigger>,
    ) -> Self {
        Self {
            session_id,
            parent_session_id,
            session_final,
            input_trigger,
            agent_headers: BTreeMap::new(),
        }
    }

    /// The same session with the agent headers its request carried. The host bounds their number and size.
    #[must_use]
    pub fn with_agent_headers(self, agent_headers: BTreeMap<String, Vec<String>>) -> Self {
        Self {
            agent_headers,
            ..self
        }
    }

    /// Stable identifier of the reasoning or tool session.
    pub fn session_id(&self) -> &str {
        &self.session_id
    }

    /// The session that started this one, for subagents.
    pub fn parent_session_id(&self) -> Option<&str> {
        self.parent_session_id.as_deref()
    }

    /// `Some(true)` on the last request of the session, where the client says.
    pub fn session_final(&self) -> Option<bool> {
        self.session_final
    }

    /// What made the client send this request, where it says.
    pub fn input_trigger(&self) -> Option<WorkerSelectionInputTrigger> {
        self.input_trigger
    }

    /// Agent headers of the request by lower-case name, each with its values in order of arrival.
    pub fn agent_headers(&self) -> &BTreeMap<String, Vec<String>> {
        &self.agent_headers
    }
}

/// What made a client send a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerSelectionInputTrigger {
    /// A person wrote something.
    UserMessage,
    /// A tool returned; the prompt usually extends one that was just served.
    ToolResult,
    /// Anything else.
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_temperature_of_the_request_goes_before_that_of_its_overrides() {
        let mut signals = RequestSignals::default();
        assert_eq!(
            WorkerSelectionContext::new(&signals).router_temperature_override(),
            None
        );
        signals.overrides.router_temperature = Some(0.5);
        assert_eq!(
            WorkerSelectionContext::new(&signals).router_temperature_override(),
            Some(0.5)
        );
        signals.router_temperature_override = Some(0.25);
        assert_eq!(
            WorkerSelectionContext::new(&signals).router_temperature_override(),
            Some(0.25)
        );
    }

    #[test]
    fn every_bad_override_is_named() {
        let overrides = ConfigOverrides {
            overlap_score_credit: Some(-1.0),
            router_temperature: Some(f64::NAN),
            shared_cache_multiplier: Some(1.5),
            ..ConfigOverrides::default()
        };
        let mistakes = overrides.validate().unwrap_err();
        let fields: Vec<&str> = mistakes.iter().map(|mistake| mistake.field).collect();
        assert_eq!(
            fields,
            [
                "overlap_score_credit",
                "router_temperature",
                "shared_cache_multiplier"
            ]
        );
    }

    #[test]
    fn an_override_replaces_the_setting_and_its_absence_keeps_it() {
        let config = KvRouterConfig::default();
        let overrides = ConfigOverrides {
            track_prefill_tokens: Some(false),
            ..ConfigOverrides::default()
        };
        assert!(!overrides.tracks_prefill_tokens(&config));
        assert!(overrides.assumes_kv_reuse(&config));
    }
}
