//! Keeps what a peer said of ranks until their event streams begin, gives it to the index unconfirmed,
//! and sees to it that nothing of it is believed for ever.
//!
//! It asks no peer. The engine's own events confirm or contradict; what they do neither to is dropped
//! at the end of the suspect time. Ranks without events are given nothing: nobody could confirm it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pointsman_core::index::{Applied, KvEvent, Placement};
use pointsman_core::{Partition, PartitionId};
use pointsman_plugin::WorkerWithDpRank;
use tracing::{info, warn};

use super::metrics::{Fate, RecoveryMetrics};
use super::parse::{Ranks, RecoveredRank};

type Key = (PartitionId, WorkerWithDpRank);

#[derive(Debug)]
pub(crate) struct Recovery {
    pub(super) metrics: RecoveryMetrics,
    /// How long unconfirmed blocks are believed.
    suspect_time: Duration,
    /// How long a rank that is not registered is waited for.
    hold_time: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// A peer is being asked.
    is_running: bool,
    /// Ranks whose streams began meanwhile. The catalog bounds them.
    streaming: HashMap<Key, Arc<Partition>>,
    /// What was said of ranks that have no stream yet; bounded by what is read of a dump.
    held: Ranks,
    hold_until: Option<Instant>,
    /// What was given to the index, and until when it is believed unconfirmed.
    doubted: Vec<Doubted>,
}

/// What was said of a rank whose stream has begun.
#[derive(Debug)]
pub(crate) struct Claim {
    of: Arc<Recovery>,
    partition: Arc<Partition>,
    worker: WorkerWithDpRank,
    rank: RecoveredRank,
}

#[derive(Debug)]
struct Doubted {
    until: Instant,
    partition: Arc<Partition>,
    worker: WorkerWithDpRank,
}

impl Recovery {
    pub(crate) fn new(
        metrics: RecoveryMetrics,
        suspect_time: Duration,
        hold_time: Duration,
    ) -> Self {
        Self {
            metrics,
            suspect_time,
            hold_time,
            state: Mutex::default(),
        }
    }

    pub(crate) fn start(&self) {
        self.lock().is_running = true;
    }

    /// Ends the asking, with what was learned. Ranks whose streams run are given theirs now; it takes
    /// as long as that takes.
    pub(super) fn finish(self: &Arc<Self>, mut ranks: Ranks, now: Instant) {
        let mut ready = Vec::new();
        {
            let mut state = self.lock();
            state.is_running = false;
            for (key, partition) in std::mem::take(&mut state.streaming) {
                if let Some(rank) = ranks.remove(&key) {
                    ready.push(self.claimed(&partition, key.1, rank));
                }
            }
            state.held = ranks;
            state.hold_until = now.checked_add(self.hold_time);
            self.measure(&state);
        }
        for claim in ready {
            claim.believe();
        }
    }

    /// What was said of a rank, for its stream, which begins with an empty rank. While a peer is
    /// still being asked there is nothing yet; it is given to the index once there is.
    pub(crate) fn claim(
        self: &Arc<Self>,
        partition: &Arc<Partition>,
        worker: WorkerWithDpRank,
    ) -> Option<Claim> {
        let mut state = self.lock();
        if !state.is_running && state.held.is_empty() {
            return None;
        }
        let key = (partition.id().clone(), worker);
        if state.is_running {
            state.streaming.insert(key, Arc::clone(partition));
            return None;
        }
        let rank = state.held.remove(&key);
        self.measure(&state);
        rank.map(|rank| self.claimed(partition, worker, rank))
    }

    fn claimed(
        self: &Arc<Self>,
        partition: &Arc<Partition>,
        worker: WorkerWithDpRank,
        rank: RecoveredRank,
    ) -> Claim {
        Claim {
            of: Arc::clone(self),
            partition: Arc::clone(partition),
            worker,
            rank,
        }
    }

    /// Drops what nobody came for, and what was not confirmed in time.
    pub(crate) fn expire(&self, now: Instant) {
        let (forgotten, due) = {
            let mut state = self.lock();
            let mut forgotten = Ranks::new();
            if state.hold_until.is_some_and(|until| until <= now) {
                forgotten = std::mem::take(&mut state.held);
                state.hold_until = None;
                self.measure(&state);
            }
            let is_due = |doubted: &mut Doubted| doubted.until <= now;
            let due: Vec<_> = state.doubted.extract_if(.., is_due).collect();
            (forgotten, due)
        };
        for rank in forgotten.into_values() {
            self.metrics.count(Fate::Unclaimed, rank.len());
        }
        for doubted in due {
            let dropped = doubted.partition.drop_doubted(doubted.worker);
            self.metrics.count(Fate::Unconfirmed, dropped);
        }
    }

    fn measure(&self, state: &State) {
        let held: usize = state.held.values().map(RecoveredRank::len).sum();
        self.metrics
            .held
            .set(i64::try_from(held).unwrap_or(i64::MAX));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    /// Gives the index what was said of the rank, a run at a time, so that no reader waits for long.
    pub(crate) fn believe(self) {
        let Self {
            of,
            partition,
            worker,
            rank,
        } = self;
        let layout = partition.layout();
        let WorkerWithDpRank { worker_id, dp_rank } = worker;
        if let Some(found) = rank.block_size
            && found != layout.block_size.get()
        {
            let wanted = layout.block_size;
            warn!(
                worker_id,
                dp_rank, found, wanted, "a peer's blocks have another size and are left out"
            );
            of.metrics.count(Fate::BlockSize, rank.len());
            return;
        }
        let (mut applied, mut refused) = (0, 0);
        for (tier, event) in rank.into_events() {
            let KvEvent::Stored { blocks, .. } = &event else {
                continue;
            };
            let blocks = blocks.len();
            match partition.apply_unconfirmed(worker, Placement::from(tier), &event) {
                // A published dump may tell children before their parents: they wait for them.
                Applied::Stored { .. } | Applied::UnknownParent => applied += blocks,
                _ => refused += blocks,
            }
        }
        of.metrics.count(Fate::Applied, applied);
        of.metrics.count(Fate::Refused, refused);
        info!(
            worker_id,
            dp_rank, applied, refused, "blocks of a rank taken over from a peer"
        );
        if let Some(until) = Instant::now().checked_add(of.suspect_time) {
            of.lock().doubted.push(Doubted {
                until,
                partition,
                worker,
            });
        }
    }
}

#[cfg(test)]
mod tests;
