//! The response phase: bytes pass at once and unchanged, and the load follows them.

use crate::{
    client::{Exchange, Reply},
    house::{FIRST, House, Plan, SECOND},
};

const SSE: [(&str, &str); 2] = [(":status", "200"), ("content-type", "text/event-stream")];

/// A routed chat whose response is an event stream, its headers answered.
async fn streaming(house: &House) -> Exchange {
    let mut exchange = house.exchange().await;
    exchange.chat().await;
    exchange.response(&SSE, false).await;
    assert!(matches!(exchange.reply().await, Reply::ResponseHeaders(_)));
    exchange
}

fn token(text: &str) -> Vec<u8> {
    format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n").into_bytes()
}

#[tokio::test]
async fn a_client_that_goes_after_the_pick_frees_the_load() {
    let house = House::open().await;
    let mut exchange = house.exchange().await;
    exchange.chat().await;
    assert_eq!(house.active_requests(), 1);
    drop(exchange);
    house.freed().await;
}

#[tokio::test]
async fn a_client_that_goes_during_the_response_frees_the_load() {
    let house = House::open().await;
    let mut exchange = streaming(&house).await;
    exchange.response_body(&token("a"), false).await;
    exchange.response_piece().await;
    assert_eq!(house.active_requests(), 1);
    drop(exchange);
    house.freed().await;
}

#[tokio::test]
async fn headers_that_end_the_response_free_the_load() {
    let house = House::open().await;
    for status in ["204", "304", "503"] {
        let mut exchange = house.exchange().await;
        exchange.chat().await;
        exchange.response(&[(":status", status)], true).await;
        assert!(matches!(exchange.reply().await, Reply::ResponseHeaders(_)));
        assert_eq!(house.active_requests(), 0, "{status}");
    }
}

#[tokio::test]
async fn trailers_end_the_response() {
    let house = House::open().await;
    let mut exchange = streaming(&house).await;
    exchange.response_trailers().await;
    assert!(matches!(exchange.reply().await, Reply::ResponseTrailers));
    assert_eq!(house.active_requests(), 0);
}

#[tokio::test]
async fn the_first_bytes_end_the_prefill() {
    let house = House::open().await;
    let mut exchange = streaming(&house).await;
    assert!(house.prefill_tokens() > 0);
    exchange.response_body(b"", false).await;
    exchange.response_piece().await;
    assert!(house.prefill_tokens() > 0, "nothing came yet");
    exchange.response_body(&token("a"), false).await;
    exchange.response_piece().await;
    assert_eq!((house.prefill_tokens(), house.active_requests()), (0, 1));
    exchange.response_body(&token("b"), false).await;
    exchange.response_piece().await;
    exchange.response_body(b"data: [DONE]\n\n", true).await;
    exchange.response_piece().await;
    assert_eq!(house.active_requests(), 0);
}

#[tokio::test]
async fn a_block_of_output_is_charged_when_it_is_full() {
    let house = House::open().await;
    let mut exchange = streaming(&house).await;
    let mut charged = Vec::new();
    for _ in 0..9 {
        charged.push(house.decode_blocks());
        exchange.response_body(&token("a"), false).await;
        exchange.response_piece().await;
    }
    let (start, grown) = (charged[0], house.decode_blocks());
    assert_eq!(charged[3], start, "three tokens of four");
    assert_eq!(charged[4], start + 1);
    assert_eq!(grown, start + 2);
}

#[tokio::test]
async fn pieces_pass_one_by_one_and_unchanged() {
    let house = House::open().await;
    let mut exchange = streaming(&house).await;
    for (text, end) in [("a", false), ("b", false), ("c", true)] {
        exchange.response_body(&token(text), end).await;
        let piece = exchange.response_piece().await;
        assert_eq!((piece.bytes, piece.end), (token(text), end));
    }
}

#[tokio::test]
async fn usage_split_between_pieces_is_seen_and_passes_unchanged() {
    let house = House::open().await;
    let event = concat!(
        r#"data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"#,
        r#""prompt_tokens_details":{"cached_tokens":4}}}"#,
        "\n\ndata: [DONE]\n\n"
    );
    for split in 1..event.len() {
        let mut exchange = streaming(&house).await;
        let (first, last) = event.as_bytes().split_at(split);
        exchange.response_body(first, false).await;
        let mut passed = exchange.response_piece().await.bytes;
        exchange.response_body(last, true).await;
        passed.extend(exchange.response_piece().await.bytes);
        assert_eq!(passed, event.as_bytes(), "split at {split}");
    }
    let reported = 4 * (event.len() - 1);
    let counted = format!("pointsman_reported_cached_tokens_total {reported}");
    assert!(house.metrics().contains(&counted), "{}", house.metrics());
}

#[tokio::test]
async fn response_headers_are_left_alone() {
    let house = House::open().await;
    let mut exchange = house.exchange().await;
    exchange.chat().await;
    let fields = [SSE[0], SSE[1], ("transfer-encoding", "chunked")];
    exchange.response(&fields, false).await;
    let Reply::ResponseHeaders(mutation) = exchange.reply().await else {
        panic!("no answer to the headers");
    };
    assert_eq!(mutation, None);
}

#[tokio::test]
async fn the_prediction_is_on_the_response_where_it_is_wanted() {
    let mut plan = Plan::plain();
    plan.picker.debug_headers = true;
    let house = plan.open().await;
    let mut exchange = house.exchange().await;
    exchange.chat().await;
    exchange.response(&SSE, false).await;
    let Reply::ResponseHeaders(Some(mutation)) = exchange.reply().await else {
        panic!("no header was added");
    };
    let header = mutation.set_headers[0].header.clone().unwrap();
    assert_eq!(header.key, "x-pointsman-predicted-cached-tokens");
    assert_eq!(header.raw_value, b"0");
}

#[tokio::test]
async fn the_worker_that_served_is_charged() {
    let house = House::open().await;
    let mut exchange = house.exchange().await;
    let picked = exchange.chat().await.routed.destination();
    let (served, worker) = if picked == FIRST {
        (SECOND, 2)
    } else {
        (FIRST, 1)
    };
    exchange.response_from(served).await;
    exchange.reply().await;
    assert_eq!(
        (house.charged_worker(), house.active_requests()),
        (worker, 1)
    );
    assert!(
        house
            .metrics()
            .contains("pointsman_endpoint_mismatches_total 1")
    );
}

#[tokio::test]
async fn the_worker_that_was_picked_and_served_stays_charged() {
    let house = House::open().await;
    let mut exchange = house.exchange().await;
    let picked = exchange.chat().await.routed.destination();
    exchange.response_from(&picked).await;
    exchange.reply().await;
    assert!(
        house
            .metrics()
            .contains("pointsman_endpoint_mismatches_total 0")
    );
}
