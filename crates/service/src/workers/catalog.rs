//! The registered workers and what follows from them: partitions, their worker tables, subscribers.
//!
//! Its owner lets in one writer at a time and publishes a snapshot after each change. A partition's
//! worker table is set while the writer's lock is held, so that tables arrive in order; readers and
//! selections never take that lock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use pointsman_core::{Partition, PartitionConfig, PartitionId, WorkerEntry};
use tokio::task::JoinHandle;

use super::assessment::{Layout, Plan, Reason, Rules, assess};
use super::endpoints::EndpointTable;
use super::leaving::Leaving;
use super::registration::{Lifecycle, RankEvents, WorkerRecord, WorkerRegistration};
use crate::events::{RankProgress, RankStream, Subscribers, Subscription};

/// Makes the partition of a model and group, with the layout that its first worker brings.
pub(crate) type MakePartition = Box<dyn Fn(PartitionId, Layout) -> PartitionConfig + Send>;

pub(crate) struct Catalog {
    rules: Rules,
    make_partition: MakePartition,
    subscribers: Subscribers,
    workers: BTreeMap<u64, Worker>,
    /// Kept for the life of the process: a layout, once pinned, never changes.
    partitions: BTreeMap<PartitionId, Arc<Partition>>,
    /// Subscribers that were told to stop, until they have.
    retired: HashMap<(u64, u32), JoinHandle<()>>,
}

struct Worker {
    registration: Arc<WorkerRegistration>,
    verdict: Result<Plan, Vec<Reason>>,
    subscriptions: BTreeMap<u32, Subscription>,
}

/// What readers see: immutable, replaced whole.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) workers: BTreeMap<u64, PublishedWorker>,
    pub(crate) partitions: BTreeMap<PartitionId, Arc<Partition>>,
    pub(crate) endpoints: Arc<EndpointTable>,
    pub(crate) models: BTreeSet<String>,
    pub(super) leaving: Leaving,
}

/// One worker of a snapshot; the progress of its streams stays live.
#[derive(Debug)]
pub(crate) struct PublishedWorker {
    registration: Arc<WorkerRegistration>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) reasons: Vec<String>,
    /// The partition's, where the worker is in one.
    block_size: Option<NonZeroU32>,
    pub(crate) progress: BTreeMap<u32, Arc<RankProgress>>,
}

impl PublishedWorker {
    pub(crate) fn partition_id(&self) -> PartitionId {
        partition_id(&self.registration)
    }

    /// The ranks that are served; none of a worker that cannot serve.
    pub(crate) fn ranks(&self) -> Range<u32> {
        match self.lifecycle {
            Lifecycle::Schedulable => ranks_of(&self.registration),
            _ => 0..0,
        }
    }

    /// Whether it belongs to this partition, schedulable or not.
    pub(crate) fn serves(&self, partition: &PartitionId) -> bool {
        self.registration.model_name == partition.model_name
            && self.registration.routing_group == partition.routing_group
    }

    pub(crate) fn record(&self) -> WorkerRecord {
        let kv_events: BTreeMap<u32, RankEvents> = self
            .progress
            .iter()
            .map(|(&dp_rank, progress)| (dp_rank, progress.report()))
            .collect();
        WorkerRecord {
            registration: WorkerRegistration::clone(&self.registration),
            lifecycle: self.lifecycle,
            not_schedulable_reasons: self.reasons.clone(),
            warnings: kv_events
                .iter()
                .filter_map(|(&dp_rank, events)| self.warning(dp_rank, events))
                .collect(),
            kv_events,
            cache_audit: BTreeMap::new(),
        }
    }
}

impl PublishedWorker {
    fn warning(&self, dp_rank: u32, events: &RankEvents) -> Option<String> {
        let found = events
            .mismatched_block_size
            .filter(|_| events.block_size_mismatches > 0)?;
        let wanted = self.block_size.map_or(0, NonZeroU32::get);
        Some(format!(
            "dp_rank {dp_rank}: kv events have block_size {found}, which the partition's {wanted} \
             cannot be reconciled with: its cache is not known"
        ))
    }
}

impl Snapshot {
    pub(crate) fn count(&self, lifecycle: Lifecycle) -> usize {
        self.workers
            .values()
            .filter(|worker| worker.lifecycle == lifecycle)
            .count()
    }
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Catalog")
            .field("workers", &self.workers.len())
            .field("partitions", &self.partitions.len())
            .finish_non_exhaustive()
    }
}

impl Catalog {
    pub(crate) fn new(
        rules: Rules,
        make_partition: MakePartition,
        subscribers: Subscribers,
    ) -> Self {
        Self {
            rules,
            make_partition,
            subscribers,
            workers: BTreeMap::new(),
            partitions: BTreeMap::new(),
            retired: HashMap::new(),
        }
    }

    /// Registers a worker or replaces what is registered; live reservations and unchanged event
    /// sources go on.
    pub(crate) fn upsert(&mut self, registration: WorkerRegistration) {
        self.change(Vec::new(), vec![registration]);
    }

    pub(crate) fn registration(&self, worker_id: u64) -> Option<&WorkerRegistration> {
        Some(&self.workers.get(&worker_id)?.registration)
    }

    /// False where no such worker is registered.
    pub(crate) fn remove(&mut self, worker_id: u64) -> bool {
        let known = self.workers.contains_key(&worker_id);
        if known {
            self.change(vec![worker_id], Vec::new());
        }
        known
    }

    /// Makes the catalog equal to `registrations`.
    pub(crate) fn replace(&mut self, registrations: Vec<WorkerRegistration>) {
        let wanted: BTreeSet<u64> = registrations
            .iter()
            .map(|worker| worker.worker_id)
            .collect();
        let gone = self
            .workers
            .keys()
            .copied()
            .filter(|id| !wanted.contains(id))
            .collect();
        let changed = registrations
            .into_iter()
            .filter(|wanted| {
                let known = self.workers.get(&wanted.worker_id);
                known.is_none_or(|known| *known.registration != *wanted)
            })
            .collect();
        self.change(gone, changed);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let endpoints = self.workers.iter().filter_map(|(&worker_id, worker)| {
            let plan = worker.verdict.as_ref().ok()?;
            Some((worker_id, plan.endpoint.clone()))
        });
        Snapshot {
            endpoints: Arc::new(EndpointTable::new(endpoints.collect())),
            workers: self
                .workers
                .iter()
                .map(|(&id, worker)| (id, worker.publish()))
                .collect(),
            partitions: self.partitions.clone(),
            models: self
                .workers
                .values()
                .map(|worker| worker.registration.model_name.clone())
                .collect(),
            leaving: Leaving::default(),
        }
    }

    /// Stops every subscriber and hands over their tasks, to be awaited.
    pub(crate) fn stop(&mut self) -> Vec<JoinHandle<()>> {
        self.subscribers.stop_all();
        let running = self.workers.values_mut().flat_map(|worker| {
            std::mem::take(&mut worker.subscriptions)
                .into_values()
                .filter_map(Subscription::retire)
        });
        let mut tasks: Vec<_> = running.collect();
        tasks.extend(self.retired.drain().map(|(_, task)| task));
        tasks
    }

    /// One change: who goes, then who comes; tables are set before streams start, because a
    /// partition refuses events of ranks that it does not know.
    fn change(&mut self, gone: Vec<u64>, changed: Vec<WorkerRegistration>) {
        self.retired.retain(|_, task| !task.is_finished());
        let mut touched = BTreeSet::new();
        for worker_id in gone {
            if let Some(worker) = self.workers.remove(&worker_id) {
                touched.insert(partition_id(&worker.registration));
                self.retire(worker_id, worker.subscriptions);
            }
        }
        let mut changed_ids = Vec::with_capacity(changed.len());
        for registration in changed {
            changed_ids.push(registration.worker_id);
            self.judge(registration, &mut touched);
        }
        for id in &touched {
            self.set_workers(id);
        }
        for worker_id in changed_ids {
            self.subscribe(worker_id);
        }
    }

    /// Judges a registration and puts it in its place. The first worker that can serve makes the
    /// partition.
    fn judge(&mut self, registration: WorkerRegistration, touched: &mut BTreeSet<PartitionId>) {
        let id = partition_id(&registration);
        let pinned = self
            .partitions
            .get(&id)
            .map(|partition| layout_of(partition));
        let verdict = assess(&registration, &self.rules, pinned);
        if let Ok(plan) = &verdict
            && pinned.is_none()
        {
            let config = (self.make_partition)(id.clone(), plan.layout);
            let partition = Arc::new(Partition::new(id.clone(), config));
            self.partitions.insert(id.clone(), partition);
        }
        let worker_id = registration.worker_id;
        let mut subscriptions = BTreeMap::new();
        if let Some(former) = self.workers.remove(&worker_id) {
            let stays = former.verdict.is_ok()
                && partition_id(&former.registration) == id
                && ranks_of(&former.registration) == ranks_of(&registration);
            touched.insert(partition_id(&former.registration));
            let (kept, dropped) =
                former
                    .subscriptions
                    .into_iter()
                    .partition(|(dp_rank, running)| {
                        let source = verdict
                            .as_ref()
                            .ok()
                            .and_then(|plan| plan.sources.get(dp_rank));
                        stays && source == Some(running.source())
                    });
            subscriptions = kept;
            self.retire(worker_id, dropped);
        }
        touched.insert(id);
        self.workers.insert(
            worker_id,
            Worker {
                registration: Arc::new(registration),
                verdict,
                subscriptions,
            },
        );
    }

    fn retire(&mut self, worker_id: u64, subscriptions: BTreeMap<u32, Subscription>) {
        for (dp_rank, subscription) in subscriptions {
            if let Some(task) = subscription.retire() {
                self.retired.insert((worker_id, dp_rank), task);
            }
        }
    }

    fn set_workers(&self, id: &PartitionId) {
        let Some(partition) = self.partitions.get(id) else {
            return;
        };
        let schedulable = self
            .workers
            .values()
            .filter(|worker| worker.verdict.is_ok() && partition_id(&worker.registration) == *id);
        partition.set_workers(
            schedulable
                .map(|worker| entry_of(&worker.registration))
                .collect(),
        );
    }

    /// Starts the streams that a worker should have and has not.
    fn subscribe(&mut self, worker_id: u64) {
        let Some(worker) = self.workers.get_mut(&worker_id) else {
            return;
        };
        let Ok(plan) = &worker.verdict else { return };
        let Some(partition) = self.partitions.get(&partition_id(&worker.registration)) else {
            return;
        };
        let worker_ranks = ranks_of(&worker.registration);
        for (&dp_rank, source) in &plan.sources {
            if worker.subscriptions.contains_key(&dp_rank) {
                continue;
            }
            let stream = RankStream {
                partition: Arc::clone(partition),
                worker_id,
                dp_rank,
                worker_ranks: worker_ranks.clone(),
                source: source.clone(),
            };
            let predecessor = self.retired.remove(&(worker_id, dp_rank));
            let subscription = self.subscribers.start(stream, predecessor);
            worker.subscriptions.insert(dp_rank, subscription);
        }
    }
}

impl Worker {
    fn publish(&self) -> PublishedWorker {
        let (lifecycle, reasons) = match &self.verdict {
            Ok(_) => (Lifecycle::Schedulable, Vec::new()),
            Err(reasons) => (
                Lifecycle::Incomplete,
                reasons.iter().map(ToString::to_string).collect(),
            ),
        };
        PublishedWorker {
            registration: Arc::clone(&self.registration),
            lifecycle,
            reasons,
            block_size: self
                .verdict
                .as_ref()
                .ok()
                .map(|plan| plan.layout.block_size),
            progress: self
                .subscriptions
                .iter()
                .map(|(&dp_rank, running)| (dp_rank, Arc::clone(running.progress())))
                .collect(),
        }
    }
}

fn partition_id(registration: &WorkerRegistration) -> PartitionId {
    PartitionId::new(
        registration.model_name.as_str(),
        registration.routing_group.as_str(),
    )
}

fn ranks_of(registration: &WorkerRegistration) -> Range<u32> {
    let first_rank = registration.first_rank();
    first_rank..first_rank.saturating_add(registration.rank_count())
}

fn layout_of(partition: &Partition) -> Layout {
    let layout = partition.layout();
    Layout {
        block_size: layout.block_size,
        eagle: layout.eagle,
    }
}

fn entry_of(registration: &WorkerRegistration) -> WorkerEntry {
    WorkerEntry {
        worker_id: registration.worker_id,
        first_rank: registration.first_rank(),
        rank_count: registration.rank_count(),
        taints: registration.taints.clone(),
        overloaded: false,
        max_num_batched_tokens: registration.max_num_batched_tokens,
        total_kv_blocks: registration.total_kv_blocks,
    }
}
