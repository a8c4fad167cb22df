//! Requests that are not routed: one answer, in JSON, and a clean end.

use bytes::Bytes;
use pointsman::{
    error::{PickError, Refusal},
    ext_proc::{Pick, Picked, SubsetHint},
    picker::Charge,
    request::Head,
};
use pointsman_core::SelectError;
use pointsman_service::SelectionServiceError;
use prometheus_client::registry::Registry;
use tonic::Code;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{
    client::{CHAT, Exchange, HELLO},
    house::{House, Plan, connect, serve, worker},
};

const MODEL_FIELD: &str = r#""model":"m""#;

/// Refuses everybody for one cause.
struct Refusing(fn() -> SelectError);

impl Pick for Refusing {
    type Held = Charge;

    async fn pick(&self, _: Head, _: Bytes, _: SubsetHint) -> Result<Picked<Charge>, Refusal> {
        let error = SelectionServiceError::from(self.0());
        Err(PickError::from(error).refusal())
    }
}

async fn refused_for(cause: fn() -> SelectError) -> (i32, Option<String>) {
    let house = House::open().await;
    let server = serve(Refusing(cause), &house.service, &mut Registry::default());
    let mut exchange = Exchange::open(connect(&server).await).await.unwrap();
    exchange.post(CHAT).await;
    exchange.request_body(HELLO.as_bytes(), true).await;
    let refused = exchange.refused().await;
    let retry_after = refused.header("retry-after").map(str::to_owned);
    (refused.status, retry_after)
}

#[tokio::test]
async fn broken_json_is_answered_400_before_any_body() {
    let house = House::open().await;
    let mut exchange = house.exchange().await;
    exchange.post(CHAT).await;
    exchange.request_body(br#"{"model":"#, true).await;
    let refused = exchange.refused().await;
    assert_eq!((refused.status, refused.code()), (400, "invalid_request"));
    assert_eq!(refused.header("content-type"), Some("application/json"));
    assert_eq!(exchange.ended().await, Code::Ok);
}

#[tokio::test]
async fn no_ready_worker_is_answered_503() {
    let house = Plan::without_workers().open().await;
    let mut exchange = house.exchange().await;
    exchange.post(CHAT).await;
    exchange.request_body(HELLO.as_bytes(), true).await;
    let refused = exchange.refused().await;
    assert_eq!((refused.status, refused.code()), (503, "no_endpoint"));
    assert_eq!(exchange.ended().await, Code::Ok);
}

#[tokio::test]
async fn no_ready_worker_is_answered_503_without_a_body_too() {
    let house = Plan::without_workers().open().await;
    let mut exchange = house.exchange().await;
    let forged = ("x-gateway-destination-endpoint", "203.0.113.9:8000");
    exchange
        .request(&[(":method", "GET"), (":path", "/v1/models"), forged], true)
        .await;
    assert_eq!(exchange.refused().await.status, 503);
}

#[tokio::test]
async fn an_empty_pool_is_healthy() {
    let house = Plan::without_workers().open().await;
    let request = HealthCheckRequest {
        service: "envoy.service.ext_proc.v3.ExternalProcessor".to_owned(),
    };
    let mut client = HealthClient::new(house.channel.clone());
    let status = client.check(request).await.unwrap().get_ref().status();
    assert_eq!(status, ServingStatus::Serving);
}

#[tokio::test]
async fn an_unknown_model_among_several_is_answered_404() {
    let mut other = worker(2, "10.0.0.2:8000");
    other.model_name = "other".to_owned();
    let mut plan = Plan::plain();
    plan.workers = vec![worker(1, "10.0.0.1:8000"), other];
    let house = plan.open().await;
    let mut exchange = house.exchange().await;
    exchange.post(CHAT).await;
    exchange
        .request_body(
            HELLO
                .replace(MODEL_FIELD, r#""model":"neither""#)
                .as_bytes(),
            true,
        )
        .await;
    let refused = exchange.refused().await;
    assert_eq!((refused.status, refused.code()), (404, "model_not_found"));
    assert_eq!(refused.body["error"]["param"], "model");
}

#[tokio::test]
async fn overload_is_answered_429_with_retry_after() {
    let (status, retry_after) = refused_for(|| SelectError::AllOverloaded).await;
    assert_eq!((status, retry_after.as_deref()), (429, Some("1")));
}

#[tokio::test]
async fn an_inner_fault_is_never_the_clients() {
    let (status, _) = refused_for(|| SelectError::PolicyPanicked).await;
    assert_eq!(status, 500);
}

#[tokio::test]
async fn an_announced_body_over_the_cap_is_answered_413_at_once() {
    let house = House::open().await;
    let mut exchange = house.exchange().await;
    let length = ("content-length", "33554433");
    exchange
        .request(&[(":method", "POST"), (":path", CHAT), length], false)
        .await;
    assert_eq!(exchange.refused().await.status, 413);
    assert_eq!(exchange.ended().await, Code::Ok);
}

#[tokio::test]
async fn a_message_too_large_to_take_is_answered_413() {
    let house = House::open().await;
    let mut exchange = house.exchange().await;
    exchange.post(CHAT).await;
    exchange.request_body(&vec![b' '; 65 << 20], true).await;
    assert_eq!(exchange.refused().await.status, 413);
    assert_eq!(exchange.ended().await, Code::Ok);
}

#[tokio::test]
async fn a_body_that_grows_over_the_cap_is_answered_413() {
    let house = House::open().await;
    let mut exchange = house.exchange().await;
    exchange.post(CHAT).await;
    for _ in 0..3 {
        exchange.request_body(&vec![b' '; 11 << 20], false).await;
    }
    assert_eq!(exchange.refused().await.status, 413);
    assert_eq!(exchange.ended().await, Code::Ok);
}
