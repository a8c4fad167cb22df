//! Small blocks that are joined, stored in any order: what counts in the end is what is held, as in a naive model.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng};

use super::*;

/// Blocks of the engine, in tokens; the partition's have 4.
const SIZES: [usize; 2] = [1, 2];

#[derive(Clone, Debug)]
enum Told {
    Stored {
        parent: Option<u32>,
        names: Vec<u32>,
        tokens: Vec<u32>,
    },
    Removed(u32),
}

/// An engine's history; names follow from the chain of tokens up to a block.
#[derive(Default)]
struct History {
    names: BTreeMap<Vec<u32>, u32>,
    /// By name.
    copies: BTreeMap<u32, u32>,
    told: Vec<Told>,
}

impl History {
    fn store(&mut self, size: usize, random: &mut StdRng) {
        let chains: Vec<_> = self.names.keys().cloned().collect();
        let is_first = chains.is_empty() || random.random_bool(0.2);
        let mut chain = if is_first {
            Vec::new()
        } else {
            chains[random.random_range(0..chains.len())].clone()
        };
        let parent = self.names.get(&chain).copied();
        let from = chain.len();
        let mut names = Vec::new();
        for _ in 0..random.random_range(1..5) {
            chain.extend(vec![random.random_range(1..3_u32); size]);
            let next = u32::try_from(self.names.len()).unwrap() + 1;
            let name = *self.names.entry(chain.clone()).or_insert(next);
            *self.copies.entry(name).or_default() += 1;
            names.push(name);
        }
        let tokens = chain[from..].to_vec();
        self.told.push(Told::Stored {
            parent,
            names,
            tokens,
        });
    }

    fn remove(&mut self, random: &mut StdRng) {
        let held: Vec<_> = self.copies.iter_mut().filter(|held| *held.1 > 0).collect();
        let at = random.random_range(0..held.len().max(1));
        if let Some((name, copies)) = held.into_iter().nth(at) {
            *copies -= 1;
            self.told.push(Told::Removed(*name));
        }
    }

    /// The history in another order, in which removals still follow their stores.
    fn shuffled(&self, random: &mut StdRng) -> Vec<Told> {
        let mut rest = self.told.clone();
        let mut copies: BTreeMap<u32, i32> = BTreeMap::new();
        let mut shuffled = Vec::new();
        while !rest.is_empty() {
            let at = random.random_range(0..rest.len());
            match &rest[at] {
                Told::Removed(name) => match copies.get_mut(name).filter(|copies| **copies > 0) {
                    Some(copies) => *copies -= 1,
                    None => continue,
                },
                Told::Stored { names, .. } => {
                    for name in names {
                        *copies.entry(*name).or_default() += 1;
                    }
                }
            }
            shuffled.push(rest.remove(at));
        }
        shuffled
    }

    fn expected(&self, prompt: &[u32], size: usize) -> usize {
        let is_held = |end: usize| {
            let name = self.names.get(&prompt[..end]);
            name.is_some_and(|name| self.copies[name] > 0)
        };
        let mut whole = prompt.chunks_exact(4).zip(1..);
        let is_whole = |block: usize| {
            (4 * (block - 1) + size..=4 * block)
                .step_by(size)
                .all(is_held)
        };
        let missing = whole.find(|(_, block)| !is_whole(*block));
        missing.map_or(prompt.len() / 4, |(_, block)| block - 1)
    }
}

fn event_of(told: &Told, size: usize) -> V {
    match told {
        Told::Removed(name) => removed(&[*name]),
        Told::Stored {
            parent,
            names,
            tokens,
        } => V::List(stored(names, *parent, tokens, u32::try_from(size).unwrap())),
    }
}

#[test]
fn joined_blocks_in_any_order_come_to_what_is_held() {
    println!("seeds 0..600");
    for seed in 0..600 {
        let mut random = StdRng::seed_from_u64(seed);
        let size = SIZES[random.random_range(0..SIZES.len())];
        let mut history = History::default();
        for _ in 0..random.random_range(1..25) {
            if random.random_bool(0.7) {
                history.store(size, &mut random);
            } else {
                history.remove(&mut random);
            }
        }
        let mut rig = Rig::new();
        for told in history.shuffled(&mut random) {
            rig.apply_events(vec![event_of(&told, size)]);
        }
        for prompt in history.names.keys() {
            let expected = history.expected(prompt, size);
            let found = usize::try_from(rig.overlap(prompt)).unwrap();
            assert_eq!(found, expected, "seed {seed}: {prompt:?}");
        }
        for (name, copies) in &history.copies {
            for _ in 0..*copies {
                rig.apply_events(vec![removed(&[*name])]);
            }
        }
        assert_eq!(rig.ingest.remembered(), 0, "seed {seed}");
    }
}
