//! What is known of one replica: the order of its events, how far its snapshot has come, and when
//! it was last heard.
//!
//! It holds no load and asks for nothing: it says when to ask.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use pointsman_core::ReservationId;

use super::Entry;
use crate::replicas::owned::{Heartbeat, Piece};
use crate::replicas::record::mark;

/// Pause before a snapshot is asked for again; doubled while that does not help.
const ASK_PAUSE: Duration = Duration::from_secs(1);
const MAX_ASK_PAUSE: Duration = Duration::from_secs(30);
/// A snapshot of which nothing comes for this long is asked for anew.
const PIECE_WAIT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Origin<H> {
    pub(super) kind: Kind,
    pub(super) entries: BTreeMap<u64, Entry<H>>,
    pub(super) ids: HashMap<ReservationId, u64>,
    pub(super) heard_at: Instant,
    digest: u64,
}

#[derive(Debug)]
pub(super) enum Kind {
    /// A published peer: nothing is numbered but by us.
    Silent {
        next: u64,
    },
    Numbered(Numbered),
    /// Being taken apart: nothing it says counts any more.
    Dead,
}

#[derive(Debug)]
pub(super) struct Numbered {
    last: Option<u64>,
    fill: Fill,
    asked_at: Instant,
    pause: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    /// Something is missing.
    Wanted,
    Running {
        through: u64,
        at: Instant,
    },
    Complete,
}

/// How an event stands to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Next,
    /// Others before it are missing.
    Gap,
    Old,
}

/// What a piece of a snapshot is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worth {
    Nothing,
    /// It does not follow on what is known.
    Torn,
    More,
    Last,
}

impl<H> Origin<H> {
    pub(super) fn silent(now: Instant) -> Self {
        Self::of(Kind::Silent { next: 0 }, now)
    }

    pub(super) fn numbered(now: Instant) -> Self {
        // A subscription was just made: a snapshot is under way.
        let numbered = Numbered {
            last: None,
            fill: Fill::Wanted,
            asked_at: now,
            pause: ASK_PAUSE,
        };
        Self::of(Kind::Numbered(numbered), now)
    }

    fn of(kind: Kind, now: Instant) -> Self {
        Self {
            kind,
            entries: BTreeMap::new(),
            ids: HashMap::new(),
            heard_at: now,
            digest: 0,
        }
    }

    pub(super) fn insert(&mut self, seq: u64, entry: Entry<H>) {
        let id = entry.record.id.clone();
        self.digest ^= mark(seq, &id, entry.prefill_completed);
        self.ids.insert(id, seq);
        self.entries.insert(seq, entry);
    }

    pub(super) fn remove(&mut self, seq: u64) -> Option<Entry<H>> {
        let entry = self.entries.remove(&seq)?;
        let id = &entry.record.id;
        self.digest ^= mark(seq, id, entry.prefill_completed);
        if self.ids.get(id) == Some(&seq) {
            self.ids.remove(id);
        }
        Some(entry)
    }

    /// False where it was known, or there is no such reservation.
    pub(super) fn complete_prefill(&mut self, seq: u64) -> bool {
        let Some(entry) = self.entries.get_mut(&seq) else {
            return false;
        };
        if std::mem::replace(&mut entry.prefill_completed, true) {
            return false;
        }
        let id = &entry.record.id;
        self.digest ^= mark(seq, id, false) ^ mark(seq, id, true);
        true
    }

    /// Whether all that its heartbeat counts is known.
    fn agrees(&self, heartbeat: &Heartbeat) -> bool {
        self.digest == heartbeat.digest && self.entries.len() as u64 == heartbeat.reservations
    }

    /// Takes note of a heartbeat; true where it shows that events were lost.
    pub(super) fn beat(&mut self, heartbeat: &Heartbeat, now: Instant) -> bool {
        let agrees = self.agrees(heartbeat);
        let Kind::Numbered(numbered) = &mut self.kind else {
            return false;
        };
        if numbered.last.is_some_and(|last| heartbeat.seq < last) {
            return false;
        }
        let lost = numbered.last.is_some_and(|last| heartbeat.seq > last);
        numbered.last = Some(heartbeat.seq);
        match numbered.fill {
            Fill::Complete if agrees && !lost => numbered.pause = ASK_PAUSE,
            Fill::Running { at, .. } if !lost && now < at + PIECE_WAIT => {}
            _ => numbered.fill = Fill::Wanted,
        }
        lost
    }
}

impl Numbered {
    pub(super) fn order(&mut self, seq: u64) -> Order {
        match self.last {
            Some(last) if seq <= last => return Order::Old,
            Some(last) if seq == last + 1 => {
                self.last = Some(seq);
                return Order::Next;
            }
            // Before the first snapshot there is nothing that could be missed.
            None => {
                self.last = Some(seq);
                return Order::Next;
            }
            Some(_) => {}
        }
        self.last = Some(seq);
        self.fill = Fill::Wanted;
        Order::Gap
    }

    pub(super) fn piece(&mut self, piece: &Piece, now: Instant) -> Worth {
        if self.last.is_some_and(|last| piece.seq < last) {
            return Worth::Nothing;
        }
        if piece.after == 0 {
            self.last = Some(piece.seq);
            self.fill = Fill::Running {
                through: 0,
                at: now,
            };
        }
        let Fill::Running { through, .. } = self.fill else {
            return Worth::Nothing;
        };
        if piece.after != through || self.last != Some(piece.seq) || piece.through < piece.after {
            self.fill = Fill::Wanted;
            return Worth::Torn;
        }
        if piece.last {
            self.fill = Fill::Complete;
            return Worth::Last;
        }
        self.fill = Fill::Running {
            through: piece.through,
            at: now,
        };
        Worth::More
    }

    /// Whether a snapshot should be asked for now; if so, it is taken to be.
    pub(super) fn asks(&mut self, now: Instant) -> bool {
        if self.fill != Fill::Wanted || now < self.asked_at + self.pause {
            return false;
        }
        self.asked_at = now;
        self.pause = (self.pause * 2).min(MAX_ASK_PAUSE);
        true
    }

    #[cfg(test)]
    pub(super) fn is_complete(&self) -> bool {
        self.fill == Fill::Complete
    }
}
