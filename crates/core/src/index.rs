//! Knows which worker rank holds which blocks of KV cache, exactly, from the engines' events; it never guesses and never reads a stream.
//!
//! A block is named by our own chained sequence hash, so a removal in the middle of a chain hides
//! what is behind it, and storing that block again brings it back. The engine's names are only a
//! per-rank way to say which block an event means. Copies are counted per rank, tier and cache
//! group: a block is a rank's until the last one is removed.
//!
//! Memory is bounded by `max_entries` (name, rank) pairs. At the bound a new block is not
//! indexed and counted as refused; what is indexed stays true, so the newest is forgotten first.
//! Blocks that wait for an unknown parent have a bound of their own, and the oldest go first.

mod aliases;
mod apply;
mod chains;
mod doubt;
mod dump;
mod few;
mod forks;
mod holders;
mod holdings;
mod names;
mod places;
mod remove;
mod store;
mod strand;
mod waiting;

use pointsman_plugin::WorkerWithDpRank;

use crate::hash::{BlockHash, EngineHash, SequenceHash};
use crate::ranks::{RankSlot, RankTable};

pub use crate::overlaps::Overlaps;
pub use crate::tier::{Placement, Tier};
pub use dump::{DumpedRun, RankDump};

use chains::Chains;
use holdings::Holdings;
use strand::{Block, Place};
use waiting::Waiting;

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
    /// One copy less of each.
    Removed { engine_hashes: Vec<EngineHash> },
    /// How many copies are left of each, as an engine says that counts them itself.
    Remaining { copies: Vec<(EngineHash, u32)> },
    /// Blocks that the rank holds in some tier are now held in this one too.
    Linked { engine_hashes: Vec<EngineHash> },
    /// The rank holds nothing in any tier.
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
    /// The parent is not held by this rank, so the blocks' place is not known: they are kept aside
    /// until it is stored, and count for nothing until then.
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
    /// Runs of blocks that are kept together.
    pub strands: usize,
    /// Distinct (engine name, rank) pairs; what the bound is about.
    pub entries: usize,
    pub max_entries: usize,
    /// Stores that wait for their parent now, and their blocks.
    pub waiting_events: usize,
    pub waiting_blocks: usize,
    /// Blocks that ranks hold without confirmation, by rank and tier.
    pub unconfirmed: usize,
    pub stored: u64,
    pub duplicate_stores: u64,
    pub removed: u64,
    pub unknown_removals: u64,
    /// Blocks said to be in another tier too that the rank held in none.
    pub unknown_links: u64,
    pub unknown_parents: u64,
    /// Stores that waited until their parent came.
    pub parents_found: u64,
    /// Stores that were given up waiting, at the bound.
    pub waiting_forgotten: u64,
    /// Unconfirmed blocks that were dropped.
    pub unconfirmed_dropped: u64,
    pub unknown_ranks: u64,
    /// Names that came to mean another block; the newer meaning was kept.
    pub renamed: u64,
    pub refused: u64,
    pub cleared: u64,
}

/// Who holds what, in all tiers of one partition.
#[derive(Debug)]
pub struct KvIndex {
    ranks: RankTable,
    /// By slot.
    held: Vec<Holdings>,
    chains: Chains,
    waiting: Waiting,
    /// (Block, rank, tier) triples outside the device tier; at 0 no lookup asks for them.
    below_device: usize,
    counts: IndexStats,
    /// Kept for their capacity.
    incoming: Vec<Block>,
    places: Vec<Option<Place>>,
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
            chains: Chains::default(),
            waiting: Waiting::default(),
            below_device: 0,
            counts: IndexStats {
                max_entries,
                ..IndexStats::default()
            },
            incoming: Vec::new(),
            places: Vec::new(),
        }
    }

    /// Registers a rank; events of others are refused.
    pub fn add_rank(&mut self, worker: WorkerWithDpRank) -> RankSlot {
        let slot = self.ranks.insert(worker);
        if self.held.len() < self.ranks.bound() {
            self.held.resize_with(self.ranks.bound(), Holdings::default);
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
            .ranks()
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

    /// Asks for the memory that a rank's next events will look at first: of names that are to come, and of names of
    /// blocks that are there, as parents are. Nothing changes. What one call asks for comes at once, so that many
    /// small events wait for memory but once.
    pub fn expect(
        &self,
        worker: WorkerWithDpRank,
        to_come: impl IntoIterator<Item = EngineHash, IntoIter: Clone>,
        there: impl IntoIterator<Item = EngineHash, IntoIter: Clone>,
    ) {
        let Some(slot) = self.ranks.get(worker) else {
            return;
        };
        let to_come = to_come.into_iter().map(|name| name.0);
        let there = there.into_iter().map(|name| name.0);
        let names = there.clone().chain(to_come);
        self.held[slot.index()].prefetch(names.clone());
        self.chains.prefetch(names);
        self.chains.prefetch_blocks(there);
    }

    /// Takes over what a rank says of its device tier.
    pub fn apply(&mut self, worker: WorkerWithDpRank, event: &KvEvent) -> Applied {
        self.apply_at(worker, Placement::default(), event)
    }

    /// The leading blocks each rank holds of a chain.
    pub fn overlap(&self, sequence_hashes: &[SequenceHash]) -> Overlaps {
        let mut overlaps = Overlaps::default();
        self.overlap_into(sequence_hashes, &mut overlaps);
        overlaps
    }

    /// As [`overlap`](Self::overlap), into a value that is used again and again.
    pub fn overlap_into(&self, sequence_hashes: &[SequenceHash], overlaps: &mut Overlaps) {
        overlaps.begin(self.ranks.bound());
        if self.below_device == 0 {
            self.chains.walk(sequence_hashes, |holders, blocks| {
                overlaps.step(Some(&holders.device), blocks)
            });
            overlaps.end_walk();
        } else {
            self.chains.walk(sequence_hashes, |holders, blocks| {
                overlaps.step_tiers(|tier| holders.get(tier), blocks)
            });
            overlaps.end_tiers();
        }
    }

    pub fn stats(&self) -> IndexStats {
        IndexStats {
            ranks: self.ranks.len(),
            blocks: self.chains.blocks(),
            strands: self.chains.strands(),
            waiting_events: self.waiting.events(),
            waiting_blocks: self.waiting.blocks(),
            waiting_forgotten: self.waiting.forgotten,
            unconfirmed: self.held.iter().map(Holdings::doubtful).sum(),
            ..self.counts
        }
    }
}

#[cfg(test)]
mod tests;
