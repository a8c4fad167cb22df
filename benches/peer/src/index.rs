//! Both indexes behind the same few calls; each is used as its own callers use it.

use dynamo_kv_router::indexer::ThreadPoolIndexer;
use dynamo_kv_router::indexer::concurrent_radix_tree_compressed::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent,
    WorkerWithDpRank as PeerRank,
};
use pointsman_core::hash::{BlockHash, EngineHash, SequenceHash};
use pointsman_core::index::{KvEvent, KvIndex, Overlaps, StoredBlock};
use pointsman_plugin::WorkerWithDpRank;

use crate::inputs::{Event, Inputs};

pub(crate) struct Ours {
    pub(crate) index: KvIndex,
}

pub(crate) struct Peer {
    pub(crate) pool: ThreadPoolIndexer<ConcurrentRadixTreeCompressed>,
    runtime: tokio::runtime::Runtime,
}

impl Ours {
    pub(crate) fn new(workers: usize) -> Self {
        let mut index = KvIndex::default();
        for worker in 0..workers {
            index.add_rank(WorkerWithDpRank::from_worker_id(worker as u64));
        }
        Self { index }
    }

    pub(crate) fn events(events: &[Event]) -> Vec<(WorkerWithDpRank, KvEvent)> {
        let event = |event: &Event| {
            let ours = if event.removed.is_empty() {
                KvEvent::Stored {
                    parent: event.parent.map(EngineHash),
                    blocks: event
                        .blocks
                        .iter()
                        .map(|(name, block)| StoredBlock {
                            engine_hash: EngineHash(*name),
                            block_hash: BlockHash(*block),
                        })
                        .collect(),
                }
            } else {
                KvEvent::Removed {
                    engine_hashes: event.removed.iter().copied().map(EngineHash).collect(),
                }
            };
            (WorkerWithDpRank::from_worker_id(event.worker as u64), ours)
        };
        events.iter().map(event).collect()
    }

    pub(crate) fn apply(&mut self, events: Vec<(WorkerWithDpRank, KvEvent)>) {
        for (worker, event) in events {
            self.index.apply(worker, &event);
        }
    }

    pub(crate) fn find(&self, chain: &[SequenceHash], overlaps: &mut Overlaps) {
        self.index.overlap_into(chain, overlaps);
    }
}

impl Peer {
    pub(crate) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        Self {
            pool: ThreadPoolIndexer::new(ConcurrentRadixTreeCompressed::new(), 1, 16),
            runtime,
        }
    }

    pub(crate) fn events(events: &[Event]) -> Vec<RouterEvent> {
        let event = |(id, event): (u64, &Event)| {
            let data = if event.removed.is_empty() {
                KvCacheEventData::Stored(KvCacheStoreData {
                    parent_hash: event.parent.map(ExternalSequenceBlockHash),
                    start_position: None,
                    blocks: event
                        .blocks
                        .iter()
                        .map(|(name, block)| KvCacheStoredBlockData {
                            block_hash: ExternalSequenceBlockHash(*name),
                            tokens_hash: LocalBlockHash(*block),
                            mm_extra_info: None,
                        })
                        .collect(),
                })
            } else {
                KvCacheEventData::Removed(KvCacheRemoveData {
                    block_hashes: event
                        .removed
                        .iter()
                        .copied()
                        .map(ExternalSequenceBlockHash)
                        .collect(),
                })
            };
            RouterEvent::new(
                event.worker as u64,
                KvCacheEvent {
                    event_id: id,
                    data,
                    dp_rank: 0,
                },
            )
        };
        (0..).zip(events).map(event).collect()
    }

    pub(crate) fn apply(&self, events: Vec<RouterEvent>) {
        for event in events {
            self.pool.enqueue_event(event).expect("the pool runs");
        }
        self.runtime
            .block_on(self.pool.flush_and_wait())
            .expect("the pool runs");
    }

    pub(crate) fn find(&self, blocks: &[LocalBlockHash]) -> OverlapScores {
        self.pool.backend().find_matches_impl(blocks, false)
    }
}

/// Builds both from the same events.
pub(crate) fn both(inputs: &Inputs, size: usize) -> (Ours, Peer) {
    let stores = inputs.stores(size);
    let mut ours = Ours::new(inputs.shape.workers);
    let peer = Peer::new();
    for events in stores.chunks(4_096) {
        ours.apply(Ours::events(events));
        peer.apply(Peer::events(events));
    }
    assert_eq!(ours.index.stats().entries, inputs.entries());
    (ours, peer)
}

/// Asks both; panics unless ours gives every worker the blocks that the inputs say, and the peer
/// too where `both_exact`. How many prompts the peer answered otherwise.
pub(crate) fn compare(
    ours: &Ours,
    peer: &Peer,
    inputs: &Inputs,
    prompts: &[(Vec<u64>, Vec<u64>)],
    both_exact: bool,
) -> usize {
    let mut overlaps = Overlaps::default();
    let mut peer_differs = 0;
    for (blocks, sequences) in prompts {
        let chain: Vec<_> = sequences.iter().copied().map(SequenceHash).collect();
        let locals: Vec<_> = blocks.iter().copied().map(LocalBlockHash).collect();
        ours.find(&chain, &mut overlaps);
        let scores = peer.find(&locals).scores;
        let expected = inputs.held(blocks);
        let mut differs = false;
        for (worker, expected) in (0..).zip(expected) {
            let rank = WorkerWithDpRank::from_worker_id(worker);
            let slot = ours.index.slot(rank).expect("registered");
            assert_eq!(overlaps.blocks(slot), expected, "worker {worker}");
            let peers = scores.get(&PeerRank::new(worker, 0)).copied().unwrap_or(0);
            assert!(
                !both_exact || peers == expected,
                "the peer's worker {worker}"
            );
            differs |= peers != expected;
        }
        peer_differs += usize::from(differs);
    }
    peer_differs
}
