//! Tells what a rank holds, part by part, so that it can be told to others without keeping the index from them; it writes no format.
//!
//! The index may change between two parts. Each tells what is true at its time: nothing that the rank does not hold then,
//! under no name that is not its own. What the rank came to hold after the first part may be missing, and what is behind a
//! block that came anew or got a second name or copy meanwhile is left out, or told before its parent.

use std::mem::take;

use hashbrown::HashMap;
use pointsman_plugin::WorkerWithDpRank;

use super::chains::at;
use super::holders::Holders;
use super::strand::{Place, Strand};
use super::{KvIndex, StoredBlock, Tier};
use crate::hash::{EngineHash, SequenceHash};
use crate::ranks::RankSlot;

/// What it costs to look at a strand, in blocks told.
const STRAND_COST: usize = 16;

/// Consecutive blocks that a rank holds in one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpedRun<'a> {
    pub worker: WorkerWithDpRank,
    pub tier: Tier,
    /// The name of the block before the first; `None` at the root of a chain.
    pub parent: Option<EngineHash>,
    pub blocks: &'a [StoredBlock],
}

/// How far a rank has been told, tier by tier and parents before children.
#[derive(Debug)]
pub struct RankDump {
    worker: WorkerWithDpRank,
    tiers: &'static [Tier],
    stage: Stage,
    /// The rank's own names, as they were at first; each is checked before it is told.
    own: HashMap<Place, EngineHash>,
    /// Blocks before a strand that were not where they were when it began, and where they are now.
    moved: HashMap<SequenceHash, Option<Place>>,
    /// By tier, whether the rank holds something in it.
    found: [bool; Tier::ALL.len()],
    left_out: usize,
}

#[derive(Debug, Default)]
enum Stage {
    Begin,
    /// What the index listed, in no order.
    Listed {
        strands: Vec<u32>,
        own: Vec<(Place, EngineHash)>,
    },
    /// Strands and how deep they begin, as far as that was looked up.
    Ordering {
        strands: Vec<u32>,
        deep: Vec<(u32, u32)>,
    },
    Telling(Telling),
    #[default]
    Done,
}

#[derive(Debug)]
struct Telling {
    strands: Vec<(u32, u32)>,
    /// Which of the tiers, and of the strands, is next.
    tier: usize,
    next: usize,
}

/// How one rank names blocks.
struct Names<'a> {
    index: &'a KvIndex,
    slot: RankSlot,
    own: &'a HashMap<Place, EngineHash>,
    moved: &'a HashMap<SequenceHash, Option<Place>>,
}

impl RankDump {
    /// Of these tiers, in their order. Nothing is looked up yet.
    pub fn new(worker: WorkerWithDpRank, tiers: &'static [Tier]) -> Self {
        Self {
            worker,
            tiers,
            stage: Stage::Begin,
            own: HashMap::new(),
            moved: HashMap::new(),
            found: [false; Tier::ALL.len()],
            left_out: 0,
        }
    }

    pub fn worker(&self) -> WorkerWithDpRank {
        self.worker
    }

    /// The tiers that are told.
    pub fn tiers(&self) -> &'static [Tier] {
        self.tiers
    }

    pub fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done)
    }

    /// Whether the rank was seen to hold blocks in other tiers than those that are told.
    pub fn has_others(&self) -> bool {
        let mut tiers = Tier::ALL.into_iter();
        tiers.any(|tier| self.found[tier.index()] && !self.tiers.contains(&tier))
    }

    /// Blocks of the told tiers whose place could not be told: what is before them the rank holds in
    /// no tier.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Does what needs no index, before each part.
    pub fn arrange(&mut self) {
        self.stage = match take(&mut self.stage) {
            Stage::Listed { mut strands, own } => {
                strands.sort_unstable();
                strands.dedup();
                self.own = own.into_iter().collect();
                Stage::Ordering {
                    deep: Vec::with_capacity(strands.len()),
                    strands,
                }
            }
            Stage::Ordering { strands, mut deep } if deep.len() == strands.len() => {
                deep.sort_unstable();
                Stage::Telling(Telling {
                    strands: deep,
                    tier: 0,
                    next: 0,
                })
            }
            stage => stage,
        };
    }
}

impl Telling {
    /// The next strand, and the tier in which it is to be told; none after the last.
    fn next(&mut self, tiers: &[Tier], found: [bool; Tier::ALL.len()]) -> Option<(u32, Tier)> {
        loop {
            let tier = *tiers.get(self.tier)?;
            // The first round finds out which tiers there are.
            let is_worth_it = self.tier == 0 || found[tier.index()];
            if let Some((_, id)) = self.strands.get(self.next).filter(|_| is_worth_it) {
                self.next += 1;
                return Some((*id, tier));
            }
            (self.tier, self.next) = (self.tier + 1, 0);
        }
    }
}

impl KvIndex {
    /// Visits a part of what a rank holds: about `max_blocks` blocks, whole strands of them. It may
    /// be empty without being the last.
    pub fn dump_part(
        &self,
        dump: &mut RankDump,
        max_blocks: usize,
        visit: impl FnMut(DumpedRun<'_>),
    ) {
        let Some(slot) = self.ranks.get(dump.worker) else {
            dump.stage = Stage::Done;
            return;
        };
        dump.stage = match take(&mut dump.stage) {
            Stage::Begin => Stage::Listed {
                strands: self.held[slot.index()].listed_strands(),
                own: self.held[slot.index()].own_by_place().collect(),
            },
            Stage::Ordering { strands, mut deep } => {
                let rest = &strands[deep.len()..];
                for id in rest.iter().take(max_blocks.div_ceil(STRAND_COST)) {
                    let strand = self.chains.strand(*id);
                    deep.push((strand.depth + u32::from(strand.base()), *id));
                    self.note_link(strand, &mut dump.moved);
                }
                Stage::Ordering { strands, deep }
            }
            Stage::Telling(telling) => self.tell(dump, slot, telling, max_blocks, visit),
            stage @ (Stage::Listed { .. } | Stage::Done) => stage,
        };
    }

    /// Tells strand by strand until it is enough.
    fn tell(
        &self,
        dump: &mut RankDump,
        slot: RankSlot,
        mut telling: Telling,
        max_blocks: usize,
        mut visit: impl FnMut(DumpedRun<'_>),
    ) -> Stage {
        let (mut spent, mut blocks) = (0, Vec::new());
        while spent < max_blocks {
            let Some((id, tier)) = telling.next(dump.tiers, dump.found) else {
                return Stage::Done;
            };
            spent += STRAND_COST;
            if telling.tier == 0 {
                spent += self.note(id, slot, dump);
            }
            let names = Names {
                index: self,
                slot,
                own: &dump.own,
                moved: &dump.moved,
            };
            let worker = dump.worker;
            dump.left_out += names.runs(id, tier, &mut blocks, |parent, blocks| {
                spent += blocks.len();
                visit(DumpedRun {
                    worker,
                    tier,
                    parent,
                    blocks,
                });
            });
        }
        Stage::Telling(telling)
    }

    /// Finds out in which tiers a strand has blocks of the rank, and whether it has some that others
    /// follow from afar; how many blocks were looked at.
    fn note(&self, id: u32, slot: RankSlot, dump: &mut RankDump) -> usize {
        let strand = self.chains.strand(id);
        for (_, holders) in strand.spans() {
            for tier in holders.tiers(slot) {
                dump.found[tier.index()] = true;
            }
        }
        if dump.moved.is_empty() {
            return 0;
        }
        let offsets = strand.base()..strand.end();
        for offset in offsets.clone() {
            if let Some(block) = strand.get(offset)
                && let Some(place) = dump.moved.get_mut(&block.sequence)
            {
                *place = Some(at(id, offset));
            }
        }
        offsets.len()
    }

    /// Remembers what a strand follows if it is not where it was.
    fn note_link(&self, strand: &Strand, moved: &mut HashMap<SequenceHash, Option<Place>>) {
        if let Some((place, sequence)) = strand.parent
            && !self.is_at(place, sequence)
        {
            moved.entry(sequence).or_insert(None);
        }
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
            blocks.extend((from..to).map_while(|offset| {
                Some(StoredBlock {
                    engine_hash: self.of(at(id, offset))?,
                    block_hash: strand.get(offset)?.tokens,
                })
            }));
            let all = usize::from(to - from);
            match self.before(id, from) {
                Ok(parent) if !blocks.is_empty() => {
                    visit(parent, blocks);
                    left_out += all - blocks.len();
                }
                _ => left_out += all,
            }
        }
        left_out
    }

    /// The rank's name for a block it holds; none for one that got names or copies of its own meanwhile.
    fn of(&self, place: Place) -> Option<EngineHash> {
        let held = &self.index.held[self.slot.index()];
        if held.is_owned(place) {
            let name = *self.own.get(&place)?;
            return (held.own(name) == Some(place)).then_some(name);
        }
        if let Some(alias) = held.alias(place) {
            return Some(alias);
        }
        self.index.chains.holders(place)?.tiers(self.slot).next()?;
        let name = self.index.chains.block(place)?.name;
        (name != 0).then_some(EngineHash(name))
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
            place = self.moved.get(&sequence).copied().flatten().ok_or(())?;
            if !self.index.is_at(place, sequence) {
                return Err(());
            }
        }
        self.of(place).map(Some).ok_or(())
    }
}

#[cfg(test)]
mod tests;
