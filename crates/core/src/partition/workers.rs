//! The schedulable workers of a partition as selections see them: an immutable table, replaced whole; it never says who should be in it.

use std::collections::BTreeSet;
use std::ops::Range;

use hashbrown::HashMap;
use pointsman_plugin::WorkerWithDpRank;

use crate::ranks::RankSlot;

/// One schedulable worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerEntry {
    pub worker_id: u64,
    /// The lowest data-parallel rank.
    pub first_rank: u32,
    /// How many ranks there are; at most [`MAX_RANKS`](Self::MAX_RANKS) of them are served.
    pub rank_count: u32,
    pub taints: BTreeSet<String>,
    /// Whether the worker may not be given more at the moment.
    pub overloaded: bool,
    /// Prompt tokens the engine computes at once.
    pub max_num_batched_tokens: Option<u64>,
    /// Blocks of KV cache of each rank.
    pub total_kv_blocks: Option<u64>,
}

/// The workers of one moment, by worker id, and their ranks as rows.
#[derive(Debug, Default)]
pub(crate) struct WorkerTable {
    /// Larger is newer.
    version: u64,
    entries: Vec<WorkerEntry>,
    /// Rows of each entry.
    ranges: Vec<Range<usize>>,
    rows: Vec<Row>,
    any_overloaded: bool,
    by_rank: HashMap<WorkerWithDpRank, usize>,
}

/// One rank that may be selected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) worker: WorkerWithDpRank,
    entry: usize,
    pub(crate) index_slot: RankSlot,
    pub(crate) load_slot: RankSlot,
}

/// Where a rank's cache and load are found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots {
    pub(crate) index: RankSlot,
    pub(crate) load: RankSlot,
}

/// One worker of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableWorker<'a> {
    table: &'a WorkerTable,
    entry: usize,
}

impl WorkerEntry {
    /// Bound on the ranks of one worker, so that no registration can fill the memory.
    pub const MAX_RANKS: u32 = 4_096;

    /// The ranks that are served.
    pub fn ranks(&self) -> impl Iterator<Item = WorkerWithDpRank> {
        let ranks = (0..self.rank_count.min(Self::MAX_RANKS))
            .map_while(|rank| self.first_rank.checked_add(rank));
        ranks.map(|dp_rank| WorkerWithDpRank::new(self.worker_id, dp_rank))
    }
}

/// Sorts workers by id; of several entries of one worker the last counts.
pub(crate) fn ordered(mut workers: Vec<WorkerEntry>) -> Vec<WorkerEntry> {
    workers.reverse();
    workers.sort_by_key(|worker| worker.worker_id);
    workers.dedup_by_key(|worker| worker.worker_id);
    workers
}

impl WorkerTable {
    /// `slots` are those of all ranks of `entries`, in order.
    pub(crate) fn new(
        version: u64,
        entries: Vec<WorkerEntry>,
        slots: impl IntoIterator<Item = Slots>,
    ) -> Self {
        let ranks = entries
            .iter()
            .enumerate()
            .flat_map(|(at, entry)| entry.ranks().map(move |worker| (at, worker)));
        let rows: Vec<_> = ranks
            .zip(slots)
            .map(|((entry, worker), slots)| Row {
                worker,
                entry,
                index_slot: slots.index,
                load_slot: slots.load,
            })
            .collect();
        let mut start = 0;
        let ranges = (0..entries.len())
            .map(|entry| {
                let count = rows[start..]
                    .iter()
                    .take_while(|row| row.entry == entry)
                    .count();
                start += count;
                start - count..start
            })
            .collect();
        let by_rank = rows.iter().map(|row| row.worker).zip(0..).collect();
        Self {
            version,
            any_overloaded: entries.iter().any(|entry| entry.overloaded),
            entries,
            ranges,
            rows,
            by_rank,
        }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub(crate) fn any_overloaded(&self) -> bool {
        self.any_overloaded
    }

    pub(crate) fn row_of(&self, worker: WorkerWithDpRank) -> Option<usize> {
        self.by_rank.get(&worker).copied()
    }

    pub(crate) fn entry_of(&self, row: usize) -> &WorkerEntry {
        &self.entries[self.rows[row].entry]
    }

    /// All rows of the worker that `row` belongs to.
    pub(crate) fn siblings(&self, row: usize) -> &[Row] {
        &self.rows[self.ranges[self.rows[row].entry].clone()]
    }

    pub(crate) fn workers(&self) -> impl Iterator<Item = TableWorker<'_>> {
        (0..self.entries.len()).map(|entry| TableWorker { table: self, entry })
    }
}

impl<'a> TableWorker<'a> {
    pub(crate) fn entry(self) -> &'a WorkerEntry {
        &self.table.entries[self.entry]
    }

    pub(crate) fn rows(self) -> Range<usize> {
        self.table.ranges[self.entry].clone()
    }
}
