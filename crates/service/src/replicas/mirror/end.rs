//! How a mirrored reservation ends: its owner says so, somebody else does, its time is over, its
//! owner is dead or its worker gone.
//!
//! It never frees load itself: what held it is handed out.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use pointsman_core::ReservationId;

use super::calls::REPEAT_AFTER;
use super::origin::Kind;
use super::{Action, Actions, HeldBy, Hold, Key, Mirror, OwnChange, Takeover};

/// What one turn of the clock looks at, so that no turn is long.
const TURN: usize = 512;

impl<H> Mirror<H> {
    /// Ends what is over by time. True where there is more to do at once.
    pub(in crate::replicas) fn tick(&mut self, now: Instant, out: &mut Actions<H>) -> bool {
        let dead_after = self.limits.dead_after;
        let dead = self.origins.iter().filter(|(_, origin)| {
            matches!(origin.kind, Kind::Numbered(_)) && now >= origin.heard_at + dead_after
        });
        let dead: Vec<u64> = dead.map(|(router_id, _)| *router_id).collect();
        for router_id in dead {
            self.bury(router_id);
        }
        self.repeat_calls(now, REPEAT_AFTER, out);
        let more = self.end_silent(now, out) | self.reap(out);
        self.measure();
        more
    }

    /// What can be charged now that workers have changed. True where there is more.
    pub(in crate::replicas) fn retry(
        &mut self,
        waiting: &mut BTreeSet<Key>,
        out: &mut Actions<H>,
    ) -> bool {
        for _ in 0..TURN {
            let Some(key) = waiting.pop_first() else {
                return false;
            };
            self.charge_again(key, out);
        }
        !waiting.is_empty()
    }

    pub(in crate::replicas) fn take_uncharged(&mut self) -> BTreeSet<Key> {
        std::mem::take(&mut self.uncharged)
    }

    /// The load of these workers goes with them; the reservations stay until their owners end them.
    pub(in crate::replicas) fn orphan(&mut self, worker_ids: &BTreeSet<u64>) -> Vec<H> {
        let mut released = Vec::new();
        for (&router_id, origin) in &mut self.origins {
            for (&seq, entry) in &mut origin.entries {
                if !worker_ids.contains(&entry.record.worker.worker_id)
                    || !matches!(entry.hold, Hold::Held(_))
                {
                    continue;
                }
                if let Hold::Held(held) = std::mem::replace(&mut entry.hold, Hold::Uncharged) {
                    released.push(held);
                }
                let origin = router_id;
                self.uncharged.insert(Key { origin, seq });
            }
        }
        released
    }

    /// The word of the one whose it is.
    pub(super) fn owner_says(&mut self, key: Key, change: OwnChange, out: &mut Actions<H>) {
        match change {
            OwnChange::Free => self.remove(key, out),
            OwnChange::PrefillCompleted => {
                let origin = self.origins.get_mut(&key.origin);
                if origin.is_some_and(|origin| origin.complete_prefill(key.seq)) {
                    self.confirmed(key, OwnChange::PrefillCompleted);
                    self.complete(key, out);
                }
            }
        }
    }

    /// The word of somebody else: it moves load, and nothing that the owner's digest covers.
    pub(super) fn others_say(&mut self, key: Key, change: OwnChange, out: &mut Actions<H>) {
        match change {
            OwnChange::Free => self.end(key, out),
            OwnChange::PrefillCompleted => self.complete(key, out),
        }
    }

    fn complete(&mut self, key: Key, out: &mut Actions<H>) {
        if let Some(entry) = self.entry_mut(key)
            && !std::mem::replace(&mut entry.completed_here, true)
            && matches!(entry.hold, Hold::Held(_))
        {
            out.push(Action::CompletePrefill(key));
        }
    }

    /// Frees the load now; the entry stays until its owner ends it.
    pub(super) fn end(&mut self, key: Key, out: &mut Actions<H>) {
        let Some(entry) = self.entry_mut(key) else {
            return;
        };
        let id = entry.record.id.clone();
        if let Hold::Held(held) = std::mem::replace(&mut entry.hold, Hold::Ended) {
            out.push(Action::Release(held));
        }
        self.uncharged.remove(&key);
        self.promote(id.as_str(), out);
    }

    pub(super) fn remove(&mut self, key: Key, out: &mut Actions<H>) {
        let Some(hold) = self.forget(key) else {
            return;
        };
        let (id, hold) = hold;
        if let Hold::Held(held) = hold {
            out.push(Action::Release(held));
            self.promote(id.as_str(), out);
        }
    }

    fn forget(&mut self, key: Key) -> Option<(ReservationId, Hold<H>)> {
        let entry = self.origins.get_mut(&key.origin)?.remove(key.seq)?;
        let id = entry.record.id.clone();
        if let Some(known) = self.by_id.get_mut(&id) {
            known.retain(|other| *other != key);
            if known.is_empty() {
                self.by_id.remove(&id);
            }
        }
        self.count -= 1;
        self.uncharged.remove(&key);
        self.outstanding.remove(&key);
        Some((id, entry.hold))
    }

    /// Where two replicas hold an id, one of them is charged; when it ends, the other is.
    pub(in crate::replicas) fn promote(&mut self, id: &str, out: &mut Actions<H>) {
        let Some(known) = self.by_id.get(id) else {
            return;
        };
        let next = known.iter().find(|key| self.uncharged.contains(key));
        if let Some(&key) = next {
            self.charge_again(key, out);
        }
    }

    fn charge_again(&mut self, key: Key, out: &mut Actions<H>) {
        self.uncharged.remove(&key);
        if let Some(entry) = self.entry_mut(key)
            && matches!(entry.hold, Hold::Uncharged)
        {
            entry.hold = Hold::Charging;
            let record = Arc::clone(&entry.record);
            out.push(Action::Charge(key, record));
        }
    }

    fn end_silent(&mut self, now: Instant, out: &mut Actions<H>) -> bool {
        for _ in 0..TURN {
            let Some(&(at, key)) = self.checks.first() else {
                return false;
            };
            if at > now {
                return false;
            }
            self.checks.pop_first();
            let Some(entry) = self.entry(key) else {
                continue;
            };
            let ends_at = entry.heard_at + self.limits.published_silence;
            if ends_at <= now {
                self.metrics.silent.inc();
                self.remove(key, out);
            } else {
                self.checks.insert((ends_at, key));
            }
        }
        true
    }

    pub(super) fn bury(&mut self, router_id: u64) {
        if let Some(origin) = self.origins.get_mut(&router_id)
            && matches!(origin.kind, Kind::Numbered(_))
        {
            origin.kind = Kind::Dead;
            self.metrics.deaths.inc();
        }
    }

    /// Takes dead replicas apart. Their exchanges ended with them; what others hold by its id goes
    /// on. True where there is more.
    pub(super) fn reap(&mut self, out: &mut Actions<H>) -> bool {
        self.origins.retain(|_, origin| match origin.kind {
            Kind::Dead | Kind::Silent { .. } => !origin.entries.is_empty(),
            Kind::Numbered(_) => true,
        });
        let dead = |(_, origin): &(_, &super::Origin<H>)| matches!(origin.kind, Kind::Dead);
        let Some(router_id) = self.origins.iter().find(dead).map(|(id, _)| *id) else {
            return false;
        };
        let Some(origin) = self.origins.get_mut(&router_id) else {
            return false;
        };
        let mut over = Vec::new();
        let staying = origin.entries.iter_mut();
        let staying = staying.filter(|(_, entry)| !matches!(entry.hold, Hold::Leaving));
        for (&seq, entry) in staying.take(TURN) {
            let key = Key {
                origin: router_id,
                seq,
            };
            if entry.record.held_by == HeldBy::Id && matches!(entry.hold, Hold::Held(_)) {
                let Hold::Held(held) = std::mem::replace(&mut entry.hold, Hold::Leaving) else {
                    continue;
                };
                out.push(Action::TakeOver(Takeover {
                    key,
                    record: Arc::clone(&entry.record),
                    held,
                    prefill_completed: entry.completed_here,
                    heard_at: entry.heard_at,
                }));
            } else {
                over.push(key);
            }
        }
        for key in over {
            self.remove(key, out);
        }
        true
    }

    /// A reservation was taken over. True where a client freed it meanwhile.
    pub(in crate::replicas) fn left(&mut self, key: Key) -> bool {
        // What was ended may have been removed since.
        !matches!(self.forget(key), Some((_, Hold::Leaving)))
    }
}
