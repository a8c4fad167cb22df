//! What is known of the workers' caches, from one request to the next.

use crate::{
    client::Exchange,
    house::{House, Plan},
};

/// A prompt of four blocks of four tokens.
const TOKENS: &str = r#"{"model":"m","prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}"#;

/// A completion that was routed.
async fn completion(house: &House) -> (Exchange, String) {
    let mut exchange = house.exchange().await;
    exchange.post("/v1/completions").await;
    exchange.request_body(TOKENS.as_bytes(), true).await;
    let destination = exchange.upstream().await.routed.destination();
    (exchange, destination)
}

async fn predicted(house: &House) -> u64 {
    let request = pointsman_core::SelectionRequest {
        prompt: pointsman_core::Prompt::Tokens {
            ids: (1..=16).collect(),
            media: Vec::new(),
        },
        ..pointsman_core::SelectionRequest::default()
    };
    let partition = pointsman_core::PartitionId::new("m", "default");
    let scores = house.service.overlap_scores(&partition, request).await;
    let ranks = scores.unwrap().overlap.ranks;
    ranks.iter().map(|rank| rank.device_blocks).sum()
}

#[tokio::test]
async fn without_events_a_prompt_returns_to_where_it_went() {
    let mut plan = Plan::plain();
    plan.router.use_kv_events = false;
    let house = plan.open().await;
    let (exchange, first) = completion(&house).await;
    assert_eq!(predicted(&house).await, 4);
    drop(exchange);
    house.freed().await;
    for _ in 0..8 {
        let (exchange, again) = completion(&house).await;
        assert_eq!(again, first);
        drop(exchange);
        house.freed().await;
    }
}

/// A worker that serves the completion and counts its prompt and what of it was cached.
async fn served(house: &House, served_by: &str, prompt_tokens: u64, cached_tokens: u64) {
    let (mut exchange, picked) = completion(house).await;
    let address = if served_by.is_empty() {
        &picked
    } else {
        served_by
    };
    exchange.response_from(address).await;
    exchange.reply().await;
    let usage = serde_json::json!({"usage": {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }});
    exchange
        .response_body(usage.to_string().as_bytes(), true)
        .await;
    exchange.response_piece().await;
    drop(exchange);
    house.freed().await;
}

/// Agreed, over- and under-predicted, of all workers.
fn audited(house: &House) -> [u64; 3] {
    let mut sums = [0; 3];
    for record in house.service.workers() {
        for rank in record.cache_audit.values() {
            sums[0] += rank.agreed;
            sums[1] += rank.over_predicted;
            sums[2] += rank.under_predicted;
        }
    }
    sums
}

#[tokio::test]
async fn what_a_response_says_was_cached_is_compared_with_the_prediction() {
    let house = House::open().await;
    served(&house, "", 16, 0).await;
    assert_eq!(audited(&house), [1, 0, 0]);
    served(&house, "", 16, 12).await;
    assert_eq!(audited(&house), [1, 0, 1]);
}

#[tokio::test]
async fn a_prompt_that_the_engine_counts_otherwise_is_not_compared() {
    let house = House::open().await;
    served(&house, "", 17, 12).await;
    assert_eq!(audited(&house), [0, 0, 0]);
}

#[tokio::test]
async fn a_response_of_another_worker_is_not_compared() {
    let house = House::open().await;
    served(&house, "10.0.0.9:8000", 16, 12).await;
    assert_eq!(audited(&house), [0, 0, 0]);
}
