use std::num::NonZeroU32;

use pointsman_core::{Charge, Partition, PartitionConfig, PartitionId, WorkerEntry};
use pointsman_plugin::default_policy::default_factory;
use pointsman_plugin::{KvRouterConfig, WorkerType, WorkerWithDpRank};

use super::*;

fn partition() -> Partition {
    let config = PartitionConfig::new(
        KvRouterConfig::default(),
        WorkerType::Aggregated,
        default_factory(),
        NonZeroU32::new(16).unwrap(),
    );
    let partition = Partition::new(PartitionId::new("m", "default"), config);
    let worker = |worker_id| WorkerEntry {
        worker_id,
        rank_count: 1,
        ..WorkerEntry::default()
    };
    partition.set_workers(vec![worker(1), worker(2)]);
    partition
}

fn reservations() -> Reservations {
    Reservations::new(ReservationsConfig::default(), ReservationMetrics::default())
}

fn book(of: &Reservations, partition: &Partition, id: &str, worker_id: u64, now: Instant) {
    let claim = of.claim(id, now).unwrap();
    let worker = WorkerWithDpRank::from_worker_id(worker_id);
    let reservation = partition.reserve(worker, Charge::default(), claim.id().clone());
    claim.fulfil(Reservation::untold(reservation.unwrap()), None, now);
}

fn charged(partition: &Partition) -> u64 {
    let loads = partition.loads();
    loads.iter().map(|load| load.active_requests).sum()
}

#[test]
fn a_claim_keeps_others_out_and_is_free_again_if_nothing_comes_of_it() {
    let (held, now) = (reservations(), Instant::now());
    let claim = held.claim("x", now).unwrap();
    assert_eq!(held.claim("x", now).unwrap_err(), ClaimError::Held);
    assert!(held.hear("x", now).is_none(), "it is not booked yet");
    assert!(!held.free("x"));
    drop(claim);
    assert!(held.claim("x", now).is_ok());
}

#[test]
fn an_id_is_freed_once() {
    let (held, partition, now) = (reservations(), partition(), Instant::now());
    book(&held, &partition, "x", 1, now);
    assert_eq!(charged(&partition), 1);
    assert!(held.free("x"));
    assert!(!held.free("x"));
    assert_eq!(charged(&partition), 0);
    assert!(held.lock().checks.is_empty());
}

#[test]
fn silence_frees_and_any_call_renews() {
    let (held, partition, start) = (reservations(), partition(), Instant::now());
    book(&held, &partition, "renewed", 1, start);
    book(&held, &partition, "silent", 1, start);
    let later = start + Duration::from_mins(50);
    assert!(held.hear("renewed", later).is_some());
    held.expire(start + Duration::from_secs(3599));
    assert_eq!(charged(&partition), 2);
    held.expire(start + Duration::from_hours(1));
    assert_eq!(charged(&partition), 1);
    assert!(!held.free("silent"));
    held.expire(later + Duration::from_secs(3599));
    assert_eq!(charged(&partition), 1);
    held.expire(later + Duration::from_hours(1));
    assert_eq!(charged(&partition), 0);
    assert!(held.lock().entries.is_empty() && held.lock().checks.is_empty());
    assert_eq!(held.metrics.silent.get(), 2);
}

#[test]
fn a_removed_worker_loses_its_load_at_once_and_its_ids_end_once() {
    let (held, partition, now) = (reservations(), partition(), Instant::now());
    book(&held, &partition, "a", 1, now);
    book(&held, &partition, "b", 2, now);
    held.orphan(&BTreeSet::from([1]));
    assert_eq!(charged(&partition), 1);
    assert!(matches!(held.hear("a", now), Some(Heard::Orphaned)));
    assert_eq!(held.claim("a", now).unwrap_err(), ClaimError::Held);
    assert!(held.free("a"));
    assert!(!held.free("a"));
    assert_eq!(charged(&partition), 1);
}

#[test]
fn the_bound_is_kept() {
    let config = ReservationsConfig {
        max_entries: 1,
        ..ReservationsConfig::default()
    };
    let held = Reservations::new(config, ReservationMetrics::default());
    let now = Instant::now();
    let _claim = held.claim("a", now).unwrap();
    assert_eq!(held.claim("b", now).unwrap_err(), ClaimError::Full);
}
