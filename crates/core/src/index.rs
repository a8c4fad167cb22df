//! Knows which worker rank holds which blocks of KV cache, exactly, from the engines' events; it never guesses and never reads a stream.
//!
//! A block is named by our own chained sequence hash, so a removal in the middle of a chain hides
//! what is behind it, and storing that block again brings it back. The engine's names are only a
//! per-rank way to say which block an event means.
//!
//! Memory is bounded by `max_entries` (block, rank) pairs. At the bound a new block is not
//! indexed and counted as refused; what is indexed stays true, so the newest is forgotten first.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use pointsman_plugin::WorkerWithDpRank;

use crate::hash::{BlockHash, EngineHash, SequenceHash, chain};
use crate::ranks::{RankSet, RankSlot, RankTable};

pub use crate::ranks::Overlaps;

/// The default bound on (block, rank) pairs of one index.
pub const DEFAULT_MAX_ENTRIES: usize = 50_000_000;

/// What a rank says happened in its cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// `blocks` follow each other, the first one behind `parent`.
    Stored {
        parent: Option<EngineHash>,
        blocks: Vec<StoredBlock>,
    },
    Removed {
        engine_hashes: Vec<EngineHash>,
    },
    Cleared,
}

/// One stored block: the engine's name for it and the hash of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredBlock {
    pub engine_hash: EngineHash,
    pub block_hash: BlockHash,
}

/// What an event changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Applied {
    Stored {
        /// Blocks the rank did not hold under that name.
        blocks: usize,
        /// Further copies of blocks it held; as many removals are needed to drop one.
        duplicates: usize,
        /// Blocks not indexed, because the index is full.
        refused: usize,
    },
    Removed {
        /// Copies dropped.
        blocks: usize,
        /// Names the rank did not hold.
        unknown: usize,
    },
    Cleared {
        blocks: usize,
    },
    /// The parent is not held by this rank, so the blocks' place is not known: nothing was stored.
    UnknownParent,
    /// The rank is not registered: nothing was changed.
    UnknownRank,
}

/// Size of an index and counts of what happened to it since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexStats {
    /// Registered ranks.
    pub ranks: usize,
    /// Distinct blocks held by any rank.
    pub blocks: usize,
    /// Distinct (engine name, rank) pairs; what the bound is about.
    pub entries: usize,
    pub max_entries: usize,
    pub stored: u64,
    pub duplicate_stores: u64,
    pub removed: u64,
    pub unknown_removals: u64,
    pub unknown_parents: u64,
    pub unknown_ranks: u64,
    /// Names that came to mean another block; the newer meaning was kept.
    pub renamed: u64,
    pub refused: u64,
    pub cleared: u64,
}

/// The device tier's index of one partition.
#[derive(Debug)]
pub struct KvIndex {
    ranks: RankTable,
    /// By slot.
    held: Vec<RankBlocks>,
    owners: HashMap<SequenceHash, RankSet>,
    counts: IndexStats,
}

/// What one rank holds, under the engine's names.
#[derive(Debug, Default)]
struct RankBlocks {
    names: HashMap<EngineHash, Copies>,
    /// Names beyond the first of blocks that have several; mostly empty.
    aliases: HashMap<SequenceHash, usize>,
}

#[derive(Clone, Copy, Debug)]
struct Copies {
    sequence: SequenceHash,
    count: u32,
}

impl Default for KvIndex {
    fn default() -> Self {
        Self::new(DEFAULT_MAX_ENTRIES)
    }
}

impl KvIndex {
    pub fn new(max_entries: usize) -> Self {
        Self {
            ranks: RankTable::default(),
            held: Vec::new(),
            owners: HashMap::new(),
            counts: IndexStats {
                max_entries,
                ..IndexStats::default()
            },
        }
    }

    /// Registers a rank; events of others are refused.
    pub fn add_rank(&mut self, worker: WorkerWithDpRank) -> RankSlot {
        let slot = self.ranks.insert(worker);
        if self.held.len() < self.ranks.bound() {
            self.held
                .resize_with(self.ranks.bound(), RankBlocks::default);
        }
        slot
    }

    /// Forgets a rank and all it held.
    pub fn remove_rank(&mut self, worker: WorkerWithDpRank) {
        if let Some(slot) = self.ranks.get(worker) {
            self.clear_slot(slot);
            self.ranks.remove(worker);
        }
    }

    /// Forgets all ranks of a worker.
    pub fn remove_worker(&mut self, worker_id: u64) {
        let ranks: Vec<_> = self
            .ranks
            .workers()
            .map(|(worker, _)| worker)
            .filter(|worker| worker.worker_id == worker_id)
            .collect();
        for worker in ranks {
            self.remove_rank(worker);
        }
    }

    pub fn slot(&self, worker: WorkerWithDpRank) -> Option<RankSlot> {
        self.ranks.get(worker)
    }

    /// The registered ranks.
    pub fn ranks(&self) -> impl Iterator<Item = WorkerWithDpRank> {
        self.ranks.workers().map(|(worker, _)| worker)
    }

    pub fn apply(&mut self, worker: WorkerWithDpRank, event: &KvEvent) -> Applied {
        let Some(slot) = self.ranks.get(worker) else {
            self.counts.unknown_ranks += 1;
            return Applied::UnknownRank;
        };
        match event {
            KvEvent::Stored { parent, blocks } => self.store(slot, *parent, blocks),
            KvEvent::Removed { engine_hashes } => self.remove(slot, engine_hashes),
            KvEvent::Cleared => {
                self.counts.cleared += 1;
                Applied::Cleared {
                    blocks: self.clear_slot(slot),
                }
            }
        }
    }

    /// The leading blocks each rank holds of a chain.
    pub fn overlap(&self, sequence_hashes: &[SequenceHash]) -> Overlaps {
        let mut overlaps = Overlaps::default();
        self.overlap_into(sequence_hashes, &mut overlaps);
        overlaps
    }

    /// As [`overlap`](Self::overlap), into a value that is used again and again.
    pub fn overlap_into(&self, sequence_hashes: &[SequenceHash], overlaps: &mut Overlaps) {
        overlaps.walk(
            self.ranks.bound(),
            sequence_hashes.iter().map(|hash| self.owners.get(hash)),
        );
    }

    pub fn stats(&self) -> IndexStats {
        IndexStats {
            ranks: self.ranks.len(),
            blocks: self.owners.len(),
            ..self.counts
        }
    }

    fn store(
        &mut self,
        slot: RankSlot,
        parent: Option<EngineHash>,
        blocks: &[StoredBlock],
    ) -> Applied {
        let mut previous = None;
        if let Some(parent) = parent {
            let Some(copies) = self.held[slot.index()].names.get(&parent) else {
                self.counts.unknown_parents += 1;
                return Applied::UnknownParent;
            };
            previous = Some(copies.sequence);
        }
        let (mut stored, mut duplicates) = (0, 0);
        for block in blocks {
            let sequence = chain(previous, block.block_hash);
            match self.store_one(slot, block.engine_hash, sequence) {
                Some(true) => stored += 1,
                Some(false) => duplicates += 1,
                None => break,
            }
            previous = Some(sequence);
        }
        // What is behind a refused block could not be found anyway.
        let refused = blocks.len() - stored - duplicates;
        self.counts.stored += count(stored);
        self.counts.duplicate_stores += count(duplicates);
        self.counts.refused += count(refused);
        Applied::Stored {
            blocks: stored,
            duplicates,
            refused,
        }
    }

    /// Whether the block is new under that name; `None` if there is no room for it.
    fn store_one(
        &mut self,
        slot: RankSlot,
        engine_hash: EngineHash,
        sequence: SequenceHash,
    ) -> Option<bool> {
        let full = self.counts.entries >= self.counts.max_entries;
        match self.held[slot.index()].names.entry(engine_hash) {
            Entry::Occupied(mut entry) if entry.get().sequence == sequence => {
                let copies = entry.get_mut();
                copies.count = copies.count.saturating_add(1);
                return Some(false);
            }
            Entry::Occupied(mut entry) => {
                let before = entry.insert(Copies { sequence, count: 1 }).sequence;
                self.counts.renamed += 1;
                self.disown(slot, before);
            }
            Entry::Vacant(_) if full => return None,
            Entry::Vacant(entry) => {
                entry.insert(Copies { sequence, count: 1 });
                self.counts.entries += 1;
            }
        }
        self.own(slot, sequence);
        Some(true)
    }

    fn remove(&mut self, slot: RankSlot, engine_hashes: &[EngineHash]) -> Applied {
        let mut removed = 0;
        for engine_hash in engine_hashes {
            let Entry::Occupied(mut entry) = self.held[slot.index()].names.entry(*engine_hash)
            else {
                continue;
            };
            removed += 1;
            if entry.get().count > 1 {
                entry.get_mut().count -= 1;
                continue;
            }
            let sequence = entry.remove().sequence;
            self.counts.entries -= 1;
            self.disown(slot, sequence);
        }
        let unknown = engine_hashes.len() - removed;
        self.counts.removed += count(removed);
        self.counts.unknown_removals += count(unknown);
        Applied::Removed {
            blocks: removed,
            unknown,
        }
    }

    fn clear_slot(&mut self, slot: RankSlot) -> usize {
        let held = std::mem::take(&mut self.held[slot.index()]);
        for copies in held.names.values() {
            self.drop_owner(slot, copies.sequence);
        }
        self.counts.entries -= held.names.len();
        held.names.len()
    }

    /// One more name of the rank means this block.
    fn own(&mut self, slot: RankSlot, sequence: SequenceHash) {
        match self.owners.entry(sequence) {
            Entry::Vacant(entry) => {
                entry.insert(RankSet::one(slot));
            }
            Entry::Occupied(mut entry) => {
                if !entry.get_mut().insert(slot) {
                    *self.held[slot.index()].aliases.entry(sequence).or_default() += 1;
                }
            }
        }
    }

    /// One name less of the rank means this block; the last one takes it from the rank.
    fn disown(&mut self, slot: RankSlot, sequence: SequenceHash) {
        let aliases = &mut self.held[slot.index()].aliases;
        if !aliases.is_empty()
            && let Entry::Occupied(mut entry) = aliases.entry(sequence)
        {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
            return;
        }
        self.drop_owner(slot, sequence);
    }

    fn drop_owner(&mut self, slot: RankSlot, sequence: SequenceHash) {
        if let Entry::Occupied(mut entry) = self.owners.entry(sequence) {
            entry.get_mut().remove(slot);
            if entry.get().is_empty() {
                entry.remove();
            }
        }
    }
}

fn count(blocks: usize) -> u64 {
    u64::try_from(blocks).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
