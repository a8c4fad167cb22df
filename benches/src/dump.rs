//! How long events wait while a rank's blocks are told to another replica: how long a dump keeps the index to
//! itself when it starts, for its longest part, and were it told at once. It writes no dump.

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use pointsman_core::hash::{BlockHash, EngineHash};
use pointsman_core::index::{KvEvent, KvIndex, RankDump, StoredBlock, Tier};
use pointsman_plugin::WorkerWithDpRank;

use crate::stats::Spread;

/// As the service takes them.
const PART_BLOCKS: usize = 4096;
const LIMITED_BLOCKS: u64 = 100_000;
const LIMIT_MS: f64 = 2.0;
const DUMPED: WorkerWithDpRank = WorkerWithDpRank {
    worker_id: 1,
    dp_rank: 0,
};
const OTHER: WorkerWithDpRank = WorkerWithDpRank {
    worker_id: 2,
    dp_rank: 0,
};

#[derive(Args, Debug)]
pub(crate) struct DumpArgs {
    #[arg(long, default_values_t = [100_000, 1_000_000])]
    blocks: Vec<u64>,
    #[arg(long, default_value_t = 15)]
    repetitions: usize,
    /// Exit with 1 when a figure of 100,000 blocks is above its limit
    #[arg(long)]
    enforce: bool,
}

/// What the rank holds.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Conversations of so many blocks.
    Chains(u64),
    /// The same, known to another rank before under other names.
    Aliases(u64),
    /// The same, each block twice.
    Copies(u64),
}

/// Returns whether all figures are within their limits, or need not be.
pub(crate) fn run(args: &DumpArgs) -> Result<bool> {
    println!(
        "time that a dump keeps the index, ms, medians [quartiles] of {}: the start, the longest part of {PART_BLOCKS} blocks after it, and all blocks as one part",
        args.repetitions
    );
    let mut within = true;
    for blocks in &args.blocks {
        for shape in [
            Shape::Chains(512),
            Shape::Chains(8),
            Shape::Chains(1),
            Shape::Aliases(512),
            Shape::Copies(512),
        ] {
            let index = filled(*blocks, shape);
            let told = |part_blocks| holds(&index, *blocks, part_blocks, args.repetitions);
            let (start, longest) = told(PART_BLOCKS)?;
            let (_, at_once) = told(usize::MAX)?;
            println!("  {blocks:>9} blocks, {shape:?}: {start:.2}, {longest:.2}, {at_once:.2}");
            within &= *blocks > LIMITED_BLOCKS || start.median.max(longest.median) <= LIMIT_MS;
        }
    }
    println!("limit of start and part, {LIMITED_BLOCKS} blocks: {LIMIT_MS} ms");
    Ok(within || !args.enforce)
}

/// How long the first step of a dump in such parts keeps the index, and the step after it that is longest in the median.
fn holds(
    index: &KvIndex,
    blocks: u64,
    part_blocks: usize,
    repetitions: usize,
) -> Result<(Spread, Spread)> {
    // All repetitions take the same steps.
    let mut steps: Vec<Vec<f64>> = Vec::new();
    for _ in 0..repetitions {
        for (step, hold) in tell(index, blocks, part_blocks)?.into_iter().enumerate() {
            match steps.get_mut(step) {
                Some(holds) => holds.push(hold),
                None => steps.push(vec![hold]),
            }
        }
    }
    let mut spreads = steps.into_iter().map(Spread::of);
    let start = spreads.next().context("no repetition")?;
    let longest = spreads.max_by(|one, other| one.median.total_cmp(&other.median));
    Ok((start, longest.context("one step alone")?))
}

/// Tells the rank in parts of so many blocks; how long each step kept the index, in ms.
fn tell(index: &KvIndex, blocks: u64, part_blocks: usize) -> Result<Vec<f64>> {
    let (mut holds, mut told) = (Vec::new(), 0_u64);
    let mut dump = RankDump::new(DUMPED, &Tier::ALL);
    while !dump.is_done() {
        // Events are taken in meanwhile.
        dump.arrange();
        let mut copy = Vec::new();
        let started = Instant::now();
        index.dump_part(&mut dump, part_blocks, |run| {
            copy.extend_from_slice(run.blocks);
        });
        holds.push(started.elapsed().as_secs_f64() * 1e3);
        told += black_box(copy).len() as u64;
    }
    ensure!(told == blocks, "{told} of {blocks} blocks were told");
    Ok(holds)
}

fn filled(blocks: u64, shape: Shape) -> KvIndex {
    let mut index = KvIndex::default();
    index.add_rank(OTHER);
    index.add_rank(DUMPED);
    let (Shape::Chains(length) | Shape::Aliases(length) | Shape::Copies(length)) = shape;
    let mut from = 0;
    while from < blocks {
        let chain = from..(from + length).min(blocks);
        match shape {
            Shape::Chains(_) => {}
            Shape::Aliases(_) => store(&mut index, OTHER, chain.clone(), 1 << 40),
            Shape::Copies(_) => store(&mut index, DUMPED, chain.clone(), 1),
        }
        store(&mut index, DUMPED, chain, 1);
        from += length;
    }
    index
}

fn store(index: &mut KvIndex, worker: WorkerWithDpRank, chain: Range<u64>, first_name: u64) {
    let blocks = chain.map(|block| StoredBlock {
        engine_hash: EngineHash(first_name + block),
        // Spread, as hashes are.
        block_hash: BlockHash((block + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
    });
    let event = KvEvent::Stored {
        parent: None,
        blocks: blocks.collect(),
    };
    index.apply(worker, &event);
}
