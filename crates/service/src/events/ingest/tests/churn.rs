//! A long life in a short time: what is remembered follows what the engine holds, not what it said.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

/// Blocks that an engine has room for on its device, and below it.
const ON_DEVICE: usize = 2_000;
const ON_HOST: usize = 1_000;

/// An engine's cache: a tree of blocks, some with copies, some offloaded. It never evicts a block
/// before those that hang on it, as engines do not.
struct Engine {
    random: StdRng,
    size: u32,
    next: u32,
    held: Vec<u32>,
    blocks: BTreeMap<u32, Node>,
    offloaded: Vec<u32>,
}

#[derive(Default)]
struct Node {
    parent: Option<u32>,
    children: Vec<u32>,
    at: usize,
    copies: u32,
}

impl Engine {
    fn new(seed: u64, size: u32) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            size,
            next: 1,
            held: Vec::new(),
            blocks: BTreeMap::new(),
            offloaded: Vec::new(),
        }
    }

    fn restart(&mut self) {
        let random = self.random.clone();
        *self = Self {
            next: self.next,
            random,
            ..Self::new(0, self.size)
        };
    }

    fn any(&mut self) -> Option<u32> {
        let most = self.held.len();
        (most > 0).then(|| self.held[self.random.random_range(0..most)])
    }

    /// The events of one step: blocks behind one that is held or at a root, evictions as needed.
    fn step(&mut self) -> Vec<V> {
        let parent = self.any().filter(|_| self.random.random_bool(0.8));
        let blocks = self.random.random_range(1..5);
        let tokens: Vec<u32> = (0..blocks * self.size)
            .map(|_| self.random.random_range(0..100_000))
            .collect();
        let hashes: Vec<u32> = (self.next..self.next + blocks).collect();
        self.next += blocks;
        let mut before = parent;
        for name in &hashes {
            self.add(*name, before);
            before = Some(*name);
        }
        let mut event = stored(&hashes, parent, &tokens, self.size);
        if parent.is_none() && self.random.random_bool(0.3) {
            event.extend(salted("tenant"));
        }
        let mut events = vec![V::List(event.clone())];
        if self.random.random_bool(0.05) {
            events.push(V::List(event));
            for name in &hashes {
                self.blocks.get_mut(name).unwrap().copies += 1;
            }
        }
        events.extend(self.evictions());
        events
    }

    fn add(&mut self, name: u32, parent: Option<u32>) {
        if let Some(parent) = parent {
            self.blocks.get_mut(&parent).unwrap().children.push(name);
        }
        let node = Node {
            parent,
            at: self.held.len(),
            copies: 1,
            ..Node::default()
        };
        self.blocks.insert(name, node);
        self.held.push(name);
    }

    /// Takes a leaf out of the tree: its name and copies.
    fn take_leaf(&mut self) -> (u32, u32) {
        let mut name = self.any().unwrap();
        while let Some(child) = self.blocks[&name].children.last() {
            name = *child;
        }
        let node = self.blocks.remove(&name).unwrap();
        if let Some(parent) = node.parent {
            let children = &mut self.blocks.get_mut(&parent).unwrap().children;
            children.retain(|child| *child != name);
        }
        self.held.swap_remove(node.at);
        if let Some(moved) = self.held.get(node.at) {
            self.blocks.get_mut(moved).unwrap().at = node.at;
        }
        (name, node.copies)
    }

    fn evictions(&mut self) -> Vec<V> {
        let mut gone = Vec::new();
        let mut events = Vec::new();
        while self.held.len() > ON_DEVICE {
            let (name, copies) = self.take_leaf();
            if self.size == 4 && self.random.random_bool(0.3) {
                let mut event = stored(&[name], None, &[], 0);
                event[6] = "CPU".into();
                events.push(V::List(event));
                self.offloaded.push(name);
            }
            gone.extend(std::iter::repeat_n(name, copies as usize));
        }
        if !gone.is_empty() {
            events.push(removed(&gone));
        }
        while self.offloaded.len() > ON_HOST {
            let at = self.random.random_range(0..self.offloaded.len());
            let name = self.offloaded.swap_remove(at);
            let names = vec![name].into();
            events.push(V::List(vec!["BlockRemoved".into(), names, "CPU".into()]));
        }
        events
    }
}

/// What grows with what is remembered.
fn weight(rig: &Rig) -> [usize; 5] {
    let index = rig.partition.stats().index;
    [
        index.entries,
        index.blocks,
        index.strands,
        index.waiting_blocks,
        rig.ingest.remembered(),
    ]
}

fn churn(size: u32, steps: usize) {
    let seed = 0xc4a2 + u64::from(size);
    println!("seed {seed:#x}, engine block size {size}, {steps} steps");
    let mut rig = Rig::new();
    let mut engine = Engine::new(seed, size);
    let mut highest = [[0; 5]; 8];
    let mut suspect_until = None;
    for step in 0..steps {
        let events = engine.step();
        match engine.random.random_range(0..40_000) {
            0 => {
                rig.ingest.clear();
                engine.restart();
            }
            // A batch is lost, and no replay brings it. What is suspect is dropped a minute later.
            1..8 => {
                rig.ingest.doubt();
                suspect_until = Some(step + 600);
            }
            _ => rig.apply_events(events),
        }
        if suspect_until == Some(step) {
            rig.ingest.drop_doubted();
        }
        let eighth = &mut highest[step * 8 / steps];
        for (highest, now) in eighth.iter_mut().zip(weight(&rig)) {
            *highest = now.max(*highest);
        }
        if (step + 1) % (steps / 8) == 0 {
            let part = step * 8 / steps;
            println!(
                "{}/8: {:?}, {} kB resident",
                part + 1,
                highest[part],
                resident_kb()
            );
        }
    }
    for (early, late) in highest[1].into_iter().zip(highest[7]) {
        let is_flat = late <= early + early / 4 + ON_DEVICE;
        assert!(is_flat, "it grew: {:?} to {:?}", highest[1], highest[7]);
    }
    engine.held.clear();
    rig.apply_events(vec![cleared()]);
    assert_eq!(weight(&rig), [0; 5]);
}

/// Memory of this process, where the system tells.
fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let digits = line.and_then(|line| line.split_whitespace().next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Stores in one life: few, unless more are asked for. A day of ten a second is
/// `POINTSMAN_TEST_CHURN_STORES=864000 cargo test -p pointsman-service --lib what_is_remembered -- --nocapture --test-threads=1`
fn stores(few: usize) -> usize {
    let asked = std::env::var("POINTSMAN_TEST_CHURN_STORES").ok();
    asked.map_or(few, |asked| asked.parse().expect("a number of stores"))
}

#[test]
fn what_is_remembered_does_not_grow_with_time() {
    churn(4, stores(24_000));
}

#[test]
fn what_is_remembered_does_not_grow_where_blocks_are_cut() {
    churn(8, stores(12_000));
}

#[test]
fn what_is_remembered_does_not_grow_where_blocks_are_joined() {
    churn(2, stores(12_000));
}
