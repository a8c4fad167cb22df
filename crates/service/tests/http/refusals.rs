//! Bad requests at full rate: whatever is refused leaves nothing behind.

use hyper::Method;
use prometheus_client::registry::Registry;
use serde_json::json;

use crate::rig::{Rig, asking, worker};

fn encoded(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}

/// Names and labels of every metric, without values.
fn series(registry: &Registry) -> Vec<String> {
    let text = encoded(registry);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let names = lines.filter_map(|line| line.rsplit_once(' '));
    names.map(|(name, _)| name.to_owned()).collect()
}

fn value(registry: &Registry, name: &str) -> Option<String> {
    let text = encoded(registry);
    let found = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.map(str::to_owned)
}

/// One of every kind of refusal, each with names that no other has.
async fn storm(rig: &Rig, round: usize) {
    let unique = format!("made-up-{round}-{}", "x".repeat(200));
    let json_type = [("content-type", "application/json")];
    for (path, body) in [
        ("/select", "{".to_owned()),
        (
            "/select",
            json!({"model_name": unique, "token_ids": [1], "selection_id": unique}).to_string(),
        ),
        (
            "/select",
            json!({"model_name": "m", "token_ids": [-1], "selection_id": unique}).to_string(),
        ),
        (
            "/select_and_reserve",
            json!({"routing_group": unique, "token_ids": [1], "selection_id": unique}).to_string(),
        ),
        (
            "/select_and_reserve",
            asking(json!({"selection_id": unique, "allowed_worker_ids": [77]})).to_string(),
        ),
        ("/reservations", json!({"selection_id": unique}).to_string()),
        (
            "/reservations",
            json!({"selection_id": unique, "worker_id": round, "model_name": unique,
            "sequence_hashes": [1], "isl_tokens": 16})
            .to_string(),
        ),
        ("/workers", json!({"worker_id": unique}).to_string()),
        (
            "/potential_loads",
            json!({"model_name": unique, "token_ids": [1]}).to_string(),
        ),
        ("/overlap_scores", json!({"model_name": unique}).to_string()),
    ] {
        let answer = rig.send(Method::POST, path, &json_type, body).await;
        assert!(answer.status >= 400, "{path}: {}", answer.text);
    }
    let lifecycle = format!("/reservations/{unique}/prefill_complete");
    for (method, path) in [
        (Method::POST, lifecycle.as_str()),
        (Method::DELETE, &format!("/reservations/{unique}")),
        (Method::DELETE, &format!("/workers/{}", 1_000_000 + round)),
        (Method::PUT, "/select"),
        (Method::GET, &format!("/{unique}")),
    ] {
        let answer = rig.send(method, path, &[], "").await;
        assert!(answer.status >= 400, "{path}: {}", answer.text);
    }
}

#[tokio::test]
async fn what_is_refused_leaves_no_entry_no_load_and_no_label() {
    let mut registry = Registry::default();
    let builder =
        |builder: pointsman_service::SelectionServiceBuilder| builder.metrics(&mut registry);
    let rig = Rig::built(builder).await;
    rig.register(worker(1)).await;
    storm(&rig, 0).await;
    let before = series(&registry);
    assert!(before.len() > 20, "{before:?}");
    for round in 1..200 {
        storm(&rig, round).await;
    }
    assert_eq!(series(&registry), before);
    for gauge in [
        "pending_selections",
        "pending_selections_bytes",
        "reservations_by_id",
    ] {
        assert_eq!(value(&registry, gauge).as_deref(), Some("0"), "{gauge}");
    }
    assert_eq!(rig.totals().await, (0, 0));
    assert_eq!(rig.get("/workers").await.body.as_array().unwrap().len(), 1);
    assert_eq!(rig.get("/loads").await.body.as_array().unwrap().len(), 1);
}
