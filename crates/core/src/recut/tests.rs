//! Blocks cut again, against an engine that keeps tokens; no wire.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_plugin::WorkerWithDpRank;
use rand::Rng;

use super::*;
use crate::hash::sequence_hashes;
use crate::index::KvIndex;
use crate::testing::seeded;

const WORKER: WorkerWithDpRank = WorkerWithDpRank::new(1, 0);

fn layout(block_size: u32) -> HashLayout {
    HashLayout {
        block_size: NonZeroU32::new(block_size).unwrap(),
        eagle: false,
    }
}

fn recut(engine: u32, partition: u32) -> Result<Recut, RecutError> {
    Recut::new(NonZeroU32::new(engine).unwrap(), layout(partition))
}

#[test]
fn sizes_that_do_not_divide_each_other_are_refused() {
    assert!(recut(8, 4).is_ok());
    assert!(recut(4, 8).is_ok());
    assert_eq!(
        recut(6, 4).unwrap_err(),
        RecutError::BlockSize {
            engine: 6,
            partition: 4
        }
    );
}

#[test]
fn tokens_that_do_not_fill_the_blocks_are_refused() {
    let store = EngineStore {
        parent: None,
        engine_hashes: &[EngineHash(1)],
        tokens: &[1, 2, 3],
        seed: HashSeed::default(),
    };
    let error = recut(4, 2).unwrap().stored(&store).unwrap_err();
    assert_eq!(error, RecutError::TokenCount { blocks: 1 });
}

fn store(
    engine_hashes: &[EngineHash],
    tokens: &[u32],
    parent: Option<u64>,
    recut: &mut Recut,
) -> Vec<KvEvent> {
    let store = EngineStore {
        parent: parent.map(EngineHash),
        engine_hashes,
        tokens,
        seed: HashSeed::default(),
    };
    recut.stored(&store).unwrap()
}

#[test]
fn copies_left_of_an_engine_block_are_those_of_its_parts() {
    let mut index = KvIndex::default();
    index.add_rank(WORKER);
    let mut recut = recut(4, 2).unwrap();
    let names = [EngineHash(1)];
    for _ in 0..2 {
        for event in store(&names, &[1, 2, 3, 4], None, &mut recut) {
            index.apply(WORKER, &event);
        }
    }
    assert_eq!(index.stats().blocks, 2);
    for event in recut.remaining(&[(EngineHash(1), 0)]) {
        index.apply(WORKER, &event);
    }
    assert_eq!(index.stats().blocks, 0);
}

#[test]
fn a_small_block_without_copies_takes_the_joined_one_along() {
    let mut recut = recut(2, 4).unwrap();
    let names = [EngineHash(1), EngineHash(2)];
    store(&names, &[1, 2, 3, 4], None, &mut recut);
    store(&names, &[1, 2, 3, 4], None, &mut recut);
    assert!(recut.knows(EngineHash(1)) && !recut.knows(EngineHash(3)));
    assert_eq!(recut.pieces(), 2);
    let nothing = vec![KvEvent::Removed {
        engine_hashes: vec![],
    }];
    assert_eq!(recut.remaining(&[(EngineHash(1), 1)]), nothing);
    let gone = vec![KvEvent::Removed {
        engine_hashes: vec![EngineHash(2)],
    }];
    assert_eq!(recut.remaining(&[(EngineHash(1), 0)]), gone);
    assert_eq!(recut.linked(&names), None);
}

#[test]
fn the_place_of_a_small_block_behind_an_unknown_one_is_not_known() {
    let store = EngineStore {
        parent: Some(EngineHash(9)),
        engine_hashes: &[EngineHash(1)],
        tokens: &[1, 2],
        seed: HashSeed::default(),
    };
    let error = recut(2, 4).unwrap().stored(&store).unwrap_err();
    assert_eq!(error, RecutError::UnknownParent);
}

/// An engine's blocks by name: the tokens of the chain up to each, and copies.
type Held = BTreeMap<u64, (Vec<u32>, u32)>;

/// Leading partition blocks of a prompt whose tokens are all in held engine blocks.
fn expected(held: &Held, prompt: &[u32], engine: usize, partition: usize) -> usize {
    let chains: BTreeSet<&[u32]> = held.values().map(|(tokens, _)| &tokens[..]).collect();
    let is_held = |end: usize| {
        (engine..=end.next_multiple_of(engine))
            .step_by(engine)
            .filter(|to| *to + partition > end && *to > end - partition)
            .all(|to| prompt.get(..to).is_some_and(|chain| chains.contains(chain)))
    };
    (1..=prompt.len() / partition)
        .take_while(|block| is_held(block * partition))
        .count()
}

#[test]
fn recut_blocks_agree_with_the_engines() {
    for (engine, partition) in [(4_u32, 4_u32), (8, 4), (12, 4), (2, 4), (1, 4), (2, 6)] {
        let mut random = seeded(&format!("{engine} into {partition}"));
        let (size, ours) = (engine as usize, partition as usize);
        let mut recut = recut(engine, partition).unwrap();
        let mut index = KvIndex::default();
        index.add_rank(WORKER);
        let mut held = Held::new();
        for _ in 0..1_500 {
            if random.random_bool(0.55) {
                let names: Vec<u64> = held.keys().copied().collect();
                let parent = (!names.is_empty() && random.random_bool(0.7))
                    .then(|| names[random.random_range(0..names.len())]);
                let mut chain = parent.map_or_else(Vec::new, |parent| held[&parent].0.clone());
                let blocks = random.random_range(1..4);
                let tokens: Vec<u32> = (0..blocks)
                    .flat_map(|_| vec![random.random_range(0..2); size])
                    .collect();
                let mut engine_hashes = Vec::new();
                for block in tokens.chunks(size) {
                    chain.extend(block);
                    // As engines do: the name follows from the chain.
                    let bytes: Vec<u8> =
                        chain.iter().flat_map(|token| token.to_le_bytes()).collect();
                    let name = xxh3_64(&bytes);
                    engine_hashes.push(EngineHash(name));
                    held.entry(name).or_insert_with(|| (chain.clone(), 0)).1 += 1;
                }
                let store = EngineStore {
                    parent: parent.map(EngineHash),
                    engine_hashes: &engine_hashes,
                    tokens: &tokens,
                    seed: HashSeed::default(),
                };
                for event in recut.stored(&store).unwrap() {
                    index.apply(WORKER, &event);
                }
            } else if let Some(name) = held
                .keys()
                .nth(random.random_range(0..held.len().max(1)))
                .copied()
            {
                let copies = &mut held.get_mut(&name).unwrap().1;
                *copies -= 1;
                if *copies == 0 {
                    held.remove(&name);
                }
                for event in recut.removed(&[EngineHash(name)]) {
                    index.apply(WORKER, &event);
                }
            }
            let prompt: Vec<u32> = (0..random.random_range(0..8))
                .flat_map(|_| vec![random.random_range(0..2); size])
                .collect();
            let chain = sequence_hashes(&prompt, layout(partition), HashSeed::default(), &[]);
            let found = index.overlap(&chain).blocks(index.slot(WORKER).unwrap());
            assert_eq!(
                found as usize,
                expected(&held, &prompt, size, ours),
                "{prompt:?}"
            );
        }
    }
}
