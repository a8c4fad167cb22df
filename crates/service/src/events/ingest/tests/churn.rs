//! A long life in a short time: what is remembered follows what the engine holds, not what it said.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::*;

/// An engine's cache: blocks by name, with the chain up to each. It never evicts a parent before
/// its children, as engines do not.
struct Engine {
    random: StdRng,
    size: usize,
    held: BTreeMap<u32, Vec<u32>>,
    most: usize,
    next: u32,
}

impl Engine {
    fn new(seed: u64, size: usize) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            size,
            held: BTreeMap::new(),
            most: 400,
            next: 1,
        }
    }

    /// The events of one step: blocks behind one that is held or at a root, evictions as needed.
    fn step(&mut self) -> Vec<V> {
        let names: Vec<u32> = self.held.keys().copied().collect();
        let parent = names.choose(&mut self.random).copied();
        let parent = parent.filter(|_| self.random.random_bool(0.8));
        let mut chain = parent.map_or_else(Vec::new, |parent| self.held[&parent].clone());
        let blocks = self.random.random_range(1..5);
        let mut hashes = Vec::new();
        let mut ids = Vec::new();
        for _ in 0..blocks {
            let block: Vec<u32> = (0..self.size)
                .map(|_| self.random.random_range(0..9_u32))
                .collect();
            chain.extend(&block);
            ids.extend(block);
            hashes.push(self.next);
            self.held.insert(self.next, chain.clone());
            self.next = self.next.wrapping_add(1).max(1);
        }
        let size = u32::try_from(self.size).unwrap();
        let mut event = stored(&hashes, parent, &ids, size);
        if parent.is_none() && self.random.random_bool(0.3) {
            event.extend(salted("tenant"));
        }
        let mut events = vec![V::List(event)];
        let mut evicted = Vec::new();
        while self.held.len() > self.most {
            let name = self.leaf();
            self.held.remove(&name);
            evicted.push(name);
        }
        if !evicted.is_empty() {
            events.push(removed(&evicted));
        }
        events
    }

    /// A block that no other hangs on; the newest always is one.
    fn leaf(&mut self) -> u32 {
        let names: Vec<u32> = self.held.keys().copied().collect();
        for _ in 0..8 {
            let name = *names.choose(&mut self.random).unwrap();
            let chain = &self.held[&name];
            if !self
                .held
                .values()
                .any(|other| other.len() > chain.len() && other.starts_with(chain))
            {
                return name;
            }
        }
        *names.last().unwrap()
    }
}

/// What grows with what is remembered.
fn weight(rig: &Rig) -> [usize; 4] {
    let index = rig.partition.stats().index;
    let remembered = rig.ingest.remembered();
    [
        index.entries,
        index.strands,
        index.waiting_blocks,
        remembered,
    ]
}

fn churn(size: usize, steps: usize) {
    let seed = 0xc4a2 + size as u64;
    println!("seed {seed:#x}, engine block size {size}");
    let mut rig = Rig::new();
    let mut engine = Engine::new(seed, size);
    let mut early = [0; 4];
    let mut late = [0; 4];
    for step in 0..steps {
        let events = engine.step();
        match engine.random.random_range(0..1_000) {
            // The engine restarts.
            0 => {
                rig.ingest.clear();
                engine.held.clear();
            }
            // A batch is lost, and no replay brings it: what is suspect is dropped in the end.
            1..4 => {
                rig.ingest.doubt();
                rig.apply_events(engine.step());
                rig.ingest.drop_doubted();
                let lost = engine.held.len();
                assert!(rig.partition.stats().index.entries <= 4 * lost + 64);
            }
            _ => rig.apply_events(events),
        }
        let most = if step < steps / 4 {
            &mut early
        } else {
            &mut late
        };
        for (most, now) in most.iter_mut().zip(weight(&rig)) {
            *most = now.max(*most);
        }
    }
    let is_flat = early
        .iter()
        .zip(late)
        .all(|(early, late)| late <= early + early / 2 + 64);
    assert!(is_flat, "it grew from {early:?} to {late:?}");
}

#[test]
fn what_is_remembered_does_not_grow_with_time() {
    churn(4, 20_000);
}

#[test]
fn what_is_remembered_does_not_grow_where_blocks_are_cut() {
    churn(8, 6_000);
}

#[test]
fn what_is_remembered_does_not_grow_where_blocks_are_joined() {
    churn(2, 6_000);
}
