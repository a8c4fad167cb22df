//! What replicas tell each other of one reservation; it holds no load.

use std::sync::Arc;

use pointsman_core::hash::SequenceHash;
use pointsman_core::{Charge, PartitionId, ReservationId};
use pointsman_plugin::WorkerWithDpRank;

/// Blocks of one reservation that are told and taken; of longer prompts the leading ones.
pub(super) const MAX_BLOCKS: usize = 1 << 16;

/// A reservation as it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) partition: PartitionId,
    pub(super) block_size: u32,
    pub(super) id: ReservationId,
    pub(super) worker: WorkerWithDpRank,
    pub(super) hashes: Arc<[SequenceHash]>,
    /// Prompt tokens to compute; 0 where prefill is not tracked.
    pub(super) prefill_tokens: u64,
    pub(super) expected_output_tokens: Option<u32>,
    pub(super) lora_name: Option<String>,
    pub(super) held_by: HeldBy,
}

/// Who ends a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldBy {
    /// The exchange that it serves; it dies with its process.
    Exchange,
    /// Whoever knows its id; it outlives the process that made it.
    Id,
}

/// One reservation of one replica: its number is that of the event that told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub(super) origin: u64,
    pub(super) seq: u64,
}

impl Record {
    pub(super) fn charge(&self) -> Charge {
        Charge {
            sequence_hashes: Arc::clone(&self.hashes),
            private_blocks: 0,
            prefill_tokens: self.prefill_tokens,
        }
    }
}

/// The blocks of a charge, for others: those that it shares with nobody get hashes of its own.
pub(super) fn told_hashes(charge: &Charge, id: &ReservationId) -> Arc<[SequenceHash]> {
    let shared = &charge.sequence_hashes;
    if charge.private_blocks == 0 && shared.len() <= MAX_BLOCKS {
        return Arc::clone(shared);
    }
    let seed = digest_of(id.as_str().as_bytes());
    let private = (0..charge.private_blocks).map(|block| SequenceHash(mixed(seed ^ mixed(block))));
    let all = shared.iter().copied().chain(private);
    all.take(MAX_BLOCKS).collect()
}

/// What a reservation adds to the digest of all that a replica holds.
pub(super) fn mark(seq: u64, id: &ReservationId, prefill_completed: bool) -> u64 {
    let id = digest_of(id.as_str().as_bytes());
    mixed(
        id ^ mixed(
            seq.wrapping_mul(2)
                .wrapping_add(u64::from(prefill_completed)),
        ),
    )
}

/// FNV-1a: the same in every release, because replicas of different releases compare it.
fn digest_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Spreads a difference in one bit over all of them.
fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charge(shared: u64, private_blocks: u64) -> Charge {
        Charge {
            sequence_hashes: (0..shared).map(SequenceHash).collect(),
            private_blocks,
            prefill_tokens: 0,
        }
    }

    #[test]
    fn blocks_that_are_shared_with_nobody_are_told_as_hashes_of_the_reservation() {
        let told = |id: &str| told_hashes(&charge(2, 3), &ReservationId::from(id));
        let (a, b) = (told("a"), told("b"));
        assert_eq!((a.len(), b.len()), (5, 5));
        assert_eq!(a[..2], b[..2]);
        assert!(a[2..].iter().all(|hash| !b.contains(hash)));
        assert_eq!(a, told("a"));
    }

    #[test]
    fn no_claim_of_a_client_makes_an_event_large() {
        let id = ReservationId::from("a");
        assert_eq!(told_hashes(&charge(1, u64::MAX), &id).len(), MAX_BLOCKS);
        assert_eq!(told_hashes(&charge(100_000, 0), &id).len(), MAX_BLOCKS);
    }

    #[test]
    fn a_digest_tells_number_id_and_prefill_apart() {
        let id = ReservationId::from("a");
        let all = [
            mark(1, &id, false),
            mark(1, &id, true),
            mark(2, &id, false),
            mark(1, &ReservationId::from("b"), false),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(one));
        }
    }
}
