//! Finds the block that an engine's name stands for, where ranks agree on it; exceptions are the ranks' own business.
//!
//! An entry is eight bytes: a place and a part of the name's hash. The name itself is kept with its
//! block, so whoever asks says whether a place is the one. Entries lie in lines of cache: one line
//! answers most questions, also those whose answer is no.

use std::fmt;
use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;

use super::strand::Place;

/// Tables of this many parts grow one part at a time, so that no single event pays for all.
const SHARDS: usize = 64;
const HASH_BITS: u32 = 24;
const HASH_AT: u32 = u64::BITS - HASH_BITS;
/// Entries of a line.
const LINE: usize = 7;

/// Places by name.
pub(super) struct Names {
    shards: Vec<Shard>,
    hasher: DefaultHashBuilder,
}

#[derive(Clone, Default)]
struct Shard {
    lines: Vec<Line>,
    len: usize,
}

/// A line of cache.
#[derive(Clone, Default)]
#[repr(align(64))]
struct Line {
    entries: [u64; LINE],
    /// How many of them are there, from the first on.
    len: u32,
    /// How many that belong here or before are in later lines.
    beyond: u32,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            shards: vec![Shard::default(); SHARDS],
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len: usize = self.shards.iter().map(|shard| shard.len).sum();
        f.debug_struct("Names")
            .field("len", &len)
            .finish_non_exhaustive()
    }
}

impl Names {
    /// The place of a name; `is` tells whether the block there has it.
    pub(super) fn get(&self, name: u64, is: impl Fn(Place) -> bool) -> Option<Place> {
        let (shard, hash) = self.hash(name);
        self.shards[shard].find(hash, is)
    }

    /// Adds a name; false if it is there, as `is` tells of the block at a place.
    pub(super) fn insert(&mut self, name: u64, place: Place, is: impl Fn(Place) -> bool) -> bool {
        let (shard, hash) = self.hash(name);
        let shard = &mut self.shards[shard];
        if shard.find(hash, is).is_some() {
            return false;
        }
        shard.insert(entry(hash, place));
        true
    }

    /// Takes a name from a place.
    pub(super) fn remove(&mut self, name: u64, place: Place) {
        let (shard, hash) = self.hash(name);
        self.shards[shard].remove(entry(hash, place));
    }

    /// Reads what asking for the name will read first. Of several names the reads overlap, because
    /// nothing is decided by them; the results are good for nothing.
    pub(super) fn touch(&self, name: u64) -> u64 {
        let (shard, hash) = self.hash(name);
        let shard = &self.shards[shard];
        let line = shard.lines.get(shard.home(hash));
        line.map_or(0, |line| u64::from(line.len))
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the upper bits are taken after the shift, the lower ones by the mask"
    )]
    fn hash(&self, name: u64) -> (usize, u32) {
        let hash = self.hasher.hash_one(name);
        (hash as usize % SHARDS, (hash >> HASH_AT) as u32)
    }
}

impl Shard {
    fn find(&self, hash: u32, is: impl Fn(Place) -> bool) -> Option<Place> {
        let mut at = self.home(hash);
        // Each line may have sent something to the next, in a ring: one round is all there is.
        for _ in 0..self.lines.len() {
            let line = self.lines.get(at)?;
            let mut found = line.matching(|entry| hash_of(entry) == hash);
            while found != 0 {
                let place = place_of(line.entries[lowest(found)]);
                if is(place) {
                    return Some(place);
                }
                found &= found - 1;
            }
            if line.beyond == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    fn insert(&mut self, entry: u64) {
        if self.len >= self.lines.len() * LINE * 3 / 4 {
            self.resize(self.lines.len() * 2);
        }
        self.put(entry);
        self.len += 1;
    }

    /// There is room.
    fn put(&mut self, entry: u64) {
        let mut at = self.home(hash_of(entry));
        loop {
            let line = &mut self.lines[at];
            if line.push(entry) {
                return;
            }
            line.beyond += 1;
            at = self.after(at);
        }
    }

    fn remove(&mut self, entry: u64) {
        let home = self.home(hash_of(entry));
        let mut at = home;
        let mut is_found = false;
        for _ in 0..self.lines.len() {
            let Some(line) = self.lines.get_mut(at) else {
                return;
            };
            let found = line.matching(|other| other == entry);
            if found != 0 {
                line.remove(lowest(found));
                is_found = true;
                break;
            }
            if line.beyond == 0 {
                return;
            }
            at = self.after(at);
        }
        if !is_found {
            return;
        }
        while at != home {
            at = at.checked_sub(1).unwrap_or(self.lines.len() - 1);
            self.lines[at].beyond -= 1;
        }
        self.len -= 1;
        if self.len < self.lines.len() * LINE / 8 {
            self.resize(self.lines.len() / 3);
        }
    }

    /// Moves everything to so many lines, which must be enough.
    fn resize(&mut self, lines: usize) {
        let lines = vec![Line::default(); lines.max(2)];
        let before = std::mem::replace(&mut self.lines, lines);
        for line in &before {
            for entry in line.entries() {
                self.put(*entry);
            }
        }
    }

    /// The line where a hash belongs.
    fn home(&self, hash: u32) -> usize {
        let lines = u64::try_from(self.lines.len()).unwrap_or(u64::MAX);
        usize::try_from((u64::from(hash) * lines) >> HASH_BITS).unwrap_or(usize::MAX)
    }

    fn after(&self, line: usize) -> usize {
        if line + 1 < self.lines.len() {
            line + 1
        } else {
            0
        }
    }
}

impl Line {
    fn entries(&self) -> &[u64] {
        &self.entries[..slot(self.len)]
    }

    /// Which entries are wanted, a bit each. All are asked: that is cheaper than to stop.
    fn matching(&self, wanted: impl Fn(u64) -> bool) -> u32 {
        let bit = |at: usize| u32::from(wanted(self.entries[at])) << at;
        let bits = (0..LINE).map(bit).fold(0, |all, one| all | one);
        bits & ((1 << self.len) - 1)
    }

    /// False if the line is full.
    fn push(&mut self, entry: u64) -> bool {
        let Some(free) = self.entries.get_mut(slot(self.len)) else {
            return false;
        };
        *free = entry;
        self.len += 1;
        true
    }

    fn remove(&mut self, at: usize) {
        self.len -= 1;
        self.entries[at] = self.entries[slot(self.len)];
    }
}

fn lowest(bits: u32) -> usize {
    slot(bits.trailing_zeros())
}

fn slot(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn entry(hash: u32, place: Place) -> u64 {
    u64::from(hash) << HASH_AT | u64::from(place.offset) << u32::BITS | u64::from(place.strand)
}

fn hash_of(entry: u64) -> u32 {
    (entry >> HASH_AT) as u32
}

#[expect(clippy::cast_possible_truncation, reason = "the bits are taken apart")]
fn place_of(entry: u64) -> Place {
    Place {
        strand: entry as u32,
        offset: (entry >> u32::BITS) as u8,
    }
}

#[cfg(test)]
mod tests {
    use hashbrown::HashMap;
    use rand::Rng;

    use super::*;
    use crate::testing::seeded;

    #[test]
    fn names_agree_with_a_plain_map() {
        let mut random = seeded("names");
        let mut names = Names::default();
        let mut model: HashMap<u64, Place> = HashMap::new();
        let mut blocks: HashMap<Place, u64> = HashMap::new();
        let most = 40_000;
        for step in 0..600_000_u32 {
            let name = random.random_range(0..most);
            let is = |place: Place| blocks.get(&place) == Some(&name);
            assert_eq!(
                names.get(name, is),
                model.get(&name).copied(),
                "step {step}"
            );
            // Phases of growth and of emptying.
            if random.random_bool(if step / 100_000 % 2 == 0 { 0.7 } else { 0.2 }) {
                let place = Place {
                    strand: step,
                    offset: random.random(),
                };
                let added = names.insert(name, place, is);
                assert_eq!(added, !model.contains_key(&name));
                if added {
                    model.insert(name, place);
                    blocks.insert(place, name);
                }
            } else if let Some(place) = model.remove(&name) {
                names.remove(name, place);
                blocks.remove(&place);
            }
        }
        for (name, place) in model {
            names.remove(name, place);
        }
        assert!(names.shards.iter().all(|shard| shard.len == 0));
        assert!(names.shards.iter().all(|shard| shard.lines.len() <= 2));
    }

    #[test]
    fn a_name_is_removed_from_one_place_alone() {
        let mut names = Names::default();
        let [first, other] = [1, 2].map(|strand| Place { strand, offset: 0 });
        assert!(names.insert(7, first, |_| true));
        names.remove(7, other);
        assert_eq!(names.get(7, |_| true), Some(first));
        names.remove(7, first);
        assert_eq!(names.get(7, |_| true), None);
    }

    #[test]
    fn a_ring_of_lines_that_all_overflow_is_gone_round_once() {
        let mut shard = Shard::default();
        let place = |strand| Place { strand, offset: 0 };
        let (first, last) = (0, (1 << HASH_BITS) - 1);
        for strand in 0..8 {
            shard.insert(entry(first, place(strand)));
        }
        for strand in 0..6 {
            shard.remove(entry(first, place(strand)));
        }
        for strand in 10..17 {
            shard.insert(entry(last, place(strand)));
        }
        assert!(shard.lines.len() == 2 && shard.lines.iter().all(|line| line.beyond > 0));
        assert_eq!(shard.find(last, |found| found == place(99)), None);
        shard.remove(entry(first, place(99)));
        assert_eq!(shard.len, 9);
        assert_eq!(shard.find(first, |found| found == place(7)), Some(place(7)));
    }

    #[test]
    fn entries_of_one_hash_crowd_into_later_lines_and_leave_no_trace() {
        let mut shard = Shard::default();
        let place = |strand| Place { strand, offset: 3 };
        let hashes = [0, 5, (1 << HASH_BITS) - 1];
        for hash in hashes {
            for strand in 0..20 {
                let is = |found| found == place(strand);
                assert_eq!(shard.find(hash, is), None);
                shard.insert(entry(hash, place(strand)));
            }
        }
        for hash in hashes {
            for strand in 0..20 {
                let is = |found| found == place(strand);
                assert_eq!(shard.find(hash, is), Some(place(strand)));
                shard.remove(entry(hash, place(strand)));
                assert_eq!(shard.find(hash, is), None);
            }
        }
        assert_eq!(shard.len, 0);
        assert!(
            shard
                .lines
                .iter()
                .all(|line| line.len == 0 && line.beyond == 0)
        );
    }
}
