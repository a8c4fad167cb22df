//! Many at once: exchanges, models, and clients that go away at any moment.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use rand::{Rng, SeedableRng, rngs::SmallRng};

use crate::{
    client::{CHAT, Exchange, HELLO},
    house::{FIRST, House, SECOND, worker},
};

#[tokio::test]
async fn three_hundred_exchanges_share_a_connection_while_workers_come_and_go() {
    let house = House::open().await;
    let one = |index: usize| {
        let channel = house.channel.clone();
        tokio::spawn(async move {
            let mut exchange = Exchange::open(channel).await.unwrap();
            exchange.post("/v1/completions").await;
            let body = format!(r#"{{"model":"m","prompt":"p-{index}"}}"#);
            exchange.request_body(body.as_bytes(), true).await;
            exchange.upstream().await;
            exchange.complete().await;
        })
    };
    let exchanges: Vec<_> = (0..300).map(one).collect();
    for round in 0..50_u64 {
        let other = worker(3 + round % 2, "10.0.0.3:8000");
        let workers = vec![worker(1, FIRST), worker(2, SECOND), other];
        house.service.replace_workers(workers).unwrap();
        tokio::task::yield_now().await;
    }
    for exchange in exchanges {
        exchange.await.unwrap();
    }
    assert_eq!(house.active_requests(), 0);
}

#[tokio::test]
async fn models_that_clients_make_up_add_no_series() {
    let house = House::open().await;
    house.exchange().await.chat().await;
    let before = house.metrics().lines().count();
    for index in 0..2_000 {
        let mut exchange = house.exchange().await;
        exchange.post("/v1/completions").await;
        let body = format!(r#"{{"model":"m-{index}","prompt":"x"}}"#);
        exchange.request_body(body.as_bytes(), true).await;
        exchange.upstream().await;
    }
    let grown = house.metrics().lines().count() - before;
    assert!(grown < 10, "{grown} more");
}

const STEPS: usize = 7;

/// The stream is dropped after a random message, read up to there or not.
async fn walk(mut exchange: Exchange, mut rng: SmallRng) {
    let last = rng.random_range(0..=STEPS);
    for number in 0..last {
        step(&mut exchange, number).await;
        if rng.random_bool(0.3) {
            tokio::task::yield_now().await;
        }
        if rng.random_bool(0.3) && number == 2 {
            exchange.upstream().await;
        }
    }
}

async fn step(exchange: &mut Exchange, number: usize) {
    let (first, last) = HELLO.as_bytes().split_at(9);
    match number {
        0 => exchange.post(CHAT).await,
        1 => exchange.request_body(first, false).await,
        2 => exchange.request_body(last, true).await,
        3 => exchange.response(&[(":status", "200")], false).await,
        4 => exchange.response_body(b"data: {}\n\n", false).await,
        5 => exchange.response_body(b"data: [DONE]\n\n", false).await,
        _ => exchange.response_body(b"", true).await,
    }
}

#[tokio::test]
async fn ten_thousand_exchanges_dropped_anywhere_leave_nothing_charged() {
    let seed = RandomState::new().build_hasher().finish();
    println!("seed {seed}");
    let house = House::open().await;
    let mut rng = SmallRng::seed_from_u64(seed);
    for _ in 0..100 {
        let crowd: Vec<_> = (0..100)
            .map(|_| {
                let (channel, rng) = (house.channel.clone(), SmallRng::from_rng(&mut rng));
                tokio::spawn(async move {
                    walk(Exchange::open(channel).await.unwrap(), rng).await;
                })
            })
            .collect();
        for exchange in crowd {
            exchange.await.unwrap();
        }
    }
    house.freed().await;
    let in_flight = house.server.in_flight().clone();
    crate::house::eventually("no exchange is in flight", || in_flight.count() == 0).await;
    assert_eq!((house.prefill_tokens(), house.decode_blocks()), (0, 0));
}
