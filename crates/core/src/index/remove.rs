//! Takes copies from ranks, and blocks from them with the last one; it stores nothing.

use super::apply::{Run, count};
use super::holders::Change;
use super::holdings::Holdings;
use super::strand::{Place, Stretch};
use super::{Applied, KvIndex, Placement, Tier};
use crate::hash::EngineHash;
use crate::ranks::RankSlot;

/// Where a block was found, and what holds of those around it.
#[derive(Clone, Copy, Debug)]
struct Near {
    place: Place,
    /// Whether the rank calls any block of the strand otherwise than the table.
    has_aliases: bool,
    /// Blocks around that the rank holds.
    held: Stretch,
}

impl KvIndex {
    pub(super) fn remove(
        &mut self,
        slot: RankSlot,
        at: Placement,
        names: &[EngineHash],
    ) -> Applied {
        let mut places = std::mem::take(&mut self.places);
        self.find_all(slot, names, &mut places);
        let (mut removed, mut done, mut run) = (0, 0, None);
        while let (Some(name), Some(place)) = (names.get(done), places.get(done)) {
            let count = self.remove_row(slot, at, &names[done..], &places[done..], &mut run);
            removed += count;
            if count == 0 {
                removed += usize::from(self.remove_one(slot, at, *name, *place, &mut run));
            }
            done += count.max(1);
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

    /// What the rank, or else the table, means by each name, own ones aside. Names in a row are those
    /// of blocks in a row more often than not: that is tried first.
    fn find_all(&self, slot: RankSlot, names: &[EngineHash], places: &mut Vec<Option<Place>>) {
        places.clear();
        let rank = &self.held[slot.index()];
        let raw = names.iter().map(|name| name.0);
        self.chains.prefetch(raw.clone());
        let mut near = None;
        for (at, name) in names.iter().enumerate() {
            let beside = near.and_then(|near| self.beside(near, rank, *name));
            if let (Some(near), Some(place)) = (&mut near, beside) {
                *near = Near { place, ..*near };
                places.push(beside);
                continue;
            }
            if at < 2 {
                rank.prefetch(raw.clone().skip(at));
            }
            let place = rank.find_alias(*name).or_else(|| self.chains.named(name.0));
            near = place.map(|place| self.near(slot, place)).or(near);
            places.push(place);
        }
    }

    fn near(&self, slot: RankSlot, place: Place) -> Near {
        let rank = &self.held[slot.index()];
        let held = self.chains.strand(place.strand).span(place.offset);
        let held = held.filter(|(_, holders)| holders.tiers(slot).next().is_some());
        Near {
            place,
            has_aliases: rank.has_aliases_in(place.strand),
            held: held.map_or(Stretch { from: 0, to: 0 }, |(span, _)| span),
        }
    }

    /// The block before or behind one, if the rank calls it `name`.
    fn beside(&self, near: Near, rank: &Holdings, name: EngineHash) -> Option<Place> {
        if near.has_aliases {
            return rank.alias_beside(near.place, name);
        }
        let is_implied =
            |place: &Place| near.held.contains(u16::from(place.offset)) && !rank.is_owned(*place);
        let beside = self.chains.beside(near.place, name.0);
        beside.filter(is_implied)
    }

    /// Removes the leading blocks that are in a row, held in this tier alone, by one copy each; how
    /// many. 0 if there is more to it.
    fn remove_row(
        &mut self,
        slot: RankSlot,
        at: Placement,
        names: &[EngineHash],
        places: &[Option<Place>],
        run: &mut Option<Run>,
    ) -> usize {
        let rank = &self.held[slot.index()];
        let Some(&Some(first)) = places.first() else {
            return 0;
        };
        if at.group != rank.home || !rank.is_clear() {
            return 0;
        }
        let Some((span, holders)) = self.chains.strand(first.strand).span(first.offset) else {
            return 0;
        };
        if !holders.tiers(slot).eq([at.tier]) {
            return 0;
        }
        let has_aliases = rank.has_aliases_in(first.strand);
        let mut row = Run::one(first).stretch;
        let mut count = 0;
        for (name, place) in names.iter().zip(places) {
            let Some(place) = place.filter(|place| place.strand == first.strand) else {
                break;
            };
            let offset = u16::from(place.offset);
            let is_called = !has_aliases || self.plain_name(slot, place) == Some(*name);
            if !is_called || !span.contains(offset) || run.is_some_and(|run| run.contains(place)) {
                break;
            }
            if count > 0 && !row.grow(offset) {
                break;
            }
            count += 1;
        }
        if count > 0 {
            if has_aliases {
                self.forget_names(slot, &places[..count]);
            } else {
                self.count_names(slot, 0, count);
            }
            self.shrink(slot, at.tier, first.strand, row, run);
        }
        count
    }

    /// Forgets what the rank calls blocks that are not owned and that it no longer holds.
    fn forget_names(&mut self, slot: RankSlot, places: &[Option<Place>]) {
        let rank = &mut self.held[slot.index()];
        for place in places.iter().flatten() {
            rank.drop_alias(*place);
        }
        self.count_names(slot, 0, places.len());
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
                if last {
                    self.forget_names(slot, &[Some(place)]);
                }
                self.shrink(slot, at.tier, place.strand, Run::one(place).stretch, run);
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
        self.forget_names(slot, &[Some(place)]);
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
            if last {
                self.forget_names(slot, &[Some(place)]);
            }
            self.take_bit(slot, place, tier);
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
        self.shrink(slot, tier, place.strand, Run::one(place).stretch, &mut run);
        self.let_go(slot, tier, &mut run);
    }

    /// Adds blocks to the run of those that lose their holder together.
    fn shrink(
        &mut self,
        slot: RankSlot,
        tier: Tier,
        strand: u32,
        row: Stretch,
        run: &mut Option<Run>,
    ) {
        if tier != Tier::Device {
            self.below_device -= usize::from(row.to - row.from);
        }
        if let Some(run) = run
            && run.strand == strand
        {
            if run.stretch.to == row.from {
                run.stretch.to = row.to;
                return;
            }
            if run.stretch.from == row.to {
                run.stretch.from = row.from;
                return;
            }
        }
        self.let_go(slot, tier, run);
        *run = Some(Run {
            strand,
            stretch: row,
        });
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
