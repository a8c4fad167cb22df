//! Gives worker ranks dense numbers, and holds sets of them that can be intersected by the word; it knows nothing of what the sets are about.

use hashbrown::HashMap;
use pointsman_plugin::WorkerWithDpRank;

/// How many slots a set holds by value before it becomes a bitset on the heap.
const FEW: usize = 5;
const WORD_BITS: u32 = u64::BITS;

/// The dense number of a worker rank within one table; reused after the rank has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RankSlot(u32);

/// Which rank has which slot.
#[derive(Debug, Default)]
pub(crate) struct RankTable {
    slots: HashMap<WorkerWithDpRank, RankSlot>,
    ranks: Vec<Option<WorkerWithDpRank>>,
    free: Vec<RankSlot>,
}

/// A set of slots, small where it can be.
///
/// Up to 64 ranks a partition's sets are one inline word; beyond, few owners are listed and many
/// are a bitset.
#[derive(Clone, Debug)]
pub(crate) enum RankSet {
    /// All slots are below 64.
    Word(u64),
    /// At most [`FEW`] slots, any number, unordered.
    Few {
        len: u8,
        slots: [u32; FEW],
    },
    Many(Box<[u64]>),
}

impl RankSlot {
    pub(crate) fn index(self) -> usize {
        index(self.0)
    }

    #[cfg(test)]
    pub(crate) fn of(number: u32) -> Self {
        Self(number)
    }
}

impl RankTable {
    /// The rank's slot; a new one if it has none.
    pub(crate) fn insert(&mut self, worker: WorkerWithDpRank) -> RankSlot {
        if let Some(slot) = self.slots.get(&worker) {
            return *slot;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.ranks.push(None);
            RankSlot(u32::try_from(self.ranks.len() - 1).unwrap_or(u32::MAX))
        });
        self.ranks[slot.index()] = Some(worker);
        self.slots.insert(worker, slot);
        slot
    }

    pub(crate) fn remove(&mut self, worker: WorkerWithDpRank) -> Option<RankSlot> {
        let slot = self.slots.remove(&worker)?;
        self.ranks[slot.index()] = None;
        self.free.push(slot);
        Some(slot)
    }

    pub(crate) fn get(&self, worker: WorkerWithDpRank) -> Option<RankSlot> {
        self.slots.get(&worker).copied()
    }

    /// Whether `slot` is `worker`'s now; false once the slot has gone to another.
    pub(crate) fn is(&self, slot: RankSlot, worker: WorkerWithDpRank) -> bool {
        self.ranks.get(slot.index()) == Some(&Some(worker))
    }

    pub(crate) fn worker(&self, slot: RankSlot) -> Option<WorkerWithDpRank> {
        self.ranks.get(slot.index()).copied().flatten()
    }

    pub(crate) fn workers(&self) -> impl Iterator<Item = (WorkerWithDpRank, RankSlot)> {
        self.slots.iter().map(|(worker, slot)| (*worker, *slot))
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// One past the largest slot ever given.
    pub(crate) fn bound(&self) -> usize {
        self.ranks.len()
    }
}

impl Default for RankSet {
    fn default() -> Self {
        Self::Word(0)
    }
}

impl RankSet {
    pub(crate) fn contains(&self, slot: RankSlot) -> bool {
        match self {
            Self::Word(word) => slot.0 < WORD_BITS && word & (1 << slot.0) != 0,
            Self::Few { len, slots } => slots[..usize::from(*len)].contains(&slot.0),
            Self::Many(words) => words
                .get(index(slot.0 / WORD_BITS))
                .is_some_and(|word| word & bit(slot.0) != 0),
        }
    }

    /// False if it was there already.
    pub(crate) fn insert(&mut self, slot: RankSlot) -> bool {
        if self.contains(slot) {
            return false;
        }
        match self {
            Self::Word(word) if slot.0 < WORD_BITS => *word |= bit(slot.0),
            Self::Few { len, slots } if usize::from(*len) < FEW => {
                slots[usize::from(*len)] = slot.0;
                *len += 1;
            }
            Self::Many(words) if index(slot.0 / WORD_BITS) < words.len() => {
                words[index(slot.0 / WORD_BITS)] |= bit(slot.0);
            }
            _ if self.len() < FEW => {
                let (mut slots, mut len) = ([slot.0; FEW], 1);
                self.for_each(|member| {
                    slots[len] = member.0;
                    len += 1;
                });
                *self = Self::of(&slots[..len]);
            }
            _ => {
                let mut slots: Vec<u32> = Vec::with_capacity(self.len() + 1);
                self.for_each(|member| slots.push(member.0));
                slots.push(slot.0);
                *self = Self::of(&slots);
            }
        }
        true
    }

    /// False if it was not there.
    pub(crate) fn remove(&mut self, slot: RankSlot) -> bool {
        if !self.contains(slot) {
            return false;
        }
        match self {
            Self::Word(word) => *word &= !bit(slot.0),
            Self::Few { len, slots } => {
                let last = usize::from(*len) - 1;
                if let Some(at) = slots.iter().position(|member| *member == slot.0) {
                    slots[at] = slots[last];
                }
                *len -= 1;
            }
            Self::Many(words) => {
                words[index(slot.0 / WORD_BITS)] &= !bit(slot.0);
                // Half of what made it a bitset, so that a set on the edge does not flap.
                if self.len() <= FEW / 2 {
                    let mut slots = Vec::with_capacity(FEW);
                    self.for_each(|member| slots.push(member.0));
                    *self = Self::of(&slots);
                }
            }
        }
        true
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Word(word) => index(word.count_ones()),
            Self::Few { len, .. } => usize::from(*len),
            Self::Many(words) => words.iter().map(|word| index(word.count_ones())).sum(),
        }
    }

    /// Whether `slot` is the only member.
    #[inline]
    pub(crate) fn is_only(&self, slot: RankSlot) -> bool {
        match self {
            Self::Word(word) => slot.0 < WORD_BITS && *word == bit(slot.0),
            Self::Few { len, slots } => *len == 1 && slots[0] == slot.0,
            Self::Many(_) => self.len() == 1 && self.contains(slot),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Word(word) => *word == 0,
            Self::Few { len, .. } => *len == 0,
            Self::Many(words) => words.iter().all(|word| *word == 0),
        }
    }

    /// Whether two sets have the same members, `but` aside; none is an empty one.
    pub(crate) fn same_but(
        one: Option<&Self>,
        other: Option<&Self>,
        but: Option<RankSlot>,
    ) -> bool {
        let (one, other) = match (one, other) {
            (None, None) => return true,
            (Some(set), None) | (None, Some(set)) => {
                let aside = but.is_some_and(|slot| set.contains(slot));
                return set.len() == usize::from(aside);
            }
            (Some(one), Some(other)) => (one, other),
        };
        if let (Some(one), Some(other)) = (one.words(), other.words()) {
            let Some(slot) = but else {
                return difference(one, other) == 0;
            };
            let at = index(slot.0 / WORD_BITS);
            if one.len() == other.len() && at < one.len() {
                let here = (one[at] ^ other[at]) & !bit(slot.0);
                return here == 0 && one[..at] == other[..at] && one[at + 1..] == other[at + 1..];
            }
            let (one_before, one) = split(one, at);
            let (other_before, other) = split(other, at);
            let (one_here, one_after) = split(one, 1);
            let (other_here, other_after) = split(other, 1);
            let here = difference(one_here, other_here) & !bit(slot.0);
            let around = difference(one_before, other_before) | difference(one_after, other_after);
            return here | around == 0;
        }
        let len = |set: &Self| set.len() - usize::from(but.is_some_and(|slot| set.contains(slot)));
        if len(one) != len(other) {
            return false;
        }
        let mut same = true;
        one.for_each(|slot| same &= Some(slot) == but || other.contains(slot));
        same
    }

    pub(crate) fn for_each(&self, mut visit: impl FnMut(RankSlot)) {
        match self {
            Self::Word(word) => for_each_bit(*word, 0, &mut visit),
            Self::Few { len, slots } => {
                for slot in &slots[..usize::from(*len)] {
                    visit(RankSlot(*slot));
                }
            }
            Self::Many(words) => {
                for (at, word) in (0..).zip(words.iter()) {
                    for_each_bit(*word, at, &mut visit);
                }
            }
        }
    }

    /// The set as a bitset, where it is one.
    pub(crate) fn words(&self) -> Option<&[u64]> {
        match self {
            Self::Word(word) => Some(std::slice::from_ref(word)),
            Self::Few { .. } => None,
            Self::Many(words) => Some(words),
        }
    }

    fn of(slots: &[u32]) -> Self {
        let largest = slots.iter().copied().max().unwrap_or(0);
        if largest < WORD_BITS {
            return Self::Word(slots.iter().fold(0, |word, slot| word | bit(*slot)));
        }
        if slots.len() <= FEW {
            let mut few = [0; FEW];
            few[..slots.len()].copy_from_slice(slots);
            let len = u8::try_from(slots.len()).unwrap_or(u8::MAX);
            return Self::Few { len, slots: few };
        }
        let mut words = vec![0; index(largest / WORD_BITS) + 1];
        for slot in slots {
            words[index(*slot / WORD_BITS)] |= bit(*slot);
        }
        Self::Many(words.into_boxed_slice())
    }
}

pub(crate) fn for_each_bit(mut word: u64, at: u32, visit: &mut impl FnMut(RankSlot)) {
    while word != 0 {
        visit(RankSlot(at * WORD_BITS + word.trailing_zeros()));
        word &= word - 1;
    }
}

/// The bits in which bitsets differ, of all words together.
fn difference(one: &[u64], other: &[u64]) -> u64 {
    let both = one.len().min(other.len());
    let common = one.iter().zip(other).map(|(one, other)| one ^ other);
    let rest = one[both..].iter().chain(&other[both..]).copied();
    common.fold(0, |all, word| all | word) | rest.fold(0, |all, word| all | word)
}

fn split(words: &[u64], at: usize) -> (&[u64], &[u64]) {
    words.split_at(at.min(words.len()))
}

fn index(slot: u32) -> usize {
    usize::try_from(slot).unwrap_or(usize::MAX)
}

fn bit(slot: u32) -> u64 {
    1 << (slot % WORD_BITS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::Rng;

    use super::*;
    use crate::testing::seeded;

    #[test]
    fn a_rank_set_agrees_with_a_plain_set() {
        for bound in [8, 64, 65, 200, 2_000] {
            let mut random = seeded(&format!("slots below {bound}"));
            let mut set = RankSet::Word(0);
            let mut model = BTreeSet::new();
            for _ in 0..2_000 {
                let slot = RankSlot(random.random_range(0..bound));
                if random.random_bool(0.5) {
                    assert_eq!(set.insert(slot), model.insert(slot));
                } else {
                    assert_eq!(set.remove(slot), model.remove(&slot));
                }
                let mut members = BTreeSet::new();
                set.for_each(|slot| assert!(members.insert(slot)));
                assert_eq!(members, model);
                assert_eq!(set.len(), model.len());
                assert_eq!(set.is_empty(), model.is_empty());
                assert_eq!(set.is_only(slot), model.len() == 1 && model.contains(&slot));
            }
        }
    }

    #[test]
    fn sets_are_compared_with_one_slot_set_aside() {
        let mut random = seeded("sets that hardly differ");
        for bound in [8, 64, 300] {
            for _ in 0..3_000 {
                let mut sets = [RankSet::default(), RankSet::default()];
                let mut models = [BTreeSet::new(), BTreeSet::new()];
                for _ in 0..random.random_range(0..12) {
                    let slot = RankSlot(random.random_range(0..bound));
                    for (set, model) in sets.iter_mut().zip(&mut models) {
                        if random.random_bool(0.95) {
                            set.insert(slot);
                            model.insert(slot);
                        }
                    }
                }
                let but = random
                    .random_bool(0.7)
                    .then(|| RankSlot(random.random_range(0..bound)));
                let [one, other] = &sets;
                let differing: Vec<_> = models[0].symmetric_difference(&models[1]).collect();
                let same = differing.iter().all(|slot| Some(**slot) == but);
                assert_eq!(RankSet::same_but(Some(one), Some(other), but), same);
            }
        }
    }

    #[test]
    fn a_slot_is_reused_only_after_its_rank_left() {
        let mut table = RankTable::default();
        let [first, second] = [1, 2].map(WorkerWithDpRank::from_worker_id);
        let slot = table.insert(first);
        assert_eq!(table.insert(first), slot);
        assert_ne!(table.insert(second), slot);
        assert_eq!(table.remove(first), Some(slot));
        assert!(!table.is(slot, first));
        let third = WorkerWithDpRank::from_worker_id(3);
        assert_eq!(table.insert(third), slot);
        assert!(table.is(slot, third));
        assert_eq!(table.bound(), 2);
    }
}
