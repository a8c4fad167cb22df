//! Reservations that are known by their id alone, as remote callers hold them, until they are freed,
//! fall silent or lose their worker.
//!
//! It decides nothing about load: a [`Reservation`] does, when it is dropped, which is after the
//! lock here was let go. An id is claimed before load is charged, so that one id is booked once
//! whatever partitions its bookings ask for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pointsman_core::ReservationId;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::audit::CachePrediction;
use crate::replicas::Teller;
use crate::reservation::{ChargeHandle, Reservation};

/// Bounds on reservations known by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationsConfig {
    /// A reservation of which nothing is heard for this long is freed.
    pub silence: Duration,
    pub max_entries: usize,
}

impl Default for ReservationsConfig {
    fn default() -> Self {
        Self {
            silence: Duration::from_hours(1),
            max_entries: 1 << 20,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ReservationMetrics {
    held: Gauge,
    silent: Counter,
    orphaned: Counter,
}

/// Why an id could not be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimError {
    Held,
    Full,
}

#[derive(Debug)]
pub(crate) struct Reservations {
    config: ReservationsConfig,
    metrics: ReservationMetrics,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<Arc<str>, Entry>,
    /// When to look whether an entry has fallen silent. Calls on its id do not move it: the entry
    /// knows how late it was last heard of.
    checks: BTreeMap<(Instant, u64), Arc<str>>,
    generation: u64,
}

#[derive(Debug)]
struct Entry {
    generation: u64,
    heard_at: Instant,
    check_at: Option<Instant>,
    phase: Phase,
    /// Until its engine reports.
    prediction: Option<CachePrediction>,
}

#[derive(Debug)]
enum Phase {
    /// Being booked; not yet known to anyone else.
    Claimed,
    Charged(Reservation),
    /// Its worker was removed, and the load with it. The id still ends once, and other replicas are
    /// told when it does.
    Orphaned {
        _teller: Option<Teller>,
    },
}

/// What a call on an id meets.
#[derive(Debug)]
pub(crate) enum Heard {
    Charged(ChargeHandle),
    /// There is nothing left that could be charged.
    Orphaned,
}

/// An id that is being booked. Dropped unfulfilled, it is free again.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    of: &'a Reservations,
    id: ReservationId,
    generation: u64,
}

impl Reservations {
    pub(crate) fn new(config: ReservationsConfig, metrics: ReservationMetrics) -> Self {
        Self {
            config,
            metrics,
            state: Mutex::default(),
        }
    }

    pub(crate) fn max_entries(&self) -> usize {
        self.config.max_entries
    }

    pub(crate) fn claim(&self, id: &str, now: Instant) -> Result<Claim<'_>, ClaimError> {
        let shared: Arc<str> = id.into();
        let mut state = self.lock();
        if state.entries.contains_key(id) {
            return Err(ClaimError::Held);
        }
        if state.entries.len() >= self.config.max_entries {
            return Err(ClaimError::Full);
        }
        state.generation += 1;
        let generation = state.generation;
        let entry = Entry {
            generation,
            heard_at: now,
            check_at: None,
            phase: Phase::Claimed,
            prediction: None,
        };
        state.entries.insert(Arc::clone(&shared), entry);
        self.measure(&state);
        Ok(Claim {
            of: self,
            id: ReservationId::from(shared),
            generation,
        })
    }

    /// The reservation of an id, heard of now. `None` for an id that is not held.
    pub(crate) fn hear(&self, id: &str, now: Instant) -> Option<Heard> {
        let mut state = self.lock();
        let entry = state.entries.get_mut(id)?;
        entry.heard_at = now;
        match &entry.phase {
            Phase::Claimed => None,
            Phase::Charged(reservation) => Some(Heard::Charged(reservation.handle())),
            Phase::Orphaned { .. } => Some(Heard::Orphaned),
        }
    }

    /// What was predicted of a reservation: told once.
    pub(crate) fn take_prediction(&self, id: &str) -> Option<CachePrediction> {
        let mut state = self.lock();
        state.entries.get_mut(id)?.prediction.take()
    }

    /// Frees a reservation. False where no such id is held.
    pub(crate) fn free(&self, id: &str) -> bool {
        let mut state = self.lock();
        let booked = state
            .entries
            .get(id)
            .is_some_and(|entry| !matches!(entry.phase, Phase::Claimed));
        let freed = if booked { state.remove(id) } else { None };
        self.measure(&state);
        drop(state);
        freed.is_some()
    }

    /// Drops the load of reservations whose worker was removed; their ids stay until they are freed.
    pub(crate) fn orphan(&self, worker_ids: &BTreeSet<u64>) {
        let mut released = Vec::new();
        let mut state = self.lock();
        for entry in state.entries.values_mut() {
            let Phase::Charged(reservation) = &entry.phase else {
                continue;
            };
            if !worker_ids.contains(&reservation.worker().worker_id) {
                continue;
            }
            let orphaned = Phase::Orphaned { _teller: None };
            if let Phase::Charged(charged) = std::mem::replace(&mut entry.phase, orphaned) {
                let (load, teller) = charged.into_parts();
                entry.phase = Phase::Orphaned { _teller: teller };
                released.push(load);
            }
        }
        drop(state);
        let count = u64::try_from(released.len()).unwrap_or(u64::MAX);
        self.metrics.orphaned.inc_by(count);
        drop(released);
    }

    /// Frees what has been silent for too long.
    pub(crate) fn expire(&self, now: Instant) {
        let mut silent = Vec::new();
        let mut state = self.lock();
        while let Some(((check_at, _), id)) = state.checks.first_key_value() {
            if *check_at > now {
                break;
            }
            let id = Arc::clone(id);
            let Some(entry) = state.entries.get(&id) else {
                state.checks.pop_first();
                continue;
            };
            match entry.heard_at.checked_add(self.config.silence) {
                Some(ends_at) if ends_at <= now => silent.extend(state.remove(&id)),
                ends_at => state.check_again(&id, ends_at),
            }
        }
        self.measure(&state);
        drop(state);
        let count = u64::try_from(silent.len()).unwrap_or(u64::MAX);
        self.metrics.silent.inc_by(count);
        drop(silent);
    }

    fn measure(&self, state: &State) {
        let held = i64::try_from(state.entries.len()).unwrap_or(i64::MAX);
        self.metrics.held.set(held);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remove(&mut self, id: &str) -> Option<Entry> {
        let entry = self.entries.remove(id)?;
        if let Some(check_at) = entry.check_at {
            self.checks.remove(&(check_at, entry.generation));
        }
        Some(entry)
    }

    /// Moves the check of an entry; `None` where its time never ends.
    fn check_again(&mut self, id: &Arc<str>, at: Option<Instant>) {
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        if let Some(before) = std::mem::replace(&mut entry.check_at, at) {
            self.checks.remove(&(before, entry.generation));
        }
        if let Some(at) = at {
            self.checks.insert((at, entry.generation), Arc::clone(id));
        }
    }
}

impl Claim<'_> {
    pub(crate) fn id(&self) -> &ReservationId {
        &self.id
    }

    /// From now on the reservation is held by its id.
    pub(crate) fn fulfil(
        self,
        reservation: Reservation,
        prediction: Option<CachePrediction>,
        now: Instant,
    ) {
        let id: Arc<str> = self.id.as_str().into();
        let mut state = self.of.lock();
        if let Some(entry) = state.entries.get_mut(&id) {
            entry.heard_at = now;
            entry.phase = Phase::Charged(reservation);
            entry.prediction = prediction;
        }
        state.check_again(&id, now.checked_add(self.of.config.silence));
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut state = self.of.lock();
        let unfulfilled = state.entries.get(self.id.as_str()).is_some_and(|entry| {
            entry.generation == self.generation && matches!(entry.phase, Phase::Claimed)
        });
        if unfulfilled {
            state.remove(self.id.as_str());
            self.of.measure(&state);
        }
    }
}

impl ReservationMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "reservations_by_id",
            "Reservations held by their id",
            self.held.clone(),
        );
        registry.register(
            "reservations_silent",
            "Reservations freed because nothing was heard of them",
            self.silent.clone(),
        );
        registry.register(
            "reservations_orphaned",
            "Reservations whose worker was removed",
            self.orphaned.clone(),
        );
    }
}

#[cfg(test)]
mod tests;
