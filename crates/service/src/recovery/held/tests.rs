use std::num::NonZeroU32;

use pointsman_core::hash::{BlockHash, EngineHash};
use pointsman_core::index::{DumpedRun, RankDump, StoredBlock, Tier};
use pointsman_core::{PartitionConfig, WorkerEntry};
use pointsman_plugin::{KvRouterConfig, RouterPluginRegistry, WorkerType};

use super::*;
use crate::recovery::parse::{Bounds, Parsed, parse};

const SUSPECT: Duration = Duration::from_mins(1);
const HOLD: Duration = Duration::from_mins(5);
const WORKER: WorkerWithDpRank = WorkerWithDpRank {
    worker_id: 7,
    dp_rank: 0,
};

fn recovery() -> Arc<Recovery> {
    Arc::new(Recovery::new(RecoveryMetrics::default(), SUSPECT, HOLD))
}

fn partition() -> Arc<Partition> {
    let config = KvRouterConfig::default();
    let resolved = RouterPluginRegistry::default()
        .resolve_for_worker_type(&config, WorkerType::Aggregated)
        .unwrap();
    let block_size = NonZeroU32::new(4).unwrap();
    let config = PartitionConfig::new(config, WorkerType::Aggregated, resolved.factory, block_size);
    let partition = Partition::new(PartitionId::new("m", "default"), config);
    partition.set_workers(vec![WorkerEntry {
        worker_id: 7,
        rank_count: 1,
        ..WorkerEntry::default()
    }]);
    Arc::new(partition)
}

/// Two blocks of worker 7, as a peer tells them.
fn told(block_size: u32) -> Ranks {
    let text = format!(
        r#"{{"m:default": {{"block_size": {block_size}, "events": [{{"worker_id": 7, "storage_tier": "device",
        "event": {{"event_id": 0, "dp_rank": 0, "data": {{"stored": {{"parent_hash": null, "start_position": null, "blocks": [
        {{"block_hash": 1, "tokens_hash": 11, "mm_extra_info": null}},
        {{"block_hash": 2, "tokens_hash": 12, "mm_extra_info": null}}]}}}}}}}}]}}}}"#
    );
    let mut parsed = Parsed::default();
    let bounds = Bounds {
        max_bytes: 1 << 20,
        max_blocks: 1000,
    };
    parse(text.as_bytes(), bounds, &mut parsed).unwrap();
    parsed.ranks
}

fn store(name: u64) -> KvEvent {
    KvEvent::Stored {
        parent: None,
        blocks: vec![StoredBlock {
            engine_hash: EngineHash(name),
            block_hash: BlockHash(name + 10),
        }],
    }
}

/// Names of the blocks that the rank is taken to hold.
fn held(partition: &Partition) -> Vec<u64> {
    let mut names = Vec::new();
    dump(partition, |run| {
        names.extend(run.blocks.iter().map(|block| block.engine_hash.0));
    });
    names
}

fn dump(partition: &Partition, mut visit: impl FnMut(DumpedRun<'_>)) {
    let mut dump = RankDump::new(WORKER, &Tier::ALL);
    while partition.dump_part(&mut dump, 1, &mut visit) {}
}

#[test]
fn blocks_wait_for_their_stream_and_are_doubted() {
    let (recovery, partition, now) = (recovery(), partition(), Instant::now());
    recovery.start();
    recovery.finish(told(4), now);
    assert!(held(&partition).is_empty());
    recovery.claim(&partition, WORKER).unwrap().believe();
    assert_eq!(held(&partition), [1, 2]);
    assert_eq!(partition.doubted(WORKER), 2);
    assert!(recovery.claim(&partition, WORKER).is_none());
}

#[test]
fn a_stream_that_began_first_is_given_them_at_the_end() {
    let (recovery, partition) = (recovery(), partition());
    recovery.start();
    assert!(recovery.claim(&partition, WORKER).is_none());
    recovery.finish(told(4), Instant::now());
    assert_eq!(held(&partition), [1, 2]);
}

#[test]
fn what_the_engine_confirms_stays_and_the_rest_ends_with_the_suspect_time() {
    let (recovery, partition, now) = (recovery(), partition(), Instant::now());
    recovery.finish(told(4), now);
    recovery.claim(&partition, WORKER).unwrap().believe();
    partition.apply_event(WORKER, &store(1));
    assert_eq!(partition.doubted(WORKER), 1);
    recovery.expire(now + SUSPECT / 2);
    assert_eq!(held(&partition), [1, 2]);
    recovery.expire(now + SUSPECT * 2);
    assert_eq!(held(&partition), [1]);
}

#[test]
fn the_first_word_of_the_engine_wins() {
    let (recovery, partition, now) = (recovery(), partition(), Instant::now());
    recovery.finish(told(4), now);
    recovery.claim(&partition, WORKER).unwrap().believe();
    let engine_hashes = vec![EngineHash(2)];
    partition.apply_event(WORKER, &KvEvent::Removed { engine_hashes });
    assert_eq!(held(&partition), [1]);
    // Confirmed once, it is one copy, whatever the peer said.
    partition.apply_event(WORKER, &store(1));
    let engine_hashes = vec![EngineHash(1)];
    partition.apply_event(WORKER, &KvEvent::Removed { engine_hashes });
    assert!(held(&partition).is_empty());
}

#[test]
fn what_the_engine_said_before_is_not_changed() {
    let (recovery, partition) = (recovery(), partition());
    recovery.start();
    assert!(recovery.claim(&partition, WORKER).is_none());
    partition.apply_event(WORKER, &store(1));
    recovery.finish(told(4), Instant::now());
    assert_eq!(partition.doubted(WORKER), 1);
    recovery.expire(Instant::now() + SUSPECT * 2);
    assert_eq!(held(&partition), [1]);
}

#[test]
fn another_block_size_is_left_out_and_pins_nothing() {
    let (recovery, partition) = (recovery(), partition());
    recovery.finish(told(8), Instant::now());
    recovery.claim(&partition, WORKER).unwrap().believe();
    assert!(held(&partition).is_empty());
    assert_eq!(partition.doubted(WORKER), 0);
}

#[test]
fn what_nobody_claims_is_dropped() {
    let (recovery, partition, now) = (recovery(), partition(), Instant::now());
    recovery.finish(told(4), now);
    assert_eq!(recovery.metrics.held.get(), 2);
    recovery.expire(now + HOLD);
    assert_eq!(recovery.metrics.held.get(), 0);
    assert!(recovery.claim(&partition, WORKER).is_none());
}

#[test]
fn all_tiers_are_given_where_they_were() {
    let (recovery, partition, now) = (recovery(), partition(), Instant::now());
    let mut ranks = told(4);
    let text = r#"{"m:default": {"block_size": 4, "events": [
        {"worker_id": 7, "event": {"data": {"stored": {"parent_hash": null, "blocks": [{"block_hash": 1, "tokens_hash": 11}]}}}},
        {"worker_id": 7, "storage_tier": "disk", "event": {"data": {"stored": {"parent_hash": 1, "blocks": [{"block_hash": 2, "tokens_hash": 12}]}}}}
    ]}}"#;
    let mut parsed = Parsed::default();
    let bounds = Bounds {
        max_bytes: 1 << 20,
        max_blocks: 1000,
    };
    parse(text.as_bytes(), bounds, &mut parsed).unwrap();
    ranks.extend(parsed.ranks);
    recovery.finish(ranks, now);
    recovery.claim(&partition, WORKER).unwrap().believe();
    let mut told = Vec::new();
    dump(&partition, |run| {
        told.push((
            run.tier,
            run.parent.map(|parent| parent.0),
            run.blocks.len(),
        ));
    });
    let expected = [(Tier::Device, None, 1), (Tier::Disk, Some(1), 1)];
    assert_eq!(told, expected);
}
