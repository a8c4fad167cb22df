//! Blocks that left the engine's own memory and wait in the host's, the least recently used leaving first.
//! Never counts users: a block that is wanted again is copied, and stays.

use std::collections::{BTreeMap, HashMap};

#[derive(Debug, Default)]
pub(super) struct HostTier {
    capacity: usize,
    /// When each hash was last used, and the same the other way round.
    used: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    clock: u64,
}

/// What an offload did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Offload {
    pub(super) stored: bool,
    pub(super) removed: Option<u64>,
}

impl HostTier {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            ..Self::default()
        }
    }

    /// Takes in a block; one that it has already is used anew.
    pub(super) fn offload(&mut self, hash: u64) -> Offload {
        if self.capacity == 0 || self.touch(hash) {
            return Offload::default();
        }
        let full = self.used.len() >= self.capacity;
        let oldest = if full { self.order.pop_first() } else { None };
        let removed = oldest.map(|(_, oldest)| oldest);
        if let Some(oldest) = removed {
            self.used.remove(&oldest);
        }
        self.insert(hash);
        Offload {
            stored: true,
            removed,
        }
    }

    /// How many of `hashes`, from the first on, are here.
    pub(super) fn prefix(&self, hashes: &[u64]) -> usize {
        let held = |hash: &&u64| self.used.contains_key(*hash);
        hashes.iter().take_while(held).count()
    }

    /// Uses what is here of `hashes`.
    pub(super) fn load(&mut self, hashes: &[u64]) {
        for &hash in hashes {
            self.touch(hash);
        }
    }

    pub(super) fn clear(&mut self) {
        self.used.clear();
        self.order.clear();
    }

    fn touch(&mut self, hash: u64) -> bool {
        let Some(before) = self.used.get(&hash) else {
            return false;
        };
        self.order.remove(before);
        self.insert(hash);
        true
    }

    fn insert(&mut self, hash: u64) {
        self.clock += 1;
        self.used.insert(hash, self.clock);
        self.order.insert(self.clock, hash);
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn random_use_keeps_and_drops_what_a_naive_list_does() {
        let seed = super::super::fresh_seed();
        println!("seed {seed}");
        let mut random = SmallRng::seed_from_u64(seed);
        let mut tier = HostTier::new(8);
        let mut naive: Vec<u64> = Vec::new();
        for _ in 0..5_000 {
            let hash = random.random_range(0..16);
            let held = naive.contains(&hash);
            assert_eq!(tier.prefix(&[hash]), usize::from(held));
            if held {
                naive.retain(|other| *other != hash);
                naive.push(hash);
            }
            if random.random_bool(0.5) {
                tier.load(&[hash]);
                continue;
            }
            let full = !held && naive.len() == 8;
            let expected = Offload {
                stored: !held,
                removed: full.then(|| naive.remove(0)),
            };
            if !held {
                naive.push(hash);
            }
            assert_eq!(tier.offload(hash), expected, "seed {seed}");
        }
    }

    #[test]
    fn the_least_recently_used_block_makes_room() {
        let mut tier = HostTier::new(2);
        tier.offload(1);
        tier.offload(2);
        tier.load(&[1]);
        let expected = Offload {
            stored: true,
            removed: Some(2),
        };
        assert_eq!(tier.offload(3), expected);
        assert_eq!(tier.prefix(&[1, 3, 2]), 2);
    }
}
