//! Races and random histories: whatever happens when, nothing leaks and every number is right.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::thread;

use rand::Rng;

use super::*;
use crate::testing::seeded;

/// Swaps the workers of a partition in the middle of each selection: `left` is what remains.
fn partition_whose_workers_leave(left: fn() -> Vec<WorkerEntry>) -> Arc<Partition> {
    let slot: Arc<Mutex<Option<Arc<Partition>>>> = Arc::default();
    let inner = Arc::clone(&slot);
    let factory = picking(move || {
        let inner = Arc::clone(&inner);
        First(move || {
            if let Some(partition) = inner.lock().unwrap().take() {
                partition.set_workers(left());
            }
        })
    });
    let partition = partition_with(KvRouterConfig::default(), factory);
    *slot.lock().unwrap() = Some(Arc::clone(&partition));
    partition
}

#[test]
fn a_worker_that_leaves_in_mid_selection_is_replaced() {
    let partition = partition_whose_workers_leave(|| vec![worker(2)]);
    let held = reserve(&partition, &unknown(8), "a");
    assert_eq!(held.reservation.worker(), rank(2, 0));
    assert_eq!(load(&partition, rank(2, 0)), (8, 2, 1));
    drop(held);
    assert!(is_idle(&partition));
}

#[test]
fn workers_that_all_leave_in_mid_selection_leave_no_load() {
    let partition = partition_whose_workers_leave(Vec::new);
    let outcome = try_reserve(&partition, &unknown(8), "a");
    assert!(matches!(outcome, Err(SelectError::NoWorkers)));
    partition.set_workers(vec![worker(1), worker(2)]);
    assert!(is_idle(&partition));
}

#[test]
fn workers_that_leave_before_their_load_is_read_are_looked_up_again() {
    let slot: Arc<Mutex<Option<Arc<Partition>>>> = Arc::default();
    let inner = Arc::clone(&slot);
    // Selections ask a factory that could not build before, after they have read the workers.
    let factory: WorkerSelectionPolicyFactory = Arc::new(move |config: &KvRouterConfig, _, _| {
        let partition = inner.lock().unwrap().take().expect("not yet");
        partition.set_workers(vec![worker(3)]);
        let picker = Box::new(First(|| {}));
        WorkerSelectionPolicy::new(config.clone(), "test", Vec::new(), picker)
    });
    let partition = partition_with(KvRouterConfig::default(), factory);
    slot.clear_poison();
    *slot.lock().unwrap() = Some(Arc::clone(&partition));
    assert_eq!(select(&partition, &unknown(8)).worker, rank(3, 0));
}

#[test]
fn an_older_table_does_not_replace_a_newer_one() {
    let partition = partition();
    let version = partition.versions.load(Ordering::Relaxed);
    partition.publish(version - 1, Vec::new(), Vec::new());
    assert_eq!(partition.read_index().table.version(), version);
    assert_eq!(select(&partition, &unknown(8)).block_size, BLOCK_SIZE);
}

#[test]
fn a_storm_of_requests_events_and_departures_leaves_nothing() {
    let partition = partition();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let requesters: Vec<_> = (0..3_u32)
            .map(|requester| {
                let partition = &partition;
                scope.spawn(move || {
                    let mut random = seeded(&format!("requester {requester}"));
                    let mut held: Vec<Reservation> = Vec::new();
                    for turn in 0..1_500 {
                        let first = random.random_range(0..3) * 100;
                        let request = tokens(first..first + random.random_range(0..60));
                        let id = ReservationId::from(format!("{requester}/{turn}"));
                        match partition.select_and_reserve(&request, id, Instant::now()) {
                            Ok(reserved) => held.push(reserved.reservation),
                            Err(SelectError::NoWorkers | SelectError::WorkerGone) => {}
                            Err(error) => panic!("{error:?}"),
                        }
                        for reservation in &mut held {
                            match random.random_range(0..12) {
                                0 => reservation.prefill_complete(),
                                1 => reservation.output_block(Some(0.25)),
                                2 => {
                                    reservation.move_to(rank(random.random_range(0..4), 0));
                                }
                                _ => {}
                            }
                        }
                        held.retain(|_| random.random_bool(0.8));
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut random = seeded("engines and discovery");
            while !done.load(Ordering::Relaxed) {
                partition.stats();
                let worker_id = random.random_range(0..4);
                if random.random_bool(0.5) {
                    let event = KvEvent::Stored {
                        parent: None,
                        blocks: vec![StoredBlock {
                            engine_hash: EngineHash(1),
                            block_hash: BlockHash(random.random()),
                        }],
                    };
                    partition.apply_event(rank(worker_id, 0), &event);
                } else {
                    let workers = (0..4).filter(|_| random.random_bool(0.7)).map(worker);
                    partition.set_workers(workers.collect());
                }
            }
        });
        let outcomes: Vec<_> = requesters
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        // Before a failure is looked at, or the other thread would never end.
        done.store(true, Ordering::Relaxed);
        assert!(outcomes.iter().all(Result::is_ok));
    });
    partition.set_workers((0..4).map(worker).collect());
    assert!(is_idle(&partition), "{:?}", partition.loads());
    partition.set_workers(Vec::new());
    assert_eq!(partition.stats().index.entries, 0);
    assert_eq!(partition.stats().index.blocks, 0);
}

/// What one live request adds, as a naive bookkeeper writes it down.
struct Live {
    reservation: Reservation,
    prompt: Vec<u32>,
    prefill_tokens: u64,
    output_blocks: u64,
}

fn active_blocks(live: &BTreeMap<u64, Live>, worker: WorkerWithDpRank) -> BTreeSet<Vec<u32>> {
    live.values()
        .filter(|request| request.reservation.worker() == worker)
        .flat_map(|request| prefixes(&request.prompt))
        .collect()
}

/// Each complete block of a prompt with all before it.
fn prefixes(prompt: &[u32]) -> impl Iterator<Item = Vec<u32>> {
    let size = BLOCK_SIZE as usize;
    (1..=prompt.len() / size).map(move |blocks| prompt[..blocks * size].to_vec())
}

#[test]
fn selections_and_charges_agree_with_a_naive_model() {
    let partition = partition();
    let mut random = seeded("histories");
    let mut stored: BTreeMap<WorkerWithDpRank, BTreeSet<Vec<u32>>> = BTreeMap::new();
    let mut live: BTreeMap<u64, Live> = BTreeMap::new();
    for step in 0..3_000_u64 {
        let tail = random.random_range(0..4);
        let prompt: Vec<u32> = (0..random.random_range(0..6))
            .flat_map(|_| [random.random_range(0..2); BLOCK_SIZE as usize])
            .chain(std::iter::repeat_n(9, tail))
            .collect();
        if random.random_bool(0.1) {
            let worker = rank(random.random_range(1..=2), random.random_range(0..=1));
            store(&partition, worker, prompt.iter().copied());
            stored.entry(worker).or_default().extend(prefixes(&prompt));
        }
        let Reserved {
            selection,
            reservation,
        } = reserve(&partition, &tokens(prompt.clone()), &format!("{step}"));
        let worker = selection.worker;
        let holds =
            |set: &BTreeSet<Vec<u32>>| prefixes(&prompt).filter(|p| set.contains(p)).count();
        let overlap = stored.get(&worker).map_or(0, holds) as u64;
        assert_eq!(selection.overlap_blocks, overlap);
        let mut active = active_blocks(&live, worker);
        active.extend(prefixes(&prompt));
        let output: u64 = live
            .values()
            .filter(|request| request.reservation.worker() == worker)
            .map(|request| request.output_blocks)
            .sum();
        assert_eq!(
            selection.potential_decode_blocks,
            active.len() as u64 + output
        );
        let prefill_tokens = selection.effective_prefill_tokens;
        assert_eq!(prefill_tokens, prompt.len() as u64 - overlap * 4);
        live.insert(
            step,
            Live {
                reservation,
                prompt,
                prefill_tokens,
                output_blocks: 0,
            },
        );
        live.retain(|_, request| match random.random_range(0..20) {
            0 => {
                request.reservation.prefill_complete();
                request.prefill_tokens = 0;
                true
            }
            1 => {
                request.reservation.output_block(None);
                request.output_blocks += 1;
                true
            }
            2..6 => false,
            _ => true,
        });
        for load in partition.loads() {
            let here = || {
                live.values()
                    .filter(|r| r.reservation.worker() == load.worker)
            };
            let output: u64 = here().map(|request| request.output_blocks).sum();
            let blocks = active_blocks(&live, load.worker).len() as u64 + output;
            assert_eq!(load.decode_blocks, blocks);
            assert_eq!(load.active_requests, here().count() as u64);
            let prefill: u64 = here().map(|request| request.prefill_tokens).sum();
            assert_eq!(load.active_prefill_tokens, prefill);
        }
    }
    drop(live);
    assert!(is_idle(&partition));
}
