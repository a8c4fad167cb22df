//! What is routed is believed to be cached: without events, and until events come.

use pointsman_plugin::{KvRouterConfig, RouterPluginRegistry, WorkerType};
use pointsman_service::SelectionServiceBuilder;
use serde_json::{Value, json};

use crate::rig::{PATIENCE, Rig, merged, worker};

fn without_events() -> KvRouterConfig {
    KvRouterConfig {
        use_kv_events: false,
        ..KvRouterConfig::default()
    }
}

async fn rig(router: KvRouterConfig, workers: std::ops::RangeInclusive<u64>) -> Rig {
    let rig = built(router, |builder| builder).await;
    for worker_id in workers {
        rig.register(worker(worker_id)).await;
    }
    rig
}

async fn built(
    router: KvRouterConfig,
    set: impl FnOnce(SelectionServiceBuilder) -> SelectionServiceBuilder,
) -> Rig {
    let registry = RouterPluginRegistry::default();
    let builder = SelectionServiceBuilder::new(router, WorkerType::Aggregated, registry);
    Rig::built(|_| set(builder)).await
}

/// A prompt of eight blocks of 16 tokens; each `first` is another prompt.
fn prompt(first: u32, more: Value) -> Value {
    let tokens: Vec<u32> = (first..first + 128).collect();
    merged(json!({"model_name": "m", "token_ids": tokens}), more)
}

/// Leading blocks on the device of each worker, by id.
async fn device_blocks(rig: &Rig, first: u32) -> Vec<u64> {
    let answer = rig.post("/overlap_scores", prompt(first, json!({}))).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let rows = answer.body["workers"].as_array().unwrap();
    let blocks = rows
        .iter()
        .map(|row| row["device_blocks"].as_u64().unwrap());
    blocks.collect()
}

async fn reserve(rig: &Rig, first: u32, id: &str) -> u64 {
    let body = prompt(first, json!({"selection_id": id}));
    let answer = rig.post("/select_and_reserve", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.body["worker_id"].as_u64().unwrap()
}

#[tokio::test]
async fn a_reserved_prompt_is_taken_to_be_cached_where_it_went() {
    let rig = rig(without_events(), 1..=2).await;
    let worker_id = reserve(&rig, 1, "a").await;
    let mut expected = vec![0, 0];
    expected[usize::try_from(worker_id - 1).unwrap()] = 8;
    assert_eq!(device_blocks(&rig, 1).await, expected);
    rig.delete("/reservations/a").await;
    let again = rig.post("/select", prompt(1, json!({}))).await;
    assert_eq!(again.body["worker_id"], worker_id);
    assert_eq!(again.body["overlap"]["gpu"], 128);
    assert_eq!(again.body["effective_prefill_tokens"], 0);
}

#[tokio::test]
async fn a_selection_is_believed_once_it_is_reserved() {
    let rig = rig(without_events(), 1..=1).await;
    rig.post("/select", prompt(1, json!({"selection_id": "a"})))
        .await;
    assert_eq!(device_blocks(&rig, 1).await, [0]);
    let booked = json!({"model_name": "m", "selection_id": "a"});
    assert_eq!(rig.post("/reservations", booked).await.status, 201);
    assert_eq!(device_blocks(&rig, 1).await, [8]);
}

#[tokio::test]
async fn an_explicit_reservation_is_believed() {
    let rig = rig(without_events(), 1..=2).await;
    let body = prompt(1, json!({"selection_id": "a", "worker_id": 2}));
    assert_eq!(rig.post("/reservations", body).await.status, 201);
    assert_eq!(device_blocks(&rig, 1).await, [0, 8]);
}

#[tokio::test]
async fn a_belief_ends_without_another_selection() {
    let router = KvRouterConfig {
        router_ttl_secs: 0.5,
        ..without_events()
    };
    let rig = rig(router, 1..=1).await;
    reserve(&rig, 1, "a").await;
    assert_eq!(device_blocks(&rig, 1).await, [8]);
    let ended = async {
        while device_blocks(&rig, 1).await != [0] {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.unwrap();
}

#[tokio::test]
async fn a_full_worker_is_taken_to_forget_its_oldest_prompt() {
    let rig = built(without_events(), |builder| builder).await;
    rig.register(merged(worker(1), json!({"total_kv_blocks": 20})))
        .await;
    for (first, id) in [(1, "a"), (1_001, "b"), (2_001, "c")] {
        reserve(&rig, first, id).await;
    }
    let mut found = Vec::new();
    for first in [1, 1_001, 2_001] {
        found.extend(device_blocks(&rig, first).await);
    }
    assert_eq!(found, [0, 8, 8]);
}

#[tokio::test]
async fn a_worker_that_does_not_say_has_the_room_that_was_set() {
    let rig = built(without_events(), |builder| {
        builder.predicted_blocks_per_rank(10)
    })
    .await;
    rig.register(worker(1)).await;
    reserve(&rig, 1, "a").await;
    reserve(&rig, 1_001, "b").await;
    assert_eq!(device_blocks(&rig, 1).await, [0]);
    assert_eq!(device_blocks(&rig, 1_001).await, [8]);
}

#[tokio::test]
async fn with_events_what_is_routed_is_believed_only_where_that_is_set() {
    for (ttl, expected) in [(None, 0), (Some(60.0), 8)] {
        let router = KvRouterConfig {
            router_predicted_ttl_secs: ttl,
            ..KvRouterConfig::default()
        };
        let rig = rig(router, 1..=1).await;
        reserve(&rig, 1, "a").await;
        assert_eq!(device_blocks(&rig, 1).await, [expected]);
    }
}
