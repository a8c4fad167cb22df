//! Counts of what tokenizing did and how long it took.
//!
//! Never labels anything with what a client sent.

use std::{sync::atomic::AtomicU64, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

use super::{Degraded, TokenizeError};

#[derive(Clone, Debug)]
pub struct TokenizeMetrics {
    tokens: Counter,
    refused: Counter,
    degraded: Family<Reason, Counter>,
    text_bytes: Counter<u64, AtomicU64>,
    reused_bytes: Counter<u64, AtomicU64>,
    seconds: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

impl Default for TokenizeMetrics {
    fn default() -> Self {
        let bounds = [
            5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2, 0.2, 1.0, 5.0,
        ];
        Self {
            tokens: Counter::default(),
            refused: Counter::default(),
            degraded: Family::default(),
            text_bytes: Counter::default(),
            reused_bytes: Counter::default(),
            seconds: Histogram::new(bounds),
        }
    }
}

impl TokenizeMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("pointsman_tokenize");
        registry.register("tokens", "Prompt tokens", self.tokens.clone());
        registry.register(
            "refused",
            "Conversations that the chat template refused",
            self.refused.clone(),
        );
        registry.register(
            "degraded",
            "Prompts routed by load, by reason",
            self.degraded.clone(),
        );
        registry.register(
            "text_bytes",
            "Bytes of prompt text",
            self.text_bytes.clone(),
        );
        registry.register(
            "reused_bytes",
            "Bytes of prompt text whose tokens were known from an earlier prompt",
            self.reused_bytes.clone(),
        );
        registry.register(
            "seconds",
            "Time from prompt to tokens, waiting included",
            self.seconds.clone(),
        );
    }

    /// How many prompts were routed by load for this reason.
    pub fn degraded(&self, reason: Degraded) -> u64 {
        let reason = reason.as_str();
        self.degraded.get_or_create(&Reason { reason }).get()
    }

    pub(super) fn observe(&self, outcome: &Result<Vec<u32>, TokenizeError>, elapsed: Duration) {
        self.seconds.observe(elapsed.as_secs_f64());
        match outcome {
            Ok(ids) => drop(self.tokens.inc_by(ids.len() as u64)),
            Err(TokenizeError::Refused { .. }) => drop(self.refused.inc()),
            Err(TokenizeError::Degraded(degraded)) => {
                let reason = degraded.as_str();
                self.degraded.get_or_create(&Reason { reason }).inc();
            }
        }
    }

    /// Bytes of prompt text, and those among them whose tokens were known.
    pub fn bytes(&self) -> (u64, u64) {
        (self.text_bytes.get(), self.reused_bytes.get())
    }

    pub(super) fn reused(&self, reused_bytes: usize, text_bytes: usize) {
        self.reused_bytes.inc_by(reused_bytes as u64);
        self.text_bytes.inc_by(text_bytes as u64);
    }
}
