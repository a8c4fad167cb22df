//! Health, readiness, loads, what a prompt would meet, peers and the document.

use serde_json::json;

use crate::rig::{Rig, asking, merged, worker};

#[tokio::test]
async fn an_empty_service_lives_but_is_not_ready() {
    let rig = Rig::new().await;
    let health = rig.get("/health").await;
    assert_eq!((health.status, health.body), (200, json!({"status": "ok"})));
    let ready = rig.get("/ready").await;
    assert_eq!(ready.status, 503);
    assert_eq!(
        ready.body,
        json!({"ready": false, "schedulable_workers": 0, "workers": []})
    );
    let selected = rig.post("/select", asking(json!({}))).await;
    assert_eq!((selected.status, selected.code()), (503, "not_ready"));
}

#[tokio::test]
async fn potential_loads_add_the_prompt_to_each_rank() {
    let rig = Rig::with_workers(1..=2).await;
    let booking = json!({
        "model_name": "m", "selection_id": "x", "worker_id": 2,
        "sequence_hashes": [21, 22], "isl_tokens": 32,
    });
    rig.post("/reservations", booking).await;
    let answer = rig.post("/potential_loads", asking(json!({}))).await;
    let row = |worker_id: u64, tokens: u64, blocks: u64, requests: u64| {
        json!({
            "worker_id": worker_id, "dp_rank": 0, "potential_prefill_tokens": tokens,
            "potential_decode_blocks": blocks, "active_requests": requests,
        })
    };
    assert_eq!(answer.body, json!([row(1, 128, 8, 0), row(2, 160, 8, 1)]));
    let untracked = json!({"router_config_override": {"track_prefill_tokens": false}});
    let answer = rig.post("/potential_loads", asking(untracked)).await;
    assert_eq!(answer.body, json!([row(1, 0, 8, 0), row(2, 32, 8, 1)]));
}

#[tokio::test]
async fn overlap_scores_list_every_rank() {
    let rig = Rig::new().await;
    rig.register(merged(worker(1), json!({"data_parallel_size": 2})))
        .await;
    let answer = rig.post("/overlap_scores", asking(json!({}))).await;
    assert_eq!(
        (&answer.body["block_size"], &answer.body["num_blocks"]),
        (&json!(16), &json!(8))
    );
    let rows = answer.body["workers"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[1]["dp_rank"], 1);
    assert_eq!(rows[1]["device_blocks"], 0);
    let none = json!({"enabled": false, "total_hit_blocks": 0, "ranges": [], "error": null});
    assert_eq!(answer.body["shared_cache"], none);
    let nowhere = rig
        .post("/overlap_scores", asking(json!({"model_name": "x"})))
        .await;
    assert_eq!((nowhere.status, nowhere.code()), (503, "unknown_partition"));
}

#[tokio::test]
async fn peers_are_refused_while_synchronization_is_disabled() {
    let rig = Rig::new().await;
    assert_eq!(rig.get("/replica_sync/peers").await.body, json!([]));
    for path in [
        "/replica_sync/register_peer",
        "/replica_sync/deregister_peer",
    ] {
        let answer = rig
            .post(path, json!({"endpoint": "tcp://127.0.0.1:19092"}))
            .await;
        assert_eq!(
            (answer.status, answer.code()),
            (409, "replica_sync_disabled")
        );
        for bad in ["not an endpoint", "tcp://", "tcp://host", "http://a:1", ""] {
            let answer = rig.post(path, json!({"endpoint": bad})).await;
            assert_eq!((answer.status, answer.param()), (400, "endpoint"), "{bad}");
        }
    }
}

#[test]
fn the_document_in_the_repository_is_the_one_that_is_served() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        kept == pointsman_service::http::openapi_json(),
        "docs/openapi.json is stale; write it anew with \
         `cargo run -p pointsman-service --example openapi > docs/openapi.json`"
    );
}
