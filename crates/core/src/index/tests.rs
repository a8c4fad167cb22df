//! What the index must answer, first fact by fact, then against a naive model.

use std::collections::{BTreeMap, BTreeSet};

use rand::Rng;

use super::*;
use crate::hash::chain_all;
use crate::testing::seeded;

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
fn an_unknown_parent_stores_nothing_and_is_counted() {
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

/// What a rank holds, written down one event after the other: names with the chain of block
/// hashes they stand for, and how many copies.
#[derive(Default)]
struct Naive(BTreeMap<u64, (Vec<u64>, u32)>);

impl Naive {
    fn store(&mut self, parent: Option<u64>, blocks: &[(u64, u64)]) -> bool {
        let mut chain = match parent.map(|parent| self.0.get(&parent)) {
            None => Vec::new(),
            Some(Some((chain, _))) => chain.clone(),
            Some(None) => return false,
        };
        for (engine_hash, block_hash) in blocks {
            chain.push(*block_hash);
            match self.0.get_mut(engine_hash) {
                Some((before, copies)) if *before == chain => *copies += 1,
                _ => {
                    self.0.insert(*engine_hash, (chain.clone(), 1));
                }
            }
        }
        true
    }

    fn remove(&mut self, engine_hash: u64) {
        if let Some((_, copies)) = self.0.get_mut(&engine_hash) {
            *copies -= 1;
            if *copies == 0 {
                self.0.remove(&engine_hash);
            }
        }
    }

    fn matched(&self, prompt: &[u64]) -> usize {
        let held: BTreeSet<&[u64]> = self.0.values().map(|(chain, _)| &chain[..]).collect();
        (0..prompt.len())
            .take_while(|last| held.contains(&prompt[..=*last]))
            .count()
    }
}

#[test]
fn the_index_agrees_with_a_naive_model() {
    for rank_count in [3_u64, 70] {
        let mut random = seeded(&format!("{rank_count} ranks"));
        let mut index = KvIndex::default();
        let mut models: BTreeMap<WorkerWithDpRank, Naive> = BTreeMap::new();
        for _ in 0..6_000 {
            let worker = WorkerWithDpRank::new(random.random_range(0..rank_count), 0);
            let Some(model) = models.get_mut(&worker) else {
                index.add_rank(worker);
                models.insert(worker, Naive::default());
                continue;
            };
            match random.random_range(0..200) {
                0..120 => {
                    // Few names and few blocks, so that names repeat, collide and change meaning.
                    let names: Vec<u64> = model.0.keys().copied().collect();
                    let parent = (!names.is_empty() && random.random_bool(0.7)).then(|| {
                        if random.random_bool(0.05) {
                            u64::MAX
                        } else {
                            names[random.random_range(0..names.len())]
                        }
                    });
                    let blocks: Vec<_> = (0..random.random_range(0..4))
                        .map(|_| (random.random_range(0..60), random.random_range(0..3)))
                        .collect();
                    let event = KvEvent::Stored {
                        parent: parent.map(EngineHash),
                        blocks: blocks
                            .iter()
                            .map(|(engine_hash, block_hash)| StoredBlock {
                                engine_hash: EngineHash(*engine_hash),
                                block_hash: BlockHash(*block_hash),
                            })
                            .collect(),
                    };
                    let known = model.store(parent, &blocks);
                    let applied = index.apply(worker, &event);
                    assert_eq!(applied != Applied::UnknownParent, known);
                }
                120..196 => {
                    let name = random.random_range(0..60);
                    model.remove(name);
                    index.apply(worker, &removed(&[name]));
                }
                196..199 => {
                    model.0.clear();
                    index.apply(worker, &KvEvent::Cleared);
                }
                _ => {
                    models.remove(&worker);
                    index.remove_rank(worker);
                }
            }
            let prompt: Vec<u64> = (0..random.random_range(0..8))
                .map(|_| random.random_range(0..3))
                .collect();
            let checked = models.iter().skip(random.random_range(0..7)).step_by(7);
            for (worker, model) in checked {
                let expected = model.matched(&prompt);
                assert_eq!(matched(&index, *worker, &prompt) as usize, expected);
            }
        }
        let entries: usize = models.values().map(|model| model.0.len()).sum();
        assert_eq!(index.stats().entries, entries);
        for worker in models.keys() {
            index.remove_rank(*worker);
        }
        let stats = index.stats();
        assert_eq!((stats.ranks, stats.blocks, stats.entries), (0, 0, 0));
    }
}
