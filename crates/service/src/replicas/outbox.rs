//! The door to what this replica tells the others: one lock, map operations only, and a bell.
//!
//! It sends nothing; the publisher does, when the bell rings.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pointsman_core::{ChargeHandle, ReservationId};
use pointsman_plugin::WorkerWithDpRank;
use tokio::sync::Notify;

use super::metrics::{Dropped, ReplicaMetrics};
use super::owned::{Change, Event, Heartbeat, New, Owned, Piece, Queued};
use super::record::Record;

/// Events that wait to be sent; more are dropped, which peers see and repair.
const MAX_QUEUE: usize = 100_000;

#[derive(Debug)]
pub(crate) struct Outbox {
    pub(super) router_id: u64,
    owned: Mutex<Owned<ChargeHandle>>,
    bell: Notify,
    /// Whether somebody began to listen.
    newcomers: AtomicBool,
    metrics: ReplicaMetrics,
}

/// What is sent next: events, and what stands behind them if they are all.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) events: Vec<Event>,
    pub(super) pieces: Vec<Piece>,
    pub(super) heartbeat: Option<Heartbeat>,
    /// Whether other events wait.
    pub(super) more: bool,
}

/// A reservation that was told of; dropped, its end is told.
#[derive(Debug)]
pub(crate) struct Teller {
    outbox: Arc<Outbox>,
    seq: u64,
}

impl Outbox {
    pub(super) fn new(router_id: u64, metrics: ReplicaMetrics) -> Self {
        Self {
            router_id,
            owned: Mutex::new(Owned::new(MAX_QUEUE)),
            bell: Notify::new(),
            newcomers: AtomicBool::new(false),
            metrics,
        }
    }

    /// Tells of a reservation that was made.
    pub(super) fn add(self: &Arc<Self>, new: New<ChargeHandle>) -> Teller {
        let (seq, queued) = self.lock().add(new, Instant::now());
        self.ring(queued);
        Teller {
            outbox: Arc::clone(self),
            seq,
        }
    }

    pub(super) fn complete_prefill(&self, seq: u64) {
        let queued = self.lock().complete_prefill(seq);
        self.ring(queued);
    }

    pub(super) fn free(&self, seq: u64) {
        let queued = self.lock().free(seq);
        self.ring(queued);
    }

    pub(super) fn tell_of(&self, record: Arc<Record>, change: Change) {
        let queued = self.lock().tell_of(record, change);
        self.ring(queued);
    }

    pub(super) fn numbered(&self, seq: u64) -> Option<(Arc<Record>, ChargeHandle)> {
        self.lock().numbered(seq)
    }

    pub(super) fn number_of(&self, id: &str, worker: WorkerWithDpRank) -> Option<u64> {
        self.lock().number_of(id, worker)
    }

    pub(super) fn heard(&self, id: &str, now: Instant) {
        self.lock().heard(id, now);
    }

    /// A client's call was heard of an id, whoever holds it; others will be told that it lives.
    pub(super) fn renew(&self, id: &str, now: Instant) {
        let mut owned = self.lock();
        owned.heard(id, now);
        owned.renew(id);
    }

    pub(super) fn take_renewed(&self) -> HashSet<ReservationId> {
        self.lock().take_renewed()
    }

    pub(super) fn taken_from(&self, origin: u64) -> Vec<ReservationId> {
        self.lock().taken_from(origin)
    }

    pub(super) fn close(&self) {
        self.lock().close();
        self.bell.notify_one();
    }

    pub(super) fn is_drained(&self) -> bool {
        self.lock().queued() == 0
    }

    /// Somebody was told of all that is held here, and hears from now on.
    pub(super) fn welcome(&self) {
        self.newcomers.store(true, Ordering::Relaxed);
    }

    /// Whether somebody was, since this was asked last.
    pub(super) fn has_newcomers(&self) -> bool {
        self.newcomers.swap(false, Ordering::Relaxed)
    }

    pub(super) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// The next events; behind the last of them the pieces that follow on `after`, and a heartbeat
    /// where one is due.
    pub(super) fn batch(&self, max: usize, after: &[u64], beat: bool) -> Batch {
        let mut owned = self.lock();
        let events = owned.drain(max);
        let more = owned.queued() > 0;
        let now = Instant::now();
        let pieces = if more { &[] } else { after };
        Batch {
            events,
            pieces: pieces
                .iter()
                .map(|after| owned.piece(*after, now))
                .collect(),
            heartbeat: (beat && !more).then(|| owned.heartbeat()),
            more,
        }
    }

    fn ring(&self, queued: Queued) {
        match queued {
            Queued::Yes => self.bell.notify_one(),
            Queued::Dropped => self.metrics.count_dropped(Dropped::QueueFull),
            Queued::Nothing => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, Owned<ChargeHandle>> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Teller {
    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    pub(crate) fn complete_prefill(&self) {
        self.outbox.complete_prefill(self.seq);
    }

    /// For calls while somebody else keeps the teller.
    pub(crate) fn prefill_line(&self) -> PrefillLine {
        PrefillLine {
            outbox: Arc::clone(&self.outbox),
            seq: self.seq,
        }
    }

    /// The load is on another rank now: for others, another reservation of the same id.
    pub(crate) fn moved_to(&mut self, worker: WorkerWithDpRank) {
        let moved = self.outbox.lock().moved(self.seq, worker, Instant::now());
        let (seq, queued) = moved;
        self.outbox.ring(queued);
        self.seq = seq;
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.outbox.free(self.seq);
    }
}

/// Tells that a prefill is over, of a reservation that somebody else keeps.
#[derive(Clone, Debug)]
pub(crate) struct PrefillLine {
    outbox: Arc<Outbox>,
    seq: u64,
}

impl PrefillLine {
    pub(crate) fn complete_prefill(&self) {
        self.outbox.complete_prefill(self.seq);
    }
}
