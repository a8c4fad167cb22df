//! Payloads of engines, byte for byte, and payloads of nobody; no socket and no partition.

mod hostile;
mod recorded;

use super::super::sample::{self, V};
use super::super::skip::SkipReason;
use super::*;

/// Payloads as engines encode them; `make_kv_events.py` beside the file says how they were made.
fn fixture(name: &str) -> Vec<u8> {
    let line = include_str!("../../../tests/data/kv_events.txt")
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        .unwrap();
    (0..line.len() / 2)
        .map(|at| u8::from_str_radix(&line[2 * at..2 * at + 2], 16).unwrap())
        .collect()
}

fn decoded(name: &str) -> Batch {
    decode_batch(&fixture(name)).unwrap()
}

fn plain_store() -> Stored {
    Stored {
        engine_hashes: vec![7001, 7002],
        parent: Some(7000),
        tokens: vec![11, 12, 13, 300, 70_000, 16],
        bigram: false,
        block_size: 3,
        lora_name: None,
        cache_salt: None,
        media: vec![],
        readable_blocks: 2,
        tier: Tier::Device,
        group: Group::default(),
    }
}

/// Decodes one event alone.
fn one(event: V) -> Result<Event, SkipReason> {
    let mut batch = decode_batch(&sample::batch(vec![event])).unwrap();
    match batch.events.pop() {
        Some(event) => {
            assert_eq!(batch.skipped.total(), 0);
            Ok(event)
        }
        None => Err(batch.skipped.iter().next().unwrap().0),
    }
}

/// A store with these elements after the medium.
fn store_with(tail: Vec<V>) -> Result<Stored, SkipReason> {
    let mut event = sample::stored(&[1, 2], None, &[5, 6, 7, 8], 2);
    event.extend(tail);
    match one(V::List(event))? {
        Event::Stored(stored) => Ok(stored),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_array_store_is_read_as_published() {
    let batch = decoded("array_store");
    assert_eq!(batch.events, [Event::Stored(plain_store())]);
    assert_eq!(batch.dp_rank, Some(0));
}

#[test]
fn a_map_store_is_the_same_in_any_order_of_keys() {
    assert_eq!(decoded("map_store").events, decoded("array_store").events);
    assert_eq!(decoded("map_store").dp_rank, decoded("array_store").dp_rank);
}

#[test]
fn a_batch_may_be_a_map() {
    let batch = decoded("map_batch");
    assert_eq!(batch.events, [Event::Stored(plain_store())]);
    assert_eq!(batch.dp_rank, Some(3));
}

#[test]
fn removals_and_clears_are_read() {
    let removed = Removed {
        engine_hashes: vec![7002, 7001],
        remaining: vec![],
        tier: Tier::Device,
        group: Group::default(),
    };
    assert_eq!(decoded("array_remove").events, [Event::Removed(removed)]);
    assert_eq!(decoded("array_clear").events, [Event::Cleared]);
    assert_eq!(decoded("array_clear").dp_rank, None);
}

#[test]
fn a_clear_is_the_same_alone_and_with_fields_and_in_either_form() {
    for event in [
        &b"\x91\xb0AllBlocksCleared"[..],
        b"\x92\xb0AllBlocksCleared\xc0",
        b"\x91\xd9\x10AllBlocksCleared",
        b"\x81\xa4type\xb0AllBlocksCleared",
        b"\x82\xa4type\xb0AllBlocksCleared\xa6medium\xa3GPU",
    ] {
        let payload = [b"\x92\xc0\x91", event].concat();
        let batch = decode_batch(&payload).unwrap();
        assert_eq!(batch.events, [Event::Cleared], "{event:x?}");
        assert_eq!(batch.skipped, Skips::default());
    }
}

#[test]
fn hashes_of_either_sign_and_width_are_the_same_64_bits() {
    let Event::Removed(removed) = decoded("wide_hashes").events.remove(0) else {
        panic!()
    };
    let expected = [
        (1 << 63) + 5,
        u64::MAX,
        u64::MAX,
        1 << 63,
        (-200_i64).cast_unsigned(),
        (-40_000_i64).cast_unsigned(),
    ];
    assert_eq!(removed.engine_hashes, expected);
}

#[test]
fn byte_hashes_fold_to_their_last_eight_bytes() {
    let Event::Removed(removed) = decoded("byte_hashes").events.remove(0) else {
        panic!()
    };
    assert_eq!(removed.engine_hashes, [0x1819_1a1b_1c1d_1e1f, 0x0102]);
}

#[test]
fn elements_beyond_the_known_tail_are_passed_over() {
    let group = Group {
        index: Some(2),
        kind: Some(CacheKind::FullAttention),
    };
    let expected = Stored {
        group,
        ..plain_store()
    };
    assert_eq!(decoded("long_tail").events, [Event::Stored(expected)]);
}

#[test]
fn pairs_become_their_firsts_and_the_last_second() {
    let Event::Stored(stored) = decoded("pairs").events.remove(0) else {
        panic!()
    };
    assert!(stored.bigram);
    assert_eq!(stored.tokens, [11, 12, 13, 14]);
}

#[test]
fn salt_media_and_adapter_are_found_in_the_extra_keys() {
    let Event::Stored(stored) = decoded("keyed").events.remove(0) else {
        panic!()
    };
    assert_eq!(stored.lora_name.as_deref(), Some("poet"));
    assert_eq!(stored.cache_salt.as_deref(), Some("tenant"));
    assert_eq!(stored.media, [vec![], vec![0xabab_abab_abab_abab]]);
    assert_eq!(stored.readable_blocks, 2);
}

#[test]
fn a_salt_may_come_in_a_map_where_the_adapter_was_expected() {
    let map = V::Map(vec![
        ("session_id", "s".into()),
        ("cache_salt", "tenant".into()),
    ]);
    assert_eq!(
        store_with(vec![map]).unwrap().cache_salt.as_deref(),
        Some("tenant")
    );
    let other = V::Map(vec![("session_id", "s".into())]);
    assert_eq!(store_with(vec![other]).unwrap().cache_salt, None);
}

#[test]
fn a_salt_prefix_is_stripped_and_two_salts_contradict() {
    let keys = |salt: &str| V::List(vec![V::List(vec![salt.into()]), V::Nil]);
    let prefixed = store_with(vec![V::Nil, keys("dynamo-cache-salt:tenant")]).unwrap();
    assert_eq!(prefixed.cache_salt.as_deref(), Some("tenant"));
    let map = V::Map(vec![("cache_salt", "other".into())]);
    assert_eq!(
        store_with(vec![map, keys("tenant")]),
        Err(SkipReason::Namespace)
    );
}

#[test]
fn keys_that_cannot_be_read_end_what_is_readable() {
    let check = |keys: Vec<V>, readable: usize| {
        let stored = store_with(vec![V::Nil, V::List(keys.clone())]).unwrap();
        assert_eq!(stored.readable_blocks, readable, "{keys:?}");
    };
    let odd = |item: V| V::List(vec![item]);
    check(vec![], 2);
    check(vec![V::Nil, V::Nil], 2);
    check(vec![V::Nil], 1);
    check(vec![V::Nil, odd(V::Int(4))], 1);
    check(vec![odd(V::Bin(vec![1])), V::Nil], 0);
    check(vec![V::Nil, odd("a salt where none may be".into())], 1);
    check(vec![odd(V::Map(vec![])), V::Nil], 0);
    check(vec![V::Int(1)], 0);
    check(vec![odd(V::List(vec!["id".into(), V::Int(0)])), V::Nil], 2);
    check(vec![odd(V::List(vec!["id".into(), "x".into()])), V::Nil], 0);
}

#[test]
fn an_adapter_known_by_number_only_has_no_name_to_hash() {
    let mut event = sample::stored(&[1], None, &[5, 6], 2);
    event[5] = V::Int(3);
    assert_eq!(one(V::List(event.clone())), Err(SkipReason::UnnamedAdapter));
    event.push("poet".into());
    assert!(one(V::List(event)).is_ok());
}

#[test]
fn older_tails_are_told_by_their_types() {
    let tail = |values: Vec<V>| {
        let mut elements = vec![V::Nil, V::Nil];
        elements.extend(values);
        store_with(elements).map(|stored| stored.group)
    };
    let group = |index, kind| Ok(Group { index, kind });
    let full = Some(CacheKind::FullAttention);
    assert_eq!(
        tail(vec![V::Int(1), "full_attention".into(), V::Nil]),
        group(Some(1), full)
    );
    assert_eq!(
        tail(vec!["full_attention".into(), V::Int(4), V::Int(9)]),
        group(Some(4), full)
    );
    assert_eq!(
        tail(vec![V::Int(1), "mamba".into()]),
        group(Some(1), Some(CacheKind::Other))
    );
    assert_eq!(
        tail(vec![V::Nil, V::Nil, V::Nil, "REMOTE".into()]),
        Err(SkipReason::Locality)
    );
}

#[test]
fn what_is_not_the_engines_own_prefix_is_left_out_by_name() {
    let with = |pairs: Vec<(&'static str, V)>| {
        let mut event = vec![
            ("type", V::from("BlockStored")),
            ("block_hashes", vec![1_u32].into()),
            ("token_ids", vec![5_u32, 6].into()),
            ("block_size", 2_u32.into()),
        ];
        event.extend(pairs);
        one(V::Map(event)).err()
    };
    let check = |key: &'static str, value: V, reason| {
        assert_eq!(with(vec![(key, value.clone())]), reason, "{key} {value:?}");
    };
    check("medium", "gpu".into(), None);
    check("medium", "DEVICE".into(), None);
    check("medium", "".into(), None);
    for unknown in ["FS", "OBJ", "MOON"] {
        check("medium", unknown.into(), Some(SkipReason::UnknownMedium));
    }
    check("locality", "LOCAL".into(), None);
    check("locality", "REMOTE".into(), Some(SkipReason::Locality));
    check("locality", "MOON".into(), Some(SkipReason::Locality));
    check("ownership", "kvcr".into(), Some(SkipReason::Ownership));
    check("kv_cache_spec_kind", "full_attention".into(), None);
    check(
        "kv_cache_spec_kind",
        "sliding_window".into(),
        Some(SkipReason::CacheKind),
    );
    check(
        "kv_cache_spec_kind",
        "tomorrow".into(),
        Some(SkipReason::CacheKind),
    );
    check(
        "lookahead_token_ids",
        vec![9_u32].into(),
        Some(SkipReason::Lookahead),
    );
    check("lookahead_token_ids", V::List(vec![]), None);
    check("lookahead_token_ids", V::Nil, None);
}

#[test]
fn a_bad_event_leaves_the_others_of_its_batch() {
    let good = || V::List(sample::stored(&[9], None, &[1, 2], 2));
    let mut negative = sample::stored(&[1], None, &[1, 2], 2);
    negative[4] = V::Int(-1);
    let mut huge_token = sample::stored(&[1], None, &[1, 2], 2);
    huge_token[3] = V::List(vec![V::Big(1 << 32), V::Int(1)]);
    let bad = vec![
        (V::List(negative), SkipReason::Malformed),
        (V::List(huge_token), SkipReason::Malformed),
        (V::List(vec!["BlockStored".into()]), SkipReason::Malformed),
        (
            V::List(vec!["BlockRemoved".into(), "x".into()]),
            SkipReason::Malformed,
        ),
        (
            V::List(vec!["Tomorrow".into(), V::Map(vec![])]),
            SkipReason::UnknownEvent,
        ),
        (V::List(vec!["Ignored".into()]), SkipReason::UnknownEvent),
        (V::List(vec![]), SkipReason::UnknownEvent),
        (
            V::Map(vec![("type", "Tomorrow".into())]),
            SkipReason::UnknownEvent,
        ),
        (
            V::Map(vec![("block_hashes", V::List(vec![]))]),
            SkipReason::UnknownEvent,
        ),
        (V::Int(4), SkipReason::Malformed),
        (V::Nil, SkipReason::Malformed),
    ];
    for (event, reason) in bad {
        let payload = sample::batch(vec![good(), event.clone(), good()]);
        let batch = decode_batch(&payload).unwrap();
        assert_eq!(batch.events.len(), 2, "{event:?}");
        assert_eq!(batch.skipped.of(reason), 1, "{event:?}");
        assert_eq!(batch.skipped.total(), 1, "{event:?}");
    }
}

#[test]
fn a_payload_that_is_no_batch_is_refused() {
    for payload in [
        V::Nil.encode(),
        V::List(vec![]).encode(),
        V::List(vec![V::Float(1.0)]).encode(),
        V::List(vec![V::Float(1.0), V::Nil]).encode(),
        V::List(vec![V::Float(1.0), V::List(vec![]), V::Int(-1)]).encode(),
        V::Map(vec![("ts", V::Float(1.0))]).encode(),
        Bytes::new(),
        Bytes::from_static(&[0xc1; 64]),
    ] {
        assert!(decode_batch(&payload).is_err(), "{payload:?}");
    }
}

#[test]
fn a_batch_of_two_elements_or_of_five_is_taken() {
    let clear = || V::List(vec![sample::cleared()]);
    let short = V::List(vec![V::Nil, clear()]).encode();
    let long = V::List(vec![V::Nil, clear(), V::Int(1), V::Nil, V::Map(vec![])]).encode();
    assert_eq!(decode_batch(&short).unwrap().events, [Event::Cleared]);
    assert_eq!(decode_batch(&long).unwrap().dp_rank, Some(1));
}

#[test]
fn a_live_message_has_three_frames_and_an_eight_byte_number() {
    let bytes = |raw: &[u8]| Bytes::copy_from_slice(raw);
    let number = bytes(&7_u64.to_be_bytes());
    let good = live_frame(&[bytes(b"any topic"), number.clone(), bytes(b"p")]).unwrap();
    assert_eq!(
        good,
        Frame {
            sequence: 7,
            payload: bytes(b"p")
        }
    );
    let bad: [&[Bytes]; 5] = [
        &[],
        &[bytes(b"p")],
        &[number.clone(), bytes(b"p")],
        &[bytes(b""), bytes(&[0, 0, 1]), bytes(b"p")],
        &[bytes(b""), number, bytes(b"p"), bytes(b"")],
    ];
    for parts in bad {
        assert!(live_frame(parts).is_err(), "{parts:?}");
    }
    assert!(live_frame(&[bytes(b""), bytes(&[0xff; 8]), bytes(b"p")]).is_err());
}

#[test]
fn a_replay_message_may_have_a_topic_and_ends_with_an_empty_payload() {
    let bytes = |raw: &[u8]| Bytes::copy_from_slice(raw);
    let number = || bytes(&7_u64.to_be_bytes());
    let end = || bytes(&[0xff; 8]);
    let batch = ReplayFrame::Batch(Frame {
        sequence: 7,
        payload: bytes(b"p"),
    });
    let check = |parts: &[Bytes], expected: Option<ReplayFrame>| {
        assert_eq!(replay_frame(parts).ok(), expected, "{parts:?}");
    };
    check(&[bytes(b""), number(), bytes(b"p")], Some(batch.clone()));
    check(
        &[bytes(b""), bytes(b"kv"), number(), bytes(b"p")],
        Some(batch.clone()),
    );
    check(&[bytes(b""), end(), bytes(b"")], Some(ReplayFrame::End));
    check(
        &[bytes(b""), bytes(b""), end(), bytes(b"")],
        Some(ReplayFrame::End),
    );
    check(&[number(), bytes(b"p")], Some(batch.clone()));
    check(&[bytes(b"x"), number(), bytes(b"p")], Some(batch));
    check(&[number(), number(), number(), bytes(b"p")], None);
    check(
        &[bytes(b""), bytes(b"x"), bytes(b"y"), number(), bytes(b"p")],
        None,
    );
    check(&[bytes(b""), bytes(&[1]), bytes(b"p")], None);
}

#[test]
fn a_medium_is_a_tier_in_stores_and_removals_alike() {
    let names = [
        (Tier::Device, &["", "gpu", "DEVICE"][..]),
        (Tier::Host, &["CPU", "CPU_PINNED", "cpu_tier1"]),
        (Tier::Disk, &["CPU_TIER2", "DISK", "NVME", "STORAGE"]),
        (Tier::External, &["EXTERNAL", "NETWORK", "REMOTE", "SHARED"]),
    ];
    for (tier, media) in names {
        for &medium in media {
            let mut store = sample::stored(&[1], None, &[5, 6], 2);
            store[6] = medium.into();
            let removal = vec!["BlockRemoved".into(), vec![1_u32].into(), medium.into()];
            match (one(V::List(store)), one(V::List(removal))) {
                (Ok(Event::Stored(stored)), Ok(Event::Removed(removed))) => {
                    assert_eq!((stored.tier, removed.tier), (tier, tier), "{medium}");
                }
                other => panic!("{medium}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_lower_tier_store_may_have_no_tokens_and_no_size() {
    for size in [V::Nil, V::Int(0), V::Int(16)] {
        let mut event = sample::stored(&[1, 2], None, &[], 0);
        event[4] = size;
        event[5] = V::Int(3);
        event[6] = "CPU".into();
        let Ok(Event::Stored(stored)) = one(V::List(event.clone())) else {
            panic!("{event:?}")
        };
        assert_eq!(stored.engine_hashes, [1, 2]);
        assert!(stored.tokens.is_empty());
    }
}

#[test]
fn copies_left_are_read_wherever_a_removal_has_them() {
    let counts = || V::List(vec![V::Int(1), V::Nil, V::Int(0)]);
    let expected = vec![Some(1), None, Some(0)];
    let hashes = || V::from(vec![1_u32, 2, 3]);
    let array = |tail: Vec<V>| {
        let mut event = vec!["BlockRemoved".into(), hashes(), "GPU".into()];
        event.extend(tail);
        V::List(event)
    };
    let group = || V::Int(0);
    let map = V::Map(vec![
        ("type", "BlockRemoved".into()),
        ("block_hashes", hashes()),
        ("remaining_copy_counts", counts()),
    ]);
    let full = [group(), V::Nil, V::Nil, "LOCAL".into(), V::Nil, counts()];
    for event in [map, array(vec![group(), counts()]), array(full.to_vec())] {
        let Ok(Event::Removed(removed)) = one(event.clone()) else {
            panic!("{event:?}")
        };
        assert_eq!(removed.remaining, expected, "{event:?}");
    }
    for odd in [
        V::List(vec![V::Int(1)]),
        V::List(vec![V::Int(-1); 3]),
        V::Int(3),
    ] {
        let map = V::Map(vec![
            ("type", "BlockRemoved".into()),
            ("block_hashes", hashes()),
            ("remaining_copy_counts", odd.clone()),
        ]);
        let Ok(Event::Removed(removed)) = one(map) else {
            panic!("{odd:?}")
        };
        assert!(removed.remaining.is_empty(), "{odd:?}");
    }
}

#[test]
fn media_are_read_from_a_list_of_their_own() {
    let object = |hash: V| V::Map(vec![("mm_hash", hash), ("offsets", V::List(vec![]))]);
    let entry = |objects: Vec<V>| V::Map(vec![("mm_objects", V::List(objects))]);
    let media = |infos: Vec<V>| {
        let event = vec![
            ("type", V::from("BlockStored")),
            ("block_hashes", vec![1_u32, 2].into()),
            ("token_ids", vec![5_u32, 6, 7, 8].into()),
            ("block_size", 2_u32.into()),
            ("block_mm_infos", V::List(infos)),
        ];
        match one(V::Map(event)) {
            Ok(Event::Stored(stored)) => (stored.media, stored.readable_blocks),
            other => panic!("{other:?}"),
        }
    };
    let digest = "00000000000000ff".to_owned() + &"0".repeat(48);
    let known = entry(vec![object(V::Big(7)), object(digest.as_str().into())]);
    assert_eq!(
        media(vec![V::Nil, known.clone()]),
        (vec![vec![], vec![7, 255]], 2)
    );
    assert_eq!(media(vec![V::Nil, V::Nil]), (vec![], 2));
    assert_eq!(media(vec![]), (vec![], 2));
    assert_eq!(media(vec![known.clone()]), (vec![vec![7, 255]], 1));
    assert_eq!(media(vec![known.clone(), V::Int(4)]).1, 1);
    assert_eq!(media(vec![entry(vec![object(V::Nil)]), known]).1, 0);
}

#[test]
fn one_batch_after_another_decodes_into_the_same_buffers() {
    let mut batch = Batch::default();
    for name in ["array_store", "map_store", "array_remove", "array_store"] {
        batch.decode(&fixture(name)).unwrap();
        assert_eq!(batch.events, decoded(name).events, "{name}");
    }
    let buffer_of = |batch: &Batch| match &batch.events[0] {
        Event::Stored(stored) => stored.tokens.as_ptr(),
        other => panic!("{other:?}"),
    };
    let before = buffer_of(&batch);
    batch.decode(&fixture("array_store")).unwrap();
    assert_eq!(buffer_of(&batch), before);
    assert!(batch.decode(&fixture("array_store")[..40]).is_err());
    assert!(batch.events.is_empty());
}

#[test]
fn fields_without_a_name_are_counted_and_change_nothing() {
    let unknown = |event: V| {
        let batch = decode_batch(&sample::batch(vec![event])).unwrap();
        assert_eq!(batch.events.len(), 1);
        batch.skipped.unknown_fields
    };
    let map = |pairs: Vec<(&'static str, V)>| {
        let mut event = vec![
            ("type", V::from("BlockRemoved")),
            ("block_hashes", vec![1_u32].into()),
        ];
        event.extend(pairs);
        unknown(V::Map(event))
    };
    assert_eq!(
        map(vec![("medium", "GPU".into()), ("session_id", "s".into())]),
        0
    );
    assert_eq!(map(vec![("reason", "full".into()), ("when", V::Int(1))]), 2);
    let mut array = vec!["BlockRemoved".into(), vec![1_u32].into(), "GPU".into()];
    array.extend([V::Int(0), V::Nil, V::Nil, V::Nil, V::Nil, V::Nil]);
    assert_eq!(unknown(V::List(array.clone())), 0);
    array.extend([V::from("full"), V::Map(vec![])]);
    assert_eq!(unknown(V::List(array)), 2);
    let batch = V::Map(vec![
        ("ts", V::Float(1.0)),
        ("events", V::List(vec![])),
        ("engine", "e".into()),
    ]);
    assert_eq!(
        decode_batch(&batch.encode())
            .unwrap()
            .skipped
            .unknown_fields,
        1
    );
}

#[test]
fn the_rank_is_found_without_the_events() {
    for name in [
        "array_store",
        "map_store",
        "map_batch",
        "array_clear",
        "keyed",
    ] {
        assert_eq!(rank_of(&fixture(name)), decoded(name).dp_rank, "{name}");
    }
    assert_eq!(rank_of(&[0xc1]), None);
}
