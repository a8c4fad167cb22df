//! Tiers, groups and copies: where a block is, and how many removals it takes.

use pointsman_core::hash::BlockHash;
use pointsman_core::index::StoredBlock;

use super::*;

fn stored_in(medium: &str, hashes: &[u32], parent: Option<u32>, ids: &[u32]) -> V {
    let mut event = stored(hashes, parent, ids, 4);
    event[6] = medium.into();
    V::List(event)
}

fn removed_from(medium: &str, hashes: &[u32]) -> V {
    V::List(vec![
        "BlockRemoved".into(),
        hashes.to_vec().into(),
        medium.into(),
    ])
}

/// A store without tokens, as offloading engines send it.
fn placeholder(medium: &str, hashes: &[u32]) -> V {
    let mut event = stored(hashes, None, &[], 0);
    event[6] = medium.into();
    V::List(event)
}

fn in_group(hashes: &[u32], parent: Option<u32>, ids: &[u32], group: u32) -> V {
    let tail = vec![V::Nil, V::Nil, group.into(), "full_attention".into()];
    keyed(hashes, parent, ids, tail)
}

fn removed_in_group(hashes: &[u32], group: Option<u32>) -> V {
    let mut event = vec!["BlockRemoved".into(), hashes.to_vec().into(), "GPU".into()];
    event.extend(group.map(V::from));
    V::List(event)
}

#[test]
fn each_medium_is_a_tier_and_continues_the_faster_ones() {
    let mut rig = Rig::new();
    let prompt = tokens(1..17);
    rig.apply_events(vec![
        stored_in("GPU", &[1], None, &prompt[..4]),
        stored_in("CPU_PINNED", &[2], Some(1), &prompt[4..8]),
        stored_in("NVME", &[3], Some(2), &prompt[8..12]),
        stored_in("REMOTE", &[4], Some(3), &prompt[12..]),
    ]);
    assert_eq!(rig.tiers(&prompt), (1, 1, 2));
}

#[test]
fn a_removal_is_of_its_own_tier_alone() {
    let mut rig = Rig::new();
    let prompt = tokens(1..13);
    rig.apply_events(vec![
        stored_in("GPU", &[1, 2, 3], None, &prompt),
        stored_in("CPU", &[1, 2, 3], None, &prompt),
        removed_from("GPU", &[9, 3, 2]),
    ]);
    assert_eq!(rig.tiers(&prompt), (1, 2, 0));
    rig.apply_events(vec![removed_from("CPU", &[9, 3, 2])]);
    assert_eq!(rig.tiers(&prompt), (1, 0, 0));
    rig.apply_events(vec![removed_from("FS", &[1])]);
    assert_eq!(rig.tiers(&prompt), (1, 0, 0));
}

#[test]
fn a_placeholder_is_what_the_rank_knows_by_that_name() {
    let mut rig = Rig::new();
    let prompt = tokens(1..13);
    rig.apply_events(vec![
        placeholder("CPU", &[1, 2]),
        stored_in("GPU", &[1, 2, 3], None, &prompt),
    ]);
    assert_eq!(rig.metrics.skipped(SkipReason::UnknownBlock), 1);
    rig.apply_events(vec![
        placeholder("CPU", &[1, 2, 3]),
        removed_from("GPU", &[1, 2, 3]),
    ]);
    assert_eq!(rig.tiers(&prompt), (0, 3, 0));
    rig.apply_events(vec![
        placeholder("DISK", &[1, 2]),
        removed_from("CPU", &[1, 2, 3]),
    ]);
    assert_eq!(rig.tiers(&prompt), (0, 0, 2));
    rig.apply_events(vec![removed_from("DISK", &[1, 2])]);
    assert_eq!(rig.tiers(&prompt), (0, 0, 0));
}

#[test]
fn a_clear_is_of_all_tiers_of_its_rank() {
    let mut rig = Rig::new();
    let prompt = tokens(1..5);
    rig.apply_events(vec![
        stored_in("GPU", &[1], None, &prompt),
        placeholder("CPU", &[1]),
    ]);
    rig.apply(batch_of_rank(1, vec![plain(&[1], None, &prompt)]));
    rig.apply(batch_of_rank(1, vec![cleared()]));
    assert_eq!(rig.tiers(&prompt), (1, 0, 0));
    assert_eq!(rig.overlap_as(1, &prompt, Asked::default()), 0);
    rig.apply_events(vec![cleared()]);
    assert_eq!(rig.tiers(&prompt), (0, 0, 0));
}

#[test]
fn copies_in_different_groups_are_removed_one_by_one() {
    let mut rig = Rig::new();
    let prompt = tokens(1..5);
    rig.apply_events(vec![
        in_group(&[1], None, &prompt, 0),
        in_group(&[1], None, &prompt, 2),
        removed_in_group(&[1], Some(0)),
        removed_in_group(&[1], Some(0)),
    ]);
    assert_eq!(rig.overlap(&prompt), 1);
    rig.apply_events(vec![removed_in_group(&[1], Some(2))]);
    assert_eq!(rig.overlap(&prompt), 0);
}

#[test]
fn a_removal_without_a_group_is_of_the_groups_that_stores_named() {
    let mut rig = Rig::new();
    let prompt = tokens(1..5);
    rig.apply_events(vec![
        in_group(&[1], None, &prompt, 3),
        removed_in_group(&[1], None),
    ]);
    assert_eq!(rig.overlap(&prompt), 0);
    let mut mixed = Rig::new();
    mixed.apply_events(vec![
        in_group(&[1], None, &prompt, 3),
        plain(&[1], None, &prompt),
        removed_in_group(&[1], None),
    ]);
    assert_eq!(mixed.overlap(&prompt), 1, "of those without a group");
}

#[test]
fn one_name_may_mean_other_blocks_in_other_ranks() {
    let mut rig = Rig::new();
    let (one, two) = (tokens(1..5), tokens(21..25));
    rig.apply_events(vec![plain(&[1], None, &one)]);
    rig.apply(batch_of_rank(1, vec![plain(&[1], None, &two)]));
    assert_eq!(rig.overlap(&one), 1);
    assert_eq!(rig.overlap_as(1, &two, Asked::default()), 1);
    rig.apply_events(vec![removed(&[1])]);
    assert_eq!(rig.overlap(&one), 0);
    assert_eq!(rig.overlap_as(1, &two, Asked::default()), 1);
}

#[test]
fn what_the_engine_says_of_copies_left_wins() {
    let left = |hashes: &[u32], counts: Vec<V>| {
        V::Map(vec![
            ("type", "BlockRemoved".into()),
            ("block_hashes", hashes.to_vec().into()),
            ("medium", "GPU".into()),
            ("remaining_copy_counts", V::List(counts)),
        ])
    };
    let mut rig = Rig::new();
    let prompt = tokens(1..9);
    let twice = || plain(&[1, 2], None, &prompt);
    rig.apply_events(vec![twice(), twice(), left(&[2], vec![V::Int(0)])]);
    assert_eq!(rig.overlap(&prompt), 1, "only the last removal was told");
    rig.apply_events(vec![left(&[1], vec![V::Int(1)])]);
    assert_eq!(rig.overlap(&prompt), 1);
    rig.apply_events(vec![left(&[1], vec![V::Int(1)])]);
    assert_eq!(
        rig.overlap(&prompt),
        1,
        "one is left, however often that is said"
    );
    rig.apply_events(vec![left(&[1], vec![V::Nil])]);
    assert_eq!(
        rig.overlap(&prompt),
        0,
        "a removal without a count takes one"
    );
}

#[test]
fn a_child_that_waits_keeps_its_namespace_for_its_own_children() {
    let mut rig = Rig::new();
    let prompt = tokens(1..17);
    let tenant = Asked {
        lora_name: None,
        cache_salt: Some("tenant"),
    };
    rig.apply_events(vec![
        keyed(&[2], Some(1), &prompt[4..8], salted("tenant")),
        plain(&[3], Some(2), &prompt[8..12]),
        keyed(&[1], None, &prompt[..4], salted("tenant")),
        plain(&[4], Some(3), &prompt[12..]),
    ]);
    assert_eq!(rig.overlap_as(0, &prompt, tenant), 4);
    assert_eq!(rig.metrics.applied(EventKind::Waiting), 2);
    assert_eq!(rig.overlap(&prompt), 0);
}

#[test]
fn a_block_that_was_removed_while_it_waited_does_not_come_back() {
    let mut rig = Rig::new();
    let prompt = tokens(1..13);
    rig.apply_events(vec![
        plain(&[2, 3], Some(1), &prompt[4..]),
        removed(&[3]),
        plain(&[1], None, &prompt[..4]),
    ]);
    assert_eq!(rig.overlap(&prompt), 2);
}

#[test]
fn what_is_named_again_is_believed_and_the_rest_is_dropped() {
    let mut rig = Rig::new();
    let prompt = tokens(1..17);
    rig.apply_events(vec![
        plain(&[1, 2, 3], None, &prompt[..12]),
        plain(&[9], None, &tokens(90..94)),
        keyed(&[7], None, &tokens(70..74), salted("tenant")),
    ]);
    assert_eq!(rig.ingest.remembered(), 1);
    rig.ingest.doubt();
    assert_eq!(rig.overlap(&prompt), 3, "what is doubted counts");
    rig.apply_events(vec![plain(&[4], Some(2), &prompt[12..])]);
    assert_eq!(rig.doubted(), 3, "block 2 and the one before it are there");
    assert_eq!(rig.ingest.drop_doubted(), 3);
    assert_eq!(rig.overlap(&prompt), 2);
    assert_eq!(rig.overlap(&tokens(90..94)), 0);
    assert_eq!(rig.ingest.remembered(), 0);
}

#[test]
fn what_waited_through_a_doubt_is_not_put_behind_a_later_parent() {
    let mut rig = Rig::new();
    let prompt = tokens(1..17);
    rig.apply_events(vec![plain(&[2], Some(1), &prompt[4..8])]);
    rig.ingest.doubt();
    // Its removal may have been lost; what comes now is sure.
    rig.apply_events(vec![plain(&[4], Some(3), &prompt[12..])]);
    rig.ingest.drop_doubted();
    rig.apply_events(vec![
        plain(&[1], None, &prompt[..4]),
        plain(&[3], Some(1), &prompt[8..12]),
    ]);
    assert_eq!(rig.overlap(&prompt), 1);
    let behind: Vec<u32> = (1..5).chain(9..17).collect();
    assert_eq!(rig.overlap(&behind), 3);
}

#[test]
fn trust_ends_all_doubt() {
    let mut rig = Rig::new();
    rig.apply_events(vec![plain(&[1], None, &tokens(1..5))]);
    rig.ingest.doubt();
    rig.ingest.trust();
    assert_eq!(rig.ingest.drop_doubted(), 0);
    assert_eq!(rig.overlap(&tokens(1..5)), 1);
}

#[test]
fn a_peers_word_is_not_trusted_with_the_engines() {
    let mut rig = Rig::new();
    let worker = WorkerWithDpRank::new(WORKER, 0);
    rig.apply_events(vec![plain(&[1], None, &tokens(1..5))]);
    let told = KvEvent::Stored {
        parent: None,
        blocks: vec![StoredBlock {
            engine_hash: EngineHash(9),
            block_hash: BlockHash(9),
        }],
    };
    let partition = Arc::clone(&rig.partition);
    partition.apply_unconfirmed(worker, Placement::default(), &told);
    rig.ingest.doubt();
    rig.ingest.trust();
    assert!(rig.doubted() > 0, "it is still to be confirmed or dropped");
    partition.drop_doubted(worker);
    rig.apply_events(vec![plain(&[1], None, &tokens(1..5))]);
    rig.ingest.doubt();
    rig.ingest.trust();
    assert_eq!(rig.doubted(), 0);
}
