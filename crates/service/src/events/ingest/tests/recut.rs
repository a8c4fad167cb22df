//! Engines whose block size is a multiple or a divisor of the partition's, which is 4 here.

use super::*;

fn sized(hashes: &[u32], parent: Option<u32>, ids: &[u32], size: u32) -> V {
    V::List(stored(hashes, parent, ids, size))
}

#[test]
fn larger_blocks_are_cut_and_removed_and_stored_again_exactly() {
    let mut rig = Rig::new();
    let prompt = tokens(1..25);
    rig.apply_events(vec![
        sized(&[1, 2], None, &prompt[..16], 8),
        sized(&[3], Some(2), &prompt[16..], 8),
    ]);
    assert_eq!(rig.overlap(&prompt), 6);
    assert_eq!(
        rig.overlap(&prompt[..4]),
        1,
        "half an engine block is a block"
    );
    rig.apply_events(vec![removed(&[2])]);
    assert_eq!(rig.overlap(&prompt), 2);
    rig.apply_events(vec![sized(&[2], Some(1), &prompt[8..16], 8)]);
    assert_eq!(rig.overlap(&prompt), 6, "what was behind the hole is back");
    let report = rig.progress.report();
    assert_eq!((report.recut_events, report.block_size_mismatches), (3, 0));
    assert_eq!(report.mismatched_block_size, Some(8));
}

#[test]
fn smaller_blocks_are_joined_and_go_with_any_of_their_parts() {
    let mut rig = Rig::new();
    let prompt = tokens(1..13);
    rig.apply_events(vec![
        sized(&[1, 2, 3], None, &prompt[..6], 2),
        sized(&[4, 5, 6], Some(3), &prompt[6..], 2),
    ]);
    assert_eq!(rig.overlap(&prompt), 3);
    assert_eq!(rig.ingest.remembered(), 6);
    rig.apply_events(vec![removed(&[3])]);
    assert_eq!(rig.overlap(&prompt), 1);
    rig.apply_events(vec![sized(&[3], Some(2), &prompt[4..6], 2)]);
    assert_eq!(rig.overlap(&prompt), 3);
    rig.apply_events(vec![removed(&[1, 2, 3, 4, 5, 6])]);
    assert_eq!(rig.overlap(&prompt), 0);
    assert_eq!(rig.ingest.remembered(), 0);
}

#[test]
fn copies_of_joined_blocks_are_counted_part_by_part() {
    let mut rig = Rig::new();
    let prompt = tokens(1..5);
    let both = || sized(&[1, 2], None, &prompt, 2);
    rig.apply_events(vec![both(), both(), removed(&[1])]);
    assert_eq!(rig.overlap(&prompt), 1);
    rig.apply_events(vec![removed(&[1])]);
    assert_eq!(rig.overlap(&prompt), 0);
}

#[test]
fn joined_blocks_of_one_store_stay_in_a_row_behind_a_parent_that_is_held() {
    let mut rig = Rig::new();
    let prompt = tokens(1..13);
    rig.apply_events(vec![
        sized(&[1, 2], None, &prompt[..4], 2),
        sized(&[3, 4, 5, 6], Some(2), &prompt[4..], 2),
    ]);
    assert_eq!(rig.overlap(&prompt), 3);
}

#[test]
fn joined_blocks_wait_for_a_parent_that_is_unknown() {
    let mut rig = Rig::new();
    let prompt = tokens(1..13);
    rig.apply_events(vec![
        sized(&[5, 6], Some(4), &prompt[8..], 2),
        sized(&[3, 4], Some(2), &prompt[4..8], 2),
    ]);
    assert_eq!(rig.overlap(&prompt), 0);
    assert_eq!(rig.metrics.waiting_pieces.get(), 4);
    rig.apply_events(vec![sized(&[1, 2], None, &prompt[..4], 2)]);
    assert_eq!(rig.overlap(&prompt), 3);
    assert_eq!(rig.metrics.waiting_pieces.get(), 0);
}

#[test]
fn joined_blocks_that_were_removed_while_they_waited_do_not_come() {
    let mut rig = Rig::new();
    let prompt = tokens(1..13);
    rig.apply_events(vec![
        sized(&[3, 4, 5, 6], Some(2), &prompt[4..], 2),
        removed(&[6]),
        sized(&[1, 2], None, &prompt[..4], 2),
    ]);
    assert_eq!(rig.overlap(&prompt), 2);
    rig.apply_events(vec![removed(&[5, 4, 3, 2, 1])]);
    assert_eq!(rig.overlap(&prompt), 0);
    assert_eq!(rig.ingest.remembered(), 0);
}

#[test]
fn joined_blocks_that_wait_go_with_the_rank_and_with_what_is_doubted() {
    let mut rig = Rig::new();
    let prompt = tokens(1..9);
    let late = || sized(&[3, 4], Some(2), &prompt[4..], 2);
    rig.apply_events(vec![late(), cleared()]);
    assert_eq!(rig.metrics.waiting_pieces.get(), 0);
    rig.apply_events(vec![late()]);
    rig.ingest.doubt();
    rig.ingest.drop_doubted();
    assert_eq!(rig.metrics.waiting_pieces.get(), 0);
    rig.apply_events(vec![late()]);
    rig.ingest.doubt();
    rig.ingest.trust();
    rig.ingest.drop_doubted();
    assert_eq!(rig.metrics.waiting_pieces.get(), 2);
    rig.apply_events(vec![sized(&[1, 2], None, &prompt[..4], 2)]);
    assert_eq!(rig.overlap(&prompt), 2);
}

#[test]
fn parts_of_a_block_that_is_not_whole_are_doubted_too() {
    let mut rig = Rig::new();
    let prompt = tokens(1..5);
    rig.apply_events(vec![sized(&[1], None, &prompt[..2], 2)]);
    rig.ingest.doubt();
    rig.ingest.drop_doubted();
    rig.apply_events(vec![sized(&[2], Some(1), &prompt[2..], 2)]);
    assert_eq!(
        rig.overlap(&prompt),
        0,
        "the removal of 1 may have been missed"
    );
}

#[test]
fn joined_blocks_are_given_up_for_want_of_room_and_counted() {
    let mut rig = Rig::new();
    let stores = (0..1_030_u32).map(|name| sized(&[10 + name], Some(1), &[name, 0], 2));
    rig.apply_events(stores.collect());
    assert_eq!(rig.metrics.skipped(SkipReason::UnknownParent), 6);
    assert_eq!(rig.metrics.waiting_pieces.get(), 1_024);
    drop(rig.ingest);
    assert_eq!(rig.metrics.waiting_pieces.get(), 0);
}

#[test]
fn cut_blocks_are_linked_to_a_lower_tier_and_leave_it() {
    let mut rig = Rig::new();
    let prompt = tokens(1..9);
    let on_host = |hashes: &[u32]| {
        let mut event = stored(hashes, None, &[], 0);
        event[6] = "CPU".into();
        V::List(event)
    };
    rig.apply_events(vec![
        sized(&[1], None, &prompt, 8),
        on_host(&[1]),
        removed(&[1]),
    ]);
    assert_eq!(rig.tiers(&prompt), (0, 2, 0));
    let from_host = V::List(vec![
        "BlockRemoved".into(),
        vec![1_u32].into(),
        "CPU".into(),
    ]);
    rig.apply_events(vec![from_host]);
    assert_eq!(rig.tiers(&prompt), (0, 0, 0));
}

#[test]
fn cut_and_plain_blocks_of_one_rank_are_told_apart() {
    let mut rig = Rig::new();
    let prompt = tokens(1..9);
    rig.apply_events(vec![
        sized(&[1], None, &prompt, 8),
        plain(&[7], None, &tokens(70..74)),
        removed(&[7]),
    ]);
    assert_eq!(rig.overlap(&prompt), 2);
    assert_eq!(rig.overlap(&tokens(70..74)), 0);
    rig.apply_events(vec![removed(&[1])]);
    assert_eq!(rig.overlap(&prompt), 0);
}

#[test]
fn a_namespace_is_inherited_across_cut_blocks() {
    let mut rig = Rig::new();
    let prompt = tokens(1..17);
    let mut first = stored(&[1], None, &prompt[..8], 8);
    first.push("poet".into());
    rig.apply_events(vec![V::List(first), sized(&[2], Some(1), &prompt[8..], 8)]);
    let poet = Asked {
        lora_name: Some("poet"),
        cache_salt: None,
    };
    assert_eq!(rig.overlap_as(0, &prompt, poet), 4);
    assert_eq!(rig.overlap(&prompt), 0);
}

#[test]
fn cut_blocks_with_media_are_left_out_as_their_place_is_not_told() {
    let mut rig = Rig::new();
    let digest = "ab".repeat(32);
    let keys = V::List(vec![V::Nil, V::List(vec![digest.as_str().into()])]);
    let mut event = stored(&[1, 2], None, &tokens(1..17), 8);
    event.extend([V::Nil, keys]);
    rig.apply_events(vec![V::List(event)]);
    assert_eq!(rig.overlap(&tokens(1..17)), 2);
    assert_eq!(rig.metrics.skipped(SkipReason::ExtraKeys), 1);
}

#[test]
fn too_many_block_sizes_are_refused_and_counted() {
    let mut rig = Rig::new();
    let sizes = 2..12_u32;
    let events = sizes.map(|factor| sized(&[factor], None, &tokens(0..4 * factor), 4 * factor));
    rig.apply_events(events.collect());
    assert_eq!(rig.metrics.skipped(SkipReason::RecutFull), 2);
}

#[test]
fn doubted_joined_blocks_are_forgotten_with_their_parts() {
    let mut rig = Rig::new();
    let prompt = tokens(1..9);
    rig.apply_events(vec![sized(&[1, 2, 3, 4], None, &prompt, 2)]);
    rig.ingest.doubt();
    assert_eq!(rig.ingest.drop_doubted(), 2);
    assert_eq!(rig.ingest.remembered(), 0);
    rig.apply_events(vec![sized(&[1, 2, 3, 4], None, &prompt, 2)]);
    assert_eq!(rig.overlap(&prompt), 2);
}

#[test]
fn larger_blocks_of_one_tier_may_continue_plain_ones_of_another() {
    let mut rig = Rig::new();
    let prompt = tokens(1..17);
    let mut chunk = stored(&[9], Some(2), &prompt[8..], 8);
    chunk[6] = "CPU".into();
    rig.apply_events(vec![plain(&[1, 2], None, &prompt[..8]), V::List(chunk)]);
    assert_eq!(rig.tiers(&prompt), (2, 2, 0));
    rig.apply_events(vec![V::List(vec![
        "BlockRemoved".into(),
        vec![9_u32].into(),
        "CPU".into(),
    ])]);
    assert_eq!(rig.tiers(&prompt), (2, 0, 0));
}
