//! `dynamo-default-cost-fn`: the built-in policy with weights of its own.
//!
//! It never computes a cost; [`pointsman_plugin::default_policy`] does.

use std::sync::Arc;

use pointsman_plugin::default_policy::{self, Weights};
use pointsman_plugin::plugins::worker_selection::{
    KvRouterConfig, WorkerSelectionPolicyFactory, WorkerSelectionPolicyParameters,
    WorkerSelectionPolicyProviderError,
};

/// The registered name.
pub const TYPE: &str = "dynamo-default-cost-fn";

/// Each weight replaces the router's setting of that name; one left out follows it.
#[derive(Clone, Copy, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    overlap_score_credit: Option<f64>,
    overlap_score_credit_decay: Option<f64>,
    prefill_load_scale: Option<f64>,
    decode_active_request_weight: Option<f64>,
    host_cache_hit_weight: Option<f64>,
    disk_cache_hit_weight: Option<f64>,
    shared_cache_multiplier: Option<f64>,
    router_temperature: Option<f64>,
    /// Makes the sequence of random choices reproducible.
    seed: Option<u64>,
}

impl Parameters {
    fn over(&self, config: &KvRouterConfig) -> Weights {
        let router = Weights::of(config);
        Weights {
            overlap_score_credit: self
                .overlap_score_credit
                .unwrap_or(router.overlap_score_credit),
            overlap_score_credit_decay: self
                .overlap_score_credit_decay
                .unwrap_or(router.overlap_score_credit_decay),
            prefill_load_scale: self.prefill_load_scale.unwrap_or(router.prefill_load_scale),
            decode_active_request_weight: self
                .decode_active_request_weight
                .unwrap_or(router.decode_active_request_weight),
            host_cache_hit_weight: self
                .host_cache_hit_weight
                .unwrap_or(router.host_cache_hit_weight),
            disk_cache_hit_weight: self
                .disk_cache_hit_weight
                .unwrap_or(router.disk_cache_hit_weight),
            shared_cache_multiplier: self
                .shared_cache_multiplier
                .unwrap_or(router.shared_cache_multiplier),
            router_temperature: self.router_temperature.unwrap_or(router.router_temperature),
        }
    }
}

/// Checks the parameters and yields the factory that puts them over the router's settings.
pub(crate) fn provider(
    parameters: &WorkerSelectionPolicyParameters,
) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError> {
    let parameters: Parameters = parameters.deserialize()?;
    parameters
        .over(&KvRouterConfig::default())
        .validate()
        .map_err(|mistakes| {
            let mistakes: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            WorkerSelectionPolicyProviderError::new(mistakes.join("; "))
        })?;
    Ok(Arc::new(move |config, role, _partition| {
        default_policy::policy(config, role, parameters.over(config), parameters.seed)
    }))
}

#[cfg(test)]
mod tests;
