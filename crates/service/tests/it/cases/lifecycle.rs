//! Engines that restart, streams that break, caches that are cleared, workers that leave.

use futures::StreamExt;

use super::*;
use crate::pack::{ARRAYS, dialects, stored};
use crate::rig::tokens;

fn one(name: u64, parent: Option<u64>, tokens: &[u32]) -> Bytes {
    batch(Some(0), vec![ARRAYS.store(stored(&[name], parent, tokens))])
}

#[tokio::test]
async fn an_engine_that_counts_from_zero_again_has_nothing_of_what_it_had() {
    let mut stage = Stage::new().await;
    let prompt = tokens(1..13);
    stage.tell_bytes(one(101, None, &prompt[..4])).await;
    stage.tell_bytes(one(102, Some(101), &prompt[4..8])).await;
    stage.tell_bytes(one(103, Some(102), &prompt[8..])).await;
    stage.engine.send(0, one(601, None, &tokens(90..94))).await;
    stage.rig.until_applied(1, 0, 0).await;
    assert_eq!(stage.gpu(&prompt).await, 0);
    assert_eq!(stage.gpu(&tokens(90..94)).await, 4);
    stage.end().await;
}

#[tokio::test]
async fn a_restart_that_is_noticed_late_is_read_from_its_beginning() {
    let mut stage = Stage::replaying(Answer::Bare).await;
    let (old, new) = (tokens(1..13), tokens(90..102));
    for (name, from) in [(101, 0), (102, 4), (103, 8)] {
        let parent = (from > 0).then_some(name - 1);
        stage
            .tell_bytes(one(name, parent, &old[from..from + 4]))
            .await;
    }
    stage.engine.begin_anew();
    stage.engine.lose(one(601, None, &new[..4]));
    stage.engine.lose(one(602, Some(601), &new[4..8]));
    let payload = one(603, Some(602), &new[8..]);
    let sequence = stage.engine.lose(payload.clone());
    stage.engine.send(sequence, payload).await;
    stage.until_gpu(&new, 12).await;
    assert_eq!(stage.gpu(&old).await, 0);
    assert_eq!(stage.engine.questions(), [0]);
    stage.end().await;
}

#[tokio::test]
async fn a_publisher_that_closes_and_binds_again_is_found_again() {
    for (answer, replays) in [
        (Answer::Never, Replays::Unknown),
        (Answer::Bare, Replays::Known),
    ] {
        let stage = Stage::with(impatient(), answer, replays).await;
        let Stage { rig, mut engine } = stage;
        engine.publish(one(301, None, &tokens(60..64))).await;
        rig.until_overlap(1, &tokens(60..64), 1).await;
        let mut engine = engine.restart().await;
        engine.subscribed().await;
        let whole = stored(&[101, 102, 103], None, &tokens(1..13));
        engine
            .publish(batch(Some(0), vec![ARRAYS.store(whole)]))
            .await;
        rig.until_overlap(1, &tokens(1..13), 3).await;
        rig.until_overlap(1, &tokens(60..64), 0).await;
        rig.service.shutdown().await;
    }
}

#[tokio::test]
async fn a_clear_forgets_one_worker_alone() {
    for dialect in dialects() {
        let mut stage = Stage::new().await;
        let mut other = Engine::start(Answer::Never).await;
        let registration = worker_of(2, &other, Replays::Unknown);
        stage.rig.service.register_worker(registration).unwrap();
        other.subscribed().await;
        let whole = || {
            batch(
                None,
                vec![dialect.store(stored(&[101, 102, 103], None, &tokens(1..13)))],
            )
        };
        stage.tell_bytes(whole()).await;
        other.publish(whole()).await;
        stage.rig.until_overlap(2, &tokens(1..13), 3).await;
        stage.tell(vec![dialect.clear()]).await;
        assert_eq!(stage.gpu(&tokens(1..13)).await, 0, "{dialect:?}");
        let others = tokens_found(&stage.rig, 2, 0, &asking(&tokens(1..13))).await;
        assert_eq!(others, [12, 12, 12], "{dialect:?}");
        stage.end().await;
    }
}

#[tokio::test]
async fn a_worker_that_left_is_found_nowhere() {
    let mut stage = Stage::new().await;
    let mut other = Engine::start(Answer::Never).await;
    let registration = worker_of(2, &other, Replays::Unknown);
    stage.rig.service.register_worker(registration).unwrap();
    other.subscribed().await;
    let whole = stored(&[101, 102, 103], None, &tokens(1..13));
    stage.tell(vec![ARRAYS.store(whole)]).await;
    other.publish(one(101, None, &tokens(1..5))).await;
    stage.rig.until_overlap(2, &tokens(1..5), 1).await;
    stage.rig.service.remove_worker(1).unwrap();
    let asked = asking(&tokens(1..13));
    let scores = stage
        .rig
        .service
        .overlap_scores(&partition(), asked.clone())
        .await
        .unwrap()
        .overlap;
    let workers: Vec<_> = scores
        .ranks
        .iter()
        .map(|rank| rank.worker.worker_id)
        .collect();
    assert_eq!(workers, [2]);
    assert_eq!(tokens_found(&stage.rig, 2, 0, &asked).await[0], 4);
    let dump = stage.rig.service.dump().unwrap();
    let pieces: Vec<_> = dump.map(|piece| piece.unwrap().to_vec()).collect().await;
    let dump: serde_json::Value = serde_json::from_slice(&pieces.concat()).unwrap();
    let events = dump["m:default"]["events"].as_array().unwrap();
    let dumped: Vec<_> = events
        .iter()
        .map(|event| event["worker_id"].as_u64())
        .collect();
    assert!(
        !dumped.is_empty() && dumped.iter().all(|id| *id == Some(2)),
        "{dump}"
    );
    stage.end().await;
}
