//! A service with its metrics, and the questions that the tests ask it.

use std::time::Duration;

use pointsman_core::{PartitionId, Prompt, SelectionRequest};
use pointsman_plugin::{KvRouterConfig, RouterPluginRegistry, WorkerType, WorkerWithDpRank};
use pointsman_service::{
    EventsConfig, Selected, SelectionService, SelectionServiceBuilder, SelectionServiceError,
    WorkerRegistration,
};
use prometheus_client::registry::Registry;

use crate::engine::Engine;

pub(crate) struct Rig {
    pub(crate) service: SelectionService,
    registry: Registry,
}

/// Long enough for a busy machine; no test waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(30);

impl Rig {
    pub(crate) async fn new() -> Self {
        Self::with_events(EventsConfig::default()).await
    }

    pub(crate) async fn with_events(events: EventsConfig) -> Self {
        Self::built(|builder| builder.events(events)).await
    }

    pub(crate) async fn built(
        set: impl FnOnce(SelectionServiceBuilder) -> SelectionServiceBuilder,
    ) -> Self {
        let mut registry = Registry::default();
        let builder = SelectionServiceBuilder::new(
            KvRouterConfig::default(),
            WorkerType::Aggregated,
            RouterPluginRegistry::default(),
        );
        let service = set(builder).metrics(&mut registry).build().await.unwrap();
        Self { service, registry }
    }

    /// The value of a metric by its exported name and labels; 0 where it has none yet.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        self.metrics()
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .map_or(0, |value| value.parse().unwrap())
    }

    /// Whether the metrics have this line.
    pub(crate) fn shows(&self, wanted: &str) -> bool {
        self.metrics().lines().any(|line| line == wanted)
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }

    pub(crate) async fn pinned(
        &self,
        worker: WorkerWithDpRank,
        tokens: &[u32],
    ) -> Result<Selected, SelectionServiceError> {
        let request = SelectionRequest {
            pinned_worker: Some(worker),
            ..asking(tokens)
        };
        self.service.select(&partition(), request).await
    }

    /// Leading blocks of these tokens that the rank is taken to hold.
    pub(crate) async fn overlap(&self, worker_id: u64, dp_rank: u32, tokens: &[u32]) -> u64 {
        let worker = WorkerWithDpRank { worker_id, dp_rank };
        self.pinned(worker, tokens)
            .await
            .unwrap()
            .selection
            .overlap_blocks
    }

    pub(crate) async fn until_overlap(&self, worker_id: u64, tokens: &[u32], blocks: u64) {
        let found = async {
            while self.overlap(worker_id, 0, tokens).await != blocks {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, found).await.is_err() {
            let found = self.overlap(worker_id, 0, tokens).await;
            panic!("worker {worker_id} overlaps by {found} blocks, not {blocks}");
        }
    }

    /// Waits until the last batch applied has this number.
    pub(crate) async fn until_applied(&self, worker_id: u64, dp_rank: u32, sequence: u64) {
        self.until(|rig| {
            let applied = rig.service.events_applied(worker_id, dp_rank);
            applied.and_then(|applied| applied.last_sequence) == Some(sequence)
        })
        .await;
    }

    pub(crate) async fn until(&self, holds: impl Fn(&Self) -> bool) {
        let wait = async {
            while !holds(self) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap();
    }
}

pub(crate) fn partition() -> PartitionId {
    PartitionId::new("m", "default")
}

pub(crate) fn asking(tokens: &[u32]) -> SelectionRequest {
    SelectionRequest {
        prompt: Prompt::Tokens {
            ids: tokens.to_vec(),
            media: vec![],
        },
        ..SelectionRequest::default()
    }
}

pub(crate) fn tokens(range: std::ops::Range<u32>) -> Vec<u32> {
    range.collect()
}

/// A worker of model `m` with blocks of 4 tokens and no events.
pub(crate) fn worker(worker_id: u64) -> WorkerRegistration {
    WorkerRegistration {
        model_name: "m".to_owned(),
        endpoint: Some(format!("http://127.0.0.1:{}", 18_000 + worker_id)),
        block_size: Some(4),
        ..WorkerRegistration::new(worker_id)
    }
}

/// The same with the engine's events, and its replays if wanted.
pub(crate) fn worker_of(worker_id: u64, engine: &Engine, replays: Replays) -> WorkerRegistration {
    WorkerRegistration {
        kv_events_endpoint: Some(engine.publisher_at.clone()),
        replay_endpoint: (replays == Replays::Known).then(|| engine.replay_at.clone()),
        ..worker(worker_id)
    }
}

/// Whether the worker's record names the engine's replay endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replays {
    Known,
    Unknown,
}
