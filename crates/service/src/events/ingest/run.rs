//! One store on its way into the index: the checks that need no memory, and its blocks' hashes.

use std::num::NonZeroU32;

use pointsman_core::hash::{self, EngineHash, HashLayout, HashSeed};
use pointsman_core::index::{KvEvent, StoredBlock};
use pointsman_plugin::WorkerWithDpRank;
use tracing::warn;

use super::super::progress::RankProgress;
use super::super::skip::SkipReason;
use super::super::wire::Stored;

/// Kept for their capacity.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) blocks: Vec<StoredBlock>,
    pub(super) names: Vec<EngineHash>,
    pub(super) sorted: Vec<u64>,
}

/// A store that was checked, with what its blocks are hashed by.
pub(super) struct Run<'a> {
    pub(super) stored: &'a Stored,
    pub(super) tokens: &'a [u32],
    pub(super) size: NonZeroU32,
    /// Leading blocks with an identity.
    pub(super) readable: usize,
    pub(super) seed: HashSeed,
}

impl Run<'_> {
    pub(super) fn names(&self) -> &[u64] {
        &self.stored.engine_hashes[..self.readable]
    }

    /// The store in blocks of the partition's size, which they have.
    pub(super) fn event(&self, scratch: &mut Scratch, layout: HashLayout) -> KvEvent {
        let mut blocks = std::mem::take(&mut scratch.blocks);
        blocks.clear();
        let mut names = self.names().iter();
        let media = &self.stored.media;
        hash::for_each_block(self.tokens, layout, self.seed, media, |block_hash| {
            blocks.extend(names.next().map(|name| StoredBlock {
                engine_hash: EngineHash(*name),
                block_hash,
            }));
        });
        KvEvent::Stored {
            parent: self.stored.parent.map(EngineHash),
            blocks,
        }
    }
}

impl Scratch {
    pub(super) fn take_back(&mut self, event: KvEvent) {
        if let KvEvent::Stored { blocks, .. } = event {
            self.blocks = blocks;
        }
    }
}

/// The block size of a store, if its blocks are the partition's or can be cut to them.
pub(super) fn reconciled(
    progress: &RankProgress,
    stored: &Stored,
    layout: HashLayout,
    worker: WorkerWithDpRank,
) -> Result<NonZeroU32, SkipReason> {
    let (found, wanted) = (stored.block_size, layout.block_size.get());
    if found == wanted {
        return Ok(layout.block_size);
    }
    let size = NonZeroU32::new(found).filter(|_| {
        found.is_multiple_of(wanted) || (wanted.is_multiple_of(found) && !layout.eagle)
    });
    if size.is_some_and(|size| tokens_of(stored, size, layout).is_none()) {
        // An event that contradicts itself says nothing about its engine.
        return Err(SkipReason::TokenCount);
    }
    if progress.saw_block_size(found, size.is_some()) {
        let WorkerWithDpRank { worker_id, dp_rank } = worker;
        let cut_again = size.is_some();
        warn!(
            worker_id,
            dp_rank, found, wanted, cut_again, "kv events with another block size"
        );
    }
    size.ok_or(SkipReason::BlockSize)
}

/// The tokens of a store's blocks; `None` if they do not fill as many as it names.
pub(super) fn tokens_of(stored: &Stored, size: NonZeroU32, layout: HashLayout) -> Option<&[u32]> {
    let engine = HashLayout {
        block_size: size,
        ..layout
    };
    let blocks = engine.complete_blocks(stored.tokens.len());
    (blocks == stored.engine_hashes.len()).then_some(stored.tokens.as_slice())
}

/// Leading blocks with an identity that can be computed. Where in a block of the partition a media
/// item of a larger or smaller block belongs is not told.
pub(super) fn readable_blocks(stored: &Stored, is_recut: bool) -> usize {
    let readable = stored.readable_blocks.min(stored.engine_hashes.len());
    let with_media = stored.media.iter().position(|items| !items.is_empty());
    match with_media {
        Some(block) if is_recut => readable.min(block),
        _ => readable,
    }
}

/// Whether a name occurs twice, the parent's included: then no order of blocks can be right.
pub(super) fn names_a_block_twice(
    names: &[u64],
    parent: Option<u64>,
    sorted: &mut Vec<u64>,
) -> bool {
    if names.len() == 1 {
        return parent == Some(names[0]);
    }
    sorted.clear();
    sorted.extend(names.iter().copied().chain(parent));
    sorted.sort_unstable();
    sorted.windows(2).any(|pair| pair[0] == pair[1])
}
