//! Applies events to the index, one rank's at a time, and says what a rank means by a name; where blocks are kept is the chains' business.

use pointsman_plugin::WorkerWithDpRank;

use super::strand::{Place, Stretch};
use super::{Applied, KvEvent, KvIndex, Placement};
use crate::hash::EngineHash;
use crate::ranks::RankSlot;

/// Whose event is applied, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub(super) slot: RankSlot,
    pub(super) at: Placement,
    pub(super) word: Word,
}

/// How sure it is that a rank holds what is said of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Its engine says so: each time is a copy.
    Engine,
    /// Somebody else says so: to be doubted until the engine does.
    Hearsay,
    /// It is expected to; saying it again changes nothing.
    Guess,
}

/// Blocks in a row that are still to be given their holder, or to lose it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) strand: u32,
    pub(super) stretch: Stretch,
}

impl KvIndex {
    /// Takes over what a rank says of one of its tiers.
    pub fn apply_at(
        &mut self,
        worker: WorkerWithDpRank,
        at: Placement,
        event: &KvEvent,
    ) -> Applied {
        self.apply_from(worker, at, event, Word::Engine)
    }

    pub(super) fn apply_from(
        &mut self,
        worker: WorkerWithDpRank,
        at: Placement,
        event: &KvEvent,
        word: Word,
    ) -> Applied {
        let Some(slot) = self.ranks.get(worker) else {
            self.counts.unknown_ranks += 1;
            return Applied::UnknownRank;
        };
        let source = Source { slot, at, word };
        match event {
            KvEvent::Stored { parent, blocks } => self.store(source, *parent, blocks),
            KvEvent::Removed { engine_hashes } => self.remove(slot, at, engine_hashes),
            KvEvent::Remaining { copies } => self.set_remaining(slot, at, copies),
            KvEvent::Linked { engine_hashes } => self.link(source, engine_hashes),
            KvEvent::Cleared => {
                self.counts.cleared += 1;
                Applied::Cleared {
                    blocks: self.clear_slot(slot),
                }
            }
        }
    }

    /// The block a rank means by a name.
    pub(super) fn resolve(&self, slot: RankSlot, name: EngineHash) -> Option<Place> {
        self.held[slot.index()].meant(name).or_else(|| {
            self.chains
                .named(name.0)
                .filter(|place| self.is_implied(slot, *place))
        })
    }

    /// The block a rank means by a name, if it holds it.
    pub(super) fn meaning(&self, slot: RankSlot, name: EngineHash) -> Option<Place> {
        let rank = &self.held[slot.index()];
        rank.meant(name).or_else(|| {
            let place = self.chains.named(name.0)?;
            rank.calls_as_all(place).then_some(place)
        })
    }

    pub(super) fn is_held_by(&self, slot: RankSlot, place: Place) -> bool {
        let holders = self.chains.holders(place);
        holders.is_some_and(|holders| holders.tiers(slot).next().is_some())
    }

    /// Whether the rank holds a block under the name that the table has for it.
    pub(super) fn is_implied(&self, slot: RankSlot, place: Place) -> bool {
        self.held[slot.index()].calls_as_all(place) && self.is_held_by(slot, place)
    }

    /// What a rank calls a block that it holds and that has no own names.
    pub(super) fn plain_name(&self, slot: RankSlot, place: Place) -> Option<EngineHash> {
        self.held[slot.index()].alias(place).or_else(|| {
            let name = self.chains.block(place)?.name;
            (name != 0).then_some(EngineHash(name))
        })
    }

    /// Writes down what the bits imply of a block the rank holds.
    pub(super) fn make_own(&mut self, slot: RankSlot, place: Place) {
        let rank = &mut self.held[slot.index()];
        if rank.is_owned(place) {
            return;
        }
        if let (Some(block), Some(holders)) = (self.chains.block(place), self.chains.holders(place))
        {
            let name = rank.drop_alias(place).unwrap_or(EngineHash(block.name));
            rank.add_own(name, place, holders.tiers(slot));
        }
    }

    pub(super) fn clear_slot(&mut self, slot: RankSlot) -> usize {
        if !self.waiting.is_empty() {
            self.waiting.clear(slot);
        }
        let held = std::mem::take(&mut self.held[slot.index()]);
        for id in held.strands() {
            self.below_device -= self.chains.remove_rank(id, slot);
        }
        self.counts.entries -= held.names;
        held.names
    }

    pub(super) fn count_names(&mut self, slot: RankSlot, added: usize, dropped: usize) {
        let rank = &mut self.held[slot.index()];
        rank.names = rank.names + added - dropped;
        self.counts.entries = self.counts.entries + added - dropped;
    }
}

impl Run {
    pub(super) fn one(place: Place) -> Self {
        let from = u16::from(place.offset);
        Self {
            strand: place.strand,
            stretch: Stretch { from, to: from + 1 },
        }
    }

    pub(super) fn contains(self, place: Place) -> bool {
        self.strand == place.strand && self.stretch.contains(u16::from(place.offset))
    }
}

pub(super) fn count(blocks: usize) -> u64 {
    u64::try_from(blocks).unwrap_or(u64::MAX)
}
