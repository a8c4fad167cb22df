//! What picks and their responses count.
//!
//! The model is the only label that comes from outside, and it is bounded.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

/// Counters of picks. Clones share their values.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub(super) mismatches: Counter,
    predicted_cached_tokens: Counter,
    reported_cached_tokens: Counter,
    picks: Family<ModelLabel, Counter>,
    models: Arc<RwLock<HashMap<String, Counter>>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabel {
    model: String,
}

/// Models beyond this many are counted together, as `OTHER`.
const MODELS_MAX: usize = 1_000;
const OTHER: &str = "other";

impl Metrics {
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("pointsman");
        registry.register("picks", "requests routed, by model", metrics.picks.clone());
        registry.register(
            "endpoint_mismatches",
            "responses served by another endpoint than the one picked",
            metrics.mismatches.clone(),
        );
        registry.register(
            "predicted_cached_tokens",
            "cached tokens predicted, of responses whose worker reports them",
            metrics.predicted_cached_tokens.clone(),
        );
        registry.register(
            "reported_cached_tokens",
            "cached tokens that workers report",
            metrics.reported_cached_tokens.clone(),
        );
        metrics
    }

    pub(super) fn picked(&self, model: &str) {
        let known = {
            let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
            models.get(model).cloned()
        };
        known.unwrap_or_else(|| self.counter_of(model)).inc();
    }

    pub(super) fn cached(&self, predicted: u64, reported: u64) {
        self.predicted_cached_tokens.inc_by(predicted);
        self.reported_cached_tokens.inc_by(reported);
    }

    fn counter_of(&self, model: &str) -> Counter {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        let counter = |model: &str| {
            let model = model.to_owned();
            self.picks.get_or_create_owned(&ModelLabel { model })
        };
        if models.len() >= MODELS_MAX && !models.contains_key(model) {
            return counter(OTHER);
        }
        let known = models.entry(model.to_owned());
        known.or_insert_with(|| counter(model)).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_beyond_the_bound_share_one_label() {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        for model in 0..2_000 {
            metrics.picked(&format!("m-{model}"));
        }
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let series = text.lines().filter(|line| line.contains("model=")).count();
        assert_eq!(series, MODELS_MAX + 1);
        assert!(text.contains("pointsman_picks_total{model=\"other\"} 1000"));
    }
}
