//! The part of the service's door for whoever knows the workers: discovery, a workers file, a runtime.
//!
//! It decides nothing of a worker's fitness: that is the catalog's, and every change is published
//! whole before the call returns.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use tracing::info;

use crate::error::SelectionServiceError;
use crate::service::SelectionService;
use crate::workers::{
    Catalog, Lifecycle, MAX_DATA_PARALLEL_SIZE, Snapshot, WorkerPatch, WorkerRecord,
    WorkerRegistration,
};

impl SelectionService {
    /// Registers a worker, or replaces what is registered under its id. A worker that cannot serve
    /// is kept all the same; its record says why.
    pub fn register_worker(
        &self,
        registration: WorkerRegistration,
    ) -> Result<WorkerRecord, SelectionServiceError> {
        check_registration(&registration)?;
        let worker_id = registration.worker_id;
        self.write(|catalog| catalog.upsert(registration))?;
        let record = self.worker(worker_id);
        record.ok_or(SelectionServiceError::UnknownWorker { worker_id })
    }

    /// Changes the named fields of a worker. The catalog's writer does it, so that two changes at
    /// once are both applied.
    pub fn patch_worker(
        &self,
        worker_id: u64,
        patch: &WorkerPatch,
    ) -> Result<WorkerRecord, SelectionServiceError> {
        self.write(|catalog| {
            let known = catalog.registration(worker_id);
            let known = known.ok_or(SelectionServiceError::UnknownWorker { worker_id })?;
            let changed = patch
                .apply(known)
                .map_err(|bad| SelectionServiceError::BadWorker {
                    worker_id,
                    field: bad.field,
                    reason: bad.reason,
                })?;
            check_registration(&changed)?;
            if changed != *known {
                catalog.upsert(changed);
            }
            Ok::<_, SelectionServiceError>(())
        })??;
        let record = self.worker(worker_id);
        record.ok_or(SelectionServiceError::UnknownWorker { worker_id })
    }

    /// Answers the record that the worker had. Reservations that are held by their id lose its load.
    pub fn remove_worker(&self, worker_id: u64) -> Result<WorkerRecord, SelectionServiceError> {
        let unknown = SelectionServiceError::UnknownWorker { worker_id };
        let Some(record) = self.registered(worker_id) else {
            return Err(unknown);
        };
        if self.write(|catalog| catalog.remove(worker_id))? {
            Ok(WorkerRecord {
                lifecycle: Lifecycle::Unschedulable,
                ..record
            })
        } else {
            Err(unknown)
        }
    }

    /// Makes the registered workers equal to `registrations`, in one step. All of them are checked
    /// first; one bad entry changes nothing.
    pub fn replace_workers(
        &self,
        registrations: Vec<WorkerRegistration>,
    ) -> Result<(), SelectionServiceError> {
        let mut ids = BTreeSet::new();
        for registration in &registrations {
            check_registration(registration)?;
            if !ids.insert(registration.worker_id) {
                return Err(SelectionServiceError::BadWorker {
                    worker_id: registration.worker_id,
                    field: "worker_id".to_owned(),
                    reason: "another entry has the same id".to_owned(),
                });
            }
        }
        self.write(|catalog| catalog.replace(registrations))
    }

    /// Every registered worker, by id.
    pub fn workers(&self) -> Vec<WorkerRecord> {
        let records = self.shared().published.load().records();
        let records = records.into_iter();
        records.map(|record| self.with_audit(record)).collect()
    }

    /// A worker that was removed, moved or put out of service is `draining` while selections are
    /// under way that may still have it in mind; a removed one is known for as long.
    pub fn worker(&self, worker_id: u64) -> Option<WorkerRecord> {
        let record = self.shared().published.load().record(worker_id);
        record.map(|record| self.with_audit(record))
    }

    /// The worker as it is registered now, whoever may still have it in mind.
    pub(crate) fn registered(&self, worker_id: u64) -> Option<WorkerRecord> {
        let snapshot = self.shared().published.load();
        let worker = snapshot.workers.get(&worker_id)?;
        Some(self.with_audit(worker.record()))
    }

    fn with_audit(&self, record: WorkerRecord) -> WorkerRecord {
        let (worker_id, ranks) = (record.worker_id(), record.registration.ranks());
        let audit = &self.shared().audit;
        WorkerRecord {
            cache_audit: audit.of_worker(worker_id, ranks, Instant::now()),
            ..record
        }
    }

    /// One change to the catalog, and its publication.
    fn write<T>(&self, change: impl FnOnce(&mut Catalog) -> T) -> Result<T, SelectionServiceError> {
        let (outcome, before, after) = {
            let mut catalog = self.catalog();
            if self.shared().state.borrow().stopping {
                return Err(SelectionServiceError::ShuttingDown);
            }
            let outcome = change(&mut catalog);
            let before = self.snapshot();
            let after = Arc::new(catalog.snapshot().following(&before));
            self.shared().published.store(Arc::clone(&after));
            self.shared()
                .metrics
                .set_workers(|lifecycle| after.count(lifecycle));
            self.shared().state.send_modify(|state| {
                state.source_read = true;
                state.schedulable = after.count(Lifecycle::Schedulable);
            });
            (outcome, before, after)
        };
        log_changes(&before, &after);
        let removed: BTreeSet<u64> = before
            .workers
            .keys()
            .copied()
            .filter(|id| !after.workers.contains_key(id))
            .collect();
        if !removed.is_empty() {
            self.shared().reservations.orphan(&removed);
            self.shared().audit.forget(&removed);
        }
        if let Some(replicas) = &self.shared().replicas {
            replicas.orphan(&removed);
            replicas.workers_changed();
        }
        Ok(outcome)
    }
}

fn check_registration(registration: &WorkerRegistration) -> Result<(), SelectionServiceError> {
    if registration.rank_count() <= MAX_DATA_PARALLEL_SIZE {
        return Ok(());
    }
    Err(SelectionServiceError::BadWorker {
        worker_id: registration.worker_id,
        field: "data_parallel_size".to_owned(),
        reason: format!(
            "found {}, expected at most {MAX_DATA_PARALLEL_SIZE}",
            registration.rank_count()
        ),
    })
}

fn log_changes(before: &Snapshot, after: &Snapshot) {
    for (worker_id, worker) in &after.workers {
        let known = before.workers.get(worker_id);
        if known.is_some_and(|known| known.lifecycle == worker.lifecycle) {
            continue;
        }
        let (lifecycle, reasons) = (worker.lifecycle, worker.reasons.join("; "));
        info!(worker_id, %lifecycle, reasons, "worker registered");
    }
    for worker_id in before.workers.keys() {
        if !after.workers.contains_key(worker_id) {
            info!(worker_id, "worker removed");
        }
    }
}
