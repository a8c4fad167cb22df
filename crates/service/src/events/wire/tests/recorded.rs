//! The recorded frames of real publishers: what was published is what they decode to.

use std::fmt::Write;

use super::super::super::skip::SkipReason;
use super::super::*;

use super::super::super::sample::recording::recording;

const NUMBERS: &str = "vllm 0.33.0 rank 0, numbers";
const DIGESTS: &str = "vllm 0.33.0 rank 1, digests";
const PAGES: &str = "sglang 0.5.23 rank 0";
const BIGRAMS: &str = "sglang 0.5.23 rank 1, bigrams";
const ALL: [&str; 4] = [NUMBERS, DIGESTS, PAGES, BIGRAMS];

/// The names of blocks: the first and the last 8 bytes of the digest of a label.
const LABELS: [(&str, u64, u64); 18] = [
    ("p4", 0xab71_fc4c_8a1c_4d62, 0x8c39_59d6_af57_3608),
    ("p8", 0x9b85_c082_8dcf_bc88, 0x3a69_a52d_8698_d72e),
    ("p12", 0xbdcf_c6ac_707b_82e8, 0x7028_6066_a0af_e491),
    ("p16", 0x63d6_b158_48b2_2a70, 0x4fb7_2a19_73fb_eae0),
    ("p20", 0xc1e2_cf4a_aa4b_3565, 0xd8e6_3ec4_bc84_6710),
    ("l4", 0x9f10_2fe3_a7d6_18f9, 0x0124_a9bf_2047_436d),
    ("l8", 0xedfe_c06e_9dfe_9c42, 0x99d7_b73b_2df8_a78e),
    ("s4", 0x5b84_0157_e7e8_6aef, 0x475e_d1bc_d3e7_fca2),
    ("s8", 0x1cb7_637b_6957_ac5d, 0x4d41_c2ea_58b8_9e97),
    ("m4", 0x2396_a125_6ac4_b1c6, 0x819a_33b9_5d8d_603f),
    ("m8", 0x5936_0be6_0745_9a4c, 0x648f_814d_14f1_541b),
    ("w4", 0x879c_c67a_846b_570c, 0x782c_b6c8_c568_ab53),
    ("b4", 0x486b_acc5_c2d8_a71a, 0xda1e_9b8e_00f2_1943),
    ("f4", 0x608c_db52_4384_f5ee, 0x8e28_ad68_d025_69e8),
    ("e4", 0x4497_7712_4b14_66a8, 0x8894_e957_f876_2353),
    ("a4", 0x4539_e4b4_8890_79c2, 0x8ba2_7361_ad47_6d6b),
    ("q4", 0x112f_2dfa_3120_5df3, 0xc2e4_ef90_3ee9_f26a),
    ("q8", 0xd991_b1bb_53f9_3479, 0x504c_3576_c27e_b511),
];

fn label(name: u64) -> &'static str {
    let known = LABELS
        .iter()
        .find(|(_, high, low)| [*high, *low].contains(&name));
    known.map_or("?", |known| known.0)
}

fn labels(names: &[u64]) -> String {
    let labels: Vec<_> = names.iter().map(|name| label(*name)).collect();
    labels.join(" ")
}

fn tier_in_words(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "",
        Tier::Host => " in memory",
        Tier::Disk => " on disk",
        Tier::External => " elsewhere",
    }
}

/// An event in words: blocks, parent, tokens, and what else makes the blocks what they are.
fn described(event: &Event) -> String {
    match event {
        Event::Cleared => "cleared".to_owned(),
        Event::Removed(removed) => {
            let blocks = labels(&removed.engine_hashes);
            format!("- {blocks}{}", tier_in_words(removed.tier))
        }
        Event::Stored(stored) if stored.tokens.is_empty() => {
            let blocks = labels(&stored.engine_hashes);
            format!("+ {blocks} by name{}", tier_in_words(stored.tier))
        }
        Event::Stored(stored) => {
            let blocks = labels(&stored.engine_hashes);
            let parent = stored.parent.map_or("", label);
            let (first, last) = (stored.tokens.first(), stored.tokens.last());
            let mut text = format!(
                "+ {blocks} <{parent}> {}..={}",
                first.unwrap(),
                last.unwrap()
            );
            assert_eq!(stored.block_size, 4);
            let expected = 4 * stored.engine_hashes.len() + usize::from(stored.bigram);
            assert_eq!(stored.tokens.len(), expected);
            if let Some(lora_name) = &stored.lora_name {
                write!(text, " adapter {lora_name}").unwrap();
            }
            if let Some(salt) = &stored.cache_salt {
                write!(text, " salt {salt}").unwrap();
            }
            for items in &stored.media {
                write!(text, " media {items:x?}").unwrap();
            }
            if stored.readable_blocks < stored.engine_hashes.len() {
                write!(text, " readable {}", stored.readable_blocks).unwrap();
            }
            text.push_str(tier_in_words(stored.tier));
            if stored.group.kind == Some(CacheKind::Other) {
                write!(text, " group {}", stored.group.index.unwrap()).unwrap();
            }
            text
        }
    }
}

/// The batch of a live message, with the rank it must carry.
fn batch(title: &str, number: usize, dp_rank: u32) -> Batch {
    let frame = live_frame(&recording(title).live[number]).unwrap();
    assert_eq!(usize::try_from(frame.sequence), Ok(number));
    let batch = decode_batch(&frame.payload).unwrap();
    assert_eq!(batch.dp_rank, Some(dp_rank));
    batch
}

fn check(title: &str, dp_rank: u32, number: usize, expected: &[&str]) {
    let batch = batch(title, number, dp_rank);
    let found: Vec<_> = batch.events.iter().map(described).collect();
    assert_eq!(found, expected, "batch {number} of {title}");
    assert_eq!(batch.skipped.total(), 0, "batch {number} of {title}");
}

fn check_blocks_and_groups(title: &str, dp_rank: u32) {
    let check = |number, expected: &[&str]| check(title, dp_rank, number, expected);
    check(0, &["+ p4 p8 p12 <> 1..=12"]);
    check(1, &["+ p16 p20 <p12> 13..=20"]);
    check(2, &["+ l4 l8 <> 1..=8 adapter poet"]);
    check(3, &["+ s4 s8 <> 1..=8 salt tenant-1"]);
    let media = "media [92b2fa5802895831] media [92b2fa5802895831]";
    check(4, &[&format!("+ m4 m8 <> 1..=8 {media}")]);
    check(
        5,
        &[
            "+ w4 <> 101..=104 group 1",
            "+ b4 <> 101..=104 group 2",
            "+ f4 <> 101..=104",
            "- w4",
        ],
    );
    check(8, &["- p20", "- l8", "- p16"]);
    check(9, &["+ p16 <p12> 13..=16"]);
    check(10, &[]);
    check(11, &["cleared"]);
    check(12, &["+ q4 q8 <> 401..=408"]);
}

#[test]
fn blocks_named_by_numbers_decode_to_what_was_published() {
    check_blocks_and_groups(NUMBERS, 0);
}

#[test]
fn blocks_named_by_digests_decode_to_the_same() {
    check_blocks_and_groups(DIGESTS, 1);
}

#[test]
fn blocks_without_an_identity_are_left_out_by_name() {
    for (title, dp_rank) in [(NUMBERS, 0), (DIGESTS, 1)] {
        let batch = batch(title, 6, dp_rank);
        let found: Vec<_> = batch.events.iter().map(described).collect();
        assert_eq!(found, ["+ e4 <> 201..=204 readable 0"]);
        assert_eq!(batch.skipped.of(SkipReason::Lookahead), 1);
        assert_eq!(batch.skipped.total(), 1);
    }
}

#[test]
fn a_block_that_is_offloaded_is_named_and_one_that_is_sent_away_is_left_out() {
    for (title, dp_rank) in [(NUMBERS, 0), (DIGESTS, 1)] {
        let batch = batch(title, 7, dp_rank);
        let found: Vec<_> = batch.events.iter().map(described).collect();
        assert_eq!(found, ["+ p4 by name in memory"]);
        assert_eq!(batch.skipped.of(SkipReason::Locality), 1);
        assert_eq!(batch.skipped.total(), 1);
    }
}

#[test]
fn pages_decode_to_what_was_published() {
    let check = |number, expected: &[&str]| check(PAGES, 0, number, expected);
    check(0, &["+ p4 <> 1..=4", "+ p8 <p4> 5..=8"]);
    check(1, &["+ p12 <p8> 9..=12"]);
    check(
        2,
        &[
            "+ s4 <> 1..=4 salt tenant-1",
            "+ s8 <s4> 5..=8 salt tenant-1",
        ],
    );
    check(3, &["+ l4 <> 1..=4 adapter poet"]);
    check(
        4,
        &[
            "+ p4 <> 1..=4 in memory",
            "+ p8 <p4> 5..=8 in memory",
            "+ p4 <> 1..=4 on disk",
            "+ p4 <> 1..=4 elsewhere",
        ],
    );
    check(5, &["- p8 p12"]);
    check(
        6,
        &["- p4 in memory", "+ p8 <p4> 5..=8", "+ p12 <p8> 9..=12"],
    );
    check(7, &["cleared"]);
    check(8, &["+ q4 <> 401..=404"]);
}

#[test]
fn pages_of_bigrams_decode_to_windows_that_overlap() {
    let check = |number, expected: &[&str]| check(BIGRAMS, 1, number, expected);
    check(0, &["+ p4 <> 1..=5", "+ p8 <p4> 5..=9"]);
    check(1, &["+ p12 <p8> 9..=13"]);
    check(2, &["- p8 p12"]);
    check(
        3,
        &["- p4 in memory", "+ p8 <p4> 5..=9", "+ p12 <p8> 9..=13"],
    );
    check(4, &["cleared"]);
    check(5, &["+ q4 <> 401..=405"]);
}

#[test]
fn an_answer_carries_the_live_payload_and_ends_with_a_marker() {
    for title in ALL {
        let recording = recording(title);
        for answers in &recording.replays {
            let (end, batches) = answers.split_last().unwrap();
            assert_eq!(replay_frame(end), Ok(ReplayFrame::End));
            for answer in batches {
                let Ok(ReplayFrame::Batch(frame)) = replay_frame(answer) else {
                    panic!("{answer:?} is no batch");
                };
                let live = &recording.live[usize::try_from(frame.sequence).unwrap()];
                assert_eq!(live_frame(live), Ok(frame));
            }
        }
    }
}
