//! Says who holds a block in which tier, and what one rank's change makes of it; it knows nothing of blocks.

use crate::ranks::{RankSet, RankSlot};
use crate::tier::Tier;

/// Who holds a block, by tier.
#[derive(Clone, Debug, Default)]
pub(super) struct Holders {
    pub(super) device: RankSet,
    pub(super) lower: Option<Box<[RankSet; 3]>>,
}

/// One rank's holding in one tier, as it is changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) slot: RankSlot,
    pub(super) tier: Tier,
    pub(super) holds: bool,
}

impl Holders {
    pub(super) fn get(&self, tier: Tier) -> Option<&RankSet> {
        match tier.below_device() {
            None => Some(&self.device),
            Some(at) => self.lower.as_ref().map(|lower| &lower[at]),
        }
    }

    pub(super) fn contains(&self, tier: Tier, slot: RankSlot) -> bool {
        self.get(tier).is_some_and(|set| set.contains(slot))
    }

    /// The tiers the rank holds the block in.
    pub(super) fn tiers(&self, slot: RankSlot) -> impl Iterator<Item = Tier> {
        Tier::ALL
            .into_iter()
            .filter(move |tier| self.contains(*tier, slot))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.device.is_empty()
            && self
                .lower
                .as_ref()
                .is_none_or(|lower| lower.iter().all(RankSet::is_empty))
    }

    pub(super) fn apply(&mut self, change: Change) {
        let set = match change.tier.below_device() {
            None => &mut self.device,
            Some(at) => &mut self.lower.get_or_insert_default()[at],
        };
        if change.holds {
            set.insert(change.slot);
        } else {
            set.remove(change.slot);
        }
        if let Some(lower) = &self.lower
            && lower.iter().all(RankSet::is_empty)
        {
            self.lower = None;
        }
    }

    /// Whether both are equal once `change` is made to `self`; the rank may be on neither side of it yet.
    pub(super) fn equals_after(&self, change: Change, other: &Self) -> bool {
        other.contains(change.tier, change.slot) == change.holds
            && Tier::ALL.into_iter().all(|tier| {
                let but = (tier == change.tier).then_some(change.slot);
                RankSet::same_but(self.get(tier), other.get(tier), but)
            })
    }

    /// Whether this is what `change` makes of no holders.
    #[inline]
    pub(super) fn is_only(&self, change: Change) -> bool {
        if self.lower.is_none() && change.tier == Tier::Device {
            return if change.holds {
                self.device.is_only(change.slot)
            } else {
                self.device.is_empty()
            };
        }
        Tier::ALL.into_iter().all(|tier| {
            let count = self.get(tier).map_or(0, RankSet::len);
            let expected = tier == change.tier && change.holds;
            count == usize::from(expected) && (!expected || self.contains(change.tier, change.slot))
        })
    }

    pub(super) fn equals(&self, other: &Self) -> bool {
        Tier::ALL
            .into_iter()
            .all(|tier| RankSet::same_but(self.get(tier), other.get(tier), None))
    }
}
