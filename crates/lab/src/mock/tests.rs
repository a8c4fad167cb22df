//! A fleet from outside: real HTTP, real event sockets, no sleeps.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::time::timeout;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use super::*;

const DEADLINE: Duration = Duration::from_secs(20);

async fn fleet(change: impl FnOnce(&mut FleetConfig)) -> Fleet {
    let mut config = FleetConfig {
        time_scale: 0.0,
        ..FleetConfig::default()
    };
    config.engine.block_size = 4;
    change(&mut config);
    Fleet::start(&config, PromptTokens::words()).await.unwrap()
}

fn client() -> Client<HttpConnector, Body> {
    Client::builder(TokioExecutor::new()).build_http()
}

async fn post(
    worker: &Worker,
    path: &str,
    header: &str,
    body: Value,
) -> hyper::Response<hyper::body::Incoming> {
    let request = Request::post(format!("http://{}{path}", worker.address()))
        .header("content-type", "application/json")
        .header(
            if header.is_empty() {
                "x-none"
            } else {
                FAULT_HEADER
            },
            header,
        )
        .body(Body::from(body.to_string()))
        .unwrap();
    timeout(DEADLINE, client().request(request))
        .await
        .unwrap()
        .unwrap()
}

async fn text(response: hyper::Response<hyper::body::Incoming>) -> String {
    let body = timeout(DEADLINE, response.into_body().collect())
        .await
        .unwrap();
    String::from_utf8(body.unwrap().to_bytes().to_vec()).unwrap()
}

fn chat(words: &str, stream: bool) -> Value {
    json!({
        "model": "mock-model",
        "messages": [{ "role": "user", "content": words }],
        "max_tokens": 3,
        "stream": stream,
        "stream_options": { "include_usage": true },
    })
}

const WORDS: &str = "one two three four five six seven eight nine ten";

/// Waits until the worker's state holds `expected` at `pointer`.
async fn state_becomes(worker: &Worker, pointer: &str, expected: u64) {
    let wait = async {
        loop {
            let uri = format!("http://{}/mock/state", worker.address());
            let state = client().get(uri.parse().unwrap()).await.unwrap();
            let state: Value = serde_json::from_str(&text(state).await).unwrap();
            if state.pointer(pointer).and_then(Value::as_u64) == Some(expected) {
                return;
            }
        }
    };
    timeout(DEADLINE, wait).await.unwrap();
}

#[tokio::test]
async fn a_stream_has_role_content_finish_usage_and_done() {
    let fleet = fleet(|_| {}).await;
    let response = post(
        &fleet.workers()[0],
        "/v1/chat/completions",
        "",
        chat(WORDS, true),
    )
    .await;
    assert_eq!(
        response.headers()["content-type"],
        "text/event-stream; charset=utf-8"
    );
    assert_eq!(response.headers()["x-mock-worker"], "worker-1");
    let text = text(response).await;
    let events: Vec<&str> = text.split_terminator("\n\n").collect();
    let data =
        |event: &str| serde_json::from_str::<Value>(event.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(events.len(), 7, "{text}");
    assert_eq!(data(events[0])["choices"][0]["delta"]["role"], "assistant");
    for event in &events[1..4] {
        assert!(data(event)["choices"][0]["delta"]["content"].is_string());
    }
    assert_eq!(data(events[4])["choices"][0]["finish_reason"], "length");
    assert_eq!(data(events[5])["usage"]["completion_tokens"], 3);
    assert_eq!(events[6], "data: [DONE]");
}

#[tokio::test]
async fn header_and_usage_tell_the_same_cached_tokens() {
    let fleet = fleet(|_| {}).await;
    let worker = &fleet.workers()[0];
    text(post(worker, "/v1/chat/completions", "", chat(WORDS, false)).await).await;
    let response = post(worker, "/v1/chat/completions", "", chat(WORDS, false)).await;
    let header = response.headers()["x-mock-cached-tokens"].clone();
    let body: Value = serde_json::from_str(&text(response).await).unwrap();
    // A role and ten words.
    assert_eq!(body["usage"]["prompt_tokens"], 11);
    assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 8);
    assert_eq!(header, "8");
}

#[tokio::test]
async fn an_answer_sent_back_is_found_in_the_cache() {
    let fleet = fleet(|config| config.answer_tokens = (40, 40)).await;
    let worker = &fleet.workers()[0];
    let mut messages = json!([{ "role": "user", "content": WORDS }]);
    let body = json!({ "messages": messages });
    let first: Value =
        serde_json::from_str(&text(post(worker, "/v1/chat/completions", "", body).await).await)
            .unwrap();
    let answer = first["choices"][0]["message"].clone();
    messages
        .as_array_mut()
        .unwrap()
        .extend([answer, json!({ "role": "user", "content": "more" })]);
    let body = json!({ "messages": messages });
    let second: Value =
        serde_json::from_str(&text(post(worker, "/v1/chat/completions", "", body).await).await)
            .unwrap();
    // The words stand-in has a token for the role before the answer, which the engine did not compute there.
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"], 8);
    let prompt = json!({ "prompt": "a b c d e" });
    let first: Value =
        serde_json::from_str(&text(post(worker, "/v1/completions", "", prompt).await).await)
            .unwrap();
    let said = first["choices"][0]["text"].as_str().unwrap();
    let prompt = json!({ "prompt": format!("a b c d e {said} and more") });
    let second: Value =
        serde_json::from_str(&text(post(worker, "/v1/completions", "", prompt).await).await)
            .unwrap();
    assert_eq!(
        second["usage"]["prompt_tokens_details"]["cached_tokens"],
        44
    );
}

#[tokio::test]
async fn a_replay_gives_the_kept_batches_and_an_end() {
    let fleet = fleet(|_| {}).await;
    let worker = &fleet.workers()[0];
    for words in ["a b c d e f", "g h i j k l", "m n o p q r"] {
        text(post(worker, "/v1/chat/completions", "", chat(words, false)).await).await;
    }
    let last = worker.last_sequence(0).unwrap();
    assert!(last >= 2);
    let mut dealer = DealerSocket::new();
    dealer
        .connect(worker.replay_endpoint(0).unwrap())
        .await
        .unwrap();
    let mut request = ZmqMessage::from(Bytes::new());
    request.push_back(Bytes::copy_from_slice(&1_u64.to_be_bytes()));
    dealer.send(request).await.unwrap();
    let mut numbers = Vec::new();
    loop {
        let frames = timeout(DEADLINE, dealer.recv())
            .await
            .unwrap()
            .unwrap()
            .into_vec();
        let [empty, topic, number, payload] = frames.as_slice() else {
            panic!("{frames:?}");
        };
        assert!(empty.is_empty());
        let number = u64::from_be_bytes(number.as_ref().try_into().unwrap());
        if payload.is_empty() {
            assert_eq!(number, u64::MAX);
            break;
        }
        assert_eq!(topic, "kv-events");
        numbers.push(number);
    }
    assert_eq!(numbers, (1..=last).collect::<Vec<_>>());
}

/// A subscriber whose subscription has arrived: proven by an event that it received.
async fn subscriber(worker: &Worker) -> (SubSocket, u64) {
    let mut socket = SubSocket::new();
    socket
        .connect(worker.kv_events_endpoint(0).unwrap())
        .await
        .unwrap();
    socket.subscribe("").await.unwrap();
    let mut turn = 0;
    loop {
        turn += 1;
        let words = format!("subscribe {turn} a b c d e f g");
        text(post(worker, "/v1/chat/completions", "", chat(&words, false)).await).await;
        if let Ok(frames) = timeout(Duration::from_millis(50), socket.recv()).await {
            let mut last = number(&frames.unwrap());
            while Some(last) != worker.last_sequence(0) {
                last = next_number(&mut socket).await;
            }
            return (socket, last);
        }
    }
}

fn number(frames: &ZmqMessage) -> u64 {
    assert_eq!(frames.len(), 3);
    u64::from_be_bytes(frames.get(1).unwrap().as_ref().try_into().unwrap())
}

async fn next_number(socket: &mut SubSocket) -> u64 {
    number(&timeout(DEADLINE, socket.recv()).await.unwrap().unwrap())
}

#[tokio::test]
async fn events_are_three_frames_numbered_one_after_the_other() {
    let fleet = fleet(|_| {}).await;
    let worker = &fleet.workers()[0];
    let (mut socket, last) = subscriber(worker).await;
    text(post(worker, "/v1/chat/completions", "", chat(WORDS, false)).await).await;
    assert_eq!(next_number(&mut socket).await, last + 1);
}

#[tokio::test]
async fn a_dropped_batch_is_missing_on_the_wire() {
    let fleet = fleet(|_| {}).await;
    let worker = &fleet.workers()[0];
    let (mut socket, last) = subscriber(worker).await;
    let asked = post(worker, "/fault", "", json!({ "events": { "drop": 1 } })).await;
    assert_eq!(asked.status(), 200);
    for words in [WORDS, "q w e r t z u i o p"] {
        text(post(worker, "/v1/chat/completions", "", chat(words, false)).await).await;
    }
    assert_eq!(next_number(&mut socket).await, last + 2);
}

#[tokio::test]
async fn a_restarted_worker_begins_at_zero_on_the_same_port() {
    let fleet = fleet(|_| {}).await;
    let worker = &fleet.workers()[0];
    let (socket, last) = subscriber(worker).await;
    drop(socket);
    let endpoint = worker.kv_events_endpoint(0).unwrap().to_owned();
    post(worker, "/fault", "", json!({ "restart": true })).await;
    state_becomes(worker, "/ranks/0/blocks_cached", 0).await;
    assert_eq!(worker.last_sequence(0), None);
    let (_socket, again) = subscriber(worker).await;
    assert!(again <= last + 50);
    assert_eq!(worker.kv_events_endpoint(0), Some(endpoint.as_str()));
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_blocks() {
    let fleet = fleet(|config| config.time_scale = 1.0).await;
    let worker = &fleet.workers()[0];
    let body = json!({
        "messages": [{ "role": "user", "content": WORDS }],
        "max_tokens": 8000, "ignore_eos": true, "stream": true,
    });
    let mut response = post(worker, "/v1/chat/completions", "", body).await;
    timeout(DEADLINE, response.body_mut().frame())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(worker.in_flight(), 1);
    drop(response);
    state_becomes(worker, "/ranks/0/blocks_in_use", 0).await;
    assert_eq!(worker.in_flight(), 0);
}

#[tokio::test]
async fn faults_of_one_request_are_asked_for_by_a_header() {
    let fleet = fleet(|_| {}).await;
    let worker = &fleet.workers()[0];
    let refused = post(
        worker,
        "/v1/chat/completions",
        "status=503",
        chat(WORDS, true),
    )
    .await;
    assert_eq!(refused.status(), 503);
    let cut = post(
        worker,
        "/v1/chat/completions",
        "reset-after=1",
        chat(WORDS, true),
    )
    .await;
    assert_eq!(cut.status(), 200);
    assert!(cut.into_body().collect().await.is_err());
    let unknown = post(worker, "/v1/chat/completions", "explode", chat(WORDS, true)).await;
    assert_eq!(unknown.status(), 400);
}

#[tokio::test]
async fn a_slow_start_answers_503_until_it_is_cleared() {
    let fleet = fleet(|_| {}).await;
    let worker = &fleet.workers()[0];
    post(
        worker,
        "/fault",
        "",
        json!({ "http": { "slow_start_ms": 600_000 } }),
    )
    .await;
    assert_eq!(
        post(worker, "/v1/chat/completions", "", chat(WORDS, false))
            .await
            .status(),
        503
    );
    post(worker, "/fault", "", json!({ "clear": true })).await;
    assert_eq!(
        post(worker, "/v1/chat/completions", "", chat(WORDS, false))
            .await
            .status(),
        200
    );
}

#[tokio::test]
async fn a_slow_start_ends_by_itself() {
    let fleet = fleet(|_| {}).await;
    let worker = &fleet.workers()[0];
    let slow = json!({ "http": { "slow_start_ms": 500 } });
    post(worker, "/fault", "", slow).await;
    assert_eq!(get(worker, "/health").await.status(), 503);
    let ready = async { while get(worker, "/health").await.status() != 200 {} };
    timeout(DEADLINE, ready).await.unwrap();
}

#[tokio::test]
async fn stalled_metrics_hold_up_nothing_else() {
    let fleet = fleet(|_| {}).await;
    let worker = &fleet.workers()[0];
    let stall = json!({ "http": { "metrics_delay_ms": 600_000 } });
    post(worker, "/fault", "", stall).await;
    let scrape = timeout(Duration::from_millis(200), get(worker, "/metrics"));
    assert!(scrape.await.is_err());
    assert_eq!(get(worker, "/health").await.status(), 200);
}

#[tokio::test]
async fn a_wrong_topic_is_on_the_wire_until_it_is_cleared() {
    let fleet = fleet(|_| {}).await;
    let worker = &fleet.workers()[0];
    let (mut socket, _) = subscriber(worker).await;
    for (fault, words, expected) in [
        (
            json!({ "events": { "topic": "kv@other" } }),
            WORDS,
            "kv@other",
        ),
        (json!({ "clear": true }), "q w e r t z u i o p", "kv-events"),
    ] {
        assert_eq!(post(worker, "/fault", "", fault).await.status(), 200);
        text(post(worker, "/v1/chat/completions", "", chat(words, false)).await).await;
        loop {
            let frames = timeout(DEADLINE, socket.recv()).await.unwrap().unwrap();
            assert_eq!(frames.get(0).unwrap(), expected);
            if Some(number(&frames)) == worker.last_sequence(0) {
                break;
            }
        }
    }
}

#[tokio::test]
async fn an_unknown_fault_is_refused_by_name() {
    let fleet = fleet(|_| {}).await;
    let refused = post(&fleet.workers()[0], "/fault", "", json!({ "evnts": {} })).await;
    assert_eq!(refused.status(), 400);
    assert!(text(refused).await.contains("evnts"));
}

#[tokio::test]
async fn an_unknown_model_is_not_found() {
    let fleet = fleet(|_| {}).await;
    let body = json!({ "model": "other", "prompt": "a b" });
    let refused = post(&fleet.workers()[0], "/v1/completions", "", body).await;
    assert_eq!(refused.status(), 404);
}

#[tokio::test]
async fn each_rank_has_its_own_ports_and_the_header_chooses_it() {
    let fleet = fleet(|config| config.dp_size = 2).await;
    let worker = &fleet.workers()[0];
    assert_ne!(worker.kv_events_endpoint(0), worker.kv_events_endpoint(1));
    let request = Request::post(format!("http://{}/v1/completions", worker.address()))
        .header("x-data-parallel-rank", "1")
        .body(Body::from(r#"{"prompt":"a b c d e f"}"#))
        .unwrap();
    let response = client().request(request).await.unwrap();
    assert_eq!(response.headers()["x-mock-dp-rank"], "1");
    text(response).await;
    assert_eq!(worker.last_sequence(0), None);
    assert!(worker.last_sequence(1).is_some());
    let registration = worker.registration();
    assert_eq!(
        registration["kv_events_endpoints"]
            .as_object()
            .unwrap()
            .len(),
        2
    );
    assert_eq!(
        registration["replay_endpoints"].as_object().unwrap().len(),
        2
    );
}

#[tokio::test]
async fn metrics_have_the_names_of_an_engine() {
    let fleet = fleet(|_| {}).await;
    let worker = &fleet.workers()[0];
    text(post(worker, "/v1/chat/completions", "", chat(WORDS, false)).await).await;
    let uri = format!("http://{}/metrics", worker.address());
    let metrics = text(client().get(uri.parse().unwrap()).await.unwrap()).await;
    for line in [
        "vllm:num_requests_running{engine=\"0\",model_name=\"mock-model\"} 0",
        "vllm:prefix_cache_queries_total{engine=\"0\",model_name=\"mock-model\"} 11",
        "vllm:cache_config_info{engine=\"0\",model_name=\"mock-model\",block_size=\"4\",num_gpu_blocks=\"65536\"} 1",
    ] {
        assert!(
            metrics.lines().any(|written| written == line),
            "{line}\n{metrics}"
        );
    }
}

async fn get(worker: &Worker, path: &str) -> hyper::Response<hyper::body::Incoming> {
    let uri = format!("http://{}{path}", worker.address());
    let answer = client().get(uri.parse().unwrap());
    timeout(DEADLINE, answer).await.unwrap().unwrap()
}

#[tokio::test]
async fn metrics_count_the_times_of_an_answer() {
    let fleet = fleet(|_| {}).await;
    let worker = &fleet.workers()[0];
    text(post(worker, "/v1/chat/completions", "", chat(WORDS, false)).await).await;
    let metrics = text(get(worker, "/metrics").await).await;
    for (name, count) in [("time_to_first_token", 1), ("inter_token_latency", 2)] {
        let labels = "engine=\"0\",model_name=\"mock-model\"";
        let line = format!("vllm:{name}_seconds_count{{{labels}}} {count}");
        assert!(metrics.lines().any(|written| written == line), "{metrics}");
    }
}

#[tokio::test]
async fn a_render_gives_the_tokens_that_a_completion_counts() {
    let fleet = fleet(|_| {}).await;
    let worker = &fleet.workers()[0];
    for (path, body) in [
        ("/v1/chat/completions", chat(WORDS, false)),
        ("/v1/completions", json!({ "prompt": WORDS })),
    ] {
        let rendered = post(worker, &format!("{path}/render"), "", body.clone()).await;
        let rendered: Value = serde_json::from_str(&text(rendered).await).unwrap();
        let tokenized = text(post(worker, "/tokenize", "", body.clone()).await).await;
        let tokenized: Value = serde_json::from_str(&tokenized).unwrap();
        assert!(rendered["token_ids"].is_array());
        assert_eq!(rendered["token_ids"], tokenized["tokens"]);
        let answer = text(post(worker, path, "", body).await).await;
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let prompt_tokens = answer["usage"]["prompt_tokens"].as_u64().unwrap();
        let rendered = rendered["token_ids"].as_array().unwrap().len();
        assert_eq!(rendered as u64, prompt_tokens);
    }
}

#[tokio::test]
async fn a_render_hangs_where_a_hang_was_asked_for() {
    let fleet = fleet(|_| {}).await;
    let worker = &fleet.workers()[0];
    let hang = json!({ "http": { "hang_rate": 1.0 } });
    post(worker, "/fault", "", hang).await;
    let path = "/v1/chat/completions/render";
    let request = Request::post(format!("http://{}{path}", worker.address()))
        .body(Body::from(chat(WORDS, false).to_string()))
        .unwrap();
    let answer = timeout(Duration::from_millis(200), client().request(request)).await;
    assert!(answer.is_err());
}

#[tokio::test]
async fn a_render_waits_where_a_delay_was_asked_for() {
    let fleet = fleet(|_| {}).await;
    let worker = &fleet.workers()[0];
    let started = std::time::Instant::now();
    let path = "/v1/completions/render";
    let answer = post(worker, path, "delay-ms=100", json!({ "prompt": WORDS })).await;
    assert_eq!(answer.status(), 200);
    assert!(started.elapsed() >= Duration::from_millis(100));
}

#[tokio::test]
async fn a_running_adapter_is_named_while_it_runs() {
    let fleet = fleet(|config| {
        config.time_scale = 1.0;
        config.lora_adapters = vec!["poet".to_owned()];
    })
    .await;
    let worker = &fleet.workers()[0];
    let body = json!({
        "model": "poet", "prompt": WORDS, "max_tokens": 8000, "ignore_eos": true, "stream": true,
    });
    let response = post(worker, "/v1/completions", "", body).await;
    let metrics = text(get(worker, "/metrics").await).await;
    assert!(
        metrics
            .contains("{max_lora=\"1\",running_lora_adapters=\"poet\",waiting_lora_adapters=\"\"}"),
        "{metrics}"
    );
    drop(response);
}

#[tokio::test]
async fn a_workers_file_names_ranks_by_number() {
    let fleet = fleet(|config| config.dp_size = 2).await;
    let file = fleet.workers_file();
    let worker = &fleet.workers()[0];
    let events = |dp_rank| worker.kv_events_endpoint(dp_rank).unwrap();
    let expected = format!(
        "    kv_events_endpoints: {{0: \"{}\", 1: \"{}\"}}",
        events(0),
        events(1)
    );
    assert!(file.starts_with("workers:\n  - worker_id: 1\n    model_name: \"mock-model\"\n"));
    assert!(file.lines().any(|line| line == expected), "{file}");
    pointsman_service::WorkersFile::from_yaml(&file).unwrap();
}

#[test]
fn ports_follow_worker_and_rank() {
    let config = FleetConfig {
        dp_size: 2,
        ..FleetConfig::default()
    };
    assert_eq!(config.rank_port(5_557, 1, 1).unwrap(), 5_560);
    assert_eq!(config.rank_port(0, 1, 1).unwrap(), 0);
    assert!(config.rank_port(65_535, 1, 1).is_err());
}
