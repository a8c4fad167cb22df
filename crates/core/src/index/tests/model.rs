//! Random histories against a model that writes everything down.

mod naive;

use std::collections::{BTreeMap, BTreeSet};

use rand::Rng;
use rand::rngs::SmallRng;

use super::*;
use crate::testing::seeded;
use naive::{Chain, Naive};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Naming {
    /// One name a chain, shared by every second rank.
    Shared,
    /// One name a chain, each rank another.
    Own,
    /// The same name stands for different blocks on different ranks, and blocks have several.
    Colliding,
}

impl Naming {
    fn of(self, random: &mut SmallRng, rank: u64, chain: &[u64]) -> u64 {
        let first = match self {
            Self::Shared => 7 + rank % 2,
            Self::Own => 7 + rank,
            Self::Colliding => return random.random_range(0..60),
        };
        let step = |name, block: &u64| (name * 5 + block + 1) % 1_000_003;
        chain.iter().fold(first, step)
    }
}

/// Which of the odder things happen in a history.
#[derive(Clone, Copy)]
struct Spice {
    ranks: u64,
    tiers: bool,
    doubts: bool,
    /// How ranks name blocks.
    names: Naming,
    /// Most blocks of one store in ten; with many, chains outgrow strands.
    longest: usize,
}

impl Spice {
    fn stored_blocks(self, random: &mut SmallRng) -> usize {
        let most = if random.random_bool(0.1) {
            self.longest
        } else {
            4
        };
        random.random_range(0..=most)
    }

    /// Blocks to ask for: any, or what a rank has of a chain and perhaps more.
    fn prompt(self, random: &mut SmallRng, model: &Naive) -> Chain {
        let mut prompt = Chain::new();
        if self.longest > 4 && !model.names.is_empty() {
            let chosen = random.random_range(0..model.names.len());
            prompt.extend(&model.names.values().nth(chosen).unwrap().0);
        }
        let more = random.random_range(0..9);
        prompt.extend((0..more).map(|_| random.random_range(0..3_u64)));
        prompt
    }
}

fn placement(random: &mut SmallRng, spice: Spice) -> Placement {
    if !spice.tiers {
        return Placement::default();
    }
    let tier = Tier::ALL[random.random_range(0..8_usize).saturating_sub(4)];
    Placement {
        tier,
        group: u32::from(random.random_bool(0.2)),
    }
}

fn store(
    random: &mut SmallRng,
    spice: Spice,
    rank: u64,
    model: &mut Naive,
) -> (Placement, KvEvent, bool) {
    let at = placement(random, spice);
    let names: Vec<u64> = model.names.keys().copied().collect();
    let parent = (!names.is_empty() && random.random_bool(0.7)).then(|| {
        if random.random_bool(0.1) {
            random.random_range(0..60)
        } else {
            names[random.random_range(0..names.len())]
        }
    });
    let chain = parent.and_then(|parent| Some(model.names.get(&parent)?.0.clone()));
    let mut chain = chain.unwrap_or_default();
    let blocks: Vec<_> = (0..spice.stored_blocks(random))
        .map(|_| {
            let block = random.random_range(0..3);
            chain.push(block);
            let name = spice.names.of(random, rank, &chain);
            (name, block)
        })
        .collect();
    let confirmed = !spice.doubts || random.random_bool(0.8);
    let known = model.store(at, confirmed, parent, &blocks);
    let event = KvEvent::Stored {
        parent: parent.map(EngineHash),
        blocks: blocks
            .iter()
            .map(|(engine_hash, block_hash)| StoredBlock {
                engine_hash: EngineHash(*engine_hash),
                block_hash: BlockHash(*block_hash),
            })
            .collect(),
    };
    assert!(known || !model.waiting.is_empty());
    (at, event, confirmed)
}

fn some_name(random: &mut SmallRng, model: &Naive) -> u64 {
    let names: Vec<u64> = model.names.keys().copied().collect();
    if names.is_empty() || random.random_bool(0.1) {
        return random.random_range(0..60);
    }
    names[random.random_range(0..names.len())]
}

/// Names of blocks in a row, the last or the first one first.
fn some_run(random: &mut SmallRng, model: &Naive, longest: usize) -> Vec<u64> {
    let last = some_name(random, model);
    let Some((chain, _)) = model.names.get(&last) else {
        return vec![last];
    };
    let before = model
        .names
        .iter()
        .filter(|(_, (held, _))| chain.starts_with(held));
    let mut names: Vec<_> = before
        .map(|(name, (held, _))| (held.len(), *name))
        .collect();
    names.sort_unstable();
    let most = random.random_range(1..=longest);
    let mut names: Vec<_> = names
        .iter()
        .rev()
        .take(most)
        .map(|(_, name)| *name)
        .collect();
    if random.random_bool(0.5) {
        names.reverse();
    }
    names
}

fn step(
    random: &mut SmallRng,
    spice: Spice,
    index: &mut KvIndex,
    worker: WorkerWithDpRank,
    model: &mut Naive,
) {
    let at = placement(random, spice);
    match random.random_range(0..200) {
        0..110 => {
            let (at, event, confirmed) = store(random, spice, worker.worker_id, model);
            if confirmed {
                index.apply_at(worker, at, &event);
            } else {
                index.apply_unconfirmed(worker, at, &event);
            }
        }
        110..180 => {
            let names = if random.random_bool(0.2) {
                some_run(random, model, spice.longest)
            } else {
                let count = random.random_range(1..4);
                (0..count).map(|_| some_name(random, model)).collect()
            };
            for name in &names {
                model.remove(at, *name);
            }
            index.apply_at(worker, at, &removed(&names));
        }
        180..186 if spice.tiers => {
            let name = some_name(random, model);
            model.link(at, name);
            index.apply_at(worker, at, &linked(&[name]));
        }
        186..192 => {
            let (name, left) = (some_name(random, model), random.random_range(0..3));
            model.set_remaining(at, name, left);
            let copies = vec![(EngineHash(name), left)];
            index.apply_at(worker, at, &KvEvent::Remaining { copies });
        }
        192..194 if spice.doubts => {
            model.doubt();
            index.doubt(worker);
        }
        194..196 if spice.doubts => {
            model.drop_doubted();
            index.drop_doubted(worker);
        }
        196 if spice.doubts => {
            model.trust();
            index.trust(worker);
        }
        197..199 => {
            *model = Naive::default();
            index.apply(worker, &KvEvent::Cleared);
        }
        _ => {}
    }
}

fn ends(index: &KvIndex, worker: WorkerWithDpRank, prompt: &[u64]) -> [u32; 4] {
    let blocks: Vec<_> = prompt.iter().copied().map(BlockHash).collect();
    let overlaps = index.overlap(&chain_all(&blocks));
    let slot = index.slot(worker).unwrap();
    let device = overlaps.blocks(slot);
    let host = device + overlaps.host_blocks(slot);
    let external = host + overlaps.disk_blocks(slot);
    [
        device,
        host,
        external - overlaps.external_blocks(slot),
        external,
    ]
}

fn check(spice: Spice) {
    let mut random = seeded(&format!(
        "{} ranks, tiers {}, doubts {}, names {:?}, longest store {}",
        spice.ranks, spice.tiers, spice.doubts, spice.names, spice.longest
    ));
    let mut index = KvIndex::default();
    let mut models: BTreeMap<WorkerWithDpRank, Naive> = BTreeMap::new();
    for round in 0..4_000 {
        let worker = WorkerWithDpRank::new(random.random_range(0..spice.ranks), 0);
        let Some(model) = models.get_mut(&worker) else {
            index.add_rank(worker);
            models.insert(worker, Naive::default());
            continue;
        };
        if random.random_bool(0.005) {
            models.remove(&worker);
            index.remove_rank(worker);
            continue;
        }
        let any: [EngineHash; 3] = std::array::from_fn(|_| EngineHash(random.random_range(0..40)));
        index.expect(worker, any, any);
        step(&mut random, spice, &mut index, worker, model);
        let prompt = spice.prompt(&mut random, model);
        let checked = models.iter().skip(random.random_range(0..7)).step_by(7);
        for (worker, model) in checked {
            assert_eq!(
                ends(&index, *worker, &prompt),
                model.ends(&prompt),
                "round {round}, {worker}, {prompt:?}"
            );
        }
        if round % 8 == 0 {
            check_sums(&index, &models);
        }
        if round % 64 == 0 {
            check_dump(&index, &models, &mut random);
        }
    }
    for worker in models.keys() {
        index.remove_rank(*worker);
    }
    index.chains.check_parents();
    let stats = index.stats();
    assert_eq!(
        (stats.ranks, stats.blocks, stats.entries, stats.strands),
        (0, 0, 0, 0)
    );
    assert_eq!(
        (stats.unconfirmed, stats.waiting_blocks, index.below_device),
        (0, 0, 0)
    );
}

fn check_sums(index: &KvIndex, models: &BTreeMap<WorkerWithDpRank, Naive>) {
    let stats = index.stats();
    let entries: usize = models.values().map(|model| model.names.len()).sum();
    assert_eq!(stats.entries, entries);
    let held = models.values().flat_map(|model| model.names.values());
    let blocks: BTreeSet<_> = held.map(|(chain, _)| chain).collect();
    assert_eq!(stats.blocks, blocks.len());
    let doubted: usize = models.values().map(|model| model.doubted.len()).sum();
    assert_eq!(stats.unconfirmed, doubted);
    let waiting: usize = models.values().map(|model| model.waiting.len()).sum();
    assert_eq!(stats.waiting_events, waiting);
    index.chains.check_parents();
}

/// An index that is told a dump answers as the dumped one does.
fn check_dump(index: &KvIndex, models: &BTreeMap<WorkerWithDpRank, Naive>, random: &mut SmallRng) {
    let mut copy = KvIndex::default();
    for worker in models.keys() {
        copy.add_rank(*worker);
        let mut dump = RankDump::new(*worker, &Tier::ALL);
        while !dump.is_done() {
            dump.arrange();
            index.dump_part(&mut dump, random.random_range(1..40), |run| {
                let event = KvEvent::Stored {
                    parent: run.parent,
                    blocks: run.blocks.to_vec(),
                };
                copy.apply_unconfirmed(run.worker, run.tier.into(), &event);
            });
        }
    }
    for (worker, model) in models {
        let prompt: Chain = (0..random.random_range(0..9))
            .map(|_| random.random_range(0..3))
            .collect();
        assert_eq!(
            ends(&copy, *worker, &prompt),
            model.ends(&prompt),
            "{worker}, {prompt:?}"
        );
    }
}

#[test]
fn plain_histories_agree_with_the_model() {
    for ranks in [3, 70] {
        check(Spice {
            ranks,
            tiers: false,
            doubts: false,
            names: Naming::Shared,
            longest: 4,
        });
    }
}

#[test]
fn own_names_agree_with_the_model() {
    for (ranks, longest) in [(3, 4), (70, 4), (3, 60)] {
        check(Spice {
            ranks,
            tiers: false,
            doubts: false,
            names: Naming::Own,
            longest,
        });
    }
}

#[test]
fn colliding_names_agree_with_the_model() {
    for ranks in [3, 70] {
        check(Spice {
            ranks,
            tiers: false,
            doubts: false,
            names: Naming::Colliding,
            longest: 4,
        });
    }
}

#[test]
fn tiers_and_groups_agree_with_the_model() {
    for ranks in [3, 70] {
        for names in [Naming::Shared, Naming::Own, Naming::Colliding] {
            check(Spice {
                ranks,
                tiers: true,
                doubts: false,
                names,
                longest: 4,
            });
        }
    }
}

#[test]
fn doubts_agree_with_the_model() {
    for (ranks, names) in [
        (3, Naming::Shared),
        (3, Naming::Own),
        (3, Naming::Colliding),
        (70, Naming::Colliding),
    ] {
        check(Spice {
            ranks,
            tiers: true,
            doubts: true,
            names,
            longest: 4,
        });
    }
}

#[test]
fn long_chains_agree_with_the_model() {
    for (tiers, names) in [
        (false, Naming::Shared),
        (false, Naming::Colliding),
        (true, Naming::Own),
        (true, Naming::Colliding),
    ] {
        check(Spice {
            ranks: 3,
            tiers,
            doubts: tiers,
            names,
            longest: 60,
        });
    }
}
