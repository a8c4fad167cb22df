//! Workers of several ranks: whose blocks they are is said by the batch, else by the socket.

use super::*;
use crate::pack::{ARRAYS, removed, stored};
use crate::rig::{tokens, worker};

/// A worker of two ranks, each with an engine of its own.
struct Pair {
    rig: Rig,
    engines: [Engine; 2],
}

impl Pair {
    async fn new(replays: Replays) -> Self {
        let rig = Rig::new().await;
        let answer = Answer::WithTopic;
        let mut engines = [Engine::start(answer).await, Engine::start(answer).await];
        let mut registration = worker(1);
        registration.data_parallel_size = Some(2);
        for (dp_rank, engine) in (0..).zip(&engines) {
            let published = engine.publisher_at.clone();
            registration.kv_events_endpoints.insert(dp_rank, published);
            if replays == Replays::Known {
                let replayed = engine.replay_at.clone();
                registration.replay_endpoints.insert(dp_rank, replayed);
            }
        }
        rig.service.register_worker(registration).unwrap();
        for engine in &mut engines {
            engine.subscribed().await;
        }
        Self { rig, engines }
    }

    /// Publishes on the socket of a rank, and waits until it is applied.
    async fn tell(&mut self, socket: u32, dp_rank: Option<u32>, events: Vec<V>) {
        let engine = &mut self.engines[socket as usize];
        let payload = batch(dp_rank, events);
        let sequence = engine.lose(payload.clone());
        engine.send(sequence, payload).await;
        self.rig.until_applied(1, socket, sequence).await;
    }

    async fn gpu(&self, dp_rank: u32, tokens: &[u32]) -> u64 {
        tokens_found(&self.rig, 1, dp_rank, &asking(tokens)).await[0]
    }
}

fn whole() -> Vec<V> {
    vec![ARRAYS.store(stored(&[101, 102, 103], None, &tokens(1..13)))]
}

#[tokio::test]
async fn the_rank_in_the_batch_wins_and_an_unknown_one_is_left_out() {
    let mut pair = Pair::new(Replays::Unknown).await;
    pair.tell(0, Some(1), whole()).await;
    pair.tell(0, Some(5), whole()).await;
    assert_eq!(pair.gpu(0, &tokens(1..13)).await, 0);
    assert_eq!(pair.gpu(1, &tokens(1..13)).await, 12);
    let of = partition();
    let asked = asking(&tokens(1..13));
    let scores = pair.rig.service.overlap_scores(&of, asked);
    let ranks: Vec<_> = scores
        .await
        .unwrap()
        .overlap
        .ranks
        .iter()
        .map(|rank| rank.worker.dp_rank)
        .collect();
    assert_eq!(ranks, [0, 1]);
    let chosen = pair
        .rig
        .service
        .select(&partition(), asking(&tokens(1..13)))
        .await;
    assert!(chosen.unwrap().selection.worker.dp_rank < 2);
    pair.rig.service.shutdown().await;
}

#[tokio::test]
async fn ranks_that_share_a_topic_are_told_apart_by_their_sockets() {
    let mut pair = Pair::new(Replays::Unknown).await;
    pair.tell(0, None, whole()).await;
    let first = ARRAYS.store(stored(&[101], None, &tokens(1..5)));
    pair.tell(1, None, vec![first]).await;
    assert_eq!(
        (
            pair.gpu(0, &tokens(1..13)).await,
            pair.gpu(1, &tokens(1..13)).await
        ),
        (12, 4)
    );
    pair.tell(0, None, vec![ARRAYS.remove(removed(&[101]))])
        .await;
    assert_eq!(
        (
            pair.gpu(0, &tokens(1..13)).await,
            pair.gpu(1, &tokens(1..13)).await
        ),
        (0, 4)
    );
    pair.rig.service.shutdown().await;
}

#[tokio::test]
async fn a_clear_is_of_the_rank_that_the_batch_is_for() {
    let mut pair = Pair::new(Replays::Unknown).await;
    pair.tell(0, None, whole()).await;
    pair.tell(0, Some(1), whole()).await;
    pair.tell(0, Some(1), vec![ARRAYS.clear()]).await;
    assert_eq!(
        (
            pair.gpu(0, &tokens(1..13)).await,
            pair.gpu(1, &tokens(1..13)).await
        ),
        (12, 0)
    );
    pair.rig.service.shutdown().await;
}

#[tokio::test]
async fn a_gap_of_a_socket_that_speaks_for_two_ranks_is_filled_for_both() {
    let mut pair = Pair::new(Replays::Known).await;
    pair.tell(0, Some(0), whole()).await;
    pair.tell(0, Some(1), whole()).await;
    let remove = || vec![ARRAYS.remove(removed(&[102]))];
    pair.engines[0].lose(batch(Some(0), remove()));
    pair.engines[0].lose(batch(Some(1), remove()));
    pair.tell(0, Some(0), vec![]).await;
    assert_eq!(pair.engines[0].questions(), [2]);
    assert_eq!(
        (
            pair.gpu(0, &tokens(1..13)).await,
            pair.gpu(1, &tokens(1..13)).await
        ),
        (4, 4)
    );
    pair.rig.service.shutdown().await;
}

#[tokio::test]
async fn a_replay_that_answers_for_another_publisher_is_sorted_out() {
    let mut pair = Pair::new(Replays::Known).await;
    pair.tell(0, Some(0), whole()).await;
    // The engine answers with both ranks' batches, which have the same numbers.
    let other = |from: u32| {
        batch(
            Some(1),
            vec![ARRAYS.store(stored(&[900], None, &tokens(from..from + 4)))],
        )
    };
    let own = |name: u64, parent, from: u32| {
        batch(
            Some(0),
            vec![ARRAYS.store(stored(&[name], parent, &tokens(from..from + 4)))],
        )
    };
    let engine = &mut pair.engines[0];
    engine.answer_also(1, other(50));
    engine.answer_also(2, other(60));
    engine.answer_also(3, other(70));
    engine.lose(own(104, Some(103), 13));
    pair.tell(0, Some(0), vec![]).await;
    assert_eq!(pair.gpu(0, &tokens(1..17)).await, 16);
    assert_eq!(pair.gpu(1, &tokens(50..54)).await, 0);
    let record = pair.rig.service.worker(1).unwrap();
    assert!(!record.kv_events[&0].suspect);
    let payload = own(105, Some(104), 17);
    let sequence = pair.engines[0].lose(payload.clone());
    assert_eq!(sequence, 3);
    pair.engines[0].send(sequence, payload).await;
    pair.rig.until_applied(1, 0, 3).await;
    assert_eq!(
        pair.gpu(0, &tokens(1..21)).await,
        20,
        "the numbers go on where its own ended"
    );
    let restarts = "kv_rank_clears_total{cause=\"restart\"}";
    assert_eq!(pair.rig.metric(restarts), 0);
    let skipped = "kv_events_skipped_total{reason=\"other_rank\"}";
    assert!(pair.rig.metric(skipped) >= 3);
    pair.rig.service.shutdown().await;
}
