//! Pending selections over HTTP: used once, kept on failure, latest wins, bounded, scoped.

use std::time::Duration;

use pointsman_service::PendingConfig;
use serde_json::json;

use crate::rig::{Rig, asking, merged, worker};

#[tokio::test]
async fn a_pending_selection_is_booked_once() {
    let rig = Rig::with_workers(1..=2).await;
    let selected = rig
        .post("/select", asking(json!({"selection_id": "x"})))
        .await;
    assert_eq!(selected.status, 200);
    let replay = json!({"model_name": "m", "selection_id": "x"});
    let first = rig.post("/reservations", replay.clone()).await;
    assert_eq!(first.status, 201);
    for field in [
        "selection_id",
        "model_name",
        "worker_id",
        "dp_rank",
        "endpoint",
    ] {
        assert_eq!(first.body[field], selected.body[field], "{field}");
    }
    let second = rig.post("/reservations", replay).await;
    assert_eq!(second.status, 404);
    assert_eq!(second.code(), "no_pending_selection");
    assert!(second.text.contains("no pending selection"));
    assert_eq!(rig.totals().await, (1, 128));
}

#[tokio::test]
async fn another_group_or_model_has_other_pending_selections() {
    let rig = Rig::with_workers(1..=2).await;
    rig.post("/select", asking(json!({"selection_id": "x"})))
        .await;
    let of = |model: &str, group: &str| json!({"model_name": model, "routing_group": group, "selection_id": "x"});
    assert_eq!(rig.post("/reservations", of("m", "g2")).await.status, 404);
    assert_eq!(
        rig.post("/reservations", of("n", "default")).await.status,
        404
    );
    assert_eq!(
        rig.post("/reservations", of("m", "default")).await.status,
        201
    );
}

#[tokio::test]
async fn a_pending_selection_expires() {
    let config = PendingConfig {
        time_to_live: Duration::ZERO,
        ..PendingConfig::default()
    };
    let rig = Rig::built(|builder| builder.selection_cache(config)).await;
    rig.register(worker(1)).await;
    rig.post("/select", asking(json!({"selection_id": "x"})))
        .await;
    let replay = json!({"model_name": "m", "selection_id": "x"});
    assert_eq!(rig.post("/reservations", replay).await.status, 404);
}

#[tokio::test]
async fn the_latest_selection_of_an_id_is_the_one_that_is_booked() {
    let rig = Rig::with_workers(1..=2).await;
    for worker_id in [1, 2] {
        let pinned =
            json!({"selection_id": "x", "pinned_worker": {"worker_id": worker_id, "dp_rank": 0}});
        let selected = rig.post("/select", asking(pinned)).await;
        assert_eq!(selected.body["worker_id"], worker_id);
    }
    let booked = rig
        .post(
            "/reservations",
            json!({"model_name": "m", "selection_id": "x"}),
        )
        .await;
    assert_eq!(booked.body["worker_id"], 2);
}

#[tokio::test]
async fn a_replay_books_what_was_selected_whatever_else_it_says() {
    let rig = Rig::with_workers(1..=1).await;
    rig.post("/select", asking(json!({"selection_id": "x"})))
        .await;
    let replay = json!({
        "model_name": "m",
        "selection_id": "x",
        "isl_tokens": 7,
        "token_ids": [1],
        "effective_prefill_tokens": 1,
    });
    assert_eq!(rig.post("/reservations", replay).await.status, 201);
    assert_eq!(rig.totals().await, (1, 128));
    let loads = rig.get("/loads").await;
    assert_eq!(loads.body[0]["loads"][0]["potential_decode_blocks"], 8);
}

#[tokio::test]
async fn a_replay_that_fails_can_be_tried_again() {
    let rig = Rig::with_workers(1..=1).await;
    rig.post("/select", asking(json!({"selection_id": "x"})))
        .await;
    let replay = json!({"model_name": "m", "selection_id": "x"});
    rig.patch("/workers/1", json!({"endpoint": null})).await;
    let refused = rig.post("/reservations", replay.clone()).await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.code(), "worker_gone");
    rig.register(worker(1)).await;
    assert_eq!(rig.post("/reservations", replay).await.status, 201);
    assert_eq!(rig.totals().await, (1, 128));
}

#[tokio::test]
async fn a_held_id_conflicts_with_its_replay_and_the_selection_is_kept() {
    let rig = Rig::with_workers(1..=1).await;
    rig.post("/select_and_reserve", asking(json!({"selection_id": "x"})))
        .await;
    let replay = json!({"model_name": "m", "selection_id": "x"});
    assert_eq!(rig.post("/reservations", replay.clone()).await.status, 404);
    rig.post("/select", asking(json!({"selection_id": "x"})))
        .await;
    assert_eq!(rig.post("/reservations", replay.clone()).await.status, 409);
    assert_eq!(rig.delete("/reservations/x").await.status, 200);
    assert_eq!(rig.post("/reservations", replay).await.status, 201);
}

#[tokio::test]
async fn booking_by_other_ways_discards_the_pending_selection() {
    let rig = Rig::with_workers(1..=1).await;
    let replay = json!({"model_name": "m", "selection_id": "x"});
    let explicit = merged(
        replay.clone(),
        json!({"worker_id": 1, "sequence_hashes": [1], "isl_tokens": 16}),
    );
    for (path, booking) in [
        ("/reservations", explicit),
        ("/select_and_reserve", asking(json!({"selection_id": "x"}))),
    ] {
        rig.post("/select", asking(json!({"selection_id": "x"})))
            .await;
        let booked = rig.post(path, booking).await;
        assert!(booked.status < 300, "{}", booked.text);
        rig.delete("/reservations/x").await;
        assert_eq!(rig.post("/reservations", replay.clone()).await.status, 404);
    }
}

#[tokio::test]
async fn an_explicit_booking_that_fails_keeps_the_pending_selection() {
    let rig = Rig::with_workers(1..=1).await;
    rig.post("/select", asking(json!({"selection_id": "x"})))
        .await;
    let replay = json!({"model_name": "m", "selection_id": "x"});
    let elsewhere = merged(
        replay.clone(),
        json!({"worker_id": 9, "sequence_hashes": [1], "isl_tokens": 16}),
    );
    assert_eq!(rig.post("/reservations", elsewhere).await.status, 404);
    assert_eq!(rig.post("/reservations", replay).await.status, 201);
}

#[tokio::test]
async fn beyond_the_count_the_oldest_selection_is_gone() {
    let config = PendingConfig {
        max_entries: 2,
        ..PendingConfig::default()
    };
    let rig = Rig::built(|builder| builder.selection_cache(config)).await;
    rig.register(worker(1)).await;
    for id in ["a", "b", "c"] {
        rig.post("/select", asking(json!({"selection_id": id})))
            .await;
    }
    let mut found = Vec::new();
    for id in ["a", "b", "c"] {
        let replay = json!({"model_name": "m", "selection_id": id});
        found.push(rig.post("/reservations", replay).await.status);
    }
    assert_eq!(found, [404, 201, 201]);
}
