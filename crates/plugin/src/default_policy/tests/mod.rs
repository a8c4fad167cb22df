//! The default cost, computed by hand.

mod choice;

use super::*;
use crate::candidate::{ActiveLoad, CacheOverlap};
use crate::identity::RoutingPartitionRef;
use crate::policy::{PolicySelection, PolicyTrace};
use crate::signals::RequestSignals;

/// 100 prompt tokens in blocks of 16: 6.25 blocks of work, 7 blocks long.
fn request() -> RequestSignals {
    RequestSignals {
        request_blocks: 7,
        block_size: 16,
        prompt_tokens: 100,
        ..RequestSignals::default()
    }
}

fn weights() -> Weights {
    Weights::of(&KvRouterConfig::default())
}

fn row(id: u64, cache: CacheOverlap, load: ActiveLoad) -> WorkerCandidate {
    WorkerCandidate::new(WorkerWithDpRank::from_worker_id(id))
        .with_cache(WorkerCacheInput::new(cache))
        .with_load(WorkerLoadInput::new(load))
}

fn cached(device_blocks: f64, host_blocks: f64, disk_blocks: f64) -> CacheOverlap {
    CacheOverlap {
        device_blocks,
        host_blocks,
        disk_blocks,
        ..CacheOverlap::default()
    }
}

fn loaded(prefill_tokens: usize, decode_cost_blocks: f64, requests: usize) -> ActiveLoad {
    ActiveLoad {
        prefill_tokens,
        decode_cost_blocks,
        requests,
        available: true,
    }
}

/// The cost of each row in `role`.
fn costs(
    role: WorkerType,
    weights: Weights,
    signals: &RequestSignals,
    rows: &[WorkerCandidate],
) -> Vec<f64> {
    let mut trace = PolicyTrace::default();
    let mut rows = rows.to_vec();
    policy(&KvRouterConfig::default(), role, weights, None)
        .select_traced(&WorkerSelectionContext::new(signals), &mut rows, &mut trace)
        .unwrap();
    trace.rows.iter().map(crate::TracedRow::cost).collect()
}

/// Expects one row to cost `expected`, in the aggregated role.
fn check(weights: Weights, signals: &RequestSignals, row: &WorkerCandidate, expected: f64) {
    let cost = costs(
        WorkerType::Aggregated,
        weights,
        signals,
        std::slice::from_ref(row),
    )[0];
    assert!(
        (cost - expected).abs() < 1e-12,
        "cost is {cost}; expected {expected}"
    );
}

#[test]
fn an_idle_worker_without_the_prompt_costs_its_prefill_and_its_blocks() {
    // 100 / 16 + 7
    check(
        weights(),
        &request(),
        &row(1, cached(0.0, 0.0, 0.0), loaded(0, 7.0, 0)),
        13.25,
    );
}

#[test]
fn active_prefill_counts_with_the_prompt() {
    // (28 + 100) / 16 + 9
    check(
        weights(),
        &request(),
        &row(1, cached(0.0, 0.0, 0.0), loaded(28, 9.0, 3)),
        17.0,
    );
}

#[test]
fn each_tier_takes_off_its_weight() {
    // 6.25 - (2 + 0.75 * 1 + 0.25 * 2) + 7
    check(
        weights(),
        &request(),
        &row(1, cached(2.0, 1.0, 2.0), loaded(0, 7.0, 0)),
        10.0,
    );
    // 6.25 - (0.5 * 2 + 0.1 * 1 + 0.2 * 2) + 7
    let weights = Weights {
        overlap_score_credit: 0.5,
        host_cache_hit_weight: 0.1,
        disk_cache_hit_weight: 0.2,
        ..weights()
    };
    check(
        weights,
        &request(),
        &row(1, cached(2.0, 1.0, 2.0), loaded(0, 7.0, 0)),
        11.75,
    );
}

#[test]
fn the_shared_cache_counts_by_its_multiplier() {
    let overlap = CacheOverlap {
        shared_beyond_device_blocks: 4,
        ..cached(1.0, 0.0, 0.0)
    };
    // 6.25 - 1 + 7, then 6.25 - (1 + 0.5 * 4) + 7
    check(
        weights(),
        &request(),
        &row(1, overlap, loaded(0, 7.0, 0)),
        12.25,
    );
    let shared = Weights {
        shared_cache_multiplier: 0.5,
        ..weights()
    };
    check(
        shared,
        &request(),
        &row(1, overlap, loaded(0, 7.0, 0)),
        10.25,
    );
}

#[test]
fn the_estimate_stands_in_only_where_no_tier_matched() {
    let estimated = |cache| CacheOverlap {
        effective_blocks: 5.0,
        ..cache
    };
    // 6.25 - 5 + 7
    check(
        weights(),
        &request(),
        &row(1, estimated(cached(0.0, 0.0, 0.0)), loaded(0, 7.0, 0)),
        8.25,
    );
    // 6.25 - 0.75 * 2 + 7
    check(
        weights(),
        &request(),
        &row(1, estimated(cached(0.0, 2.0, 0.0)), loaded(0, 7.0, 0)),
        11.75,
    );
}

#[test]
fn credit_beyond_the_work_is_not_given_back() {
    // max(0, 6.25 - 9) + 7
    check(
        weights(),
        &request(),
        &row(1, cached(9.0, 0.0, 0.0), loaded(0, 7.0, 0)),
        7.0,
    );
}

#[test]
fn the_scale_and_the_request_weight_multiply_their_terms() {
    let weights = Weights {
        prefill_load_scale: 2.0,
        decode_active_request_weight: 0.5,
        ..weights()
    };
    // 2 * (6.25 - 1) + 7 + 0.5 * 3
    check(
        weights,
        &request(),
        &row(1, cached(1.0, 0.0, 0.0), loaded(0, 7.0, 3)),
        19.0,
    );
}

#[test]
fn preferred_taints_multiply_the_whole() {
    let row = row(1, cached(0.0, 0.0, 0.0), loaded(0, 7.0, 0)).with_preferred_taint_multiplier(0.5);
    check(weights(), &request(), &row, 6.625);
}

#[test]
fn a_prefill_that_is_not_tracked_costs_nothing() {
    let signals = RequestSignals {
        tracks_prefill_tokens: false,
        ..request()
    };
    check(
        weights(),
        &signals,
        &row(1, cached(2.0, 0.0, 0.0), loaded(160, 7.0, 0)),
        7.0,
    );
}

#[test]
fn in_the_decode_role_untracked_credit_comes_off_the_blocks() {
    let signals = RequestSignals {
        tracks_prefill_tokens: false,
        ..request()
    };
    let weights = Weights {
        decode_active_request_weight: 1.0,
        ..weights()
    };
    let rows = [
        row(1, cached(2.0, 1.0, 0.0), loaded(160, 7.0, 3)),
        row(2, cached(9.0, 0.0, 0.0), loaded(0, 7.0, 1)),
    ];
    // 7 - 2.75 + 3, and max(0, 7 - 9) + 1
    assert_eq!(
        costs(WorkerType::Decode, weights, &signals, &rows),
        [7.25, 1.0]
    );
    // Tracked, the decode role is like any other: 16.25 - 2.75 + 7 + 3, and max(0, 6.25 - 9) + 7 + 1.
    assert_eq!(
        costs(WorkerType::Decode, weights, &request(), &rows),
        [23.5, 8.0]
    );
}

#[test]
fn credit_fades_with_backlog_above_the_least_loaded_row() {
    let weights = Weights {
        overlap_score_credit_decay: 7.0,
        ..weights()
    };
    let rows = [
        row(1, cached(4.0, 1.0, 0.0), loaded(64, 7.0, 1)),
        row(2, cached(4.0, 1.0, 0.0), loaded(32, 7.0, 1)),
    ];
    // Two blocks more than row 2: fade = 1 / (1 + 7 * 2 / 7) = 1/3; the host tier does not fade.
    // 10.25 - (4/3 + 0.75) + 7, and 8.25 - 4.75 + 7
    let expected = [17.25 - 4.0 / 3.0 - 0.75, 10.5];
    for (cost, expected) in costs(WorkerType::Aggregated, weights, &request(), &rows)
        .into_iter()
        .zip(expected)
    {
        assert!((cost - expected).abs() < 1e-12, "{cost} {expected}");
    }
    // An empty prompt counts as one block: fade = 1 / (1 + 7 * 2 / 1).
    let empty = RequestSignals {
        request_blocks: 0,
        prompt_tokens: 0,
        ..request()
    };
    let cost = costs(WorkerType::Aggregated, weights, &empty, &rows)[0];
    assert!(
        (cost - (4.0 - 4.0 / 15.0 - 0.75 + 7.0)).abs() < 1e-12,
        "{cost}"
    );
}

#[test]
fn unknown_load_counts_the_prompt_alone_and_is_no_ones_measure() {
    let unknown = ActiveLoad {
        available: false,
        ..loaded(10_000, 7.0, 50)
    };
    let weights = Weights {
        overlap_score_credit_decay: 7.0,
        decode_active_request_weight: 1.0,
        ..weights()
    };
    let rows = [
        row(1, cached(1.0, 0.0, 0.0), unknown),
        row(2, cached(1.0, 0.0, 0.0), loaded(32, 7.0, 1)),
    ];
    // 6.25 - 1 + 7, and 8.25 - 1 + 7 + 1: the known row is the least loaded one.
    assert_eq!(
        costs(WorkerType::Aggregated, weights, &request(), &rows),
        [12.25, 15.25]
    );
}

#[test]
fn a_row_without_inputs_costs_the_whole_prompt() {
    let bare = WorkerCandidate::new(WorkerWithDpRank::from_worker_id(1));
    check(weights(), &request(), &bare, 13.25);
}

#[test]
fn a_requests_overrides_replace_the_weights() {
    let mut signals = request();
    signals.overrides = ConfigOverrides {
        overlap_score_credit: Some(0.5),
        prefill_load_scale: Some(3.0),
        shared_cache_multiplier: Some(0.25),
        ..ConfigOverrides::default()
    };
    let overlap = CacheOverlap {
        shared_beyond_device_blocks: 4,
        ..cached(2.0, 0.0, 0.0)
    };
    // 3 * (6.25 - (0.5 * 2 + 0.25 * 4)) + 7
    check(
        weights(),
        &signals,
        &row(1, overlap, loaded(0, 7.0, 0)),
        19.75,
    );
}

#[test]
fn a_block_size_of_zero_is_survived() {
    let signals = RequestSignals {
        block_size: 0,
        ..request()
    };
    check(
        weights(),
        &signals,
        &row(1, cached(0.0, 0.0, 0.0), loaded(0, 7.0, 0)),
        107.0,
    );
}

#[test]
fn scoring_one_row_is_a_batch_of_one() {
    let signals = request();
    let context = WorkerSelectionContext::new(&signals);
    let row = row(1, cached(2.0, 0.0, 0.0), loaded(16, 7.0, 0));
    let mut scorer = CostScorer {
        weights: weights(),
        role: WorkerType::Aggregated,
    };
    assert_eq!(scorer.score(&context, &row), Ok(12.25));
}

/// Random rows, weights and roles: a row never costs more for a cached block, and never less for more load.
#[test]
#[expect(clippy::cast_precision_loss, reason = "the numbers are small")]
fn cache_never_raises_a_cost_and_load_never_lowers_it() {
    let seed = 21;
    println!("seed {seed}");
    let mut rng = SeededRng::new(seed);
    for _ in 0..2_000 {
        let mut number = |below| rng.below(below) as f64;
        let weights = Weights {
            overlap_score_credit: number(3),
            overlap_score_credit_decay: number(3),
            prefill_load_scale: number(3),
            decode_active_request_weight: number(3),
            shared_cache_multiplier: number(2),
            ..weights()
        };
        let overlap = cached(1.0 + number(6), number(3), number(3));
        let blocks = number(20);
        let load = loaded(rng.below(500), blocks, rng.below(9));
        let signals = RequestSignals {
            tracks_prefill_tokens: rng.below(2) == 0,
            ..request()
        };
        let role = WorkerType::EVERY[rng.below(4)];
        let other = row(2, cached(0.0, 0.0, 0.0), loaded(rng.below(500), 7.0, 1));
        let cost = |overlap, load| {
            costs(
                role,
                weights,
                &signals,
                &[row(1, overlap, load), other.clone()],
            )[0]
        };

        let plain = cost(overlap, load);
        let more_device = CacheOverlap {
            device_blocks: overlap.device_blocks + 1.0,
            ..overlap
        };
        let more_shared = CacheOverlap {
            shared_beyond_device_blocks: 1,
            ..overlap
        };
        for more in [more_device, more_shared] {
            assert!(
                cost(more, load) <= plain,
                "{weights:?} {role} {overlap:?} {load:?}"
            );
        }
        let more_prefill = ActiveLoad {
            prefill_tokens: load.prefill_tokens + 40,
            ..load
        };
        let more_blocks = ActiveLoad {
            decode_cost_blocks: blocks + 1.0,
            ..load
        };
        let more_requests = ActiveLoad {
            requests: load.requests + 1,
            ..load
        };
        for more in [more_prefill, more_blocks, more_requests] {
            assert!(
                cost(overlap, more) >= plain,
                "{weights:?} {role} {overlap:?} {load:?}"
            );
        }
    }
}

#[test]
fn the_factory_follows_the_configuration_and_the_role() {
    let config = KvRouterConfig {
        prefill_load_scale: 0.0,
        ..KvRouterConfig::default()
    };
    let partition = RoutingPartitionRef::new("model", "default");
    let mut policy = default_factory()(&config, WorkerType::Prefill, partition);
    assert_eq!(
        (policy.label(), policy.exclusive_affinity()),
        ("prefill", true)
    );
    let signals = request();
    let rows = &mut vec![row(1, CacheOverlap::default(), loaded(0, 7.0, 0))];
    let picked = policy.select(&WorkerSelectionContext::new(&signals), rows);
    let worker = WorkerWithDpRank::from_worker_id(1);
    assert_eq!(picked, Ok(PolicySelection { worker, cost: 7.0 }));
}
