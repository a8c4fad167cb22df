//! The request phase: what comes in, and that the same leaves for the picked worker.

use std::time::Duration;

use pointsman::{request::Endpoint, tokenize::TokenizeConfig};

use crate::{
    client::{CHAT, HELLO, Reply, Upstream},
    house::{FIRST, House, Plan, SECOND, worker},
};

fn is_ready(endpoint: &str) -> bool {
    [FIRST, SECOND].contains(&endpoint)
}

/// Sends a chat request in the given pieces; the last one ends it.
async fn chat_in(house: &House, pieces: &[&[u8]]) -> Upstream {
    let mut exchange = house.exchange().await;
    exchange.post(CHAT).await;
    for (index, piece) in pieces.iter().enumerate() {
        let end = index + 1 == pieces.len();
        exchange.request_body(piece, end).await;
    }
    exchange.upstream().await
}

#[tokio::test]
async fn header_and_metadata_name_the_same_ready_endpoint() {
    let house = House::open().await;
    let routed = house.exchange().await.chat().await.routed;
    assert!(is_ready(&routed.destination()), "{routed:?}");
    assert_eq!(routed.in_metadata, routed.destination());
    assert!(routed.clears_route);
}

#[tokio::test]
async fn headers_are_set_by_raw_value_and_overwrite() {
    let house = House::open().await;
    let routed = house.exchange().await.chat().await.routed;
    assert!(!routed.set.is_empty());
    for set in &routed.set {
        let header = set.header.as_ref().unwrap();
        assert!(header.value.is_empty() && !header.raw_value.is_empty());
        let action = set.append_action().as_str_name();
        assert_eq!(action, "OVERWRITE_IF_EXISTS_OR_ADD");
    }
}

#[tokio::test]
async fn an_engine_of_several_ranks_is_told_the_one_that_is_charged() {
    let mut ranked = worker(1, FIRST);
    ranked.data_parallel_size = Some(2);
    let house = Plan {
        workers: vec![ranked],
        ..Plan::plain()
    }
    .open()
    .await;
    let mut exchange = house.exchange().await;
    let forged = ("x-data-parallel-rank", "7");
    let fields = [(":method", "POST"), (":path", CHAT), forged];
    exchange.request(&fields, false).await;
    exchange.request_body(HELLO.as_bytes(), true).await;
    let routed = exchange.upstream().await.routed;
    let told = routed.header("x-data-parallel-rank").unwrap();
    let loads = house.service.loads();
    let charged = loads[0].loads.iter().find(|load| load.active_requests == 1);
    assert_eq!(told, charged.unwrap().worker.dp_rank.to_string());
}

#[tokio::test]
async fn an_engine_of_one_rank_is_told_none() {
    let house = House::open().await;
    let routed = house.exchange().await.chat().await.routed;
    assert_eq!(routed.header("x-data-parallel-rank"), None);
}

#[tokio::test]
async fn a_destination_from_the_client_is_overwritten() {
    let house = House::open().await;
    let mut exchange = house.exchange().await;
    let forged = ("x-gateway-destination-endpoint", "203.0.113.9:8000");
    let fields = [(":method", "POST"), (":path", CHAT), forged];
    exchange.request(&fields, false).await;
    exchange.request_body(HELLO.as_bytes(), true).await;
    let routed = exchange.upstream().await.routed;
    assert!(is_ready(&routed.destination()));
}

#[tokio::test]
async fn routing_headers_of_the_client_are_removed() {
    let house = House::open().await;
    let routed = house.exchange().await.chat().await.routed;
    for name in [
        "x-gateway-inference-fairness-id",
        "x-gateway-inference-objective",
        "x-gateway-model-name-rewrite",
        "x-gateway-destination-endpoint-subset",
        "x-gateway-destination-endpoint-served",
        "x-prefiller-host-port",
    ] {
        assert!(
            routed.removed.iter().any(|removed| removed == name),
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_request_without_an_id_gets_one() {
    let house = House::open().await;
    let mut exchange = house.exchange().await;
    let fields = [
        (":method", "GET"),
        (":path", "/v1/models"),
        ("x-request-id", ""),
    ];
    exchange.request(&fields, true).await;
    let routed = exchange.routed().await;
    assert_eq!(routed.header("x-request-id").unwrap().len(), 36);
}

#[tokio::test]
async fn headers_are_answered_before_the_body() {
    let house = House::open().await;
    let mut exchange = house.exchange().await;
    exchange.post(CHAT).await;
    exchange.request_body(HELLO.as_bytes(), true).await;
    assert!(matches!(exchange.reply().await, Reply::Routed(_)));
    assert!(matches!(exchange.reply().await, Reply::RequestBody(_)));
}

#[tokio::test]
async fn a_last_piece_sent_twice_is_picked_for_once() {
    let house = House::open().await;
    let mut exchange = house.exchange().await;
    let (first, last) = HELLO.as_bytes().split_at(20);
    exchange.post(CHAT).await;
    exchange.request_body(first, false).await;
    exchange.request_body(last, true).await;
    exchange.request_body(last, true).await;
    let upstream = exchange.upstream().await;
    assert_eq!(upstream.bytes(), HELLO.as_bytes());
    exchange.complete().await;
    assert_eq!(house.witness.bodies(), [HELLO]);
    house.freed().await;
}

#[tokio::test]
async fn an_empty_last_piece_ends_the_body_once() {
    let house = House::open().await;
    let upstream = chat_in(&house, &[HELLO.as_bytes(), b""]).await;
    assert_eq!(upstream.bytes(), HELLO.as_bytes());
    assert_eq!(upstream.ends(), [true]);
}

#[tokio::test]
async fn a_body_of_single_bytes_is_picked_for_whole() {
    let house = House::open().await;
    let pieces: Vec<&[u8]> = HELLO.as_bytes().chunks(1).collect();
    let upstream = chat_in(&house, &pieces).await;
    assert_eq!(upstream.bytes(), HELLO.as_bytes());
    assert_eq!(house.witness.bodies(), [HELLO]);
}

#[tokio::test]
async fn a_character_split_between_pieces_changes_no_token() {
    let house = Plan::with_tokenizer(TokenizeConfig::default()).open().await;
    let body = r#"{"model":"m","messages":[{"role":"user","content":"你好世界🙂"}]}"#.as_bytes();
    let whole = chat_in_and_count(&house, &[body]).await;
    assert!(whole > 0);
    for split in 1..body.len() {
        let (first, last) = body.split_at(split);
        let tokens = chat_in_and_count(&house, &[first, last]).await;
        assert_eq!(tokens, whole, "split at {split}");
    }
}

/// The tokens charged for a request; its stream is gone afterwards.
async fn chat_in_and_count(house: &House, pieces: &[&[u8]]) -> u64 {
    let mut exchange = house.exchange().await;
    exchange.post(CHAT).await;
    for (index, piece) in pieces.iter().enumerate() {
        exchange
            .request_body(piece, index + 1 == pieces.len())
            .await;
    }
    let upstream = exchange.upstream().await;
    assert_eq!(upstream.bytes(), pieces.concat());
    let tokens = house.prefill_tokens();
    drop(exchange);
    house.freed().await;
    tokens
}

#[tokio::test]
async fn trailers_that_end_the_body_are_answered_after_it() {
    let house = House::open().await;
    let mut exchange = house.exchange().await;
    exchange.post(CHAT).await;
    exchange.request_body(HELLO.as_bytes(), false).await;
    exchange.request_trailers().await;
    exchange.routed().await;
    let Reply::RequestBody(piece) = exchange.reply().await else {
        panic!("no body");
    };
    assert_eq!(
        (piece.bytes.as_slice(), piece.end),
        (HELLO.as_bytes(), false)
    );
    assert!(matches!(exchange.reply().await, Reply::RequestTrailers));
}

#[tokio::test]
async fn a_large_body_leaves_in_small_pieces() {
    let house = House::open().await;
    let text = "0123456789abcdef".repeat(300 * 64);
    let body = format!(r#"{{"model":"m","prompt":"{text}"}}"#).into_bytes();
    let mut exchange = house.exchange().await;
    exchange.post("/v1/completions").await;
    let pieces: Vec<&[u8]> = body.chunks(body.len() / 4).collect();
    for (index, piece) in pieces.iter().enumerate() {
        exchange
            .request_body(piece, index + 1 == pieces.len())
            .await;
    }
    let upstream = exchange.upstream().await;
    assert!(
        upstream
            .pieces
            .iter()
            .all(|piece| piece.bytes.len() <= 62_000)
    );
    assert_eq!(upstream.ends().iter().filter(|end| **end).count(), 1);
    assert!(upstream.bytes() == body);
}

#[tokio::test]
async fn a_request_without_a_body_is_routed_and_holds_nothing() {
    let house = House::open().await;
    let mut exchange = house.exchange().await;
    exchange.get("/v1/models").await;
    let routed = exchange.routed().await;
    assert!(is_ready(&routed.destination()));
    assert_eq!(house.active_requests(), 0);
}

#[tokio::test]
async fn an_empty_body_is_routed_and_holds_nothing() {
    let house = House::open().await;
    let mut exchange = house.exchange().await;
    exchange.post(CHAT).await;
    exchange.request_body(b"", true).await;
    let upstream = exchange.upstream().await;
    assert!(is_ready(&upstream.routed.destination()));
    assert_eq!((upstream.bytes().len(), upstream.ends()), (0, vec![true]));
    assert_eq!(house.active_requests(), 0);
}

#[tokio::test]
async fn an_ipv6_endpoint_is_named_in_brackets() {
    let mut plan = Plan::plain();
    plan.workers = vec![worker(6, "[fd00::12]:8000")];
    let house = plan.open().await;
    let routed = house.exchange().await.chat().await.routed;
    assert_eq!(routed.destination(), "[fd00::12]:8000");
}

#[tokio::test]
async fn without_a_tokenizer_requests_are_routed_by_load_and_counted() {
    let house = House::open().await;
    let routed = house.exchange().await.chat().await.routed;
    assert!(is_ready(&routed.destination()));
    let counted = r#"pointsman_tokenize_degraded_total{reason="no_tokenizer"} 1"#;
    assert!(house.metrics().contains(counted), "{}", house.metrics());
}

#[tokio::test]
async fn a_tokenizer_that_is_late_costs_a_request_its_tokens_only() {
    let config = TokenizeConfig {
        offload_after: Duration::ZERO,
        deadline: Duration::ZERO,
        ..TokenizeConfig::default()
    };
    let house = Plan::with_tokenizer(config).open().await;
    let text = "The quick brown fox. ".repeat(200_000);
    let body = format!(r#"{{"model":"m","prompt":"{text}"}}"#);
    let mut exchange = house.exchange().await;
    exchange.post("/v1/completions").await;
    exchange.request_body(body.as_bytes(), true).await;
    assert!(is_ready(&exchange.routed().await.destination()));
    let counted = r#"pointsman_tokenize_degraded_total{reason="deadline"} 1"#;
    assert!(house.metrics().contains(counted), "{}", house.metrics());
}

#[tokio::test]
async fn two_requests_of_one_id_are_two_requests() {
    let house = House::open().await;
    let mut first = house.exchange().await;
    let mut second = house.exchange().await;
    first.chat().await;
    second.chat().await;
    assert_eq!(house.active_requests(), 2);
    second.complete().await;
    assert_eq!(house.active_requests(), 1);
}

#[test]
fn the_paths_used_here_are_understood() {
    let head = |path| pointsman::request::Head::new([(":method", "POST"), (":path", path)]);
    assert_eq!(head(CHAT).endpoint(), Endpoint::ChatCompletions);
    assert_eq!(head("/v1/completions").endpoint(), Endpoint::Completions);
}
