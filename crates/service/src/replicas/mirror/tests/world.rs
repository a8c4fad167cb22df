//! One other replica, a wire, and the mirror that listens to it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::*;
use crate::replicas::owned::{New, Owned, Queued};
use crate::replicas::wire;
use crate::replicas::wire::tests::frames;

pub(super) const OWN: u64 = 1;
pub(super) const MAX_RESERVATIONS: usize = 1_000;
pub(super) const WORKER: WorkerWithDpRank = WorkerWithDpRank {
    worker_id: 7,
    dp_rank: 0,
};
const LINK: LinkId = 1;

/// Load, as far as a test can tell.
#[derive(Debug)]
pub(super) struct Held(Rc<Cell<usize>>);

impl Held {
    fn new(count: &Rc<Cell<usize>>) -> Self {
        count.set(count.get() + 1);
        Self(Rc::clone(count))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

pub(super) struct World {
    pub(super) mirror: Mirror<Held>,
    pub(super) metrics: ReplicaMetrics,
    pub(super) owner: Owned<()>,
    pub(super) router_id: u64,
    pub(super) wire: VecDeque<Heard>,
    pub(super) taken: Vec<Takeover<Held>>,
    /// What charging is answered with, other than load.
    pub(super) refuse: Option<Dropped>,
    /// The owner hears no calls.
    pub(super) deaf: bool,
    /// Calls that were told.
    pub(super) told: usize,
    /// Those that changed something at the owner, and that nobody took note of yet.
    pub(super) obeyed: Vec<(String, OwnChange)>,
    pub(super) renewed: Vec<String>,
    pub(super) given_back: usize,
    pub(super) now: Instant,
    held: Rc<Cell<usize>>,
    ids: BTreeSet<String>,
    piece_after: Option<u64>,
}

impl World {
    /// Both are up, and the mirror has subscribed.
    pub(super) fn new() -> Self {
        let metrics = ReplicaMetrics::default();
        let limits = Limits {
            max_reservations: MAX_RESERVATIONS,
            max_origins: 8,
            dead_after: Duration::from_secs(10),
            published_silence: Duration::from_mins(5),
        };
        let mut world = Self {
            mirror: Mirror::new(OWN, limits, metrics.clone()),
            metrics,
            owner: Owned::new(10_000),
            router_id: 100,
            wire: VecDeque::new(),
            taken: Vec::new(),
            refuse: None,
            deaf: false,
            told: 0,
            obeyed: Vec::new(),
            renewed: Vec::new(),
            given_back: 0,
            now: Instant::now(),
            held: Rc::default(),
            ids: BTreeSet::new(),
            piece_after: None,
        };
        world.subscribe();
        world
    }

    pub(super) fn add(&mut self, id: &str, held_by: HeldBy) -> u64 {
        let new = New {
            record: record(id, held_by),
            handle: (),
            silent: Duration::ZERO,
            from: None,
        };
        let (seq, queued) = self.owner.add(new, self.now);
        assert_eq!(queued, Queued::Yes);
        seq
    }

    pub(super) fn free(&mut self, seq: u64) {
        self.owner.free(seq);
    }

    pub(super) fn owner_number(&self, id: &str) -> u64 {
        self.owner.number_of(id, WORKER).unwrap()
    }

    pub(super) fn subscribe(&mut self) {
        self.piece_after = Some(0);
    }

    pub(super) fn restart(&mut self) {
        self.restart_as(self.router_id + 1);
    }

    pub(super) fn restart_as(&mut self, router_id: u64) {
        self.owner = Owned::new(10_000);
        self.router_id = router_id;
        self.wire.clear();
        self.subscribe();
    }

    /// What the owner tells, as bytes that are read again.
    pub(super) fn pump(&mut self, beat: bool) {
        let mut messages = Vec::new();
        for event in self.owner.drain(usize::MAX) {
            messages.push(wire::event(self.router_id, &event));
        }
        while let Some(after) = self.piece_after {
            let piece = self.owner.piece(after, self.now);
            messages.push(wire::piece(self.router_id, &piece));
            self.piece_after = (!piece.last).then_some(piece.through);
        }
        if beat {
            messages.push(wire::heartbeat(self.router_id, self.owner.heartbeat()));
        }
        let read = messages
            .iter()
            .map(|message| wire::read(&frames(message)).unwrap());
        self.wire.extend(read);
    }

    /// All that the owner has told so far never arrives.
    pub(super) fn lose_all(&mut self) {
        drop(self.owner.drain(usize::MAX));
    }

    pub(super) fn deliver(&mut self) {
        while let Some(heard) = self.wire.pop_front() {
            self.hear(heard);
        }
    }

    pub(super) fn hear(&mut self, heard: Heard) {
        let mut out = Vec::new();
        self.mirror.hear(LINK, heard, self.now, &mut out);
        self.act(out);
    }

    /// Everything told arrives.
    pub(super) fn settle(&mut self) {
        for _ in 0..3 {
            self.pump(true);
            self.deliver();
        }
    }

    /// Time goes by, and nobody says anything.
    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        loop {
            let mut out = Vec::new();
            let more = self.mirror.tick(self.now, &mut out);
            self.act(out);
            if !more {
                return;
            }
        }
    }

    pub(super) fn retry(&mut self) {
        let mut waiting = self.mirror.take_uncharged();
        let mut out = Vec::new();
        assert!(!self.mirror.retry(&mut waiting, &mut out));
        self.act(out);
    }

    pub(super) fn call_free(&mut self, id: &str) -> bool {
        let mut out = Vec::new();
        let freed = self.mirror.free(id, self.now, &mut out);
        self.act(out);
        freed
    }

    pub(super) fn call_prefill_complete(&mut self, id: &str) {
        let mut out = Vec::new();
        self.mirror.complete_prefill(id, self.now, &mut out);
        self.act(out);
    }

    /// A peer that numbers nothing says something of a reservation.
    pub(super) fn published(&mut self, id: &str, what: impl FnOnce(Arc<Record>) -> What) {
        self.hear(Heard::Event(Happened {
            origin: 50,
            seq: None,
            what: what(record(id, HeldBy::Id)),
        }));
    }

    fn act(&mut self, actions: Actions<Held>) {
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Charge(key, record) => {
                    let id = record.id.as_str();
                    let outcome = match self.refuse {
                        Some(reason) => Err(reason),
                        None if !self.ids.insert(id.to_owned()) => Err(Dropped::Duplicate),
                        None => Ok(Held::new(&self.held)),
                    };
                    let charged = outcome.is_ok();
                    let mut out = Vec::new();
                    let unwanted = self.mirror.charged(key, outcome, &mut out);
                    assert!(unwanted.is_none() || charged);
                    if unwanted.is_some() {
                        self.ids.remove(id);
                    }
                    actions.extend(out);
                }
                Action::Release(held) => {
                    drop(held);
                    self.forget_freed();
                }
                Action::TakeOver(takeover) => {
                    assert!(!self.mirror.left(takeover.key));
                    self.taken.push(takeover);
                }
                Action::Tell(record, change) => self.told(&record, change),
                Action::Ask(LINK) => self.subscribe(),
                Action::Ask(link) => panic!("nobody is on link {link}"),
                Action::GiveBack { .. } => self.given_back += 1,
                Action::RenewOwn(id) => self.renewed.push(id.to_string()),
                Action::CompletePrefill(_) | Action::Own(..) => {}
            }
        }
    }

    /// The owner hears of a call on what it holds.
    fn told(&mut self, record: &Record, change: Change) {
        self.told += 1;
        let (Change::Free(whose) | Change::PrefillCompleted(whose)) = change else {
            panic!("a call, not {change:?}");
        };
        let Whose::Of { origin, seq } = whose else {
            panic!("another's, not {whose:?}");
        };
        if self.deaf || origin != self.router_id {
            return;
        }
        let seq = seq.unwrap();
        let (done, change) = match change {
            Change::Free(_) => (self.owner.free(seq), OwnChange::Free),
            _ => (
                self.owner.complete_prefill(seq),
                OwnChange::PrefillCompleted,
            ),
        };
        if done == Queued::Yes {
            self.obeyed.push((record.id.to_string(), change));
        }
    }

    /// The ids of which load is held in the mirror.
    pub(super) fn charged(&self) -> Vec<String> {
        let entries = self
            .mirror
            .origins
            .values()
            .flat_map(|origin| origin.entries.values());
        let held = entries.filter(|entry| matches!(entry.hold, Hold::Held(_)));
        let mut ids: Vec<_> = held.map(|entry| entry.record.id.to_string()).collect();
        ids.sort();
        ids
    }

    /// Load that lives, wherever it is.
    pub(super) fn held(&self) -> usize {
        self.held.get()
    }

    fn forget_freed(&mut self) {
        let taken = self.taken.iter().map(|one| one.record.id.to_string());
        self.ids = self.charged().into_iter().chain(taken).collect();
    }
}

pub(super) fn record(id: &str, held_by: HeldBy) -> Arc<Record> {
    Arc::new(Record {
        partition: pointsman_core::PartitionId::new("m", "default"),
        block_size: 16,
        id: ReservationId::from(id),
        worker: WORKER,
        hashes: Arc::default(),
        prefill_tokens: 10,
        expected_output_tokens: None,
        lora_name: None,
        held_by,
    })
}

pub(super) fn call(record: &Record) -> Call {
    Call {
        id: record.id.clone(),
        worker: record.worker,
        whose: Whose::Own,
    }
}
