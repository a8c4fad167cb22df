//! `/select` and `/select_and_reserve`: what they answer, charge and refuse.

use serde_json::{Value, json};

use crate::rig::{Answer, Rig, asking, merged, worker};

const BIG_ID: u64 = 9_007_199_254_740_993;

#[tokio::test]
async fn the_samples_of_the_guide_work_as_printed() {
    let rig = Rig::new().await;
    let sample = json!({
        "worker_id": 1,
        "model_name": "model",
        "routing_group": "default",
        "endpoint": "http://worker:8000",
        "block_size": 16,
        "data_parallel_start_rank": 0,
        "data_parallel_size": 2,
        "kv_events_endpoints": {"0": "tcp://127.0.0.1:5557", "1": "tcp://127.0.0.1:5558"},
        "replay_endpoint": "tcp://127.0.0.1:5560",
    });
    let record = rig.register(sample).await;
    assert_eq!(record.body["lifecycle"], "schedulable");
    assert!(record.body.get("not_schedulable_reasons").is_none());
    let prompt = json!({
        "selection_id": "select-123",
        "model_name": "model",
        "routing_group": "default",
        "block_hashes": [11, 12, 13, 14, 15, 16, 17, 18],
        "sequence_hashes": [21, 22, 23, 24, 25, 26, 27, 28],
        "isl_tokens": 512,
    });
    assert_eq!(rig.get("/ready").await.status, 200);
    for path in ["/select", "/select_and_reserve"] {
        let answer = rig.post(path, prompt.clone()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let body = &answer.body;
        assert_eq!(body["selection_id"], "select-123");
        assert_eq!(body["worker_id"], 1);
        assert_eq!(body["endpoint"], "http://worker:8000");
        assert_eq!(body["block_size"], 16);
        assert_eq!(body["overlap"]["dp"], json!({"0": 0, "1": 0}));
        assert_eq!(body["effective_prefill_tokens"], 512);
    }
    let explicit = json!({
        "selection_id": "request-123",
        "model_name": "model",
        "routing_group": "default",
        "worker_id": 1,
        "dp_rank": 0,
        "sequence_hashes": [21, 22, 23, 24, 25, 26, 27, 28],
        "isl_tokens": 512,
        "effective_prefill_tokens": 384,
    });
    let booked = rig.post("/reservations", explicit).await;
    assert_eq!(booked.status, 201);
    assert_eq!(
        booked.body,
        json!({
            "selection_id": "request-123",
            "model_name": "model",
            "routing_group": "default",
            "worker_id": 1,
            "dp_rank": 0,
            "endpoint": "http://worker:8000",
        })
    );
    assert_eq!(rig.totals().await, (2, 512 + 384));
}

#[tokio::test]
async fn a_cold_answer_lists_the_rank_with_zero_and_omits_an_absent_id() {
    let rig = Rig::with_workers(1..=2).await;
    let answer = rig.post("/select", asking(json!({}))).await;
    let zero = json!({"longest_matched": 0, "gpu": 0, "dp": {"0": 0}, "cpu": 0, "disk": 0});
    assert_eq!(answer.body["overlap"], zero);
    assert_eq!(answer.body["effective_prefill_tokens"], 128);
    for absent in [
        "selection_id",
        "cached_tokens",
        "effective_overlap_blocks",
        "sequence_hashes",
        "worker_load",
    ] {
        assert!(answer.body.get(absent).is_none(), "{absent}");
    }
    let advisory = rig.post("/select", asking(json!({"advisory": true}))).await;
    assert_eq!(advisory.body["worker_load"]["active_prefill_tokens"], 0);
}

#[tokio::test]
async fn an_id_is_made_where_none_is_sent() {
    let rig = Rig::with_workers(1..=1).await;
    let answer = rig.post("/select_and_reserve", asking(json!({}))).await;
    let id = answer.body["selection_id"].as_str().unwrap().to_owned();
    assert!(!id.is_empty());
    assert_eq!(answer.body["isl_tokens"], 128);
    assert_eq!(answer.body["track_prefill_tokens"], true);
    assert_eq!(
        answer.body["sequence_hashes"],
        json!([21, 22, 23, 24, 25, 26, 27, 28])
    );
    assert_eq!(rig.delete(&format!("/reservations/{id}")).await.status, 200);
    assert_eq!(rig.totals().await, (0, 0));
}

#[tokio::test]
async fn an_id_is_booked_once_and_freed_once() {
    let rig = Rig::with_workers(1..=2).await;
    let booking = asking(json!({"selection_id": "x"}));
    assert_eq!(
        rig.post("/select_and_reserve", booking.clone())
            .await
            .status,
        200
    );
    let again = rig.post("/select_and_reserve", booking).await;
    assert_eq!((again.status, again.code()), (409, "duplicate_reservation"));
    assert_eq!(rig.totals().await.0, 1);
    assert_eq!(rig.delete("/reservations/x").await.status, 200);
    assert_eq!(rig.totals().await, (0, 0));
    assert_eq!(rig.delete("/reservations/x").await.status, 404);
}

#[tokio::test]
async fn an_id_that_no_route_could_name_is_not_booked() {
    let rig = Rig::with_workers(1..=1).await;
    for path in ["/select", "/select_and_reserve"] {
        for id in [json!(""), json!("y".repeat(257)), json!(7)] {
            let answer = rig.post(path, asking(json!({"selection_id": id}))).await;
            assert_eq!((answer.status, answer.param()), (400, "selection_id"));
        }
    }
    assert_eq!(rig.totals().await, (0, 0));
}

#[tokio::test]
async fn an_id_is_one_over_all_partitions() {
    let rig = Rig::with_workers(1..=1).await;
    rig.register(merged(worker(2), json!({"model_name": "n"})))
        .await;
    let first = rig
        .post("/select_and_reserve", asking(json!({"selection_id": "x"})))
        .await;
    assert_eq!(first.status, 200);
    let other = asking(json!({"selection_id": "x", "model_name": "n"}));
    assert_eq!(rig.post("/select_and_reserve", other).await.status, 409);
    assert_eq!(rig.totals().await.0, 1);
}

#[tokio::test]
async fn ids_of_64_bits_survive() {
    let rig = Rig::new().await;
    rig.register(worker(BIG_ID)).await;
    let answer = rig.post("/select", asking(json!({}))).await;
    assert!(answer.text.contains("\"worker_id\":9007199254740993"));
    let pinned = asking(json!({"pinned_worker": {"worker_id": BIG_ID, "dp_rank": 0}}));
    assert_eq!(rig.post("/select", pinned).await.status, 200);
    assert_eq!(rig.delete("/workers/9007199254740993").await.status, 200);
}

#[tokio::test]
async fn ranks_begin_where_the_worker_says_and_all_are_used() {
    let rig = Rig::new().await;
    let ranks = json!({"data_parallel_start_rank": 8, "data_parallel_size": 8});
    rig.register(merged(worker(1), ranks)).await;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..32 {
        let answer = rig.post("/select_and_reserve", asking(json!({}))).await;
        seen.insert(answer.body["dp_rank"].as_u64().unwrap());
    }
    assert_eq!(seen, (8..16).collect());
}

#[tokio::test]
async fn equal_workers_share_the_requests() {
    let rig = Rig::with_workers(1..=4).await;
    let mut counts = [0; 4];
    for request in 0..40_u64 {
        let hashes: Vec<u64> = (0..8).map(|block| 1000 * (request + 1) + block).collect();
        let more = json!({"block_hashes": hashes, "sequence_hashes": hashes});
        let answer = rig.post("/select_and_reserve", asking(more)).await;
        let worker_id = answer.body["worker_id"].as_u64().unwrap();
        counts[usize::try_from(worker_id).unwrap() - 1] += 1;
    }
    assert!(
        counts.iter().all(|count| (8..=12).contains(count)),
        "{counts:?}"
    );
}

#[tokio::test]
async fn models_and_groups_share_neither_workers_nor_load() {
    let rig = Rig::with_workers(1..=1).await;
    rig.register(merged(worker(2), json!({"routing_group": "g2"})))
        .await;
    rig.register(merged(worker(3), json!({"model_name": "n"})))
        .await;
    for _ in 0..5 {
        let answer = rig
            .post(
                "/select_and_reserve",
                asking(json!({"routing_group": "g2"})),
            )
            .await;
        assert_eq!(answer.body["worker_id"], 2);
    }
    assert_eq!(
        rig.post("/select", asking(json!({}))).await.body["worker_id"],
        1
    );
    let n = rig
        .post("/select", asking(json!({"model_name": "n"})))
        .await;
    assert_eq!(n.body["worker_id"], 3);
    let nowhere = rig
        .post("/select", asking(json!({"routing_group": "nope"})))
        .await;
    assert_eq!((nowhere.status, nowhere.code()), (503, "unknown_partition"));
    let loads = rig.get("/loads?model_name=m&routing_group=default").await;
    assert_eq!(crate::rig::totals_of(&loads.body).0, 0);
    assert_eq!(loads.body.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn asking_charges_nothing() {
    let rig = Rig::with_workers(1..=2).await;
    for path in ["/select", "/potential_loads", "/overlap_scores"] {
        for _ in 0..10 {
            assert_eq!(
                rig.post(path, asking(json!({}))).await.status,
                200,
                "{path}"
            );
        }
    }
    assert_eq!(rig.totals().await, (0, 0));
}

#[tokio::test]
async fn prompts_of_every_form_and_size_are_taken() {
    let rig = Rig::with_workers(1..=2).await;
    let ask = async |prompt: Value| {
        let body = merged(json!({"model_name": "m"}), prompt);
        rig.post("/select", body).await
    };
    let tokens = |answer: &Answer| answer.body["effective_prefill_tokens"].as_u64().unwrap();
    let ids: Vec<u32> = (0..40).collect();
    for (prompt, expected) in [
        (json!({"token_ids": ids}), 40),
        (json!({"token_ids": []}), 0),
        (
            json!({"block_hashes": [], "sequence_hashes": [], "isl_tokens": 0}),
            0,
        ),
        (
            json!({"block_hashes": [], "sequence_hashes": [], "isl_tokens": 5}),
            5,
        ),
        (
            json!({"block_hashes": [-1, u64::MAX], "sequence_hashes": [i64::MIN, i64::MAX], "isl_tokens": 32}),
            32,
        ),
        (
            json!({"token_ids": ids, "block_mm_infos": [null, {"mm_objects": [{"mm_hash": u64::MAX, "offsets": [[0, 3]]}]}]}),
            40,
        ),
        (
            json!({"mm_routing_info": {"routing_token_ids": [1, 2, 3], "block_mm_infos": []}, "token_ids": ids}),
            3,
        ),
        (
            json!({"mm_routing_info": {"routing_token_ids": []}, "token_ids": ids}),
            40,
        ),
    ] {
        let answer = ask(prompt.clone()).await;
        assert_eq!(answer.status, 200, "{prompt}: {}", answer.text);
        assert_eq!(tokens(&answer), expected, "{prompt}");
    }
    let small = json!({"block_hashes": [], "sequence_hashes": [], "isl_tokens": 5});
    rig.post(
        "/select_and_reserve",
        merged(json!({"model_name": "m"}), small),
    )
    .await;
    assert_eq!(rig.totals().await, (1, 5));
}

#[tokio::test]
async fn bad_prompts_are_refused_before_anything_else() {
    let rig = Rig::new().await;
    for (prompt, param) in [
        (json!({}), "block_hashes"),
        (json!({"block_hashes": [1]}), "sequence_hashes"),
        (
            json!({"block_hashes": [1], "sequence_hashes": [1]}),
            "isl_tokens",
        ),
        (
            json!({"block_hashes": [1], "sequence_hashes": [1], "isl_tokens": 0}),
            "isl_tokens",
        ),
        (
            json!({"block_hashes": [1, 2], "sequence_hashes": [1], "isl_tokens": 32}),
            "block_hashes",
        ),
        (json!({"token_ids": [1, -1]}), "token_ids"),
        (json!({"token_ids": "1"}), "token_ids"),
        (
            json!({"mm_routing_info": {"routing_token_ids": [1.5]}}),
            "mm_routing_info.routing_token_ids",
        ),
        (
            json!({"token_ids": [1], "selection_id": ""}),
            "selection_id",
        ),
        (
            json!({"token_ids": [1], "selection_id": "x".repeat(257)}),
            "selection_id",
        ),
        (
            json!({"token_ids": [1], "router_config_override": {"router_temperature": -1}}),
            "router_config_override.router_temperature",
        ),
        (
            json!({"token_ids": [1], "router_config_override": {"shared_cache_multiplier": 2}}),
            "router_config_override.shared_cache_multiplier",
        ),
        (
            json!({"token_ids": [1], "session_context": {}}),
            "session_context.session_id",
        ),
    ] {
        for path in ["/select", "/select_and_reserve"] {
            let answer = rig.post(path, prompt.clone()).await;
            assert_eq!(answer.status, 400, "{prompt}: {}", answer.text);
            assert_eq!(answer.param(), param, "{prompt}");
        }
    }
}

#[tokio::test]
async fn a_form_of_the_prompt_that_is_not_used_must_be_right_too() {
    let rig = Rig::with_workers(1..=1).await;
    for (field, wrong) in [
        ("sequence_hashes", json!(["x"])),
        ("block_hashes", json!(7)),
        ("isl_tokens", json!(-1)),
    ] {
        let mut body = json!({"model_name": "m", "token_ids": [1, 2, 3]});
        body[field] = wrong;
        let answer = rig.post("/select", body).await;
        assert_eq!(
            (answer.status, answer.param()),
            (400, field),
            "{}",
            answer.text
        );
    }
}

#[tokio::test]
async fn each_documented_field_is_read() {
    let rig = Rig::with_workers(1..=1).await;
    let document = rig.get("/openapi.json").await.body;
    let schemas = &document["components"]["schemas"];
    for (schema, path, base) in [
        ("SelectFields", "/select", asking(json!({}))),
        ("PromptFields", "/overlap_scores", asking(json!({}))),
        (
            "ReserveFields",
            "/reservations",
            asking(json!({"selection_id": "x", "worker_id": 1})),
        ),
        ("WorkerFields", "/workers", worker(1)),
        (
            "PeerFields",
            "/replica_sync/register_peer",
            json!({"endpoint": "tcp://a:1"}),
        ),
    ] {
        let mut names = Vec::new();
        properties(&schemas[schema], schemas, &mut names);
        assert!(!names.is_empty(), "{schema}");
        for name in names {
            let mut body = base.clone();
            body[&name] = json!([true]);
            let answer = rig.post(path, body).await;
            assert_eq!(answer.status, 400, "{schema}.{name}: {}", answer.text);
            assert!(answer.param().starts_with(&name), "{schema}.{name}");
        }
    }
}

fn properties(schema: &Value, schemas: &Value, names: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap();
        return properties(&schemas[name], schemas, names);
    }
    if let Some(own) = schema["properties"].as_object() {
        names.extend(own.keys().cloned());
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        properties(part, schemas, names);
    }
}
