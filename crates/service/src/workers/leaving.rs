//! Workers that stopped serving while selections were under way: shown as draining until those that
//! might still choose them have ended. It stops nobody and waits for nothing.
//!
//! A selection holds the snapshot that it began with, so whether one is under way is whether anyone
//! still holds that snapshot.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::catalog::Snapshot;
use super::registration::{Lifecycle, WorkerRecord};

/// By worker id.
#[derive(Debug, Default)]
pub(super) struct Leaving(BTreeMap<u64, Left>);

#[derive(Clone, Debug)]
struct Left {
    record: WorkerRecord,
    /// The last snapshot in which it served.
    served_in: Weak<Snapshot>,
}

impl Snapshot {
    /// This snapshot as the one that follows `before`.
    pub(crate) fn following(mut self, before: &Arc<Self>) -> Self {
        let before_leaving = before.leaving.0.iter();
        let mut leaving: BTreeMap<_, _> = before_leaving
            .filter(|(_, left)| left.is_under_way())
            .map(|(id, left)| (*id, left.clone()))
            .collect();
        for (id, served) in &before.workers {
            if served.lifecycle != Lifecycle::Schedulable {
                continue;
            }
            let serves_on = self.workers.get(id).is_some_and(|now| {
                now.lifecycle == Lifecycle::Schedulable
                    && now.partition_id() == served.partition_id()
            });
            if !serves_on {
                let left = Left {
                    record: served.record(),
                    served_in: Arc::downgrade(before),
                };
                leaving.insert(*id, left);
            }
        }
        self.leaving = Leaving(leaving);
        self
    }

    /// Every worker as the outside sees it, by id.
    pub(crate) fn records(&self) -> Vec<WorkerRecord> {
        let gone = self.leaving.0.keys();
        let gone = gone.filter(|id| !self.workers.contains_key(id));
        let mut ids: Vec<u64> = self.workers.keys().chain(gone).copied().collect();
        ids.sort_unstable();
        ids.into_iter().filter_map(|id| self.record(id)).collect()
    }

    pub(crate) fn record(&self, id: u64) -> Option<WorkerRecord> {
        let left = self.leaving.0.get(&id).filter(|left| left.is_under_way());
        let now = self.workers.get(&id).map(super::PublishedWorker::record);
        let Some(left) = left else {
            return now;
        };
        Some(WorkerRecord {
            lifecycle: Lifecycle::Draining,
            ..now.unwrap_or_else(|| left.record.clone())
        })
    }
}

impl Left {
    fn is_under_way(&self) -> bool {
        self.served_in.strong_count() > 0
    }
}
