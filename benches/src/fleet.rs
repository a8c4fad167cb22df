//! Ten mock workers whose caches hold conversations and whose KV events are real, so that what is measured finds an
//! index with something in it. They serve none of the requests that are timed.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use pointsman_lab::lab::tokenizer_door;
use pointsman_lab::mock::{EngineConfig, Fleet, FleetConfig, Worker};
use serde_json::{Value, json};
use tokio::runtime::{self, Runtime};

use crate::http1::{self, Connection};
use crate::prompts::{Prompts, Size};

pub(crate) const WORKERS: u16 = 10;
pub(crate) const MODEL: &str = "bench";
pub(crate) const BLOCK_SIZE: u32 = 16;
const TOTAL_BLOCKS: usize = 200_000;
/// Conversations of each size that the workers hold; every system prompt is among them.
const CONVERSATIONS: u64 = 96;
/// Where their numbers begin: the timed requests have others.
const FIRST_NUMBER: u64 = 1 << 40;

/// The mock workers, and the runtime that they live on.
#[derive(Debug)]
pub(crate) struct MockFleet {
    fleet: Fleet,
    // After the fleet: it is dropped last.
    runtime: Runtime,
}

/// How far a worker's events have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) worker_id: u64,
    pub(crate) last_sequence: Option<u64>,
}

impl MockFleet {
    pub(crate) fn start(tokenizer_dir: &Path) -> Result<Self> {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let config = FleetConfig {
            workers: WORKERS,
            model: MODEL.to_owned(),
            engine: EngineConfig {
                block_size: BLOCK_SIZE,
                total_blocks: TOTAL_BLOCKS,
                ..EngineConfig::default()
            },
            time_scale: 0.0,
            ..FleetConfig::default()
        };
        let fleet = runtime.block_on(async {
            let tokens = tokenizer_door(tokenizer_dir).await?;
            Ok::<_, anyhow::Error>(Fleet::start(&config, tokens).await?)
        })?;
        Ok(Self { fleet, runtime })
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The workers' registrations; with `endpoints`, requests go there instead.
    pub(crate) fn registrations(&self, endpoints: Option<&[SocketAddr]>) -> Vec<Value> {
        let workers = self.fleet.workers().iter().enumerate();
        let registration = |(turn, worker): (usize, &Worker)| {
            let endpoint = endpoints
                .and_then(|endpoints| endpoints.get(turn).copied())
                .unwrap_or(worker.address());
            json!({
                "worker_id": worker.id(),
                "model_name": MODEL,
                "endpoint": format!("http://{endpoint}"),
                "kv_events_endpoint": worker.kv_events_endpoint(0),
                "replay_endpoint": worker.replay_endpoint(0),
                "block_size": BLOCK_SIZE,
                "total_kv_blocks": TOTAL_BLOCKS,
            })
        };
        workers.map(registration).collect()
    }

    /// Lets the workers compute, and so announce, conversations that share the system prompts of those to come.
    pub(crate) fn fill(&self, prompts: &Prompts) -> Result<()> {
        let mut connections = Vec::new();
        for worker in self.fleet.workers() {
            connections
                .push(Connection::open(worker.address()).context("connecting to a mock worker")?);
        }
        for conversation in 0..CONVERSATIONS {
            for size in Size::ALL {
                let body = prompts.body(size, FIRST_NUMBER + conversation);
                let turn = usize::try_from(conversation)? % connections.len();
                let status = connections[turn].send(&http1::post("/v1/chat/completions", &body))?;
                ensure!(status == 200, "a mock worker answered {status}");
            }
        }
        Ok(())
    }

    pub(crate) fn sent(&self) -> Vec<Sent> {
        let sent = |worker: &Worker| Sent {
            worker_id: worker.id(),
            last_sequence: worker.last_sequence(0),
        };
        self.fleet.workers().iter().map(sent).collect()
    }
}
