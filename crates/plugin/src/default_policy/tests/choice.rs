//! The default choice, by its distribution over seeds.

use super::*;

/// Rows of workers 1, 2, .. that cost exactly `costs`.
fn priced(costs: &[f64]) -> Vec<WorkerCandidate> {
    (1..)
        .zip(costs)
        .map(|(id, cost)| row(id, CacheOverlap::default(), loaded(0, *cost, 0)))
        .collect()
}

/// How often each worker is picked in `draws` requests of different seeds.
fn picks(weights: Weights, costs: &[f64], draws: u32) -> Vec<u32> {
    let mut policy = policy(
        &KvRouterConfig::default(),
        WorkerType::Aggregated,
        weights,
        None,
    );
    let mut counts = vec![0; costs.len()];
    for random_seed in 0..draws {
        let signals = RequestSignals {
            random_seed: random_seed.into(),
            ..RequestSignals::default()
        };
        let selection = policy
            .select(&WorkerSelectionContext::new(&signals), &mut priced(costs))
            .unwrap();
        counts[usize::try_from(selection.worker.worker_id).unwrap() - 1] += 1;
    }
    counts
}

/// Expects `counts` to be within five standard deviations of `shares` of their sum.
fn assert_shares(counts: &[u32], shares: &[f64]) {
    let draws = f64::from(counts.iter().sum::<u32>());
    for (count, share) in counts.iter().zip(shares) {
        let deviation = (draws * share * (1.0 - share)).sqrt();
        assert!(
            (f64::from(*count) - draws * share).abs() <= 5.0 * deviation,
            "{counts:?}; expected {shares:?}"
        );
    }
}

#[test]
fn at_temperature_0_the_lowest_cost_wins() {
    assert_eq!(picks(weights(), &[3.0, 1.0, 2.0], 100), [0, 100, 0]);
}

#[test]
fn ties_are_split_evenly() {
    assert_shares(
        &picks(weights(), &[1.0, 2.0, 1.0, 1.0], 9_000),
        &[1.0 / 3.0, 0.0, 1.0 / 3.0, 1.0 / 3.0],
    );
}

#[test]
fn above_0_the_shares_are_those_of_a_softmax_over_the_normalised_costs() {
    for temperature in [0.5, 1.0, 3.0] {
        let costs = [10.0, 12.0, 20.0];
        let weight = |cost: f64| (-(cost - 10.0) / (10.0 * temperature)).exp();
        let sum: f64 = costs.into_iter().map(weight).sum();
        let shares = costs.map(|cost| weight(cost) / sum);
        let counts = picks(
            Weights {
                router_temperature: temperature,
                ..weights()
            },
            &costs,
            20_000,
        );
        assert_shares(&counts, &shares);
    }
}

#[test]
fn equal_costs_are_split_evenly_at_any_temperature() {
    let counts = picks(
        Weights {
            router_temperature: 0.7,
            ..weights()
        },
        &[4.0; 4],
        8_000,
    );
    assert_shares(&counts, &[0.25; 4]);
}

#[test]
fn a_temperature_without_meaning_takes_the_lowest_cost() {
    for router_temperature in [-1.0, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE / 2.0] {
        let weights = Weights {
            router_temperature,
            ..weights()
        };
        assert_eq!(
            picks(weights, &[2.0, 1.0], 50),
            [0, 50],
            "{router_temperature}"
        );
    }
}

#[test]
fn a_requests_temperature_replaces_the_configured_one() {
    let mut policy = policy(
        &KvRouterConfig::default(),
        WorkerType::Aggregated,
        weights(),
        None,
    );
    let mut pick = |router_temperature_override, random_seed| {
        let signals = RequestSignals {
            router_temperature_override,
            random_seed,
            ..RequestSignals::default()
        };
        let rows = &mut priced(&[1.0, 2.0]);
        policy
            .select(&WorkerSelectionContext::new(&signals), rows)
            .unwrap()
            .worker
            .worker_id
    };
    assert!((0..100).all(|seed| pick(None, seed) == 1));
    assert!((0..100).any(|seed| pick(Some(5.0), seed) == 2));
}

#[test]
fn the_pick_does_not_depend_on_the_order_of_the_rows() {
    let shuffles = 20;
    let seed = 5;
    println!("seed {seed}");
    let mut rng = SeededRng::new(seed);
    for router_temperature in [0.0, 1.0] {
        let weights = Weights {
            router_temperature,
            ..weights()
        };
        let mut policy = policy(
            &KvRouterConfig::default(),
            WorkerType::Aggregated,
            weights,
            None,
        );
        for random_seed in 0..50 {
            let signals = RequestSignals {
                random_seed,
                ..RequestSignals::default()
            };
            let context = WorkerSelectionContext::new(&signals);
            let mut rows = priced(&[1.0, 1.0, 2.0, 1.0, 3.0]);
            let first = policy.select(&context, &mut rows.clone());
            for _ in 0..shuffles {
                for last in (1..rows.len()).rev() {
                    rows.swap(last, rng.below(last + 1));
                }
                assert_eq!(
                    policy.select(&context, &mut rows.clone()),
                    first,
                    "{rows:?}"
                );
            }
        }
    }
}
