//! The value that holds a request's load: dropping it frees the load, once, whatever has happened to the worker; it never decides where load goes.

use std::borrow::Borrow;
use std::fmt;
use std::sync::{Arc, Mutex};

use pointsman_plugin::WorkerWithDpRank;

use crate::load::{ChargeKey, LoadBook};
use crate::partition::lock;

/// Names a reservation within its partition while it is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReservationId(Arc<str>);

/// Load held on a worker rank for one request.
///
/// There is no other way to hold load, and nothing to call to free it: any exit drops the value.
/// It survives its worker's removal, and its partition.
pub struct Reservation {
    load: Arc<Mutex<LoadBook>>,
    key: ChargeKey,
    id: ReservationId,
    worker: WorkerWithDpRank,
}

/// Reaches the charge of a reservation without holding it: once that is freed, every call does
/// nothing. For owners that keep reservations behind a lock of their own.
#[derive(Clone)]
pub struct ChargeHandle {
    load: Arc<Mutex<LoadBook>>,
    key: ChargeKey,
}

impl ReservationId {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn shared(&self) -> &Arc<str> {
        &self.0
    }
}

impl From<String> for ReservationId {
    fn from(id: String) -> Self {
        Self(id.into())
    }
}

impl From<&str> for ReservationId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

impl From<Arc<str>> for ReservationId {
    fn from(id: Arc<str>) -> Self {
        Self(id)
    }
}

/// Maps by reservation id are asked with what came over the wire.
impl Borrow<str> for ReservationId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Reservation {
    pub(crate) fn new(
        load: Arc<Mutex<LoadBook>>,
        key: ChargeKey,
        id: ReservationId,
        worker: WorkerWithDpRank,
    ) -> Self {
        Self {
            load,
            key,
            id,
            worker,
        }
    }

    pub fn id(&self) -> &ReservationId {
        &self.id
    }

    /// The rank that is charged.
    pub fn worker(&self) -> WorkerWithDpRank {
        self.worker
    }

    pub fn handle(&self) -> ChargeHandle {
        ChargeHandle {
            load: Arc::clone(&self.load),
            key: self.key,
        }
    }

    /// The prompt is computed: its tokens are no longer charged. A second call does nothing.
    pub fn prefill_complete(&mut self) {
        lock(&self.load).complete_prefill(self.key);
    }

    /// One more block of output. `decay`, from 0 to 1 and clamped to that, is how much the blocks
    /// that only this request needs count from now on.
    pub fn output_block(&mut self, decay: Option<f64>) {
        lock(&self.load).add_output_block(self.key, decay);
    }

    /// Charges another rank instead. False, and nothing changed, if that rank is not there.
    pub fn move_to(&mut self, worker: WorkerWithDpRank) -> bool {
        let moved = lock(&self.load).move_to(self.key, worker);
        if moved {
            self.worker = worker;
        }
        moved
    }
}

impl ChargeHandle {
    /// See [`Reservation::prefill_complete`].
    pub fn prefill_complete(&self) {
        lock(&self.load).complete_prefill(self.key);
    }

    /// See [`Reservation::output_block`].
    pub fn output_block(&self, decay: Option<f64>) {
        lock(&self.load).add_output_block(self.key, decay);
    }

    /// Frees the load while its reservation still lives: that one then holds nothing, and dropping
    /// it does nothing. For a request that somebody else has ended.
    pub fn release(&self) {
        lock(&self.load).release(self.key);
    }
}

impl fmt::Debug for ChargeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChargeHandle")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        lock(&self.load).release(self.key);
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("id", &self.id)
            .field("worker", &self.worker)
            .finish_non_exhaustive()
    }
}
