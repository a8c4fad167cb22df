//! Makes conversations: system prompts that many workers hold, each with tails that few hold; the same for both sides.

use pointsman_core::hash::{BlockHash, SequenceHash, chain_all};
use rand::rngs::SmallRng;
use rand::seq::index::sample;
use rand::{Rng, SeedableRng};

const SYSTEM_PROMPTS: usize = 16;
const SYSTEM_BLOCKS: usize = 64;
pub(crate) const EVENT_BLOCKS: usize = 32;

/// What is held by whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) workers: usize,
    /// Blocks of a whole conversation.
    pub(crate) blocks: usize,
    /// Workers that hold a system prompt; all of them if there are no more.
    pub(crate) system_owners: usize,
    /// Workers that hold a tail.
    pub(crate) tail_owners: usize,
    /// (Block, worker) pairs of tails.
    pub(crate) tail_entries: usize,
    /// Whether all workers have the same names for blocks.
    pub(crate) same_names: bool,
}

#[derive(Debug)]
pub(crate) struct Conversation {
    pub(crate) blocks: Vec<u64>,
    pub(crate) sequences: Vec<u64>,
    pub(crate) system_blocks: usize,
    pub(crate) owners: Vec<usize>,
}

/// One event of one worker.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) worker: usize,
    pub(crate) parent: Option<u64>,
    /// Name and block hash.
    pub(crate) blocks: Vec<(u64, u64)>,
    /// Names to remove, if that is what it does.
    pub(crate) removed: Vec<u64>,
}

pub(crate) struct Inputs {
    pub(crate) shape: Shape,
    pub(crate) conversations: Vec<Conversation>,
    systems: Vec<(Vec<u64>, Vec<usize>)>,
}

impl Inputs {
    pub(crate) fn new(shape: Shape) -> Self {
        let mut random = SmallRng::seed_from_u64(7);
        let system_blocks = SYSTEM_BLOCKS.min(shape.blocks / 2);
        let systems: Vec<(Vec<u64>, Vec<usize>)> = (0..SYSTEM_PROMPTS)
            .map(|_| {
                let blocks = (0..system_blocks).map(|_| random.random()).collect();
                let owners = shape.system_owners.min(shape.workers);
                (
                    blocks,
                    sample(&mut random, shape.workers, owners).into_vec(),
                )
            })
            .collect();
        let tail = shape.blocks - system_blocks;
        let count = (shape.tail_entries / (tail * shape.tail_owners)).max(SYSTEM_PROMPTS);
        let conversations = (0..count)
            .map(|at| {
                let (system, holders) = &systems[at % SYSTEM_PROMPTS];
                let mut blocks = system.clone();
                blocks.extend((0..tail).map(|_| random.random::<u64>()));
                let owners = shape.tail_owners.min(holders.len());
                Conversation {
                    sequences: chained(&blocks),
                    blocks,
                    system_blocks,
                    owners: sample(&mut random, holders.len(), owners)
                        .into_iter()
                        .map(|owner| holders[owner])
                        .collect(),
                }
            })
            .collect();
        Self {
            shape,
            conversations,
            systems,
        }
    }

    pub(crate) fn entries(&self) -> usize {
        let systems: usize = self
            .systems
            .iter()
            .map(|(blocks, owners)| blocks.len() * owners.len())
            .sum();
        let tails = self.conversations.iter();
        systems
            + tails
                .map(|talk| (talk.blocks.len() - talk.system_blocks) * talk.owners.len())
                .sum::<usize>()
    }

    /// Stores of everything, `size` blocks an event, conversations interleaved as they grow.
    pub(crate) fn stores(&self, size: usize) -> Vec<Event> {
        let mut events = Vec::new();
        for (system, owners) in &self.systems {
            let sequences = chained(system);
            for worker in owners {
                self.push(&mut events, *worker, system, &sequences, 0, size);
            }
        }
        let tail = self.shape.blocks - self.conversations[0].system_blocks;
        for step in 0..tail.div_ceil(size) {
            let before = events.len();
            for talk in &self.conversations {
                let from = talk.system_blocks + step * size;
                let to = (from + size).min(talk.blocks.len());
                for worker in &talk.owners {
                    self.push(
                        &mut events,
                        *worker,
                        &talk.blocks[..to],
                        &talk.sequences,
                        from,
                        size,
                    );
                }
            }
            // An engine tells at once which block each of its requests filled in one step.
            if size == 1 {
                events[before..].sort_by_key(|event| event.worker);
            }
        }
        events
    }

    /// Stores of the tails alone, for whoever has the system prompts.
    pub(crate) fn tail_stores(&self, size: usize) -> Vec<Event> {
        let systems = self.systems.iter();
        let events = systems.map(|(blocks, owners)| blocks.len().div_ceil(size) * owners.len());
        self.stores(size).split_off(events.sum())
    }

    /// Removals of all tails, from their ends.
    pub(crate) fn removals(&self, size: usize) -> Vec<Event> {
        let mut events = Vec::new();
        for talk in &self.conversations {
            for worker in &talk.owners {
                let names = talk.sequences[talk.system_blocks..].iter().rev();
                let names: Vec<_> = names
                    .map(|sequence| self.name(*worker, *sequence))
                    .collect();
                events.extend(names.chunks(size).map(|removed| Event {
                    worker: *worker,
                    parent: None,
                    blocks: Vec::new(),
                    removed: removed.to_vec(),
                }));
            }
        }
        events
    }

    fn push(
        &self,
        events: &mut Vec<Event>,
        worker: usize,
        blocks: &[u64],
        sequences: &[u64],
        from: usize,
        size: usize,
    ) {
        for start in (from..blocks.len()).step_by(size) {
            let end = (start + size).min(blocks.len());
            events.push(Event {
                worker,
                parent: start
                    .checked_sub(1)
                    .map(|before| self.name(worker, sequences[before])),
                blocks: (start..end)
                    .map(|at| (self.name(worker, sequences[at]), blocks[at]))
                    .collect(),
                removed: Vec::new(),
            });
        }
    }

    fn name(&self, worker: usize, sequence: u64) -> u64 {
        let salt = if self.shape.same_names {
            1
        } else {
            worker as u64 + 2
        };
        (sequence ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15)).rotate_left(17)
    }

    /// How many leading blocks of a prompt each worker holds, found the slow way.
    pub(crate) fn held(&self, prompt: &[u64]) -> Vec<u32> {
        let mut held = vec![0; self.shape.workers];
        let mut raise = |blocks: &[u64], owners: &[usize]| {
            let same = blocks
                .iter()
                .zip(prompt)
                .take_while(|(block, asked)| block == asked);
            let same = u32::try_from(same.count()).unwrap_or(u32::MAX);
            for owner in owners {
                held[*owner] = same.max(held[*owner]);
            }
        };
        for (blocks, owners) in &self.systems {
            raise(blocks, owners);
        }
        for talk in &self.conversations {
            raise(&talk.blocks, &talk.owners);
        }
        held
    }

    /// Prompts of one kind, as block and sequence hashes.
    pub(crate) fn prompts(&self, kind: Kind, count: usize) -> Vec<(Vec<u64>, Vec<u64>)> {
        let mut random = SmallRng::seed_from_u64(11);
        (0..count)
            .map(|_| {
                let talk = &self.conversations[random.random_range(0..self.conversations.len())];
                let known = match kind {
                    Kind::Hit => talk.blocks.len(),
                    Kind::Prefix => talk.system_blocks,
                    Kind::Miss => 0,
                };
                let mut blocks = talk.blocks[..known].to_vec();
                blocks.extend((known..talk.blocks.len()).map(|_| random.random::<u64>()));
                let sequences = chained(&blocks);
                (blocks, sequences)
            })
            .collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Hit,
    Prefix,
    Miss,
}

fn chained(blocks: &[u64]) -> Vec<u64> {
    let blocks: Vec<_> = blocks.iter().copied().map(BlockHash).collect();
    chain_all(&blocks)
        .into_iter()
        .map(|SequenceHash(hash)| hash)
        .collect()
}
