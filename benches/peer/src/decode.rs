//! Times the decoding of KV event payloads, as arrays and as maps: bytes in, events out.

use std::hint::black_box;

use dynamo_kv_router::zmq_wire::decode_event_batch;
use pointsman_service::{PayloadContents, PayloadReader};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rmp::encode;

use crate::report::{cpu, quantile, verdict};

const BLOCK_SIZE: u32 = 16;
const REPEATS: usize = 15;
/// Blocks or events decoded in one turn of a side.
const TURN: usize = 40_000;

#[derive(Clone, Copy, Debug)]
enum Form {
    Array,
    Map,
}

/// What one event says.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Stored(u32),
    Removed(u32),
    Cleared,
}

pub(crate) fn run() {
    println!("decoding, ns of CPU per event: ours / peer");
    for form in [Form::Array, Form::Map] {
        for (events, kind) in [
            (1, Kind::Stored(1)),
            (1, Kind::Stored(32)),
            (1, Kind::Stored(512)),
            (16, Kind::Stored(1)),
            (1, Kind::Removed(1)),
            (1, Kind::Removed(32)),
            (1, Kind::Cleared),
        ] {
            row(form, events, kind);
        }
    }
}

fn row(form: Form, events: u32, kind: Kind) {
    let payload = payload(form, events, kind);
    let mut reader = PayloadReader::default();
    let contents = reader.read(&payload).expect("a payload");
    let expected = match kind {
        Kind::Stored(blocks) => PayloadContents {
            stored_blocks: (blocks * events) as usize,
            ..PayloadContents::default()
        },
        Kind::Removed(blocks) => PayloadContents {
            removed_blocks: (blocks * events) as usize,
            ..PayloadContents::default()
        },
        Kind::Cleared => PayloadContents {
            clears: events as usize,
            ..PayloadContents::default()
        },
    };
    assert_eq!(contents, expected);
    let batch = decode_event_batch(&payload).expect("a payload");
    assert_eq!(batch.events.len(), events as usize);
    let size = match kind {
        Kind::Stored(blocks) | Kind::Removed(blocks) => blocks * events,
        Kind::Cleared => events,
    };
    let turns = TURN / size as usize;
    let (mut our, mut their, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        let start = cpu();
        for _ in 0..turns {
            black_box(reader.read(black_box(&payload)).expect("a payload"));
        }
        let between = cpu();
        for _ in 0..turns {
            black_box(decode_event_batch(black_box(&payload)).expect("a payload"));
        }
        let done = cpu();
        our.push(between - start);
        their.push(done - between);
        ratios.push(our[our.len() - 1] / their[their.len() - 1]);
    }
    let each =
        |figures: &mut Vec<f64>| quantile(figures, 0.5) * 1e9 / turns as f64 / f64::from(events);
    println!(
        "{form:?}, {events:>2} x {kind:?}: {:>8.0} / {:>8.0}  {}",
        each(&mut our),
        each(&mut their),
        verdict(quantile(&mut ratios, 0.5), 0.2)
    );
}

fn payload(form: Form, events: u32, kind: Kind) -> Vec<u8> {
    let mut random = SmallRng::seed_from_u64(9);
    let mut out = Vec::new();
    encode::write_array_len(&mut out, 3).expect("memory");
    encode::write_f64(&mut out, 1_764_547_200.5).expect("memory");
    encode::write_array_len(&mut out, events).expect("memory");
    for _ in 0..events {
        event(&mut out, form, kind, &mut random);
    }
    encode::write_nil(&mut out).expect("memory");
    out
}

fn event(out: &mut Vec<u8>, form: Form, kind: Kind, random: &mut SmallRng) {
    let (tag, fields) = match kind {
        Kind::Stored(_) => ("BlockStored", 6),
        Kind::Removed(_) => ("BlockRemoved", 2),
        Kind::Cleared => ("AllBlocksCleared", 0),
    };
    match form {
        Form::Array => encode::write_array_len(out, fields + 1).expect("memory"),
        Form::Map => encode::write_map_len(out, fields + 1).expect("memory"),
    };
    let key = |out: &mut Vec<u8>, key: &str| {
        if matches!(form, Form::Map) {
            encode::write_str(out, key).expect("memory");
        }
    };
    key(out, "type");
    encode::write_str(out, tag).expect("memory");
    if let Kind::Stored(blocks) | Kind::Removed(blocks) = kind {
        key(out, "block_hashes");
        encode::write_array_len(out, blocks).expect("memory");
        for _ in 0..blocks {
            encode::write_uint(out, random.random::<u64>() | 1 << 63).expect("memory");
        }
    }
    if let Kind::Stored(blocks) = kind {
        key(out, "parent_block_hash");
        encode::write_uint(out, random.random::<u64>() | 1 << 63).expect("memory");
        key(out, "token_ids");
        encode::write_array_len(out, blocks * BLOCK_SIZE).expect("memory");
        for _ in 0..blocks * BLOCK_SIZE {
            encode::write_uint(out, random.random_range(0..150_000)).expect("memory");
        }
        key(out, "block_size");
        encode::write_uint(out, BLOCK_SIZE.into()).expect("memory");
        key(out, "lora_id");
        encode::write_nil(out).expect("memory");
    }
    if !matches!(kind, Kind::Cleared) {
        key(out, "medium");
        encode::write_str(out, "GPU").expect("memory");
    }
}
