//! Finds the blocks that one rank calls otherwise than the name table does, and their names; whether the rank holds them is not its business.
//!
//! Engines may name blocks each in its own way: what many ranks hold then has a name on each of
//! them. They lie in rows, one for each strand, eight bytes a name.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashMap};

use super::places::{Places, part};
use super::strand::{MAX_BLOCKS, Place};
use crate::hash::EngineHash;

const MIN_GROWTH: usize = 4;

/// One rank's names of blocks, one a block. No name is 0.
#[derive(Debug, Default)]
pub(super) struct Aliases {
    rows: Vec<Row>,
    free: Vec<u32>,
    by_strand: HashMap<u32, u32>,
    /// By name: rows and offsets in their strands.
    places: Places,
    hasher: DefaultHashBuilder,
}

/// Names of consecutive blocks of a strand; 0 where one has none here.
#[derive(Debug, Default)]
struct Row {
    strand: u32,
    /// Offset of the first name.
    from: u8,
    names: Vec<u64>,
}

impl Aliases {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.by_strand.is_empty()
    }

    /// Whether any block of a strand has a name here.
    #[inline]
    pub(super) fn has_row(&self, strand: u32) -> bool {
        !self.is_empty() && self.by_strand.contains_key(&strand)
    }

    /// Asks for the memory that asking for the name will read first, as [`Places::prefetch`] does.
    #[inline]
    pub(super) fn prefetch(&self, name: EngineHash) {
        self.places.prefetch(self.hash(name));
    }

    /// The block of a name.
    pub(super) fn find(&self, name: EngineHash) -> Option<Place> {
        if self.is_empty() {
            return None;
        }
        let found = self.find_in_rows(self.hash(name), name)?;
        let strand = self.rows[index(found.strand)].strand;
        Some(Place { strand, ..found })
    }

    /// The name of a block.
    #[inline]
    pub(super) fn of(&self, place: Place) -> Option<EngineHash> {
        if self.is_empty() {
            return None;
        }
        let row = *self.by_strand.get(&place.strand)?;
        let name = self.rows[index(row)].get(place.offset);
        (name != 0).then_some(EngineHash(name))
    }

    /// The block before or behind `place`, if this is its name.
    #[inline]
    pub(super) fn beside(&self, place: Place, name: EngineHash) -> Option<Place> {
        if name.0 == 0 {
            return None;
        }
        let row = &self.rows[index(*self.by_strand.get(&place.strand)?)];
        let is = |place: &Place| row.get(place.offset) == name.0;
        place.neighbours().into_iter().flatten().find(is)
    }

    /// Names consecutive blocks from `place` on that have none, as far as the names are new; how many.
    pub(super) fn insert(
        &mut self,
        place: Place,
        names: impl ExactSizeIterator<Item = EngineHash>,
    ) -> u16 {
        let row = match self.by_strand.get(&place.strand) {
            Some(row) => *row,
            None => self.add_row(place),
        };
        self.rows[index(row)].reserve(place.offset, names.len());
        let mut count = 0;
        for (offset, name) in (place.offset..=u8::MAX).zip(names) {
            let hash = self.hash(name);
            let is_free = self.rows[index(row)].get(offset) == 0;
            if name.0 == 0 || !is_free || self.find_in_rows(hash, name).is_some() {
                break;
            }
            self.rows[index(row)].set(offset, name.0);
            self.places.insert(
                hash,
                Place {
                    strand: row,
                    offset,
                },
            );
            count += 1;
        }
        self.drop_row_if_empty(row);
        count
    }

    /// Forgets the name of a block, if it has one here.
    pub(super) fn remove(&mut self, place: Place) -> Option<EngineHash> {
        let row = *self.by_strand.get(&place.strand)?;
        let name = EngineHash(self.rows[index(row)].take(place.offset));
        if name.0 == 0 {
            return None;
        }
        let in_row = Place {
            strand: row,
            ..place
        };
        self.places.remove(self.hash(name), in_row);
        self.drop_row_if_empty(row);
        Some(name)
    }

    /// All names with their blocks.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Place, EngineHash)> {
        self.rows.iter().flat_map(|row| {
            let names = (row.from..=u8::MAX).zip(&row.names);
            names.filter(|(_, name)| **name != 0).map(|(offset, name)| {
                let strand = row.strand;
                (Place { strand, offset }, EngineHash(*name))
            })
        })
    }

    fn find_in_rows(&self, hash: u32, name: EngineHash) -> Option<Place> {
        let is = |place: Place| self.rows[index(place.strand)].get(place.offset) == name.0;
        self.places.find(hash, is)
    }

    fn add_row(&mut self, place: Place) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.rows.push(Row::default());
            u32::try_from(self.rows.len() - 1).unwrap_or(u32::MAX)
        });
        self.rows[index(id)] = Row {
            strand: place.strand,
            from: place.offset,
            names: Vec::new(),
        };
        self.by_strand.insert(place.strand, id);
        id
    }

    fn drop_row_if_empty(&mut self, id: u32) {
        let row = &mut self.rows[index(id)];
        if !row.names.is_empty() {
            return;
        }
        self.by_strand.remove(&row.strand);
        if self.by_strand.is_empty() {
            *self = Self::default();
        } else {
            *row = Row::default();
            self.free.push(id);
        }
    }

    fn hash(&self, name: EngineHash) -> u32 {
        part(self.hasher.hash_one(name.0))
    }
}

impl Row {
    fn get(&self, offset: u8) -> u64 {
        let at = offset.checked_sub(self.from).map(usize::from);
        at.and_then(|at| self.names.get(at)).copied().unwrap_or(0)
    }

    /// Makes room for `more` names from `offset` on: what is known to come, or half as much again.
    fn reserve(&mut self, offset: u8, more: usize) {
        let from = usize::from(self.from.min(offset));
        let end = (usize::from(offset) + more).min(MAX_BLOCKS);
        let needed = (end - from).saturating_sub(self.names.len());
        if self.names.capacity() - self.names.len() < needed {
            let left = MAX_BLOCKS - self.names.len();
            let grown = (self.names.len() / 2).max(needed).max(MIN_GROWTH).min(left);
            self.names.reserve_exact(grown);
        }
    }

    fn set(&mut self, offset: u8, name: u64) {
        if offset < self.from {
            let before = usize::from(self.from - offset);
            self.names.splice(..0, std::iter::repeat_n(0, before));
            self.from = offset;
        }
        let at = usize::from(offset - self.from);
        if at >= self.names.len() {
            self.names.resize(at + 1, 0);
        }
        self.names[at] = name;
    }

    /// Takes a name; the row ends with the last one that is left.
    fn take(&mut self, offset: u8) -> u64 {
        let at = offset.checked_sub(self.from).map(usize::from);
        let Some(name) = at.and_then(|at| self.names.get_mut(at)) else {
            return 0;
        };
        let taken = std::mem::take(name);
        while self.names.last() == Some(&0) {
            self.names.pop();
        }
        if self.names.capacity() > 2 * self.names.len() + 8 {
            self.names.shrink_to(self.names.len());
        }
        taken
    }
}

fn index(id: u32) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use hashbrown::HashMap;
    use rand::Rng;

    use super::*;
    use crate::testing::seeded;

    #[test]
    fn aliases_agree_with_a_plain_map() {
        let mut random = seeded("aliases");
        let mut aliases = Aliases::default();
        let mut model: HashMap<Place, u64> = HashMap::new();
        for step in 0..100_000 {
            let place = Place {
                strand: random.random_range(0..6),
                offset: random.random(),
            };
            let known =
                |model: &HashMap<Place, u64>, name| model.values().any(|other| *other == name);
            // Phases of growth and of emptying.
            if random.random_bool(if step / 20_000 % 2 == 0 { 0.5 } else { 0.03 }) {
                let most = usize::from(u8::MAX - place.offset) + 1;
                let names: Vec<u64> = (0..random.random_range(1..40))
                    .map(|_| random.random_range(0..4_000))
                    .collect();
                let free = (place.offset..=u8::MAX)
                    .take_while(|offset| {
                        !model.contains_key(&Place {
                            offset: *offset,
                            ..place
                        })
                    })
                    .count();
                if free == 0 {
                    continue;
                }
                let names = &names[..names.len().min(free).min(most)];
                let mut expected = 0;
                for (offset, name) in (place.offset..=u8::MAX).zip(names) {
                    if *name == 0 || known(&model, *name) {
                        break;
                    }
                    model.insert(Place { offset, ..place }, *name);
                    expected += 1;
                }
                let count = aliases.insert(place, names.iter().copied().map(EngineHash));
                assert_eq!(count, expected);
            } else {
                let removed = aliases.remove(place).map(|EngineHash(name)| name);
                assert_eq!(removed, model.remove(&place), "step {step}");
            }
            let name = random.random_range(0..4_000);
            let place = model.iter().find(|(_, other)| **other == name);
            assert_eq!(
                aliases.find(EngineHash(name)),
                place.map(|(place, _)| *place)
            );
            assert_eq!(aliases.is_empty(), model.is_empty());
            if step % 1_000 == 0 {
                let all: HashMap<_, _> = aliases
                    .iter()
                    .map(|(place, name)| (place, name.0))
                    .collect();
                assert_eq!(all, model);
                assert_eq!(aliases.places.len(), model.len());
            }
        }
        for place in model.into_keys() {
            assert!(aliases.of(place).is_some());
            aliases.remove(place);
        }
        assert!(aliases.is_empty() && aliases.rows.is_empty());
    }
}
