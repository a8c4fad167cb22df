//! Mock workers that behave like vLLM: HTTP, scheduling, a prefix cache and its events, with no model and no GPU.
//! Never a measure of a real engine's speed: times follow a formula.

mod answer;
mod blocks;
mod engine;
mod events;
mod fault;
mod host_tier;
mod http;
mod latency;
mod metrics;
mod openai;
mod prompt;
mod publisher;
mod rank;
mod worker;

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

pub use engine::EngineConfig;
pub use events::{CacheGroups, EventForm, HashForm};
pub use fault::{CacheFaults, EventFaults, FAULT_HEADER, FaultRequest, HttpFaults};
pub use metrics::MetricsDialect;
pub use prompt::{PromptError, PromptTokens};
pub use publisher::REPLAY_BATCHES;
pub use worker::{MOST_RANKS, Worker};

/// Workers of one fleet.
pub const MOST_WORKERS: u16 = 1_024;

/// What a fleet is made of. A port of 0 is any free one; else worker `i` has port `base + i`, and rank `r` of its
/// `n` ranks has the event and replay ports `base + i * n + r`.
#[derive(Clone, Debug)]
pub struct FleetConfig {
    pub workers: u16,
    /// Ranks of each worker.
    pub dp_size: u32,
    pub first_worker_id: u64,
    pub host: IpAddr,
    pub http_port: u16,
    pub kv_events_port: u16,
    pub replay_port: u16,
    pub model: String,
    /// Adapters: models that may be asked for besides `model`.
    pub lora_adapters: Vec<String>,
    /// Topic of the event frames.
    pub topic: String,
    pub engine: EngineConfig,
    /// Shortest and longest answer, in tokens, where the request states no limit.
    pub answer_tokens: (usize, usize),
    pub event_form: EventForm,
    pub hash_form: HashForm,
    pub cache_groups: CacheGroups,
    pub metrics_dialect: MetricsDialect,
    /// All simulated time is multiplied by this; 0 answers at once.
    pub time_scale: f64,
    pub seed: u64,
}

impl Default for FleetConfig {
    fn default() -> Self {
        Self {
            workers: 3,
            dp_size: 1,
            first_worker_id: 1,
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            http_port: 0,
            kv_events_port: 0,
            replay_port: 0,
            model: "mock-model".to_owned(),
            lora_adapters: Vec::new(),
            topic: "kv-events".to_owned(),
            engine: EngineConfig::default(),
            answer_tokens: (16, 48),
            event_form: EventForm::default(),
            hash_form: HashForm::default(),
            cache_groups: CacheGroups::default(),
            metrics_dialect: MetricsDialect::default(),
            time_scale: 1.0,
            seed: 1,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    BadConfig(&'static str),
    #[error("binding {address}")]
    Bind {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("binding the event sockets of rank {dp_rank}")]
    BindEvents {
        dp_rank: u32,
        #[source]
        source: zeromq::ZmqError,
    },
}

/// Workers that serve until they are stopped or dropped.
#[derive(Debug)]
pub struct Fleet {
    workers: Vec<Worker>,
    stop: CancellationToken,
}

impl Fleet {
    pub async fn start(config: &FleetConfig, tokens: PromptTokens) -> Result<Self, StartError> {
        config.check()?;
        let stop = CancellationToken::new();
        // Dropped at an early return, it stops the workers that are up.
        let mut fleet = Self {
            workers: Vec::new(),
            stop: stop.clone(),
        };
        let lexicon = prompt::Lexicon::learn(&tokens).await;
        for index in 0..config.workers {
            let worker =
                Worker::start(config, index, tokens.clone(), lexicon.clone(), stop.clone());
            fleet.workers.push(worker.await?);
        }
        Ok(fleet)
    }

    pub fn workers(&self) -> &[Worker] {
        &self.workers
    }

    /// The fleet as a workers file: entries with the fields of `POST /workers`.
    pub fn workers_file(&self) -> String {
        let mut text = "workers:\n".to_owned();
        for worker in &self.workers {
            let registration = worker.registration();
            let fields = registration.as_object().into_iter().flatten();
            for (index, (name, value)) in fields.enumerate() {
                let lead = if index == 0 { "  - " } else { "    " };
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{lead}{name}: {}", yaml(value));
            }
        }
        text
    }

    pub async fn shutdown(mut self) {
        self.stop.cancel();
        for worker in std::mem::take(&mut self.workers) {
            worker.stopped().await;
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl FleetConfig {
    fn check(&self) -> Result<(), StartError> {
        let problem = if !(1..=MOST_WORKERS).contains(&self.workers) {
            "a fleet has 1 to 1024 workers"
        } else if !(1..=MOST_RANKS).contains(&self.dp_size) {
            "a worker has 1 to 64 ranks"
        } else if self.engine.block_size == 0 || self.engine.total_blocks == 0 {
            "an engine needs a block size and blocks"
        } else if self.engine.metrics_padding_bytes > metrics::MOST_PADDING_BYTES {
            "the padding of /metrics is at most 64 MiB"
        } else if !(self.time_scale.is_finite() && self.time_scale >= 0.0) {
            "the time scale must be 0 or more"
        } else {
            return Ok(());
        };
        Err(StartError::BadConfig(problem))
    }

    fn rank_port(&self, base: u16, index: u16, dp_rank: u32) -> Result<u16, StartError> {
        port(base, u32::from(index) * self.dp_size + dp_rank)
    }
}

/// A value in YAML's flow style. That is JSON but for the keys, which are ranks: in YAML a quoted number is a text.
fn yaml(value: &Value) -> String {
    let Some(fields) = value.as_object() else {
        return value.to_string();
    };
    let field = |(name, value): (&String, &Value)| format!("{name}: {value}");
    let fields: Vec<String> = fields.iter().map(field).collect();
    format!("{{{}}}", fields.join(", "))
}

fn port(base: u16, offset: u32) -> Result<u16, StartError> {
    if base == 0 {
        return Ok(0);
    }
    u16::try_from(u32::from(base) + offset)
        .map_err(|_| StartError::BadConfig("the fleet's ports go beyond 65535"))
}

#[cfg(test)]
mod lying_tests;
#[cfg(test)]
mod tests;

/// A seed that differs from run to run; the test that uses it prints it.
#[cfg(test)]
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}
