//! Parts of a dump with events between them.

use std::collections::{BTreeMap, BTreeSet};

use rand::Rng;
use rand::rngs::SmallRng;

use super::*;
use crate::hash::{BlockHash, chain_all};
use crate::index::{KvEvent, Placement};
use crate::testing::seeded;

const TOLD: WorkerWithDpRank = WorkerWithDpRank {
    worker_id: 1,
    dp_rank: 0,
};
const OTHER: WorkerWithDpRank = WorkerWithDpRank {
    worker_id: 2,
    dp_rank: 0,
};

type Chain = Vec<u64>;

/// An index, and what the told rank holds by name, with the copies of it.
struct World {
    index: KvIndex,
    names: BTreeMap<u64, (Chain, u32)>,
    /// Chains whose block came, went, or got a name or copy more or less since the dump began.
    touched: BTreeSet<Chain>,
}

/// Each rank has names of its own for some blocks, and a second one for a few.
fn name(worker: WorkerWithDpRank, chain: &[u64], again: bool) -> u64 {
    let number = chain.iter().fold(7, |sum: u64, block| sum * 5 + block);
    let owner = if number % 3 == 0 { worker.worker_id } else { 0 };
    number * 16 + owner * 2 + u64::from(again)
}

impl World {
    fn new() -> Self {
        let mut index = KvIndex::default();
        index.add_rank(OTHER);
        index.add_rank(TOLD);
        Self {
            index,
            names: BTreeMap::new(),
            touched: BTreeSet::new(),
        }
    }

    fn holds(&self, chain: &[u64]) -> bool {
        self.names.values().any(|(held, _)| held == chain)
    }

    /// One store or removal of one of the ranks.
    fn happen(&mut self, random: &mut SmallRng) {
        let worker = if random.random_bool(0.5) { TOLD } else { OTHER };
        let length = random.random_range(1..9);
        let chain: Chain = (0..length).map(|_| random.random_range(0..2)).collect();
        if random.random_bool(0.4) {
            let gone = name(worker, &chain, random.random_bool(0.2));
            if worker == TOLD
                && let Some((_, copies)) = self.names.get_mut(&gone)
            {
                *copies -= 1;
                if *copies == 0 {
                    self.names.remove(&gone);
                }
                self.touched.insert(chain);
            }
            let engine_hashes = vec![EngineHash(gone)];
            self.index
                .apply(worker, &KvEvent::Removed { engine_hashes });
            return;
        }
        let again = random.random_bool(0.2);
        let is_there = |end: &usize| {
            worker == TOLD
                && self
                    .names
                    .contains_key(&name(worker, &chain[..*end], false))
        };
        let from = (1..length).take_while(is_there).last().unwrap_or(0);
        for end in from + 1..=length {
            if worker == TOLD {
                let (block, name) = (chain[..end].to_vec(), name(worker, &chain[..end], again));
                let (_, copies) = self.names.entry(name).or_insert((block.clone(), 0));
                *copies += 1;
                self.touched.insert(block);
            }
        }
        let blocks = (from + 1..=length).map(|end| StoredBlock {
            engine_hash: EngineHash(name(worker, &chain[..end], again)),
            block_hash: BlockHash(chain[end - 1]),
        });
        let event = KvEvent::Stored {
            parent: (from > 0).then(|| EngineHash(name(worker, &chain[..from], false))),
            blocks: blocks.collect(),
        };
        self.index.apply(worker, &event);
    }

    /// Leading blocks of a chain that nothing happened to all the while.
    fn steady(&self, chain: &[u64]) -> usize {
        let is_steady =
            |end: &usize| self.holds(&chain[..*end]) && !self.touched.contains(&chain[..*end]);
        (1..=chain.len()).take_while(is_steady).count()
    }
}

#[test]
fn what_is_held_all_the_while_is_told_and_nothing_that_is_not_held() {
    let mut random = seeded("parts");
    let mut steady_blocks = 0;
    for _ in 0..600 {
        let mut world = World::new();
        for _ in 0..random.random_range(0..60) {
            world.happen(&mut random);
        }
        world.touched.clear();
        let mut copy = KvIndex::default();
        copy.add_rank(TOLD);
        let mut dump = RankDump::new(TOLD, &Tier::ALL);
        while !dump.is_done() {
            dump.arrange();
            let World { index, names, .. } = &world;
            index.dump_part(&mut dump, 1, |run| {
                for block in run.blocks {
                    let (chain, _) = &names[&block.engine_hash.0];
                    assert_eq!(chain.last(), Some(&block.block_hash.0));
                }
                let event = KvEvent::Stored {
                    parent: run.parent,
                    blocks: run.blocks.to_vec(),
                };
                copy.apply_unconfirmed(TOLD, Placement::from(run.tier), &event);
            });
            for _ in 0..random.random_range(0..3) {
                world.happen(&mut random);
            }
        }
        let slot = copy.slot(TOLD).unwrap();
        for (chain, _) in world.names.values() {
            let blocks: Vec<_> = chain.iter().copied().map(BlockHash).collect();
            let told = copy.overlap(&chain_all(&blocks)).blocks(slot);
            let steady = world.steady(chain);
            assert!(usize::try_from(told).unwrap() >= steady, "{chain:?}");
            steady_blocks += steady;
        }
    }
    assert!(steady_blocks > 1000, "{steady_blocks}");
}

#[test]
fn a_part_looks_at_no_more_than_was_asked_for() {
    let mut index = KvIndex::default();
    index.add_rank(TOLD);
    for chain in 0..100_u64 {
        let blocks = (0..300).map(|block| StoredBlock {
            engine_hash: EngineHash(1 + chain * 1000 + block),
            block_hash: BlockHash(chain * 1000 + block),
        });
        let event = KvEvent::Stored {
            parent: None,
            blocks: blocks.collect(),
        };
        index.apply(TOLD, &event);
    }
    let mut dump = RankDump::new(TOLD, &[Tier::Device]);
    let (mut told, mut parts) = (0, 0);
    while !dump.is_done() {
        dump.arrange();
        let mut part = 0;
        index.dump_part(&mut dump, 1000, |run| part += run.blocks.len());
        // A strand is told whole.
        assert!(part < 1000 + 256, "{part}");
        (told, parts) = (told + part, parts + 1);
    }
    assert_eq!(told, 30_000);
    assert!(parts > 25, "{parts}");
    assert!(!dump.has_others());
}

#[test]
fn a_rank_that_left_is_told_no_further() {
    let mut world = World::new();
    let mut random = seeded("left");
    for _ in 0..40 {
        world.happen(&mut random);
    }
    let mut dump = RankDump::new(TOLD, &Tier::ALL);
    dump.arrange();
    world.index.dump_part(&mut dump, 1, |_| {});
    assert!(!dump.is_done());
    world.index.remove_rank(TOLD);
    dump.arrange();
    world.index.dump_part(&mut dump, 1, |run| panic!("{run:?}"));
    assert!(dump.is_done());
}
