//! Copies what one rank holds, so that it can be told without holding the index; it writes nothing.

use std::ops::Range;

use pointsman_core::Partition;
use pointsman_core::hash::EngineHash;
use pointsman_core::index::{StoredBlock, Tier};
use pointsman_plugin::WorkerWithDpRank;

/// Which tiers are wanted: the device's are told before all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tiers {
    Device,
    BelowDevice,
}

/// One rank's blocks of some tiers, parents before children.
#[derive(Debug, Default)]
pub(super) struct RankCopy {
    runs: Vec<CopiedRun>,
    blocks: Vec<StoredBlock>,
    /// Whether the rank holds blocks in tiers that were not wanted.
    pub(super) has_more: bool,
    /// Blocks of any tier whose place cannot be told.
    pub(super) left_out: usize,
}

#[derive(Debug)]
struct CopiedRun {
    tier: Tier,
    parent: Option<EngineHash>,
    blocks: Range<usize>,
}

/// Blocks that follow each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run<'a> {
    pub(super) tier: Tier,
    pub(super) parent: Option<EngineHash>,
    pub(super) blocks: &'a [StoredBlock],
}

impl Tiers {
    fn contain(self, tier: Tier) -> bool {
        (tier == Tier::Device) == (self == Self::Device)
    }
}

impl RankCopy {
    pub(super) fn of(partition: &Partition, worker: WorkerWithDpRank, tiers: Tiers) -> Self {
        let mut copy = Self::default();
        copy.left_out = partition.dump_rank(worker, |run| {
            if tiers.contain(run.tier) {
                copy.add(run.tier, run.parent, run.blocks);
            } else {
                copy.has_more = true;
            }
        });
        copy
    }

    pub(super) fn add(&mut self, tier: Tier, parent: Option<EngineHash>, blocks: &[StoredBlock]) {
        let from = self.blocks.len();
        self.blocks.extend_from_slice(blocks);
        self.runs.push(CopiedRun {
            tier,
            parent,
            blocks: from..self.blocks.len(),
        });
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = Run<'_>> {
        self.runs.iter().map(|run| Run {
            tier: run.tier,
            parent: run.parent,
            blocks: &self.blocks[run.blocks.clone()],
        })
    }
}
