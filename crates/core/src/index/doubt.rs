//! Keeps what is believed of a rank without its engine's word apart from what the engine said; who is to be doubted, and for how long, is decided elsewhere.
//!
//! The engine's word always wins: a store of an unconfirmed block makes it one confirmed copy, a
//! removal drops it, whatever was believed before.

use pointsman_plugin::WorkerWithDpRank;

use super::apply::{Source, Word, count};
use super::strand::{Place, Stretch};
use super::{Applied, KvEvent, KvIndex, Placement};
use crate::hash::EngineHash;
use crate::ranks::RankSlot;

impl KvIndex {
    /// Takes over a store that somebody else reports of a rank, as a peer's dump does. What the
    /// rank holds already stays as it is.
    pub fn apply_unconfirmed(
        &mut self,
        worker: WorkerWithDpRank,
        at: Placement,
        event: &KvEvent,
    ) -> Applied {
        self.apply_from(worker, at, event, Word::Hearsay)
    }

    /// Doubts all that a rank holds.
    pub fn doubt(&mut self, worker: WorkerWithDpRank) {
        let Some(slot) = self.ranks.get(worker) else {
            return;
        };
        let rank = &mut self.held[slot.index()];
        for id in rank.strands() {
            for (Stretch { from, to }, holders) in self.chains.strand(id).spans() {
                for tier in holders.tiers(slot) {
                    rank.doubt(id, tier, Stretch { from, to });
                }
            }
        }
        self.waiting.doubt(slot);
    }

    /// Takes all that a rank holds as confirmed; how many blocks were doubted.
    pub fn trust(&mut self, worker: WorkerWithDpRank) -> usize {
        let Some(slot) = self.ranks.get(worker) else {
            return 0;
        };
        self.waiting.trust(slot);
        self.held[slot.index()].trust_all()
    }

    /// Drops what is still doubted of a rank; how many blocks that were. What waited for its parent
    /// when the doubt began is forgotten with them.
    pub fn drop_doubted(&mut self, worker: WorkerWithDpRank) -> usize {
        let Some(slot) = self.ranks.get(worker) else {
            return 0;
        };
        self.waiting.drop_doubted(slot);
        let names = self.held[slot.index()].names_by_place();
        let doubted = self.held[slot.index()].take_doubt();
        for (place, tier) in &doubted {
            self.drop_from_tier(slot, *place, *tier, names.get(place).copied());
        }
        self.counts.unconfirmed_dropped += count(doubted.len());
        doubted.len()
    }

    /// Blocks that an engine stores behind another show that this one is there, and all before it,
    /// in the same tier.
    ///
    /// It goes back to the first block that is not doubted: what is before that was confirmed
    /// together with it. Blocks with several names or copies wait to be named themselves, as it is
    /// not known which of them is meant.
    pub fn confirm_parents(&mut self, worker: WorkerWithDpRank, at: Placement, event: &KvEvent) {
        let KvEvent::Stored {
            parent: Some(name), ..
        } = *event
        else {
            return;
        };
        let sure = |slot: &RankSlot| self.held[slot.index()].is_sure();
        let Some(slot) = self.ranks.get(worker).filter(|slot| !sure(slot)) else {
            return;
        };
        let Some(place) = self.resolve(slot, name) else {
            return;
        };
        let source = Source {
            slot,
            at,
            word: Word::Engine,
        };
        if self.held[slot.index()].is_doubtful(place, at.tier) {
            self.confirm_block(source, name, place);
        }
        let mut behind = self.before(place);
        while let Some(place) = behind {
            let rank = &mut self.held[slot.index()];
            let is_doubted = rank.is_doubtful(place, at.tier);
            if is_doubted && !rank.is_owned(place) && at.group == rank.home {
                rank.trust(place, at.tier);
            } else if !is_doubted {
                break;
            }
            behind = self.before(place);
        }
    }

    /// The block before a block, where it is still known.
    fn before(&self, place: Place) -> Option<Place> {
        let strand = self.chains.strand(place.strand);
        if u16::from(place.offset) > strand.base() {
            let offset = place.offset - 1;
            return Some(Place { offset, ..place });
        }
        let (before, sequence) = strand.parent?;
        let is_there = self.chains.block(before)?.sequence == sequence;
        is_there.then_some(before)
    }

    /// Whether a rank holds a block under this name, in whatever tier.
    pub fn holds_name(&self, worker: WorkerWithDpRank, name: EngineHash) -> bool {
        let slot = self.ranks.get(worker);
        slot.is_some_and(|slot| self.resolve(slot, name).is_some())
    }

    /// Whether a block of this name waits for its parent.
    pub fn awaits(&self, worker: WorkerWithDpRank, name: EngineHash) -> bool {
        let slot = self.ranks.get(worker);
        slot.is_some_and(|slot| self.waiting.has(slot, name))
    }

    /// How many blocks of a rank are doubted, by tier.
    pub fn doubted(&self, worker: WorkerWithDpRank) -> usize {
        let slot = self.ranks.get(worker);
        slot.map_or(0, |slot| self.held[slot.index()].doubtful())
    }
}
