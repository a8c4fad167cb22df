//! Builds a `SelectionService`: checks the configuration, resolves the policy, starts nothing yet.
//!
//! It reads no file and no environment.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU32;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use pointsman_core::PartitionConfig;
use pointsman_plugin::{KvRouterConfig, RouterPluginRegistry, WorkerType};
use prometheus_client::registry::Registry;
use tokio::runtime::Handle;
use tracing::{info, warn};

use crate::audit::AuditConfig;
use crate::error::SelectionServiceError;
use crate::events::{EventsConfig, Subscribers};
use crate::metrics::SelectionMetrics;
use crate::pending::PendingConfig;
use crate::recovery::{IndexerPeers, Recovery, RecoveryConfig};
use crate::replicas::{ReplicaConfig, Replicas, check_endpoint};
use crate::reservations::ReservationsConfig;
use crate::service::{Memory, Parts, SelectionService, Shared};
use crate::shared_cache::SharedCacheConfig;
use crate::workers::{Catalog, Rules};

/// Block size of workers that state none, unless the builder is told another.
const DEFAULT_BLOCK_SIZE: u32 = 16;
/// Worth of a block in the shared cache, where there is one and nobody says.
const SHARED_CACHE_MULTIPLIER: f64 = 0.5;
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// What a service is built from.
#[derive(Debug)]
pub struct SelectionServiceBuilder {
    config: KvRouterConfig,
    worker_type: WorkerType,
    registry: RouterPluginRegistry,
    default_block_size: u32,
    default_model: Option<String>,
    host: Option<String>,
    require_ip_endpoints: bool,
    events: EventsConfig,
    memory: Memory,
    predicted_blocks_per_rank: Option<usize>,
    max_index_entries: Option<usize>,
    indexer_peers: Vec<String>,
    recovery: RecoveryConfig,
    shared_cache: Option<SharedCacheConfig>,
    audit: AuditConfig,
    replica_sync: Option<(u16, Vec<String>)>,
    metrics: SelectionMetrics,
}

impl SelectionServiceBuilder {
    pub fn new(
        config: KvRouterConfig,
        worker_type: WorkerType,
        registry: RouterPluginRegistry,
    ) -> Self {
        Self {
            config,
            worker_type,
            registry,
            default_block_size: DEFAULT_BLOCK_SIZE,
            default_model: None,
            host: None,
            require_ip_endpoints: false,
            events: EventsConfig::default(),
            memory: Memory::default(),
            predicted_blocks_per_rank: None,
            max_index_entries: None,
            indexer_peers: Vec::new(),
            recovery: RecoveryConfig::default(),
            shared_cache: None,
            audit: AuditConfig::default(),
            replica_sync: None,
            metrics: SelectionMetrics::default(),
        }
    }

    /// The block size of workers that state none; 16 unless set.
    #[must_use]
    pub fn default_block_size(mut self, block_size: u32) -> Self {
        self.default_block_size = block_size;
        self
    }

    /// The model that every request is taken to ask for.
    #[must_use]
    pub fn default_model(mut self, model: Option<String>) -> Self {
        self.default_model = model.filter(|model| !model.is_empty());
        self
    }

    /// Names this replica, so that replicas draw different random numbers.
    #[must_use]
    pub fn host(mut self, host: String) -> Self {
        self.host = Some(host);
        self
    }

    /// Whether a worker's endpoint must be `http://ip:port`, as a data plane that dials needs it.
    #[must_use]
    pub fn require_ip_endpoints(mut self, required: bool) -> Self {
        self.require_ip_endpoints = required;
        self
    }

    /// Waits and bounds of event subscribers.
    #[must_use]
    pub fn events(mut self, events: EventsConfig) -> Self {
        self.events = events;
        self
    }

    /// Bounds on selections that wait to be reserved.
    #[must_use]
    pub fn selection_cache(mut self, pending: PendingConfig) -> Self {
        self.memory.pending = pending;
        self
    }

    /// Bounds on reservations that are held by their id.
    #[must_use]
    pub fn reservations(mut self, reservations: ReservationsConfig) -> Self {
        self.memory.reservations = reservations;
        self
    }

    /// How many (block, rank) pairs the KV index of one partition holds; new blocks beyond are not
    /// indexed and counted.
    #[must_use]
    pub fn max_index_entries(mut self, entries: usize) -> Self {
        self.max_index_entries = Some(entries);
        self
    }

    /// How many blocks are believed of a rank because they were routed there, where its worker does not say how many
    /// it has room for.
    #[must_use]
    pub fn predicted_blocks_per_rank(mut self, blocks: usize) -> Self {
        self.predicted_blocks_per_rank = Some(blocks);
        self
    }

    /// URLs of services whose index is taken over at start: the first one that answers. The service
    /// is not ready until that has been tried; it selects meanwhile.
    #[must_use]
    pub fn indexer_peers(mut self, urls: Vec<String>) -> Self {
        self.indexer_peers = urls;
        self
    }

    /// How those are asked, and how much of their index is taken over.
    #[must_use]
    pub fn recovery(mut self, recovery: RecoveryConfig) -> Self {
        self.recovery = recovery;
        self
    }

    /// A cache that all engines share, to be asked before each decision; none unless set. A block that it has is then
    /// worth half of one on a device, unless the configuration says otherwise.
    #[must_use]
    pub fn shared_cache(mut self, cache: Option<SharedCacheConfig>) -> Self {
        self.shared_cache = cache;
        self
    }

    /// What is done about engines that report other cached tokens than were predicted; ranks that deliver less than
    /// they promise are quarantined unless this says otherwise.
    #[must_use]
    pub fn cache_audit(mut self, audit: AuditConfig) -> Self {
        self.audit = audit;
        self
    }

    /// Tells other replicas of the load that is held here, on this port (0 for any that is free), and
    /// follows what these peers, `tcp://host:port` each, hold. More can be followed later. Neither
    /// side is authenticated.
    #[must_use]
    pub fn replica_sync(mut self, port: u16, peers: Vec<String>) -> Self {
        self.replica_sync = Some((port, peers));
        self
    }

    /// Registers the service's metrics.
    #[must_use]
    pub fn metrics(mut self, registry: &mut Registry) -> Self {
        self.metrics = SelectionMetrics::register(registry);
        self
    }

    /// Checks everything and makes the service. Its tasks run on the current runtime.
    pub async fn build(mut self) -> Result<SelectionService, SelectionServiceError> {
        let runtime = Handle::try_current().map_err(|_| SelectionServiceError::NoRuntime)?;
        let indexers = IndexerPeers::new(&self.indexer_peers, &self.recovery)?;
        let (replicas, peers) = match self.replica_sync.take() {
            Some((port, peers)) => (Some(self.replicas(port, &peers).await?), peers),
            None => (None, Vec::new()),
        };
        let service = self.assemble(runtime.clone(), replicas)?;
        for peer in &peers {
            service.register_peer(peer)?;
        }
        runtime.spawn(expire(service.downgrade()));
        service.recover_from(indexers, &runtime);
        Ok(service)
    }

    async fn replicas(
        &self,
        port: u16,
        peers: &[String],
    ) -> Result<Replicas, SelectionServiceError> {
        for peer in peers {
            check_endpoint(peer)?;
        }
        let config = ReplicaConfig {
            port,
            max_reservations: self.memory.reservations.max_entries,
            silence: self.memory.reservations.silence,
        };
        let socket = Replicas::bind(port).await?;
        Replicas::new(&config, socket, self.metrics.replicas.clone())
    }

    fn assemble(
        mut self,
        runtime: Handle,
        replicas: Option<Replicas>,
    ) -> Result<SelectionService, SelectionServiceError> {
        self.config
            .validate()
            .map_err(|mistakes| SelectionServiceError::BadConfig { mistakes })?;
        if self.shared_cache.is_some() {
            let worth = &mut self.config.shared_cache_multiplier;
            worth.get_or_insert(SHARED_CACHE_MULTIPLIER);
        }
        if let Some(classifier) = &self.config.request_classifier {
            return Err(SelectionServiceError::BadSetting {
                setting: "request_classifier",
                value: format!("type {:?}", classifier.classifier_type),
                expected: "none: request classifiers are not supported yet",
            });
        }
        let default_block_size = NonZeroU32::new(self.default_block_size).ok_or_else(|| {
            SelectionServiceError::BadSetting {
                setting: "default_block_size",
                value: self.default_block_size.to_string(),
                expected: "at least 1",
            }
        })?;
        let resolved = self
            .registry
            .resolve_for_worker_type(&self.config, self.worker_type)?;
        for warning in &resolved.warnings {
            warn!(%warning, "configuration without effect");
        }
        let policy_name = resolved.instance.unwrap_or_else(|| "default".to_owned());
        info!(policy = policy_name, "worker-selection policy resolved");
        let rules = Rules {
            default_block_size,
            require_ip_endpoints: self.require_ip_endpoints,
            use_kv_events: self.config.use_kv_events,
            queueing: self.config.router_queue_threshold.is_some(),
        };
        let recovery = Arc::new(Recovery::new(
            self.metrics.recovery.clone(),
            self.events.suspect_time,
            self.recovery.hold_time,
        ));
        let subscribers = Subscribers::new(
            runtime,
            self.events,
            self.metrics.events.clone(),
            Arc::clone(&recovery),
        );
        let seed = seed_of(self.host.as_deref());
        let (router, worker_type, factory) = (self.config, self.worker_type, resolved.factory);
        let per_rank = self.predicted_blocks_per_rank;
        let max_entries = self.max_index_entries;
        let make_partition = Box::new(move |_id, layout: crate::workers::Layout| {
            let config = PartitionConfig::new(
                router.clone(),
                worker_type,
                factory.clone(),
                layout.block_size,
            );
            PartitionConfig {
                policy_name: policy_name.clone(),
                eagle: layout.eagle,
                seed,
                predicted_blocks_per_rank: per_rank.unwrap_or(config.predicted_blocks_per_rank),
                max_index_entries: max_entries.unwrap_or(config.max_index_entries),
                ..config
            }
        });
        let catalog = Catalog::new(rules, make_partition, subscribers);
        Ok(SelectionService::new(Parts {
            catalog,
            default_model: self.default_model,
            memory: self.memory,
            recovery,
            shared_cache: self.shared_cache,
            audit: self.audit,
            replicas,
            metrics: self.metrics,
        }))
    }
}

impl SelectionService {
    /// A service for tests and for use in one process alone: it reads no events, asks no other
    /// replica, and lets go of what is over by time only when it is called. Whoever serves
    /// production traffic takes [`SelectionServiceBuilder`]. Must be called within a tokio runtime.
    pub fn new_local(
        config: KvRouterConfig,
        worker_type: WorkerType,
        registry: RouterPluginRegistry,
    ) -> Result<Self, SelectionServiceError> {
        let runtime = Handle::try_current().map_err(|_| SelectionServiceError::NoRuntime)?;
        let config = KvRouterConfig {
            use_kv_events: false,
            router_predicted_ttl_secs: None,
            ..config
        };
        SelectionServiceBuilder::new(config, worker_type, registry).assemble(runtime, None)
    }
}

/// Lets go of what is over by time, each second, as long as the service is there.
async fn expire(service: Weak<Shared>) {
    loop {
        tokio::time::sleep(EXPIRY_INTERVAL).await;
        let Some(shared) = service.upgrade() else {
            return;
        };
        if shared.is_stopping() {
            return;
        }
        shared.expire(Instant::now());
    }
}

/// From the replica's name, or else from chance.
fn seed_of(host: Option<&str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    match host {
        Some(host) => host.hash(&mut hasher),
        None => uuid::Uuid::new_v4().as_u128().hash(&mut hasher),
    }
    hasher.finish()
}
