//! Times lookups, from hashes to the counts that scorers read, the clearing of the last answer included.

use std::hint::black_box;
use std::time::Instant;

use dynamo_kv_router::protocols::LocalBlockHash;
use pointsman_core::hash::SequenceHash;
use pointsman_core::index::Overlaps;

use crate::index::{Ours, Peer, both, compare};
use crate::inputs::{EVENT_BLOCKS, Inputs, Kind, Shape};
use crate::report::{quantile, verdict};

const KINDS: [Kind; 3] = [Kind::Hit, Kind::Prefix, Kind::Miss];
const GROUP: usize = 64;
const ROUNDS: usize = 15;
const COLD_ROUNDS: usize = 9;

struct Prompt {
    chain: Vec<SequenceHash>,
    locals: Vec<LocalBlockHash>,
}

/// Times of one side, in nanoseconds.
struct Times {
    p50: f64,
    p99: f64,
}

impl Times {
    fn p50(&self) -> f64 {
        self.p50
    }

    fn p99(&self) -> f64 {
        self.p99
    }
}

pub(crate) fn warm(workers: &[usize], blocks: &[usize]) {
    println!("warm lookups, 600k tail entries, p50 in ns: ours / peer");
    for (name, system_owners, tail_owners) in [("many owners", usize::MAX, 1), ("few owners", 8, 8)]
    {
        for workers in workers {
            for blocks in blocks {
                let inputs = Inputs::new(Shape {
                    workers: *workers,
                    blocks: *blocks,
                    system_owners,
                    tail_owners,
                    tail_entries: 600_000,
                    same_names: true,
                });
                let (ours, peer) = both(&inputs, EVENT_BLOCKS);
                for kind in KINDS {
                    let prompts = prompts(&inputs, &ours, &peer, kind, GROUP);
                    let (our, their) = interleaved(&ours, &peer, &prompts, true);
                    let limit = if name == "many owners" && kind == Kind::Hit {
                        match workers {
                            0..=8 => 0.85,
                            9..=511 => 0.7,
                            _ => 0.2,
                        }
                    } else {
                        1.0
                    };
                    println!(
                        "{name}, {workers:>5} workers, {blocks:>5} blocks, {kind:?}: {:>8.0} / {:>8.0}  {}",
                        our.p50,
                        their.p50,
                        verdict(our.p50 / their.p50, limit)
                    );
                }
            }
        }
    }
}

pub(crate) fn cold(workers: &[usize]) {
    println!(
        "cold lookups, 9 million entries in runs with 8 owners, 512 blocks, in ns: ours / peer"
    );
    for workers in workers {
        let inputs = Inputs::new(Shape {
            workers: *workers,
            blocks: 512,
            system_owners: usize::MAX,
            tail_owners: 8,
            tail_entries: 9_000_000,
            same_names: true,
        });
        let (ours, peer) = both(&inputs, EVENT_BLOCKS);
        for kind in KINDS {
            let prompts = prompts(&inputs, &ours, &peer, kind, 2_000);
            let rounds: Vec<_> = (0..COLD_ROUNDS)
                .map(|_| interleaved(&ours, &peer, &prompts, false))
                .collect();
            for (name, of) in [
                ("p50", Times::p50 as fn(&Times) -> f64),
                ("p99", Times::p99),
            ] {
                let mut our: Vec<_> = rounds.iter().map(|(our, _)| of(our)).collect();
                let mut their: Vec<_> = rounds.iter().map(|(_, their)| of(their)).collect();
                let (our, median) = (quantile(&mut our, 0.5), quantile(&mut their, 0.5));
                let spread = quantile(&mut their, 1.0) / median;
                println!(
                    "{workers:>5} workers, {kind:?} {name}: {our:>8.0} / {median:>8.0}  {}; the peer's own repeats reach {spread:.2}x",
                    verdict(our / median, 1.0)
                );
            }
        }
    }
}

fn prompts(inputs: &Inputs, ours: &Ours, peer: &Peer, kind: Kind, count: usize) -> Vec<Prompt> {
    let prompts = inputs.prompts(kind, count);
    compare(ours, peer, inputs, &prompts[..count.min(64)], true);
    let prompt = |(blocks, sequences): (Vec<u64>, Vec<u64>)| Prompt {
        chain: sequences.into_iter().map(SequenceHash).collect(),
        locals: blocks.into_iter().map(LocalBlockHash).collect(),
    };
    prompts.into_iter().map(prompt).collect()
}

/// Times both sides in turn. Grouped, a time is the mean of a group of lookups.
fn interleaved(ours: &Ours, peer: &Peer, prompts: &[Prompt], grouped: bool) -> (Times, Times) {
    let group = if grouped { GROUP } else { 1 };
    let rounds = if grouped { ROUNDS } else { 1 };
    let repeats = if grouped { 8 } else { 1 };
    let (mut our, mut their) = (Vec::new(), Vec::new());
    let mut overlaps = Overlaps::default();
    for _ in 0..rounds {
        for _ in 0..repeats {
            for prompts in prompts.chunks(group) {
                our.push(timed(prompts, |prompt| {
                    ours.find(&prompt.chain, &mut overlaps);
                    black_box(&overlaps);
                }));
            }
        }
        for _ in 0..repeats {
            for prompts in prompts.chunks(group) {
                their.push(timed(prompts, |prompt| {
                    black_box(peer.find(&prompt.locals));
                }));
            }
        }
    }
    (times(&mut our), times(&mut their))
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of a run")]
fn timed(prompts: &[Prompt], mut find: impl FnMut(&Prompt)) -> f64 {
    let start = Instant::now();
    for prompt in prompts {
        find(prompt);
    }
    start.elapsed().as_nanos() as f64 / prompts.len() as f64
}

fn times(figures: &mut [f64]) -> Times {
    Times {
        p50: quantile(figures, 0.5),
        p99: quantile(figures, 0.99),
    }
}
