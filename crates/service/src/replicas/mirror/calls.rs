//! Calls of this replica's clients on reservations that others made.
//!
//! A call is told to all and takes effect here at once. Messages may be lost: it is told again
//! until the owner's own events show that it knows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Action, Actions, Change, HeldBy, Hold, Key, Mirror, OwnChange, Whose};

pub(super) const REPEAT_AFTER: Duration = Duration::from_secs(1);
/// Calls that are told again in one turn.
const TURN: usize = 256;

#[derive(Clone, Copy, Debug)]
pub(super) struct Outstanding {
    change: OwnChange,
    told_at: Instant,
}

impl<H> Mirror<H> {
    /// Whether an id is held by another replica.
    pub(in crate::replicas) fn holds(&self, id: &str) -> bool {
        let keys = self.by_id.get(id).into_iter().flatten();
        keys.filter_map(|key| self.entry(*key))
            .any(|entry| !matches!(entry.hold, Hold::Ended))
    }

    /// The reservation that a client means by an id, heard of now.
    pub(in crate::replicas) fn called_on(&mut self, id: &str, now: Instant) -> Option<Key> {
        let key = self.callable(id).next()?;
        self.renew(id, now);
        Some(key)
    }

    /// Frees all that is held by an id. False where nothing is.
    pub(in crate::replicas) fn free(
        &mut self,
        id: &str,
        now: Instant,
        out: &mut Actions<H>,
    ) -> bool {
        let keys: Vec<_> = self.callable(id).collect();
        for key in &keys {
            self.tell(*key, OwnChange::Free, now, out);
            if self.is_silent(key.origin) {
                self.remove(*key, out);
            } else {
                self.end(*key, out);
            }
        }
        self.measure();
        !keys.is_empty()
    }

    /// Ends the prefill of what is held by an id.
    pub(in crate::replicas) fn complete_prefill(
        &mut self,
        id: &str,
        now: Instant,
        out: &mut Actions<H>,
    ) {
        let keys: Vec<_> = self.callable(id).collect();
        for key in keys {
            if self.entry(key).is_some_and(|entry| entry.prefill_completed) {
                continue;
            }
            self.tell(key, OwnChange::PrefillCompleted, now, out);
            if self.is_silent(key.origin) {
                self.owner_says(key, OwnChange::PrefillCompleted, out);
            } else {
                self.others_say(key, OwnChange::PrefillCompleted, out);
            }
        }
    }

    pub(super) fn renew(&mut self, id: &str, now: Instant) {
        for key in self.by_id.get(id).cloned().unwrap_or_default() {
            if let Some(entry) = self.entry_mut(key) {
                entry.heard_at = entry.heard_at.max(now);
            }
        }
    }

    pub(super) fn confirmed(&mut self, key: Key, change: OwnChange) {
        let waits = self.outstanding.get(&key);
        if waits.is_some_and(|call| call.change == change) {
            self.outstanding.remove(&key);
        }
    }

    /// Tells again what was told so long ago. True where there is more.
    pub(in crate::replicas) fn repeat_calls(
        &mut self,
        now: Instant,
        after: Duration,
        out: &mut Actions<H>,
    ) -> bool {
        let late = self.outstanding.iter();
        let late = late.filter(|(_, call)| now >= call.told_at + after);
        let late: Vec<_> = late
            .take(TURN)
            .map(|(key, call)| (*key, call.change))
            .collect();
        let more = late.len() == TURN;
        for (key, change) in late {
            self.tell(key, change, now, out);
        }
        more
    }

    fn tell(&mut self, key: Key, change: OwnChange, now: Instant, out: &mut Actions<H>) {
        let Some(entry) = self.entry(key) else {
            self.outstanding.remove(&key);
            return;
        };
        let record = Arc::clone(&entry.record);
        let numbered = !self.is_silent(key.origin);
        let whose = Whose::Of {
            origin: key.origin,
            seq: numbered.then_some(key.seq),
        };
        if numbered {
            let told_at = now;
            self.outstanding
                .insert(key, Outstanding { change, told_at });
        }
        let change = match change {
            OwnChange::PrefillCompleted => Change::PrefillCompleted(whose),
            OwnChange::Free => Change::Free(whose),
        };
        out.push(Action::Tell(record, change));
    }

    /// What clients may call on: an exchange's reservation is its own affair.
    fn callable(&self, id: &str) -> impl Iterator<Item = Key> {
        let keys = self.by_id.get(id).into_iter().flatten().copied();
        keys.filter(|key| {
            self.entry(*key).is_some_and(|entry| {
                entry.record.held_by == HeldBy::Id && !matches!(entry.hold, Hold::Ended)
            })
        })
    }
}
