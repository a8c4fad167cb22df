//! Turns decoded batches into changes of the index: checks them against the partition, hashes their
//! tokens in the right namespace and applies them to the right rank, tier and group.
//!
//! One ingest serves one event stream. It does no I/O and keeps no more than what later events need:
//! kinds of cache groups, block sizes, small blocks that are joined or wait for that and, for salted or
//! adapter blocks, their namespaces; all bounded.

mod cuts;
mod memory;
mod namespaces;
mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use pointsman_core::Partition;
use pointsman_core::hash::{EngineHash, HashLayout};
use pointsman_core::index::{Applied, KvEvent, Placement, Tier};
use pointsman_core::recut::EngineStore;
use pointsman_plugin::WorkerWithDpRank;
use tracing::debug;

use super::progress::RankProgress;
use super::skip::SkipReason;
use super::wire::{self, Batch, Event, Frame, Removed, Stored};
use crate::metrics::{EventKind, EventMetrics};
use crate::recovery::{Claim, Recovery};

use memory::{RankMemory, WaitingPieces};
use run::{Run, Scratch};

/// Names of a batch that are read ahead, at most, of blocks to come and of others.
const MAX_EXPECTED: usize = 512;

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
    /// Ranks that live batches of this stream were for: its replays are for them as well.
    spoken_for: BTreeSet<u32>,
    /// Ranks of which something was doubted already when this stream began to doubt.
    hearsay: BTreeSet<u32>,
    waiting_pieces: WaitingPieces,
    /// Kept for their capacity.
    batch: Batch,
    scratch: Scratch,
}

impl Ingest {
    pub(super) fn new(target: Target, progress: Arc<RankProgress>, metrics: EventMetrics) -> Self {
        Self {
            target,
            progress,
            waiting_pieces: WaitingPieces::in_gauge(&metrics.waiting_pieces),
            metrics,
            ranks: BTreeMap::new(),
            spoken_for: BTreeSet::new(),
            hearsay: BTreeSet::new(),
            batch: Batch::default(),
            scratch: Scratch::default(),
        }
    }

    /// Applies one numbered batch. One that does not decode is counted and has used its number.
    pub(super) fn apply(&mut self, frame: &Frame, replayed: bool) {
        #[cfg(test)]
        assert!(frame.payload != POISON, "on purpose");
        let mut batch = std::mem::take(&mut self.batch);
        match batch.decode(&frame.payload) {
            Ok(()) => {
                self.apply_batch(&batch, replayed);
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
        self.batch = batch;
        self.count_waiting();
        self.progress.applied(frame.sequence);
    }

    fn count_waiting(&mut self) {
        let ranks = self.ranks.values();
        let waiting = ranks.map(|memory| memory.cuts.waiting()).sum();
        self.waiting_pieces.set(waiting);
    }

    /// Whether a replayed batch belongs to a rank that this stream never spoke for live: then it is
    /// another publisher's, with numbers of its own.
    pub(super) fn is_foreign(&self, payload: &[u8]) -> bool {
        self.target.ranks.len() > 1
            && wire::rank_of(payload).is_some_and(|dp_rank| {
                dp_rank != self.target.dp_rank && !self.spoken_for.contains(&dp_rank)
            })
    }

    /// Forgets what this stream said, of every rank that it spoke for.
    pub(super) fn clear(&mut self) {
        for dp_rank in self.spoken_ranks() {
            self.target.partition.clear_rank(self.worker(dp_rank));
        }
        self.ranks.clear();
        self.count_waiting();
        self.progress.cleared();
    }

    /// Doubts what this stream said; it counts until it is confirmed or dropped.
    pub(super) fn doubt(&mut self) {
        self.hearsay.clear();
        for dp_rank in self.spoken_ranks() {
            let worker = self.worker(dp_rank);
            let partition = &self.target.partition;
            if partition.doubted(worker) > 0 {
                self.hearsay.insert(dp_rank);
            }
            partition.doubt_rank(worker);
            if let Some(memory) = self.ranks.get_mut(&dp_rank) {
                memory.cuts.doubt();
            }
        }
    }

    /// Nothing of what this stream said is doubted any more. Where a peer's word was doubted before,
    /// it cannot be told from the engine's: whoever gave it drops what is not confirmed.
    pub(super) fn trust(&mut self) {
        for dp_rank in self.spoken_ranks() {
            if let Some(memory) = self.ranks.get_mut(&dp_rank) {
                memory.cuts.trust();
            }
            if !self.hearsay.contains(&dp_rank) {
                self.target.partition.trust_rank(self.worker(dp_rank));
            }
        }
    }

    /// Forgets what is still doubted; how many blocks that were.
    pub(super) fn drop_doubted(&mut self) -> usize {
        let mut dropped = 0_usize;
        for dp_rank in self.spoken_ranks() {
            let worker = self.worker(dp_rank);
            let partition = &self.target.partition;
            let doubted = partition.doubted(worker);
            dropped = dropped.saturating_add(doubted);
            let in_doubt = |memory: &&mut RankMemory| doubted > 0 || memory.cuts.are_doubted();
            let Some(memory) = self.ranks.get_mut(&dp_rank).filter(in_doubt) else {
                partition.drop_doubted(worker);
                continue;
            };
            if memory.cuts.joins() {
                // Which small blocks are still held is as doubtful as what they were joined to.
                partition.clear_rank(worker);
                memory.clear();
                continue;
            }
            memory.cuts.trust();
            partition.drop_doubted(worker);
            memory.namespaces.retain(|name| {
                partition.holds_name(worker, name) || partition.awaits(worker, name)
            });
        }
        self.count_waiting();
        dropped
    }

    fn spoken_ranks(&self) -> BTreeSet<u32> {
        let mut ranks: BTreeSet<u32> = self.ranks.keys().copied().collect();
        ranks.insert(self.target.dp_rank);
        ranks
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

    fn apply_batch(&mut self, batch: &Batch, replayed: bool) {
        for (reason, count) in batch.skipped.iter() {
            self.metrics.count_skipped(reason, count);
        }
        if batch.skipped.unknown_fields > 0 {
            let fields = u64::from(batch.skipped.unknown_fields);
            self.metrics.unknown_fields.inc_by(fields);
        }
        let dp_rank = batch.dp_rank.unwrap_or(self.target.dp_rank);
        let is_other = dp_rank != self.target.dp_rank;
        let foreign = if !self.target.ranks.contains(&dp_rank) {
            Some(SkipReason::UnknownRank)
        } else if replayed && is_other && !self.spoken_for.contains(&dp_rank) {
            Some(SkipReason::OtherRank)
        } else {
            None
        };
        if let Some(reason) = foreign {
            let events = u32::try_from(batch.events.len()).unwrap_or(u32::MAX);
            self.metrics.count_skipped(reason, events.max(1));
            return;
        }
        if is_other && !replayed {
            self.spoken_for.insert(dp_rank);
        }
        self.expect(dp_rank, &batch.events);
        for event in &batch.events {
            let applied = match event {
                Event::Stored(stored) => self.store(dp_rank, stored),
                Event::Removed(removed) => self.remove(dp_rank, removed),
                Event::Cleared => Ok(self.clear_rank(dp_rank)),
            };
            match applied {
                Ok(kind) => self.metrics.count_applied(kind),
                Err(reason) => self.metrics.count_skipped(reason, 1),
            }
        }
    }

    /// Engines tell in one batch which block each of their requests filled in a step. Longer events read ahead for
    /// themselves.
    fn expect(&self, dp_rank: u32, events: &[Event]) {
        let small = |event: &&Event| event.blocks().len() == 1;
        if events.iter().filter(small).nth(1).is_none() {
            return;
        }
        let names = |of: fn(&Event) -> &[u64]| {
            let names = events.iter().filter(small).flat_map(of).copied();
            names.map(EngineHash).take(MAX_EXPECTED)
        };
        let worker = self.worker(dp_rank);
        let (added, known) = (names(Event::added), names(Event::known));
        self.target.partition.expect_events(worker, added, known);
    }

    fn clear_rank(&mut self, dp_rank: u32) -> EventKind {
        self.ranks.entry(dp_rank).or_default().clear();
        self.target.partition.clear_rank(self.worker(dp_rank));
        EventKind::Cleared
    }

    fn store(&mut self, dp_rank: u32, stored: &Stored) -> Result<EventKind, SkipReason> {
        let worker = self.worker(dp_rank);
        let layout = self.target.layout;
        let memory = self.ranks.entry(dp_rank).or_default();
        let at = Placement {
            tier: stored.tier,
            group: memory.groups.of_store(stored.group)?,
        };
        let blocks = stored.engine_hashes.len();
        if blocks == 0 {
            return Ok(EventKind::Stored);
        }
        if stored.tokens.is_empty() && stored.tier != Tier::Device {
            return self.link(worker, at, stored);
        }
        let size = run::reconciled(&self.progress, stored, layout, worker)?;
        if stored.bigram != layout.eagle {
            return Err(SkipReason::TokenForm);
        }
        let tokens = run::tokens_of(stored, size, layout).ok_or(SkipReason::TokenCount)?;
        let sorted = &mut self.scratch.sorted;
        if run::names_a_block_twice(&stored.engine_hashes, stored.parent, sorted) {
            return Err(SkipReason::DuplicateHash);
        }
        let partition = &self.target.partition;
        let is_held = |name| partition.holds_name(worker, EngineHash(name));
        let namespace = memory.namespaces.of(stored, is_held)?;
        let is_recut = size != layout.block_size;
        let readable = run::readable_blocks(stored, is_recut);
        if readable == 0 {
            return Err(SkipReason::ExtraKeys);
        }
        if readable < blocks {
            self.metrics.count_skipped(SkipReason::ExtraKeys, 1);
        }
        let names = &stored.engine_hashes[..readable];
        let seed = namespace.as_deref().map(namespaces::Namespace::seed);
        let seed = seed.unwrap_or_default();
        match &namespace {
            Some(namespace) => memory.namespaces.remember(names, at.tier, namespace)?,
            None => memory.namespaces.rename(names),
        }
        let run = Run {
            stored,
            tokens,
            size,
            readable,
            seed,
        };
        let waits = if is_recut {
            self.put_recut(worker, at, &run)?
        } else {
            let event = run.event(&mut self.scratch, layout);
            let applied = partition.apply_event_at(worker, at, &event);
            self.scratch.take_back(event);
            applied == Applied::UnknownParent
        };
        Ok(if waits {
            EventKind::Waiting
        } else {
            EventKind::Stored
        })
    }

    /// Stores blocks that are cut again; true if they wait for their parent.
    fn put_recut(
        &mut self,
        worker: WorkerWithDpRank,
        at: Placement,
        run: &Run<'_>,
    ) -> Result<bool, SkipReason> {
        let layout = self.target.layout;
        let partition = &self.target.partition;
        let memory = self.ranks.entry(worker.dp_rank).or_default();
        let per_block = usize::try_from(run.size.get()).unwrap_or(usize::MAX);
        let tokens = run.readable.saturating_mul(per_block) + usize::from(layout.eagle);
        let parent = run.stored.parent.map(EngineHash);
        let engine_hashes: Vec<_> = run.names().iter().copied().map(EngineHash).collect();
        let store = EngineStore {
            parent,
            engine_hashes: &engine_hashes,
            tokens: run.tokens.get(..tokens).ok_or(SkipReason::TokenCount)?,
            seed: run.seed,
        };
        let is_held = |name| partition.holds_name(worker, name);
        let recast = memory.cuts.stored(at, run.size, layout, &store, is_held)?;
        for reason in recast.skipped {
            self.metrics.count_skipped(reason, 1);
        }
        let mut waits = recast.waits;
        for event in &recast.events {
            waits |= partition.apply_event_at(worker, at, event) == Applied::UnknownParent;
        }
        Ok(waits)
    }

    /// Blocks told without tokens: what they are is known where the rank holds them in another tier.
    fn link(
        &mut self,
        worker: WorkerWithDpRank,
        at: Placement,
        stored: &Stored,
    ) -> Result<EventKind, SkipReason> {
        let memory = self.ranks.entry(worker.dp_rank).or_default();
        let names = &stored.engine_hashes;
        let engine_hashes: Vec<_> = names.iter().copied().map(EngineHash).collect();
        let partition = &self.target.partition;
        let mut found = 0;
        let layout = self.target.layout;
        for event in memory.cuts.linked(at, &engine_hashes, layout) {
            if let Applied::Stored {
                blocks, duplicates, ..
            } = partition.apply_event_at(worker, at, &event)
            {
                found += blocks + duplicates;
            }
        }
        if found == 0 {
            return Err(SkipReason::UnknownBlock);
        }
        memory.namespaces.copy(names, at.tier);
        Ok(EventKind::Stored)
    }

    fn remove(&mut self, dp_rank: u32, removed: &Removed) -> Result<EventKind, SkipReason> {
        let worker = self.worker(dp_rank);
        let partition = &self.target.partition;
        let memory = self.ranks.entry(dp_rank).or_default();
        let index = memory.groups.of_removal(removed.group)?;
        memory.namespaces.forget(removed);
        let mut counted = Vec::new();
        let names = &mut self.scratch.names;
        names.clear();
        for (at, name) in removed.engine_hashes.iter().enumerate() {
            match removed.remaining.get(at) {
                Some(Some(left)) => counted.push((EngineHash(*name), *left)),
                _ => names.push(EngineHash(*name)),
            }
        }
        for group in memory.groups.removed_from(index) {
            let at = Placement {
                tier: removed.tier,
                group,
            };
            let apply = |event: &KvEvent| {
                partition.apply_event_at(worker, at, event);
            };
            memory.cuts.removed(at, names, apply);
            if !counted.is_empty() {
                memory.cuts.remaining(at, &counted, apply);
            }
        }
        Ok(EventKind::Removed)
    }

    /// What is remembered of earlier events: namespaces and small blocks.
    #[cfg(test)]
    fn remembered(&self) -> usize {
        let ranks = self.ranks.values();
        ranks
            .map(|memory| memory.namespaces.len() + memory.cuts.pieces() + memory.cuts.waiting())
            .sum()
    }
}

/// A payload that makes tests panic.
#[cfg(test)]
pub(super) const POISON: &[u8] = b"panic on purpose";

#[cfg(test)]
mod tests;
