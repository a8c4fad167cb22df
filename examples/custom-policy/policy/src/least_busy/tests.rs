//! One test per decision of the policy.

use dynamo_kv_router::plugins::worker_selection::{
    ActiveLoad, CacheOverlap, KvRouterConfig, RequestSignals, RoutingPartitionRef,
    WorkerCacheInput, WorkerLoadInput, WorkerType, WorkerWithDpRank,
};

use super::*;

/// Worker `id` with `device_blocks` of the prompt and `requests` active requests.
fn row(id: u64, device_blocks: f64, requests: usize) -> WorkerCandidate {
    let overlap = CacheOverlap {
        device_blocks,
        ..CacheOverlap::default()
    };
    let load = ActiveLoad {
        requests,
        ..ActiveLoad::default()
    };
    WorkerCandidate::new(WorkerWithDpRank::from_worker_id(id))
        .with_cache(WorkerCacheInput::new(overlap))
        .with_load(WorkerLoadInput::new(load))
}

/// The policy that the provider builds from `parameters`.
fn policy(parameters: &str) -> Result<WorkerSelectionPolicy, String> {
    let parameters = WorkerSelectionPolicyParameters::from_yaml(parameters).unwrap();
    let factory = provider(&parameters).map_err(|error| error.to_string())?;
    let partition = RoutingPartitionRef::new("model", "default");
    Ok(factory(
        &KvRouterConfig::default(),
        WorkerType::Aggregated,
        partition,
    ))
}

fn select(
    minimum_blocks: f64,
    mut rows: Vec<WorkerCandidate>,
) -> Result<u64, WorkerSelectionPolicyError> {
    let mut policy = policy(&format!("min_device_overlap_blocks: {minimum_blocks:?}")).unwrap();
    let signals = RequestSignals::default();
    let selection = policy.select(&WorkerSelectionContext::new(&signals), &mut rows)?;
    Ok(selection.worker.worker_id)
}

#[test]
fn the_filter_keeps_workers_from_the_minimum_on() {
    assert_eq!(select(2.0, vec![row(1, 1.9, 0), row(2, 2.0, 9)]), Ok(2));
}

#[test]
fn nobody_with_enough_of_the_prompt_is_an_error() {
    let error = select(2.0, vec![row(1, 1.0, 0), row(2, 0.0, 0)]).unwrap_err();
    assert!(matches!(
        error,
        WorkerSelectionPolicyError::AllFiltered { candidate_count: 2 }
    ));
}

#[test]
fn the_scorer_costs_each_active_request_one() {
    let signals = RequestSignals::default();
    let context = WorkerSelectionContext::new(&signals);
    assert_eq!(
        ActiveRequestsScorer.score(&context, &row(1, 0.0, 5)),
        Ok(5.0)
    );
}

#[test]
fn the_picker_takes_the_lowest_cost() {
    assert_eq!(
        select(0.0, vec![row(1, 0.0, 3), row(2, 0.0, 1), row(3, 0.0, 2)]),
        Ok(2)
    );
}

#[test]
fn each_component_says_which_input_it_misses() {
    let signals = RequestSignals::default();
    let context = WorkerSelectionContext::new(&signals);
    let bare = WorkerCandidate::new(WorkerWithDpRank::from_worker_id(1));
    let mut filter = MinimumDeviceOverlapFilter {
        minimum_blocks: 0.0,
    };
    let errors = [
        filter.keep(&context, &bare).unwrap_err(),
        ActiveRequestsScorer.score(&context, &bare).unwrap_err(),
    ];
    assert_eq!(
        errors,
        ["cache input unavailable", "load input unavailable"]
            .map(WorkerSelectionPolicyError::failed)
    );
}

#[test]
fn the_policy_asks_for_what_its_components_read() {
    let inputs = policy("min_device_overlap_blocks: 0")
        .unwrap()
        .required_worker_inputs();
    assert_eq!(inputs, WorkerInputs::CACHE | WorkerInputs::LOAD);
}

#[test]
fn the_policy_is_reported_under_its_role() {
    assert_eq!(
        policy("min_device_overlap_blocks: 0").unwrap().label(),
        "aggregated"
    );
}

#[test]
fn the_minimum_must_be_there_finite_and_not_negative() {
    for parameters in [
        "",
        "min_device_overlap_block: 0",
        "min_device_overlap_blocks: .nan",
        "min_device_overlap_blocks: .inf",
        "min_device_overlap_blocks: -0.0001",
        "min_device_overlap_blocks: few",
    ] {
        let error = policy(parameters).unwrap_err();
        assert!(
            error.contains("min_device_overlap_blocks"),
            "{parameters:?}: {error}"
        );
    }
}

#[test]
fn it_registers_as_least_busy() {
    let mut registry = RouterPluginRegistry::default();
    register(&mut registry).unwrap();
    let error = register(&mut registry).unwrap_err().to_string();
    assert!(
        error.contains("\"least-busy\" is already registered"),
        "{error}"
    );
}
