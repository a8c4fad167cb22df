//! What batches come to in a real partition, as selections see it; no socket.

mod churn;
mod hostile;
mod recut;
mod shuffled;
mod tiers;

use std::num::NonZeroU32;
use std::time::Instant;

use bytes::Bytes;
use pointsman_core::{PartitionConfig, PartitionId, Prompt, SelectionRequest, WorkerEntry};
use pointsman_plugin::{KvRouterConfig, RouterPluginRegistry, WorkerType};

use super::super::sample::{V, batch, batch_of_rank, cleared, removed, stored};
use super::*;

const WORKER: u64 = 7;

/// Blocks of 4 tokens, worker 7 with ranks 0 and 1; the stream of rank 0.
struct Rig {
    ingest: Ingest,
    partition: Arc<Partition>,
    metrics: EventMetrics,
    progress: Arc<RankProgress>,
    next: u64,
}

#[derive(Clone, Copy, Default)]
struct Asked<'a> {
    lora_name: Option<&'a str>,
    cache_salt: Option<&'a str>,
}

impl Rig {
    fn new() -> Self {
        Self::with_eagle(false)
    }

    fn with_eagle(eagle: bool) -> Self {
        let config = KvRouterConfig::default();
        let policy = RouterPluginRegistry::default()
            .resolve_for_worker_type(&config, WorkerType::Aggregated)
            .unwrap();
        let block_size = NonZeroU32::new(4).unwrap();
        let config = PartitionConfig {
            eagle,
            ..PartitionConfig::new(config, WorkerType::Aggregated, policy.factory, block_size)
        };
        let partition = Arc::new(Partition::new(PartitionId::new("m", "default"), config));
        partition.set_workers(vec![WorkerEntry {
            worker_id: WORKER,
            rank_count: 2,
            ..WorkerEntry::default()
        }]);
        let target = Target {
            layout: partition.layout(),
            partition: Arc::clone(&partition),
            worker_id: WORKER,
            dp_rank: 0,
            ranks: 0..2,
        };
        let metrics = EventMetrics::default();
        let progress = Arc::new(RankProgress::default());
        let ingest = Ingest::new(target, Arc::clone(&progress), metrics.clone());
        Self {
            ingest,
            partition,
            metrics,
            progress,
            next: 0,
        }
    }

    fn apply(&mut self, payload: Bytes) {
        self.ingest.apply(
            &Frame {
                sequence: self.next,
                payload,
            },
            false,
        );
        self.next += 1;
    }

    fn apply_events(&mut self, events: Vec<V>) {
        self.apply(batch(events));
    }

    fn overlap_as(&self, dp_rank: u32, tokens: &[u32], asked: Asked<'_>) -> u64 {
        let request = SelectionRequest {
            prompt: Prompt::Tokens {
                ids: tokens.to_vec(),
                media: vec![],
            },
            pinned_worker: Some(WorkerWithDpRank {
                worker_id: WORKER,
                dp_rank,
            }),
            lora_name: asked.lora_name.map(str::to_owned),
            cache_salt: asked.cache_salt.map(str::to_owned),
            ..SelectionRequest::default()
        };
        self.partition
            .select(&request, Instant::now())
            .unwrap()
            .overlap_blocks
    }

    fn doubted(&self) -> usize {
        self.partition.doubted(WorkerWithDpRank::new(WORKER, 0))
    }

    /// Leading blocks of rank 0 on the device, and what continues them in host memory and on disk.
    fn tiers(&self, tokens: &[u32]) -> (u64, u64, u64) {
        let request = SelectionRequest {
            prompt: Prompt::Tokens {
                ids: tokens.to_vec(),
                media: vec![],
            },
            ..SelectionRequest::default()
        };
        let found = self.partition.overlaps(&request).unwrap().ranks[0];
        (found.device_blocks, found.host_blocks, found.disk_blocks)
    }

    fn overlap(&self, tokens: &[u32]) -> u64 {
        self.overlap_as(0, tokens, Asked::default())
    }
}

fn tokens(range: Range<u32>) -> Vec<u32> {
    range.collect()
}

/// A store of blocks of 4 tokens with these elements after the medium.
fn keyed(hashes: &[u32], parent: Option<u32>, ids: &[u32], tail: Vec<V>) -> V {
    let mut event = stored(hashes, parent, ids, 4);
    event.extend(tail);
    V::List(event)
}

fn plain(hashes: &[u32], parent: Option<u32>, ids: &[u32]) -> V {
    keyed(hashes, parent, ids, vec![])
}

fn salted(salt: &str) -> Vec<V> {
    vec![V::Map(vec![("cache_salt", salt.into())])]
}

#[test]
fn stored_blocks_count_until_they_are_removed() {
    let mut rig = Rig::new();
    let prompt = tokens(1..13);
    rig.apply_events(vec![plain(&[101], None, &prompt[..4])]);
    rig.apply_events(vec![plain(&[102, 103], Some(101), &prompt[4..])]);
    assert_eq!(rig.overlap(&prompt), 3);
    assert_eq!(rig.overlap_as(1, &prompt, Asked::default()), 0);
    rig.apply_events(vec![removed(&[999, 103])]);
    assert_eq!(rig.overlap(&prompt), 2);
    rig.apply_events(vec![cleared()]);
    assert_eq!(rig.overlap(&prompt), 0);
}

#[test]
fn a_block_stored_twice_needs_two_removals() {
    let mut rig = Rig::new();
    let prompt = tokens(1..5);
    rig.apply_events(vec![
        plain(&[101], None, &prompt),
        plain(&[101], None, &prompt),
    ]);
    rig.apply_events(vec![removed(&[101])]);
    assert_eq!(rig.overlap(&prompt), 1);
    rig.apply_events(vec![removed(&[101])]);
    assert_eq!(rig.overlap(&prompt), 0);
}

#[test]
fn blocks_of_an_unknown_parent_are_never_first_blocks() {
    let mut rig = Rig::new();
    rig.apply_events(vec![plain(&[103], Some(102), &tokens(9..13))]);
    assert_eq!(rig.overlap(&tokens(9..13)), 0);
    assert_eq!(rig.metrics.applied(EventKind::Waiting), 1);
}

#[test]
fn the_rank_in_the_batch_wins_and_a_foreign_one_is_left_out() {
    let mut rig = Rig::new();
    let prompt = tokens(1..5);
    rig.apply(batch_of_rank(1, vec![plain(&[101], None, &prompt)]));
    assert_eq!(rig.overlap(&prompt), 0);
    assert_eq!(rig.overlap_as(1, &prompt, Asked::default()), 1);
    rig.apply(batch_of_rank(5, vec![plain(&[101], None, &prompt)]));
    assert_eq!(rig.metrics.skipped(SkipReason::UnknownRank), 1);
}

#[test]
fn a_replayed_batch_of_a_rank_that_the_stream_never_spoke_for_is_left_out() {
    let mut rig = Rig::new();
    let payload = || batch_of_rank(1, vec![plain(&[101], None, &tokens(1..5))]);
    let replayed = |sequence| Frame {
        sequence,
        payload: payload(),
    };
    assert!(rig.ingest.is_foreign(&payload()));
    rig.ingest.apply(&replayed(0), true);
    assert_eq!(rig.overlap_as(1, &tokens(1..5), Asked::default()), 0);
    assert_eq!(rig.metrics.skipped(SkipReason::OtherRank), 1);
    rig.apply(batch_of_rank(1, vec![cleared()]));
    assert!(!rig.ingest.is_foreign(&payload()));
    rig.ingest.apply(&replayed(2), true);
    assert_eq!(rig.overlap_as(1, &tokens(1..5), Asked::default()), 1);
}

#[test]
fn clearing_forgets_every_rank_that_the_stream_spoke_for() {
    let mut rig = Rig::new();
    let prompt = tokens(1..5);
    rig.apply_events(vec![plain(&[101], None, &prompt)]);
    rig.apply(batch_of_rank(1, vec![plain(&[101], None, &prompt)]));
    rig.ingest.clear();
    assert_eq!(rig.overlap(&prompt), 0);
    assert_eq!(rig.overlap_as(1, &prompt, Asked::default()), 0);
}

#[test]
fn what_does_not_fit_the_partition_is_counted_and_harms_nothing() {
    let mut rig = Rig::new();
    let with_size = |ids: &[u32], size: u32| V::List(stored(&[1], None, ids, size));
    rig.apply_events(vec![
        with_size(&tokens(1..7), 6),
        with_size(&tokens(1..5), 0),
        with_size(&[], 0),
        with_size(&tokens(1..5), 1 << 31),
        plain(&[1, 2], None, &tokens(1..5)),
        plain(&[1], None, &tokens(1..9)),
        plain(&[1], None, &[]),
        plain(&[3, 3], None, &tokens(1..9)),
        plain(&[4], Some(4), &tokens(1..5)),
        plain(&[101], None, &tokens(1..5)),
    ]);
    assert_eq!(rig.overlap(&tokens(1..5)), 1);
    assert_eq!(rig.metrics.skipped(SkipReason::BlockSize), 3);
    assert_eq!(rig.metrics.skipped(SkipReason::TokenCount), 4);
    assert_eq!(rig.metrics.skipped(SkipReason::DuplicateHash), 2);
    let report = rig.progress.report();
    assert_eq!((report.block_size_mismatches, report.recut_events), (3, 0));
    assert_eq!(report.mismatched_block_size, Some(0));
}

#[test]
fn a_batch_that_does_not_decode_uses_its_number() {
    let mut rig = Rig::new();
    rig.apply(Bytes::from_static(&[0x93, 0xcb, 0x3f]));
    rig.apply_events(vec![plain(&[101], None, &tokens(1..5))]);
    let report = rig.progress.report();
    assert_eq!((report.last_sequence, report.applied_batches), (Some(1), 2));
    assert_eq!(rig.metrics.bad_batches.get(), 1);
    assert_eq!(rig.overlap(&tokens(1..5)), 1);
}

#[test]
fn adapters_and_salts_are_namespaces_of_their_own() {
    let mut rig = Rig::new();
    let prompt = tokens(1..13);
    rig.apply_events(vec![keyed(&[1, 2, 3], None, &prompt, vec!["poet".into()])]);
    let poet = Asked {
        lora_name: Some("poet"),
        cache_salt: None,
    };
    assert_eq!(rig.overlap_as(0, &prompt, poet), 3);
    assert_eq!(rig.overlap(&prompt), 0);
    rig.apply_events(vec![keyed(&[4, 5, 6], None, &prompt, salted("tenant"))]);
    let tenant = Asked {
        lora_name: None,
        cache_salt: Some("tenant"),
    };
    let both = Asked {
        lora_name: Some("poet"),
        cache_salt: Some("tenant"),
    };
    assert_eq!(rig.overlap_as(0, &prompt, tenant), 3);
    assert_eq!(rig.overlap_as(0, &prompt, both), 0);
}

#[test]
fn a_child_inherits_the_namespace_and_may_not_contradict_it() {
    let mut rig = Rig::new();
    let prompt = tokens(1..13);
    let tenant = Asked {
        lora_name: None,
        cache_salt: Some("tenant"),
    };
    rig.apply_events(vec![
        keyed(&[1], None, &prompt[..4], salted("tenant")),
        plain(&[2], Some(1), &prompt[4..8]),
        keyed(&[3], Some(2), &prompt[8..], salted("tenant")),
        keyed(&[4], Some(2), &prompt[8..], salted("other")),
        keyed(&[5], Some(2), &prompt[8..], vec!["poet".into()]),
    ]);
    assert_eq!(rig.overlap_as(0, &prompt, tenant), 3);
    assert_eq!(rig.overlap(&prompt), 0);
    assert_eq!(rig.metrics.skipped(SkipReason::Namespace), 2);
    rig.apply_events(vec![plain(&[11], None, &prompt[..4])]);
    rig.apply_events(vec![keyed(
        &[12],
        Some(11),
        &prompt[4..8],
        salted("tenant"),
    )]);
    assert_eq!(rig.metrics.skipped(SkipReason::Namespace), 3);
}

#[test]
fn a_removed_parent_leaves_no_namespace_behind() {
    let mut rig = Rig::new();
    let prompt = tokens(1..9);
    rig.apply_events(vec![
        keyed(&[1], None, &prompt[..4], salted("tenant")),
        removed(&[1]),
        plain(&[1], None, &prompt[..4]),
        plain(&[2], Some(1), &prompt[4..]),
    ]);
    assert_eq!(rig.overlap(&prompt), 2);
}

#[test]
fn a_block_with_unreadable_keys_ends_what_is_indexed() {
    let mut rig = Rig::new();
    let prompt = tokens(1..13);
    let keys = V::List(vec![V::Nil, V::List(vec![V::Int(9)]), V::Nil]);
    rig.apply_events(vec![keyed(&[1, 2, 3], None, &prompt, vec![V::Nil, keys])]);
    assert_eq!(rig.overlap(&prompt), 1);
    assert_eq!(rig.metrics.skipped(SkipReason::ExtraKeys), 1);
    rig.apply_events(vec![plain(&[4], Some(3), &tokens(13..17))]);
    assert_eq!(rig.metrics.applied(EventKind::Waiting), 1);
}

#[test]
fn groups_that_are_not_full_attention_stay_out_and_are_remembered() {
    let mut rig = Rig::new();
    let prompt = tokens(1..13);
    let in_group = |hashes: &[u32], ids: &[u32], group: u32, kind: &str| {
        keyed(
            hashes,
            None,
            ids,
            vec![V::Nil, V::Nil, group.into(), kind.into(), V::Nil],
        )
    };
    let removed_from = |hash: u32, group: u32| {
        V::List(vec![
            "BlockRemoved".into(),
            vec![hash].into(),
            "GPU".into(),
            group.into(),
        ])
    };
    rig.apply_events(vec![
        in_group(&[101], &prompt, 0, "mamba"),
        in_group(&[101, 102, 103], &prompt, 3, "mla_attention"),
        removed_from(101, 0),
    ]);
    assert_eq!(rig.overlap(&prompt), 3);
    assert_eq!(rig.metrics.skipped(SkipReason::CacheKind), 2);
    rig.apply_events(vec![removed_from(101, 9)]);
    assert_eq!(rig.metrics.skipped(SkipReason::UnknownGroup), 1);
    rig.apply_events(vec![removed_from(101, 3)]);
    assert_eq!(rig.overlap(&prompt), 0);
}

#[test]
fn pairs_are_for_partitions_that_hash_pairs() {
    let pairs: Vec<V> = (1..9_u32)
        .map(|token| V::from(vec![token, token + 1]))
        .collect();
    let event = || {
        let mut event = stored(&[1, 2], None, &[], 4);
        event[3] = V::List(pairs.clone());
        V::List(event)
    };
    let mut eagle = Rig::with_eagle(true);
    eagle.apply_events(vec![event(), plain(&[3], None, &tokens(50..54))]);
    assert_eq!(eagle.overlap(&tokens(1..10)), 2);
    assert_eq!(eagle.metrics.skipped(SkipReason::TokenForm), 1);
    let mut single = Rig::new();
    single.apply_events(vec![event()]);
    assert_eq!(single.metrics.skipped(SkipReason::TokenForm), 1);
}
