//! The part of the service's door that takes in what engines report of their caches.

use std::time::Instant;

use pointsman_core::Partition;
use pointsman_plugin::WorkerWithDpRank;

use super::{CachePrediction, CacheReport, Due};
use crate::error::SelectionServiceError;
use crate::service::{SelectionService, Shared};
use crate::workers::{PublishedWorker, Snapshot};

impl SelectionService {
    /// Compares what an engine reports of a request with what was predicted of it. The request must have been served
    /// by the rank that was selected.
    pub fn report_cached_tokens(&self, prediction: &CachePrediction, report: CacheReport) {
        self.shared().audit(prediction, report, Instant::now());
    }

    /// The same for a reservation that is held by its id. Only its first report counts; one of a reservation that was
    /// not selected here has nothing to be compared with.
    pub fn report_cached_tokens_of(
        &self,
        id: &str,
        report: CacheReport,
    ) -> Result<(), SelectionServiceError> {
        self.hear(id)?;
        let shared = self.shared();
        if let Some(prediction) = shared.reservations.take_prediction(id) {
            shared.audit(&prediction, report, Instant::now());
        }
        Ok(())
    }
}

impl Shared {
    fn audit(&self, prediction: &CachePrediction, report: CacheReport, now: Instant) {
        if !self.audit.is_on() {
            return;
        }
        let snapshot = self.published.load();
        let (worker, partition) = (prediction.worker(), prediction.partition());
        // A rank that has left, or serves another model by now, is no longer the one that was predicted of.
        let Some(published) = serving(&snapshot, worker, partition) else {
            return;
        };
        let doubted = || {
            let events = published.progress.get(&worker.dp_rank);
            events.is_some_and(|events| events.report().suspect) || partition.doubted(worker) > 0
        };
        if let Some(due) = self.audit.hear(prediction, report, doubted, now) {
            self.carry_out(&snapshot, &due);
        }
    }

    /// What time brings about.
    pub(crate) fn pass_audit(&self, now: Instant) {
        let snapshot = self.published.load();
        let is_registered =
            |worker, partition: &Partition| serving(&snapshot, worker, partition).is_some();
        for due in self.audit.pass(now, is_registered) {
            self.carry_out(&snapshot, &due);
        }
    }

    fn carry_out(&self, snapshot: &Snapshot, due: &Due) {
        let WorkerWithDpRank { worker_id, dp_rank } = due.worker();
        self.audit.carry_out(due, || {
            let worker = snapshot.workers.get(&worker_id);
            if let Some(events) = worker.and_then(|worker| worker.progress.get(&dp_rank)) {
                events.ask_to_read_again();
            }
        });
    }
}

/// The worker of a rank, if it still serves that partition with that rank.
fn serving<'a>(
    snapshot: &'a Snapshot,
    worker: WorkerWithDpRank,
    partition: &Partition,
) -> Option<&'a PublishedWorker> {
    let published = snapshot.workers.get(&worker.worker_id)?;
    let serves = published.serves(partition.id()) && published.ranks().contains(&worker.dp_rank);
    serves.then_some(published)
}
