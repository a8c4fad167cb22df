//! Reservations from booking to end: lifecycle calls, explicit bookings, odd ids, lost workers.

use std::time::Duration;

use hyper::Method;
use pointsman_service::ReservationsConfig;
use serde_json::{Value, json};

use crate::rig::{Rig, asking, merged, worker};

fn explicit(id: &str, more: Value) -> Value {
    let base = json!({
        "model_name": "m",
        "selection_id": id,
        "worker_id": 1,
        "dp_rank": 0,
        "sequence_hashes": [21, 22, 23, 24, 25, 26, 27, 28],
        "isl_tokens": 128,
    });
    merged(base, more)
}

#[tokio::test]
async fn calls_on_an_unknown_id_are_404_and_repeated_ones_do_no_harm() {
    let rig = Rig::with_workers(1..=2).await;
    for path in ["prefill_complete", "output_block"] {
        let answer = rig
            .post(&format!("/reservations/nope/{path}"), json!({}))
            .await;
        assert_eq!((answer.status, answer.code()), (404, "unknown_reservation"));
    }
    assert_eq!(rig.delete("/reservations/nope").await.status, 404);
    rig.post("/select_and_reserve", asking(json!({"selection_id": "x"})))
        .await;
    for _ in 0..2 {
        let answer = rig
            .post("/reservations/x/prefill_complete", json!({}))
            .await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.body, json!({"status": "ok"}));
    }
    assert_eq!(rig.totals().await, (1, 0));
}

#[tokio::test]
async fn lifecycle_calls_need_no_body() {
    let rig = Rig::with_workers(1..=1).await;
    rig.post("/select_and_reserve", asking(json!({"selection_id": "x"})))
        .await;
    for path in [
        "/reservations/x/prefill_complete",
        "/reservations/x/output_block",
    ] {
        assert_eq!(rig.send(Method::POST, path, &[], "").await.status, 200);
        assert_eq!(rig.post(path, json!(null)).await.status, 200);
    }
    assert_eq!(rig.delete("/reservations/x").await.status, 200);
}

#[tokio::test]
async fn a_decay_fraction_is_a_number_from_0_to_1() {
    let rig = Rig::with_workers(1..=1).await;
    rig.post("/select_and_reserve", asking(json!({"selection_id": "x"})))
        .await;
    let output = async |fraction: Value| {
        let body = json!({"decay_fraction": fraction});
        rig.post("/reservations/x/output_block", body).await
    };
    for good in [json!(0), json!(1), json!(0.5), json!(null)] {
        assert_eq!(output(good).await.status, 200);
    }
    for bad in [json!(1.5), json!(-0.1), json!("0.5"), json!(true)] {
        let answer = output(bad).await;
        assert_eq!((answer.status, answer.param()), (400, "decay_fraction"));
    }
    let loads = rig.get("/loads").await;
    // Eight blocks of the prompt and four of output at half their weight.
    assert_eq!(loads.body[0]["loads"][0]["potential_decode_blocks"], 6);
}

#[tokio::test]
async fn effective_prefill_tokens_are_charged_up_to_the_length_of_the_prompt() {
    let rig = Rig::with_workers(1..=1).await;
    for (tokens, status) in [(129, 400), (128, 201), (0, 201)] {
        let booking = explicit(
            &format!("x{tokens}"),
            json!({"effective_prefill_tokens": tokens}),
        );
        assert_eq!(rig.post("/reservations", booking).await.status, status);
    }
    assert_eq!(rig.totals().await, (2, 128));
}

#[tokio::test]
async fn without_effective_tokens_the_whole_prompt_is_charged_where_prefill_is_tracked() {
    let rig = Rig::with_workers(1..=1).await;
    rig.post("/reservations", explicit("a", json!({}))).await;
    assert_eq!(rig.totals().await, (1, 128));
    rig.post(
        "/reservations",
        explicit("b", json!({"track_prefill_tokens": false})),
    )
    .await;
    assert_eq!(rig.totals().await, (2, 128));
    let tokens = json!({"token_ids": [1, 2, 3], "sequence_hashes": null, "isl_tokens": null});
    rig.post("/reservations", explicit("c", tokens)).await;
    assert_eq!(rig.totals().await, (3, 131));
}

#[tokio::test]
async fn a_worker_or_rank_that_is_not_there_is_not_charged() {
    let rig = Rig::new().await;
    rig.register(merged(worker(1), json!({"data_parallel_size": 2})))
        .await;
    rig.register(merged(worker(2), json!({"model_name": "n"})))
        .await;
    for (more, status) in [
        (json!({"dp_rank": 7}), 400),
        (json!({"worker_id": 99}), 404),
        (json!({"worker_id": 2}), 404),
        (json!({"worker_id": -1}), 400),
    ] {
        let answer = rig.post("/reservations", explicit("a", more.clone())).await;
        assert_eq!(answer.status, status, "{more}: {}", answer.text);
    }
    rig.patch("/workers/1", json!({"endpoint": null})).await;
    let idle = rig.post("/reservations", explicit("a", json!({}))).await;
    assert_eq!((idle.status, idle.code()), (503, "worker_not_schedulable"));
    assert_eq!(rig.totals().await.0, 0);
}

#[tokio::test]
async fn a_reservation_needs_an_id() {
    let rig = Rig::with_workers(1..=1).await;
    for id in [
        None,
        Some(json!("")),
        Some(json!(7)),
        Some(json!(null)),
        Some(json!("y".repeat(257))),
    ] {
        let mut body = json!({"model_name": "m"});
        if let Some(id) = id {
            body["selection_id"] = id;
        }
        let answer = rig.post("/reservations", body).await;
        assert_eq!((answer.status, answer.param()), (400, "selection_id"));
    }
    assert_eq!(rig.totals().await.0, 0);
}

#[tokio::test]
async fn an_id_of_any_characters_can_be_freed() {
    let rig = Rig::with_workers(1..=1).await;
    let long = "z".repeat(256);
    for (id, path) in [
        ("a/b", "a%2Fb"),
        ("a b", "a%20b"),
        ("ü", "%C3%BC"),
        ("..", "%2E%2E"),
        ("a?b#c%", "a%3Fb%23c%25"),
        (&long, &long),
    ] {
        let booked = rig
            .post("/select_and_reserve", asking(json!({"selection_id": id})))
            .await;
        assert_eq!(booked.status, 200, "{id}");
        let done = rig
            .post(&format!("/reservations/{path}/prefill_complete"), json!({}))
            .await;
        assert_eq!(done.status, 200, "{id}");
        assert_eq!(
            rig.delete(&format!("/reservations/{path}")).await.status,
            200,
            "{id}"
        );
    }
    assert_eq!(rig.totals().await, (0, 0));
    let broken = rig.delete("/reservations/%ff").await;
    assert_eq!((broken.status, broken.param()), (400, "selection_id"));
}

#[tokio::test]
async fn a_deleted_worker_takes_its_load_along_and_its_ids_end_once() {
    let rig = Rig::with_workers(1..=2).await;
    for worker_id in [1, 2] {
        let booking = explicit(&format!("x{worker_id}"), json!({"worker_id": worker_id}));
        assert_eq!(rig.post("/reservations", booking).await.status, 201);
    }
    assert_eq!(rig.delete("/workers/1").await.status, 200);
    assert_eq!(rig.totals().await, (1, 128));
    rig.register(worker(1)).await;
    assert_eq!(rig.totals().await, (1, 128), "the load does not come back");
    let again = explicit("x1", json!({"worker_id": 2}));
    assert_eq!(rig.post("/reservations", again).await.status, 409);
    assert_eq!(
        rig.post("/reservations/x1/output_block", json!({}))
            .await
            .status,
        200
    );
    assert_eq!(rig.delete("/reservations/x1").await.status, 200);
    assert_eq!(rig.delete("/reservations/x1").await.status, 404);
    assert_eq!(rig.totals().await, (1, 128));
}

#[tokio::test]
async fn a_silent_reservation_ends_by_itself() {
    let config = ReservationsConfig {
        silence: Duration::ZERO,
        ..ReservationsConfig::default()
    };
    let rig = Rig::built(|builder| builder.reservations(config)).await;
    rig.register(worker(1)).await;
    rig.post("/select_and_reserve", asking(json!({"selection_id": "x"})))
        .await;
    let freed = async {
        while rig.totals().await.0 > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::rig::PATIENCE, freed)
        .await
        .unwrap();
    assert_eq!(rig.delete("/reservations/x").await.status, 404);
}

#[tokio::test]
async fn too_many_reservations_are_refused() {
    let config = ReservationsConfig {
        max_entries: 1,
        ..ReservationsConfig::default()
    };
    let rig = Rig::built(|builder| builder.reservations(config)).await;
    rig.register(worker(1)).await;
    rig.post("/select_and_reserve", asking(json!({"selection_id": "a"})))
        .await;
    let full = rig
        .post("/select_and_reserve", asking(json!({"selection_id": "b"})))
        .await;
    assert_eq!((full.status, full.code()), (429, "too_many_reservations"));
    assert!(full.headers.contains_key("retry-after"));
    rig.delete("/reservations/a").await;
    let room = rig
        .post("/select_and_reserve", asking(json!({"selection_id": "b"})))
        .await;
    assert_eq!(room.status, 200);
}

/// What `/workers` shows of the audit of the only worker's rank.
async fn audited(rig: &Rig) -> Value {
    let workers = rig.get("/workers").await;
    workers.body[0]["cache_audit"]["0"].clone()
}

async fn complete(rig: &Rig, id: &str, body: Value) -> u16 {
    let path = format!("/reservations/{id}/prefill_complete");
    rig.post(&path, body).await.status
}

#[tokio::test]
async fn what_an_engine_found_cached_is_compared_once() {
    let rig = Rig::with_workers(1..=1).await;
    rig.post("/select_and_reserve", asking(json!({"selection_id": "x"})))
        .await;
    assert_eq!(audited(&rig).await, Value::Null);
    for _ in 0..2 {
        assert_eq!(complete(&rig, "x", json!({"cached_tokens": 16})).await, 200);
    }
    let expected = json!({"agreed": 1, "over_predicted": 0, "under_predicted": 0});
    assert_eq!(audited(&rig).await, expected);
}

#[tokio::test]
async fn a_selection_that_was_reserved_later_is_compared_too() {
    let rig = Rig::with_workers(1..=1).await;
    rig.post("/select", asking(json!({"selection_id": "x"})))
        .await;
    let booked = json!({"model_name": "m", "selection_id": "x"});
    assert_eq!(rig.post("/reservations", booked).await.status, 201);
    assert_eq!(complete(&rig, "x", json!({"cached_tokens": 64})).await, 200);
    assert_eq!(audited(&rig).await["under_predicted"], 1);
}

#[tokio::test]
async fn a_report_with_nothing_to_compare_it_with_is_taken() {
    let rig = Rig::with_workers(1..=1).await;
    rig.post("/reservations", explicit("x", json!({}))).await;
    for body in [
        json!({"cached_tokens": 16}),
        json!({"cached_tokens": null}),
        json!({}),
    ] {
        assert_eq!(complete(&rig, "x", body).await, 200);
    }
    assert_eq!(audited(&rig).await, Value::Null);
    assert_eq!(
        complete(&rig, "nope", json!({"cached_tokens": 16})).await,
        404
    );
}

#[tokio::test]
async fn cached_tokens_are_a_whole_number() {
    let rig = Rig::with_workers(1..=1).await;
    rig.post("/select_and_reserve", asking(json!({"selection_id": "x"})))
        .await;
    for wrong in [json!(-1), json!("16"), json!(1.5), json!([])] {
        let body = json!({"cached_tokens": wrong});
        let answer = rig.post("/reservations/x/prefill_complete", body).await;
        assert_eq!((answer.status, answer.param()), (400, "cached_tokens"));
    }
    assert_eq!(rig.totals().await, (1, 128), "nothing was done");
}
