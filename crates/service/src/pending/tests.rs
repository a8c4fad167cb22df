use std::num::NonZeroU32;

use pointsman_core::hash::SequenceHash;
use pointsman_core::{Partition, PartitionConfig, SelectionRequest, WorkerEntry};
use pointsman_plugin::default_policy::default_factory;
use pointsman_plugin::{KvRouterConfig, WorkerType};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

fn key(id: &str) -> Key {
    Key {
        partition: PartitionId::new("m", "default"),
        id: id.to_owned(),
    }
}

fn of_worker(worker_id: u64) -> PendingSelection {
    let config = PartitionConfig::new(
        KvRouterConfig::default(),
        WorkerType::Aggregated,
        default_factory(),
        NonZeroU32::new(16).unwrap(),
    );
    let partition = Partition::new(PartitionId::new("m", "default"), config);
    partition.set_workers(vec![WorkerEntry {
        worker_id,
        rank_count: 1,
        ..WorkerEntry::default()
    }]);
    let now = Instant::now();
    let selection = partition.select(&SelectionRequest::default(), now).unwrap();
    PendingSelection {
        worker: selection.worker,
        charge: Charge::default(),
        looked_up: Arc::default(),
        prediction: CachePrediction::new(Arc::new(partition), &selection, now),
        expected_output_tokens: None,
    }
}

fn pending(config: PendingConfig) -> PendingSelections {
    PendingSelections::new(config, PendingMetrics::default())
}

fn worker_at(pending: &PendingSelections, id: &str, now: Instant) -> Option<u64> {
    let found = pending.find(&key(id), now)?;
    Some(found.selection.worker.worker_id)
}

#[test]
fn the_latest_selection_of_an_id_wins() {
    let (pending, now) = (pending(PendingConfig::default()), Instant::now());
    pending.remember(key("x"), of_worker(1), now);
    pending.remember(key("x"), of_worker(2), now);
    assert_eq!(worker_at(&pending, "x", now), Some(2));
    assert_eq!(pending.metrics.entries.get(), 1);
}

#[test]
fn a_replaced_selection_cannot_be_consumed_in_place_of_the_new_one() {
    let (pending, now) = (pending(PendingConfig::default()), Instant::now());
    pending.remember(key("x"), of_worker(1), now);
    let first = pending.find(&key("x"), now).unwrap();
    pending.remember(key("x"), of_worker(2), now);
    pending.consume(&key("x"), &first);
    assert_eq!(worker_at(&pending, "x", now), Some(2));
}

#[test]
fn an_entry_lives_its_time_and_no_longer() {
    let (pending, start) = (pending(PendingConfig::default()), Instant::now());
    pending.remember(key("x"), of_worker(1), start);
    let last = start + Duration::from_millis(119_999);
    assert_eq!(worker_at(&pending, "x", last), Some(1));
    let over = start + Duration::from_mins(2);
    assert_eq!(worker_at(&pending, "x", over), None);
    pending.expire(over);
    assert_eq!(pending.metrics.entries.get(), 0);
    assert_eq!(pending.metrics.bytes.get(), 0);
    assert_eq!(pending.metrics.expired.get(), 1);
}

#[test]
fn beyond_the_count_the_oldest_goes() {
    let config = PendingConfig {
        max_entries: 2,
        ..PendingConfig::default()
    };
    let (pending, now) = (pending(config), Instant::now());
    for (id, worker_id) in [("a", 1), ("b", 2), ("c", 3)] {
        pending.remember(key(id), of_worker(worker_id), now);
    }
    assert_eq!(worker_at(&pending, "a", now), None);
    assert_eq!(worker_at(&pending, "b", now), Some(2));
    assert_eq!(worker_at(&pending, "c", now), Some(3));
    assert_eq!(pending.metrics.evicted.get(), 1);
}

#[test]
fn beyond_the_bytes_the_oldest_go_and_what_never_fits_is_not_kept() {
    let large = |hashes: u64| PendingSelection {
        charge: Charge {
            sequence_hashes: (0..hashes).map(SequenceHash).collect(),
            ..Charge::default()
        },
        ..of_worker(1)
    };
    let config = PendingConfig {
        max_bytes: 10_000,
        ..PendingConfig::default()
    };
    let (pending, now) = (pending(config), Instant::now());
    pending.remember(key("a"), large(500), now);
    pending.remember(key("b"), large(500), now);
    pending.remember(key("c"), large(500), now);
    assert_eq!(worker_at(&pending, "a", now), None);
    assert_eq!(worker_at(&pending, "b", now), Some(1));
    assert_eq!(worker_at(&pending, "c", now), Some(1));
    pending.remember(key("c"), large(2_000), now);
    assert_eq!(worker_at(&pending, "c", now), None, "the old one is stale");
    assert_eq!(worker_at(&pending, "b", now), Some(1));
}

#[test]
fn partitions_do_not_share_ids() {
    let (pending, now) = (pending(PendingConfig::default()), Instant::now());
    pending.remember(key("x"), of_worker(1), now);
    let elsewhere = Key {
        partition: PartitionId::new("m", "g2"),
        id: "x".to_owned(),
    };
    assert!(pending.find(&elsewhere, now).is_none());
}

#[test]
fn any_history_stays_within_the_bounds_and_agrees_with_a_naive_list() {
    let seed = 0x5eed_0005;
    println!("seed {seed:#x}");
    let mut random = StdRng::seed_from_u64(seed);
    let config = PendingConfig {
        time_to_live: Duration::from_secs(50),
        max_entries: 8,
        max_bytes: usize::MAX,
    };
    let pending = pending(config);
    let mut now = Instant::now();
    let mut naive: Vec<(String, u64, Instant)> = Vec::new();
    for step in 0..20_000_u64 {
        now += Duration::from_secs(random.random_range(0..4));
        naive.retain(|(_, _, expires_at)| *expires_at > now);
        let id = random.random_range(0..16).to_string();
        match random.random_range(0..4) {
            0 | 1 => {
                pending.remember(key(&id), of_worker(step), now);
                naive.retain(|(known, ..)| *known != id);
                if naive.len() == config.max_entries {
                    naive.remove(0);
                }
                naive.push((id, step, now + config.time_to_live));
            }
            2 => {
                if let Some(found) = pending.find(&key(&id), now) {
                    pending.consume(&key(&id), &found);
                }
                naive.retain(|(known, ..)| *known != id);
            }
            _ => pending.expire(now),
        }
        for at in 0..16 {
            let id = at.to_string();
            let known = naive.iter().find(|(known, ..)| *known == id);
            let found = worker_at(&pending, &id, now);
            assert_eq!(found, known.map(|(_, worker_id, _)| *worker_id));
        }
        let state = pending.lock();
        assert_eq!(state.entries.len(), state.order.len());
        let bytes: usize = state.entries.values().map(|entry| entry.bytes).sum();
        assert_eq!(state.bytes, bytes);
    }
}
