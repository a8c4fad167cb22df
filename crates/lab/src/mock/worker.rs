//! One worker: its ranks, its faults, its HTTP server.
//! Never knows the other workers of its fleet.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::HeaderMap;
use axum::serve::ListenerExt as _;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::events::Form;
use super::fault::{FaultRequest, HttpFaults, RequestFault};
use super::http;
use super::prompt::{Lexicon, PromptTokens};
use super::publisher::{Ports, Publisher};
use super::rank::Rank;
use super::{FleetConfig, StartError};

/// Ranks of one worker.
pub const MOST_RANKS: u32 = 64;

#[derive(Debug)]
struct Faults {
    http: HttpFaults,
    starting_until: Option<Instant>,
    random: SmallRng,
}

/// What the routes of a worker share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) name: String,
    pub(super) config: FleetConfig,
    pub(super) tokens: PromptTokens,
    pub(super) lexicon: Lexicon,
    pub(super) ranks: Vec<Rank>,
    faults: Mutex<Faults>,
    answers: AtomicU64,
}

/// A worker that serves.
#[derive(Debug)]
pub struct Worker {
    core: Arc<Core>,
    id: u64,
    address: SocketAddr,
    server: JoinHandle<()>,
}

impl Worker {
    pub(super) async fn start(
        config: &FleetConfig,
        index: u16,
        tokens: PromptTokens,
        lexicon: Lexicon,
        stop: CancellationToken,
    ) -> Result<Self, StartError> {
        let port = super::port(config.http_port, u32::from(index))?;
        let address = SocketAddr::new(config.host, port);
        let bind = |source| StartError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let mut ranks = Vec::new();
        for dp_rank in 0..config.dp_size {
            ranks.push(start_rank(config, index, dp_rank, &stop).await?);
        }
        let worker_id = config.first_worker_id + u64::from(index);
        let seed = config.seed ^ worker_id.rotate_left(32);
        let core = Arc::new(Core {
            name: format!("worker-{worker_id}"),
            config: config.clone(),
            tokens,
            lexicon,
            ranks,
            faults: Mutex::new(Faults {
                http: HttpFaults::default(),
                starting_until: None,
                random: SmallRng::seed_from_u64(seed),
            }),
            answers: AtomicU64::new(0),
        });
        let router = http::routes(Arc::clone(&core));
        let listener = listener.tap_io(|stream| {
            // Without it small chunks wait for each other; a failure costs time only.
            let _ = stream.set_nodelay(true);
        });
        let server = tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                served = async { axum::serve(listener, router).await } => {
                    if let Err(error) = served {
                        tracing::error!(%error, "mock worker stopped serving");
                    }
                }
            }
        });
        Ok(Self {
            core,
            id: worker_id,
            address,
            server,
        })
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    /// The name in `x-mock-worker`.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many ranks it has; they are numbered from 0.
    pub fn ranks(&self) -> u32 {
        self.core.config.dp_size
    }

    /// Where the rank's events can be subscribed to: `tcp://ip:port`.
    pub fn kv_events_endpoint(&self, dp_rank: u32) -> Option<&str> {
        let rank = self.core.ranks.get(dp_rank as usize)?;
        Some(rank.publisher.events_endpoint())
    }

    /// Where the rank's last batches can be asked for again.
    pub fn replay_endpoint(&self, dp_rank: u32) -> Option<&str> {
        let rank = self.core.ranks.get(dp_rank as usize)?;
        Some(rank.publisher.replay_endpoint())
    }

    /// Number of the last batch of events of a rank; None before the first.
    pub fn last_sequence(&self, dp_rank: u32) -> Option<u64> {
        self.core
            .ranks
            .get(dp_rank as usize)?
            .publisher
            .last_sequence()
    }

    /// Requests in the engines now.
    pub fn in_flight(&self) -> usize {
        self.core.ranks.iter().map(Rank::in_flight).sum()
    }

    /// Blocks that running requests hold now.
    pub fn blocks_in_use(&self) -> usize {
        let in_use = |rank: &Rank| rank.gauges().blocks_in_use;
        self.core.ranks.iter().map(in_use).sum()
    }

    /// Forgets the prefix caches; false while a request runs. The event leaves with each rank's next step.
    pub async fn reset_caches(&self) -> bool {
        self.core.reset_caches().await
    }

    /// Asks for faults, as `POST /fault` does.
    pub async fn ask_fault(&self, request: &FaultRequest) {
        self.core.ask_fault(request).await;
    }

    /// The worker as the body of `POST /workers`.
    pub fn registration(&self) -> Value {
        let core = &self.core;
        let ranks = || core.ranks.iter().enumerate();
        let events = ranks()
            .map(|(dp_rank, rank)| (dp_rank.to_string(), json!(rank.publisher.events_endpoint())));
        let mut body = json!({
            "worker_id": self.id,
            "model_name": core.config.model,
            "endpoint": format!("http://{}", self.address),
            "kv_events_endpoints": events.collect::<serde_json::Map<_, _>>(),
            "block_size": core.config.engine.block_size,
            "data_parallel_size": core.config.dp_size,
            "max_num_batched_tokens": core.config.engine.max_num_batched_tokens,
            "total_kv_blocks": core.config.engine.total_blocks,
        });
        if let [only] = core.ranks.as_slice() {
            body["replay_endpoint"] = json!(only.publisher.replay_endpoint());
        } else {
            let replays = ranks().map(|(dp_rank, rank)| {
                (dp_rank.to_string(), json!(rank.publisher.replay_endpoint()))
            });
            body["replay_endpoints"] = replays.collect::<serde_json::Map<_, _>>().into();
        }
        body
    }

    pub(super) async fn stopped(self) {
        // A server task that panicked has stopped as well.
        let _ = self.server.await;
    }
}

async fn start_rank(
    config: &FleetConfig,
    index: u16,
    dp_rank: u32,
    stop: &CancellationToken,
) -> Result<Rank, StartError> {
    let ports = Ports {
        host: config.host,
        events: config.rank_port(config.kv_events_port, index, dp_rank)?,
        replay: config.rank_port(config.replay_port, index, dp_rank)?,
        topic: config.topic.clone(),
    };
    let form = Form {
        events: config.event_form,
        hashes: config.hash_form,
        groups: config.cache_groups,
    };
    let publisher = Publisher::start(&ports, dp_rank, form, stop.clone())
        .await
        .map_err(|source| StartError::BindEvents { dp_rank, source })?;
    Ok(Rank::start(
        config.engine.clone(),
        config.time_scale,
        publisher,
        stop.clone(),
    ))
}

impl Core {
    /// The rank named by `x-data-parallel-rank`, or else the one with the fewest requests.
    pub(super) fn choose_rank(&self, headers: &HeaderMap) -> Result<usize, String> {
        let Some(named) = headers.get("x-data-parallel-rank") else {
            let ranks = self.ranks.iter().enumerate();
            let least = ranks.min_by_key(|(_, rank)| rank.in_flight());
            return Ok(least.map_or(0, |(index, _)| index));
        };
        let index = named
            .to_str()
            .ok()
            .and_then(|text| text.parse::<usize>().ok());
        index
            .filter(|index| *index < self.ranks.len())
            .ok_or_else(|| format!("x-data-parallel-rank must be below {}", self.ranks.len()))
    }

    pub(super) fn next_answer(&self) -> u64 {
        self.answers.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn longest_sequence(&self) -> usize {
        let engine = &self.config.engine;
        engine
            .total_blocks
            .saturating_mul(engine.block_size as usize)
    }

    pub(super) fn starting_until(&self) -> Option<Instant> {
        self.faults().starting_until
    }

    pub(super) fn http_faults(&self) -> HttpFaults {
        self.faults().http
    }

    pub(super) fn draw_fault(&self) -> RequestFault {
        let mut faults = self.faults();
        let http = faults.http;
        http.draw(|| faults.random.random())
    }

    pub(super) async fn reset_caches(&self) -> bool {
        let mut all = true;
        for rank in &self.ranks {
            all &= rank.reset_cache().await;
        }
        all
    }

    pub(super) async fn ask_fault(&self, request: &FaultRequest) {
        {
            let mut faults = self.faults();
            if request.clear {
                faults.http = HttpFaults::default();
                faults.starting_until = None;
            }
            faults.http.update(request.http);
            if let Some(delay) = request.http.slow_start_ms {
                faults.starting_until = Some(Instant::now() + Duration::from_millis(delay));
            }
        }
        for rank in &self.ranks {
            rank.publisher.add_faults(&request.events, request.clear);
            let unused = request.cache.unused.or(request.clear.then_some(false));
            if let Some(unused) = unused {
                rank.leave_cache_unused(unused).await;
            }
            if request.restart {
                rank.restart().await;
            }
        }
    }

    pub(super) fn state(&self) -> Value {
        let ranks = self.ranks.iter().enumerate().map(|(dp_rank, rank)| {
            let gauges = rank.gauges();
            json!({
                "dp_rank": dp_rank,
                "last_sequence": rank.publisher.last_sequence(),
                "events_lost": rank.publisher.lost(),
                "in_flight": rank.in_flight(),
                "running": gauges.running,
                "waiting": gauges.waiting,
                "blocks_in_use": gauges.blocks_in_use,
                "blocks_cached": gauges.blocks_held,
                "total_blocks": gauges.total_blocks,
                "prefix_queries": gauges.prefix_queries,
                "prefix_hits": gauges.prefix_hits,
                "preemptions": gauges.preemptions,
            })
        });
        json!({ "worker": self.name, "ranks": ranks.collect::<Vec<_>>() })
    }

    /// The faults stay whole at every line, so a panic elsewhere while they were locked does no harm.
    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
