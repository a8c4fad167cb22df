//! What an index must answer, written down block by block.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::tier::{Placement, Tier};

pub(super) type Chain = Vec<u64>;
pub(super) type Copies = BTreeMap<(Tier, u32), u32>;

/// What one rank holds: names with the chain of block hashes they stand for, and copies.
#[derive(Clone, Default)]
pub(super) struct Naive {
    pub(super) names: BTreeMap<u64, (Chain, Copies)>,
    pub(super) doubted: BTreeSet<(Chain, Tier)>,
    pub(super) waiting: VecDeque<Orphan>,
}

#[derive(Clone)]
pub(super) struct Orphan {
    at: Placement,
    confirmed: bool,
    parent: u64,
    blocks: Vec<(u64, u64)>,
    removed: Vec<(Placement, u64)>,
    doubted: bool,
}

impl Naive {
    pub(super) fn store(
        &mut self,
        at: Placement,
        confirmed: bool,
        parent: Option<u64>,
        blocks: &[(u64, u64)],
    ) -> bool {
        let chain = match parent.map(|parent| self.names.get(&parent)) {
            None => Vec::new(),
            Some(Some((chain, _))) => chain.clone(),
            Some(None) => {
                self.waiting.push_back(Orphan {
                    at,
                    confirmed,
                    parent: parent.unwrap(),
                    blocks: blocks.to_vec(),
                    removed: Vec::new(),
                    doubted: false,
                });
                return false;
            }
        };
        self.put(at, confirmed, chain, blocks);
        let mut names: Vec<_> = blocks.iter().map(|(name, _)| *name).collect();
        let mut removals = Vec::new();
        while let Some(name) = names.pop() {
            let (children, rest): (Vec<_>, Vec<_>) = self
                .waiting
                .drain(..)
                .partition(|orphan| orphan.parent == name);
            self.waiting.extend(rest);
            for orphan in children {
                let Some((chain, _)) = self.names.get(&name) else {
                    continue;
                };
                self.put(orphan.at, orphan.confirmed, chain.clone(), &orphan.blocks);
                names.extend(orphan.blocks.iter().map(|(name, _)| *name));
                removals.extend(orphan.removed);
            }
        }
        for (at, name) in removals {
            self.remove(at, name);
        }
        true
    }

    pub(super) fn put(
        &mut self,
        at: Placement,
        confirmed: bool,
        mut chain: Chain,
        blocks: &[(u64, u64)],
    ) {
        for (name, block_hash) in blocks {
            chain.push(*block_hash);
            if self
                .names
                .get(name)
                .is_some_and(|(before, _)| *before != chain)
            {
                self.names.remove(name);
                self.settle();
            }
            let doubted = (chain.clone(), at.tier);
            let held = self.holds(&chain, at.tier);
            if held && !confirmed {
                continue;
            }
            if held && self.doubted.remove(&doubted) {
                self.drop_from_tier(&chain, at.tier);
            }
            let (_, copies) = self
                .names
                .entry(*name)
                .or_insert_with(|| (chain.clone(), BTreeMap::new()));
            *copies.entry((at.tier, at.group)).or_default() += 1;
            if !held && !confirmed {
                self.doubted.insert(doubted);
            }
        }
    }

    pub(super) fn remove(&mut self, at: Placement, name: u64) {
        let Some((chain, copies)) = self.names.get_mut(&name) else {
            return self.remove_waiting(at, name);
        };
        let chain = chain.clone();
        if self.doubted.remove(&(chain.clone(), at.tier)) {
            self.drop_from_tier(&chain, at.tier);
        } else if let Some(count) = copies.get_mut(&(at.tier, at.group)) {
            *count -= 1;
            self.settle();
        } else {
            self.remove_waiting(at, name);
        }
    }

    pub(super) fn remove_waiting(&mut self, at: Placement, name: u64) {
        let named = |orphan: &Orphan| orphan.blocks.iter().any(|block| block.0 == name);
        let Some(position) = self.waiting.iter().rposition(named) else {
            return;
        };
        let orphan = &mut self.waiting[position];
        let stored = orphan.blocks.iter().filter(|block| block.0 == name).count();
        let removed = orphan.removed.iter().filter(|gone| gone.1 == name).count();
        if removed >= stored {
            return;
        }
        orphan.removed.push((at, name));
        let orphan = &self.waiting[position];
        let hang_on = |other: &Orphan| orphan.blocks.iter().any(|block| block.0 == other.parent);
        if orphan.removed.len() == orphan.blocks.len() && !self.waiting.iter().any(hang_on) {
            self.waiting.remove(position);
        }
    }

    pub(super) fn set_remaining(&mut self, at: Placement, name: u64, left: u32) {
        let known = self.names.get_mut(&name);
        match known.filter(|(_, copies)| copies.keys().any(|(tier, _)| *tier == at.tier)) {
            Some((_, copies)) => {
                if let Some(count) = copies.get_mut(&(at.tier, at.group)) {
                    *count = left;
                    self.settle();
                }
            }
            None if left == 0 => self.remove_waiting(at, name),
            None => {}
        }
    }

    pub(super) fn link(&mut self, at: Placement, name: u64) {
        if let Some((chain, _)) = self.names.get(&name).cloned() {
            let (last, before) = chain.split_last().unwrap();
            self.put(at, true, before.to_vec(), &[(name, *last)]);
        }
    }

    pub(super) fn drop_from_tier(&mut self, chain: &Chain, tier: Tier) {
        for (held, copies) in self.names.values_mut() {
            if held == chain {
                copies.retain(|(of, _), _| *of != tier);
            }
        }
        self.settle();
    }

    /// Forgets what has no copy left.
    pub(super) fn settle(&mut self) {
        for (_, copies) in self.names.values_mut() {
            copies.retain(|_, count| *count > 0);
        }
        self.names.retain(|_, (_, copies)| !copies.is_empty());
        let doubted = std::mem::take(&mut self.doubted);
        self.doubted = doubted
            .into_iter()
            .filter(|(chain, tier)| self.holds(chain, *tier))
            .collect();
    }

    pub(super) fn holds(&self, chain: &[u64], tier: Tier) -> bool {
        self.names
            .values()
            .any(|(held, copies)| held == chain && copies.keys().any(|(of, _)| *of == tier))
    }

    pub(super) fn doubt(&mut self) {
        for (chain, copies) in self.names.values() {
            let tiers = copies.keys().map(|(tier, _)| (chain.clone(), *tier));
            self.doubted.extend(tiers);
        }
        for orphan in &mut self.waiting {
            orphan.doubted = true;
        }
    }

    pub(super) fn trust(&mut self) {
        self.doubted.clear();
        for orphan in &mut self.waiting {
            orphan.doubted = false;
        }
    }

    pub(super) fn drop_doubted(&mut self) {
        self.waiting.retain(|orphan| !orphan.doubted);
        for (chain, tier) in std::mem::take(&mut self.doubted) {
            self.drop_from_tier(&chain, tier);
        }
    }

    /// Where each tier's blocks end.
    pub(super) fn ends(&self, prompt: &[u64]) -> [u32; 4] {
        let mut depth = 0;
        Tier::ALL.map(|tier| {
            while depth < prompt.len() && self.holds(&prompt[..=depth], tier) {
                depth += 1;
            }
            u32::try_from(depth).unwrap()
        })
    }
}
