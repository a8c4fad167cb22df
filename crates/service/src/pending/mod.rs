//! Selections that were made and not reserved yet, remembered by partition and id until they are.
//!
//! Bounded by time, count and bytes, oldest out first. It charges nothing and chooses nothing; what
//! it lets go is dropped after its lock is.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pointsman_core::hash::SequenceHash;
use pointsman_core::{Charge, PartitionId};
use pointsman_plugin::WorkerWithDpRank;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::audit::CachePrediction;

/// What an entry takes beside its texts and hashes.
const ENTRY_BYTES: usize = 256;

/// Bounds on pending selections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingConfig {
    /// How long one may wait to be reserved.
    pub time_to_live: Duration,
    pub max_entries: usize,
    /// Approximate.
    pub max_bytes: usize,
}

impl Default for PendingConfig {
    fn default() -> Self {
        Self {
            time_to_live: Duration::from_mins(2),
            max_entries: 4096,
            max_bytes: 256 << 20,
        }
    }
}

/// Names a pending selection: ids are the client's, and scoped by partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) partition: PartitionId,
    pub(crate) id: String,
}

/// What has to be known to reserve a selection later.
#[derive(Debug)]
pub(crate) struct PendingSelection {
    pub(crate) worker: WorkerWithDpRank,
    pub(crate) charge: Charge,
    /// What the index was asked by, where what is routed is believed in.
    pub(crate) looked_up: Arc<[SequenceHash]>,
    pub(crate) prediction: CachePrediction,
    pub(crate) expected_output_tokens: Option<u32>,
}

/// A pending selection as it was found: a later one of the same id is another.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    generation: u64,
    pub(crate) selection: Arc<PendingSelection>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct PendingMetrics {
    entries: Gauge,
    bytes: Gauge,
    expired: Counter,
    evicted: Counter,
}

#[derive(Debug)]
pub(crate) struct PendingSelections {
    config: PendingConfig,
    metrics: PendingMetrics,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<Arc<Key>, Entry>,
    /// By generation, so by age: all live equally long.
    order: BTreeMap<u64, Arc<Key>>,
    bytes: usize,
    generation: u64,
}

#[derive(Debug)]
struct Entry {
    generation: u64,
    expires_at: Instant,
    bytes: usize,
    selection: Arc<PendingSelection>,
}

impl PendingSelections {
    pub(crate) fn new(config: PendingConfig, metrics: PendingMetrics) -> Self {
        Self {
            config,
            metrics,
            state: Mutex::default(),
        }
    }

    /// Keeps a selection; one of the same key is replaced, and the oldest make room. What is
    /// larger than the whole budget is not kept.
    pub(crate) fn remember(&self, key: Key, selection: PendingSelection, now: Instant) {
        let bytes = size_of(&key, &selection);
        let mut gone = Vec::new();
        let mut state = self.lock();
        gone.extend(state.remove(&key));
        self.expire_into(&mut state, now, &mut gone);
        let fits = bytes <= self.config.max_bytes && self.config.max_entries > 0;
        let expires_at = now.checked_add(self.config.time_to_live);
        if let Some(expires_at) = expires_at.filter(|_| fits) {
            while state.entries.len() >= self.config.max_entries
                || state.bytes > self.config.max_bytes - bytes
            {
                let Some(oldest) = state.pop_oldest() else {
                    break;
                };
                gone.push(oldest);
                self.metrics.evicted.inc();
            }
            state.insert(key, selection, bytes, expires_at);
        } else {
            self.metrics.evicted.inc();
        }
        self.measure(&state);
        drop(state);
        drop(gone);
    }

    pub(crate) fn find(&self, key: &Key, now: Instant) -> Option<Found> {
        let state = self.lock();
        let entry = state.entries.get(key)?;
        (entry.expires_at > now).then(|| Found {
            generation: entry.generation,
            selection: Arc::clone(&entry.selection),
        })
    }

    /// Lets go of what was found, unless another has taken its place since.
    pub(crate) fn consume(&self, key: &Key, found: &Found) {
        let mut state = self.lock();
        let is_same = state
            .entries
            .get(key)
            .is_some_and(|entry| entry.generation == found.generation);
        let gone = if is_same { state.remove(key) } else { None };
        self.measure(&state);
        drop(state);
        drop(gone);
    }

    /// Lets go of whatever is pending under the key.
    pub(crate) fn discard(&self, key: &Key) {
        let mut state = self.lock();
        let gone = state.remove(key);
        self.measure(&state);
        drop(state);
        drop(gone);
    }

    /// Lets go of everything whose time is over.
    pub(crate) fn expire(&self, now: Instant) {
        let mut gone = Vec::new();
        let mut state = self.lock();
        self.expire_into(&mut state, now, &mut gone);
        self.measure(&state);
        drop(state);
        drop(gone);
    }

    fn expire_into(&self, state: &mut State, now: Instant, gone: &mut Vec<Entry>) {
        while state.oldest().is_some_and(|entry| entry.expires_at <= now) {
            gone.extend(state.pop_oldest());
            self.metrics.expired.inc();
        }
    }

    fn measure(&self, state: &State) {
        let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.metrics.entries.set(gauge(state.entries.len()));
        self.metrics.bytes.set(gauge(state.bytes));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn insert(&mut self, key: Key, selection: PendingSelection, bytes: usize, expires_at: Instant) {
        self.generation += 1;
        let key = Arc::new(key);
        self.order.insert(self.generation, Arc::clone(&key));
        self.bytes = self.bytes.saturating_add(bytes);
        self.entries.insert(
            key,
            Entry {
                generation: self.generation,
                expires_at,
                bytes,
                selection: Arc::new(selection),
            },
        );
    }

    fn remove(&mut self, key: &Key) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.order.remove(&entry.generation);
        self.bytes = self.bytes.saturating_sub(entry.bytes);
        Some(entry)
    }

    fn oldest(&self) -> Option<&Entry> {
        let (_, key) = self.order.first_key_value()?;
        self.entries.get(key)
    }

    fn pop_oldest(&mut self) -> Option<Entry> {
        let (_, key) = self.order.first_key_value()?;
        let key = Arc::clone(key);
        self.remove(&key)
    }
}

impl PendingMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "pending_selections",
            "Selections waiting to be reserved",
            self.entries.clone(),
        );
        registry.register(
            "pending_selections_bytes",
            "Approximate memory of the selections waiting to be reserved",
            self.bytes.clone(),
        );
        registry.register(
            "pending_selections_expired",
            "Selections whose time to be reserved ran out",
            self.expired.clone(),
        );
        registry.register(
            "pending_selections_evicted",
            "Selections let go for room before they were reserved",
            self.evicted.clone(),
        );
    }
}

fn size_of(key: &Key, selection: &PendingSelection) -> usize {
    let texts = key.id.len() + key.partition.model_name.len() + key.partition.routing_group.len();
    let shared = &selection.charge.sequence_hashes;
    let looked_up = if Arc::ptr_eq(shared, &selection.looked_up) {
        0
    } else {
        size_of_val(&*selection.looked_up)
    };
    ENTRY_BYTES + texts + size_of_val(&**shared) + looked_up
}

#[cfg(test)]
mod tests;
