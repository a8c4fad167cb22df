//! The shipped policy follows the router's settings except where its own say otherwise.

use pointsman_plugin::plugins::RouterPluginRegistry;
use pointsman_plugin::plugins::RouterPolicyConfig;
use pointsman_plugin::plugins::worker_selection::{
    ActiveLoad, CacheOverlap, KvRouterConfig, RequestSignals, RoutingPartitionRef,
    WorkerCacheInput, WorkerCandidate, WorkerLoadInput, WorkerSelectionContext,
    WorkerSelectionPolicy, WorkerType, WorkerWithDpRank,
};

use super::TYPE;

/// Resolves `parameters` (a YAML flow mapping) through the catalog and the policy file.
fn resolve(parameters: &str, config: KvRouterConfig) -> Result<WorkerSelectionPolicy, String> {
    let mut registry = RouterPluginRegistry::default();
    crate::register(&mut registry).unwrap();
    let yaml = format!(
        "worker_selection: {{aggregated: it, instances: [{{name: it, type: {TYPE}, parameters: {parameters}}}]}}"
    );
    let file = RouterPolicyConfig::from_yaml(&yaml).unwrap();
    let config = KvRouterConfig {
        worker_selection: file.worker_selection,
        ..config
    };
    let resolved = registry
        .resolve_for_worker_type(&config, WorkerType::Aggregated)
        .map_err(|error| error.to_string())?;
    assert_eq!(resolved.policy_type.as_deref(), Some(TYPE));
    Ok((resolved.factory)(
        &config,
        WorkerType::Aggregated,
        RoutingPartitionRef::new("model", "default"),
    ))
}

/// A worker with 4 of the prompt's blocks on its device and 6 active blocks, and an idle one without the prompt.
fn cached_and_idle() -> Vec<WorkerCandidate> {
    let cached = WorkerCandidate::new(WorkerWithDpRank::from_worker_id(1))
        .with_cache(WorkerCacheInput::new(CacheOverlap {
            device_blocks: 4.0,
            ..CacheOverlap::default()
        }))
        .with_load(WorkerLoadInput::new(ActiveLoad {
            decode_cost_blocks: 6.0,
            ..ActiveLoad::default()
        }));
    let idle = WorkerCandidate::new(WorkerWithDpRank::from_worker_id(2))
        .with_cache(WorkerCacheInput::default())
        .with_load(WorkerLoadInput::default());
    vec![cached, idle]
}

fn picked(policy: &mut WorkerSelectionPolicy, random_seed: u64) -> (u64, f64) {
    let signals = RequestSignals {
        request_blocks: 5,
        prompt_tokens: 80,
        random_seed,
        ..RequestSignals::default()
    };
    let selection = policy
        .select(
            &WorkerSelectionContext::new(&signals),
            &mut cached_and_idle(),
        )
        .unwrap();
    (selection.worker.worker_id, selection.cost)
}

#[test]
fn it_is_registered_under_its_published_name() {
    assert_eq!(TYPE, "dynamo-default-cost-fn");
    resolve("{}", KvRouterConfig::default()).unwrap();
}

#[test]
fn without_parameters_the_routers_settings_decide() {
    // Cached: 5 - 4 + 6 = 7. Idle: 5.
    assert_eq!(
        picked(&mut resolve("{}", KvRouterConfig::default()).unwrap(), 0),
        (2, 5.0)
    );
    // With twice the scale, cached: 2 * (5 - 4) + 6 = 8, idle: 10.
    let config = KvRouterConfig {
        prefill_load_scale: 2.0,
        ..KvRouterConfig::default()
    };
    assert_eq!(picked(&mut resolve("{}", config).unwrap(), 0), (1, 8.0));
}

#[test]
fn a_parameter_goes_before_the_routers_setting() {
    let config = KvRouterConfig {
        prefill_load_scale: 2.0,
        ..KvRouterConfig::default()
    };
    assert_eq!(
        picked(&mut resolve("{prefill_load_scale: 1}", config).unwrap(), 0),
        (2, 5.0)
    );
}

#[test]
fn every_weight_is_a_parameter() {
    for weight in [
        "overlap_score_credit",
        "overlap_score_credit_decay",
        "prefill_load_scale",
        "decode_active_request_weight",
        "host_cache_hit_weight",
        "disk_cache_hit_weight",
        "shared_cache_multiplier",
        "router_temperature",
    ] {
        resolve(&format!("{{{weight}: 0.5}}"), KvRouterConfig::default()).unwrap();
        let error = resolve(&format!("{{{weight}: -1}}"), KvRouterConfig::default()).unwrap_err();
        assert!(error.contains(&format!("{weight} is -1.0")), "{error}");
    }
}

#[test]
fn an_unknown_parameter_is_refused_with_the_nearest_name() {
    let error = resolve("{prefil_load_scale: 1}", KvRouterConfig::default()).unwrap_err();
    assert!(
        error.contains("unknown field `prefil_load_scale`"),
        "{error}"
    );
    assert!(
        error.contains("did you mean prefill_load_scale?"),
        "{error}"
    );
}

#[test]
fn a_seed_makes_the_sequence_of_choices_reproducible_whatever_the_requests_seeds() {
    let sequence = |parameters: &str, first_seed: u64| -> Vec<u64> {
        let mut policy = resolve(parameters, KvRouterConfig::default()).unwrap();
        (0..64)
            .map(|request| picked(&mut policy, first_seed + request).0)
            .collect()
    };
    let seven = sequence("{router_temperature: 5, seed: 7}", 0);
    assert_eq!(seven, sequence("{router_temperature: 5, seed: 7}", 1_000));
    assert_ne!(seven, sequence("{router_temperature: 5, seed: 8}", 0));
    assert!(seven.contains(&1) && seven.contains(&2));
}

#[test]
fn without_a_seed_the_requests_seed_decides() {
    let sequence = |first_seed: u64| -> Vec<u64> {
        let mut policy = resolve("{router_temperature: 5}", KvRouterConfig::default()).unwrap();
        (0..64)
            .map(|request| picked(&mut policy, first_seed + request).0)
            .collect()
    };
    assert_eq!(sequence(0), sequence(0));
    assert_ne!(sequence(0), sequence(1_000));
}
