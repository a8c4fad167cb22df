//! How far one rank's event stream is: written by its subscriber, read by anyone, without locks.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::workers::RankEvents;

/// Facts about one stream. Each is exact by itself; together they may be a moment apart.
#[derive(Debug, Default)]
pub(crate) struct RankProgress {
    connected: AtomicBool,
    suspect: AtomicBool,
    /// The last number plus one, so that 0 means none.
    next_sequence: AtomicU64,
    applied_batches: AtomicU64,
    recut_events: AtomicU64,
    block_size_mismatches: AtomicU64,
    /// 0 is none: no event of that size is told of here.
    foreign_block_size: AtomicU32,
    read_again: Notify,
}

impl RankProgress {
    pub(super) fn applied(&self, sequence: u64) {
        self.next_sequence
            .store(sequence.saturating_add(1), Ordering::Relaxed);
        // Last, so that whoever sees the count sees the number and the changed index.
        self.applied_batches.fetch_add(1, Ordering::Release);
    }

    /// What was applied is forgotten; numbers may begin anew.
    pub(super) fn cleared(&self) {
        self.next_sequence.store(0, Ordering::Relaxed);
    }

    pub(super) fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Ordering::Relaxed);
    }

    pub(super) fn set_suspect(&self, suspect: bool) {
        self.suspect.store(suspect, Ordering::Relaxed);
    }

    /// Counts a store with a block size that is not the partition's; true if that is news.
    pub(super) fn saw_block_size(&self, found: u32, reconciled: bool) -> bool {
        let count = if reconciled {
            &self.recut_events
        } else {
            &self.block_size_mismatches
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.foreign_block_size.swap(found, Ordering::Relaxed) != found
    }

    /// Asks the subscriber to believe nothing that it holds, and to read it again from the engine.
    pub(crate) fn ask_to_read_again(&self) {
        self.read_again.notify_one();
    }

    pub(super) async fn asked_to_read_again(&self) {
        self.read_again.notified().await;
    }

    pub(crate) fn report(&self) -> RankEvents {
        let applied_batches = self.applied_batches.load(Ordering::Acquire);
        let recut_events = self.recut_events.load(Ordering::Relaxed);
        let block_size_mismatches = self.block_size_mismatches.load(Ordering::Relaxed);
        let foreign = self.foreign_block_size.load(Ordering::Relaxed);
        RankEvents {
            connected: self.connected.load(Ordering::Relaxed),
            suspect: self.suspect.load(Ordering::Relaxed),
            last_sequence: self.next_sequence.load(Ordering::Relaxed).checked_sub(1),
            applied_batches,
            recut_events,
            block_size_mismatches,
            mismatched_block_size: (recut_events > 0 || block_size_mismatches > 0)
                .then_some(foreign),
        }
    }
}
