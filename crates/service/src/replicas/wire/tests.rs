use bytes::BytesMut;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::zmtp::{Decoder, Incoming, Role};

/// The frames of a message as they stand on the wire.
pub(in crate::replicas) fn frames(message: &Bytes) -> Vec<Bytes> {
    let opening = zmtp::opening(Role::Publisher);
    let mut bytes = BytesMut::from(&[&opening[..], message].concat()[..]);
    let mut decoder = Decoder::new(Role::Subscriber, MAX_MESSAGE_BYTES);
    assert_eq!(decoder.next(&mut bytes), Ok(None));
    match decoder.next(&mut bytes) {
        Ok(Some(Incoming::Message(frames))) => frames,
        other => panic!("no message but {other:?}"),
    }
}

/// The same event as a peer tells it that numbers nothing.
pub(in crate::replicas) fn published(router_id: u64, event: &Event) -> Bytes {
    let mut envelope = envelope(router_id, event);
    envelope.seq = None;
    envelope.exchange = false;
    framed(EVENTS, &envelope)
}

/// Topics and payloads of a published selector.
fn recorded() -> Vec<(String, Bytes)> {
    let text = include_str!("../../../tests/data/replica_events.txt");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let message = |line: &str| {
        let (topic, hex) = line.split_once(' ').unwrap();
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let payload: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        (topic.to_owned(), Bytes::from(payload))
    };
    lines.map(message).collect()
}

fn record(held_by: HeldBy) -> Arc<Record> {
    Arc::new(Record {
        partition: PartitionId::new("m", "g"),
        block_size: 16,
        id: ReservationId::from("a"),
        worker: WorkerWithDpRank::new(u64::MAX, 3),
        hashes: [1, u64::MAX].map(SequenceHash).into(),
        prefill_tokens: 40,
        expected_output_tokens: Some(7),
        lora_name: Some("l".to_owned()),
        held_by,
    })
}

fn told(change: Change, held_by: HeldBy) -> Happened {
    let record = record(held_by);
    let event = Event {
        seq: 9,
        record,
        change,
    };
    match read(&frames(&super::event(5, &event))).unwrap() {
        Heard::Event(happened) => happened,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_event_is_read_as_it_was_told() {
    for held_by in [HeldBy::Exchange, HeldBy::Id] {
        let added = told(Change::Add, held_by);
        assert_eq!((added.origin, added.seq), (5, Some(9)));
        assert_eq!(added.what, What::Add(record(held_by)));
    }
    let call = |whose| Call {
        id: ReservationId::from("a"),
        worker: WorkerWithDpRank::new(u64::MAX, 3),
        whose,
    };
    let of = Whose::Of {
        origin: 8,
        seq: Some(2),
    };
    for whose in [Whose::Own, of] {
        let freed = told(Change::Free(whose), HeldBy::Id);
        assert_eq!(freed.what, What::Free(call(whose)));
        let completed = told(Change::PrefillCompleted(whose), HeldBy::Id);
        assert_eq!(completed.what, What::PrefillCompleted(call(whose)));
    }
}

#[test]
fn what_a_published_selector_sent_is_read_and_written_to_the_byte() {
    let theirs = Record {
        partition: PartitionId::new("m", "default"),
        block_size: 16,
        id: ReservationId::from("theirs"),
        worker: WorkerWithDpRank::new(2, 1),
        hashes: [11, 12_u64.wrapping_neg(), 13, 14].map(SequenceHash).into(),
        prefill_tokens: 40,
        expected_output_tokens: Some(9),
        lora_name: None,
        held_by: HeldBy::Id,
    };
    let ours = Record {
        id: ReservationId::from("ours"),
        worker: WorkerWithDpRank::new(1, 0),
        ..theirs.clone()
    };
    let call = |record: &Record| Call {
        id: record.id.clone(),
        worker: record.worker,
        whose: Whose::Own,
    };
    let expected = [
        (What::Add(Arc::new(theirs.clone())), Change::Add, &theirs),
        (
            What::PrefillCompleted(call(&theirs)),
            Change::PrefillCompleted(Whose::Own),
            &theirs,
        ),
        (What::Free(call(&ours)), Change::Free(Whose::Own), &ours),
    ];
    let recorded = recorded();
    assert_eq!(recorded.len(), expected.len());
    for ((topic, payload), (what, change, record)) in recorded.into_iter().zip(expected) {
        let heard = read(&[topic.clone().into(), payload.clone()]).unwrap();
        let Heard::Event(happened) = heard else {
            panic!("{heard:?}");
        };
        assert_eq!((happened.seq, happened.what), (None, what));
        let event = Event {
            seq: 0,
            record: Arc::new(record.clone()),
            change,
        };
        let written = frames(&published(happened.origin, &event));
        assert_eq!(written, [Bytes::from(topic), payload]);
    }
}

#[test]
fn keys_of_ours_stand_behind_those_that_are_published() {
    let event = Event {
        seq: 9,
        record: record(HeldBy::Exchange),
        change: Change::Add,
    };
    let ours = frames(&super::event(5, &event)).pop().unwrap();
    let published = frames(&published(5, &event)).pop().unwrap();
    assert_eq!((published[0], ours[0]), (0x84, 0x86), "two keys more");
    assert_eq!(ours[1..published.len()], published[1..]);
    assert_eq!(&ours[published.len()..], b"\xa3seq\x09\xa8exchange\xc3");
}

#[test]
fn our_own_messages_are_read_as_they_were_told() {
    let beat = Heartbeat {
        seq: 1,
        reservations: 2,
        digest: u64::MAX,
    };
    let read_back = read(&frames(&heartbeat(5, beat))).unwrap();
    assert_eq!(read_back, Heard::Heartbeat(5, beat));
    let told = Told {
        seq: 4,
        record: record(HeldBy::Id),
        prefill_completed: true,
        silent: Duration::from_millis(1_500),
    };
    let whole = Piece {
        seq: 9,
        after: 3,
        through: 9,
        last: true,
        reservations: vec![told],
    };
    let read_back = read(&frames(&piece(5, &whole))).unwrap();
    assert_eq!(read_back, Heard::Piece(5, whole));
    let ids = vec![ReservationId::from("a"), ReservationId::from("b")];
    let read_back = read(&frames(&renewed(5, &ids))).unwrap();
    assert_eq!(read_back, Heard::Renewed(5, ids));
}

#[test]
fn bindings_of_sessions_are_known_and_other_topics_are_not() {
    let heard = |topic: &str| read(&frames(&zmtp::message(topic.as_bytes(), b"\x80")));
    assert_eq!(heard(AFFINITY).unwrap(), Heard::Affinity);
    assert!(matches!(heard("else"), Err(WireError::Topic)));
    assert!(matches!(heard(EVENTS), Err(WireError::Payload(_))));
    assert!(matches!(read(&[]), Err(WireError::Frames(0))));
}

#[test]
fn ids_and_names_have_a_bound() {
    let long = "x".repeat(MAX_NAME_BYTES + 1);
    let record = Arc::new(Record {
        id: ReservationId::from(long.as_str()),
        ..Record::clone(&record(HeldBy::Id))
    });
    let event = Event {
        seq: 1,
        record,
        change: Change::Add,
    };
    let refused = read(&frames(&super::event(5, &event)));
    assert!(matches!(refused, Err(WireError::Name)));
}

#[test]
fn no_bytes_make_the_reader_panic() {
    let seed = 0x5eed_0012;
    println!("seed {seed:#x}");
    let mut random = StdRng::seed_from_u64(seed);
    let event = Event {
        seq: 1,
        record: record(HeldBy::Id),
        change: Change::Add,
    };
    let good = frames(&super::event(5, &event)).pop().unwrap();
    for _ in 0..20_000 {
        let mut payload = good.to_vec();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..payload.len());
            payload[at] = random.random();
        }
        payload.truncate(random.random_range(0..=payload.len()));
        for topic in [EVENTS, PEERS] {
            // Either is fine; it came back.
            drop(read(&[topic.into(), payload.clone().into()]));
        }
    }
    // A thousand arrays in each other, and lengths that no payload has.
    let deep = [vec![0x91; 100_000], vec![0xc0]].concat();
    assert!(read(&[EVENTS.into(), deep.into()]).is_err());
    for huge in [
        &[0xdd, 0xff, 0xff, 0xff, 0xff][..],
        &[0xdf, 0xff, 0xff, 0xff, 0xff],
        &[0xdb, 0xff, 0xff, 0xff, 0xff],
    ] {
        assert!(read(&[PEERS.into(), Bytes::copy_from_slice(huge)]).is_err());
    }
}
