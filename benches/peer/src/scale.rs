//! Fills our index as large fleets would and keeps it at its work: bytes per entry, CPU per block in the steady state, and what happens at the memory bound.
//! It asks the peer nothing.

use std::collections::VecDeque;

use pointsman_core::hash::{BlockHash, EngineHash};
use pointsman_core::index::{Applied, KvEvent, KvIndex, StoredBlock};
use pointsman_plugin::WorkerWithDpRank;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::report::cpu;

/// Blocks of 16 tokens.
const SYSTEM_BLOCKS: usize = 64;
const SYSTEM_PROMPTS: usize = 16;
/// A conversation's blocks behind the system prompt, in events of so many.
const TAIL_BLOCKS: usize = 448;
const EVENT_BLOCKS: usize = 32;
/// What a busy engine stores a second: 16,000 prompt tokens in events of 32 blocks, and 4,000 of
/// output, one block at a time. As much is removed.
const PREFILL_BLOCKS_PER_SECOND: f64 = 1_000.0;
const DECODE_BLOCKS_PER_SECOND: f64 = 250.0;

struct Fleet {
    random: SmallRng,
    index: KvIndex,
    systems: Vec<Vec<u64>>,
    /// By worker: names in the order in which they were stored.
    held: Vec<VecDeque<u64>>,
}

pub(crate) fn run() {
    for (workers, blocks) in [(200, 5_000), (2_000, 5_000), (200, 50_000), (200, 100_000)] {
        row(workers, blocks);
    }
    bound();
}

fn row(workers: usize, blocks: usize) {
    let before = live();
    let mut fleet = Fleet::new(workers, KvIndex::default());
    for worker in 0..workers {
        while fleet.held[worker].len() + SYSTEM_BLOCKS < blocks {
            fleet.conversation(worker, EVENT_BLOCKS);
        }
    }
    let names: usize = fleet.held.iter().map(VecDeque::capacity).sum();
    let own_books = names * size_of::<u64>();
    let stats = fleet.index.stats();
    let (mut stored, mut removed) = ([0.0; 2], [0.0; 2]);
    for (at, size) in [EVENT_BLOCKS, 1].into_iter().enumerate() {
        let turns = 200_000 / TAIL_BLOCKS;
        for _ in 0..turns {
            let worker = fleet.random.random_range(0..workers);
            let gone: Vec<_> = fleet.held[worker].drain(..TAIL_BLOCKS).collect();
            let events: Vec<_> = gone.chunks(size).map(removal).collect();
            let start = cpu();
            for event in &events {
                fleet.index.apply(rank(worker), event);
            }
            removed[at] += cpu() - start;
            stored[at] += fleet.conversation(worker, size);
        }
        let all = (turns * TAIL_BLOCKS) as f64 / 1e9;
        (stored[at], removed[at]) = (stored[at] / all, removed[at] / all);
    }
    let second = PREFILL_BLOCKS_PER_SECOND * (stored[0] + removed[0])
        + DECODE_BLOCKS_PER_SECOND * (stored[1] + removed[1]);
    println!(
        "{workers:>5} workers x {blocks:>7} blocks: {:>9} entries, {:>9} distinct blocks; {}",
        stats.entries,
        stats.blocks,
        per_entry(before, own_books, stats.entries)
    );
    println!(
        "      ns of CPU a block, 32 a time / alone: stored {:.0} / {:.0}, removed {:.0} / {:.0}; {:.2} cores at full rate",
        stored[0],
        stored[1],
        removed[0],
        removed[1],
        second * workers as f64 / 1e9
    );
}

/// Fills an index to its bound and beyond.
fn bound() {
    const BOUND: usize = 500_000;
    const WORKERS: usize = 10;
    let mut fleet = Fleet::new(WORKERS, KvIndex::new(BOUND));
    let mut first = Vec::new();
    while fleet.index.stats().refused == 0 {
        let worker = fleet.random.random_range(0..WORKERS);
        fleet.conversation(worker, EVENT_BLOCKS);
        if first.is_empty() {
            first = fleet.held[worker].iter().copied().collect();
        }
    }
    for _ in 0..100 {
        let worker = fleet.random.random_range(0..WORKERS);
        fleet.conversation(worker, EVENT_BLOCKS);
    }
    let stats = fleet.index.stats();
    println!(
        "at the bound of {BOUND} entries: {} held, {} refused; the oldest {} blocks are still removable: {}",
        stats.entries,
        stats.refused,
        first.len(),
        (0..WORKERS).any(|worker| {
            let applied = fleet.index.apply(rank(worker), &removal(&first));
            matches!(applied, Applied::Removed { blocks, .. } if blocks == first.len())
        })
    );
}

impl Fleet {
    fn new(workers: usize, mut index: KvIndex) -> Self {
        let mut random = SmallRng::seed_from_u64(17);
        for worker in 0..workers {
            index.add_rank(rank(worker));
        }
        let systems: Vec<Vec<u64>> = (0..SYSTEM_PROMPTS)
            .map(|_| (0..SYSTEM_BLOCKS).map(|_| random.random()).collect())
            .collect();
        let mut fleet = Self {
            random,
            index,
            systems,
            held: vec![VecDeque::new(); workers],
        };
        for worker in 0..workers {
            for system in 0..SYSTEM_PROMPTS {
                let blocks = fleet.systems[system].clone();
                // The same names everywhere, and never removed: all use them.
                let event = store(None, &blocks);
                fleet.index.apply(rank(worker), &event);
            }
        }
        fleet
    }

    /// Stores a new conversation's tail on a worker; seconds of CPU.
    fn conversation(&mut self, worker: usize, size: usize) -> f64 {
        let system = self.random.random_range(0..SYSTEM_PROMPTS);
        let mut parent = self.systems[system][SYSTEM_BLOCKS - 1];
        let tail: Vec<u64> = (0..TAIL_BLOCKS).map(|_| self.random.random()).collect();
        let events: Vec<_> = tail
            .chunks(size)
            .map(|blocks| {
                let event = store(Some(parent), blocks);
                parent = blocks[blocks.len() - 1];
                event
            })
            .collect();
        let start = cpu();
        for event in &events {
            self.index.apply(rank(worker), event);
        }
        let took = cpu() - start;
        self.held[worker].extend(tail);
        took
    }
}

fn rank(worker: usize) -> WorkerWithDpRank {
    WorkerWithDpRank::from_worker_id(worker as u64)
}

/// Blocks whose names are their block hashes: random, so nothing depends on it.
fn store(parent: Option<u64>, blocks: &[u64]) -> KvEvent {
    KvEvent::Stored {
        parent: parent.map(EngineHash),
        blocks: blocks
            .iter()
            .map(|block| StoredBlock {
                engine_hash: EngineHash(*block),
                block_hash: BlockHash(*block),
            })
            .collect(),
    }
}

fn removal(names: &[u64]) -> KvEvent {
    KvEvent::Removed {
        engine_hashes: names.iter().copied().map(EngineHash).collect(),
    }
}

#[cfg(feature = "heap")]
fn per_entry(before: f64, own_books: usize, entries: usize) -> String {
    let bytes = live() - before - own_books as f64;
    format!("{:.1} bytes an entry", bytes / entries as f64)
}

#[cfg(not(feature = "heap"))]
fn per_entry(_before: f64, _own_books: usize, _entries: usize) -> String {
    "bytes are counted with --features heap".to_owned()
}

#[cfg(feature = "heap")]
fn live() -> f64 {
    crate::memory::live()
}

#[cfg(not(feature = "heap"))]
fn live() -> f64 {
    0.0
}
