//! The part of the service's door for callers that hold a reservation by its id: remote runtimes.
//!
//! It keeps no books of its own: ids are in `reservations`, selections to be reserved in `pending`,
//! load in core. Whoever can hold a value should call `select_and_reserve` instead.

use std::sync::Arc;
use std::time::Instant;

use pointsman_core::{PartitionId, SelectError, SelectionRequest};
use pointsman_plugin::WorkerWithDpRank;

use crate::audit::CachePrediction;
use crate::error::SelectionServiceError;
use crate::pending::{Key, PendingSelection};
use crate::replicas::{Booking, HeldBy, Mirrored};
use crate::reservation::{ChargeHandle, Reservation};
use crate::reservations::{Claim, ClaimError, Heard};
use crate::service::{Selected, SelectionService, checked_id, new_id};

/// Load to be held on a rank that the caller chose.
#[derive(Clone, Debug)]
pub struct ExplicitReservation {
    pub id: String,
    pub worker: WorkerWithDpRank,
    /// Prompt, adapter and overrides; of hashes the sequence hashes are enough.
    pub request: SelectionRequest,
    /// What is left to compute of the prompt. Given, it is what is charged, and prefill is tracked.
    pub effective_prefill_tokens: Option<u64>,
}

/// A selection whose load is held under an id.
#[derive(Clone, Debug)]
pub struct ReservedById {
    pub id: String,
    pub selected: Selected,
}

/// Load held under an id, without a selection of this call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booked {
    pub worker: WorkerWithDpRank,
    /// As registered.
    pub endpoint: String,
}

/// What a call on an id meets.
pub(crate) enum Called {
    /// A reservation of this replica.
    Here(ChargeHandle),
    /// One that another made: its load, as it is counted here.
    Elsewhere(pointsman_core::ChargeHandle),
    /// There is nothing left that could be charged.
    Nowhere,
}

impl SelectionService {
    /// Chooses a worker and remembers the choice, to be reserved with [`reserve_pending`]. A
    /// selection already pending under the id in this partition is replaced.
    ///
    /// [`reserve_pending`]: Self::reserve_pending
    pub async fn select_pending(
        &self,
        partition: &PartitionId,
        request: SelectionRequest,
        id: String,
    ) -> Result<Selected, SelectionServiceError> {
        checked_id(&id)?;
        let expected_output_tokens = request.expected_output_tokens;
        let selected = self.select(partition, request).await?;
        let pending = PendingSelection {
            worker: selected.selection.worker,
            charge: selected.selection.charge(),
            looked_up: Arc::clone(&selected.selection.looked_up),
            prediction: selected.prediction.clone(),
            expected_output_tokens,
        };
        let key = Key {
            partition: partition.clone(),
            id,
        };
        self.shared().pending.remember(key, pending, Instant::now());
        Ok(selected)
    }

    /// Chooses a worker and charges it under an id; without one, an id is made. A selection pending
    /// under that id is discarded.
    pub async fn select_and_reserve_by_id(
        &self,
        partition: &PartitionId,
        request: SelectionRequest,
        id: Option<String>,
    ) -> Result<ReservedById, SelectionServiceError> {
        let id = match id {
            Some(id) => id,
            None => new_id(),
        };
        checked_id(&id)?;
        let claim = self.claim(&id)?;
        let reserved = self
            .select_and_reserve_as(HeldBy::Id, partition, request, &id)
            .await?;
        let key = Key {
            partition: partition.clone(),
            id,
        };
        self.shared().pending.discard(&key);
        let prediction = reserved.selected.prediction.clone();
        self.keep(claim, reserved.reservation, Some(prediction))?;
        Ok(ReservedById {
            id: key.id,
            selected: reserved.selected,
        })
    }

    /// Charges what [`select_pending`](Self::select_pending) chose, exactly as it was then. It is
    /// used up by success alone.
    pub fn reserve_pending(
        &self,
        partition: &PartitionId,
        id: &str,
    ) -> Result<Booked, SelectionServiceError> {
        checked_id(id)?;
        let key = Key {
            partition: partition.clone(),
            id: id.to_owned(),
        };
        let pending = &self.shared().pending;
        let none = || SelectionServiceError::NoPendingSelection {
            partition: partition.clone(),
            id: id.to_owned(),
        };
        pending.find(&key, Instant::now()).ok_or_else(none)?;
        let claim = self.claim(id)?;
        // Looked for again: another replay may have used it up before the id was free.
        let found = pending.find(&key, Instant::now()).ok_or_else(none)?;
        let selection = &found.selection;
        let booked = self.booked(selection.worker)?;
        let (of, _) = self.partition(partition)?;
        let charge = selection.charge.clone();
        let reservation = of.reserve(selection.worker, charge, claim.id().clone())?;
        pending.consume(&key, &found);
        of.predict_chain(selection.worker, &selection.looked_up, Instant::now());
        let booking = Booking {
            partition,
            block_size: of.layout().block_size.get(),
            charge: &selection.charge,
            expected_output_tokens: selection.expected_output_tokens,
            lora_name: None,
            held_by: HeldBy::Id,
        };
        let reservation = self.told(reservation, &booking);
        let fresh = selection.prediction.is_fresh(Instant::now());
        let prediction = fresh.then(|| selection.prediction.clone());
        self.keep(claim, reservation, prediction)?;
        Ok(booked)
    }

    /// Charges the rank that the caller names. A selection pending under that id is discarded.
    pub fn reserve_explicit(
        &self,
        partition: &PartitionId,
        wanted: ExplicitReservation,
    ) -> Result<Booked, SelectionServiceError> {
        checked_id(&wanted.id)?;
        let isl_tokens = wanted.request.prompt.isl_tokens();
        if let Some(tokens) = wanted.effective_prefill_tokens
            && tokens > isl_tokens
        {
            return Err(SelectError::BadRequest(format!(
                "effective_prefill_tokens is {tokens}, expected at most the {isl_tokens} tokens of the prompt"
            ))
            .into());
        }
        self.check_rank(partition, wanted.worker)?;
        let claim = self.claim(&wanted.id)?;
        let booked = self.booked(wanted.worker)?;
        let (of, _) = self.partition(partition)?;
        let mut charge = of.charge_of(&wanted.request);
        if let Some(tokens) = wanted.effective_prefill_tokens {
            charge.prefill_tokens = tokens;
        }
        let reservation = of.reserve(wanted.worker, charge.clone(), claim.id().clone())?;
        of.predict(&wanted.request, wanted.worker, Instant::now());
        let booking = Booking {
            partition,
            block_size: of.layout().block_size.get(),
            charge: &charge,
            expected_output_tokens: wanted.request.expected_output_tokens,
            lora_name: wanted.request.lora_name.as_deref(),
            held_by: HeldBy::Id,
        };
        let reservation = self.told(reservation, &booking);
        let key = Key {
            partition: partition.clone(),
            id: wanted.id,
        };
        self.shared().pending.discard(&key);
        self.keep(claim, reservation, None)?;
        Ok(booked)
    }

    /// The prompt is computed: its tokens are no longer charged. A second call does nothing.
    pub fn prefill_complete(&self, id: &str) -> Result<(), SelectionServiceError> {
        match self.hear(id)? {
            Called::Here(charge) => charge.prefill_complete(),
            Called::Elsewhere(_) => {
                if let Some(replicas) = &self.shared().replicas {
                    replicas.complete_prefill(self.shared(), id, Instant::now());
                }
            }
            Called::Nowhere => {}
        }
        Ok(())
    }

    /// One more block of output. `decay_fraction`, from 0 to 1, is how much the blocks that only this
    /// request needs count from now on.
    pub fn output_block(
        &self,
        id: &str,
        decay_fraction: Option<f64>,
    ) -> Result<(), SelectionServiceError> {
        if let Some(fraction) = decay_fraction
            && !(0.0..=1.0).contains(&fraction)
        {
            return Err(SelectError::BadRequest(format!(
                "decay_fraction is {fraction}, expected a number from 0 to 1"
            ))
            .into());
        }
        match self.hear(id)? {
            Called::Here(charge) => charge.output_block(decay_fraction),
            Called::Elsewhere(charge) => charge.output_block(decay_fraction),
            Called::Nowhere => {}
        }
        Ok(())
    }

    /// Ends a reservation and frees its load, if its worker has not taken that along. Any replica
    /// may be asked, whichever made it.
    pub fn free(&self, id: &str) -> Result<(), SelectionServiceError> {
        let shared = self.shared();
        let replicas = shared.replicas.as_ref();
        // In this order: what is taken over goes from the mirror to our own, and is in one of them.
        let mirrored = replicas.is_some_and(|replicas| replicas.free(shared, id, Instant::now()));
        let own = shared.reservations.free(id);
        if mirrored || own {
            Ok(())
        } else {
            Err(unknown(id))
        }
    }

    /// The reservation of an id, whichever replica made it. Its silence begins anew, at all of them.
    pub(crate) fn hear(&self, id: &str) -> Result<Called, SelectionServiceError> {
        let (shared, now) = (self.shared(), Instant::now());
        let replicas = shared.replicas.as_ref();
        let own = || {
            let heard = shared.reservations.hear(id, now)?;
            if let Some(replicas) = replicas {
                replicas.renew(id, now);
            }
            Some(match heard {
                Heard::Charged(charge) => Called::Here(charge),
                Heard::Orphaned => Called::Nowhere,
            })
        };
        let mirrored = || match replicas?.call(id, now)? {
            Mirrored::Charged(charge) => Some(Called::Elsewhere(charge)),
            Mirrored::Uncharged => Some(Called::Nowhere),
        };
        // Asked again: it may have been taken over in between.
        let called = own().or_else(mirrored).or_else(own);
        called.ok_or_else(|| unknown(id))
    }

    fn claim(&self, id: &str) -> Result<Claim<'_>, SelectionServiceError> {
        let reservations = &self.shared().reservations;
        let replicas = self.shared().replicas.as_ref();
        if replicas.is_some_and(|replicas| replicas.holds(id)) {
            return Err(SelectError::DuplicateReservation { id: id.to_owned() }.into());
        }
        reservations
            .claim(id, Instant::now())
            .map_err(|error| match error {
                ClaimError::Held => SelectError::DuplicateReservation { id: id.to_owned() }.into(),
                ClaimError::Full => SelectionServiceError::TooManyReservations {
                    limit: reservations.max_entries(),
                },
            })
    }

    /// Holds a reservation under its id, unless its worker was removed meanwhile: a removal looks
    /// for reservations after it is published, so one of the two sees the other.
    fn keep(
        &self,
        claim: Claim<'_>,
        reservation: Reservation,
        prediction: Option<CachePrediction>,
    ) -> Result<(), SelectionServiceError> {
        let id = claim.id().clone();
        let worker_id = reservation.worker().worker_id;
        claim.fulfil(reservation, prediction, Instant::now());
        if self.shared().knows(worker_id) {
            return Ok(());
        }
        self.shared().reservations.free(id.as_str());
        Err(SelectError::WorkerGone.into())
    }

    fn booked(&self, worker: WorkerWithDpRank) -> Result<Booked, SelectionServiceError> {
        let endpoints = self.endpoints();
        let endpoint = endpoints.endpoint(worker.worker_id);
        let endpoint = endpoint.ok_or(SelectError::WorkerGone)?;
        Ok(Booked {
            worker,
            endpoint: endpoint.url.clone(),
        })
    }

    /// Whether a rank can be named: its worker is of this partition, schedulable, and has it.
    fn check_rank(
        &self,
        partition: &PartitionId,
        worker: WorkerWithDpRank,
    ) -> Result<(), SelectionServiceError> {
        let worker_id = worker.worker_id;
        let record = self.registered(worker_id).filter(|record| {
            record.registration.model_name == partition.model_name
                && record.registration.routing_group == partition.routing_group
        });
        let Some(record) = record else {
            return Err(SelectionServiceError::UnknownWorker { worker_id });
        };
        let ranks = record.registration.ranks();
        if !ranks.contains(&worker.dp_rank) {
            return Err(SelectError::BadRequest(format!(
                "dp_rank is {}, expected one that worker {worker_id} has: {} to {}",
                worker.dp_rank,
                ranks.start,
                ranks.end.saturating_sub(1)
            ))
            .into());
        }
        if !record.is_schedulable() {
            return Err(SelectionServiceError::WorkerNotSchedulable { worker_id });
        }
        Ok(())
    }
}

fn unknown(id: &str) -> SelectionServiceError {
    SelectionServiceError::UnknownReservation { id: id.to_owned() }
}
