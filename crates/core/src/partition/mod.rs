//! One model and routing group: who its workers are, what they hold, what they are charged with, and the policy that chooses; it reads no events and no clock itself.
//!
//! Three locks, and what each is for:
//!
//! - `index`: the KV index and the worker table that goes with it. Never held with another, and never for long: its
//!   takers stay awake at first (`lock`).
//! - `policy`: the policy, user code that sees one selection at a time.
//! - `load`: the books. Map operations only; taken under `policy` or alone.
//!
//! A lock whose holder panicked is used on: under `index` and `load` only code of this crate runs,
//! and the policy host expects the worst of a policy anyway.

mod cache;
mod describe;
mod explicit;
mod inspect;
mod lock;
mod select;
pub(crate) mod workers;

use std::fmt;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use hashbrown::HashMap;
use pointsman_plugin::{
    KvRouterConfig, WorkerSelectionPolicyFactory, WorkerType, WorkerWithDpRank,
};
use xxhash_rust::xxh3::xxh3_64;

use crate::hash::HashLayout;
use crate::index::{DEFAULT_MAX_ENTRIES, IndexStats, KvIndex};
use crate::load::LoadBook;
use crate::policy::{Blueprint, PolicyHost};
use crate::predictions::{DEFAULT_CAPACITY, PredictionStats, Predictions};
use crate::ranks::RankSlot;
use crate::selection::{Charged, RankLoad};

pub use inspect::{PotentialLoad, PromptOverlap, RankOverlap};
pub use workers::WorkerEntry;

use workers::{Slots, WorkerTable, ordered};

/// What is believed for this long is believed for ever: ten years.
const LONGEST_BELIEF_SECS: f64 = 315_360_000.0;

/// Names a partition; displays as `model:group`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId {
    pub model_name: String,
    pub routing_group: String,
}

/// What a partition is made of; fixed for its life.
#[derive(Clone)]
pub struct PartitionConfig {
    pub router: KvRouterConfig,
    pub worker_type: WorkerType,
    /// Builds the policy, and builds it again after it panicked.
    pub factory: WorkerSelectionPolicyFactory,
    /// Name of the policy instance, for decision records.
    pub policy_name: String,
    /// Hash of that instance's parameters, for decision records.
    pub policy_fingerprint: u64,
    pub block_size: NonZeroU32,
    /// Whether blocks are hashed as bigrams.
    pub eagle: bool,
    /// Bound on the (block, rank) pairs of the index.
    pub max_index_entries: usize,
    /// Blocks that are believed of a rank because they were routed there, where the rank does not say how many it
    /// has room for.
    pub predicted_blocks_per_rank: usize,
    /// Start of the seeds that requests without one are given; replicas should differ.
    pub seed: u64,
}

/// The workers, cache knowledge, load and policy of one model and routing group.
pub struct Partition {
    id: PartitionId,
    router: KvRouterConfig,
    policy_name: String,
    policy_fingerprint: u64,
    layout: HashLayout,
    seed: u64,
    selections: AtomicU64,
    index: RwLock<Indexed>,
    policy: Mutex<PolicyHost>,
    load: Arc<Mutex<LoadBook>>,
    versions: AtomicU64,
    /// Counted by the policy host; read without waiting for a policy that is busy.
    policy_panics: Arc<AtomicU64>,
}

/// Counts of one partition, for metrics.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct PartitionStats {
    pub index: IndexStats,
    /// Reservations held now, those on workers that left included.
    pub reservations: usize,
    /// How often the policy or its factory panicked.
    pub policy_panics: u64,
    /// What is believed because it was routed.
    pub predictions: PredictionStats,
    /// Ranks whose overlap does not count in full.
    pub discounted_ranks: usize,
}

/// The index and the table whose rows name its slots.
#[derive(Debug)]
struct Indexed {
    kv: KvIndex,
    /// What is routed, where that is believed in; the same slots as `kv`.
    predictions: Option<Predictions>,
    table: Arc<WorkerTable>,
    /// How much of the overlap of some ranks counts, 0 to 1; all of it of the others.
    discounts: Arc<HashMap<WorkerWithDpRank, f64>>,
}

impl PartitionId {
    pub fn new(model_name: impl Into<String>, routing_group: impl Into<String>) -> Self {
        Self {
            model_name: model_name.into(),
            routing_group: routing_group.into(),
        }
    }
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.model_name, self.routing_group)
    }
}

impl PartitionConfig {
    /// Plain blocks, the default bound and seed, everything else as given.
    pub fn new(
        router: KvRouterConfig,
        worker_type: WorkerType,
        factory: WorkerSelectionPolicyFactory,
        block_size: NonZeroU32,
    ) -> Self {
        Self {
            router,
            worker_type,
            factory,
            policy_name: "default".to_owned(),
            policy_fingerprint: 0,
            block_size,
            eagle: false,
            max_index_entries: DEFAULT_MAX_ENTRIES,
            predicted_blocks_per_rank: DEFAULT_CAPACITY,
            seed: 0,
        }
    }
}

impl fmt::Debug for PartitionConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionConfig")
            .field("router", &self.router)
            .field("worker_type", &self.worker_type)
            .field("policy_name", &self.policy_name)
            .field("policy_fingerprint", &self.policy_fingerprint)
            .field("block_size", &self.block_size)
            .field("eagle", &self.eagle)
            .field("max_index_entries", &self.max_index_entries)
            .field("predicted_blocks_per_rank", &self.predicted_blocks_per_rank)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

impl Partition {
    /// A partition without workers. The policy is built now; one that panics is tried again by
    /// each selection.
    pub fn new(id: PartitionId, config: PartitionConfig) -> Self {
        let layout = HashLayout {
            block_size: config.block_size,
            eagle: config.eagle,
        };
        let blueprint = Blueprint {
            factory: config.factory,
            config: config.router.clone(),
            worker_type: config.worker_type,
            partition: id.clone(),
        };
        let policy = PolicyHost::new(blueprint);
        Self {
            policy_panics: policy.panics(),
            seed: config.seed ^ xxh3_64(id.to_string().as_bytes()),
            id,
            router: config.router.clone(),
            policy_name: config.policy_name,
            policy_fingerprint: config.policy_fingerprint,
            layout,
            selections: AtomicU64::new(0),
            index: RwLock::new(Indexed {
                kv: KvIndex::new(config.max_index_entries),
                predictions: time_to_live(&config.router).map(|ttl| {
                    let per_rank = config.predicted_blocks_per_rank;
                    Predictions::new(ttl, config.max_index_entries, per_rank)
                }),
                table: Arc::default(),
                discounts: Arc::default(),
            }),
            policy: Mutex::new(policy),
            load: Arc::default(),
            versions: AtomicU64::new(0),
        }
    }

    pub fn id(&self) -> &PartitionId {
        &self.id
    }

    /// How this partition cuts and hashes blocks.
    pub fn layout(&self) -> HashLayout {
        self.layout
    }

    /// Replaces the schedulable workers; a rank that left loses its cache knowledge at once, and
    /// its load as its requests end.
    pub fn set_workers(&self, workers: Vec<WorkerEntry>) {
        let entries = ordered(workers);
        let (version, load_slots) = {
            let mut book = lock(&self.load);
            let slots = book.set_ranks(entries.iter().flat_map(WorkerEntry::ranks));
            (self.versions.fetch_add(1, Ordering::Relaxed) + 1, slots)
        };
        self.publish(version, entries, load_slots);
    }

    /// Makes `entries` the table that selections see, unless a newer one is there already:
    /// versions are given under the load lock, so the books are that one's too.
    fn publish(&self, version: u64, entries: Vec<WorkerEntry>, load_slots: Vec<RankSlot>) {
        let mut indexed = self.write_index();
        if indexed.table.version() > version {
            return;
        }
        let Indexed {
            kv,
            predictions,
            table,
            discounts,
        } = &mut *indexed;
        if let Some(predictions) = predictions {
            for entry in &entries {
                for worker in entry.ranks() {
                    predictions.add_rank(worker, entry.total_kv_blocks);
                }
            }
        }
        let slots: Vec<_> = entries
            .iter()
            .flat_map(WorkerEntry::ranks)
            .zip(load_slots)
            .map(|(worker, load)| Slots {
                index: kv.add_rank(worker),
                load,
            })
            .collect();
        *table = Arc::new(WorkerTable::new(version, entries, slots));
        let gone: Vec<_> = kv
            .ranks()
            .filter(|worker| table.row_of(*worker).is_none())
            .collect();
        for worker in gone {
            kv.remove_rank(worker);
            if discounts.contains_key(&worker) {
                Arc::make_mut(discounts).remove(&worker);
            }
            if let Some(predictions) = predictions {
                predictions.remove_rank(worker);
            }
        }
    }

    /// What is charged to each rank, in order of worker and rank.
    pub fn loads(&self) -> Vec<RankLoad> {
        lock(&self.load).loads()
    }

    /// The same, with the ranks that left.
    pub fn charged(&self) -> Charged {
        let book = lock(&self.load);
        Charged {
            ranks: book.loads(),
            leaving: book.leaving(),
        }
    }

    pub fn stats(&self) -> PartitionStats {
        let (index, predictions, discounted_ranks) = {
            let indexed = self.read_index();
            let predictions = indexed.predictions.as_ref();
            (
                indexed.kv.stats(),
                predictions.map(Predictions::stats).unwrap_or_default(),
                indexed.discounts.len(),
            )
        };
        let reservations = lock(&self.load).held();
        PartitionStats {
            index,
            reservations,
            policy_panics: self.policy_panics.load(Ordering::Relaxed),
            predictions,
            discounted_ranks,
        }
    }

    fn read_index(&self) -> RwLockReadGuard<'_, Indexed> {
        lock::take(|| self.index.try_read(), || self.index.read())
    }

    fn write_index(&self) -> RwLockWriteGuard<'_, Indexed> {
        lock::take(|| self.index.try_write(), || self.index.write())
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// How long what is routed is believed in: without events that is all there is, with them it
/// bridges the time until they arrive.
fn time_to_live(router: &KvRouterConfig) -> Option<Duration> {
    let seconds = if router.use_kv_events {
        router.router_predicted_ttl_secs?
    } else {
        router.router_ttl_secs
    };
    // The settings are validated where they are read; what is no duration believes in nothing. No clock holds every
    // duration added to it.
    let ttl = Duration::try_from_secs_f64(seconds.min(LONGEST_BELIEF_SECS));
    ttl.ok().filter(|ttl| !ttl.is_zero())
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
