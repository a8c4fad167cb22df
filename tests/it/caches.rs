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
