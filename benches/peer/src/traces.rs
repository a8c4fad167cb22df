//! Replays request traces against both indexes: each request is looked up, sent to the worker that holds most of it, and stored there.
//! Answers are compared at every request. A trace is JSON lines with `hash_ids`, one id per block, as published with Mooncake.

use std::fs;
use std::path::Path;
use std::time::Instant;

use dynamo_kv_router::protocols::{LocalBlockHash, WorkerWithDpRank as PeerRank};
use pointsman_core::hash::{BlockHash, SequenceHash, chain_all};
use pointsman_core::index::Overlaps;
use pointsman_plugin::WorkerWithDpRank;
use serde_json::Value;

use crate::index::{Ours, Peer, Published};
use crate::inputs::Event;
use crate::report::{quantile, verdict};

/// From here, where the project is checked out beside its shared data.
const FOLDER: &str = "../../../shared/data/traces";
/// Blocks of the trace are of 512 tokens; each counts as so many of ours.
const BLOCKS_PER_ID: u64 = 32;

pub(crate) fn run(folder: Option<&String>, workers: &[usize]) {
    let folder = Path::new(folder.map_or(FOLDER, String::as_str));
    let Ok(files) = fs::read_dir(folder) else {
        println!("no traces in {}: nothing to replay", folder.display());
        return;
    };
    println!("lookups over a trace, ns: ours / peer");
    for file in files.flatten() {
        let path = file.path();
        if path.extension().is_some_and(|ending| ending == "jsonl") {
            for workers in workers {
                replay(&path, *workers);
            }
        }
    }
}

fn replay(path: &Path, workers: usize) {
    let text = fs::read_to_string(path).expect("a readable trace");
    let (mut ours, mut peer) = (Ours::new(workers), Peer::new());
    let mut overlaps = Overlaps::default();
    let (mut our, mut their, mut hits, mut asked) = (Vec::new(), Vec::new(), 0_u64, 0_u64);
    for (number, line) in text.lines().enumerate() {
        let blocks = blocks(line);
        if blocks.is_empty() {
            continue;
        }
        let hashes: Vec<_> = blocks.iter().copied().map(BlockHash).collect();
        let chain = chain_all(&hashes);
        let locals: Vec<_> = blocks.iter().copied().map(LocalBlockHash).collect();
        let start = Instant::now();
        ours.find(&chain, &mut overlaps);
        let between = Instant::now();
        let scores = peer.find(&locals).scores;
        let done = Instant::now();
        our.push((between - start).as_secs_f64() * 1e9);
        their.push((done - between).as_secs_f64() * 1e9);
        let held = |worker: usize| {
            let rank = WorkerWithDpRank::from_worker_id(worker as u64);
            let slot = ours.index.slot(rank).expect("registered");
            let held = overlaps.blocks(slot);
            let peers = scores.get(&PeerRank::new(worker as u64, 0)).copied();
            assert_eq!(
                held,
                peers.unwrap_or(0),
                "request {number}, worker {worker}"
            );
            held
        };
        // Of equals, the one whose turn it is.
        let turn = |at: usize| (at + number) % workers;
        let best = (0..workers).map(|at| (held(turn(at)), turn(at)));
        let (held, worker) = best.max_by_key(|(held, _)| *held).expect("workers");
        hits += u64::from(held);
        asked += blocks.len() as u64;
        let events = stores(worker, &blocks, &chain, held as usize);
        ours.apply(Ours::events(&events));
        peer.apply(Peer::events(&events));
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    for (what, share) in [("p50", 0.5), ("p99", 0.99)] {
        let lookups = our.len();
        let (our, their) = (quantile(&mut our, share), quantile(&mut their, share));
        println!(
            "{name}, {workers:>4} workers, {lookups} lookups, {:.0} % of blocks found, {what}: {our:>7.0} / {their:>7.0}  {}",
            hits as f64 * 100.0 / asked as f64,
            verdict(our / their, 1.0)
        );
    }
}

/// The block hashes of one request.
fn blocks(line: &str) -> Vec<u64> {
    let request: Value = serde_json::from_str(line).expect("a line of JSON");
    let ids = request["hash_ids"].as_array().into_iter().flatten();
    let hash = |block: u64| {
        (block + 1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(31)
    };
    ids.filter_map(Value::as_u64)
        .flat_map(|id| (0..BLOCKS_PER_ID).map(move |part| hash(id * BLOCKS_PER_ID + part)))
        .collect()
}

fn stores(worker: usize, blocks: &[u64], chain: &[SequenceHash], held: usize) -> Vec<Event> {
    let name = |at: usize| chain[at].0.rotate_left(9);
    if held == blocks.len() {
        return Vec::new();
    }
    vec![Event {
        worker,
        parent: held.checked_sub(1).map(name),
        blocks: (held..blocks.len())
            .map(|at| (name(at), blocks[at]))
            .collect(),
        removed: Vec::new(),
    }]
}
