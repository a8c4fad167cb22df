//! Says which worker ranks may serve a request, before any policy is asked; it prefers none of them.

use std::collections::BTreeSet;

use pointsman_plugin::{WorkerAffinityTarget, WorkerWithDpRank};

use crate::partition::workers::{WorkerEntry, WorkerTable};
use crate::record::Ineligible;
use crate::selection::{RoutingConstraints, SelectError, SelectionRequest};

/// Fills `rows` with the rows of `table` that may serve `request`; an error if there are none.
pub(crate) fn eligible_rows(
    table: &WorkerTable,
    request: &SelectionRequest,
    rows: &mut Vec<usize>,
) -> Result<(), SelectError> {
    rows.clear();
    if table.rows().is_empty() {
        return Err(SelectError::NoWorkers);
    }
    if let Some(pinned) = request.pinned_worker {
        rows.push(pinned_row(table, request, pinned)?);
        return Ok(());
    }
    if takes_any_worker(request) && !table.any_overloaded() {
        rows.extend(0..table.rows().len());
        return Ok(());
    }
    let mut overloaded = false;
    for worker in table.workers() {
        match may_serve(worker.entry(), request) {
            Ok(()) => rows.extend(worker.rows()),
            Err(Ineligible::Overloaded) => overloaded = true,
            Err(_) => {}
        }
    }
    match (rows.is_empty(), overloaded) {
        (false, _) => Ok(()),
        (true, true) => Err(SelectError::AllOverloaded),
        (true, false) => Err(SelectError::NoneEligible),
    }
}

/// Leaves only the rows of `target`, for policies that want it so. A session's target is advice:
/// if it may not serve this time, all rows stay.
pub(crate) fn narrow_to_affinity(
    table: &WorkerTable,
    target: WorkerAffinityTarget,
    rows: &mut Vec<usize>,
) {
    let is_target = |row: &usize| target.matches(table.rows()[*row].worker);
    if rows.iter().any(is_target) {
        rows.retain(is_target);
    }
}

/// Whether the worker may serve the request, pins aside. Overload is looked at last, so that it is
/// the answer only where nothing else stands in the way.
pub(crate) fn may_serve(
    worker: &WorkerEntry,
    request: &SelectionRequest,
) -> Result<(), Ineligible> {
    if !allows(request, worker.worker_id) {
        return Err(Ineligible::NotAllowed);
    }
    if !request
        .constraints
        .required_taints
        .is_subset(&worker.taints)
    {
        return Err(Ineligible::MissingTaint);
    }
    if worker.overloaded {
        return Err(Ineligible::Overloaded);
    }
    Ok(())
}

/// Whether nothing but overload can keep the request from a worker; pins aside.
fn takes_any_worker(request: &SelectionRequest) -> bool {
    request.allowed_worker_ids.is_none() && request.constraints.required_taints.is_empty()
}

/// What a worker's cost is multiplied by for the preferred taints it carries.
pub(crate) fn preferred_taint_multiplier(
    constraints: &RoutingConstraints,
    taints: &BTreeSet<String>,
) -> f64 {
    let sum: f64 = constraints
        .preferred_taints
        .iter()
        .filter(|(taint, _)| taints.contains(*taint))
        .map(|(_, weight)| weight)
        .sum();
    (-sum.tanh()).exp()
}

fn pinned_row(
    table: &WorkerTable,
    request: &SelectionRequest,
    pinned: WorkerWithDpRank,
) -> Result<usize, SelectError> {
    if !allows(request, pinned.worker_id) {
        return Err(SelectError::PinnedNotAllowed { worker: pinned });
    }
    let row = table.row_of(pinned).ok_or(SelectError::NoneEligible)?;
    match may_serve(table.entry_of(row), request) {
        Ok(()) => Ok(row),
        Err(Ineligible::Overloaded) => Err(SelectError::PinnedOverloaded { worker: pinned }),
        Err(_) => Err(SelectError::NoneEligible),
    }
}

fn allows(request: &SelectionRequest, worker_id: u64) -> bool {
    request
        .allowed_worker_ids
        .as_ref()
        .is_none_or(|allowed| allowed.contains(&worker_id))
}

#[cfg(test)]
mod tests;
