//! Copies a part of what one rank holds, so that it can be told without holding the index; it writes nothing.

use std::ops::Range;

use pointsman_core::Partition;
use pointsman_core::hash::EngineHash;
use pointsman_core::index::{RankDump, StoredBlock, Tier};

/// What is told of all ranks before the rest.
pub(super) const DEVICE: &[Tier] = &[Tier::Device];
pub(super) const BELOW_DEVICE: &[Tier] = &[Tier::Host, Tier::Disk, Tier::External];
/// Blocks that are copied while events wait.
const PART_BLOCKS: usize = 4096;

/// Some blocks of one rank, parents before children.
#[derive(Debug, Default)]
pub(super) struct RankCopy {
    runs: Vec<CopiedRun>,
    blocks: Vec<StoredBlock>,
    pub(super) rest: Rest,
}

/// What comes after a part.
#[derive(Debug)]
pub(super) enum Rest {
    More(Box<RankDump>),
    Done {
        /// Whether the rank holds blocks in tiers that were not wanted.
        has_others: bool,
        /// Blocks whose place could not be told.
        left_out: usize,
    },
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

impl Default for Rest {
    fn default() -> Self {
        Self::Done {
            has_others: false,
            left_out: 0,
        }
    }
}

impl RankCopy {
    /// The next part.
    pub(super) fn next(partition: &Partition, mut dump: RankDump) -> Self {
        let mut copy = Self::default();
        let has_more = partition.dump_part(&mut dump, PART_BLOCKS, |run| {
            copy.add(run.tier, run.parent, run.blocks);
        });
        copy.rest = if has_more {
            Rest::More(Box::new(dump))
        } else {
            Rest::Done {
                has_others: dump.has_others(),
                left_out: dump.left_out(),
            }
        };
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
