//! Finds the block that an engine's name stands for, where ranks agree on it; exceptions are the ranks' own business.
//!
//! The name itself is kept with its block, so whoever asks says whether a place is the one.

use std::fmt;
use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;

use super::places::{Places, part};
use super::strand::Place;

/// Tables of this many parts grow one part at a time, so that no single event pays for all.
const SHARDS: usize = 256;

/// Places by name.
pub(super) struct Names {
    shards: Vec<Places>,
    hasher: DefaultHashBuilder,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            shards: vec![Places::default(); SHARDS],
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len: usize = self.shards.iter().map(Places::len).sum();
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
    #[inline]
    pub(super) fn insert(&mut self, name: u64, place: Place, is: impl Fn(Place) -> bool) -> bool {
        let (shard, hash) = self.hash(name);
        self.shards[shard].insert_new(hash, place, is)
    }

    /// Takes a name from a place.
    pub(super) fn remove(&mut self, name: u64, place: Place) {
        let (shard, hash) = self.hash(name);
        self.shards[shard].remove(hash, place);
    }

    /// Asks for the memory that asking for the name will read first, as [`Places::prefetch`] does.
    #[inline]
    pub(super) fn prefetch(&self, name: u64) {
        let (shard, hash) = self.hash(name);
        self.shards[shard].prefetch(hash);
    }

    /// Where the name's block may be, to be read ahead.
    pub(super) fn guess(&self, name: u64) -> Option<Place> {
        let (shard, hash) = self.hash(name);
        self.shards[shard].guess(hash)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the lower bits are all that is asked for"
    )]
    fn hash(&self, name: u64) -> (usize, u32) {
        let hash = self.hasher.hash_one(name);
        (hash as usize % SHARDS, part(hash))
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
        assert!(names.shards.iter().all(|shard| shard.len() == 0));
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
}
