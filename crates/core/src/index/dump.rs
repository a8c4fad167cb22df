//! Tells what ranks hold, run by run, so that it can be told to others; it writes no format.

use hashbrown::{HashMap, HashSet};
use pointsman_plugin::WorkerWithDpRank;

use super::strand::{Holders, Place};
use super::{KvIndex, StoredBlock, Tier};
use crate::hash::{EngineHash, SequenceHash};
use crate::index::chains::at;
use crate::ranks::RankSlot;

/// Consecutive blocks that a rank holds in one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpedRun<'a> {
    pub worker: WorkerWithDpRank,
    pub tier: Tier,
    /// The name of the block before the first; `None` at the root of a chain.
    pub parent: Option<EngineHash>,
    pub blocks: &'a [StoredBlock],
}

/// How one rank names blocks.
struct Names<'a> {
    index: &'a KvIndex,
    slot: RankSlot,
    own: HashMap<Place, EngineHash>,
    /// Blocks before a strand that are no longer where they were when it began.
    moved: HashMap<SequenceHash, Place>,
}

impl KvIndex {
    /// Visits what a rank holds, tier by tier and parents before children.
    ///
    /// What is behind a block that the rank holds in no tier has no place that could be told: it is
    /// left out, and counted in the answer.
    pub fn dump_rank(
        &self,
        worker: WorkerWithDpRank,
        mut visit: impl FnMut(DumpedRun<'_>),
    ) -> usize {
        let Some(slot) = self.ranks.get(worker) else {
            return 0;
        };
        let mut strands = self.held[slot.index()].strands();
        strands.sort_by_key(|id| {
            let strand = self.chains.strand(*id);
            strand.depth + u32::from(strand.base())
        });
        let names = Names {
            index: self,
            slot,
            own: self.held[slot.index()].names_by_place(),
            moved: self.moved(&strands),
        };
        let mut left_out = 0;
        let mut blocks = Vec::new();
        for tier in Tier::ALL {
            for id in &strands {
                left_out += names.runs(*id, tier, &mut blocks, |parent, blocks| {
                    visit(DumpedRun {
                        worker,
                        tier,
                        parent,
                        blocks,
                    });
                });
            }
        }
        left_out
    }

    /// Finds the blocks before strands whose link is out of date, among those strands.
    fn moved(&self, strands: &[u32]) -> HashMap<SequenceHash, Place> {
        let links = strands
            .iter()
            .filter_map(|id| self.chains.strand(*id).parent);
        let wanted: HashSet<_> = links
            .filter(|(place, sequence)| !self.is_at(*place, *sequence))
            .map(|(_, sequence)| sequence)
            .collect();
        let mut moved = HashMap::new();
        if wanted.is_empty() {
            return moved;
        }
        for id in strands {
            let strand = self.chains.strand(*id);
            for offset in strand.base()..strand.end() {
                if let Some(block) = strand.get(offset)
                    && wanted.contains(&block.sequence)
                {
                    moved.insert(block.sequence, at(*id, offset));
                }
            }
        }
        moved
    }

    fn is_at(&self, place: Place, sequence: SequenceHash) -> bool {
        let block = self.chains.block(place);
        block.is_some_and(|block| block.sequence == sequence)
    }
}

impl Names<'_> {
    /// Visits the rank's runs of one strand; how many blocks had to be left out.
    fn runs(
        &self,
        id: u32,
        tier: Tier,
        blocks: &mut Vec<StoredBlock>,
        mut visit: impl FnMut(Option<EngineHash>, &[StoredBlock]),
    ) -> usize {
        let strand = self.index.chains.strand(id);
        let held = |holders: &Holders| holders.contains(tier, self.slot);
        let mut left_out = 0;
        let mut spans = strand.spans().peekable();
        while let Some((stretch, holders)) = spans.next() {
            if !held(holders) {
                continue;
            }
            let (from, mut to) = (stretch.from, stretch.to);
            while let Some((next, _)) = spans.next_if(|(_, holders)| held(holders)) {
                to = next.to;
            }
            blocks.clear();
            for offset in from..to {
                let place = at(id, offset);
                if let (Some(name), Some(block)) = (self.of(place), strand.get(offset)) {
                    blocks.push(StoredBlock {
                        engine_hash: name,
                        block_hash: block.tokens,
                    });
                }
            }
            match self.before(id, from) {
                Ok(parent) => visit(parent, blocks),
                Err(()) => left_out += blocks.len(),
            }
        }
        left_out
    }

    /// The rank's name for a block it holds.
    fn of(&self, place: Place) -> Option<EngineHash> {
        self.own.get(&place).copied().or_else(|| {
            self.index.chains.holders(place)?.tiers(self.slot).next()?;
            let name = self.index.chains.block(place)?.name;
            (name != 0).then_some(EngineHash(name))
        })
    }

    /// The name of what is before an offset; none at a root, an error if it is gone.
    fn before(&self, id: u32, offset: u16) -> Result<Option<EngineHash>, ()> {
        let strand = self.index.chains.strand(id);
        if offset > strand.base() {
            return self.of(at(id, offset - 1)).map(Some).ok_or(());
        }
        if strand.depth == 0 && offset == 0 {
            return Ok(None);
        }
        let (mut place, sequence) = strand.parent.ok_or(())?;
        if !self.index.is_at(place, sequence) {
            place = *self.moved.get(&sequence).ok_or(())?;
        }
        self.of(place).map(Some).ok_or(())
    }
}
