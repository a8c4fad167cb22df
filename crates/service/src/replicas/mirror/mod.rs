//! The reservations of the other replicas, as far as they told of them, by (origin, number).
//!
//! It opens no socket, holds no lock, reads no clock and charges nobody: it says what is to be
//! done and is told what came of it. A replica's own events say which of its reservations live;
//! what others do to them frees load at once, and counts as done when the owner says so too.

mod calls;
mod end;
mod origin;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pointsman_core::ReservationId;
use pointsman_plugin::WorkerWithDpRank;

use super::metrics::{Dropped, ReplicaMetrics};
use super::owned::{Change, Heartbeat, Piece, Told, Whose};
use super::record::{HeldBy, Key, Record};
use super::wire::{Call, Happened, Heard, What};
use calls::Outstanding;
use origin::{Kind, Order, Origin, Worth};

/// Bounds of what is kept of others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) max_reservations: usize,
    pub(super) max_origins: usize,
    /// A replica of ours that is not heard for this long is dead.
    pub(super) dead_after: Duration,
    /// A reservation of a published peer of which nothing is heard for this long is over.
    pub(super) published_silence: Duration,
}

/// One connection to a peer.
pub(super) type LinkId = u64;

/// `H` holds the load of one reservation.
#[derive(Debug)]
pub(super) struct Mirror<H> {
    own: u64,
    limits: Limits,
    metrics: ReplicaMetrics,
    origins: HashMap<u64, Origin<H>>,
    by_id: HashMap<ReservationId, Vec<Key>>,
    /// Which replica speaks on each connection.
    links: HashMap<LinkId, u64>,
    count: usize,
    /// Nobody could be charged for these; they are tried again when workers change.
    uncharged: BTreeSet<Key>,
    /// When to look whether a published peer's reservation is over.
    checks: BTreeSet<(Instant, Key)>,
    /// Calls that the owner has not confirmed.
    outstanding: BTreeMap<Key, Outstanding>,
}

#[derive(Debug)]
pub(super) struct Entry<H> {
    record: Arc<Record>,
    /// As its owner said.
    prefill_completed: bool,
    /// As anybody said.
    completed_here: bool,
    hold: Hold<H>,
    heard_at: Instant,
    /// Whether it was counted that nobody could be charged.
    counted: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Hold<H> {
    /// Its worker is not known here, or another holds the id.
    Uncharged,
    Charging,
    Held(H),
    /// Being taken over.
    Leaving,
    /// Freed by somebody who is not its owner; the owner has not said so yet.
    Ended,
}

/// What is to be done, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action<H> {
    /// To be answered with [`Mirror::charged`].
    Charge(Key, Arc<Record>),
    CompletePrefill(Key),
    Release(H),
    /// A call of another on a reservation of ours.
    Own(Own, OwnChange),
    /// To be told to all.
    Tell(Arc<Record>, Change),
    /// The snapshot of whoever speaks there is wanted.
    Ask(LinkId),
    /// The owner is dead; whoever knows the id still holds the reservation, and we do the books. To
    /// be answered with [`Mirror::left`].
    TakeOver(Takeover<H>),
    /// The owner lives after all, and has told of all that it holds.
    GiveBack {
        origin: u64,
    },
    RenewOwn(ReservationId),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Own {
    Numbered(u64),
    Named(ReservationId, WorkerWithDpRank),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnChange {
    PrefillCompleted,
    Free,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Takeover<H> {
    pub(super) key: Key,
    pub(super) record: Arc<Record>,
    pub(super) held: H,
    pub(super) prefill_completed: bool,
    pub(super) heard_at: Instant,
}

pub(super) type Actions<H> = Vec<Action<H>>;

impl<H> Mirror<H> {
    pub(super) fn new(own: u64, limits: Limits, metrics: ReplicaMetrics) -> Self {
        Self {
            own,
            limits,
            metrics,
            origins: HashMap::new(),
            by_id: HashMap::new(),
            links: HashMap::new(),
            count: 0,
            uncharged: BTreeSet::new(),
            checks: BTreeSet::new(),
            outstanding: BTreeMap::new(),
        }
    }

    /// Takes in what was said on a connection.
    pub(super) fn hear(&mut self, link: LinkId, heard: Heard, now: Instant, out: &mut Actions<H>) {
        match heard {
            Heard::Event(happened) if happened.origin == self.own => {}
            Heard::Heartbeat(origin, _) | Heard::Piece(origin, _) | Heard::Renewed(origin, _)
                if origin == self.own => {}
            Heard::Event(happened) => match happened.seq {
                Some(seq) => self.numbered(link, seq, happened, now, out),
                None => self.published(happened, now, out),
            },
            Heard::Heartbeat(origin, heartbeat) => self.beat(link, origin, &heartbeat, now, out),
            Heard::Piece(origin, piece) => self.piece(link, origin, piece, now, out),
            Heard::Renewed(_, ids) => {
                for id in ids {
                    self.renew(id.as_str(), now);
                    out.push(Action::RenewOwn(id));
                }
            }
            Heard::Affinity => self.metrics.count_dropped(Dropped::Affinity),
        }
        self.measure();
    }

    /// A peer is followed no more. What it told stays true until its time is over.
    pub(super) fn unlink(&mut self, link: LinkId) {
        self.links.remove(&link);
    }

    /// Says what came of [`Action::Charge`]. What is given back is not wanted any more.
    pub(super) fn charged(
        &mut self,
        key: Key,
        outcome: Result<H, Dropped>,
        out: &mut Actions<H>,
    ) -> Option<H> {
        let entry = self
            .origins
            .get_mut(&key.origin)
            .and_then(|origin| origin.entries.get_mut(&key.seq))
            .filter(|entry| matches!(entry.hold, Hold::Charging));
        let Some(entry) = entry else {
            return outcome.ok();
        };
        match outcome {
            Ok(held) => {
                entry.hold = Hold::Held(held);
                if entry.completed_here {
                    out.push(Action::CompletePrefill(key));
                }
            }
            Err(reason) => {
                entry.hold = Hold::Uncharged;
                if !std::mem::replace(&mut entry.counted, true) {
                    self.metrics.count_dropped(reason);
                }
                self.uncharged.insert(key);
            }
        }
        None
    }

    pub(super) fn held(&self, key: Key) -> Option<&H> {
        match &self.entry(key)?.hold {
            Hold::Held(held) => Some(held),
            _ => None,
        }
    }

    /// How many replicas of ours are heard.
    pub(super) fn live_peers(&self) -> usize {
        let origins = self.origins.values();
        origins
            .filter(|origin| matches!(origin.kind, Kind::Numbered(_)))
            .count()
    }

    /// How many replicas of ours told of all that they hold.
    #[cfg(test)]
    pub(super) fn complete_peers(&self) -> usize {
        let origins = self.origins.values();
        origins
            .filter(|origin| matches!(&origin.kind, Kind::Numbered(peer) if peer.is_complete()))
            .count()
    }

    /// A numbered event: in order, or others were lost before it.
    fn numbered(
        &mut self,
        link: LinkId,
        seq: u64,
        happened: Happened,
        now: Instant,
        out: &mut Actions<H>,
    ) {
        let by = happened.origin;
        let Some(origin) = self.speaks(link, by, now, out) else {
            return;
        };
        let Kind::Numbered(numbered) = &mut origin.kind else {
            return;
        };
        match numbered.order(seq) {
            Order::Old => return,
            Order::Next => {}
            Order::Gap => {
                self.metrics.gaps.inc();
            }
        }
        match happened.what {
            What::Add(record) => {
                let told = Told {
                    seq,
                    record,
                    prefill_completed: false,
                    silent: Duration::ZERO,
                };
                self.insert(by, told, now, out);
            }
            What::PrefillCompleted(call) => self.called(by, call, OwnChange::PrefillCompleted, out),
            What::Free(call) => self.called(by, call, OwnChange::Free, out),
        }
        self.ask(link, by, now, out);
    }

    /// A change of one reservation: of the sender's, or of somebody else's.
    fn called(&mut self, by: u64, call: Call, change: OwnChange, out: &mut Actions<H>) {
        match call.whose {
            Whose::Own => {
                let seq = self
                    .origins
                    .get(&by)
                    .and_then(|origin| origin.ids.get(&call.id));
                if let Some(&seq) = seq {
                    self.owner_says(Key { origin: by, seq }, change, out);
                }
            }
            Whose::Of { origin, seq } if origin == self.own => {
                let own = match seq {
                    Some(seq) => Own::Numbered(seq),
                    None => Own::Named(call.id, call.worker),
                };
                out.push(Action::Own(own, change));
            }
            Whose::Of {
                origin,
                seq: Some(seq),
            } => self.others_say(Key { origin, seq }, change, out),
            Whose::Of { origin, seq: None } => {
                let known = self.origins.get(&origin);
                let known = known.filter(|known| matches!(known.kind, Kind::Silent { .. }));
                if let Some(&seq) = known.and_then(|known| known.ids.get(&call.id)) {
                    self.owner_says(Key { origin, seq }, change, out);
                }
            }
        }
    }

    /// An event of a published peer. It names a reservation by its id, whoever made it.
    fn published(&mut self, happened: Happened, now: Instant, out: &mut Actions<H>) {
        let by = happened.origin;
        match happened.what {
            What::Add(record) => self.published_add(by, record, now, out),
            What::PrefillCompleted(call) => {
                self.named(by, &call, OwnChange::PrefillCompleted, now, out);
            }
            What::Free(call) => self.named(by, &call, OwnChange::Free, now, out),
        }
    }

    fn published_add(&mut self, by: u64, record: Arc<Record>, now: Instant, out: &mut Actions<H>) {
        if !self.origins.contains_key(&by) {
            if self.origins.len() >= self.limits.max_origins {
                self.metrics.count_dropped(Dropped::Full);
                return;
            }
            self.origins.insert(by, Origin::silent(now));
        }
        let Some(origin) = self.origins.get_mut(&by) else {
            return;
        };
        let Kind::Silent { next } = &mut origin.kind else {
            return;
        };
        if origin.ids.contains_key(&record.id) {
            self.metrics.count_dropped(Dropped::Duplicate);
            return;
        }
        *next += 1;
        let key = Key {
            origin: by,
            seq: *next,
        };
        let told = Told {
            seq: key.seq,
            record,
            prefill_completed: false,
            silent: Duration::ZERO,
        };
        if self.insert(by, told, now, out) {
            self.checks
                .insert((now + self.limits.published_silence, key));
        }
    }

    fn named(
        &mut self,
        by: u64,
        call: &Call,
        change: OwnChange,
        now: Instant,
        out: &mut Actions<H>,
    ) {
        let own = Own::Named(call.id.clone(), call.worker);
        out.push(Action::Own(own, change));
        for key in self.by_id.get(&call.id).cloned().unwrap_or_default() {
            let Some(entry) = self.entry_mut(key) else {
                continue;
            };
            if entry.record.worker != call.worker {
                continue;
            }
            entry.heard_at = entry.heard_at.max(now);
            if key.origin == by || self.is_silent(key.origin) {
                self.owner_says(key, change, out);
            } else {
                self.others_say(key, change, out);
            }
        }
    }

    fn beat(
        &mut self,
        link: LinkId,
        by: u64,
        heartbeat: &Heartbeat,
        now: Instant,
        out: &mut Actions<H>,
    ) {
        let Some(origin) = self.speaks(link, by, now, out) else {
            return;
        };
        if origin.beat(heartbeat, now) {
            self.metrics.gaps.inc();
        }
        self.ask(link, by, now, out);
    }

    /// Makes the reservations in the numbers of the piece those of the piece.
    fn piece(&mut self, link: LinkId, by: u64, piece: Piece, now: Instant, out: &mut Actions<H>) {
        let Some(origin) = self.speaks(link, by, now, out) else {
            return;
        };
        let Kind::Numbered(numbered) = &mut origin.kind else {
            return;
        };
        let worth = numbered.piece(&piece, now);
        if matches!(worth, Worth::Nothing | Worth::Torn) {
            self.ask(link, by, now, out);
            return;
        }
        let there: BTreeSet<u64> = piece.reservations.iter().map(|told| told.seq).collect();
        let within = |seq: u64| seq > piece.after && seq <= piece.through;
        let known = origin.entries.range(piece.after..).map(|(seq, _)| *seq);
        let known = known.take_while(|seq| *seq <= piece.through);
        let gone: Vec<_> = known
            .filter(|seq| within(*seq) && !there.contains(seq))
            .collect();
        for seq in gone {
            self.remove(Key { origin: by, seq }, out);
        }
        for told in piece.reservations {
            let key = Key {
                origin: by,
                seq: told.seq,
            };
            if !within(told.seq) {
                continue;
            }
            if self.entry(key).is_none() {
                self.insert(by, told, now, out);
            } else if told.prefill_completed {
                self.owner_says(key, OwnChange::PrefillCompleted, out);
            }
        }
        if worth == Worth::Last {
            self.metrics.snapshots_applied.inc();
            out.push(Action::GiveBack { origin: by });
        }
    }

    /// The replica that is heard on a connection. Where another was heard before and no other
    /// connection has it, that one is gone: one socket has one owner.
    fn speaks(
        &mut self,
        link: LinkId,
        by: u64,
        now: Instant,
        out: &mut Actions<H>,
    ) -> Option<&mut Origin<H>> {
        let before = self.links.insert(link, by);
        if let Some(before) = before.filter(|before| *before != by)
            && !self.links.values().any(|other| *other == before)
        {
            self.bury(before);
            self.reap(out);
        }
        if !self.origins.contains_key(&by) && self.origins.len() >= self.limits.max_origins {
            self.metrics.count_dropped(Dropped::Full);
            return None;
        }
        let origin = self
            .origins
            .entry(by)
            .or_insert_with(|| Origin::numbered(now));
        origin.heard_at = now;
        Some(origin)
    }

    fn ask(&mut self, link: LinkId, by: u64, now: Instant, out: &mut Actions<H>) {
        if let Some(Kind::Numbered(numbered)) =
            self.origins.get_mut(&by).map(|origin| &mut origin.kind)
            && numbered.asks(now)
        {
            out.push(Action::Ask(link));
        }
    }

    fn insert(&mut self, by: u64, told: Told, now: Instant, out: &mut Actions<H>) -> bool {
        let key = Key {
            origin: by,
            seq: told.seq,
        };
        let Some(origin) = self.origins.get(&by) else {
            return false;
        };
        if origin.entries.contains_key(&told.seq) {
            return false;
        }
        // The end of the earlier one was lost.
        if let Some(&earlier) = origin.ids.get(&told.record.id) {
            let seq = earlier;
            self.remove(Key { origin: by, seq }, out);
        }
        if self.count >= self.limits.max_reservations {
            self.metrics.count_dropped(Dropped::Full);
            return false;
        }
        let record = Arc::clone(&told.record);
        let entry = Entry {
            record: told.record,
            prefill_completed: told.prefill_completed,
            completed_here: told.prefill_completed,
            hold: Hold::Charging,
            heard_at: now.checked_sub(told.silent).unwrap_or(now),
            counted: false,
        };
        let known = self.by_id.entry(record.id.clone()).or_default();
        known.push(key);
        self.count += 1;
        if let Some(origin) = self.origins.get_mut(&by) {
            origin.insert(key.seq, entry);
        }
        out.push(Action::Charge(key, record));
        true
    }

    fn entry(&self, key: Key) -> Option<&Entry<H>> {
        self.origins.get(&key.origin)?.entries.get(&key.seq)
    }

    fn entry_mut(&mut self, key: Key) -> Option<&mut Entry<H>> {
        self.origins.get_mut(&key.origin)?.entries.get_mut(&key.seq)
    }

    fn is_silent(&self, origin: u64) -> bool {
        self.origins
            .get(&origin)
            .is_some_and(|origin| matches!(origin.kind, Kind::Silent { .. }))
    }

    fn measure(&self) {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.mirrored.set(count(self.count));
        self.metrics.live_peers.set(count(self.live_peers()));
    }
}

#[cfg(test)]
mod tests;
