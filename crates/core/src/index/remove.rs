//! Takes copies from ranks, and blocks from them with the last one; it stores nothing.

use super::apply::{Run, count};
use super::strand::{Change, Place};
use super::{Applied, KvIndex, Placement, Tier};
use crate::hash::EngineHash;
use crate::ranks::RankSlot;

impl KvIndex {
    pub(super) fn remove(
        &mut self,
        slot: RankSlot,
        at: Placement,
        names: &[EngineHash],
    ) -> Applied {
        let mut removed = 0;
        let mut run = None;
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        let rank = &self.held[slot.index()];
        rank.fetch(names.iter().map(|name| name.0));
        self.chains.fetch(names.iter().map(|name| name.0));
        let chains = &self.chains;
        places.extend(names.iter().map(|name| {
            let alias = rank.find_alias(*name);
            alias.or_else(|| chains.named(name.0))
        }));
        for (name, place) in names.iter().zip(&places) {
            removed += usize::from(self.remove_one(slot, at, *name, *place, &mut run));
        }
        self.places = places;
        self.let_go(slot, at.tier, &mut run);
        let unknown = names.len() - removed;
        self.counts.removed += count(removed);
        self.counts.unknown_removals += count(unknown);
        Applied::Removed {
            blocks: removed,
            unknown,
        }
    }

    fn remove_one(
        &mut self,
        slot: RankSlot,
        at: Placement,
        name: EngineHash,
        place: Option<Place>,
        run: &mut Option<Run>,
    ) -> bool {
        let rank = &self.held[slot.index()];
        if let Some(place) = rank.own(name) {
            if rank.is_doubtful(place, at.tier) {
                self.drop_from_tier(slot, place, at.tier, Some(name));
                return true;
            }
            return self.remove_own(slot, at, name, place) || self.remove_waiting(slot, at, name);
        }
        if place.is_some_and(|place| run.is_some_and(|run| run.contains(place))) {
            self.let_go(slot, at.tier, run);
        }
        // A name that comes twice may have gone with the first.
        let place = place.filter(|place| self.plain_name(slot, *place) == Some(name));
        let rank = &mut self.held[slot.index()];
        let held = place.and_then(|place| Some((place, self.chains.holders(place)?)));
        if let Some((place, holders)) = held
            && holders.contains(at.tier, slot)
            && !rank.is_owned(place)
        {
            let doubtful = rank.is_doubtful(place, at.tier);
            if at.group == rank.home || doubtful {
                rank.trust(place, at.tier);
                let last = holders.tiers(slot).count() == 1;
                self.count_plain(slot, place, last);
                self.shrink(slot, at.tier, place, run);
                return true;
            }
        }
        self.remove_waiting(slot, at, name)
    }

    fn remove_waiting(&mut self, slot: RankSlot, at: Placement, name: EngineHash) -> bool {
        !self.waiting.is_empty() && self.waiting.remove(slot, at, name)
    }

    fn remove_own(
        &mut self,
        slot: RankSlot,
        at: Placement,
        name: EngineHash,
        place: Place,
    ) -> bool {
        let rank = &mut self.held[slot.index()];
        if !rank.remove_copy(name, at) {
            return false;
        }
        self.settle(slot, place, at.tier, Some(name));
        true
    }

    /// Puts the bit of an own block right after copies went.
    fn settle(&mut self, slot: RankSlot, place: Place, tier: Tier, hint: Option<EngineHash>) {
        let rank = &mut self.held[slot.index()];
        let names = rank.own_names(place, hint);
        let is_held = names.iter().any(|name| rank.has_copy_in(*name, tier));
        let dropped = names
            .iter()
            .filter(|name| rank.drop_if_empty(**name))
            .count();
        self.count_names(slot, 0, dropped);
        if !is_held {
            self.take_bit(slot, place, tier);
        }
    }

    pub(super) fn set_remaining(
        &mut self,
        slot: RankSlot,
        at: Placement,
        copies: &[(EngineHash, u32)],
    ) -> Applied {
        let mut known = 0;
        for (name, left) in copies {
            let rank = &self.held[slot.index()];
            let held = self.resolve(slot, *name).filter(|place| {
                let holders = self.chains.holders(*place);
                // A block with several names may be held in the tier under another one.
                holders.is_some_and(|holders| holders.contains(at.tier, slot))
                    && (rank.own(*name).is_none() || rank.has_copy_in(*name, at.tier))
            });
            let Some(place) = held else {
                known += usize::from(*left == 0 && self.remove_waiting(slot, at, *name));
                continue;
            };
            let rank = &self.held[slot.index()];
            let is_own = rank.own(*name).is_some();
            if !is_own && (at.group != rank.home || *left == 1) {
                known += usize::from(at.group == rank.home);
                continue;
            }
            self.make_own(slot, place);
            if self.held[slot.index()].set_copies(*name, at, *left) {
                known += 1;
                self.settle(slot, place, at.tier, Some(*name));
            }
        }
        self.counts.removed += count(known);
        self.counts.unknown_removals += count(copies.len() - known);
        Applied::Removed {
            blocks: known,
            unknown: copies.len() - known,
        }
    }

    /// Drops all copies a rank has under a name.
    pub(super) fn release(&mut self, slot: RankSlot, name: EngineHash, place: Place) {
        let rank = &mut self.held[slot.index()];
        if rank.own(name) == Some(place) {
            for tier in Tier::ALL {
                let rank = &mut self.held[slot.index()];
                if rank.has_copy_in(name, tier) {
                    rank.drop_copies_in(name, tier);
                    self.settle(slot, place, tier, Some(name));
                }
            }
            return;
        }
        self.count_plain(slot, place, true);
        self.take_bits(slot, place);
    }

    /// Drops all copies a rank has of a block in a tier, whatever their names.
    pub(super) fn drop_from_tier(
        &mut self,
        slot: RankSlot,
        place: Place,
        tier: Tier,
        hint: Option<EngineHash>,
    ) {
        let rank = &mut self.held[slot.index()];
        if rank.is_owned(place) {
            for name in rank.own_names(place, hint) {
                rank.drop_copies_in(name, tier);
            }
            self.settle(slot, place, tier, hint);
            return;
        }
        let Some(holders) = self.chains.holders(place) else {
            return;
        };
        if holders.contains(tier, slot) {
            let last = holders.tiers(slot).count() == 1;
            self.count_plain(slot, place, last);
            self.take_bit(slot, place, tier);
        }
    }

    /// Notes that a block which is not owned goes from a tier; with the last one goes its name.
    fn count_plain(&mut self, slot: RankSlot, place: Place, last: bool) {
        if last {
            self.held[slot.index()].drop_alias(place);
            self.count_names(slot, 0, 1);
        }
    }

    fn take_bits(&mut self, slot: RankSlot, place: Place) {
        for tier in Tier::ALL {
            let holders = self.chains.holders(place);
            if holders.is_some_and(|holders| holders.contains(tier, slot)) {
                self.take_bit(slot, place, tier);
            }
        }
    }

    fn take_bit(&mut self, slot: RankSlot, place: Place, tier: Tier) {
        self.held[slot.index()].trust(place, tier);
        let mut run = None;
        self.shrink(slot, tier, place, &mut run);
        self.let_go(slot, tier, &mut run);
    }

    /// Adds a block to the run of those that lose their holder together.
    fn shrink(&mut self, slot: RankSlot, tier: Tier, place: Place, run: &mut Option<Run>) {
        if tier != Tier::Device {
            self.below_device -= 1;
        }
        let offset = u16::from(place.offset);
        if let Some(run) = run
            && run.strand == place.strand
        {
            if run.stretch.to == offset {
                run.stretch.to += 1;
                return;
            }
            if run.stretch.from == offset + 1 {
                run.stretch.from = offset;
                return;
            }
        }
        self.let_go(slot, tier, run);
        *run = Some(Run::one(place));
    }

    fn let_go(&mut self, slot: RankSlot, tier: Tier, run: &mut Option<Run>) {
        if let Some(Run { strand, stretch }) = run.take() {
            let change = Change {
                slot,
                tier,
                holds: false,
            };
            self.chains.change(strand, stretch, change);
        }
    }
}
