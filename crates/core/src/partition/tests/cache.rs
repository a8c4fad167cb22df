//! What tiers, doubts, discounts and predictions do to a selection.

use std::time::Duration;

use super::*;
use crate::index::{DumpedRun, Placement, RankDump, Tier};
use crate::selection::CacheForecast;

/// Lets `worker` hold blocks `from..to` of a prompt in a tier.
fn hold(
    partition: &Partition,
    worker: WorkerWithDpRank,
    tier: Tier,
    prompt: &[u32],
    blocks: std::ops::Range<usize>,
) {
    let hashes = prompt_hashes(prompt, partition.layout(), HashSeed::default(), &[]);
    let name = |at: usize| EngineHash(hashes.sequence_hashes[at].0);
    let event = KvEvent::Stored {
        parent: blocks.start.checked_sub(1).map(name),
        blocks: blocks
            .map(|at| StoredBlock {
                engine_hash: name(at),
                block_hash: hashes.block_hashes[at],
            })
            .collect(),
    };
    partition.apply_event_at(worker, Placement::from(tier), &event);
}

fn prompt() -> Vec<u32> {
    (1..=32).collect()
}

fn router_with_ttl(use_kv_events: bool) -> KvRouterConfig {
    KvRouterConfig {
        use_kv_events,
        router_ttl_secs: 2.0,
        router_predicted_ttl_secs: Some(1.0),
        ..KvRouterConfig::default()
    }
}

#[test]
fn tiers_count_by_their_worth() {
    let partition = partition();
    hold(&partition, rank(2, 1), Tier::Device, &prompt(), 0..2);
    hold(&partition, rank(2, 1), Tier::Host, &prompt(), 2..4);
    hold(&partition, rank(2, 1), Tier::Disk, &prompt(), 4..5);
    hold(&partition, rank(2, 1), Tier::External, &prompt(), 5..6);
    let request = SelectionRequest {
        record: true,
        ..tokens(prompt())
    };
    let selection = select(&partition, &request);
    assert_eq!(selection.worker, rank(2, 1));
    assert_eq!(selection.overlap_blocks, 2);
    assert_eq!(selection.host_overlap_blocks, 2);
    assert_eq!(selection.disk_overlap_blocks, 2);
    // 2 + 2 x 0.75 + 2 x 0.25 blocks of 4 tokens.
    assert_eq!(selection.effective_prefill_tokens, 32 - 16);
    let tiers = selection.rank_tiers.iter();
    let tiers: Vec<_> = tiers
        .map(|rank| (rank.device_blocks, rank.host_blocks))
        .collect();
    assert_eq!(tiers, [(0, 0), (2, 2)]);
    let record = selection.record.unwrap();
    let picked = record
        .candidates
        .iter()
        .find(|row| row.worker == rank(2, 1));
    assert_eq!(
        picked.unwrap().cache.effective_blocks.to_bits(),
        4.0_f64.to_bits()
    );
}

#[test]
fn shared_blocks_count_beyond_the_device() {
    let partition = partition();
    hold(&partition, rank(1, 0), Tier::Device, &prompt(), 0..3);
    let request = SelectionRequest {
        shared_hits: vec![1..5, 7..8],
        ..tokens(prompt())
    };
    let overlaps = partition.overlaps(&request).unwrap();
    let shared = overlaps.ranks.iter();
    let shared: Vec<_> = shared
        .map(|rank| rank.shared_beyond_device_blocks)
        .collect();
    assert_eq!(shared, [3, 5, 5, 5]);
}

#[test]
fn a_discounted_rank_is_believed_less_and_says_so() {
    let partition = partition();
    hold(&partition, rank(1, 0), Tier::Device, &prompt(), 0..8);
    hold(&partition, rank(2, 0), Tier::Device, &prompt(), 0..3);
    partition.discount_rank(rank(1, 0), 0.25);
    let selection = select(&partition, &tokens(prompt()));
    assert_eq!(selection.worker, rank(2, 0));
    assert_eq!(partition.stats().discounted_ranks, 1);
    partition.discount_rank(rank(2, 0), 0.0);
    let selection = select(&partition, &tokens(prompt()));
    assert_eq!(selection.worker, rank(1, 0));
    assert_eq!(selection.overlap_blocks, 8);
    assert_eq!(selection.effective_prefill_tokens, 32 - 8);
    partition.discount_rank(rank(1, 0), 1.0);
    partition.set_workers(vec![worker(1)]);
    assert_eq!(partition.stats().discounted_ranks, 0);
}

#[test]
fn without_events_a_prompt_returns_to_where_it_went() {
    let partition = partition_with(router_with_ttl(false), default_factory());
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let first = partition
        .select_and_reserve(&tokens(prompt()), "a".into(), at(0))
        .unwrap();
    let worker = first.selection.worker;
    drop(first);
    let again = partition.select(&tokens(prompt()), at(1_000)).unwrap();
    assert_eq!((again.worker, again.overlap_blocks), (worker, 8));
    let later = partition.select(&tokens(prompt()), at(2_200)).unwrap();
    assert_eq!(later.overlap_blocks, 0);
    assert_eq!(partition.stats().predictions.expired, 8);
}

#[test]
fn with_events_the_larger_of_both_counts() {
    let partition = partition_with(router_with_ttl(true), default_factory());
    let start = Instant::now();
    hold(&partition, rank(1, 0), Tier::Device, &prompt(), 0..5);
    hold(&partition, rank(1, 0), Tier::Host, &prompt(), 5..7);
    partition.predict(&tokens(1..=24), rank(1, 0), start);
    partition.predict(&tokens(1..=8), rank(2, 1), start);
    let selection = partition.select(&tokens(prompt()), start).unwrap();
    assert_eq!(selection.worker, rank(1, 0));
    assert_eq!(selection.overlap_blocks, 6);
    assert_eq!(selection.host_overlap_blocks, 1);
    let overlaps = partition.overlaps(&tokens(prompt())).unwrap();
    let blocks: Vec<_> = overlaps
        .ranks
        .iter()
        .map(|rank| rank.device_blocks)
        .collect();
    assert_eq!(blocks, [6, 0, 0, 2]);
}

#[test]
fn only_what_the_engine_said_is_confirmed() {
    let partition = partition_with(router_with_ttl(true), default_factory());
    let start = Instant::now();
    hold(&partition, rank(1, 0), Tier::Device, &prompt(), 0..2);
    hold(&partition, rank(1, 0), Tier::Host, &prompt(), 2..3);
    partition.predict(&tokens(1..=24), rank(1, 0), start);
    let selection = partition.select(&tokens(prompt()), start).unwrap();
    assert_eq!(selection.worker, rank(1, 0));
    assert_eq!(selection.overlap_blocks, 6);
    let expected = CacheForecast {
        confirmed_blocks: 2,
        possible_blocks: 6,
    };
    assert_eq!(selection.forecast, expected);
}

#[test]
fn a_forecast_leaves_out_the_block_of_the_last_token() {
    let partition = partition();
    hold(&partition, rank(1, 0), Tier::Device, &prompt(), 0..8);
    let forecast = select(&partition, &tokens(prompt())).forecast;
    assert_eq!(
        (forecast.confirmed_blocks, forecast.possible_blocks),
        (7, 7)
    );
}

#[test]
fn blocks_that_are_being_computed_there_may_be_found() {
    let partition = partition();
    let pinned = SelectionRequest {
        pinned_worker: Some(rank(1, 0)),
        ..tokens(prompt())
    };
    let now = Instant::now();
    let first = partition
        .select_and_reserve(&pinned, "a".into(), now)
        .unwrap();
    let forecast = select(&partition, &pinned).forecast;
    assert_eq!(
        (forecast.confirmed_blocks, forecast.possible_blocks),
        (0, 7)
    );
    drop(first);
    assert_eq!(
        select(&partition, &pinned).forecast,
        CacheForecast::default()
    );
}

#[test]
fn what_was_selected_can_be_believed_in_later() {
    let partition = partition_with(router_with_ttl(false), default_factory());
    let now = Instant::now();
    let selection = partition.select(&tokens(prompt()), now).unwrap();
    assert_eq!(partition.stats().predictions.predicted, 0);
    partition.predict_chain(selection.worker, &selection.looked_up, now);
    let again = partition.select(&tokens(prompt()), now).unwrap();
    assert_eq!((again.worker, again.overlap_blocks), (selection.worker, 8));
    partition.expire_predictions(now + Duration::from_secs(3));
    assert_eq!(partition.stats().predictions.blocks, 0);
}

#[test]
fn a_time_to_live_that_no_clock_holds_is_no_panic() {
    let router = KvRouterConfig {
        router_ttl_secs: f64::MAX,
        ..router_with_ttl(false)
    };
    let partition = partition_with(router, default_factory());
    let now = Instant::now();
    let held = partition.select_and_reserve(&tokens(prompt()), "a".into(), now);
    assert_eq!(held.unwrap().selection.overlap_blocks, 0);
    let later = partition.select(&tokens(prompt()), now + Duration::from_hours(24));
    assert_eq!(later.unwrap().overlap_blocks, 8);
}

#[test]
fn predictions_of_a_rank_that_left_are_forgotten() {
    let partition = partition_with(router_with_ttl(false), default_factory());
    let now = Instant::now();
    partition.predict(&tokens(prompt()), rank(1, 0), now);
    partition.set_workers(vec![worker(2)]);
    partition.set_workers(vec![worker(1), worker(2), worker(3)]);
    let overlaps = partition.overlaps(&tokens(prompt())).unwrap();
    assert!(overlaps.ranks.iter().all(|rank| rank.device_blocks == 0));
    assert_eq!(partition.stats().predictions.blocks, 0);
}

#[test]
fn a_dumped_partition_is_believed_until_it_is_doubted_too_long() {
    let source = partition();
    hold(&source, rank(1, 1), Tier::Device, &prompt(), 0..6);
    hold(&source, rank(1, 1), Tier::Host, &prompt(), 6..8);
    let copy = partition();
    let mut dump = RankDump::new(rank(1, 1), &Tier::ALL);
    let tell = |run: DumpedRun<'_>| {
        let event = KvEvent::Stored {
            parent: run.parent,
            blocks: run.blocks.to_vec(),
        };
        copy.apply_unconfirmed(run.worker, run.tier.into(), &event);
    };
    while source.dump_part(&mut dump, 1, tell) {}
    assert_eq!(dump.left_out(), 0);
    assert_eq!(copy.doubted(rank(1, 1)), 8);
    let selection = select(&copy, &tokens(prompt()));
    assert_eq!(
        (selection.overlap_blocks, selection.host_overlap_blocks),
        (6, 2)
    );
    hold(&copy, rank(1, 1), Tier::Device, &prompt(), 0..2);
    assert_eq!(copy.drop_doubted(rank(1, 1)), 6);
    assert_eq!(select(&copy, &tokens(prompt())).overlap_blocks, 2);
}

#[test]
fn hits_beyond_a_position_are_counted_by_the_block() {
    let hits = [0..2, 4..8];
    for (position, expected) in [(0, 6), (1, 5), (3, 4), (6, 2), (8, 0), (u32::MAX, 0)] {
        assert_eq!(crate::selection::hits_beyond(&hits, position), expected);
    }
}
