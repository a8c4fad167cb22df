//! What one request costs a selection service over HTTP, in CPU of its process: reserve, prefill complete, free. Ours
//! beside a bare service that parses the same bodies, and beside the published one. The client is never counted.

mod bare;
mod bodies;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::json;
use tokio::runtime::Runtime;
use zeromq::{PubSocket, Socket};

use self::bodies::{BLOCK_SIZE, Cycle, Form, MODEL};
use crate::cpu;
use crate::http1::{self, Connection};
use crate::processes::{Folder, Process, free_ports};
use crate::stats::{Spread, median};

pub(crate) use bare::{BareArgs, run as serve_bare};

/// What a request with 64 blocks as hashes may cost beside the bare service, and as a share of the published one's.
const ABOVE_BARE_US: f64 = 12.0;
const OF_PEER_HASHES: f64 = 0.6;
/// The share with 8,000 token ids.
const OF_PEER_TOKENS: f64 = 0.2;

#[derive(Args, Debug)]
pub(crate) struct SelectArgs {
    /// The product's binary
    #[arg(long, env = "POINTSMAN_BIN")]
    pointsman: PathBuf,
    /// The binary of benches/peer, which serves the published service; left out, there is no such column
    #[arg(long)]
    peer: Option<PathBuf>,
    /// Adds a column: the product with a second one that follows its load
    #[arg(long)]
    replica_sync: bool,
    #[arg(long, default_value_t = 64)]
    workers: u64,
    /// Threads of each service
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Connections of the client, each with one request at a time
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Repetitions; each measures every service, in turn first
    #[arg(long, default_value_t = 9)]
    repetitions: usize,
    /// Requests of one service in one repetition, with hashes; a quarter of them with token ids
    #[arg(long, default_value_t = 4_000)]
    requests: usize,
    #[arg(long, default_value_t = 6)]
    seed: u64,
    /// Exit with 1 when a figure is above its limit
    #[arg(long)]
    enforce: bool,
}

/// A service that runs.
#[derive(Debug)]
struct Subject {
    name: &'static str,
    process: Process,
    address: SocketAddr,
}

/// What a batch cost the service.
#[derive(Clone, Copy, Debug)]
struct Cost {
    cpu_us: f64,
    requests_per_second: f64,
}

/// The product, told about to another, which is not measured.
struct Replicas {
    synced: Subject,
    follower: Subject,
}

/// Workers' events come from here: one publisher that never says anything.
struct Publisher {
    _socket: PubSocket,
    endpoint: String,
    _runtime: Runtime,
}

/// Returns whether all figures are within their limits, or need not be.
pub(crate) fn run(args: &SelectArgs) -> Result<bool> {
    let folder = Folder::create()?;
    let publisher = Publisher::start()?;
    let mut subjects = start(args, folder.path())?;
    let replicas = args
        .replica_sync
        .then(|| Replicas::start(args, folder.path()));
    let follower = match replicas.transpose()? {
        Some(replicas) => {
            subjects.push(replicas.synced);
            Some(replicas.follower)
        }
        None => None,
    };
    for subject in subjects.iter().chain(&follower) {
        subject.register(args.workers, &publisher.endpoint)?;
    }
    let follower = match follower {
        Some(follower) => Some(follower.following(&subjects[subjects.len() - 1])?),
        None => None,
    };
    println!(
        "CPU of the service per request (reserve, prefill complete, free), {} workers, {} connections, {} repetitions; medians [quartiles]",
        args.workers, args.connections, args.repetitions
    );
    let hashes = compare(&subjects, Form::Hashes(64), args.requests, args)?;
    let tokens = compare(
        &subjects,
        Form::Tokens(8_000),
        args.requests.div_ceil(4),
        args,
    )?;
    let mut within = limit(
        "above bare, 64 blocks as hashes, us",
        difference(&hashes),
        ABOVE_BARE_US,
    );
    if args.peer.is_some() {
        within &= limit(
            "of the published service, 64 blocks as hashes",
            ratio(&hashes),
            OF_PEER_HASHES,
        );
        within &= limit(
            "of the published service, 8,000 token ids",
            ratio(&tokens),
            OF_PEER_TOKENS,
        );
    }
    if follower.is_some() {
        for (form, costs) in [
            ("64 blocks as hashes", &hashes),
            ("8,000 token ids", &tokens),
        ] {
            let ratio = Spread::of(
                costs
                    .iter()
                    .map(|row| row[row.len() - 1].cpu_us / row[1].cpu_us)
                    .collect(),
            );
            println!("with replica sync, of without, {form}: {ratio:.2}");
        }
    }
    drop((subjects, follower));
    folder.remove()?;
    Ok(within || !args.enforce)
}

fn start(args: &SelectArgs, folder: &Path) -> Result<Vec<Subject>> {
    let ports: [u16; 3] = free_ports()?;
    let threads = args.threads.to_string();
    let mut bare = Command::new(std::env::current_exe()?);
    bare.args(["bare-select", &ports[0].to_string(), &threads]);
    let mut ours = select_service(args, ports[1]);
    let mut subjects = vec![
        Subject::start("bare", &mut bare, ports[0], folder)?,
        Subject::start("pointsman", &mut ours, ports[1], folder)?,
    ];
    if let Some(peer) = &args.peer {
        let mut published = Command::new(peer);
        published.args(["serve", &ports[2].to_string(), &threads]);
        subjects.push(Subject::start(
            "published",
            &mut published,
            ports[2],
            folder,
        )?);
    }
    Ok(subjects)
}

/// The product on this port.
fn select_service(args: &SelectArgs, port: u16) -> Command {
    let mut command = Command::new(&args.pointsman);
    command
        .args(["select-service", "--host", "127.0.0.1"])
        .args(["--port", &port.to_string()])
        .args(["--threads", &args.threads.to_string()])
        .env("POINTSMAN_LOG", "warn");
    command
}

impl Replicas {
    fn start(args: &SelectArgs, folder: &Path) -> Result<Self> {
        let [first, second, told, heard]: [u16; 4] = free_ports()?;
        let start = |name, port, own: u16, other: u16| {
            let mut command = select_service(args, port);
            command
                .args(["--replica-sync-port", &own.to_string()])
                .args(["--replica-sync-peers", &format!("tcp://127.0.0.1:{other}")]);
            Subject::start(name, &mut command, port, folder)
        };
        Ok(Self {
            synced: start("synced", first, told, heard)?,
            follower: start("follower", second, heard, told)?,
        })
    }
}

impl Publisher {
    fn start() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let (socket, endpoint) = runtime.block_on(async {
            let mut socket = PubSocket::new();
            let endpoint = socket.bind("tcp://127.0.0.1:0").await?;
            Ok::<_, anyhow::Error>((socket, endpoint.to_string()))
        })?;
        Ok(Self {
            _socket: socket,
            endpoint,
            _runtime: runtime,
        })
    }
}

impl Subject {
    fn start(name: &'static str, command: &mut Command, port: u16, folder: &Path) -> Result<Self> {
        let mut process = Process::start(name, command, folder)?;
        process.wait_for_200(port, "/health")?;
        Ok(Self {
            name,
            process,
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        })
    }

    fn register(&self, workers: u64, events: &str) -> Result<()> {
        let mut connection = Connection::open(self.address)?;
        for worker_id in 0..workers {
            let worker = json!({
                "worker_id": worker_id,
                "model_name": MODEL,
                "endpoint": format!("http://10.0.0.{}:8000", worker_id % 250 + 1),
                "block_size": BLOCK_SIZE,
                "kv_events_endpoint": events,
            });
            let status = connection.send(&http1::post("/workers", &worker.to_string()))?;
            ensure!(
                status == 201,
                "{} answered a worker with {status}",
                self.name
            );
        }
        Ok(())
    }

    /// Waits until it has heard of a reservation that was made at the other.
    fn following(mut self, other: &Self) -> Result<Self> {
        let probe = Form::Hashes(1).cycle(0, usize::MAX);
        let mut connection = Connection::open(other.address)?;
        let status = connection.send(&probe.reserve)?;
        ensure!(status == 200, "{} answered {status}", other.name);
        let address = self.address;
        let heard = || -> Option<bool> {
            let mut follower = Connection::open(address).ok()?;
            follower.send(&http1::get("/metrics")).ok()?;
            let text = String::from_utf8_lossy(follower.body());
            Some(text.contains("pointsman_replica_mirrored_reservations 1\n"))
        };
        self.process.wait(|| heard().unwrap_or(false))?;
        let status = connection.send(&probe.free)?;
        ensure!(status == 200, "{} answered {status}", other.name);
        Ok(self)
    }

    /// Sends every cycle once, over as many connections as there are shares.
    fn batch(&self, shares: &[Vec<Cycle>]) -> Result<Cost> {
        let requests: usize = shares.iter().map(Vec::len).sum();
        let before = cpu::of_process(self.process.pid())?;
        let started = Instant::now();
        thread::scope(|scope| {
            let senders: Vec<_> = shares
                .iter()
                .map(|share| scope.spawn(|| self.send(share)))
                .collect();
            senders.into_iter().try_for_each(|sender| {
                sender
                    .join()
                    .unwrap_or_else(|_| Err(anyhow::anyhow!("a sender panicked")))
            })
        })?;
        let elapsed = started.elapsed();
        let used = cpu::of_process(self.process.pid())?.saturating_sub(before);
        Ok(Cost {
            cpu_us: used.as_secs_f64() * 1e6 / requests as f64,
            requests_per_second: requests as f64 / elapsed.as_secs_f64(),
        })
    }

    fn send(&self, cycles: &[Cycle]) -> Result<()> {
        let mut connection = Connection::open(self.address)?;
        for cycle in cycles {
            for call in [&cycle.reserve, &cycle.prefill_complete, &cycle.free] {
                let status = connection.send(call).context(self.name)?;
                ensure!(
                    status == 200,
                    "{} answered {status}: {}",
                    self.name,
                    String::from_utf8_lossy(connection.body())
                );
            }
        }
        Ok(())
    }
}

/// Measures every service once a repetition, the order turning, after one batch each to warm up.
fn compare(
    subjects: &[Subject],
    form: Form,
    requests: usize,
    args: &SelectArgs,
) -> Result<Vec<Vec<Cost>>> {
    let each = requests.div_ceil(args.connections);
    let shares: Vec<Vec<Cycle>> = (0..args.connections)
        .map(|share| {
            let numbers = share * each..(share + 1) * each;
            numbers
                .map(|number| form.cycle(args.seed, number))
                .collect()
        })
        .collect();
    for subject in subjects {
        subject.batch(&shares)?;
    }
    let mut costs: Vec<Vec<Cost>> = Vec::with_capacity(args.repetitions);
    for repetition in 0..args.repetitions {
        let mut row = vec![None; subjects.len()];
        for turn in 0..subjects.len() {
            let at = (turn + repetition) % subjects.len();
            row[at] = Some(subjects[at].batch(&shares)?);
        }
        costs.push(row.into_iter().flatten().collect());
    }
    println!("\n{}", form.name());
    for (at, subject) in subjects.iter().enumerate() {
        let cpu = Spread::of(costs.iter().map(|row| row[at].cpu_us).collect());
        let rate = median(
            costs
                .iter()
                .map(|row| row[at].requests_per_second)
                .collect(),
        );
        println!(
            "  {:<12} {cpu:>22.1} us {rate:>10.0} requests/s",
            subject.name
        );
    }
    Ok(costs)
}

/// Ours less bare, within one repetition.
fn difference(costs: &[Vec<Cost>]) -> Spread {
    Spread::of(
        costs
            .iter()
            .map(|row| row[1].cpu_us - row[0].cpu_us)
            .collect(),
    )
}

/// Ours by the published one's, within one repetition.
fn ratio(costs: &[Vec<Cost>]) -> Spread {
    Spread::of(
        costs
            .iter()
            .map(|row| row[1].cpu_us / row[2].cpu_us)
            .collect(),
    )
}

fn limit(what: &str, figure: Spread, limit: f64) -> bool {
    let holds = figure.median <= limit;
    let word = if holds { "holds" } else { "MISSES" };
    println!("{what}: {figure:.2} (limit {limit}) {word}");
    holds
}
