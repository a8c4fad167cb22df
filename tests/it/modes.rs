//! How filters may announce themselves.

use tonic::Code;

use crate::{
    client::{CHAT, Exchange, HELLO, Reply},
    house::House,
};

const FULL_DUPLEX: i32 = 4;
const BUFFERED: i32 = 2;

#[tokio::test]
async fn a_filter_that_waits_for_the_headers_answer_is_served() {
    let house = House::open().await;
    let mut exchange = house.exchange().await;
    exchange.announce(FULL_DUPLEX, FULL_DUPLEX, false);
    exchange.chat().await;
}

#[tokio::test]
async fn a_filter_that_announces_nothing_is_served() {
    let house = House::open().await;
    let mut exchange = Exchange::open_without_modes(house.channel.clone())
        .await
        .unwrap();
    exchange.chat().await;
}

#[tokio::test]
async fn a_filter_that_hides_response_bodies_is_served() {
    let house = House::open().await;
    let mut exchange = house.exchange().await;
    exchange.announce(FULL_DUPLEX, 0, true);
    exchange.chat().await;
    exchange.response(&[(":status", "200")], false).await;
    assert!(matches!(exchange.reply().await, Reply::ResponseHeaders(_)));
}

#[tokio::test]
async fn a_buffering_filter_is_turned_away_at_its_first_message() {
    let house = House::open().await;
    let mut exchange = house.exchange().await;
    exchange.announce(BUFFERED, 0, false);
    exchange.post(CHAT).await;
    assert_eq!(exchange.ended().await, Code::FailedPrecondition);
    assert_eq!(house.witness.bodies().len(), 0);
}

#[tokio::test]
async fn one_message_of_six_megabytes_is_taken() {
    let house = House::open().await;
    let mut exchange = house.exchange().await;
    let text = "x".repeat(6 << 20);
    let body = format!(r#"{{"model":"m","prompt":"{text}"}}"#);
    exchange.post("/v1/completions").await;
    exchange.request_body(body.as_bytes(), true).await;
    let upstream = exchange.upstream().await;
    assert!(upstream.bytes() == body.as_bytes());
}

#[tokio::test]
async fn headers_alone_are_not_answered_before_the_body() {
    let house = House::open().await;
    let mut exchange = house.exchange().await;
    exchange.post(CHAT).await;
    exchange.request_body(HELLO.as_bytes(), false).await;
    exchange.request_body(b"", true).await;
    let upstream = exchange.upstream().await;
    assert_eq!(upstream.ends(), [true]);
}
