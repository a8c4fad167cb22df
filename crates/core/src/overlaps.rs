//! Counts, for one request, how many leading blocks each rank has: a dense array by slot that is filled by walking sets of ranks, never rank by rank; it does not know what the sets are about.

use crate::ranks::{RankSet, RankSlot, for_each_bit};
use crate::tier::Tier;

const LANES: usize = 64;
const TIERS: usize = Tier::ALL.len();

/// How many leading blocks of one request each rank has, by slot; reused from request to request.
///
/// Tiers continue each other: a rank's blocks in a tier are those behind what faster tiers gave.
#[derive(Debug, Default)]
pub struct Overlaps {
    /// By tier and slot: where the rank's blocks end in that tier or a faster one.
    ends: [Vec<u32>; TIERS],
    /// Slots whose count may not be zero, as a bitset; what is cleared before the next walk.
    found: Vec<u64>,
    /// Whether anything was found.
    written: bool,
    /// Whether the ends below the device tier mean anything.
    tiered: bool,
    depth: u32,
    phase: Phase,
    /// Ranks that have all blocks so far; by tier they are in.
    alive: [Vec<u64>; TIERS],
    listed: Vec<RankSlot>,
    words: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Start,
    Words,
    Listed,
    Over,
}

impl Overlaps {
    /// Leading blocks of the rank in `slot` on its device.
    pub fn blocks(&self, slot: RankSlot) -> u32 {
        self.end(Tier::Device, slot)
    }

    /// Blocks that continue the device's in host memory.
    pub fn host_blocks(&self, slot: RankSlot) -> u32 {
        self.span(Tier::Device, Tier::Host, slot)
    }

    /// Blocks that continue the host's on disk, and those that continue them in external storage.
    pub fn disk_blocks(&self, slot: RankSlot) -> u32 {
        self.span(Tier::Host, Tier::External, slot)
    }

    /// Of the disk's blocks, those in external storage.
    pub fn external_blocks(&self, slot: RankSlot) -> u32 {
        self.span(Tier::Disk, Tier::External, slot)
    }

    /// Whether no rank has any block.
    pub(crate) fn is_empty(&self) -> bool {
        !self.written
    }

    /// Slots with at least one leading block, ascending.
    pub fn found(&self) -> impl Iterator<Item = RankSlot> {
        let mut slots = Vec::new();
        for (at, word) in (0..).zip(&self.found) {
            for_each_bit(*word, at, &mut |slot| slots.push(slot));
        }
        slots.into_iter()
    }

    fn end(&self, tier: Tier, slot: RankSlot) -> u32 {
        self.ends[tier.index()]
            .get(slot.index())
            .copied()
            .unwrap_or(0)
    }

    fn span(&self, from: Tier, to: Tier, slot: RankSlot) -> u32 {
        if self.tiered {
            self.end(to, slot).saturating_sub(self.end(from, slot))
        } else {
            0
        }
    }

    /// Takes the larger count of each rank: `other` knows the same slots and only the device.
    pub(crate) fn raise_to(&mut self, other: &Self) {
        self.written |= other.written;
        if self.found.len() < other.found.len() {
            self.found.resize(other.found.len(), 0);
        }
        let tiers = if self.tiered { TIERS } else { 1 };
        for ends in &mut self.ends[..tiers] {
            if ends.len() < other.ends[0].len() {
                ends.resize(other.ends[0].len(), 0);
            }
        }
        for (at, word) in (0..).zip(&other.found) {
            self.found[lane(at)] |= word;
            for_each_bit(*word, at, &mut |slot| {
                let blocks = other.blocks(slot);
                for ends in &mut self.ends[..tiers] {
                    let end = &mut ends[slot.index()];
                    *end = (*end).max(blocks);
                }
            });
        }
    }

    /// Clears the last walk's counts and prepares for slots below `bound`.
    pub(crate) fn begin(&mut self, bound: usize) {
        let tiers = if self.tiered { TIERS } else { 1 };
        let stale = if std::mem::take(&mut self.written) {
            self.found.as_mut_slice()
        } else {
            &mut []
        };
        for (at, word) in stale.iter_mut().enumerate() {
            if *word != 0 {
                for ends in &mut self.ends[..tiers] {
                    ends[at * LANES..(at + 1) * LANES].fill(0);
                }
                *word = 0;
            }
        }
        let words = bound.div_ceil(LANES);
        if self.found.len() < words {
            self.found.resize(words, 0);
        }
        if self.ends[0].len() < words * LANES {
            self.ends[0].resize(words * LANES, 0);
        }
        self.tiered = false;
        self.depth = 0;
        self.phase = Phase::Start;
    }

    /// The next `blocks` blocks are held by `set`; false once no rank is left.
    ///
    /// Bitsets are intersected by the word; once a set is a list, so are the ranks left.
    #[inline]
    pub(crate) fn step(&mut self, set: Option<&RankSet>, blocks: u32) -> bool {
        match self.phase {
            Phase::Start => self.start(set),
            Phase::Words => self.step_words(set),
            Phase::Listed => self.step_listed(set),
            Phase::Over => {}
        }
        self.depth += blocks;
        self.phase != Phase::Over
    }

    /// The chain ends here for the ranks that are left.
    pub(crate) fn end_walk(&mut self) {
        match self.phase {
            Phase::Words => {
                for (at, word) in self.alive[0].iter().enumerate() {
                    write(&mut self.ends[0], at, *word, self.depth);
                }
            }
            Phase::Listed => {
                for slot in &self.listed {
                    self.ends[0][slot.index()] = self.depth;
                }
            }
            Phase::Start | Phase::Over => {}
        }
        self.phase = Phase::Over;
    }

    fn start(&mut self, set: Option<&RankSet>) {
        let Some(set) = set else {
            self.phase = Phase::Over;
            return;
        };
        self.written = true;
        if let Some(words) = set.words() {
            self.alive[0].clear();
            self.alive[0].extend_from_slice(words);
            self.found[..words.len()].copy_from_slice(words);
            self.phase = if words.iter().all(|word| *word == 0) {
                Phase::Over
            } else {
                Phase::Words
            };
        } else {
            let Self { listed, found, .. } = self;
            listed.clear();
            set.for_each(|slot| {
                listed.push(slot);
                found[slot.index() / LANES] |= 1 << (slot.index() % LANES);
            });
            self.phase = Phase::Listed;
        }
    }

    fn step_words(&mut self, set: Option<&RankSet>) {
        let ends = &mut self.ends[0];
        let Some(owners) = set.map_or(Some(&[][..]), RankSet::words) else {
            let listed = &mut self.listed;
            listed.clear();
            if let Some(set) = set {
                set.for_each(|slot| {
                    let word = self.alive[0].get_mut(slot.index() / LANES);
                    if let Some(word) = word
                        && *word & (1 << (slot.index() % LANES)) != 0
                    {
                        *word &= !(1 << (slot.index() % LANES));
                        listed.push(slot);
                    }
                });
            }
            for (at, lost) in self.alive[0].iter().enumerate() {
                write(ends, at, *lost, self.depth);
            }
            self.phase = if listed.is_empty() {
                Phase::Over
            } else {
                Phase::Listed
            };
            return;
        };
        let mut any = 0;
        for (at, word) in self.alive[0].iter_mut().enumerate() {
            let owners = owners.get(at).copied().unwrap_or(0);
            let lost = *word & !owners;
            if lost != 0 {
                write(ends, at, lost, self.depth);
                *word &= owners;
            }
            any |= *word;
        }
        if any == 0 {
            self.phase = Phase::Over;
        }
    }

    fn step_listed(&mut self, set: Option<&RankSet>) {
        let ends = &mut self.ends[0];
        let depth = self.depth;
        self.listed.retain(|slot| {
            let owns = set.is_some_and(|set| set.contains(*slot));
            if !owns {
                ends[slot.index()] = depth;
            }
            owns
        });
        if self.listed.is_empty() {
            self.phase = Phase::Over;
        }
    }

    /// As [`step`](Self::step), with the holders in every tier.
    ///
    /// A rank is in the fastest tier that has held all its blocks so far since the tier before
    /// ended. It never returns to a faster one.
    pub(crate) fn step_tiers<'a>(
        &mut self,
        holders: impl Fn(Tier) -> Option<&'a RankSet>,
        blocks: u32,
    ) -> bool {
        let words = self.found.len();
        let first = self.phase == Phase::Start;
        if first {
            self.begin_tiers(words);
        }
        // Ranks that the tier before has just lost.
        self.words.clear();
        self.words.resize(words, 0);
        if first {
            for tier in Tier::ALL {
                if let Some(set) = holders(tier) {
                    set.for_each(|slot| {
                        self.words[slot.index() / LANES] |= 1 << (slot.index() % LANES);
                    });
                }
            }
            self.found.copy_from_slice(&self.words);
        }
        let mut any = 0;
        for tier in Tier::ALL {
            let (alive, ends) = (&mut self.alive[tier.index()], &mut self.ends[tier.index()]);
            let set = holders(tier);
            let listed = set.filter(|set| set.words().is_none());
            let bits = set.and_then(RankSet::words).unwrap_or_default();
            for (at, (alive, lost)) in alive.iter_mut().zip(&mut self.words).enumerate() {
                let entering = *alive | *lost;
                if entering == 0 {
                    continue;
                }
                let mut owners = bits.get(at).copied().unwrap_or(0);
                if let Some(set) = listed {
                    set.for_each(|slot| {
                        if slot.index() / LANES == at {
                            owners |= 1 << (slot.index() % LANES);
                        }
                    });
                }
                *alive = entering & owners;
                *lost = entering & !owners;
                write(ends, at, *lost, self.depth);
                any |= *alive;
            }
        }
        self.depth += blocks;
        if any == 0 {
            self.phase = Phase::Over;
        }
        any != 0
    }

    pub(crate) fn end_tiers(&mut self) {
        if self.phase == Phase::Words {
            for reached in 0..TIERS {
                for ends in reached..TIERS {
                    for (at, word) in self.alive[reached].iter().enumerate() {
                        write(&mut self.ends[ends], at, *word, self.depth);
                    }
                }
            }
        }
        self.phase = Phase::Over;
    }

    fn begin_tiers(&mut self, words: usize) {
        for tier in Tier::ALL {
            let alive = &mut self.alive[tier.index()];
            alive.clear();
            alive.resize(words, 0);
            let ends = &mut self.ends[tier.index()];
            if ends.len() < words * LANES {
                ends.resize(words * LANES, 0);
            }
        }
        self.tiered = true;
        self.written = true;
        self.phase = Phase::Words;
    }
}

/// Sets the count of the slots of one word.
#[inline]
fn write(ends: &mut [u32], at: usize, word: u64, depth: u32) {
    let lanes = &mut ends[at * LANES..(at + 1) * LANES];
    if word == u64::MAX {
        lanes.fill(depth);
        return;
    }
    let mut rest = word;
    while rest != 0 {
        lanes[rest.trailing_zeros() as usize] = depth;
        rest &= rest - 1;
    }
}

fn lane(at: u32) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::*;
    use crate::testing::seeded;

    #[test]
    fn a_walk_agrees_with_asking_each_rank() {
        for bound in [4_u32, 64, 300] {
            let mut random = seeded(&format!("slots below {bound}"));
            let mut overlaps = Overlaps::default();
            for _ in 0..300 {
                let density = random.random_range(0.5..1.0);
                let sets: Vec<Option<RankSet>> = (0..random.random_range(0..12))
                    .map(|depth| {
                        let mut set = RankSet::Word(0);
                        for slot in 0..bound {
                            if random.random_bool(f64::powi(density, depth + 1)) {
                                set.insert(RankSlot::of(slot));
                            }
                        }
                        (!set.is_empty()).then_some(set)
                    })
                    .collect();
                overlaps.begin(bound as usize);
                for set in &sets {
                    if !overlaps.step(set.as_ref(), 1) {
                        break;
                    }
                }
                overlaps.end_walk();
                for slot in (0..bound).map(RankSlot::of) {
                    let expected = sets
                        .iter()
                        .take_while(|set| set.as_ref().is_some_and(|set| set.contains(slot)))
                        .count();
                    assert_eq!(overlaps.blocks(slot) as usize, expected);
                    assert_eq!(overlaps.found().any(|found| found == slot), expected > 0);
                }
            }
        }
    }
}
