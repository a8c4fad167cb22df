//! The guide's configuration against the catalog: every role gets the policy it names.

use acme_routing_catalog::register;
use dynamo_kv_router::plugins::worker_selection::{
    ActiveLoad, CacheOverlap, KvRouterConfig, RequestSignals, RoutingPartitionRef,
    WorkerCacheInput, WorkerCandidate, WorkerLoadInput, WorkerSelectionContext, WorkerType,
    WorkerWithDpRank,
};
use dynamo_kv_router::plugins::{RouterPluginRegistry, RouterPolicyConfig};

fn registry() -> RouterPluginRegistry {
    let mut registry = RouterPluginRegistry::default();
    register(&mut registry).unwrap();
    registry
}

fn config() -> KvRouterConfig {
    let file = RouterPolicyConfig::from_yaml(include_str!("../../worker-selection.yaml")).unwrap();
    KvRouterConfig {
        worker_selection: file.worker_selection,
        ..KvRouterConfig::default()
    }
}

#[test]
fn least_busy_is_registered() {
    let config = KvRouterConfig {
        worker_selection_override: Some("least-busy".to_owned()),
        ..config()
    };
    let resolved = registry()
        .resolve_for_worker_type(&config, WorkerType::Aggregated)
        .unwrap();
    assert_eq!(resolved.policy_type.as_deref(), Some("least-busy"));
}

/// Whether the policy of `role` takes a worker that holds nothing of the prompt.
fn takes_an_uncached_worker(role: WorkerType) -> bool {
    let config = config();
    let factory = registry().resolve(&config).unwrap().unwrap();
    let mut policy = factory(&config, role, RoutingPartitionRef::new("model", "default"));
    assert_eq!(policy.label(), role.as_str());
    let uncached = WorkerCandidate::new(WorkerWithDpRank::from_worker_id(1))
        .with_cache(WorkerCacheInput::new(CacheOverlap::default()))
        .with_load(WorkerLoadInput::new(ActiveLoad::default()));
    let signals = RequestSignals::default();
    policy
        .select(&WorkerSelectionContext::new(&signals), &mut vec![uncached])
        .is_ok()
}

#[test]
fn only_the_prefill_role_wants_a_cached_block() {
    assert!(!takes_an_uncached_worker(WorkerType::Prefill));
    for role in [
        WorkerType::Aggregated,
        WorkerType::Decode,
        WorkerType::Encode,
    ] {
        assert!(takes_an_uncached_worker(role), "{role}");
    }
}

#[test]
fn a_standalone_picker_warns_of_the_three_roles_it_ignores() {
    let resolved = registry()
        .resolve_for_worker_type(&config(), WorkerType::Aggregated)
        .unwrap();
    assert_eq!(resolved.instance.as_deref(), Some("least-busy"));
    let warnings: Vec<String> = resolved.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    for (warning, role) in warnings.iter().zip(["prefill", "decode", "encode"]) {
        assert!(
            warning.starts_with(&format!("worker_selection.{role}")),
            "{warning}"
        );
    }
}
