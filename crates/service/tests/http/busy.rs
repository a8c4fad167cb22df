//! What an answer tells of the load of the worker it names.

use pointsman_service::http::{BusyThresholds, Config};
use serde_json::{Value, json};

use crate::rig::{Rig, asking, merged, worker};

async fn with_thresholds(prefill: Option<f64>, decode: Option<f64>) -> Rig {
    let config = Config {
        busy: BusyThresholds { prefill, decode },
        ..Config::default()
    };
    Rig::with(|builder| builder, config).await
}

#[tokio::test]
async fn without_thresholds_nothing_is_called_busy() {
    let rig = Rig::with_workers(1..=1).await;
    let answer = rig.post("/select", asking(json!({"advisory": true}))).await;
    assert_eq!(answer.body.get("decode_busy"), None);
    let load = json!({"active_prefill_tokens": 0, "prefill_token_capacity": 10_000_000});
    assert_eq!(answer.body["worker_load"], load);
    let plain = rig.post("/select", asking(json!({}))).await;
    assert_eq!(plain.body.get("worker_load"), None);
}

#[tokio::test]
async fn a_worker_is_busy_above_the_share_of_what_it_can_take() {
    let rig = with_thresholds(Some(0.5), Some(0.5)).await;
    let limits = json!({"max_num_batched_tokens": 256, "total_kv_blocks": 16});
    rig.register(merged(worker(1), limits)).await;
    let ask = |id: &str| asking(json!({"advisory": true, "selection_id": id}));
    let busy = |answer: &Value| {
        (
            answer["decode_busy"].clone(),
            answer["worker_load"]["prefill_busy"].clone(),
        )
    };
    let first = rig.post("/select", ask("one")).await;
    assert_eq!(busy(&first.body), (json!(false), json!(false)));
    assert_eq!(first.body["worker_load"]["total_kv_blocks"], 16);
    for (id, hashes) in [("two", 31..39), ("three", 41..49)] {
        let hashes: Vec<u64> = hashes.collect();
        let other = json!({"selection_id": id, "sequence_hashes": hashes});
        let reserved = rig.post("/select_and_reserve", asking(other)).await;
        assert_eq!(reserved.status, 200, "{}", reserved.text);
    }
    let second = rig.post("/select", ask("four")).await;
    assert_eq!(busy(&second.body), (json!(true), json!(true)));
}

#[tokio::test]
async fn the_load_is_that_of_the_partition_that_was_asked() {
    let rig = Rig::with_workers(1..=1).await;
    let reserved = rig
        .post("/select_and_reserve", asking(json!({"selection_id": "x"})))
        .await;
    assert_eq!(reserved.status, 200);
    // What it was charged with there is not the new partition's.
    rig.patch("/workers/1", json!({"model_name": "other"}))
        .await;
    let answer = rig
        .post(
            "/select",
            asking(json!({"advisory": true, "model_name": "other"})),
        )
        .await;
    assert_eq!(answer.body["worker_load"]["active_prefill_tokens"], 0);
    rig.patch("/workers/1", json!({"model_name": "m"})).await;
    assert_eq!(rig.totals().await, (1, 128));
}

#[tokio::test]
async fn a_policy_class_is_taken_in_a_header() {
    let rig = Rig::with_workers(1..=1).await;
    for path in ["/select", "/select_and_reserve"] {
        let headers = [
            ("content-type", "application/json"),
            ("x-dynamo-meta-policy-class", "interactive"),
        ];
        let body = asking(json!({})).to_string();
        let answer = rig.send(hyper::Method::POST, path, &headers, body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
}
