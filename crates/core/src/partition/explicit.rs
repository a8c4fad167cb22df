//! Load that is charged without a selection of ours: the caller says to which rank; it asks no policy.

use std::sync::Arc;

use pointsman_plugin::WorkerWithDpRank;

use super::Partition;
use crate::load::Charge;
use crate::reservation::{Reservation, ReservationId};
use crate::selection::{SelectError, SelectionRequest};

impl Partition {
    /// Charges `worker`, whatever its load is. [`SelectError::WorkerGone`] if it is not schedulable.
    pub fn reserve(
        &self,
        worker: WorkerWithDpRank,
        charge: Charge,
        id: ReservationId,
    ) -> Result<Reservation, SelectError> {
        let key = self.charge_rank(worker, charge, &id)?;
        Ok(Reservation::new(Arc::clone(&self.load), key, id, worker))
    }

    /// What the prompt of `request` costs a rank that has none of it cached. Its sequence hashes are
    /// enough; where prefill is not tracked, no tokens are charged.
    pub fn charge_of(&self, request: &SelectionRequest) -> Charge {
        let hashed = self.hash(request);
        let tracked = request.overrides.tracks_prefill_tokens(&self.router);
        Charge {
            sequence_hashes: hashed.sequence_hashes,
            private_blocks: hashed.private_blocks,
            prefill_tokens: if tracked { hashed.isl_tokens } else { 0 },
        }
    }
}
