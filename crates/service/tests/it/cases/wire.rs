//! The bytes: frames, payloads and fields that are new, odd or broken.

use bytes::Bytes;

use super::*;
use crate::pack::{ARRAYS, dialects, removed, stored};
use crate::rig::tokens;

fn whole() -> V {
    ARRAYS.store(stored(&[101, 102, 103], None, &tokens(1..13)))
}

fn with_tail(event: V, tail: Vec<V>) -> V {
    let V::List(mut elements) = event else {
        panic!("{event:?} is no array")
    };
    elements.extend(tail);
    V::List(elements)
}

fn number(sequence: u64) -> Bytes {
    Bytes::copy_from_slice(&sequence.to_be_bytes())
}

#[tokio::test]
async fn what_is_not_known_is_passed_over() {
    let mut stage = Stage::new().await;
    let nil = || V::Nil;
    let tail = vec![nil(), nil(), nil(), nil(), nil(), nil(), nil()];
    let more = vec![V::Text("future"), V::Map(vec![("x", V::Int(1))])];
    let unknown = V::List(vec![
        V::Text("BlockPinned"),
        V::List(vec![V::Int(1)]),
        V::Nil,
    ]);
    let unknown_map = V::Map(vec![
        ("type", V::Text("Snapshot")),
        ("items", V::List(vec![])),
    ]);
    let store = with_tail(with_tail(whole(), tail), more);
    stage.tell(vec![unknown, store, unknown_map]).await;
    assert_eq!(stage.gpu(&tokens(1..13)).await, 12);
    let skipped = "kv_events_skipped_total{reason=\"unknown_event\"}";
    assert_eq!(stage.rig.metric(skipped), 2);
    let removal = with_tail(
        ARRAYS.remove(removed(&[103])),
        vec![
            V::Nil,
            V::Nil,
            V::Nil,
            V::Nil,
            V::Nil,
            V::Text("why"),
            V::Map(vec![]),
        ],
    );
    stage.tell(vec![removal]).await;
    assert_eq!(stage.gpu(&tokens(1..13)).await, 8);
    stage.end().await;
}

#[tokio::test]
async fn a_map_is_read_like_an_array() {
    for dialect in dialects() {
        let mut stage = Stage::new().await;
        let store = dialect.store(stored(&[101, 102, 103], None, &tokens(1..13)));
        let events = V::List(vec![store, dialect.remove(removed(&[103]))]);
        let map = V::Map(vec![
            ("ts", V::Float(1.5)),
            ("events", events.clone()),
            ("data_parallel_rank", V::Int(0)),
            ("tomorrow", V::List(vec![])),
        ]);
        stage.tell_bytes(map.encode()).await;
        assert_eq!(stage.gpu(&tokens(1..13)).await, 8, "{dialect:?}");
        let longer = V::List(vec![
            V::Float(1.5),
            V::List(vec![dialect.clear()]),
            V::Nil,
            V::Text("tomorrow"),
        ]);
        stage.tell_bytes(longer.encode()).await;
        assert_eq!(stage.gpu(&tokens(1..13)).await, 0, "{dialect:?}");
        let shorter = V::List(vec![V::Nil, events]);
        stage.tell_bytes(shorter.encode()).await;
        assert_eq!(stage.gpu(&tokens(1..13)).await, 8, "{dialect:?}");
        stage.end().await;
    }
}

#[tokio::test]
async fn metadata_may_stand_where_the_adapter_was() {
    let mut stage = Stage::new().await;
    let first = ARRAYS.store(stored(&[101], None, &tokens(1..5)));
    let second = ARRAYS.store(Store {
        lora_name: V::Map(vec![("session_id", V::Text("s1"))]),
        ..stored(&[102, 103], Some(101), &tokens(5..13))
    });
    stage.tell(vec![first, second]).await;
    assert_eq!(stage.gpu(&tokens(1..13)).await, 12);
    stage.end().await;
}

#[tokio::test]
async fn wrong_frames_are_counted_and_not_applied() {
    let mut stage = Stage::new().await;
    let payload = || batch(Some(0), vec![whole()]);
    let topic = || Bytes::from_static(b"kv");
    for frames in [
        vec![payload()],
        vec![topic(), payload()],
        vec![topic(), Bytes::from_static(&[0, 0, 1]), payload()],
        vec![topic(), Bytes::from_static(&[0; 9]), payload()],
        vec![topic(), number(0), payload(), Bytes::from_static(&[0])],
        vec![topic(), number(u64::MAX), payload()],
    ] {
        stage.engine.send_frames(frames).await;
    }
    let good = batch(
        Some(0),
        vec![ARRAYS.store(stored(&[101], None, &tokens(1..5)))],
    );
    stage.engine.send(1, good).await;
    stage.rig.until_applied(1, 0, 1).await;
    assert_eq!(stage.gpu(&tokens(1..13)).await, 4);
    assert_eq!(stage.rig.metric("kv_event_bad_frames_total"), 6);
    assert_eq!(stage.rig.service.events_applied(1, 0).unwrap().batches, 1);
    stage.end().await;
}

#[tokio::test]
async fn broken_payloads_use_their_numbers() {
    let mut stage = Stage::replaying(Answer::Bare).await;
    stage
        .tell_bytes(Bytes::from_static(&[
            0x93, 0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0,
        ]))
        .await;
    stage.tell_bytes(Bytes::from_static(&[0xc1; 64])).await;
    stage.tell_bytes(Bytes::from_static(b"not msgpack")).await;
    stage.tell(vec![whole()]).await;
    assert_eq!(stage.gpu(&tokens(1..13)).await, 12);
    assert_eq!(stage.rig.metric("kv_event_bad_batches_total"), 3);
    assert!(
        stage.engine.questions().is_empty(),
        "no replay was asked for"
    );
    assert_eq!(stage.rig.metric("kv_event_gaps_total"), 0);
    stage.end().await;
}

#[tokio::test]
async fn events_that_contradict_themselves_leave_the_others() {
    let with_size = |names: &[u64], ids: &[u32], size: V| {
        ARRAYS.store(Store {
            block_size: size,
            ..stored(names, None, ids)
        })
    };
    let mut stage = Stage::new().await;
    stage
        .tell(vec![
            with_size(&[1, 2, 3, 4], &tokens(1..4), V::Int(256)),
            with_size(&[1], &tokens(1..5), V::Int(0)),
            with_size(&[2], &tokens(1..5), V::Int(-1)),
            with_size(&[3], &tokens(1..5), V::Big(1 << 31)),
            with_size(&[4], &[], V::Int(0)),
            with_size(&[5], &tokens(1..5), V::Nil),
            with_size(&[6, 6], &tokens(1..9), V::Int(4)),
            with_size(&[7, 8], &tokens(1..5), V::Int(4)),
            with_size(&[], &tokens(1..5), V::Int(4)),
            whole(),
        ])
        .await;
    assert_eq!(stage.gpu(&tokens(1..13)).await, 12);
    let record = stage.rig.service.worker(1).unwrap();
    assert!(record.is_schedulable() && record.kv_events[&0].connected);
    stage
        .tell(vec![ARRAYS.remove(removed(&[1, 2, 3, 4, 5, 6, 7, 8]))])
        .await;
    assert_eq!(stage.gpu(&tokens(1..13)).await, 12);
    stage.end().await;
}

#[tokio::test]
async fn a_topic_may_have_any_shape() {
    let mut stage = Stage::new().await;
    let topics: [&[u8]; 4] = [b"", b"kv@10.0.0.9:8000@m", b"kv@10.0.0.9@other", &[0xff, 0]];
    for (sequence, topic) in (0..).zip(topics) {
        let name = sequence + 101;
        let from = u32::try_from(sequence).unwrap() * 10;
        let event = ARRAYS.store(stored(&[name], None, &tokens(from..from + 4)));
        let frames = vec![
            Bytes::from_static(topic),
            number(sequence),
            batch(None, vec![event]),
        ];
        stage.engine.send_frames(frames).await;
        stage.rig.until_applied(1, 0, sequence).await;
        assert_eq!(stage.gpu(&tokens(from..from + 4)).await, 4);
    }
    stage.end().await;
}
