//! The reservations that this replica made, and what the others have yet to be told of them.
//!
//! It sends nothing and frees nothing. Every change has a number, and what is told in the order of
//! the numbers makes up the state: a snapshot's pieces stand between events, each true where it
//! stands.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pointsman_core::ReservationId;
use pointsman_plugin::WorkerWithDpRank;

use super::record::{Record, mark};

/// Reservations of one piece of a snapshot, and the blocks at which a piece is closed.
const PIECE_RESERVATIONS: usize = 256;
const PIECE_BLOCKS: usize = 1 << 16;

/// `H` reaches the load of one reservation without holding it.
#[derive(Debug)]
pub(super) struct Owned<H> {
    seq: u64,
    live: BTreeMap<u64, Live<H>>,
    ids: HashMap<ReservationId, u64>,
    digest: u64,
    queue: VecDeque<Event>,
    max_queue: usize,
    renewed: HashSet<ReservationId>,
    /// How many were taken over.
    taken: usize,
    closed: bool,
}

#[derive(Debug)]
struct Live<H> {
    record: Arc<Record>,
    handle: H,
    prefill_completed: bool,
    heard_at: Instant,
    /// The dead replica that it was taken over from.
    from: Option<u64>,
}

/// One numbered change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) seq: u64,
    pub(super) record: Arc<Record>,
    pub(super) change: Change,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Add,
    PrefillCompleted(Whose),
    Free(Whose),
}

/// Whose reservation a change is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The sender's.
    Own,
    /// Another replica's, which numbered it so; one that numbers nothing is known by id alone.
    Of { origin: u64, seq: Option<u64> },
}

/// What is live, as of the number `seq`, of the reservations numbered after `after` and up to
/// `through`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Piece {
    pub(super) seq: u64,
    pub(super) after: u64,
    pub(super) through: u64,
    pub(super) last: bool,
    pub(super) reservations: Vec<Told>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Told {
    pub(super) seq: u64,
    pub(super) record: Arc<Record>,
    pub(super) prefill_completed: bool,
    pub(super) silent: Duration,
}

/// By which others see whether they know all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heartbeat {
    pub(super) seq: u64,
    pub(super) reservations: u64,
    pub(super) digest: u64,
}

/// Whether a change found room in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queued {
    Yes,
    /// The number is used up all the same: others see the gap.
    Dropped,
    /// There was nothing to tell.
    Nothing,
}

impl<H: Clone> Owned<H> {
    pub(super) fn new(max_queue: usize) -> Self {
        Self {
            seq: 0,
            live: BTreeMap::new(),
            ids: HashMap::new(),
            digest: 0,
            queue: VecDeque::new(),
            max_queue,
            renewed: HashSet::new(),
            taken: 0,
            closed: false,
        }
    }

    /// From now on nothing is told: reservations outlive this process, or end with it, elsewhere.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// A reservation was made. Its number names it from now on.
    pub(super) fn add(&mut self, new: New<H>, now: Instant) -> (u64, Queued) {
        let record = Arc::clone(&new.record);
        let queued = self.tell(Arc::clone(&record), Change::Add);
        let seq = self.seq;
        self.digest ^= mark(seq, &record.id, false);
        self.ids.insert(record.id.clone(), seq);
        self.taken += usize::from(new.from.is_some());
        let live = Live {
            record,
            handle: new.handle,
            prefill_completed: false,
            heard_at: now.checked_sub(new.silent).unwrap_or(now),
            from: new.from,
        };
        self.live.insert(seq, live);
        (seq, queued)
    }

    pub(super) fn complete_prefill(&mut self, seq: u64) -> Queued {
        let Some(live) = self.live.get_mut(&seq) else {
            return Queued::Nothing;
        };
        if std::mem::replace(&mut live.prefill_completed, true) {
            return Queued::Nothing;
        }
        let record = Arc::clone(&live.record);
        self.digest ^= mark(seq, &record.id, false) ^ mark(seq, &record.id, true);
        self.tell(record, Change::PrefillCompleted(Whose::Own))
    }

    /// A reservation has ended; nothing to tell of one that had ended before.
    pub(super) fn free(&mut self, seq: u64) -> Queued {
        let Some(live) = self.live.remove(&seq) else {
            return Queued::Nothing;
        };
        let id = &live.record.id;
        self.taken -= usize::from(live.from.is_some());
        self.digest ^= mark(seq, id, live.prefill_completed);
        if self.ids.get(id) == Some(&seq) {
            self.ids.remove(id);
        }
        self.tell(live.record, Change::Free(Whose::Own))
    }

    /// The load is on another rank now: for others, another reservation of the same id. Its number,
    /// which is the old one where there was nothing to move.
    pub(super) fn moved(
        &mut self,
        seq: u64,
        worker: WorkerWithDpRank,
        now: Instant,
    ) -> (u64, Queued) {
        let Some(live) = self.live.get(&seq) else {
            return (seq, Queued::Nothing);
        };
        let mut record = Record::clone(&live.record);
        record.worker = worker;
        if live.prefill_completed {
            record.prefill_tokens = 0;
        }
        let new = New {
            record: Arc::new(record),
            handle: live.handle.clone(),
            silent: now.saturating_duration_since(live.heard_at),
            from: live.from,
        };
        let freed = self.free(seq);
        let (seq, added) = self.add(new, now);
        (seq, if freed == Queued::Yes { added } else { freed })
    }

    /// Tells of a call on a reservation of another replica.
    pub(super) fn tell_of(&mut self, record: Arc<Record>, change: Change) -> Queued {
        self.tell(record, change)
    }

    /// The load of a reservation, by its number.
    pub(super) fn numbered(&self, seq: u64) -> Option<(Arc<Record>, H)> {
        let live = self.live.get(&seq)?;
        Some((Arc::clone(&live.record), live.handle.clone()))
    }

    /// The number of a reservation that is known by its id and worker alone.
    pub(super) fn number_of(&self, id: &str, worker: WorkerWithDpRank) -> Option<u64> {
        let seq = *self.ids.get(id)?;
        (self.live.get(&seq)?.record.worker == worker).then_some(seq)
    }

    /// Something was heard of an id: its silence begins anew.
    pub(super) fn heard(&mut self, id: &str, now: Instant) {
        if let Some(live) = self.ids.get(id).and_then(|seq| self.live.get_mut(seq)) {
            live.heard_at = live.heard_at.max(now);
        }
    }

    /// The same, and others will be told. They hear of many ids at once, and not often.
    pub(super) fn renew(&mut self, id: &str) {
        if !self.renewed.contains(id) {
            self.renewed.insert(ReservationId::from(id));
        }
    }

    pub(super) fn take_renewed(&mut self) -> HashSet<ReservationId> {
        std::mem::take(&mut self.renewed)
    }

    /// What was taken over from a replica.
    pub(super) fn taken_from(&self, origin: u64) -> Vec<ReservationId> {
        if self.taken == 0 {
            return Vec::new();
        }
        let taken = self.live.values().filter(|live| live.from == Some(origin));
        taken.map(|live| live.record.id.clone()).collect()
    }

    /// The next events to be sent, in order.
    pub(super) fn drain(&mut self, max: usize) -> Vec<Event> {
        let count = max.min(self.queue.len());
        self.queue.drain(..count).collect()
    }

    /// The next piece of a snapshot. It is true only if the queue is empty, and is sent next.
    pub(super) fn piece(&self, after: u64, now: Instant) -> Piece {
        let mut reservations = Vec::new();
        let mut blocks = 0;
        let mut rest = self.live.range(after.saturating_add(1)..);
        let last = loop {
            if reservations.len() >= PIECE_RESERVATIONS || blocks >= PIECE_BLOCKS {
                break false;
            }
            let Some((seq, live)) = rest.next() else {
                break true;
            };
            blocks += live.record.hashes.len();
            reservations.push(Told {
                seq: *seq,
                record: Arc::clone(&live.record),
                prefill_completed: live.prefill_completed,
                silent: now.saturating_duration_since(live.heard_at),
            });
        };
        let through = match reservations.last() {
            Some(told) if !last => told.seq,
            _ => self.seq,
        };
        Piece {
            seq: self.seq,
            after,
            through,
            last,
            reservations,
        }
    }

    /// True only if the queue is empty, and is sent next.
    pub(super) fn heartbeat(&self) -> Heartbeat {
        Heartbeat {
            seq: self.seq,
            reservations: self.live.len() as u64,
            digest: self.digest,
        }
    }

    fn tell(&mut self, record: Arc<Record>, change: Change) -> Queued {
        self.seq += 1;
        if self.closed {
            return Queued::Nothing;
        }
        if self.queue.len() >= self.max_queue {
            return Queued::Dropped;
        }
        let seq = self.seq;
        let event = Event {
            seq,
            record,
            change,
        };
        self.queue.push_back(event);
        Queued::Yes
    }
}

/// A reservation to be told of.
#[derive(Debug)]
pub(super) struct New<H> {
    pub(super) record: Arc<Record>,
    pub(super) handle: H,
    /// How long nothing was heard of it.
    pub(super) silent: Duration,
    pub(super) from: Option<u64>,
}

#[cfg(test)]
mod tests;
