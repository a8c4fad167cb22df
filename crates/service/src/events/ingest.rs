//! Turns decoded batches into changes of the index: checks them against the partition, hashes their
//! tokens in the right namespace and applies them to the right rank.
//!
//! One ingest serves one event stream. It does no I/O and keeps no more than what later events need:
//! kinds of cache groups and, for salted or adapter blocks, their namespaces; both bounded.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use pointsman_core::Partition;
use pointsman_core::hash::{self, EngineHash, HashLayout, HashSeed};
use pointsman_core::index::{Applied, KvEvent, StoredBlock};
use pointsman_plugin::WorkerWithDpRank;
use tracing::debug;

use super::progress::RankProgress;
use super::skip::SkipReason;
use super::wire::{self, Batch, CacheKind, Event, Frame, Group, Removed, Stored};
use crate::metrics::{EventKind, EventMetrics};
use crate::recovery::{Claim, Recovery};

/// Cache groups whose kind is remembered, per rank.
const MAX_GROUPS: usize = 256;
/// Salted or adapter blocks whose namespace is remembered, per rank. Beyond it such blocks are left
/// out, so their children find no parent: less is credited, never the wrong thing.
const MAX_NAMESPACED_BLOCKS: usize = 262_144;

/// Which stream this is, and what its blocks must look like.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) partition: Arc<Partition>,
    pub(super) layout: HashLayout,
    pub(super) worker_id: u64,
    /// The rank whose socket this is.
    pub(super) dp_rank: u32,
    /// All ranks of the worker.
    pub(super) ranks: Range<u32>,
}

#[derive(Debug)]
pub(super) struct Ingest {
    target: Target,
    progress: Arc<RankProgress>,
    metrics: EventMetrics,
    ranks: BTreeMap<u32, RankMemory>,
}

/// What later events of a rank need to know of earlier ones.
#[derive(Debug, Default)]
struct RankMemory {
    groups: HashMap<u32, CacheKind>,
    namespaces: HashMap<u64, Namespaced>,
}

#[derive(Debug)]
struct Namespaced {
    namespace: Arc<Namespace>,
    copies: u32,
}

#[derive(Debug, PartialEq, Eq)]
struct Namespace {
    lora_name: Option<Box<str>>,
    cache_salt: Option<Box<str>>,
}

impl Ingest {
    pub(super) fn new(target: Target, progress: Arc<RankProgress>, metrics: EventMetrics) -> Self {
        Self {
            target,
            progress,
            metrics,
            ranks: BTreeMap::new(),
        }
    }

    /// Applies one numbered batch. One that does not decode is counted and has used its number.
    pub(super) fn apply(&mut self, frame: &Frame, replayed: bool) {
        match wire::decode_batch(&frame.payload) {
            Ok(batch) => {
                self.apply_batch(batch, replayed);
                self.metrics.batches.inc();
                if replayed {
                    self.metrics.replayed_batches.inc();
                }
            }
            Err(error) => {
                self.metrics.bad_batches.inc();
                let worker_id = self.target.worker_id;
                debug!(worker_id, sequence = frame.sequence, %error, "kv event batch dropped");
            }
        }
        self.progress.applied(frame.sequence);
    }

    /// Forgets what this stream said, of every rank that it spoke for.
    pub(super) fn clear(&mut self) {
        let mut ranks: BTreeSet<u32> = std::mem::take(&mut self.ranks).into_keys().collect();
        ranks.insert(self.target.dp_rank);
        for dp_rank in ranks {
            self.target.partition.clear_rank(self.worker(dp_rank));
        }
    }

    /// What a peer said of the rank whose stream this is.
    pub(super) fn claim(&self, recovery: &Arc<Recovery>) -> Option<Claim> {
        recovery.claim(&self.target.partition, self.worker(self.target.dp_rank))
    }

    fn worker(&self, dp_rank: u32) -> WorkerWithDpRank {
        WorkerWithDpRank {
            worker_id: self.target.worker_id,
            dp_rank,
        }
    }

    fn apply_batch(&mut self, batch: Batch, replayed: bool) {
        for (reason, count) in batch.skipped.iter() {
            self.metrics.count_skipped(reason, count);
        }
        let dp_rank = batch.dp_rank.unwrap_or(self.target.dp_rank);
        let foreign = if !self.target.ranks.contains(&dp_rank) {
            Some(SkipReason::UnknownRank)
        } else if replayed && dp_rank != self.target.dp_rank {
            Some(SkipReason::OtherRank)
        } else {
            None
        };
        if let Some(reason) = foreign {
            let events = u32::try_from(batch.events.len()).unwrap_or(u32::MAX);
            self.metrics.count_skipped(reason, events.max(1));
            return;
        }
        for event in batch.events {
            let applied = match event {
                Event::Stored(stored) => self.store(dp_rank, &stored).map(|()| EventKind::Stored),
                Event::Removed(removed) => {
                    self.remove(dp_rank, removed).map(|()| EventKind::Removed)
                }
                Event::Cleared => {
                    self.ranks.entry(dp_rank).or_default().namespaces.clear();
                    self.target
                        .partition
                        .apply_event(self.worker(dp_rank), &KvEvent::Cleared);
                    Ok(EventKind::Cleared)
                }
            };
            match applied {
                Ok(kind) => self.metrics.count_applied(kind),
                Err(reason) => self.metrics.count_skipped(reason, 1),
            }
        }
    }

    fn store(&mut self, dp_rank: u32, stored: &Stored) -> Result<(), SkipReason> {
        let worker = self.worker(dp_rank);
        let memory = self.ranks.entry(dp_rank).or_default();
        memory.check_group(stored.group)?;
        if stored.engine_hashes.is_empty() {
            return Ok(());
        }
        self.progress
            .check_block_size(stored.block_size, self.target.layout.block_size.get())?;
        if stored.bigram != self.target.layout.eagle {
            return Err(SkipReason::TokenForm);
        }
        let blocks = stored.engine_hashes.len();
        if self.target.layout.complete_blocks(stored.tokens.len()) != blocks {
            return Err(SkipReason::TokenCount);
        }
        if names_a_block_twice(&stored.engine_hashes, stored.parent) {
            return Err(SkipReason::DuplicateHash);
        }
        let namespace = memory.namespace_of(stored)?;
        if stored.readable_blocks < blocks {
            self.metrics.count_skipped(SkipReason::ExtraKeys, 1);
        }
        let event = stored_event(stored, self.target.layout, namespace.as_deref());
        let names = &stored.engine_hashes[..stored.readable_blocks.min(blocks)];
        match &namespace {
            Some(namespace) => memory.remember(names, namespace)?,
            None => memory.rename(names),
        }
        if self.target.partition.apply_event(worker, &event) == Applied::UnknownParent {
            if namespace.is_some() {
                memory.forget(names);
            }
            return Err(SkipReason::UnknownParent);
        }
        Ok(())
    }

    fn remove(&mut self, dp_rank: u32, removed: Removed) -> Result<(), SkipReason> {
        let worker = self.worker(dp_rank);
        let memory = self.ranks.entry(dp_rank).or_default();
        memory.check_group(removed.group)?;
        memory.forget(&removed.engine_hashes);
        let engine_hashes = removed.engine_hashes.into_iter().map(EngineHash).collect();
        self.target
            .partition
            .apply_event(worker, &KvEvent::Removed { engine_hashes });
        Ok(())
    }
}

impl RankMemory {
    /// Lets pass what is full attention, by its own word or by what its group said before.
    fn check_group(&mut self, group: Group) -> Result<(), SkipReason> {
        let kind = match (group.index, group.kind) {
            (None, kind) => kind.unwrap_or(CacheKind::FullAttention),
            (Some(index), Some(kind)) => {
                if self.groups.len() < MAX_GROUPS || self.groups.contains_key(&index) {
                    self.groups.insert(index, kind);
                }
                kind
            }
            (Some(index), None) => match self.groups.get(&index) {
                Some(&kind) => kind,
                None if index == 0 => CacheKind::FullAttention,
                None => return Err(SkipReason::UnknownGroup),
            },
        };
        match kind {
            CacheKind::FullAttention => Ok(()),
            CacheKind::Other => Err(SkipReason::CacheKind),
        }
    }

    /// The namespace of a store: its parent's, which it may repeat but not contradict.
    fn namespace_of(&self, stored: &Stored) -> Result<Option<Arc<Namespace>>, SkipReason> {
        let own = Namespace {
            lora_name: stored.lora_name.clone(),
            cache_salt: stored.cache_salt.clone(),
        };
        let is_plain = own.lora_name.is_none() && own.cache_salt.is_none();
        let Some(parent) = stored.parent else {
            return Ok((!is_plain).then(|| Arc::new(own)));
        };
        let Some(inherited) = self.namespaces.get(&parent).map(|known| &known.namespace) else {
            return if is_plain {
                Ok(None)
            } else {
                Err(SkipReason::Namespace)
            };
        };
        let agrees = |own: &Option<Box<str>>, inherited: &Option<Box<str>>| {
            own.is_none() || own == inherited
        };
        if agrees(&own.lora_name, &inherited.lora_name)
            && agrees(&own.cache_salt, &inherited.cache_salt)
        {
            Ok(Some(Arc::clone(inherited)))
        } else {
            Err(SkipReason::Namespace)
        }
    }

    fn remember(&mut self, names: &[u64], namespace: &Arc<Namespace>) -> Result<(), SkipReason> {
        if self.namespaces.len().saturating_add(names.len()) > MAX_NAMESPACED_BLOCKS {
            return Err(SkipReason::NamespacesFull);
        }
        for &name in names {
            let known = self.namespaces.entry(name).or_insert_with(|| Namespaced {
                namespace: Arc::clone(namespace),
                copies: 0,
            });
            if known.namespace != *namespace {
                // The engine gave the name to another block; its later meaning counts.
                *known = Namespaced {
                    namespace: Arc::clone(namespace),
                    copies: 0,
                };
            }
            known.copies = known.copies.saturating_add(1);
        }
        Ok(())
    }

    /// The names now mean blocks without a namespace, whatever they meant before.
    fn rename(&mut self, names: &[u64]) {
        if !self.namespaces.is_empty() {
            for name in names {
                self.namespaces.remove(name);
            }
        }
    }

    fn forget(&mut self, names: &[u64]) {
        if self.namespaces.is_empty() {
            return;
        }
        for name in names {
            if let Some(known) = self.namespaces.get_mut(name) {
                known.copies = known.copies.saturating_sub(1);
                if known.copies == 0 {
                    self.namespaces.remove(name);
                }
            }
        }
    }
}

fn stored_event(stored: &Stored, layout: HashLayout, namespace: Option<&Namespace>) -> KvEvent {
    let seed = namespace.map_or_else(HashSeed::default, |namespace| {
        HashSeed::new(
            namespace.lora_name.as_deref(),
            namespace.cache_salt.as_deref(),
        )
    });
    let hashes = hash::prompt_hashes(&stored.tokens, layout, seed, &stored.media);
    let blocks = stored
        .engine_hashes
        .iter()
        .zip(hashes.block_hashes)
        .take(stored.readable_blocks)
        .map(|(&name, block_hash)| StoredBlock {
            engine_hash: EngineHash(name),
            block_hash,
        })
        .collect();
    KvEvent::Stored {
        parent: stored.parent.map(EngineHash),
        blocks,
    }
}

/// Whether a name occurs twice, the parent's included: then no order of blocks can be right.
fn names_a_block_twice(names: &[u64], parent: Option<u64>) -> bool {
    if names.len() == 1 {
        return parent == Some(names[0]);
    }
    let mut sorted: Vec<u64> = names.iter().copied().chain(parent).collect();
    sorted.sort_unstable();
    sorted.windows(2).any(|pair| pair[0] == pair[1])
}

#[cfg(test)]
mod tests;
