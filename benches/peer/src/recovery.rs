//! Starts a published selector with what a Pointsman dumps, and compares what both say of prompts.
//!
//! It measures nothing. Each step waits for its condition and ends the program where that never comes.

use std::error::Error;
use std::time::{Duration, Instant};

use dynamo_kv_router::services::selection::SelectionService as Theirs;
use pointsman_core::{PartitionId, Prompt, SelectionRequest};
use pointsman_plugin::{KvRouterConfig, RouterPluginRegistry, WorkerType};
use pointsman_service::http::{Config, Server, ServerConfig, router};
use pointsman_service::{SelectionService as Ours, SelectionServiceBuilder, WorkerRegistration};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rmp::encode;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::replicas::their_builder;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const PATIENCE: Duration = Duration::from_secs(30);
const BLOCK_SIZE: u32 = 4;
const SEED: u64 = 0x5eed_0011;
/// Worker and rank.
const RANKS: [(u64, u32); 3] = [(1, 0), (1, 1), (2, 0)];
const CHAINS: u64 = 60;
/// Longer than one event of a dump.
const LONG: u32 = 2_500;

/// Leading blocks that a rank holds: on its device, then behind them in host memory, then on disk.
type Held = Vec<(u64, u32, u64, u64, u64)>;

/// Runs every step and prints it.
pub(crate) fn run() -> Outcome<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(steps())
}

async fn steps() -> Outcome<()> {
    println!("seed {SEED:#x}");
    let engines = [Engine::start()?, Engine::start()?, Engine::start()?];
    let ours = our_service(&engines).await?;
    let prompts = fill(&engines)?;
    for ((worker, rank), engine) in RANKS.iter().zip(&engines) {
        until("our service has read all events", || {
            let applied = ours.events_applied(*worker, *rank);
            applied.is_some_and(|applied| applied.last_sequence == Some(engine.last()))
        })
        .await?;
    }
    let stop = CancellationToken::new();
    let server = Server::bind(ServerConfig::new(([127, 0, 0, 1], 0).into())).await?;
    let url = format!("http://{}", server.address());
    tokio::spawn(server.serve(router(ours.clone(), Config::default()), stop.clone()));

    let theirs = their_builder().indexer_peers(vec![url]).build().await?;
    let alone = their_builder().build().await?;
    for worker in [1, 2] {
        for selector in [&theirs, &alone] {
            selector
                .upsert_worker(serde_json::from_value(registration(worker, &engines))?)
                .await?;
        }
    }
    println!("ok  the published selector has started with our dump");

    let mut sums = [0; 3];
    for prompt in &prompts {
        let here = our_answer(&ours, prompt).await?;
        for row in &here {
            sums[0] += row.2;
            sums[1] += row.3;
            sums[2] += row.4;
        }
        until_equal(&theirs, prompt, &here).await?;
    }
    if sums.contains(&0) {
        return Err(format!("some tier was never compared: {sums:?}").into());
    }
    println!(
        "ok  {} prompts, each asked of {} ranks: the same leading blocks; {} on devices, {} in host memory, {} on disk",
        prompts.len(),
        RANKS.len(),
        sums[0],
        sums[1],
        sums[2]
    );
    for prompt in &prompts {
        let held = their_answer(&alone, prompt).await?;
        if held.iter().any(|row| (row.2, row.3, row.4) != (0, 0, 0)) {
            return Err(format!("without our dump it knows of {held:?}").into());
        }
    }
    println!("ok  one that was not given it knows of no block");
    stop.cancel();
    theirs.shutdown().await;
    alone.shutdown().await;
    ours.shutdown().await;
    Ok(())
}

async fn our_service(engines: &[Engine; 3]) -> Outcome<Ours> {
    let builder = SelectionServiceBuilder::new(
        KvRouterConfig::default(),
        WorkerType::Aggregated,
        RouterPluginRegistry::default(),
    );
    let service = builder.build().await?;
    for worker in [1, 2] {
        let registration: WorkerRegistration =
            serde_json::from_value(registration(worker, engines))?;
        service.register_worker(registration)?;
    }
    for engine in engines {
        engine.subscribed()?;
    }
    Ok(service)
}

fn registration(worker: u64, engines: &[Engine; 3]) -> Value {
    let ranks = RANKS.iter().zip(engines);
    let of_worker = ranks.filter(|((of, _), _)| *of == worker);
    let endpoints: serde_json::Map<_, _> = of_worker
        .map(|((_, rank), engine)| (rank.to_string(), engine.endpoint.clone().into()))
        .collect();
    json!({
        "worker_id": worker, "model_name": "m", "endpoint": format!("http://127.0.0.1:{worker}"),
        "block_size": BLOCK_SIZE, "data_parallel_size": endpoints.len(), "kv_events_endpoints": endpoints,
    })
}

/// Lets the engines store, copy down and remove; the prompts whose blocks they were.
fn fill(engines: &[Engine; 3]) -> Outcome<Vec<Vec<u32>>> {
    let mut random = SmallRng::seed_from_u64(SEED);
    let mut prompts = Vec::new();
    for chain in 0..CHAINS {
        let blocks = if chain == 0 {
            LONG
        } else {
            random.random_range(1..12)
        };
        // Few tokens, so that chains share their beginnings.
        let prompt: Vec<u32> = (0..blocks * BLOCK_SIZE)
            .map(|at| {
                if at < 8 {
                    at
                } else {
                    random.random_range(0..3)
                }
            })
            .collect();
        for engine in engines {
            if random.random_bool(0.3) && chain > 0 {
                continue;
            }
            let names = names_of(&prompt);
            let on_device = random.random_range(1..=names.len());
            engine.store(&names, &prompt, 0..on_device, "GPU")?;
            let in_host = random.random_range(on_device..=names.len());
            engine.store(&names, &prompt, on_device..in_host, "CPU")?;
            engine.store(&names, &prompt, in_host..names.len(), "DISK")?;
            if random.random_bool(0.3) {
                engine.remove(names[random.random_range(0..on_device)])?;
            }
        }
        prompts.push(prompt);
    }
    for engine in engines {
        // Removals of unknown blocks change nothing; they end the stream with a known number.
        engine.remove(1)?;
    }
    prompts.push((100..140).collect());
    Ok(prompts)
}

async fn our_answer(ours: &Ours, prompt: &[u32]) -> Outcome<Held> {
    let request = SelectionRequest {
        prompt: Prompt::Tokens {
            ids: prompt.to_vec(),
            media: Vec::new(),
        },
        ..SelectionRequest::default()
    };
    let scores = ours
        .overlap_scores(&PartitionId::new("m", "default"), request)
        .await?;
    let rows = scores.overlap.ranks.iter().map(|rank| {
        (
            rank.worker.worker_id,
            rank.worker.dp_rank,
            rank.device_blocks,
            rank.host_blocks,
            rank.disk_blocks,
        )
    });
    Ok(rows.collect())
}

async fn their_answer(theirs: &Theirs, prompt: &[u32]) -> Outcome<Held> {
    let request = serde_json::from_value(json!({"model_name": "m", "token_ids": prompt}))?;
    let scores = serde_json::to_value(theirs.overlap_scores(request).await?)?;
    let number =
        |row: &Value, field: &str| row[field].as_u64().ok_or(format!("no {field} in {row}"));
    let rows = scores["workers"].as_array().ok_or("no workers")?;
    let rows = rows.iter().map(|row| {
        Ok::<_, Box<dyn Error + Send + Sync>>((
            number(row, "worker_id")?,
            u32::try_from(number(row, "dp_rank")?)?,
            number(row, "device_blocks")?,
            number(row, "host_pinned_extension_blocks")?,
            number(row, "disk_extension_blocks")?,
        ))
    });
    let mut rows = rows.collect::<Result<Held, _>>()?;
    rows.sort_unstable();
    Ok(rows)
}

/// They take recovered events in after they have started.
async fn until_equal(theirs: &Theirs, prompt: &[u32], here: &Held) -> Outcome<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let there = their_answer(theirs, prompt).await?;
        if there == *here {
            return Ok(());
        }
        if Instant::now() > until {
            let blocks = prompt.len() / BLOCK_SIZE as usize;
            return Err(format!("of {blocks} blocks: there {there:?}, here {here:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) -> Outcome<()> {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        if Instant::now() > until {
            return Err(format!("waited in vain: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    println!("ok  {what}");
    Ok(())
}

/// Publishes what one rank does.
struct Engine {
    socket: zmq::Socket,
    endpoint: String,
    next: std::cell::Cell<u64>,
}

impl Engine {
    fn start() -> Outcome<Self> {
        let socket = zmq::Context::new().socket(zmq::XPUB)?;
        socket.set_rcvtimeo(i32::try_from(PATIENCE.as_millis())?)?;
        socket.set_sndhwm(0)?;
        socket.bind("tcp://127.0.0.1:*")?;
        let endpoint = socket
            .get_last_endpoint()?
            .map_err(|_| "an endpoint that is no text")?;
        Ok(Self {
            socket,
            endpoint,
            next: std::cell::Cell::new(0),
        })
    }

    fn subscribed(&self) -> Outcome<()> {
        self.socket.recv_bytes(0)?;
        Ok(())
    }

    /// The number of the last batch.
    fn last(&self) -> u64 {
        self.next.get() - 1
    }

    fn store(
        &self,
        names: &[u64],
        prompt: &[u32],
        blocks: std::ops::Range<usize>,
        medium: &str,
    ) -> Outcome<()> {
        if blocks.is_empty() {
            return Ok(());
        }
        let size = BLOCK_SIZE as usize;
        let tokens = &prompt[blocks.start * size..blocks.end * size];
        let mut out = Vec::new();
        encode::write_array_len(&mut out, 7)?;
        encode::write_str(&mut out, "BlockStored")?;
        write_all(&mut out, &names[blocks.clone()])?;
        match blocks.start.checked_sub(1) {
            Some(before) => drop(encode::write_uint(&mut out, names[before])?),
            None => encode::write_nil(&mut out)?,
        }
        let tokens: Vec<_> = tokens.iter().copied().map(u64::from).collect();
        write_all(&mut out, &tokens)?;
        encode::write_uint(&mut out, u64::from(BLOCK_SIZE))?;
        encode::write_nil(&mut out)?;
        encode::write_str(&mut out, medium)?;
        self.publish(&out)
    }

    fn remove(&self, name: u64) -> Outcome<()> {
        let mut out = Vec::new();
        encode::write_array_len(&mut out, 3)?;
        encode::write_str(&mut out, "BlockRemoved")?;
        write_all(&mut out, &[name])?;
        encode::write_str(&mut out, "GPU")?;
        self.publish(&out)
    }

    fn publish(&self, event: &[u8]) -> Outcome<()> {
        let mut batch = Vec::new();
        encode::write_array_len(&mut batch, 3)?;
        encode::write_f64(&mut batch, 0.0)?;
        encode::write_array_len(&mut batch, 1)?;
        batch.extend_from_slice(event);
        encode::write_nil(&mut batch)?;
        let number = self.next.replace(self.next.get() + 1);
        let frames = [b"kv".as_slice(), &number.to_be_bytes(), &batch];
        self.socket.send_multipart(frames, 0)?;
        Ok(())
    }
}

fn write_all(out: &mut Vec<u8>, numbers: &[u64]) -> Outcome<()> {
    encode::write_array_len(out, u32::try_from(numbers.len())?)?;
    for number in numbers {
        encode::write_uint(out, *number)?;
    }
    Ok(())
}

/// A name for each block, which says what is before it, as engines make them.
fn names_of(prompt: &[u32]) -> Vec<u64> {
    let mut name = 0xcbf2_9ce4_8422_2325_u64;
    let blocks = prompt.chunks_exact(BLOCK_SIZE as usize);
    blocks
        .map(|block| {
            for token in block {
                name = (name ^ u64::from(*token)).wrapping_mul(0x0100_0000_01b3);
            }
            name | 1 << 63
        })
        .collect()
}
