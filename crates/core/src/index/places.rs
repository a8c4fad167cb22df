//! Finds places by parts of hashes; what was hashed is kept elsewhere, and whoever asks says whether a place is the one.
//!
//! An entry is eight bytes: a place and a part of a hash. Entries lie in lines of cache: one line
//! answers most questions, also those whose answer is no. A byte of each hash lies apart, so that
//! all of a line are compared as one word.

use std::fmt;

use prefetch_index::prefetch_index;

use super::strand::Place;

const HASH_BITS: u32 = 24;
const HASH_AT: u32 = u64::BITS - HASH_BITS;
/// Entries of a line.
const LINE: usize = 7;
const ONES: u64 = u64::from_le_bytes([1; 8]);
const HIGH: u64 = u64::from_le_bytes([0x80; 8]);

/// Places by a part of a hash.
#[derive(Clone, Default)]
pub(super) struct Places {
    lines: Vec<Line>,
    len: usize,
    /// With so many it is as full as it gets.
    most: usize,
}

/// A line of cache: entries in parts.
#[derive(Clone, Default)]
#[repr(align(64))]
struct Line {
    /// The lowest byte of the hash of each entry, and last how many entries there are, from the
    /// first on.
    tags: [u8; LINE + 1],
    strands: [u32; LINE],
    /// How many that belong here or before are in later lines.
    beyond: u32,
    /// The hashes without their lowest bytes.
    rests: [u16; LINE],
    offsets: [u8; LINE],
}

/// Entries of a line, a bit in the byte of each.
struct Found(u64);

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
            if let Some(place) = line.places(hash).find(|place| is(*place)) {
                return Some(place);
            }
            if line.beyond == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// Adds a place, unless `is` says that one under the hash is the one; false then.
    #[inline]
    pub(super) fn insert_new(
        &mut self,
        hash: u32,
        place: Place,
        is: impl Fn(Place) -> bool,
    ) -> bool {
        self.insert_first(hash, place) || self.insert_if_new(hash, place, is)
    }

    /// Adds a place if the line where it belongs, as most often, says that none is under the hash, and has room.
    #[inline]
    fn insert_first(&mut self, hash: u32, place: Place) -> bool {
        if self.len >= self.most {
            return false;
        }
        let home = self.home(hash);
        let Some(line) = self.lines.get_mut(home) else {
            return false;
        };
        let is_in = line.beyond == 0 && !line.may_have(hash) && line.push(hash, place);
        self.len += usize::from(is_in);
        is_in
    }

    #[inline(never)]
    fn insert_if_new(&mut self, hash: u32, place: Place, is: impl Fn(Place) -> bool) -> bool {
        if self.find(hash, is).is_some() {
            return false;
        }
        self.insert(hash, place);
        true
    }

    /// Adds a place, which may be there already.
    pub(super) fn insert(&mut self, hash: u32, place: Place) {
        if self.len >= self.most {
            self.resize(self.lines.len() * 2);
        }
        self.put(hash, place);
        self.len += 1;
    }

    /// There is room.
    fn put(&mut self, hash: u32, place: Place) {
        let mut at = self.home(hash);
        loop {
            let line = &mut self.lines[at];
            if line.push(hash, place) {
                return;
            }
            line.beyond += 1;
            at = self.after(at);
        }
    }

    /// Takes a place out, once.
    pub(super) fn remove(&mut self, hash: u32, place: Place) {
        let home = self.home(hash);
        let mut at = home;
        let mut is_found = false;
        for _ in 0..self.lines.len() {
            let Some(line) = self.lines.get_mut(at) else {
                return;
            };
            let found = line.under(hash).find(|at| line.place(*at) == place);
            if let Some(at) = found {
                line.remove(at);
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

    /// Asks for the memory that asking for a hash will read first, and does not wait for it.
    #[inline]
    pub(super) fn prefetch(&self, hash: u32) {
        prefetch_index(&*self.lines, self.home(hash));
    }

    /// The first place that may be the one, of those where the hash belongs.
    pub(super) fn guess(&self, hash: u32) -> Option<Place> {
        self.lines.get(self.home(hash))?.places(hash).next()
    }

    /// Moves everything to so many lines, which must be enough.
    fn resize(&mut self, lines: usize) {
        let lines = vec![Line::default(); lines.max(2)];
        self.most = lines.len() * LINE * 3 / 4;
        let before = std::mem::replace(&mut self.lines, lines);
        for line in &before {
            for at in 0..line.len() {
                self.put(line.hash(at), line.place(at));
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
    fn len(&self) -> usize {
        usize::from(self.tags[LINE]).min(LINE)
    }

    /// False if no entry is under the hash; true may be wrong.
    fn may_have(&self, hash: u32) -> bool {
        let other = u64::from_le_bytes(self.tags) ^ (u64::from(tag(hash)) * ONES);
        // Not zero if some byte is.
        other.wrapping_sub(ONES) & !other & HIGH != 0
    }

    /// The entries whose tags are those of the hash. All are asked: that is cheaper than to stop.
    fn matching(&self, hash: u32) -> Found {
        let tags = u64::from_le_bytes(self.tags);
        let other = tags ^ (u64::from(tag(hash)) * ONES);
        // The high bit of each byte that is 0, and of no other.
        let same = !(((other & !HIGH) + !HIGH) | other) & HIGH;
        Found(same & !(u64::MAX << (8 * (tags >> (8 * LINE)))))
    }

    /// Where entries under a hash are.
    fn under(&self, hash: u32) -> impl Iterator<Item = usize> {
        let rest = rest(hash);
        self.matching(hash)
            .filter(move |at| self.rests[*at] == rest)
    }

    /// The places under a hash.
    fn places(&self, hash: u32) -> impl Iterator<Item = Place> {
        self.under(hash).map(|at| self.place(at))
    }

    fn place(&self, at: usize) -> Place {
        Place {
            strand: self.strands[at],
            offset: self.offsets[at],
        }
    }

    fn hash(&self, at: usize) -> u32 {
        u32::from(self.rests[at]) << u8::BITS | u32::from(self.tags[at])
    }

    /// False if the line is full.
    fn push(&mut self, hash: u32, place: Place) -> bool {
        let at = self.len();
        if at >= LINE {
            return false;
        }
        self.tags[at] = tag(hash);
        self.rests[at] = rest(hash);
        self.strands[at] = place.strand;
        self.offsets[at] = place.offset;
        self.tags[LINE] += 1;
        true
    }

    /// Takes out an entry; the last one takes its place.
    fn remove(&mut self, at: usize) {
        let last = self.len() - 1;
        self.tags[at] = self.tags[last];
        self.tags[last] = 0;
        self.rests[at] = self.rests[last];
        self.strands[at] = self.strands[last];
        self.offsets[at] = self.offsets[last];
        self.tags[LINE] -= 1;
    }
}

impl Iterator for Found {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let at = usize::try_from(self.0.trailing_zeros() / u8::BITS).unwrap_or(LINE);
        self.0 &= self.0.wrapping_sub(1);
        (at < LINE).then_some(at)
    }
}

/// The part of a hash that places are kept by.
pub(super) fn part(hash: u64) -> u32 {
    (hash >> HASH_AT) as u32
}

fn tag(hash: u32) -> u8 {
    hash.to_le_bytes()[0]
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "of a part of a hash no more than this is left"
)]
fn rest(hash: u32) -> u16 {
    (hash >> u8::BITS) as u16
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
                .all(|line| line.len() == 0 && line.beyond == 0)
        );
    }
}
