//! A picker that is told to stop.

use std::time::Duration;

use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{client::Exchange, house::House};

#[tokio::test]
async fn a_stopping_picker_says_so_serves_on_and_ends_when_all_is_answered() {
    let house = House::open().await;
    let mut first = house.exchange().await;
    first.chat().await;

    let drained = tokio::spawn(house.server.drain(Duration::from_mins(1)));
    let mut health = HealthClient::new(house.channel.clone());
    let mut status = ServingStatus::Serving;
    while status == ServingStatus::Serving {
        let answer = health.check(HealthCheckRequest::default()).await.unwrap();
        status = answer.get_ref().status();
    }
    assert_eq!(status, ServingStatus::NotServing);

    let mut second = Exchange::open(house.channel.clone()).await.unwrap();
    second.chat().await;
    second.complete().await;
    assert!(!drained.is_finished(), "the first is still open");
    first.complete().await;
    drained.await.unwrap();
}
