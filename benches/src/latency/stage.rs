//! Sets the stage of the latency bench: ten workers, the pickers, and Envoy in front of them.
//! It never measures; and nothing that it starts outlives it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::LatencyArgs;
use super::envoy::{self, Way};
use crate::fleet::{MockFleet, Sent, WORKERS};
use crate::http1::{self, Connection};
use crate::processes::{Folder, Process, free_ports};
use crate::prompts::Prompts;

const EVENTS_DEADLINE: Duration = Duration::from_mins(1);

/// All processes of the bench.
#[derive(Debug)]
pub(super) struct Stage {
    /// Where Envoy listens, of each way.
    pub(super) ports: [u16; 3],
    pub(super) envoy: Process,
    /// Of each way; Envoy alone has none.
    pub(super) pickers: [Option<Process>; 3],
    pub(super) folder: Folder,
    _upstream: Process,
    _fleet: MockFleet,
}

/// Where Pointsman listens.
#[derive(Clone, Copy, Debug)]
struct Ports {
    ext_proc: u16,
    health: u16,
    admin: u16,
}

impl Stage {
    pub(super) fn set(args: &LatencyArgs, prompts: &Prompts) -> Result<Self> {
        let folder = Folder::create()?;
        let [
            alone,
            past_trivial,
            past_ours,
            admin,
            upstream_admin,
            worker,
            trivial_port,
            ext_proc,
            health,
            pointsman_admin,
        ] = free_ports()?;
        let ours = Ports {
            ext_proc,
            health,
            admin: pointsman_admin,
        };
        let workers = worker_addresses(worker);
        let ways = [
            (alone, None),
            (past_trivial, Some(trivial_port)),
            (past_ours, Some(ext_proc)),
        ];
        let ways = ways.map(|(port, picker_port)| Way { port, picker_port });

        println!("starting ten workers, the trivial picker, Pointsman and Envoy");
        let upstream = envoy::upstream(upstream_admin, &workers);
        let upstream = start_envoy(args, &folder, "workers", upstream_admin, &upstream)?;
        let trivial = start_trivial(&folder, trivial_port, &workers)?;
        let fleet = MockFleet::start(&args.tokenizer_dir)?;
        let pointsman = start_pointsman(args, &folder, ours, &fleet.registrations(Some(&workers)))?;
        let front = envoy::front(admin, &ways, &workers);
        let envoy = start_envoy(args, &folder, "envoy", admin, &front)?;

        println!("filling the KV index from the events of mock workers");
        fleet.fill(prompts)?;
        wait_for_events(ours.admin, &fleet.sent())?;
        Ok(Self {
            ports: ways.map(|way| way.port),
            envoy,
            pickers: [None, Some(trivial), Some(pointsman)],
            folder,
            _upstream: upstream,
            _fleet: fleet,
        })
    }
}

/// Addresses of their own on one port, as pods have them.
fn worker_addresses(port: u16) -> Vec<SocketAddr> {
    let last_bytes = 1..=u8::try_from(WORKERS).expect("ten workers fit into a byte");
    last_bytes
        .map(|byte| SocketAddr::from((Ipv4Addr::new(127, 0, 1, byte), port)))
        .collect()
}

fn start_envoy(
    args: &LatencyArgs,
    folder: &Folder,
    name: &'static str,
    admin_port: u16,
    configuration: &Value,
) -> Result<Process> {
    let path = folder.write(&format!("{name}.json"), &configuration.to_string())?;
    let mut command = Command::new(&args.envoy);
    command
        .args([
            "--concurrency",
            "1",
            "--disable-hot-restart",
            "--log-level",
            "warn",
            "-c",
        ])
        .arg(path);
    let mut envoy = Process::start(name, &mut command, folder.path())?;
    envoy.wait_for_200(admin_port, "/ready")?;
    Ok(envoy)
}

fn start_trivial(folder: &Folder, port: u16, workers: &[SocketAddr]) -> Result<Process> {
    let mut command =
        Command::new(std::env::current_exe().context("finding this program's own binary")?);
    command
        .arg("trivial-picker")
        .args(["--port", &port.to_string()]);
    for worker in workers {
        command.args(["--worker", &worker.to_string()]);
    }
    let mut trivial = Process::start("trivial", &mut command, folder.path())?;
    trivial.wait_for_port(port)?;
    Ok(trivial)
}

fn start_pointsman(
    args: &LatencyArgs,
    folder: &Folder,
    ports: Ports,
    registrations: &[Value],
) -> Result<Process> {
    // JSON is YAML.
    let workers_file = folder.write(
        "workers.yaml",
        &json!({"workers": registrations}).to_string(),
    )?;
    let mut command = Command::new(&args.pointsman);
    // Only these: a variable of the caller's must not change what is measured.
    command
        .env_clear()
        .env("DYN_SECURE_SERVING", "false")
        .env("POINTSMAN_HOST", "127.0.0.1")
        .env("POINTSMAN_EXT_PROC_PORT", ports.ext_proc.to_string())
        .env("POINTSMAN_HEALTH_PORT", ports.health.to_string())
        .env("DYN_EPP_METRICS_PORT", ports.admin.to_string())
        .env("POINTSMAN_WORKERS_FILE", workers_file)
        .env("POINTSMAN_TOKENIZER_DIR", absolute(&args.tokenizer_dir)?);
    if let Some(threads) = args.threads {
        command.env("POINTSMAN_THREADS", threads.to_string());
    }
    let mut pointsman = Process::start("pointsman", &mut command, folder.path())?;
    pointsman.wait_for_200(ports.admin, "/ready")?;
    Ok(pointsman)
}

/// Waits until Pointsman has applied every event that was sent.
fn wait_for_events(admin_port: u16, sent: &[Sent]) -> Result<()> {
    let mut connection = Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, admin_port)))?;
    let started = Instant::now();
    loop {
        let status = connection.send(&http1::get("/events/applied"))?;
        ensure!(
            status == 200,
            "Pointsman answered {status} when asked for its events"
        );
        let ranks: Vec<Value> =
            serde_json::from_slice(connection.body()).context("reading how far events are")?;
        let is_applied = |sent: &Sent| {
            let of_worker = ranks
                .iter()
                .find(|rank| rank["worker_id"] == sent.worker_id);
            of_worker.is_some_and(|rank| rank["last_seq"].as_u64() == sent.last_sequence)
        };
        if sent.iter().all(is_applied) {
            return Ok(());
        }
        ensure!(
            started.elapsed() < EVENTS_DEADLINE,
            "events are not applied: sent {sent:?}, applied {ranks:?}"
        );
        thread::sleep(Duration::from_millis(50));
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    path.canonicalize()
        .with_context(|| format!("no such folder: {}", path.display()))
}
