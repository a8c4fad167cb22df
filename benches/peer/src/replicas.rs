//! Puts a published selector and a Pointsman beside each other, each following the other, and compares what they charge; it
//! also records what the published one sends.
//!
//! It measures nothing. Each step waits for its condition and ends the program where that never comes.

use std::error::Error;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dynamo_kv_router::config::KvRouterConfig as TheirConfig;
use dynamo_kv_router::plugins::RouterPluginRegistry as TheirRegistry;
use dynamo_kv_router::plugins::worker_selection::{
    WorkerInputView, WorkerPicker, WorkerSelectionContext, WorkerSelectionPolicy,
    WorkerSelectionPolicyError,
};
use dynamo_kv_router::services::selection::{
    SelectionService as Theirs, SelectionServiceBuilder as TheirBuilder,
};
use dynamo_kv_router::worker_type::WorkerType as TheirWorkerType;
use pointsman_core::hash::SequenceHash;
use pointsman_core::{PartitionId, Prompt, SelectionRequest};
use pointsman_plugin::{KvRouterConfig, RouterPluginRegistry, WorkerType, WorkerWithDpRank};
use pointsman_service::{
    ExplicitReservation, SelectionService as Ours, SelectionServiceBuilder, WorkerRegistration,
};
use serde_json::{Value, json};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const PATIENCE: Duration = Duration::from_secs(30);
/// Longer than a published publisher keeps a connection that answers no pings.
const IDLE: Duration = Duration::from_secs(25);

/// What the published crate wants in order to start: every booking here names its worker.
struct First;

impl WorkerPicker for First {
    fn pick(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        _: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        Ok(0)
    }
}

/// Charge of one rank: prefill tokens, blocks, requests.
type Charged = Vec<(u64, u32, u64, u64, u64)>;

/// Runs every step and prints it.
pub(crate) fn run() -> Outcome<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(steps())
}

async fn steps() -> Outcome<()> {
    let port = free_port()?;
    let theirs = their_service(port).await?;
    let ours = our_service(port).await?;
    let our_port = ours.replica_sync_address().ok_or("no address")?.port();
    theirs
        .register_replica_peer(format!("tcp://127.0.0.1:{our_port}"))
        .await?;
    let tape = Tape::start(port);
    connect(&theirs, &ours).await?;
    println!("ok  each hears the other");

    ours.reserve_explicit(&partition(), wanted("ours"))?;
    until_equal(&theirs, &ours, 1, "what we reserve is charged there").await?;
    ours.prefill_complete("ours")?;
    until_equal(&theirs, &ours, 1, "our prefill's end is taken there").await?;
    if book(&theirs, "ours").await.is_ok() {
        return Err("an id that we hold was booked there".into());
    }
    println!("ok  our id booked there: refused");

    book(&theirs, "theirs").await?;
    until_equal(&theirs, &ours, 2, "what they reserve is charged here").await?;
    theirs.prefill_complete("theirs").await?;
    until_equal(&theirs, &ours, 2, "their prefill's end is taken here").await?;
    let twice = ours.reserve_explicit(&partition(), wanted("theirs"));
    if twice.is_ok() {
        return Err("an id that they hold was booked here".into());
    }
    println!("ok  their id booked here: refused");

    ours.free("theirs")?;
    until_equal(&theirs, &ours, 1, "we free theirs").await?;
    theirs.free_reservation("ours").await?;
    until_equal(&theirs, &ours, 0, "they free ours").await?;
    if ours.free("ours").is_ok() {
        return Err("what they freed was freed again here".into());
    }

    tokio::time::sleep(IDLE).await;
    book(&theirs, "later").await?;
    until_equal(&theirs, &ours, 1, "after an idle time they are still heard").await?;
    theirs.free_reservation("later").await?;
    until_equal(&theirs, &ours, 0, "and freed").await?;

    println!("recorded of the published publisher:\n{}", tape.stop()?);
    theirs.shutdown().await;
    ours.shutdown().await;
    Ok(())
}

/// A published selector that needs no policy of its own.
pub(crate) fn their_builder() -> TheirBuilder {
    TheirBuilder::new(
        TheirConfig::default(),
        TheirWorkerType::Aggregated,
        TheirRegistry::default().with_default_factory(Arc::new(|config, _, _| {
            WorkerSelectionPolicy::new(config.clone(), "first", Vec::new(), Box::new(First))
        })),
    )
}

async fn their_service(port: u16) -> Outcome<Theirs> {
    let builder = their_builder().replica_sync(port, Vec::new());
    let service = builder.build().await?;
    for worker_id in [1_u64, 2] {
        let worker = serde_json::from_value(json!({
            "worker_id": worker_id, "model_name": "m", "endpoint": format!("http://127.0.0.1:{worker_id}"),
            "block_size": 16, "data_parallel_size": 2,
            "kv_events_endpoints": {"0": "tcp://127.0.0.1:1", "1": "tcp://127.0.0.1:2"},
        }))?;
        service.upsert_worker(worker).await?;
    }
    Ok(service)
}

async fn our_service(peer_port: u16) -> Outcome<Ours> {
    let builder = SelectionServiceBuilder::new(
        KvRouterConfig::default(),
        WorkerType::Aggregated,
        RouterPluginRegistry::default(),
    );
    let peer = format!("tcp://127.0.0.1:{peer_port}");
    let service = builder.replica_sync(0, vec![peer]).build().await?;
    for worker_id in [1, 2] {
        service.register_worker(WorkerRegistration {
            model_name: "m".to_owned(),
            endpoint: Some(format!("http://127.0.0.1:{worker_id}")),
            block_size: Some(16),
            data_parallel_size: Some(2),
            ..WorkerRegistration::new(worker_id)
        })?;
    }
    Ok(service)
}

/// Books at both until each has heard the other.
async fn connect(theirs: &Theirs, ours: &Ours) -> Outcome<()> {
    let until = Instant::now() + PATIENCE;
    let mut at = 0;
    let mut heard = (false, false);
    while heard != (true, true) {
        if Instant::now() > until {
            return Err(format!("not connected: heard there, here: {heard:?}").into());
        }
        at += 1;
        let (here, there) = (format!("here{at}"), format!("there{at}"));
        ours.reserve_explicit(&partition(), wanted(&here))?;
        book(theirs, &there).await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
        heard = (
            requests(&their_loads(theirs)?) == 2,
            requests(&our_loads(ours)) == 2,
        );
        ours.free(&here)?;
        theirs.free_reservation(&there).await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

async fn book(theirs: &Theirs, id: &str) -> Outcome<()> {
    let request = serde_json::from_value(json!({
        "selection_id": id, "model_name": "m", "worker_id": 2, "dp_rank": 1,
        "block_hashes": [1, 2, 3, 4], "sequence_hashes": [11, -12, 13, 14], "isl_tokens": 64,
        "effective_prefill_tokens": 40, "expected_output_tokens": 9,
    }))?;
    theirs.create_reservation(request).await?;
    Ok(())
}

fn wanted(id: &str) -> ExplicitReservation {
    ExplicitReservation {
        id: id.to_owned(),
        worker: WorkerWithDpRank::new(1, 0),
        request: SelectionRequest {
            prompt: Prompt::Hashes {
                block_hashes: Vec::new(),
                sequence_hashes: [21, u64::MAX, 23].map(SequenceHash).to_vec(),
                isl_tokens: 48,
            },
            ..SelectionRequest::default()
        },
        effective_prefill_tokens: Some(30),
    }
}

fn partition() -> PartitionId {
    PartitionId::new("m", "default")
}

async fn until_equal(theirs: &Theirs, ours: &Ours, count: u64, step: &str) -> Outcome<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let (there, here) = (their_loads(theirs)?, our_loads(ours));
        if there == here && requests(&here) == count {
            println!("ok  {step}");
            return Ok(());
        }
        if Instant::now() > until {
            return Err(format!("{step}: there {there:?}, here {here:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn requests(loads: &Charged) -> u64 {
    loads.iter().map(|row| row.4).sum()
}

fn our_loads(ours: &Ours) -> Charged {
    let loads = ours.loads();
    let ranks = loads.iter().flat_map(|partition| &partition.loads);
    let rows = ranks.map(|rank| {
        (
            rank.worker.worker_id,
            rank.worker.dp_rank,
            rank.active_prefill_tokens,
            rank.decode_blocks,
            rank.active_requests,
        )
    });
    rows.collect()
}

fn their_loads(theirs: &Theirs) -> Outcome<Charged> {
    let loads = serde_json::to_value(theirs.loads(Some("m"), None))?;
    let ranks = loads[0]["loads"].as_array().ok_or("no loads")?;
    let number = |row: &Value, field: &str| row[field].as_u64().ok_or("no number");
    let rows = ranks.iter().map(|row| {
        Ok::<_, Box<dyn Error + Send + Sync>>((
            number(row, "worker_id")?,
            u32::try_from(number(row, "dp_rank")?)?,
            number(row, "potential_prefill_tokens")?,
            number(row, "potential_decode_blocks")?,
            number(row, "active_requests")?,
        ))
    });
    let mut rows = rows.collect::<Result<Charged, _>>()?;
    rows.sort_unstable();
    Ok(rows)
}

fn free_port() -> Outcome<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Listens to a publisher and keeps what it said.
struct Tape {
    stop: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<Outcome<String>>,
}

impl Tape {
    fn start(port: u16) -> Self {
        let (stop, stopped) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let context = zmq::Context::new();
            let socket = context.socket(zmq::SUB)?;
            socket.set_subscribe(b"")?;
            socket.set_rcvtimeo(100)?;
            socket.connect(&format!("tcp://127.0.0.1:{port}"))?;
            let mut text = String::new();
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                let Ok(frames) = socket.recv_multipart(0) else {
                    continue;
                };
                let [topic, payload] = &frames[..] else {
                    continue;
                };
                write!(text, "{} ", String::from_utf8_lossy(topic))?;
                for byte in payload {
                    write!(text, "{byte:02x}")?;
                }
                text.push('\n');
            }
            Ok(text)
        });
        Self { stop, thread }
    }

    fn stop(self) -> Outcome<String> {
        drop(self.stop);
        self.thread.join().map_err(|_| "the recording panicked")?
    }
}
