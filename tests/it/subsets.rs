//! Subset hints: a restriction that is never ignored.

use envoy_types::pb::google::protobuf::value::Kind;
use tonic::Code;

use crate::{
    client::{CHAT, HELLO, texts},
    house::{House, Plan, SECOND, worker},
};

/// Where a request with this hint goes, or the status of its refusal.
async fn sent_to(house: &House, hint: Kind) -> Result<String, i32> {
    let mut exchange = house.exchange().await;
    exchange.allow_only(hint);
    exchange.post(CHAT).await;
    exchange.request_body(HELLO.as_bytes(), true).await;
    match exchange.reply().await {
        crate::client::Reply::Routed(routed) => Ok(routed.destination()),
        crate::client::Reply::Refused(refused) => Err(refused.status),
        other => panic!("neither routed nor refused: {other:?}"),
    }
}

#[tokio::test]
async fn only_the_allowed_endpoint_is_picked() {
    let house = House::open().await;
    for _ in 0..20 {
        let endpoint = sent_to(&house, texts(&[SECOND])).await;
        assert_eq!(endpoint.as_deref(), Ok(SECOND));
    }
}

#[tokio::test]
async fn strings_lists_and_bare_addresses_are_understood() {
    let house = House::open().await;
    for hint in [
        Kind::StringValue(format!("10.0.0.9:1, {SECOND}")),
        texts(&["10.0.0.9:1", SECOND]),
        texts(&[&format!("10.0.0.9:1,{SECOND}")]),
        texts(&["10.0.0.2"]),
    ] {
        let endpoint = sent_to(&house, hint.clone()).await;
        assert_eq!(endpoint.as_deref(), Ok(SECOND), "{hint:?}");
    }
}

#[tokio::test]
async fn a_port_that_differs_is_another_endpoint() {
    let mut plan = Plan::plain();
    plan.workers = vec![worker(1, "10.0.0.1:8000"), worker(2, "10.0.0.1:8001")];
    let house = plan.open().await;
    for _ in 0..10 {
        let endpoint = sent_to(&house, texts(&["10.0.0.1:8001"])).await;
        assert_eq!(endpoint.as_deref(), Ok("10.0.0.1:8001"));
    }
}

#[tokio::test]
async fn a_hint_that_allows_nobody_is_refused() {
    let house = House::open().await;
    for hint in [
        texts(&[]),
        texts(&["10.0.0.9:1"]),
        Kind::StringValue(String::new()),
        Kind::NumberValue(1.0),
    ] {
        assert_eq!(sent_to(&house, hint.clone()).await, Err(503), "{hint:?}");
    }
}

#[tokio::test]
async fn requests_without_a_body_heed_the_hint() {
    let house = House::open().await;
    for _ in 0..10 {
        let mut exchange = house.exchange().await;
        exchange.allow_only(texts(&[SECOND]));
        exchange.get("/v1/models").await;
        assert_eq!(exchange.routed().await.destination(), SECOND);
    }
    let mut exchange = house.exchange().await;
    exchange.allow_only(texts(&[]));
    exchange.get("/v1/models").await;
    assert_eq!(exchange.refused().await.status, 503);
    assert_eq!(exchange.ended().await, Code::Ok);
}

#[tokio::test]
async fn a_hint_that_comes_with_the_body_counts() {
    let house = House::open().await;
    for _ in 0..10 {
        let mut exchange = house.exchange().await;
        exchange.post(CHAT).await;
        exchange.allow_only(texts(&[SECOND]));
        exchange.request_body(HELLO.as_bytes(), true).await;
        assert_eq!(exchange.routed().await.destination(), SECOND);
    }
}
