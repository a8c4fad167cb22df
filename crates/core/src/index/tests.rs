//! What the index must answer, fact by fact; random histories are in `model`.

mod model;

use super::*;
use crate::hash::chain_all;

const WORKER: WorkerWithDpRank = WorkerWithDpRank::new(1, 0);
const OTHER: WorkerWithDpRank = WorkerWithDpRank::new(2, 0);

/// Blocks whose engine hashes are ten times their block hashes.
fn stored(parent: Option<u64>, blocks: &[u64]) -> KvEvent {
    KvEvent::Stored {
        parent: parent.map(EngineHash),
        blocks: blocks
            .iter()
            .map(|block| StoredBlock {
                engine_hash: EngineHash(block * 10),
                block_hash: BlockHash(*block),
            })
            .collect(),
    }
}

fn removed(engine_hashes: &[u64]) -> KvEvent {
    KvEvent::Removed {
        engine_hashes: engine_hashes.iter().copied().map(EngineHash).collect(),
    }
}

fn index(ranks: &[WorkerWithDpRank]) -> KvIndex {
    let mut index = KvIndex::default();
    for worker in ranks {
        index.add_rank(*worker);
    }
    index
}

fn matched(index: &KvIndex, worker: WorkerWithDpRank, blocks: &[u64]) -> u32 {
    let blocks: Vec<_> = blocks.iter().copied().map(BlockHash).collect();
    let overlaps = index.overlap(&chain_all(&blocks));
    index.slot(worker).map_or(0, |slot| overlaps.blocks(slot))
}

#[test]
fn each_rank_matches_what_it_stored() {
    let mut index = index(&[WORKER, OTHER]);
    index.apply(WORKER, &stored(None, &[1, 2, 3]));
    index.apply(OTHER, &stored(None, &[1, 2]));
    index.apply(OTHER, &stored(Some(20), &[4]));
    assert_eq!(matched(&index, WORKER, &[1, 2, 3]), 3);
    assert_eq!(matched(&index, OTHER, &[1, 2, 3]), 2);
    assert_eq!(matched(&index, OTHER, &[1, 2, 4, 5]), 3);
    assert_eq!(matched(&index, WORKER, &[2, 3]), 0);
    assert_eq!(index.stats().entries, 6);
    assert_eq!(index.stats().blocks, 4);
}

#[test]
fn a_parent_that_only_another_rank_holds_is_unknown() {
    let mut index = index(&[WORKER, OTHER]);
    index.apply(OTHER, &stored(None, &[1, 2]));
    let applied = index.apply(WORKER, &stored(Some(20), &[3]));
    assert_eq!(applied, Applied::UnknownParent);
    assert_eq!(matched(&index, WORKER, &[3]), 0);
    assert_eq!(matched(&index, WORKER, &[1, 2, 3]), 0);
    assert_eq!(index.stats().unknown_parents, 1);
}

#[test]
fn a_block_removed_in_mid_chain_hides_what_is_behind_it_until_stored_again() {
    let mut index = index(&[WORKER]);
    index.apply(WORKER, &stored(None, &[1, 2, 3, 4, 5, 6]));
    index.apply(WORKER, &removed(&[30]));
    assert_eq!(matched(&index, WORKER, &[1, 2, 3, 4, 5, 6]), 2);
    index.apply(WORKER, &stored(Some(20), &[3]));
    assert_eq!(matched(&index, WORKER, &[1, 2, 3, 4, 5, 6]), 6);
}

#[test]
fn a_first_block_that_comes_back_brings_its_children() {
    let mut index = index(&[WORKER]);
    index.apply(WORKER, &stored(None, &[1, 2, 3]));
    index.apply(WORKER, &removed(&[10]));
    assert_eq!(matched(&index, WORKER, &[1, 2, 3]), 0);
    index.apply(WORKER, &stored(None, &[1]));
    assert_eq!(matched(&index, WORKER, &[1, 2, 3]), 3);
}

#[test]
fn two_copies_need_two_removals() {
    let mut index = index(&[WORKER]);
    index.apply(WORKER, &stored(None, &[1]));
    let applied = index.apply(WORKER, &stored(None, &[1]));
    assert_eq!(
        applied,
        Applied::Stored {
            blocks: 0,
            duplicates: 1,
            refused: 0
        }
    );
    index.apply(WORKER, &removed(&[10]));
    assert_eq!(matched(&index, WORKER, &[1]), 1);
    index.apply(WORKER, &removed(&[10]));
    assert_eq!(matched(&index, WORKER, &[1]), 0);
    assert_eq!(index.stats().duplicate_stores, 1);
}

#[test]
fn two_names_of_one_block_are_two_copies() {
    let mut index = index(&[WORKER]);
    let block = |engine_hash| KvEvent::Stored {
        parent: None,
        blocks: vec![StoredBlock {
            engine_hash: EngineHash(engine_hash),
            block_hash: BlockHash(1),
        }],
    };
    for engine_hash in [7, 8, 9] {
        index.apply(WORKER, &block(engine_hash));
    }
    index.apply(WORKER, &removed(&[8, 7]));
    assert_eq!(matched(&index, WORKER, &[1]), 1);
    index.apply(WORKER, &removed(&[9]));
    assert_eq!(matched(&index, WORKER, &[1]), 0);
    assert_eq!(index.stats().blocks, 0);
}

#[test]
fn a_name_that_comes_to_mean_another_block_leaves_the_first() {
    let mut index = index(&[WORKER]);
    index.apply(WORKER, &stored(None, &[1]));
    let other = KvEvent::Stored {
        parent: None,
        blocks: vec![StoredBlock {
            engine_hash: EngineHash(10),
            block_hash: BlockHash(2),
        }],
    };
    index.apply(WORKER, &other);
    assert_eq!(matched(&index, WORKER, &[1]), 0);
    assert_eq!(matched(&index, WORKER, &[2]), 1);
    assert_eq!(index.stats().renamed, 1);
}

#[test]
fn an_absent_name_does_not_stop_a_removal() {
    let mut index = index(&[WORKER]);
    index.apply(WORKER, &stored(None, &[1, 2, 3]));
    let applied = index.apply(WORKER, &removed(&[9_990, 30, 20]));
    assert_eq!(
        applied,
        Applied::Removed {
            blocks: 2,
            unknown: 1
        }
    );
    assert_eq!(matched(&index, WORKER, &[1, 2, 3]), 1);
    assert_eq!(index.stats().unknown_removals, 1);
}

#[test]
fn cleared_forgets_one_rank_alone() {
    let mut index = index(&[WORKER, OTHER]);
    index.apply(WORKER, &stored(None, &[1, 2]));
    index.apply(OTHER, &stored(None, &[1, 2]));
    let applied = index.apply(WORKER, &KvEvent::Cleared);
    assert_eq!(applied, Applied::Cleared { blocks: 2 });
    assert_eq!(matched(&index, WORKER, &[1, 2]), 0);
    assert_eq!(matched(&index, OTHER, &[1, 2]), 2);
}

#[test]
fn an_event_of_a_removed_worker_changes_nothing() {
    let second_rank = WorkerWithDpRank::new(1, 1);
    let mut index = index(&[WORKER, second_rank, OTHER]);
    for worker in [WORKER, second_rank, OTHER] {
        index.apply(worker, &stored(None, &[1, 2]));
    }
    index.remove_worker(1);
    assert_eq!(
        index.apply(WORKER, &stored(None, &[1])),
        Applied::UnknownRank
    );
    assert_eq!(index.slot(second_rank), None);
    assert_eq!(matched(&index, OTHER, &[1, 2]), 2);
    assert_eq!(index.stats().entries, 2);
    // The slots of those gone are given again, without what they held.
    index.add_rank(WorkerWithDpRank::new(3, 0));
    assert_eq!(matched(&index, WorkerWithDpRank::new(3, 0), &[1, 2]), 0);
}

#[test]
fn a_full_index_refuses_what_is_new_and_stays_true() {
    let mut index = KvIndex::new(3);
    index.add_rank(WORKER);
    let applied = index.apply(WORKER, &stored(None, &[1, 2, 3, 4, 5]));
    assert_eq!(
        applied,
        Applied::Stored {
            blocks: 3,
            duplicates: 0,
            refused: 2
        }
    );
    assert_eq!(matched(&index, WORKER, &[1, 2, 3, 4, 5]), 3);
    index.apply(WORKER, &removed(&[30]));
    index.apply(WORKER, &stored(None, &[6]));
    assert_eq!(matched(&index, WORKER, &[6]), 1);
    assert_eq!(index.stats().refused, 2);
    assert_eq!(index.stats().entries, 3);
}

fn at(tier: Tier, group: u32) -> Placement {
    Placement { tier, group }
}

fn linked(engine_hashes: &[u64]) -> KvEvent {
    KvEvent::Linked {
        engine_hashes: engine_hashes.iter().copied().map(EngineHash).collect(),
    }
}

/// Device, host and disk blocks.
fn tiers(index: &KvIndex, worker: WorkerWithDpRank, blocks: &[u64]) -> (u32, u32, u32) {
    let blocks: Vec<_> = blocks.iter().copied().map(BlockHash).collect();
    let overlaps = index.overlap(&chain_all(&blocks));
    let slot = index.slot(worker).unwrap();
    (
        overlaps.blocks(slot),
        overlaps.host_blocks(slot),
        overlaps.disk_blocks(slot),
    )
}

#[test]
fn children_of_an_unknown_parent_wait_for_it() {
    let mut index = index(&[WORKER]);
    assert_eq!(
        index.apply(WORKER, &stored(Some(20), &[3, 4])),
        Applied::UnknownParent
    );
    index.apply(WORKER, &stored(Some(40), &[5]));
    assert_eq!(matched(&index, WORKER, &[3]), 0);
    assert_eq!(index.stats().waiting_blocks, 3);
    index.apply(WORKER, &stored(None, &[1, 2]));
    assert_eq!(matched(&index, WORKER, &[1, 2, 3, 4, 5]), 5);
    assert_eq!(index.stats().waiting_events, 0);
    assert_eq!(index.stats().parents_found, 2);
}

#[test]
fn a_removal_of_a_waiting_block_is_not_undone() {
    let mut index = index(&[WORKER]);
    index.apply(WORKER, &stored(Some(10), &[2]));
    index.apply(WORKER, &stored(Some(20), &[3]));
    index.apply(WORKER, &removed(&[20]));
    index.apply(WORKER, &stored(None, &[1]));
    assert_eq!(matched(&index, WORKER, &[1, 2, 3]), 1);
    index.apply(WORKER, &stored(Some(10), &[2]));
    assert_eq!(matched(&index, WORKER, &[1, 2, 3]), 3);
}

#[test]
fn the_oldest_of_too_many_waiting_stores_is_forgotten() {
    let mut index = index(&[WORKER]);
    for block in 0..5_000 {
        index.apply(WORKER, &stored(Some(1_000_000 + block), &[block]));
    }
    let stats = index.stats();
    assert_eq!(stats.waiting_events, 4_096);
    assert_eq!(stats.waiting_forgotten, 5_000 - 4_096);
    index.apply(WORKER, &KvEvent::Cleared);
    assert_eq!(index.stats().waiting_blocks, 0);
}

#[test]
fn copies_in_two_groups_need_a_removal_in_each() {
    let mut index = index(&[WORKER]);
    index.apply_at(WORKER, at(Tier::Device, 0), &stored(None, &[1]));
    index.apply_at(WORKER, at(Tier::Device, 1), &stored(None, &[1]));
    index.apply_at(WORKER, at(Tier::Device, 1), &removed(&[10]));
    index.apply_at(WORKER, at(Tier::Device, 1), &removed(&[10]));
    assert_eq!(matched(&index, WORKER, &[1]), 1);
    assert_eq!(index.stats().unknown_removals, 1);
    index.apply_at(WORKER, at(Tier::Device, 0), &removed(&[10]));
    assert_eq!(matched(&index, WORKER, &[1]), 0);
}

#[test]
fn the_engines_own_count_of_copies_wins() {
    let mut index = index(&[WORKER]);
    for _ in 0..3 {
        index.apply(WORKER, &stored(None, &[1]));
    }
    let remaining = |left| KvEvent::Remaining {
        copies: vec![(EngineHash(10), left)],
    };
    index.apply(WORKER, &remaining(2));
    index.apply(WORKER, &removed(&[10]));
    assert_eq!(matched(&index, WORKER, &[1]), 1);
    index.apply(WORKER, &remaining(0));
    assert_eq!(matched(&index, WORKER, &[1]), 0);
    assert_eq!(index.stats().entries, 0);
    assert_eq!(
        index.apply(WORKER, &remaining(0)),
        Applied::Removed {
            blocks: 0,
            unknown: 1
        }
    );
}

#[test]
fn a_removal_from_the_device_leaves_the_host_copy() {
    let mut index = index(&[WORKER]);
    index.apply(WORKER, &stored(None, &[1, 2, 3]));
    index.apply_at(WORKER, Tier::Host.into(), &linked(&[10, 20, 30, 990]));
    assert_eq!(tiers(&index, WORKER, &[1, 2, 3]), (3, 0, 0));
    index.apply(WORKER, &removed(&[10, 20, 30]));
    assert_eq!(tiers(&index, WORKER, &[1, 2, 3]), (0, 3, 0));
    assert_eq!(index.stats().unknown_links, 1);
}

#[test]
fn an_absent_name_does_not_stop_a_removal_in_the_host_tier() {
    let mut index = index(&[WORKER]);
    index.apply_at(WORKER, Tier::Host.into(), &stored(None, &[1, 2, 3]));
    index.apply_at(WORKER, Tier::Host.into(), &removed(&[9_990, 30, 20]));
    assert_eq!(tiers(&index, WORKER, &[1, 2, 3]), (0, 1, 0));
}

#[test]
fn each_tier_continues_where_the_faster_one_ends() {
    let mut index = index(&[WORKER, OTHER]);
    let chain = [1, 2, 3, 4, 5, 6, 7];
    index.apply(WORKER, &stored(None, &chain[..3]));
    index.apply_at(WORKER, Tier::Host.into(), &stored(Some(30), &chain[3..5]));
    index.apply_at(WORKER, Tier::Disk.into(), &stored(Some(50), &chain[5..6]));
    index.apply_at(
        WORKER,
        Tier::External.into(),
        &stored(Some(60), &chain[6..]),
    );
    index.apply_at(OTHER, Tier::Disk.into(), &stored(None, &chain[..2]));
    assert_eq!(tiers(&index, WORKER, &chain), (3, 2, 2));
    assert_eq!(tiers(&index, OTHER, &chain), (0, 0, 2));
    let overlaps = index.overlap(&chain_all(&chain.map(BlockHash)));
    let slot = index.slot(WORKER).unwrap();
    assert_eq!(overlaps.external_blocks(slot), 1);
}

#[test]
fn what_is_in_the_device_behind_a_hole_is_no_continuation_of_the_host() {
    let mut index = index(&[WORKER]);
    index.apply(WORKER, &stored(None, &[1, 2, 3]));
    index.apply_at(WORKER, Tier::Host.into(), &linked(&[20]));
    index.apply(WORKER, &removed(&[20]));
    assert_eq!(tiers(&index, WORKER, &[1, 2, 3]), (1, 1, 0));
}

#[test]
fn doubted_blocks_go_unless_the_engine_names_them() {
    let mut index = index(&[WORKER]);
    index.apply(WORKER, &stored(None, &[1, 2]));
    index.apply(WORKER, &stored(None, &[1]));
    index.apply(WORKER, &stored(None, &[7]));
    index.doubt(WORKER);
    assert_eq!(matched(&index, WORKER, &[1, 2]), 2);
    // One removal drops a doubted block, whatever was counted; one store makes it one copy.
    index.apply(WORKER, &removed(&[20]));
    index.apply(WORKER, &stored(None, &[1]));
    assert_eq!(index.doubted(WORKER), 1);
    assert_eq!(index.drop_doubted(WORKER), 1);
    assert_eq!(matched(&index, WORKER, &[7]), 0);
    assert_eq!(matched(&index, WORKER, &[1, 2]), 1);
    index.apply(WORKER, &removed(&[10]));
    assert_eq!(index.stats().blocks, 0);
}

#[test]
fn a_block_stored_behind_doubted_ones_confirms_them() {
    let mut index = index(&[WORKER]);
    let chain: Vec<u64> = (1..=600).collect();
    index.apply(WORKER, &stored(None, &chain));
    index.apply(WORKER, &stored(None, &[700]));
    index.apply_at(WORKER, Tier::Host.into(), &linked(&[10]));
    index.doubt(WORKER);
    let child = stored(Some(5_000), &[900]);
    index.confirm_parents(WORKER, Placement::default(), &child);
    index.apply(WORKER, &child);
    // 501 to 600 and 700 are still doubted, and block 1 on the host.
    assert_eq!(index.doubted(WORKER), 102);
    index.drop_doubted(WORKER);
    assert_eq!(matched(&index, WORKER, &chain), 500);
    assert_eq!(matched(&index, WORKER, &[700]), 0);
    assert_eq!(tiers(&index, WORKER, &[1]), (1, 0, 0));
}

#[test]
fn a_confirmed_parent_is_one_copy() {
    let mut index = index(&[WORKER]);
    index.apply(WORKER, &stored(None, &[1]));
    index.apply(WORKER, &stored(None, &[1]));
    index.doubt(WORKER);
    index.confirm_parents(WORKER, Placement::default(), &stored(Some(10), &[2]));
    index.apply(WORKER, &removed(&[10]));
    assert_eq!(matched(&index, WORKER, &[1]), 0);
}

#[test]
fn a_store_that_waits_is_forgotten_when_all_of_it_is_removed() {
    let mut index = index(&[WORKER]);
    index.apply(WORKER, &stored(Some(10), &[2, 3]));
    index.apply(WORKER, &stored(Some(30), &[4]));
    index.apply(WORKER, &removed(&[20, 30]));
    assert_eq!(index.stats().waiting_events, 2, "one waits for the other");
    index.apply(WORKER, &removed(&[40]));
    assert_eq!(index.stats().waiting_events, 1);
    assert!(index.awaits(WORKER, EngineHash(20)) && !index.holds_name(WORKER, EngineHash(20)));
    index.apply(WORKER, &stored(None, &[1]));
    assert_eq!(matched(&index, WORKER, &[1, 2]), 1);
}

#[test]
fn a_block_that_waits_goes_when_no_copy_is_left_of_it() {
    let mut index = index(&[WORKER]);
    index.apply(WORKER, &stored(Some(10), &[2]));
    let copies = vec![(EngineHash(20), 0)];
    index.apply(WORKER, &KvEvent::Remaining { copies });
    index.apply(WORKER, &stored(None, &[1]));
    assert_eq!(matched(&index, WORKER, &[1, 2]), 1);
}

#[test]
fn a_name_that_waits_for_one_tier_is_not_the_one_held_in_another() {
    let mut index = index(&[WORKER]);
    let [device, host] = [at(Tier::Device, 0), at(Tier::Host, 0)];
    index.apply_at(WORKER, device, &stored(None, &[1]));
    let second_name = KvEvent::Stored {
        parent: None,
        blocks: vec![StoredBlock {
            engine_hash: EngineHash(20),
            block_hash: BlockHash(1),
        }],
    };
    index.apply_at(WORKER, host, &second_name);
    index.apply_at(WORKER, device, &stored(Some(30), &[2]));
    let copies = vec![(EngineHash(20), 0)];
    index.apply_at(WORKER, device, &KvEvent::Remaining { copies });
    assert_eq!(index.stats().waiting_events, 0);
    assert_eq!(index.stats().entries, 2);
}

#[test]
fn a_dump_leaves_what_the_engine_said_alone() {
    let mut index = index(&[WORKER]);
    index.apply(WORKER, &stored(None, &[1]));
    index.apply_unconfirmed(WORKER, Placement::default(), &stored(None, &[1, 2]));
    assert_eq!(index.stats().unconfirmed, 1);
    assert_eq!(index.drop_doubted(WORKER), 1);
    assert_eq!(matched(&index, WORKER, &[1, 2]), 1);
    index.apply(WORKER, &removed(&[10]));
    assert_eq!(index.stats().entries, 0);
}

#[test]
fn a_chain_longer_than_a_strand_is_found_whole() {
    let mut index = index(&[WORKER, OTHER]);
    let chain: Vec<u64> = (1..=1_000).collect();
    index.apply(WORKER, &stored(None, &chain));
    index.apply(OTHER, &stored(None, &chain[..700]));
    assert_eq!(matched(&index, WORKER, &chain), 1_000);
    assert_eq!(matched(&index, OTHER, &chain), 700);
    index.apply(OTHER, &removed(&[3_000]));
    assert_eq!(matched(&index, OTHER, &chain), 299);
    assert_eq!(index.stats().blocks, 1_000);
}

#[test]
fn first_blocks_that_go_for_good_leave_the_rest_in_place() {
    let mut index = index(&[WORKER]);
    let chain: Vec<u64> = (1..=100).collect();
    index.apply(WORKER, &stored(None, &chain));
    let first: Vec<u64> = (1..=50).map(|block| block * 10).collect();
    index.apply(WORKER, &removed(&first));
    assert_eq!(matched(&index, WORKER, &chain), 0);
    assert_eq!(index.stats().blocks, 50);
    index.apply(WORKER, &stored(None, &chain[..50]));
    assert_eq!(matched(&index, WORKER, &chain), 100);
}

#[test]
fn a_waiting_block_is_removed_wherever_it_waits() {
    let mut index = index(&[WORKER]);
    index.apply(WORKER, &stored(Some(10), &[3]));
    index.apply(WORKER, &stored(Some(20), &[3]));
    // The later of the two is stored; then the earlier still answers to the name.
    index.apply(WORKER, &stored(None, &[2]));
    index.apply(WORKER, &removed(&[30]));
    index.apply(WORKER, &removed(&[30]));
    index.apply(WORKER, &stored(None, &[1]));
    assert_eq!(matched(&index, WORKER, &[1, 3]), 1);
    assert_eq!(matched(&index, WORKER, &[2, 3]), 1);
}
