//! One selection, a straight line: hashes, overlap, eligibility, policy, reservation; it waits for nothing.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;
use pointsman_plugin::{PolicyTrace, WorkerWithDpRank};

use super::describe::{Hashed, Pick, Rows, TierWeights};
use super::workers::{Row, WorkerTable};
use super::{Partition, lock};
use crate::eligibility::{eligible_rows, narrow_to_affinity};
use crate::load::{Charge, ChargeError, ChargeKey, Load};
use crate::overlaps::Overlaps;
use crate::reservation::{Reservation, ReservationId};
use crate::selection::{Prompt, Reserved, SelectError, Selection, SelectionRequest};

/// How often a selection is made because the worker it chose left meanwhile.
const ATTEMPTS: usize = 3;

thread_local! {
    /// Taken for a selection and put back after it, so that nothing is borrowed while user code runs.
    pub(super) static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// What a selection works in, kept for its capacity.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Leading blocks held, by index slot.
    pub(super) overlaps: Overlaps,
    /// Leading blocks believed to be held, before they are merged into `overlaps`.
    predicted: Overlaps,
    /// How much of the overlap of some ranks counts.
    pub(super) discounts: Arc<HashMap<WorkerWithDpRank, f64>>,
    /// Leading blocks active, by load slot.
    pub(super) active: Overlaps,
    /// Eligible rows of the table, ascending.
    pub(super) rows: Vec<usize>,
    /// What is charged to each of `rows`.
    pub(super) loads: Vec<Load>,
}

impl Partition {
    /// Chooses a worker and holds nothing.
    pub fn select(
        &self,
        request: &SelectionRequest,
        now: Instant,
    ) -> Result<Selection, SelectError> {
        let (selection, _) = self.place(request, None, now)?;
        Ok(selection)
    }

    /// Chooses a worker and charges it, in one turn of the policy.
    pub fn select_and_reserve(
        &self,
        request: &SelectionRequest,
        id: ReservationId,
        now: Instant,
    ) -> Result<Reserved, SelectError> {
        let (selection, key) = self.place(request, Some(&id), now)?;
        let key = key.ok_or(SelectError::WorkerGone)?;
        let reservation = Reservation::new(Arc::clone(&self.load), key, id, selection.worker);
        Ok(Reserved {
            selection,
            reservation,
        })
    }

    fn place(
        &self,
        request: &SelectionRequest,
        id: Option<&ReservationId>,
        now: Instant,
    ) -> Result<(Selection, Option<ChargeKey>), SelectError> {
        check(request)?;
        let hashed = self.hash(request);
        let mut scratch = SCRATCH.take().unwrap_or_default();
        let mut outcome = Err(SelectError::WorkerGone);
        for _ in 0..ATTEMPTS {
            outcome = self.attempt(request, &hashed, id, now, &mut scratch);
            if !matches!(outcome, Err(SelectError::WorkerGone)) {
                break;
            }
        }
        SCRATCH.set(Some(scratch));
        outcome
    }

    fn attempt(
        &self,
        request: &SelectionRequest,
        hashed: &Hashed,
        id: Option<&ReservationId>,
        now: Instant,
        scratch: &mut Scratch,
    ) -> Result<(Selection, Option<ChargeKey>), SelectError> {
        self.expire_predictions(now);
        let table = self.look_up(hashed, scratch);
        eligible_rows(&table, request, &mut scratch.rows)?;
        let signals = self.signals(request, hashed);
        let mut trace = request.record.then(PolicyTrace::default);

        let mut host = lock(&self.policy);
        let wants = host.wants()?;
        if let Some(target) = request.affinity_target
            && wants.exclusive_affinity
        {
            narrow_to_affinity(&table, target, &mut scratch.rows);
        }
        self.read_loads(&table, hashed, id, scratch)?;
        let rows = Rows {
            table: &table,
            request,
            hashed,
            scratch,
            weights: TierWeights::of(&self.router),
        };
        host.candidates.clear();
        rows.fill(wants.inputs, &mut host.candidates);
        let pick = Pick::find(&rows, host.select(&signals, trace.as_mut())?)?;
        let mut selected = self.describe(&rows, signals.tracks_prefill_tokens, &pick);
        let key = id.map(|id| self.charge(&selected, id)).transpose()?;
        drop(host);
        selected.record =
            trace.map(|trace| Box::new(self.record(&rows, signals, trace, &selected, now)));
        if self.predicts() {
            let (worker, chain) = (selected.worker, &hashed.lookup);
            let confirmed = self.confirmed_blocks(worker, chain, &mut scratch.predicted);
            selected.forecast.limit_confirmed(u64::from(confirmed));
            selected.looked_up = Arc::clone(chain);
            if key.is_some() {
                self.predict_chain(worker, chain, now);
            }
        }
        Ok((selected, key))
    }

    pub(super) fn look_up(&self, hashed: &Hashed, scratch: &mut Scratch) -> Arc<WorkerTable> {
        let indexed = self.read_index();
        indexed
            .kv
            .overlap_into(&hashed.lookup, &mut scratch.overlaps);
        if let Some(predictions) = &indexed.predictions {
            predictions.overlap_into(&hashed.lookup, &mut scratch.predicted);
            scratch.overlaps.raise_to(&scratch.predicted);
        }
        if !Arc::ptr_eq(&scratch.discounts, &indexed.discounts) {
            scratch.discounts = Arc::clone(&indexed.discounts);
        }
        Arc::clone(&indexed.table)
    }

    /// Reads the load of each row; rows whose rank has left since the table was made are dropped.
    pub(super) fn read_loads(
        &self,
        table: &WorkerTable,
        hashed: &Hashed,
        id: Option<&ReservationId>,
        scratch: &mut Scratch,
    ) -> Result<(), SelectError> {
        let Scratch {
            active,
            rows,
            loads,
            ..
        } = scratch;
        let book = lock(&self.load);
        // Asked before the policy is, so that a duplicate leaves no trace in its state.
        if let Some(id) = id
            && book.holds(id.as_str())
        {
            return Err(duplicate(id));
        }
        book.active_into(&hashed.sequence_hashes, active);
        loads.clear();
        rows.retain(|row| {
            let Row {
                worker, load_slot, ..
            } = table.rows()[*row];
            let load = book.load(worker, load_slot);
            loads.extend(load);
            load.is_some()
        });
        if rows.is_empty() {
            return Err(SelectError::WorkerGone);
        }
        Ok(())
    }

    fn charge(&self, selected: &Selection, id: &ReservationId) -> Result<ChargeKey, SelectError> {
        self.charge_rank(selected.worker, selected.charge(), id)
    }

    pub(super) fn charge_rank(
        &self,
        worker: WorkerWithDpRank,
        charge: Charge,
        id: &ReservationId,
    ) -> Result<ChargeKey, SelectError> {
        lock(&self.load)
            .reserve(worker, id.shared(), charge)
            .map_err(|error| match error {
                ChargeError::Duplicate => duplicate(id),
                ChargeError::Gone => SelectError::WorkerGone,
            })
    }
}

/// Refuses what would make a policy compute nonsense.
pub(super) fn check(request: &SelectionRequest) -> Result<(), SelectError> {
    if let Prompt::Hashes {
        block_hashes,
        sequence_hashes,
        ..
    } = &request.prompt
        && block_hashes.len() != sequence_hashes.len()
    {
        return Err(SelectError::BadRequest(format!(
            "block_hashes length {} must match sequence_hashes length {}",
            block_hashes.len(),
            sequence_hashes.len()
        )));
    }
    let preferred = &request.constraints.preferred_taints;
    if let Some((taint, weight)) = preferred.iter().find(|(_, weight)| !weight.is_finite()) {
        return Err(SelectError::BadRequest(format!(
            "the weight of preferred taint {taint:?} is {weight}; expected a finite number"
        )));
    }
    request.overrides.validate().map_err(|mistakes| {
        let texts: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
        SelectError::BadRequest(texts.join("; "))
    })
}

fn duplicate(id: &ReservationId) -> SelectError {
    SelectError::DuplicateReservation { id: id.to_string() }
}
