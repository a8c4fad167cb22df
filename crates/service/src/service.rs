//! `SelectionService`: the one door through which workers are registered and requests are placed.
//!
//! It holds published snapshots and hands decisions to the partitions of core. It waits for
//! nothing on the request path, so a dropped future leaves nothing behind: load is held by the
//! `Reservation` that is returned, and by nothing else.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use pointsman_core::{
    Charged, Partition, PartitionId, RankLoad, ReservationId, SelectError, Selection,
    SelectionRequest,
};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout_at;
use tracing::warn;

use crate::audit::{Audit, AuditConfig, CachePrediction};
use crate::dump;
use crate::error::{SelectionServiceError, UnknownModel};
use crate::metrics::SelectionMetrics;
use crate::pending::{PendingConfig, PendingSelections};
use crate::recovery::{IndexerPeers, Recovery};
use crate::replicas::{Booking, HeldBy, Replicas};
use crate::reservation::Reservation;
use crate::reservations::{Reservations, ReservationsConfig};
use crate::shared_cache::{SharedCache, SharedCacheConfig};
use crate::workers::{Catalog, EndpointTable, Snapshot};

/// Longest reservation id that is taken, in bytes.
pub const MAX_RESERVATION_ID_BYTES: usize = 256;
/// How long `shutdown` waits for tasks to end.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(5);
/// How often a choice is made because its worker joined or left meanwhile.
const PLACE_ATTEMPTS: usize = 8;
const DEFAULT_GROUP: &str = "default";

/// Worker registration, selection and reservation. Clones are the same service; when the last one
/// is dropped its tasks stop.
#[derive(Clone, Debug)]
pub struct SelectionService {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    /// Writers only.
    catalog: Mutex<Catalog>,
    pub(crate) published: ArcSwap<Snapshot>,
    pub(crate) state: watch::Sender<ServiceState>,
    default_model: Option<String>,
    pub(crate) metrics: SelectionMetrics,
    // Dropped before the reservations: those that end with this process end without a word.
    pub(crate) replicas: Option<Replicas>,
    pub(crate) pending: PendingSelections,
    pub(crate) reservations: Reservations,
    /// A turn for each dump under way.
    pub(crate) dumps: Arc<Semaphore>,
    recovery: Arc<Recovery>,
    /// The one that all engines share.
    pub(crate) cache: Option<SharedCache>,
    pub(crate) audit: Audit,
}

/// What a service remembers for callers that hold nothing but an id.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) pending: PendingConfig,
    pub(crate) reservations: ReservationsConfig,
}

/// What a service is made of.
pub(crate) struct Parts {
    pub(crate) catalog: Catalog,
    pub(crate) default_model: Option<String>,
    pub(crate) memory: Memory,
    pub(crate) recovery: Arc<Recovery>,
    pub(crate) shared_cache: Option<SharedCacheConfig>,
    pub(crate) audit: AuditConfig,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) metrics: SelectionMetrics,
}

/// What the outside may know at a glance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceState {
    /// The worker source has been read once; an empty one counts.
    pub source_read: bool,
    pub stopping: bool,
    /// Peers are being asked for their index.
    pub recovering: bool,
    /// Workers that may serve.
    pub schedulable: usize,
}

/// A decision and where to send the request.
#[derive(Clone, Debug)]
pub struct Selected {
    pub selection: Selection,
    /// As registered, for example `http://10.0.0.7:8000`.
    pub endpoint: String,
    /// To be compared with what the engine reports.
    pub prediction: CachePrediction,
}

/// A decision whose load is held until the reservation is dropped.
#[derive(Debug)]
pub struct Reserved {
    pub selected: Selected,
    pub reservation: Reservation,
}

/// What is charged in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionLoads {
    pub id: PartitionId,
    /// Of every rank that may be selected.
    pub loads: Vec<RankLoad>,
    /// Of ranks whose worker was removed, moved or put out of service, until their requests end.
    pub leaving: Vec<RankLoad>,
}

/// How far a rank's event stream has been applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventsApplied {
    /// The number of the batch applied last.
    pub last_sequence: Option<u64>,
    pub batches: u64,
}

impl SelectionService {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts {
            catalog,
            default_model,
            memory,
            recovery,
            shared_cache,
            audit,
            replicas,
            metrics,
        } = parts;
        let service = Self {
            shared: Arc::new(Shared {
                catalog: Mutex::new(catalog),
                published: ArcSwap::default(),
                state: watch::Sender::default(),
                default_model,
                replicas,
                pending: PendingSelections::new(memory.pending, metrics.pending.clone()),
                reservations: Reservations::new(memory.reservations, metrics.by_id.clone()),
                dumps: dump::turns(),
                recovery,
                cache: shared_cache
                    .map(|config| SharedCache::new(config, metrics.shared_cache.clone())),
                audit: Audit::new(audit, metrics.audit.clone()),
                metrics,
            }),
        };
        service.shared.metrics.set_workers(|_| 0);
        service
    }

    /// The schedulable workers and their addresses as of now.
    pub fn endpoints(&self) -> Arc<EndpointTable> {
        Arc::clone(&self.shared.published.load().endpoints)
    }

    /// Where a request for `model` is placed: with a configured model, or exactly one registered,
    /// there; else at the named one. With no worker at all it names a partition without workers.
    pub fn partition_of(&self, model: Option<&str>) -> Result<PartitionId, UnknownModel> {
        if let Some(default) = &self.shared.default_model {
            return Ok(PartitionId::new(default.as_str(), DEFAULT_GROUP));
        }
        let snapshot = self.shared.published.load();
        let mut models = snapshot.models.iter();
        let chosen = match (models.next(), models.next()) {
            (None, _) => Some(model.unwrap_or(DEFAULT_GROUP)),
            (Some(only), None) => Some(only.as_str()),
            (Some(_), Some(_)) => model.filter(|model| snapshot.models.contains(*model)),
        };
        chosen
            .map(|model| PartitionId::new(model, DEFAULT_GROUP))
            .ok_or_else(|| UnknownModel {
                model: model.map(str::to_owned),
            })
    }

    /// Chooses a worker and holds nothing.
    pub async fn select(
        &self,
        partition: &PartitionId,
        mut request: SelectionRequest,
    ) -> Result<Selected, SelectionServiceError> {
        self.ask_shared_cache(partition, &mut request).await;
        let select = |partition: &Partition, request: &SelectionRequest| {
            Ok((partition.select(request, Instant::now())?, ()))
        };
        let outcome = self.place(partition, request, select);
        let outcome = outcome.map(|(selected, ())| selected);
        self.count(outcome.as_ref().err());
        outcome
    }

    /// Chooses a worker and charges it. Without an id one is made.
    pub async fn select_and_reserve(
        &self,
        partition: &PartitionId,
        request: SelectionRequest,
        id: Option<String>,
    ) -> Result<Reserved, SelectionServiceError> {
        let id = id.unwrap_or_else(new_id);
        self.select_and_reserve_as(HeldBy::Exchange, partition, request, &id)
            .await
    }

    pub(crate) async fn select_and_reserve_as(
        &self,
        held_by: HeldBy,
        partition: &PartitionId,
        mut request: SelectionRequest,
        id: &str,
    ) -> Result<Reserved, SelectionServiceError> {
        self.ask_shared_cache(partition, &mut request).await;
        let outcome = self.reserve_now(held_by, partition, request, id);
        self.count(outcome.as_ref().err());
        outcome
    }

    pub fn loads(&self) -> Vec<PartitionLoads> {
        let snapshot = self.shared.published.load();
        let partitions = snapshot.partitions.iter();
        partitions
            .map(|(id, partition)| {
                let Charged { ranks, leaving } = partition.charged();
                PartitionLoads {
                    id: id.clone(),
                    loads: ranks,
                    leaving,
                }
            })
            .collect()
    }

    pub fn has_schedulable_worker(&self) -> bool {
        !self.shared.published.load().endpoints.is_empty()
    }

    pub fn state(&self) -> watch::Receiver<ServiceState> {
        self.shared.state.subscribe()
    }

    /// `None` where no events of that rank are known of.
    pub fn events_applied(&self, worker_id: u64, dp_rank: u32) -> Option<EventsApplied> {
        let snapshot = self.shared.published.load();
        let report = snapshot
            .workers
            .get(&worker_id)?
            .progress
            .get(&dp_rank)?
            .report();
        Some(EventsApplied {
            last_sequence: report.last_sequence,
            batches: report.applied_batches,
        })
    }

    /// Refuses new work, stops every task and waits for them, but not for ever. Reservations that
    /// are held stay charged until they are dropped.
    pub async fn shutdown(&self) {
        self.shared.state.send_modify(|state| state.stopping = true);
        let tasks = self.catalog().stop();
        let deadline = tokio::time::Instant::now() + SHUTDOWN_WAIT;
        let mut late = 0_usize;
        for task in tasks {
            if timeout_at(deadline, task).await.is_err() {
                late += 1;
            }
        }
        if late > 0 {
            warn!(late, "tasks still running at shutdown");
        }
        if let Some(replicas) = &self.shared.replicas {
            replicas.stop().await;
        }
    }

    fn reserve_now(
        &self,
        held_by: HeldBy,
        partition: &PartitionId,
        request: SelectionRequest,
        id: &str,
    ) -> Result<Reserved, SelectionServiceError> {
        checked_id(id)?;
        let id = ReservationId::from(id);
        let expected_output_tokens = request.expected_output_tokens;
        let lora_name = request.lora_name.clone();
        let reserve = |partition: &Partition, request: &SelectionRequest| {
            let reserved = partition.select_and_reserve(request, id.clone(), Instant::now())?;
            Ok((reserved.selection, reserved.reservation))
        };
        let (selected, reservation) = self.place(partition, request, reserve)?;
        self.shared.metrics.reservations.inc();
        let selection = &selected.selection;
        let booking = Booking {
            partition,
            block_size: selection.block_size,
            charge: &selection.charge(),
            expected_output_tokens,
            lora_name: lora_name.as_deref(),
            held_by,
        };
        let reservation = self.told(reservation, &booking);
        Ok(Reserved {
            selected,
            reservation,
        })
    }

    /// Makes a choice and finds its endpoint. A worker may join or leave while the choice is made: it is
    /// then dropped, with the load it held, and made again among the workers that are known by now.
    fn place<T>(
        &self,
        id: &PartitionId,
        mut request: SelectionRequest,
        choose: impl Fn(&Partition, &SelectionRequest) -> Result<(Selection, T), SelectError>,
    ) -> Result<(Selected, T), SelectionServiceError> {
        for _ in 0..PLACE_ATTEMPTS {
            // Held until the choice is made: it shows that one is under way.
            let (partition, _under_way) = self.partition(id)?;
            let (selection, held) = choose(&partition, &request)?;
            let snapshot = self.shared.published.load();
            if let Some(endpoint) = snapshot.endpoints.endpoint(selection.worker.worker_id) {
                let selected = Selected {
                    prediction: CachePrediction::new(partition, &selection, Instant::now()),
                    selection,
                    endpoint: endpoint.url.clone(),
                };
                return Ok((selected, held));
            }
            let known = snapshot.endpoints.iter().map(|(worker_id, _)| worker_id);
            request.allowed_worker_ids = Some(match request.allowed_worker_ids.take() {
                Some(allowed) => known.filter(|id| allowed.contains(id)).collect(),
                None => known.collect(),
            });
        }
        Err(SelectError::WorkerGone.into())
    }

    /// Asks the peers, if there are any, on a task of its own, which ends by its own bounds or with
    /// the service.
    pub(crate) fn recover_from(&self, peers: IndexerPeers, runtime: &Handle) {
        if peers.is_empty() {
            return;
        }
        let recovery = Arc::clone(&self.shared.recovery);
        recovery.start();
        self.shared
            .state
            .send_modify(|state| state.recovering = true);
        let (shared, mut state) = (self.downgrade(), self.state());
        runtime.spawn(async move {
            tokio::select! {
                () = peers.recover(recovery) => {}
                _ = state.wait_for(|state| state.stopping) => {}
            }
            if let Some(shared) = shared.upgrade() {
                shared.state.send_modify(|state| state.recovering = false);
            }
        });
    }

    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.shared.published.load_full()
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) fn downgrade(&self) -> Weak<Shared> {
        Arc::downgrade(&self.shared)
    }

    pub(crate) fn partition(
        &self,
        id: &PartitionId,
    ) -> Result<(Arc<Partition>, Arc<Snapshot>), SelectionServiceError> {
        let state = *self.shared.state.borrow();
        if state.stopping {
            return Err(SelectionServiceError::ShuttingDown);
        }
        let snapshot = self.shared.published.load_full();
        if let Some(partition) = snapshot.partitions.get(id) {
            return Ok((Arc::clone(partition), snapshot));
        }
        Err(if !state.source_read {
            SelectionServiceError::NotReady
        } else if snapshot.workers.is_empty() {
            SelectError::NoWorkers.into()
        } else {
            SelectionServiceError::UnknownPartition {
                partition: id.clone(),
            }
        })
    }

    pub(crate) fn catalog(&self) -> MutexGuard<'_, Catalog> {
        self.shared
            .catalog
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, error: Option<&SelectionServiceError>) {
        self.shared
            .metrics
            .count_selection(error.map_or("selected", SelectionServiceError::outcome));
    }
}

impl Shared {
    /// Whether a worker is registered, whatever it may be used for.
    pub(crate) fn knows(&self, worker_id: u64) -> bool {
        self.published.load().workers.contains_key(&worker_id)
    }

    /// The partition of that name, if a worker ever made one.
    pub(crate) fn partition(&self, id: &PartitionId) -> Option<Arc<Partition>> {
        self.published.load().partitions.get(id).cloned()
    }

    /// Lets go of what is over by time.
    pub(crate) fn expire(&self, now: Instant) {
        self.pending.expire(now);
        self.reservations.expire(now);
        let published = self.published.load();
        for partition in published.partitions.values() {
            partition.expire_predictions(now);
        }
        self.pass_audit(now);
        let partitions = published.partitions.values();
        let stats: Vec<_> = partitions.map(|partition| partition.stats()).collect();
        let predictions = stats.iter().map(|stats| stats.predictions);
        self.metrics.predictions.measure(predictions);
        self.metrics
            .index
            .measure(stats.iter().map(|stats| stats.index));
        self.recovery.expire(now);
        if let Some(replicas) = &self.replicas {
            replicas.tick(self, now);
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.state.borrow().stopping
    }
}

pub(crate) fn new_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Refuses ids that no route could name.
pub(crate) fn checked_id(id: &str) -> Result<(), SelectError> {
    if id.is_empty() || id.len() > MAX_RESERVATION_ID_BYTES {
        return Err(SelectError::BadRequest(format!(
            "selection_id must have 1 to {MAX_RESERVATION_ID_BYTES} bytes, found {}",
            id.len()
        )));
    }
    Ok(())
}
