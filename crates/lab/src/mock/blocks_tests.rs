//! The block cache against a naive model: a list of blocks and a list of the idle ones, searched from end to end.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

#[derive(Default)]
struct Naive {
    capacity: usize,
    blocks: Vec<(Option<u64>, u32)>,
    idle: Vec<BlockId>,
    removed: Vec<u64>,
}

impl Naive {
    fn prefix(&self, hashes: &[u64]) -> usize {
        let held = |hash: &&u64| self.blocks.iter().any(|(held, _)| *held == Some(**hash));
        hashes.iter().take_while(held).count()
    }

    fn share(&mut self, ids: &[BlockId]) {
        for id in ids {
            self.idle.retain(|idle| idle != id);
            self.blocks[*id as usize].1 += 1;
        }
    }

    fn allocate(&mut self, count: usize) -> Option<Vec<BlockId>> {
        let room = self.capacity - self.blocks.len() + self.idle.len();
        (count <= room).then(|| (0..count).map(|_| self.take_one()).collect())
    }

    fn take_one(&mut self) -> BlockId {
        if self.blocks.len() < self.capacity {
            self.blocks.push((None, 1));
            return BlockId::try_from(self.blocks.len() - 1).unwrap();
        }
        let id = self.idle.remove(0);
        self.removed.extend(self.blocks[id as usize].0);
        self.blocks[id as usize] = (None, 1);
        id
    }

    fn release(&mut self, ids: &[BlockId]) {
        for &id in ids.iter().rev() {
            self.blocks[id as usize].1 -= 1;
            if self.blocks[id as usize].1 == 0 {
                self.idle.push(id);
            }
        }
    }
}

fn run(hashes: &[u64]) -> StoredRun {
    StoredRun {
        hashes: hashes.to_vec(),
        parent: None,
        tokens: Vec::new(),
        block_size: 1,
        salt: None,
        adapter: None,
    }
}

/// A chain of hashes out of a small world, so that chains share prefixes often.
fn chain(random: &mut SmallRng) -> Vec<u64> {
    let mut parent = None;
    let mut hashes = Vec::new();
    for _ in 0..random.random_range(1..8) {
        let hash = chained_hash(parent, None, &[random.random_range(0..2)]);
        hashes.push(hash);
        parent = Some(hash);
    }
    hashes
}

fn removed(events: &[Event]) -> Vec<u64> {
    let hashes = |event: &Event| match event {
        Event::Removed(hashes) => hashes.clone(),
        _ => Vec::new(),
    };
    events.iter().flat_map(hashes).collect()
}

#[test]
fn random_use_keeps_and_evicts_what_a_naive_cache_does() {
    let seed = super::super::fresh_seed();
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let mut cache = BlockCache::new(24);
    let mut naive = Naive {
        capacity: 24,
        ..Naive::default()
    };
    let mut users: Vec<Vec<BlockId>> = Vec::new();
    for _ in 0..20_000 {
        if random.random_bool(0.5) && !users.is_empty() {
            let ids = users.swap_remove(random.random_range(0..users.len()));
            cache.release(&ids);
            naive.release(&ids);
        } else {
            let hashes = chain(&mut random);
            let mut owned = cache.prefix(&hashes);
            let hits = owned.len();
            assert_eq!(hits, naive.prefix(&hashes));
            cache.share(&owned);
            naive.share(&owned);
            let fits = cache.allocate(hashes.len() - hits, &mut owned);
            let expected = naive.allocate(hashes.len() - hits);
            assert_eq!(fits.then(|| owned[hits..].to_vec()), expected);
            if fits {
                cache.store(&owned[hits..], run(&hashes[hits..]));
                for (id, hash) in owned.iter().zip(&hashes).skip(hits) {
                    naive.blocks[*id as usize].0 = Some(*hash);
                }
            }
            users.push(owned);
        }
        assert_eq!(
            removed(&cache.take_events()),
            std::mem::take(&mut naive.removed)
        );
        assert_eq!(
            cache.available(),
            naive.capacity - naive.blocks.len() + naive.idle.len()
        );
    }
}

#[test]
fn a_hash_held_twice_is_still_held_after_one_eviction() {
    let mut cache = BlockCache::new(2);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    assert!(cache.allocate(1, &mut first) && cache.allocate(1, &mut second));
    cache.store(&first, run(&[7]));
    cache.store(&second, run(&[7]));
    cache.release(&first);
    assert!(cache.allocate(1, &mut Vec::new()));
    assert_eq!(removed(&cache.take_events()), [7]);
    assert_eq!(cache.prefix(&[7]), second);
}

#[test]
fn a_cache_in_use_is_not_cleared() {
    let mut cache = BlockCache::new(2);
    let mut owned = Vec::new();
    assert!(cache.allocate(1, &mut owned));
    assert!(!cache.clear());
    cache.release(&owned);
    assert!(cache.clear());
    assert_eq!(cache.take_events(), [Event::Cleared]);
    assert_eq!(cache.available(), 2);
}

#[test]
fn a_salt_starts_a_chain_of_its_own_and_only_at_its_start() {
    let plain = chained_hash(None, None, &[1]);
    assert_ne!(plain, chained_hash(None, Some("s"), &[1]));
    assert_eq!(
        chained_hash(Some(5), Some("s"), &[1]),
        chained_hash(Some(5), None, &[1])
    );
}
