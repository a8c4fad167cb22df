//! Both indexes behind the same few calls; each is used as its own callers use it.

use dynamo_kv_router::indexer::concurrent_radix_tree_compressed::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::positional::PositionalIndexer;
use dynamo_kv_router::indexer::{RadixTree, SyncIndexer, ThreadPoolIndexer};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent,
    WorkerWithDpRank as PeerRank,
};
use pointsman_core::hash::{BlockHash, EngineHash, SequenceHash};
use pointsman_core::index::{KvEvent, KvIndex, Overlaps, StoredBlock};
use pointsman_plugin::WorkerWithDpRank;

use crate::inputs::{EVENT_BLOCKS, Event, Inputs, Kind, Shape};

/// Events that come in one message, as an engine sends after each step.
const BATCH: usize = 16;

pub(crate) struct Ours {
    pub(crate) index: KvIndex,
}

/// An index of the published crate.
pub(crate) trait Published {
    fn apply(&mut self, events: Vec<RouterEvent>);
    fn find(&self, blocks: &[LocalBlockHash]) -> OverlapScores;
}

/// One that is written by a thread of its own, the default one if nothing else is said.
pub(crate) struct Peer<B: SyncIndexer = ConcurrentRadixTreeCompressed> {
    pub(crate) pool: ThreadPoolIndexer<B>,
    runtime: tokio::runtime::Runtime,
}

/// The single-threaded tree: one of all workers, or one for each, which then knows its names alone.
pub(crate) struct Trees(Vec<RadixTree>);

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

    #[expect(
        clippy::needless_pass_by_value,
        reason = "dropping them is part of the work, as it is on the other side"
    )]
    pub(crate) fn apply(&mut self, events: Vec<(WorkerWithDpRank, KvEvent)>) {
        for batch in events.chunks(BATCH) {
            for of_worker in batch.chunk_by(|(one, _), (next, _)| one == next) {
                let small = || {
                    of_worker
                        .iter()
                        .map(|(_, event)| event)
                        .filter(|event| is_small(event))
                };
                if small().nth(1).is_some() {
                    let (added, known) = (small().flat_map(added), small().flat_map(known));
                    self.index.expect(of_worker[0].0, added, known);
                }
                for (worker, event) in of_worker {
                    self.index.apply(*worker, event);
                }
            }
        }
    }

    pub(crate) fn find(&self, chain: &[SequenceHash], overlaps: &mut Overlaps) {
        self.index.overlap_into(chain, overlaps);
    }
}

/// Whether it is about one block. Longer ones read ahead for themselves.
fn is_small(event: &KvEvent) -> bool {
    match event {
        KvEvent::Stored { blocks, .. } => blocks.len() == 1,
        KvEvent::Removed { engine_hashes } => engine_hashes.len() == 1,
        _ => false,
    }
}

/// Blocks that an event adds.
fn added(event: &KvEvent) -> impl Iterator<Item = EngineHash> + Clone {
    let blocks: &[StoredBlock] = match event {
        KvEvent::Stored { blocks, .. } => blocks,
        _ => &[],
    };
    blocks.iter().map(|block| block.engine_hash)
}

/// Blocks that it takes to be there.
fn known(event: &KvEvent) -> impl Iterator<Item = EngineHash> + Clone {
    let names: &[EngineHash] = match event {
        KvEvent::Stored { parent, .. } => parent.as_slice(),
        KvEvent::Removed { engine_hashes } => engine_hashes,
        _ => &[],
    };
    names.iter().copied()
}

impl Peer {
    pub(crate) fn new() -> Self {
        Self::of(ConcurrentRadixTreeCompressed::new())
    }
}

impl<B: SyncIndexer> Peer<B> {
    fn of(backend: B) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        Self {
            pool: ThreadPoolIndexer::new(backend, 1, 16),
            runtime,
        }
    }
}

impl Peer {
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

    pub(crate) fn find(&self, blocks: &[LocalBlockHash]) -> OverlapScores {
        self.pool.backend().find_matches_impl(blocks, false)
    }
}

impl<B: SyncIndexer> Published for Peer<B> {
    fn apply(&mut self, events: Vec<RouterEvent>) {
        for event in events {
            self.pool.enqueue_event(event).expect("the pool runs");
        }
        self.runtime
            .block_on(self.pool.flush_and_wait())
            .expect("the pool runs");
    }

    fn find(&self, blocks: &[LocalBlockHash]) -> OverlapScores {
        self.pool.backend().find_matches(blocks, false)
    }
}

impl Trees {
    pub(crate) fn one() -> Self {
        Self(vec![RadixTree::new()])
    }

    pub(crate) fn one_each(workers: usize) -> Self {
        Self((0..workers).map(|_| RadixTree::new()).collect())
    }
}

impl Published for Trees {
    fn apply(&mut self, events: Vec<RouterEvent>) {
        let trees = self.0.len() as u64;
        for event in events {
            let tree = usize::try_from(event.worker_id % trees).expect("below the number of trees");
            // What it refuses is missing from its answers, which are compared.
            let _ = self.0[tree].apply_event(event);
        }
    }

    fn find(&self, blocks: &[LocalBlockHash]) -> OverlapScores {
        let mut all = OverlapScores::new();
        for tree in &self.0 {
            all.scores
                .extend(tree.find_matches(blocks.to_vec(), false).scores);
        }
        all
    }
}

/// Prints which published indexes answer rightly where each worker has names of its own.
pub(crate) fn print_who_knows_own_names() {
    let inputs = Inputs::new(Shape {
        workers: 8,
        blocks: 64,
        system_owners: usize::MAX,
        tail_owners: 1,
        tail_entries: 10_000,
        same_names: false,
    });
    println!("own names on each worker, prompts of 16 that are answered wrongly:");
    let mut ours = Ours::new(inputs.shape.workers);
    ours.apply(Ours::events(&inputs.stores(EVENT_BLOCKS)));
    let print = |what, published: &mut dyn Published| {
        published.apply(Peer::events(&inputs.stores(EVENT_BLOCKS)));
        let prompts = inputs.prompts(Kind::Hit, 16);
        let wrong = compare(&ours, published, &inputs, &prompts, false);
        println!("  {wrong:>2} by {what}");
    };
    print("the default tree", &mut Peer::new());
    print("the single-threaded tree", &mut Trees::one());
    print(
        "the positional index",
        &mut Peer::of(PositionalIndexer::new(32)),
    );
    print(
        "a single-threaded tree for each worker, the yardstick below",
        &mut Trees::one_each(inputs.shape.workers),
    );
}

/// Builds both from the same events.
pub(crate) fn both(inputs: &Inputs, size: usize) -> (Ours, Peer) {
    let stores = inputs.stores(size);
    let mut ours = Ours::new(inputs.shape.workers);
    let mut peer = Peer::new();
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
    peer: &dyn Published,
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
