//! Small blocks that cannot be joined yet, because their parent is not known and with it their place;
//! bounded, the oldest are given up first. It joins nothing.

use std::collections::{BTreeMap, HashMap};

use pointsman_core::hash::{EngineHash, HashSeed};
use pointsman_core::recut::EngineStore;

/// Bounds on what waits of one block size in one tier and group of a rank.
const MAX_STORES: usize = 1_024;
const MAX_BLOCKS: usize = 65_536;

/// A store that waits for its parent; it has no name twice.
#[derive(Debug)]
pub(super) struct Orphan {
    parent: EngineHash,
    pub(super) names: Vec<EngineHash>,
    tokens: Vec<u32>,
    seed: HashSeed,
    /// Names whose removal came first; to be removed when all is stored.
    pub(super) removed: Vec<EngineHash>,
}

impl Orphan {
    pub(super) fn store(&self) -> EngineStore<'_> {
        EngineStore {
            parent: Some(self.parent),
            engine_hashes: &self.names,
            tokens: &self.tokens,
            seed: self.seed,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// By age.
    orphans: BTreeMap<u64, Orphan>,
    by_parent: HashMap<EngineHash, Vec<u64>>,
    by_name: HashMap<EngineHash, Vec<u64>>,
    next: u64,
    blocks: usize,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.orphans.is_empty()
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Whether a block of this name waits.
    pub(super) fn has(&self, name: EngineHash) -> bool {
        self.by_name.contains_key(&name)
    }

    /// Keeps a store until its parent is known; how many were given up for it.
    pub(super) fn push(&mut self, store: &EngineStore<'_>) -> usize {
        let names = store.engine_hashes;
        let Some(parent) = store.parent.filter(|_| names.len() <= MAX_BLOCKS) else {
            return 1;
        };
        let mut given_up = 0;
        while self.orphans.len() >= MAX_STORES || self.blocks + names.len() > MAX_BLOCKS {
            let Some(oldest) = self.orphans.keys().next().copied() else {
                break;
            };
            self.take(oldest);
            given_up += 1;
        }
        let age = self.next;
        self.next += 1;
        self.blocks += names.len();
        self.by_parent.entry(parent).or_default().push(age);
        for name in names {
            self.by_name.entry(*name).or_default().push(age);
        }
        let orphan = Orphan {
            parent,
            names: names.to_vec(),
            tokens: store.tokens.to_vec(),
            seed: store.seed,
            removed: Vec::new(),
        };
        self.orphans.insert(age, orphan);
        given_up
    }

    /// What waited for a name, oldest first.
    pub(super) fn children(&mut self, parent: EngineHash) -> Vec<Orphan> {
        let ages = self.by_parent.get(&parent).cloned().unwrap_or_default();
        ages.into_iter().filter_map(|age| self.take(age)).collect()
    }

    /// Notes the removal of one copy of a block that waits.
    pub(super) fn remove(&mut self, name: EngineHash) {
        if let Some(age) = self.copies(name).first().copied() {
            self.note_removal(age, name);
        }
    }

    /// Notes that so many copies of a block that waits are left.
    pub(super) fn leave(&mut self, name: EngineHash, left: usize) {
        for age in self.copies(name).into_iter().skip(left) {
            self.note_removal(age, name);
        }
    }

    /// The stores with a copy of the name that was not removed.
    fn copies(&self, name: EngineHash) -> Vec<u64> {
        let ages = self.by_name.get(&name).into_iter().flatten().copied();
        let is_left = |age: &u64| {
            let orphan = self.orphans.get(age);
            orphan.is_some_and(|orphan| !orphan.removed.contains(&name))
        };
        ages.filter(is_left).collect()
    }

    fn note_removal(&mut self, age: u64, name: EngineHash) {
        if let Some(orphan) = self.orphans.get_mut(&age) {
            orphan.removed.push(name);
        }
        // What is gone itself may have waited for another that is.
        let mut open = vec![age];
        while let Some(age) = open.pop() {
            if self.is_over(age)
                && let Some(orphan) = self.take(age)
                && let Some(ages) = self.by_name.get(&orphan.parent)
            {
                open.extend(ages);
            }
        }
    }

    /// Whether nothing is left of a store, and nothing waits for its blocks: that needs them to know
    /// its place.
    fn is_over(&self, age: u64) -> bool {
        self.orphans.get(&age).is_some_and(|orphan| {
            let mut names = orphan.names.iter();
            orphan.removed.len() == orphan.names.len()
                && names.all(|name| !self.by_parent.contains_key(name))
        })
    }

    fn take(&mut self, age: u64) -> Option<Orphan> {
        let orphan = self.orphans.remove(&age)?;
        self.blocks -= orphan.names.len();
        forget(&mut self.by_parent, orphan.parent, age);
        for name in &orphan.names {
            forget(&mut self.by_name, *name, age);
        }
        Some(orphan)
    }
}

fn forget(ages: &mut HashMap<EngineHash, Vec<u64>>, name: EngineHash, age: u64) {
    if let Some(of_name) = ages.get_mut(&name) {
        of_name.retain(|other| *other != age);
        if of_name.is_empty() {
            ages.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(waiting: &mut Waiting, parent: u64, name: u64) -> usize {
        waiting.push(&EngineStore {
            parent: Some(EngineHash(parent)),
            engine_hashes: &[EngineHash(name)],
            tokens: &[1, 2],
            seed: HashSeed::default(),
        })
    }

    #[test]
    fn the_oldest_store_is_given_up_for_want_of_room() {
        let mut waiting = Waiting::default();
        let stores = u64::try_from(MAX_STORES).unwrap();
        for name in 0..stores {
            assert_eq!(push(&mut waiting, 1 << 32, name), 0);
        }
        assert_eq!(push(&mut waiting, 1 << 32, stores), 1);
        assert!(!waiting.has(EngineHash(0)) && waiting.has(EngineHash(1)));
        assert_eq!(waiting.blocks(), MAX_STORES);
    }

    #[test]
    fn a_store_that_is_removed_whole_is_kept_only_for_those_that_wait_for_it() {
        let mut waiting = Waiting::default();
        push(&mut waiting, 1, 2);
        push(&mut waiting, 2, 3);
        waiting.remove(EngineHash(2));
        assert_eq!(waiting.blocks(), 2);
        waiting.remove(EngineHash(3));
        assert!(waiting.is_empty() && waiting.by_parent.is_empty() && waiting.by_name.is_empty());
    }

    #[test]
    fn so_many_copies_are_left_as_are_said_to_be() {
        let mut waiting = Waiting::default();
        for _ in 0..3 {
            push(&mut waiting, 1, 2);
        }
        waiting.leave(EngineHash(2), 1);
        assert_eq!(waiting.blocks(), 1);
        waiting.leave(EngineHash(2), 0);
        assert!(waiting.is_empty());
    }
}
