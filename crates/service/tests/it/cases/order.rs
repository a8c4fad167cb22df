//! The order of batches: gaps, replays, duplicates and what comes late.

use std::time::Duration;

use super::*;
use crate::pack::{ARRAYS, removed, stored};
use crate::rig::{tokens, worker};

fn one(name: u64, parent: Option<u64>, tokens: &[u32]) -> Bytes {
    batch(Some(0), vec![ARRAYS.store(stored(&[name], parent, tokens))])
}

/// A block that nobody asks for.
fn unrelated(number: u64) -> Bytes {
    let from = 10_000 + 4 * u32::try_from(number).unwrap();
    one(5_000 + number, None, &tokens(from..from + 4))
}

const ANSWERS: [Answer; 2] = [Answer::Bare, Answer::WithTopic];

#[tokio::test]
async fn a_gap_is_asked_for_from_its_first_number_and_applied_once() {
    for answer in ANSWERS {
        let mut stage = Stage::replaying(answer).await;
        let prompt = tokens(1..13);
        stage.tell_bytes(one(101, None, &prompt[..4])).await;
        stage.engine.lose(one(102, Some(101), &prompt[4..8]));
        stage.engine.lose(one(103, Some(102), &prompt[8..]));
        stage.tell_bytes(unrelated(3)).await;
        assert_eq!(stage.gpu(&prompt).await, 12);
        assert_eq!(stage.engine.questions(), [1]);
        stage.tell_bytes(unrelated(4)).await;
        let applied = stage.rig.service.events_applied(1, 0).unwrap();
        assert_eq!(applied.batches, 5, "each once");
        stage.end().await;
    }
}

#[tokio::test]
async fn what_was_published_before_the_registration_is_read() {
    for answer in ANSWERS {
        let rig = Rig::new().await;
        let mut engine = Engine::start(answer).await;
        let prompt = tokens(1..13);
        engine.lose(one(101, None, &prompt[..4]));
        engine.lose(one(102, Some(101), &prompt[4..8]));
        engine.lose(one(103, Some(102), &prompt[8..]));
        let registration = worker_of(1, &engine, Replays::Known);
        rig.service.register_worker(registration).unwrap();
        engine.subscribed().await;
        engine.publish(unrelated(3)).await;
        rig.until_applied(1, 0, 3).await;
        assert_eq!(tokens_found(&rig, 1, 0, &asking(&prompt)).await[0], 12);
        assert_eq!(engine.questions(), [0]);
        rig.service.shutdown().await;
    }
}

#[tokio::test]
async fn a_replay_of_many_messages_is_read_to_its_end_and_another_may_follow() {
    let mut stage = Stage::replaying(Answer::Bare).await;
    let prompt = tokens(1..17);
    stage.tell_bytes(one(101, None, &prompt[..4])).await;
    for number in 1..50 {
        stage.engine.lose(unrelated(number));
    }
    stage.engine.lose(one(102, Some(101), &prompt[4..8]));
    stage.tell_bytes(one(103, Some(102), &prompt[8..12])).await;
    assert_eq!(stage.gpu(&prompt).await, 12);
    assert_eq!(
        stage.rig.metric("kv_event_bad_batches_total"),
        0,
        "the end is no batch"
    );
    stage.engine.lose(unrelated(52));
    stage.tell_bytes(one(104, Some(103), &prompt[12..])).await;
    assert_eq!(stage.gpu(&prompt).await, 16);
    assert_eq!(stage.engine.questions(), [1, 52]);
    stage.end().await;
}

#[tokio::test]
async fn a_replay_endpoint_where_nobody_listens_stops_nothing() {
    let config = EventsConfig {
        suspect_time: Duration::from_mins(10),
        ..impatient()
    };
    let rig = Rig::with_events(config).await;
    let mut engine = Engine::start(Answer::Never).await;
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut registration = worker(1);
    registration.kv_events_endpoint = Some(engine.publisher_at.clone());
    registration.replay_endpoint = Some(format!("tcp://{}", nobody.local_addr().unwrap()));
    drop(nobody);
    rig.service.register_worker(registration).unwrap();
    engine.subscribed().await;
    engine.send(0, one(101, None, &tokens(1..5))).await;
    rig.until_applied(1, 0, 0).await;
    engine.send(5, one(102, Some(101), &tokens(5..9))).await;
    rig.until_applied(1, 0, 5).await;
    assert_eq!(tokens_found(&rig, 1, 0, &asking(&tokens(1..9))).await[0], 8);
    rig.service.shutdown().await;
}

#[tokio::test]
async fn what_the_engine_no_longer_has_is_forgotten_and_the_rest_rebuilt() {
    let mut stage = Stage::replaying(Answer::Bare).await;
    let (old, new) = (tokens(1..5), tokens(21..29));
    stage.tell_bytes(one(101, None, &old)).await;
    stage
        .engine
        .lose(batch(Some(0), vec![ARRAYS.remove(removed(&[101]))]));
    stage.engine.lose(one(201, None, &new[..4]));
    stage.engine.forget_below(2);
    stage.tell_bytes(one(202, Some(201), &new[4..])).await;
    assert_eq!(stage.gpu(&old).await, 0);
    assert_eq!(stage.gpu(&new).await, 8);
    assert_eq!(stage.rig.metric("kv_rank_clears_total{cause=\"lost\"}"), 1);
    stage.end().await;
}

#[tokio::test]
async fn a_removal_that_waits_behind_a_replay_is_not_undone_by_it() {
    let mut stage = Stage::replaying(Answer::Bare).await;
    let prompt = tokens(1..5);
    stage.tell_bytes(unrelated(0)).await;
    stage.engine.lose(one(101, None, &prompt));
    stage
        .tell_bytes(batch(Some(0), vec![ARRAYS.remove(removed(&[101]))]))
        .await;
    assert_eq!(stage.gpu(&prompt).await, 0);
    stage.end().await;
}

#[tokio::test]
async fn a_batch_that_comes_late_or_again_changes_nothing() {
    let mut stage = Stage::replaying(Answer::Bare).await;
    let prompt = tokens(1..9);
    stage.tell_bytes(one(101, None, &prompt[..4])).await;
    let late = one(102, Some(101), &prompt[4..]);
    let number = stage.engine.lose(late.clone());
    stage
        .tell_bytes(batch(Some(0), vec![ARRAYS.remove(removed(&[102]))]))
        .await;
    assert_eq!(stage.gpu(&prompt).await, 4);
    stage.engine.send(number, late).await;
    stage.tell_bytes(unrelated(3)).await;
    assert_eq!(stage.gpu(&prompt).await, 4);
    assert!(stage.rig.metric("kv_event_duplicates_total") >= 1);
    stage.end().await;
}

#[tokio::test]
async fn a_broken_batch_in_a_replay_is_not_asked_for_again() {
    let mut stage = Stage::replaying(Answer::WithTopic).await;
    let prompt = tokens(1..9);
    stage.tell_bytes(one(101, None, &prompt[..4])).await;
    stage.engine.lose(Bytes::from_static(&[0xc1; 16]));
    stage.tell_bytes(one(102, Some(101), &prompt[4..])).await;
    stage.tell_bytes(unrelated(3)).await;
    assert_eq!(stage.gpu(&prompt).await, 8);
    assert_eq!(stage.engine.questions(), [1]);
    assert_eq!(stage.rig.metric("kv_event_bad_batches_total"), 1);
    stage.end().await;
}
