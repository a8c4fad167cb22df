//! KV events over real sockets: what an engine publishes is what a selection sees.

use std::time::Duration;

use bytes::Bytes;
use pointsman_service::EventsConfig;

use crate::engine::{Answer, Engine, remove, store, store_of_rank};
use crate::rig::{Replays, Rig, tokens, worker, worker_of};

/// A registered worker 1 and its engine, connected.
async fn connected(rig: &Rig, answer: Answer, replays: Replays) -> Engine {
    let mut engine = Engine::start(answer).await;
    rig.service
        .register_worker(worker_of(1, &engine, replays))
        .unwrap();
    engine.subscribed().await;
    engine
}

/// Waits short enough for a test, everything else as shipped.
fn impatient() -> EventsConfig {
    EventsConfig {
        replay_answer_timeout: Duration::from_millis(50),
        replay_retry_min: Duration::from_millis(50),
        replay_retry_max: Duration::from_millis(50),
        suspect_time: Duration::from_millis(300),
        reconnect_min: Duration::from_millis(10),
        ..EventsConfig::default()
    }
}

#[tokio::test]
async fn stored_blocks_appear_and_removed_ones_go() {
    let rig = Rig::new().await;
    let mut engine = connected(&rig, Answer::Never, Replays::Unknown).await;
    let prompt = tokens(1..13);
    engine.publish(store(&[101, 102, 103], None, &prompt)).await;
    rig.until_overlap(1, &prompt, 3).await;
    engine.publish(remove(&[103])).await;
    rig.until_overlap(1, &prompt, 2).await;
    let record = rig.service.worker(1).unwrap();
    let events = &record.kv_events[&0];
    assert!(events.connected);
    assert_eq!((events.last_sequence, events.applied_batches), (Some(1), 2));
    assert_eq!(rig.metric("kv_event_subscribers_connected"), 1);
    rig.service.shutdown().await;
}

async fn a_gap_is_filled(answer: Answer) {
    let rig = Rig::new().await;
    let mut engine = connected(&rig, answer, Replays::Known).await;
    let prompt = tokens(1..17);
    engine.publish(store(&[101], None, &prompt[..4])).await;
    rig.until_applied(1, 0, 0).await;
    engine.lose(store(&[102], Some(101), &prompt[4..8]));
    engine.lose(store(&[103], Some(102), &prompt[8..12]));
    engine
        .publish(store(&[104], Some(103), &prompt[12..]))
        .await;
    rig.until_overlap(1, &prompt, 4).await;
    assert_eq!(engine.questions(), [1]);
    assert_eq!(rig.metric("kv_event_gaps_total"), 1);
    assert_eq!(
        rig.metric("kv_event_replays_total{outcome=\"complete\"}"),
        1
    );
    // A second gap asks again.
    engine.lose(remove(&[104]));
    engine.publish(store(&[201], None, &tokens(50..54))).await;
    rig.until_overlap(1, &prompt, 3).await;
    assert_eq!(engine.questions(), [1, 4]);
    rig.service.shutdown().await;
}

#[tokio::test]
async fn a_gap_is_filled_by_a_replay() {
    a_gap_is_filled(Answer::Bare).await;
}

#[tokio::test]
async fn a_gap_is_filled_by_a_replay_with_topics() {
    a_gap_is_filled(Answer::WithTopic).await;
}

#[tokio::test]
async fn history_from_before_the_registration_is_read() {
    let rig = Rig::new().await;
    let mut engine = Engine::start(Answer::WithTopic).await;
    let prompt = tokens(1..13);
    engine.lose(store(&[101], None, &prompt[..4]));
    engine.lose(store(&[102], Some(101), &prompt[4..8]));
    rig.service
        .register_worker(worker_of(1, &engine, Replays::Known))
        .unwrap();
    engine.subscribed().await;
    engine.publish(store(&[103], Some(102), &prompt[8..])).await;
    rig.until_overlap(1, &prompt, 3).await;
    rig.service.shutdown().await;
}

#[tokio::test]
async fn a_gap_without_replays_makes_blocks_suspect_until_they_are_named_again() {
    let rig = Rig::with_events(impatient()).await;
    let mut engine = connected(&rig, Answer::Never, Replays::Unknown).await;
    let prompt = tokens(1..13);
    engine.publish(store(&[101, 102], None, &prompt[..8])).await;
    engine.publish(store(&[301], None, &tokens(60..64))).await;
    rig.until_overlap(1, &tokens(60..64), 1).await;
    engine.lose(remove(&[301]));
    engine.publish(store(&[103], Some(101), &prompt[8..])).await;
    rig.until_applied(1, 0, 3).await;
    assert_eq!(rig.metric("kv_rank_doubts_total"), 1);
    rig.until_overlap(1, &tokens(60..64), 0).await;
    assert_eq!(
        rig.overlap(1, 0, &prompt).await,
        1,
        "the parent of a new block is there"
    );
    rig.until(|rig| !rig.service.worker(1).unwrap().kv_events[&0].suspect)
        .await;
    rig.service.shutdown().await;
}

#[tokio::test]
async fn suspect_blocks_count_while_their_time_is_not_up() {
    let rig = Rig::new().await;
    let mut engine = connected(&rig, Answer::Never, Replays::Unknown).await;
    engine.publish(store(&[101], None, &tokens(1..5))).await;
    rig.until_applied(1, 0, 0).await;
    engine.lose(remove(&[7]));
    engine.publish(store(&[201], None, &tokens(50..54))).await;
    rig.until_applied(1, 0, 2).await;
    assert_eq!(rig.overlap(1, 0, &tokens(1..5)).await, 1);
    assert!(rig.service.worker(1).unwrap().kv_events[&0].suspect);
    rig.service.shutdown().await;
}

#[tokio::test]
async fn a_replay_that_never_comes_does_not_stop_the_stream() {
    let config = EventsConfig {
        suspect_time: Duration::from_mins(10),
        ..impatient()
    };
    let rig = Rig::with_events(config).await;
    let mut engine = connected(&rig, Answer::Never, Replays::Known).await;
    let prompt = tokens(1..9);
    engine.publish(store(&[101], None, &prompt[..4])).await;
    rig.until_applied(1, 0, 0).await;
    engine.lose(remove(&[7]));
    engine.publish(store(&[102], Some(101), &prompt[4..])).await;
    rig.until_overlap(1, &prompt, 2).await;
    rig.until(|rig| rig.service.worker(1).unwrap().kv_events[&0].suspect)
        .await;
    rig.until(|rig| rig.metric("kv_event_replays_total{outcome=\"failed\"}") >= 2)
        .await;
    rig.service.shutdown().await;
}

#[tokio::test]
async fn blocks_that_no_replay_confirms_in_time_are_forgotten() {
    let rig = Rig::with_events(impatient()).await;
    let mut engine = connected(&rig, Answer::Never, Replays::Known).await;
    engine.publish(store(&[101], None, &tokens(1..5))).await;
    rig.until_applied(1, 0, 0).await;
    engine.lose(remove(&[101]));
    engine.publish(store(&[201], None, &tokens(50..54))).await;
    rig.until_overlap(1, &tokens(1..5), 0).await;
    engine.publish(store(&[202], None, &tokens(55..59))).await;
    rig.until_overlap(1, &tokens(55..59), 1).await;
    rig.service.shutdown().await;
}

#[tokio::test]
async fn a_restarted_engine_is_forgotten_and_followed_again() {
    let rig = Rig::with_events(impatient()).await;
    let mut engine = connected(&rig, Answer::Never, Replays::Unknown).await;
    let prompt = tokens(1..5);
    engine.publish(store(&[101], None, &prompt)).await;
    rig.until_overlap(1, &prompt, 1).await;
    let mut engine = engine.restart().await;
    engine.subscribed().await;
    rig.until_overlap(1, &prompt, 0).await;
    engine.publish(store(&[201], None, &tokens(50..54))).await;
    rig.until_overlap(1, &tokens(50..54), 1).await;
    rig.service.shutdown().await;
}

#[tokio::test]
async fn a_restarted_engine_with_replays_is_read_from_its_new_beginning() {
    let config = EventsConfig {
        replay_answer_timeout: Duration::from_secs(5),
        ..impatient()
    };
    let rig = Rig::with_events(config).await;
    let mut engine = connected(&rig, Answer::Bare, Replays::Known).await;
    let prompt = tokens(1..5);
    engine.publish(store(&[101], None, &prompt)).await;
    rig.until_overlap(1, &prompt, 1).await;
    let mut engine = engine.restart().await;
    engine.lose(store(&[201], None, &tokens(50..54)));
    engine.subscribed().await;
    rig.until_overlap(1, &tokens(50..54), 1).await;
    assert_eq!(rig.overlap(1, 0, &prompt).await, 0);
    rig.service.shutdown().await;
}

#[tokio::test]
async fn a_stream_left_unread_behind_a_replay_is_counted_until_it_ends() {
    let config = EventsConfig {
        held_batches: 1,
        replay_answer_timeout: Duration::from_secs(2),
        replay_retry_min: Duration::from_secs(30),
        ..EventsConfig::default()
    };
    let rig = Rig::with_events(config).await;
    let mut engine = connected(&rig, Answer::Never, Replays::Known).await;
    let prompt = tokens(1..9);
    engine.publish(store(&[101], None, &prompt[..4])).await;
    rig.until_applied(1, 0, 0).await;
    engine.lose(remove(&[7]));
    engine.publish(store(&[102], Some(101), &prompt[4..])).await;
    rig.until(|rig| rig.metric("kv_event_streams_unread") == 1)
        .await;
    rig.until_applied(1, 0, 2).await;
    rig.until(|rig| rig.metric("kv_event_streams_unread") == 0)
        .await;
    assert_eq!(rig.metric("kv_event_full_holds_total"), 1);
    rig.service.shutdown().await;
}

#[tokio::test]
async fn a_silent_stream_is_reconnected_and_nothing_is_forgotten() {
    let config = EventsConfig {
        silence: Duration::from_secs(1),
        ..EventsConfig::default()
    };
    let rig = Rig::with_events(config).await;
    let mut engine = connected(&rig, Answer::WithTopic, Replays::Known).await;
    let prompt = tokens(1..9);
    engine.publish(store(&[101], None, &prompt[..4])).await;
    rig.until_overlap(1, &prompt, 1).await;
    engine.lose(store(&[102], Some(101), &prompt[4..]));
    engine.subscribed().await;
    rig.until_overlap(1, &prompt, 2).await;
    assert_eq!(
        engine.questions()[0],
        0,
        "the last frame known is asked for again"
    );
    rig.service.shutdown().await;
}

#[tokio::test]
async fn a_restart_on_the_same_connection_is_told_from_a_duplicate() {
    let rig = Rig::new().await;
    let mut engine = connected(&rig, Answer::Never, Replays::Unknown).await;
    let prompt = tokens(1..5);
    engine.publish(store(&[101], None, &prompt)).await;
    engine.send(0, store(&[101], None, &prompt)).await;
    rig.until(|rig| rig.metric("kv_event_duplicates_total") == 1)
        .await;
    assert_eq!(rig.overlap(1, 0, &prompt).await, 1);
    engine.send(0, store(&[601], None, &tokens(90..94))).await;
    rig.until_overlap(1, &tokens(90..94), 1).await;
    assert_eq!(rig.overlap(1, 0, &prompt).await, 0);
    rig.service.shutdown().await;
}

#[tokio::test]
async fn bad_messages_and_batches_are_dropped_and_ask_for_no_replay() {
    let rig = Rig::new().await;
    let mut engine = connected(&rig, Answer::Bare, Replays::Known).await;
    let payload = store(&[101], None, &tokens(1..5));
    let number = || Bytes::copy_from_slice(&0_u64.to_be_bytes());
    engine.send_frames(vec![payload.clone()]).await;
    engine
        .send_frames(vec![Bytes::new(), payload.clone()])
        .await;
    engine
        .send_frames(vec![
            Bytes::new(),
            Bytes::from_static(&[1]),
            payload.clone(),
        ])
        .await;
    engine
        .send_frames(vec![Bytes::new(), number(), payload.clone(), Bytes::new()])
        .await;
    engine.publish(payload.slice(..10)).await;
    engine.publish(Bytes::from_static(&[0xc1; 64])).await;
    engine.publish(payload).await;
    rig.until_overlap(1, &tokens(1..5), 1).await;
    assert_eq!(rig.metric("kv_event_bad_frames_total"), 4);
    assert_eq!(rig.metric("kv_event_bad_batches_total"), 2);
    assert!(engine.questions().is_empty());
    rig.service.shutdown().await;
}

#[tokio::test]
async fn ranks_have_streams_of_their_own() {
    let rig = Rig::new().await;
    let mut engines = [
        Engine::start(Answer::Never).await,
        Engine::start(Answer::Never).await,
    ];
    let mut two_ranks = worker(1);
    two_ranks.data_parallel_size = Some(2);
    for (dp_rank, engine) in (0..).zip(&engines) {
        two_ranks
            .kv_events_endpoints
            .insert(dp_rank, engine.publisher_at.clone());
    }
    rig.service.register_worker(two_ranks).unwrap();
    for engine in &mut engines {
        engine.subscribed().await;
    }
    let prompt = tokens(1..9);
    engines[0].publish(store(&[101, 102], None, &prompt)).await;
    engines[1].publish(store(&[101], None, &prompt[..4])).await;
    rig.until_applied(1, 0, 0).await;
    rig.until_applied(1, 1, 0).await;
    assert_eq!(rig.overlap(1, 0, &prompt).await, 2);
    assert_eq!(rig.overlap(1, 1, &prompt).await, 1);
    rig.service.shutdown().await;
}

#[tokio::test]
async fn a_worker_that_never_speaks_delays_no_other() {
    let rig = Rig::new().await;
    let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut mute_worker = worker(2);
    mute_worker.kv_events_endpoint = Some(format!("tcp://{}", mute.local_addr().unwrap()));
    rig.service.register_worker(mute_worker).unwrap();
    let _held_open = mute.accept().await.unwrap();
    let mut engine = connected(&rig, Answer::Never, Replays::Unknown).await;
    engine.publish(store(&[101], None, &tokens(1..5))).await;
    rig.until_overlap(1, &tokens(1..5), 1).await;
    assert!(!rig.service.worker(2).unwrap().kv_events[&0].connected);
    rig.service.shutdown().await;
}

#[tokio::test]
async fn a_removed_worker_takes_its_blocks_and_its_subscriber_along() {
    let rig = Rig::new().await;
    let mut engine = connected(&rig, Answer::Never, Replays::Unknown).await;
    engine.publish(store(&[101], None, &tokens(1..5))).await;
    rig.until_overlap(1, &tokens(1..5), 1).await;
    rig.service.remove_worker(1).unwrap();
    rig.until(|rig| rig.metric("kv_event_subscribers") == 0)
        .await;
    rig.service.register_worker(worker(1)).unwrap();
    assert_eq!(rig.overlap(1, 0, &tokens(1..5)).await, 0);
    rig.service.shutdown().await;
}

#[tokio::test]
async fn a_worker_registered_again_keeps_an_unchanged_stream() {
    let rig = Rig::new().await;
    let mut engine = connected(&rig, Answer::Never, Replays::Unknown).await;
    engine.publish(store(&[101], None, &tokens(1..5))).await;
    rig.until_overlap(1, &tokens(1..5), 1).await;
    let mut again = worker_of(1, &engine, Replays::Unknown);
    again.taints.insert("slow".to_owned());
    again.endpoint = Some("http://127.0.0.1:19999".to_owned());
    rig.service.register_worker(again).unwrap();
    assert_eq!(rig.overlap(1, 0, &tokens(1..5)).await, 1);
    engine
        .publish(store(&[102], Some(101), &tokens(5..9)))
        .await;
    rig.until_overlap(1, &tokens(1..9), 2).await;
    assert_eq!(rig.service.events_applied(1, 0).unwrap().batches, 2);
    rig.service.shutdown().await;
}

#[tokio::test]
async fn a_worker_that_gains_a_rank_takes_batches_for_it() {
    let rig = Rig::new().await;
    let mut engine = connected(&rig, Answer::Never, Replays::Unknown).await;
    let mut wider = worker(1);
    wider.data_parallel_size = Some(2);
    wider
        .kv_events_endpoints
        .insert(0, engine.publisher_at.clone());
    wider
        .kv_events_endpoints
        .insert(1, "tcp://127.0.0.1:1".to_owned());
    rig.service.register_worker(wider).unwrap();
    engine.subscribed().await;
    engine
        .publish(store_of_rank(1, &[101], &tokens(1..5)))
        .await;
    rig.until_applied(1, 0, 0).await;
    assert_eq!(rig.overlap(1, 1, &tokens(1..5)).await, 1);
    rig.service.shutdown().await;
}

#[tokio::test]
async fn a_worker_with_another_publisher_begins_without_blocks() {
    let rig = Rig::new().await;
    let mut old = connected(&rig, Answer::Never, Replays::Unknown).await;
    old.publish(store(&[101], None, &tokens(1..5))).await;
    rig.until_overlap(1, &tokens(1..5), 1).await;
    let mut new = Engine::start(Answer::Never).await;
    rig.service
        .register_worker(worker_of(1, &new, Replays::Unknown))
        .unwrap();
    new.subscribed().await;
    rig.until_overlap(1, &tokens(1..5), 0).await;
    new.publish(store(&[201], None, &tokens(50..54))).await;
    rig.until_overlap(1, &tokens(50..54), 1).await;
    assert_eq!(rig.metric("kv_event_subscribers"), 1);
    rig.service.shutdown().await;
}

/// Worker 1 with blocks of `block_size` tokens, and its engine with blocks of 4.
async fn sized(rig: &Rig, block_size: u32) -> Engine {
    let mut engine = Engine::start(Answer::Never).await;
    let mut other = worker_of(1, &engine, Replays::Unknown);
    other.block_size = Some(block_size);
    rig.service.register_worker(other).unwrap();
    engine.subscribed().await;
    engine
        .publish(store(&[101, 102], None, &tokens(1..9)))
        .await;
    rig.until_applied(1, 0, 0).await;
    engine
}

#[tokio::test]
async fn a_block_size_that_cannot_be_reconciled_shows_in_the_workers_record() {
    let rig = Rig::new().await;
    let _engine = sized(&rig, 6).await;
    let record = rig.service.worker(1).unwrap();
    assert_eq!(record.kv_events[&0].block_size_mismatches, 1);
    assert_eq!(record.kv_events[&0].mismatched_block_size, Some(4));
    assert_eq!(
        record.warnings,
        [
            "dp_rank 0: kv events have block_size 4, which the partition's 6 cannot be reconciled with: its cache is not known"
        ]
    );
    assert!(record.is_schedulable(), "it is routed by load");
    rig.service.shutdown().await;
}

#[tokio::test]
async fn a_block_size_that_divides_the_partitions_is_cut_again() {
    let rig = Rig::new().await;
    let _engine = sized(&rig, 8).await;
    let record = rig.service.worker(1).unwrap();
    assert_eq!(record.kv_events[&0].recut_events, 1);
    assert_eq!(record.kv_events[&0].block_size_mismatches, 0);
    assert!(record.warnings.is_empty());
    assert_eq!(rig.overlap(1, 0, &tokens(1..9)).await, 1);
    rig.service.shutdown().await;
}

#[tokio::test]
async fn a_worker_whose_events_are_taken_away_is_not_believed_to_hold_blocks() {
    let rig = Rig::new().await;
    let mut engine = connected(&rig, Answer::Never, Replays::Unknown).await;
    engine.publish(store(&[101], None, &tokens(1..5))).await;
    rig.until_overlap(1, &tokens(1..5), 1).await;
    rig.service.register_worker(worker(1)).unwrap();
    rig.until_overlap(1, &tokens(1..5), 0).await;
    rig.service.shutdown().await;
}

#[tokio::test]
async fn shutdown_stops_every_subscriber() {
    let rig = Rig::new().await;
    let _engine = connected(&rig, Answer::Never, Replays::Unknown).await;
    let mut unreachable = worker(2);
    unreachable.kv_events_endpoint = Some("tcp://127.0.0.1:1".to_owned());
    rig.service.register_worker(unreachable).unwrap();
    rig.service.shutdown().await;
    assert_eq!(rig.metric("kv_event_subscribers"), 0);
    assert_eq!(rig.metric("kv_event_subscribers_connected"), 0);
    assert!(rig.service.register_worker(worker(3)).is_err());
}

/// A process that takes connections and never says a word.
#[tokio::test]
async fn an_engine_that_does_not_shake_hands_is_given_up() {
    let config = EventsConfig {
        connect_timeout: Duration::from_millis(20),
        ..impatient()
    };
    let rig = Rig::with_events(config).await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut registration = worker(1);
    registration.kv_events_endpoint = Some(format!("tcp://{}", silent.local_addr().unwrap()));
    rig.service.register_worker(registration).unwrap();
    let first = silent.accept().await.unwrap();
    let second = silent.accept().await.unwrap();
    assert!(rig.metric("kv_event_connection_failures_total") >= 1);
    drop((first, second));
    rig.service.shutdown().await;
}

#[tokio::test]
async fn a_message_over_the_bound_is_read_past_and_counted() {
    let rig = Rig::new().await;
    let mut engine = connected(&rig, Answer::Never, Replays::Unknown).await;
    let number = Bytes::copy_from_slice(&0_u64.to_be_bytes());
    let endless = Bytes::from(vec![0; (32 << 20) + 1]);
    engine
        .send_frames(vec![Bytes::new(), number, endless])
        .await;
    let prompt = tokens(1..5);
    engine.publish(store(&[101], None, &prompt)).await;
    rig.until_overlap(1, &prompt, 1).await;
    assert_eq!(rig.metric("kv_event_bad_frames_total"), 1);
    rig.service.shutdown().await;
}
