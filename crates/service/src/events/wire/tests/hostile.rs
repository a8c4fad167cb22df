//! Payloads that nobody should send: none makes the decoder panic, or hold more than it was given.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

#[test]
fn claimed_lengths_reserve_no_memory() {
    let mut event = vec![0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0];
    for tail in [
        &b"\xdd\xff\xff\xff\xff"[..],
        b"\x91\xdd\xff\xff\xff\xff\xabBlockStored\xdd\xff\xff\xff\xff",
        b"\x91\xdf\xff\xff\xff\xff\xacblock_hashes\xdd\xff\xff\xff\xff\x01",
        b"\x91\x98\xabBlockStored\x90\xc0\xdd\xff\xff\xff\xff\x01\x02",
        b"\x91\xdb\xff\xff\xff\xff",
    ] {
        event.truncate(10);
        event.extend_from_slice(tail);
        assert!(decode_batch(&event).is_err());
    }
}

#[test]
fn nesting_has_no_depth_that_hurts() {
    let mut payload = vec![0x93];
    payload.extend(std::iter::repeat_n(0x91, 1_000_000));
    payload.extend([0xc0, 0x90, 0xc0]);
    let batch = decode_batch(&payload).unwrap();
    assert!(batch.events.is_empty());
    assert_eq!(batch.skipped.total(), 0);
}

#[test]
fn a_name_that_is_no_text_spoils_its_event_only() {
    for event in [
        &b"\x91\xa2\xff\xfe"[..],
        b"\x82\xa4type\xb0AllBlocksCleared\xa2\xff\xfe\xc0",
        b"\x93\xacBlockRemoved\x91\x01\xa2\xff\xfe",
    ] {
        let mut payload = b"\x92\xc0\x92".to_vec();
        payload.extend_from_slice(event);
        payload.extend_from_slice(b"\x91\xb0AllBlocksCleared");
        let batch = decode_batch(&payload).unwrap();
        assert_eq!(batch.events, [Event::Cleared]);
        assert_eq!(batch.skipped.of(SkipReason::Malformed), 1, "{event:x?}");
    }
}

#[test]
fn every_prefix_of_a_batch_is_refused() {
    for name in [
        "array_store",
        "map_store",
        "map_batch",
        "keyed",
        "long_tail",
        "byte_hashes",
    ] {
        let payload = fixture(name);
        for length in 0..payload.len() {
            assert!(
                decode_batch(&payload[..length]).is_err(),
                "{name} cut to {length}"
            );
        }
    }
}

#[test]
fn no_bytes_make_the_decoder_panic_or_hold_more_than_they_carry() {
    let seed = 0x5eed_0001;
    println!("seed {seed:#x}");
    let mut random = StdRng::seed_from_u64(seed);
    let names = [
        "array_store",
        "map_store",
        "map_batch",
        "keyed",
        "long_tail",
        "pairs",
    ];
    let mut corpus = sample::recorded_payloads();
    corpus.extend(names.map(fixture));
    let mut batch = Batch::default();
    let mut decoded = 0;
    for round in 0..80_000 {
        let payload = if round % 8 == 0 {
            let length = random.random_range(0..200);
            (0..length).map(|_| random.random()).collect()
        } else {
            sample::damaged(&mut random, &corpus)
        };
        if batch.decode(&payload).is_err() {
            assert!(batch.events.is_empty());
            continue;
        }
        decoded += 1;
        assert!(batch.events.len() <= payload.len());
        for event in &batch.events {
            if let Event::Stored(stored) = event {
                assert!(stored.engine_hashes.len() + stored.tokens.len() <= payload.len() + 1);
                assert!(stored.readable_blocks <= stored.engine_hashes.len());
                assert!(stored.media.len() <= stored.readable_blocks);
                let items: usize = stored.media.iter().map(Vec::len).sum();
                assert!(items <= payload.len());
            }
        }
    }
    assert!(
        decoded > 10_000,
        "only {decoded} payloads got past the first bytes"
    );
}
