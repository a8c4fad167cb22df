//! A reservation as this service hands it out: load that is held, and that the other replicas are told of.
//!
//! It decides nothing. Dropping it frees the load, once, and tells so; where another replica freed
//! it first, dropping it does nothing.

use pointsman_core::ReservationId;
use pointsman_plugin::WorkerWithDpRank;

use crate::replicas::{PrefillLine, Teller};

/// Load held on a worker rank for one request. See [`pointsman_core::Reservation`].
#[derive(Debug)]
pub struct Reservation {
    // Freed first, told then.
    held: pointsman_core::Reservation,
    teller: Option<Teller>,
}

/// Reaches the load of a reservation without holding it.
#[derive(Clone, Debug)]
pub(crate) struct ChargeHandle {
    charge: pointsman_core::ChargeHandle,
    line: Option<PrefillLine>,
}

impl Reservation {
    /// Where there are no other replicas.
    pub(crate) fn untold(held: pointsman_core::Reservation) -> Self {
        Self { held, teller: None }
    }

    pub(crate) fn told(held: pointsman_core::Reservation, teller: Teller) -> Self {
        Self {
            held,
            teller: Some(teller),
        }
    }

    /// The load, and who tells of its end.
    pub(crate) fn into_parts(self) -> (pointsman_core::Reservation, Option<Teller>) {
        (self.held, self.teller)
    }

    pub fn id(&self) -> &ReservationId {
        self.held.id()
    }

    /// The rank that is charged.
    pub fn worker(&self) -> WorkerWithDpRank {
        self.held.worker()
    }

    pub(crate) fn handle(&self) -> ChargeHandle {
        ChargeHandle {
            charge: self.held.handle(),
            line: self.teller.as_ref().map(Teller::prefill_line),
        }
    }

    /// The prompt is computed: its tokens are no longer charged. A second call does nothing.
    pub fn prefill_complete(&mut self) {
        self.held.prefill_complete();
        if let Some(teller) = &self.teller {
            teller.complete_prefill();
        }
    }

    /// One more block of output, on this replica. `decay`, from 0 to 1 and clamped to that, is how
    /// much the blocks that only this request needs count from now on.
    pub fn output_block(&mut self, decay: Option<f64>) {
        self.held.output_block(decay);
    }

    /// Charges another rank instead. False, and nothing changed, if that rank is not there.
    pub fn move_to(&mut self, worker: WorkerWithDpRank) -> bool {
        let before = self.worker();
        let moved = self.held.move_to(worker);
        if moved
            && before != worker
            && let Some(teller) = &mut self.teller
        {
            teller.moved_to(worker);
        }
        moved
    }
}

impl ChargeHandle {
    pub(crate) fn prefill_complete(&self) {
        self.charge.prefill_complete();
        if let Some(line) = &self.line {
            line.complete_prefill();
        }
    }

    pub(crate) fn output_block(&self, decay: Option<f64>) {
        self.charge.output_block(decay);
    }
}
