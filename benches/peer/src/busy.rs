//! Times lookups in a partition while blocks pour in on the other core, beside the same lookups in quiet.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pointsman_core::hash::{BlockHash, SequenceHash};
use pointsman_core::{
    Partition, PartitionConfig, PartitionId, Prompt, SelectionRequest, WorkerEntry,
};
use pointsman_plugin::default_policy::default_factory;
use pointsman_plugin::{KvRouterConfig, WorkerType};

use crate::index::Ours;
use crate::inputs::{EVENT_BLOCKS, Inputs, Kind, Shape};
use crate::report::{quantile, verdict};

const BLOCKS_PER_SECOND: f64 = 1e6;
/// Lookups a second: enough to meet the writer, too few to fill a core.
const PAUSE: Duration = Duration::from_micros(50);
const TURN: Duration = Duration::from_secs(2);
const TURNS: usize = 5;

pub(crate) fn run(workers: &[usize]) {
    println!("lookups while a million blocks a second are stored and removed, us: quiet / busy");
    for workers in workers {
        row(*workers);
    }
}

fn row(workers: usize) {
    let shape = Shape {
        workers,
        blocks: 512,
        system_owners: usize::MAX,
        tail_owners: 1,
        tail_entries: 600_000,
        same_names: true,
    };
    let inputs = Inputs::new(shape);
    let config = PartitionConfig::new(
        KvRouterConfig::default(),
        WorkerType::Aggregated,
        default_factory(),
        NonZeroU32::new(16).expect("a size"),
    );
    let partition = Partition::new(PartitionId::new("m", "default"), config);
    let entry = |worker_id| WorkerEntry {
        worker_id,
        rank_count: 1,
        ..WorkerEntry::default()
    };
    partition.set_workers((0..workers as u64).map(entry).collect());
    let stores = Ours::events(&inputs.stores(EVENT_BLOCKS));
    let tails = Ours::events(&inputs.tail_stores(EVENT_BLOCKS));
    let removals = Ours::events(&inputs.removals(EVENT_BLOCKS));
    for (worker, event) in &stores {
        partition.apply_event(*worker, event);
    }
    let requests: Vec<_> = inputs.prompts(Kind::Hit, 256).iter().map(request).collect();
    let (mut quiet, mut busy) = (Vec::new(), Vec::new());
    let moved = AtomicU64::new(0);
    let mut busy_time = Duration::ZERO;
    for _ in 0..TURNS {
        look_up(&partition, &requests, &mut quiet);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let start = Instant::now();
                let mut blocks = 0;
                for (worker, event) in removals.iter().chain(&tails).cycle() {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let due = Duration::from_secs_f64(blocks as f64 / BLOCKS_PER_SECOND);
                    // Behind its time it sends at once; ahead by little it waits awake.
                    while start.elapsed() < due {
                        std::hint::spin_loop();
                    }
                    partition.apply_event(*worker, event);
                    blocks += EVENT_BLOCKS;
                }
                moved.fetch_add(blocks as u64, Ordering::Relaxed);
            });
            let start = Instant::now();
            look_up(&partition, &requests, &mut busy);
            busy_time += start.elapsed();
            stop.store(true, Ordering::Relaxed);
        });
        // Wherever the turn stopped, each tail is there once again.
        for (worker, event) in &removals {
            partition.apply_event(*worker, event);
        }
        for (worker, event) in &tails {
            partition.apply_event(*worker, event);
        }
    }
    let rate = moved.load(Ordering::Relaxed) as f64 / busy_time.as_secs_f64() / 1e6;
    for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
        let (quiet, busy) = (quantile(&mut quiet, share), quantile(&mut busy, share));
        println!(
            "{workers:>5} workers, {name}, {rate:.2} million blocks/s: {quiet:>7.2} / {busy:>7.2}  {}",
            verdict(busy / quiet, 2.0)
        );
    }
}

/// Looks prompts up at an even pace; microseconds of each.
fn look_up(partition: &Partition, requests: &[SelectionRequest], figures: &mut Vec<f64>) {
    let start = Instant::now();
    let mut next = start;
    for request in requests.iter().cycle() {
        if start.elapsed() > TURN {
            return;
        }
        while Instant::now() < next {
            std::hint::spin_loop();
        }
        next += PAUSE;
        let started = Instant::now();
        std::hint::black_box(partition.overlaps(request).expect("a prompt"));
        figures.push(started.elapsed().as_secs_f64() * 1e6);
    }
}

fn request((blocks, sequences): &(Vec<u64>, Vec<u64>)) -> SelectionRequest {
    SelectionRequest {
        prompt: Prompt::Hashes {
            block_hashes: blocks.iter().copied().map(BlockHash).collect(),
            sequence_hashes: sequences.iter().copied().map(SequenceHash).collect(),
            isl_tokens: blocks.len() as u64 * 16,
        },
        ..SelectionRequest::default()
    }
}
