//! Keeps what is believed of a rank without its engine's word apart from what the engine said; who is to be doubted, and for how long, is decided elsewhere.
//!
//! The engine's word always wins: a store of an unconfirmed block makes it one confirmed copy, a
//! removal drops it, whatever was believed before.

use pointsman_plugin::WorkerWithDpRank;

use super::apply::{Word, count};
use super::strand::Stretch;
use super::{Applied, KvEvent, KvIndex, Placement};

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
    }

    /// Takes all that a rank holds as confirmed; how many blocks were doubted.
    pub fn trust(&mut self, worker: WorkerWithDpRank) -> usize {
        let slot = self.ranks.get(worker);
        slot.map_or(0, |slot| self.held[slot.index()].trust_all())
    }

    /// Drops what is still doubted of a rank; how many blocks that were.
    pub fn drop_doubted(&mut self, worker: WorkerWithDpRank) -> usize {
        let Some(slot) = self.ranks.get(worker) else {
            return 0;
        };
        let names = self.held[slot.index()].names_by_place();
        let doubted = self.held[slot.index()].take_doubt();
        for (place, tier) in &doubted {
            self.drop_from_tier(slot, *place, *tier, names.get(place).copied());
        }
        self.counts.unconfirmed_dropped += count(doubted.len());
        doubted.len()
    }

    /// How many blocks of a rank are doubted, by tier.
    pub fn doubted(&self, worker: WorkerWithDpRank) -> usize {
        let slot = self.ranks.get(worker);
        slot.map_or(0, |slot| self.held[slot.index()].doubtful())
    }
}
