//! Workers over HTTP: registered, changed in part, listed, removed.

use serde_json::{Value, json};

use crate::rig::{Rig, asking, merged, worker};

#[tokio::test]
async fn a_patch_changes_what_it_names_and_keeps_the_rest() {
    let rig = Rig::new().await;
    let events = json!({"kv_events_endpoints": {"0": "tcp://127.0.0.1:15571"}});
    rig.register(merged(worker(1), events)).await;
    rig.post("/select_and_reserve", asking(json!({"selection_id": "x"})))
        .await;
    let before = rig.get("/workers").await.body[0].clone();
    let patched = rig
        .patch("/workers/1", json!({"endpoint": "http://127.0.0.1:19999"}))
        .await;
    assert_eq!(patched.status, 200);
    let mut after = rig.get("/workers").await.body[0].clone();
    assert_eq!(after["endpoint"], "http://127.0.0.1:19999");
    after["endpoint"] = before["endpoint"].clone();
    for volatile in [&mut after, &mut before.clone()] {
        volatile["kv_events"] = Value::Null;
    }
    for (field, value) in before.as_object().unwrap() {
        if field != "kv_events" {
            assert_eq!(&after[field], value, "{field}");
        }
    }
    assert_eq!(rig.totals().await.0, 1);
    let selected = rig.post("/select", asking(json!({}))).await;
    assert_eq!(selected.body["endpoint"], "http://127.0.0.1:19999");
}

#[tokio::test]
async fn null_clears_and_a_model_moves_the_worker() {
    let rig = Rig::with_workers(1..=1).await;
    rig.post("/select_and_reserve", asking(json!({"selection_id": "x"})))
        .await;
    let cleared = rig.patch("/workers/1", json!({"endpoint": null})).await;
    assert_eq!(cleared.body["lifecycle"], "incomplete");
    assert_eq!(
        cleared.body["not_schedulable_reasons"],
        json!(["endpoint is required"])
    );
    let moved = json!({"endpoint": "http://127.0.0.1:18001", "model_name": "n"});
    let moved = rig.patch("/workers/1", moved).await;
    assert_eq!(moved.body["lifecycle"], "schedulable");
    assert_eq!(rig.post("/select", asking(json!({}))).await.status, 503);
    let there = rig
        .post("/select", asking(json!({"model_name": "n"})))
        .await;
    assert_eq!(there.body["worker_id"], 1);
    rig.patch("/workers/1", json!({"model_name": "m"})).await;
    assert_eq!(rig.totals().await.0, 1, "live reservations stay charged");
    assert_eq!(rig.delete("/reservations/x").await.status, 200);
    assert_eq!(rig.totals().await, (0, 0));
}

/// What `/loads` says of a model: ranks that may be selected with their requests, and ranks that left.
async fn listed(rig: &Rig, model: &str) -> [Vec<(u64, u64)>; 2] {
    let loads = rig.get(&format!("/loads?model_name={model}")).await.body;
    ["loads", "leaving"].map(|list| {
        let rows = loads[0][list].as_array().cloned().unwrap_or_default();
        let number = |row: &Value, field: &str| row[field].as_u64().unwrap();
        let row = |row: &Value| (number(row, "worker_id"), number(row, "active_requests"));
        rows.iter().map(row).collect()
    })
}

#[tokio::test]
async fn load_of_a_moved_worker_is_listed_as_leaving_until_it_is_freed() {
    let rig = Rig::with_workers(1..=1).await;
    for id in ["x", "y"] {
        rig.post("/select_and_reserve", asking(json!({"selection_id": id})))
            .await;
    }
    rig.patch("/workers/1", json!({"model_name": "n"})).await;
    assert_eq!(listed(&rig, "m").await, [vec![], vec![(1, 2)]]);
    assert_eq!(listed(&rig, "n").await, [vec![(1, 0)], vec![]]);
    let complete = rig
        .post("/reservations/x/prefill_complete", json!({}))
        .await;
    assert_eq!(complete.status, 200);
    assert_eq!(rig.delete("/reservations/x").await.status, 200);
    assert_eq!(listed(&rig, "m").await, [vec![], vec![(1, 1)]]);
    rig.patch("/workers/1", json!({"model_name": "m"})).await;
    assert_eq!(listed(&rig, "m").await, [vec![(1, 1)], vec![]]);
    rig.patch("/workers/1", json!({"endpoint": null})).await;
    assert_eq!(listed(&rig, "m").await, [vec![], vec![(1, 1)]]);
    assert_eq!(rig.delete("/workers/1").await.status, 200);
    assert_eq!(
        listed(&rig, "m").await,
        [vec![], vec![]],
        "its load goes at once"
    );
    assert_eq!(rig.delete("/reservations/y").await.status, 200);
}

#[tokio::test]
async fn a_patch_that_is_wrong_names_the_field_and_changes_nothing() {
    let rig = Rig::with_workers(1..=1).await;
    let before = rig.get("/workers").await.text;
    for (patch, param) in [
        (json!({"block_size": "16"}), "block_size"),
        (json!({"block_size": -1}), "block_size"),
        (json!({"data_parallel_size": 4097}), "data_parallel_size"),
        (
            json!({"taints": "x", "endpoint": "http://127.0.0.1:1"}),
            "taints",
        ),
        (json!({"worker_id": 2}), "worker_id"),
    ] {
        let answer = rig.patch("/workers/1", patch.clone()).await;
        assert_eq!((answer.status, answer.param()), (400, param), "{patch}");
    }
    assert_eq!(rig.get("/workers").await.text, before);
    assert_eq!(rig.patch("/workers/7", json!({})).await.status, 404);
    assert_eq!(rig.patch("/workers/x", json!({})).await.status, 400);
    assert_eq!(
        rig.patch("/workers/1", json!({"unknown": 1, "worker_id": 1}))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn a_refresh_of_the_catalog_keeps_the_load() {
    let rig = Rig::with_workers(1..=1).await;
    for _ in 0..10 {
        rig.post("/select_and_reserve", asking(json!({}))).await;
    }
    rig.register(worker(1)).await;
    assert_eq!(rig.patch("/workers/1", json!({})).await.status, 200);
    assert_eq!(rig.totals().await.0, 10);
}

#[tokio::test]
async fn an_incomplete_worker_is_kept_with_its_reasons_and_never_chosen() {
    let rig = Rig::new().await;
    let events =
        json!({"data_parallel_size": 2, "kv_events_endpoints": {"0": "tcp://127.0.0.1:15571"}});
    for (bad, reason) in [
        (
            merged(worker(1), events),
            "kv_events endpoint is required for dp_rank 1",
        ),
        (
            merged(worker(2), json!({"block_size": 0})),
            "block_size must be greater than 0",
        ),
        (
            merged(worker(3), json!({"endpoint": null})),
            "endpoint is required",
        ),
        (
            merged(worker(4), json!({"data_parallel_size": 0})),
            "data_parallel_size must be greater than 0",
        ),
    ] {
        let record = rig.register(bad).await;
        assert_eq!(record.body["lifecycle"], "incomplete");
        assert_eq!(record.body["not_schedulable_reasons"], json!([reason]));
    }
    let ready = rig.get("/ready").await;
    assert_eq!(ready.status, 503);
    assert_eq!(ready.body["ready"], false);
    assert_eq!(ready.body["workers"].as_array().unwrap().len(), 4);
    assert_eq!(rig.post("/select", asking(json!({}))).await.status, 503);
    let ranks = rig
        .post(
            "/workers",
            merged(worker(5), json!({"data_parallel_size": 4097})),
        )
        .await;
    assert_eq!((ranks.status, ranks.param()), (400, "data_parallel_size"));
}

#[tokio::test]
async fn workers_are_listed_by_model_and_group_and_removed_once() {
    let rig = Rig::with_workers(1..=1).await;
    rig.register(merged(worker(2), json!({"routing_group": "g 2"})))
        .await;
    rig.register(merged(worker(3), json!({"model_name": "n"})))
        .await;
    let ids = async |query: &str| {
        let listed = rig.get(&format!("/workers{query}")).await.body;
        let workers = listed.as_array().unwrap().iter();
        workers
            .map(|worker| worker["worker_id"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids("").await, [1, 2, 3]);
    assert_eq!(ids("?model_name=m").await, [1, 2]);
    assert_eq!(ids("?model_name=m&routing_group=g%202").await, [2]);
    assert_eq!(ids("?model_name=x").await, [0; 0]);
    let removed = rig.delete("/workers/2").await;
    assert_eq!(
        (removed.status, removed.body["worker_id"].as_u64()),
        (200, Some(2))
    );
    let again = rig.delete("/workers/2").await;
    assert_eq!((again.status, again.code()), (404, "unknown_worker"));
}

#[tokio::test]
async fn endpoints_may_be_ipv6() {
    let rig = Rig::new().await;
    let ipv6 = json!({"endpoint": "http://[::1]:18001", "kv_events_endpoints": {"0": "tcp://[::1]:15571"}});
    let record = rig.register(merged(worker(1), ipv6)).await;
    assert_eq!(record.body["lifecycle"], "schedulable");
    let selected = rig.post("/select", asking(json!({}))).await;
    assert_eq!(selected.body["endpoint"], "http://[::1]:18001");
}

#[tokio::test]
async fn a_second_block_size_in_a_partition_is_told_in_the_record() {
    let rig = Rig::with_workers(1..=1).await;
    let record = rig
        .register(merged(worker(2), json!({"block_size": 32})))
        .await;
    let reason = record.body["not_schedulable_reasons"][0].as_str().unwrap();
    assert!(reason.starts_with("reconciliation failed: "));
}
