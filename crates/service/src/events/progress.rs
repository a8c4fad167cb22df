//! How far one rank's event stream is: written by its subscriber, read by anyone, without locks.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::skip::SkipReason;
use crate::workers::RankEvents;

/// Facts about one stream. Each is exact by itself; together they may be a moment apart.
#[derive(Debug, Default)]
pub(crate) struct RankProgress {
    connected: AtomicBool,
    suspect: AtomicBool,
    /// The last number plus one, so that 0 means none.
    next_sequence: AtomicU64,
    applied_batches: AtomicU64,
    block_size_mismatches: AtomicU64,
    mismatched_block_size: AtomicU32,
}

impl RankProgress {
    pub(super) fn applied(&self, sequence: u64) {
        self.next_sequence
            .store(sequence.saturating_add(1), Ordering::Relaxed);
        // Last, so that whoever sees the count sees the number and the changed index.
        self.applied_batches.fetch_add(1, Ordering::Release);
    }

    pub(super) fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Ordering::Relaxed);
    }

    pub(super) fn set_suspect(&self, suspect: bool) {
        self.suspect.store(suspect, Ordering::Relaxed);
    }

    /// Counts a block size that is not the partition's.
    pub(super) fn check_block_size(&self, found: u32, wanted: u32) -> Result<(), SkipReason> {
        if found == wanted {
            return Ok(());
        }
        self.mismatched_block_size.store(found, Ordering::Relaxed);
        self.block_size_mismatches.fetch_add(1, Ordering::Relaxed);
        Err(SkipReason::BlockSize)
    }

    pub(crate) fn report(&self) -> RankEvents {
        let applied_batches = self.applied_batches.load(Ordering::Acquire);
        let block_size_mismatches = self.block_size_mismatches.load(Ordering::Relaxed);
        let mismatched = self.mismatched_block_size.load(Ordering::Relaxed);
        RankEvents {
            connected: self.connected.load(Ordering::Relaxed),
            suspect: self.suspect.load(Ordering::Relaxed),
            last_sequence: self.next_sequence.load(Ordering::Relaxed).checked_sub(1),
            applied_batches,
            block_size_mismatches,
            mismatched_block_size: (block_size_mismatches > 0).then_some(mismatched),
        }
    }
}
