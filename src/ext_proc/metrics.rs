//! What the exchanges count.
//!
//! Labels take fixed values only.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Counters of exchanges. Clones share their values.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(super) in_flight: Gauge,
    pub(super) body_bytes: Gauge,
    pub(super) panics: Counter,
    pub(super) silent: Counter,
    refusals: Family<CodeLabel, Counter>,
    outcomes: [Counter; Outcome::ALL.len()],
}

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The end of the response was seen.
    Completed,
    /// Routed; then the stream ended without a proof that the response did.
    Ended,
    /// The stream ended before there was a decision.
    Cancelled,
    Refused,
    /// The filter is configured in a way that cannot be served.
    Unserved,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabel {
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

impl Outcome {
    const ALL: [Self; 5] = [
        Self::Completed,
        Self::Ended,
        Self::Cancelled,
        Self::Refused,
        Self::Unserved,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Ended => "ended",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
            Self::Unserved => "unserved",
        }
    }
}

impl Metrics {
    pub fn new(registry: &mut Registry) -> Self {
        let outcomes = Family::<OutcomeLabel, Counter>::default();
        let metrics = Self {
            in_flight: Gauge::default(),
            body_bytes: Gauge::default(),
            panics: Counter::default(),
            silent: Counter::default(),
            refusals: Family::default(),
            outcomes: Outcome::ALL.map(|outcome| {
                let label = OutcomeLabel {
                    outcome: outcome.name(),
                };
                outcomes.get_or_create_owned(&label)
            }),
        };
        let registry = registry.sub_registry_with_prefix("pointsman");
        registry.register(
            "exchanges_in_flight",
            "exchanges in flight",
            metrics.in_flight.clone(),
        );
        registry.register("exchanges", "exchanges by how they ended", outcomes);
        registry.register(
            "request_body_bytes",
            "bytes of request bodies held in memory",
            metrics.body_bytes.clone(),
        );
        registry.register(
            "refusals",
            "requests refused, by code",
            metrics.refusals.clone(),
        );
        registry.register(
            "exchange_panics",
            "panics caught while picking or counting",
            metrics.panics.clone(),
        );
        registry.register(
            "silent_responses",
            "responses whose load was freed after a long silence",
            metrics.silent.clone(),
        );
        metrics
    }

    pub(super) fn ended(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].inc();
    }

    pub(super) fn refused(&self, code: &'static str) {
        self.refusals.get_or_create(&CodeLabel { code }).inc();
    }
}
