//! Finds places by parts of hashes; what was hashed is kept elsewhere, and whoever asks says whether a place is the one.
//!
//! An entry is eight bytes: a place and a part of a hash. Entries lie in lines of cache: one line
//! answers most questions, also those whose answer is no.

use std::fmt;

use super::strand::Place;

const HASH_BITS: u32 = 24;
const HASH_AT: u32 = u64::BITS - HASH_BITS;
/// Entries of a line.
const LINE: usize = 7;

/// Places by a part of a hash.
#[derive(Clone, Default)]
pub(super) struct Places {
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

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Places")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Places {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The first place under a hash that `is` says is the one.
    pub(super) fn find(&self, hash: u32, is: impl Fn(Place) -> bool) -> Option<Place> {
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

    /// Adds a place, unless `is` says that one under the hash is the one; false then.
    pub(super) fn insert_new(
        &mut self,
        hash: u32,
        place: Place,
        is: impl Fn(Place) -> bool,
    ) -> bool {
        let home = self.home(hash);
        // Most often the line where it belongs says all, and has room.
        if !self.is_full()
            && let Some(line) = self.lines.get_mut(home)
            && line.beyond == 0
            && line.matching(|entry| hash_of(entry) == hash) == 0
            && line.push(entry(hash, place))
        {
            self.len += 1;
            return true;
        }
        if self.find(hash, is).is_some() {
            return false;
        }
        self.insert(hash, place);
        true
    }

    /// Adds a place, which may be there already.
    pub(super) fn insert(&mut self, hash: u32, place: Place) {
        if self.is_full() {
            self.resize(self.lines.len() * 2);
        }
        self.put(entry(hash, place));
        self.len += 1;
    }

    /// As full as it gets.
    fn is_full(&self) -> bool {
        self.len >= self.lines.len() * LINE * 3 / 4
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

    /// Takes a place out, once.
    pub(super) fn remove(&mut self, hash: u32, place: Place) {
        let entry = entry(hash, place);
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

    /// Reads what asking for a hash will read first. Of several the reads overlap, because nothing is
    /// decided by them; the results are good for nothing.
    pub(super) fn touch(&self, hash: u32) -> u64 {
        let line = self.lines.get(self.home(hash));
        line.map_or(0, |line| u64::from(line.len))
    }

    /// The first place that may be the one, of those where the hash belongs.
    pub(super) fn guess(&self, hash: u32) -> Option<Place> {
        let line = self.lines.get(self.home(hash))?;
        let found = line.matching(|entry| hash_of(entry) == hash);
        let entry = line.entries.get(lowest(found))?;
        Some(place_of(*entry))
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

/// The part of a hash that places are kept by.
pub(super) fn part(hash: u64) -> u32 {
    (hash >> HASH_AT) as u32
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
    use super::*;

    #[test]
    fn a_ring_of_lines_that_all_overflow_is_gone_round_once() {
        let mut places = Places::default();
        let place = |strand| Place { strand, offset: 0 };
        let (first, last) = (0, (1 << HASH_BITS) - 1);
        for strand in 0..8 {
            places.insert(first, place(strand));
        }
        for strand in 0..6 {
            places.remove(first, place(strand));
        }
        for strand in 10..17 {
            places.insert(last, place(strand));
        }
        assert!(places.lines.len() == 2 && places.lines.iter().all(|line| line.beyond > 0));
        assert_eq!(places.find(last, |found| found == place(99)), None);
        places.remove(first, place(99));
        assert_eq!(places.len, 9);
        assert_eq!(
            places.find(first, |found| found == place(7)),
            Some(place(7))
        );
    }

    #[test]
    fn entries_of_one_hash_crowd_into_later_lines_and_leave_no_trace() {
        let mut places = Places::default();
        let place = |strand| Place { strand, offset: 3 };
        let hashes = [0, 5, (1 << HASH_BITS) - 1];
        for hash in hashes {
            for strand in 0..20 {
                let is = |found| found == place(strand);
                assert_eq!(places.find(hash, is), None);
                places.insert(hash, place(strand));
            }
        }
        for hash in hashes {
            for strand in 0..20 {
                let is = |found| found == place(strand);
                assert_eq!(places.find(hash, is), Some(place(strand)));
                places.remove(hash, place(strand));
                assert_eq!(places.find(hash, is), None);
            }
        }
        assert_eq!(places.len, 0);
        assert!(places.lines.len() <= 2);
        assert!(
            places
                .lines
                .iter()
                .all(|line| line.len == 0 && line.beyond == 0)
        );
    }
}
