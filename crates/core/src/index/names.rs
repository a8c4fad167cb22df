//! Finds the block that an engine's name stands for, where ranks agree on it; exceptions are the ranks' own business.

use std::fmt;
use std::hash::BuildHasher;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};

use super::strand::Place;

/// Tables of this many parts grow one part at a time, so that no single event pays for all.
const SHARDS: usize = 64;
const HASH_BITS: u32 = 24;

/// Names by hash. A name itself is kept with its block: 8 bytes a name are enough here.
pub(super) struct Names {
    shards: Vec<HashTable<Item>>,
    hasher: DefaultHashBuilder,
}

#[derive(Clone, Copy)]
struct Item {
    strand: u32,
    /// Offset in the low byte, part of the hash above it.
    rest: u32,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            shards: vec![HashTable::new(); SHARDS],
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len: usize = self.shards.iter().map(HashTable::len).sum();
        f.debug_struct("Names")
            .field("len", &len)
            .finish_non_exhaustive()
    }
}

impl Item {
    fn new(place: Place, hash: u32) -> Self {
        Self {
            strand: place.strand,
            rest: hash << 8 | u32::from(place.offset),
        }
    }

    fn place(self) -> Place {
        Place {
            strand: self.strand,
            offset: self.rest.to_le_bytes()[0],
        }
    }

    fn hash(self) -> u32 {
        self.rest >> 8
    }
}

impl Names {
    /// The place of a name; `is` tells whether the block there has it.
    pub(super) fn get(&self, name: u64, is: impl Fn(Place) -> bool) -> Option<Place> {
        let (shard, hash) = self.hash(name);
        let found =
            self.shards[shard].find(spread(hash), |item| item.hash() == hash && is(item.place()));
        found.map(|item| item.place())
    }

    /// Adds a name; false if it is there, as `is` tells of the block at a place.
    pub(super) fn insert(&mut self, name: u64, place: Place, is: impl Fn(Place) -> bool) -> bool {
        let (shard, hash) = self.hash(name);
        let entry = self.shards[shard].entry(
            spread(hash),
            |item| item.hash() == hash && is(item.place()),
            |item| spread(item.hash()),
        );
        match entry {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(Item::new(place, hash));
                true
            }
        }
    }

    pub(super) fn remove(&mut self, name: u64, place: Place) {
        let (shard, hash) = self.hash(name);
        let table = &mut self.shards[shard];
        if let Ok(entry) = table.find_entry(spread(hash), |item| item.place() == place) {
            entry.remove();
        }
        if table.len() < table.capacity() / 8 {
            table.shrink_to(table.len() * 2, |item| spread(item.hash()));
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the upper bits are taken after the shift, the lower ones by the mask"
    )]
    fn hash(&self, name: u64) -> (usize, u32) {
        let hash = self.hasher.hash_one(name);
        (
            hash as usize % SHARDS,
            (hash >> (u64::BITS - HASH_BITS)) as u32,
        )
    }
}

/// A table looks at the highest bits and at the lowest.
fn spread(hash: u32) -> u64 {
    let hash = u64::from(hash);
    hash << (u64::BITS - HASH_BITS) | hash
}
