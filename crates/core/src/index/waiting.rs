//! Keeps blocks whose parent is not known yet until it is stored, within a bound: the oldest are forgotten first.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::StoredBlock;
use super::apply::Source;
use crate::hash::EngineHash;
use crate::ranks::RankSlot;
use crate::tier::Placement;

/// Bounds on what waits in one index.
const MAX_EVENTS: usize = 4_096;
const MAX_BLOCKS: usize = 262_144;

/// A store that waits for its parent.
#[derive(Clone, Debug)]
pub(super) struct Orphan {
    pub(super) source: Source,
    pub(super) parent: EngineHash,
    pub(super) blocks: Vec<StoredBlock>,
    /// Names whose removal came first; to be removed when all is stored.
    pub(super) removed: Vec<(Placement, EngineHash)>,
}

#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// By age.
    orphans: BTreeMap<u64, Orphan>,
    by_parent: HashMap<(RankSlot, EngineHash), Vec<u64>>,
    /// The orphans that hold a name, by age.
    by_name: HashMap<(RankSlot, EngineHash), Vec<u64>>,
    next: u64,
    /// What is older than this waits in doubt, by rank.
    doubted: HashMap<RankSlot, u64>,
    blocks: usize,
    pub(super) forgotten: u64,
}

impl Waiting {
    pub(super) fn events(&self) -> usize {
        self.orphans.len()
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    pub(super) fn is_empty(&self) -> bool {
        self.orphans.is_empty()
    }

    pub(super) fn push(&mut self, orphan: Orphan) {
        if orphan.blocks.len() > MAX_BLOCKS {
            self.forgotten += 1;
            return;
        }
        while self.orphans.len() >= MAX_EVENTS || self.blocks + orphan.blocks.len() > MAX_BLOCKS {
            let Some(oldest) = self.orphans.keys().next().copied() else {
                break;
            };
            self.take(oldest);
            self.forgotten += 1;
        }
        let age = self.next;
        self.next += 1;
        self.blocks += orphan.blocks.len();
        self.by_parent
            .entry((orphan.source.slot, orphan.parent))
            .or_default()
            .push(age);
        for block in &orphan.blocks {
            let ages = self
                .by_name
                .entry((orphan.source.slot, block.engine_hash))
                .or_default();
            if ages.last() != Some(&age) {
                ages.push(age);
            }
        }
        self.orphans.insert(age, orphan);
    }

    /// What waited for a name, oldest first.
    pub(super) fn children(&mut self, slot: RankSlot, parent: EngineHash) -> Vec<Orphan> {
        let ages = self
            .by_parent
            .get(&(slot, parent))
            .cloned()
            .unwrap_or_default();
        ages.into_iter().filter_map(|age| self.take(age)).collect()
    }

    /// Notes the removal of a block that waits; false if none of that name does.
    pub(super) fn remove(&mut self, slot: RankSlot, at: Placement, name: EngineHash) -> bool {
        let last = self.by_name.get(&(slot, name)).and_then(|ages| ages.last());
        let Some(age) = last.copied() else {
            return false;
        };
        let Some(orphan) = self.orphans.get_mut(&age) else {
            return false;
        };
        let stored = orphan
            .blocks
            .iter()
            .filter(|block| block.engine_hash == name)
            .count();
        let removed = orphan
            .removed
            .iter()
            .filter(|removed| removed.1 == name)
            .count();
        if removed >= stored {
            return false;
        }
        orphan.removed.push((at, name));
        self.forget_removed(age);
        true
    }

    /// Forgets a store of which nothing is left, unless others wait for its blocks: they need it to
    /// know their place.
    fn forget_removed(&mut self, age: u64) {
        let is_over = self.orphans.get(&age).is_some_and(|orphan| {
            let slot = orphan.source.slot;
            let mut names = orphan.blocks.iter().map(|block| block.engine_hash);
            orphan.removed.len() == orphan.blocks.len()
                && names.all(|name| !self.by_parent.contains_key(&(slot, name)))
        });
        if is_over {
            self.take(age);
        }
    }

    /// Whether a block of this name waits.
    pub(super) fn has(&self, slot: RankSlot, name: EngineHash) -> bool {
        self.by_name.contains_key(&(slot, name))
    }

    /// Forgets what waits of one rank.
    pub(super) fn clear(&mut self, slot: RankSlot) {
        self.forget(slot, self.next);
    }

    /// Doubts what waits of one rank: the removal of some of it may have been missed.
    pub(super) fn doubt(&mut self, slot: RankSlot) {
        if !self.orphans.is_empty() {
            self.doubted.insert(slot, self.next);
        }
    }

    pub(super) fn trust(&mut self, slot: RankSlot) {
        self.doubted.remove(&slot);
    }

    /// Forgets what has waited in doubt.
    pub(super) fn drop_doubted(&mut self, slot: RankSlot) {
        if let Some(before) = self.doubted.get(&slot).copied() {
            self.forgotten += self.forget(slot, before);
        }
    }

    /// Forgets what has waited of one rank since before this age; how many stores.
    fn forget(&mut self, slot: RankSlot, before: u64) -> u64 {
        self.doubted.remove(&slot);
        let of_rank = |(age, orphan): (&u64, &Orphan)| (orphan.source.slot == slot).then_some(*age);
        let ages: Vec<_> = self.orphans.range(..before).filter_map(of_rank).collect();
        let mut forgotten = 0;
        for age in ages {
            self.take(age);
            forgotten += 1;
        }
        forgotten
    }

    fn take(&mut self, age: u64) -> Option<Orphan> {
        let orphan = self.orphans.remove(&age)?;
        self.blocks -= orphan.blocks.len();
        let parent = (orphan.source.slot, orphan.parent);
        if let Some(ages) = self.by_parent.get_mut(&parent) {
            ages.retain(|other| *other != age);
            if ages.is_empty() {
                self.by_parent.remove(&parent);
            }
        }
        for block in &orphan.blocks {
            let key = (orphan.source.slot, block.engine_hash);
            if let Some(ages) = self.by_name.get_mut(&key) {
                ages.retain(|other| *other != age);
                if ages.is_empty() {
                    self.by_name.remove(&key);
                }
            }
        }
        Some(orphan)
    }
}
