//! Selecting and reserving through the service's door.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use pointsman_core::{PartitionId, SelectError};
use pointsman_plugin::plugins::request_classifier::RequestClassifierConfig;
use pointsman_plugin::{
    KvRouterConfig, RouterPluginRegistry, WorkerSelectionPolicyParameters, WorkerType,
};
use pointsman_service::{SelectionServiceBuilder, SelectionServiceError};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::rig::{Rig, asking, partition, tokens, worker};

fn active_requests(rig: &Rig) -> u64 {
    let loads = rig.service.loads();
    loads
        .iter()
        .flat_map(|partition| &partition.loads)
        .map(|load| load.active_requests)
        .sum()
}

#[tokio::test]
async fn a_reservation_holds_load_until_it_is_dropped() {
    let rig = Rig::new().await;
    rig.service.register_worker(worker(1)).unwrap();
    let id = Some("request-1".to_owned());
    let reserved = rig
        .service
        .select_and_reserve(&partition(), asking(&tokens(0..40)), id)
        .await
        .unwrap();
    assert_eq!(reserved.selected.endpoint, "http://127.0.0.1:18001");
    assert_eq!(reserved.reservation.id().as_str(), "request-1");
    let load = rig.service.loads()[0].loads[0];
    assert_eq!((load.active_requests, load.active_prefill_tokens), (1, 40));
    drop(reserved);
    let load = rig.service.loads()[0].loads[0];
    assert_eq!((load.active_requests, load.active_prefill_tokens), (0, 0));
    assert_eq!(rig.metric("selections_total{outcome=\"selected\"}"), 1);
}

#[tokio::test]
async fn ids_are_made_when_none_is_given_and_refused_when_they_are_no_ids() {
    let rig = Rig::new().await;
    rig.service.register_worker(worker(1)).unwrap();
    let reserve = |id: Option<&str>| {
        let id = id.map(str::to_owned);
        rig.service
            .select_and_reserve(&PARTITION, asking(&[1, 2, 3, 4]), id)
    };
    let first = reserve(None).await.unwrap();
    let second = reserve(None).await.unwrap();
    assert_ne!(first.reservation.id(), second.reservation.id());
    let _held = reserve(Some("same")).await.unwrap();
    let twice = reserve(Some("same")).await.unwrap_err();
    assert!(matches!(
        twice,
        SelectionServiceError::Select(SelectError::DuplicateReservation { .. })
    ));
    for bad in ["", &"x".repeat(257)] {
        let refused = reserve(Some(bad)).await.unwrap_err();
        assert!(matches!(
            refused,
            SelectionServiceError::Select(SelectError::BadRequest(_))
        ));
    }
    assert_eq!(active_requests(&rig), 3);
}

static PARTITION: std::sync::LazyLock<PartitionId> = std::sync::LazyLock::new(partition);

#[tokio::test]
async fn a_selection_dropped_after_any_poll_leaks_nothing() {
    let seed = 0x5eed_0002;
    println!("seed {seed:#x}");
    let mut random = StdRng::seed_from_u64(seed);
    let rig = Rig::new().await;
    for worker_id in 0..4 {
        rig.service.register_worker(worker(worker_id)).unwrap();
    }
    let mut held = Vec::new();
    for round in 0..2_000_u32 {
        let request = asking(&tokens(0..random.random_range(0..64)));
        let polls = random.random_range(0..3);
        let mut future = pin!(rig.service.select_and_reserve(&PARTITION, request, None));
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..polls {
            if let Poll::Ready(reserved) = future.as_mut().poll(&mut context) {
                if random.random_bool(0.5) {
                    held.push(reserved.unwrap());
                }
                break;
            }
        }
        if round % 7 == 0 && !held.is_empty() {
            held.swap_remove(random.random_range(0..held.len()));
        }
        if round % 50 == 0 {
            let worker_id = random.random_range(0..4);
            rig.service.remove_worker(worker_id).unwrap();
            rig.service.register_worker(worker(worker_id)).unwrap();
        }
    }
    held.clear();
    for load in rig
        .service
        .loads()
        .iter()
        .flat_map(|partition| &partition.loads)
    {
        assert_eq!(
            (
                load.active_requests,
                load.active_prefill_tokens,
                load.decode_blocks
            ),
            (0, 0, 0)
        );
    }
}

#[tokio::test]
async fn each_way_not_to_be_placed_has_its_error() {
    let rig = Rig::new().await;
    let ask = || rig.service.select(&PARTITION, asking(&[1, 2, 3, 4]));
    assert!(matches!(ask().await, Err(SelectionServiceError::NotReady)));
    rig.service.replace_workers(vec![]).unwrap();
    let none = ask().await;
    assert!(matches!(
        none,
        Err(SelectionServiceError::Select(SelectError::NoWorkers))
    ));
    let mut other = worker(1);
    other.model_name = "other".to_owned();
    rig.service.register_worker(other).unwrap();
    assert!(matches!(
        ask().await,
        Err(SelectionServiceError::UnknownPartition { .. })
    ));
    rig.service.register_worker(worker(2)).unwrap();
    assert!(ask().await.is_ok());
    rig.service.shutdown().await;
    assert!(matches!(
        ask().await,
        Err(SelectionServiceError::ShuttingDown)
    ));
}

#[tokio::test]
async fn a_request_goes_to_its_models_partition() {
    let default = |model: &str| Ok(PartitionId::new(model, "default"));
    let rig = Rig::new().await;
    let of = |model: Option<&str>| {
        rig.service
            .partition_of(model)
            .map_err(|unknown| unknown.model)
    };
    assert_eq!(of(Some("any")), default("any"), "nobody is registered");
    rig.service.register_worker(worker(1)).unwrap();
    assert_eq!(of(Some("any")), default("m"), "the only model");
    assert_eq!(of(None), default("m"));
    let mut other = worker(2);
    other.model_name = "n".to_owned();
    rig.service.register_worker(other).unwrap();
    assert_eq!(of(Some("n")), default("n"));
    assert_eq!(of(Some("any")), Err(Some("any".to_owned())));
    assert_eq!(of(None), Err(None));
    let configured = Rig::built(|builder| builder.default_model(Some("n".to_owned()))).await;
    let of_any = configured
        .service
        .partition_of(Some("any"))
        .map_err(|unknown| unknown.model);
    assert_eq!(of_any, default("n"));
}

#[tokio::test]
async fn the_state_tells_when_the_source_was_read_and_who_may_serve() {
    let rig = Rig::new().await;
    let mut state = rig.service.state();
    assert!(!state.borrow_and_update().source_read);
    rig.service
        .replace_workers(vec![worker(1), worker(2)])
        .unwrap();
    state.changed().await.unwrap();
    let seen = *state.borrow_and_update();
    assert!(seen.source_read && !seen.stopping);
    assert_eq!(seen.schedulable, 2);
    assert!(rig.service.has_schedulable_worker());
    rig.service.shutdown().await;
    assert!(state.borrow_and_update().stopping);
}

#[tokio::test]
async fn a_configuration_that_cannot_work_is_refused_at_start() {
    let build = |config: KvRouterConfig, block_size: u32| {
        let registry = RouterPluginRegistry::default();
        SelectionServiceBuilder::new(config, WorkerType::Aggregated, registry)
            .default_block_size(block_size)
            .build()
    };
    let bad = KvRouterConfig {
        overlap_score_credit: -1.0,
        ..KvRouterConfig::default()
    };
    assert!(matches!(
        build(bad, 16).await,
        Err(SelectionServiceError::BadConfig { .. })
    ));
    let zero = build(KvRouterConfig::default(), 0).await;
    assert!(matches!(
        zero,
        Err(SelectionServiceError::BadSetting { .. })
    ));
    let unknown = KvRouterConfig {
        worker_selection_override: Some("nobody".to_owned()),
        ..KvRouterConfig::default()
    };
    assert!(matches!(
        build(unknown, 16).await,
        Err(SelectionServiceError::Policy(_))
    ));
}

#[tokio::test]
async fn a_request_classifier_is_refused_by_name() {
    let config = KvRouterConfig {
        request_classifier: Some(RequestClassifierConfig {
            classifier_type: "acme-admission".to_owned(),
            parameters: WorkerSelectionPolicyParameters::default(),
        }),
        ..KvRouterConfig::default()
    };
    let registry = RouterPluginRegistry::default();
    let error = SelectionServiceBuilder::new(config, WorkerType::Aggregated, registry)
        .build()
        .await
        .unwrap_err();
    assert!(error.to_string().contains("request_classifier"), "{error}");
}
