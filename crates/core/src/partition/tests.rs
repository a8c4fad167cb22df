//! What a partition decides and charges, fact by fact; races and random histories are in `storm`.

mod cache;
mod explicit;
mod storm;

use std::collections::BTreeSet;
use std::time::Instant;

use pointsman_plugin::default_policy::default_factory;
use pointsman_plugin::{
    ConfigOverrides, WorkerAffinityTarget, WorkerInputView, WorkerInputs, WorkerPicker,
    WorkerSelectionContext, WorkerSelectionPolicy, WorkerSelectionPolicyError,
};

use super::*;
use crate::hash::{BlockHash, EngineHash, HashSeed, SequenceHash, prompt_hashes};
use crate::index::{Applied, KvEvent, StoredBlock};
use crate::record::Ineligible;
use crate::reservation::{Reservation, ReservationId};
use crate::selection::{Prompt, Reserved, SelectError, Selection, SelectionRequest};

const BLOCK_SIZE: u32 = 4;

fn partition_with(router: KvRouterConfig, factory: WorkerSelectionPolicyFactory) -> Arc<Partition> {
    let block_size = NonZeroU32::new(BLOCK_SIZE).unwrap();
    let config = PartitionConfig::new(router, WorkerType::Aggregated, factory, block_size);
    let partition = Arc::new(Partition::new(PartitionId::new("m", "default"), config));
    partition.set_workers(vec![worker(1), worker(2)]);
    partition
}

/// Workers 1 and 2 with two ranks each, blocks of four tokens, the default policy.
fn partition() -> Arc<Partition> {
    partition_with(KvRouterConfig::default(), default_factory())
}

fn worker(worker_id: u64) -> WorkerEntry {
    WorkerEntry {
        worker_id,
        rank_count: 2,
        ..WorkerEntry::default()
    }
}

fn rank(worker_id: u64, dp_rank: u32) -> WorkerWithDpRank {
    WorkerWithDpRank::new(worker_id, dp_rank)
}

fn tokens(ids: impl IntoIterator<Item = u32>) -> SelectionRequest {
    SelectionRequest {
        prompt: Prompt::Tokens {
            ids: ids.into_iter().collect(),
            media: Vec::new(),
        },
        ..SelectionRequest::default()
    }
}

fn unknown(estimated_tokens: u64) -> SelectionRequest {
    SelectionRequest {
        prompt: Prompt::Unknown { estimated_tokens },
        ..SelectionRequest::default()
    }
}

/// Lets `worker` store the blocks of these tokens.
fn store(partition: &Partition, worker: WorkerWithDpRank, ids: impl IntoIterator<Item = u32>) {
    let ids: Vec<_> = ids.into_iter().collect();
    let hashes = prompt_hashes(&ids, partition.layout(), HashSeed::default(), &[]);
    let blocks = hashes.block_hashes.iter().zip(&hashes.sequence_hashes);
    let event = KvEvent::Stored {
        parent: None,
        blocks: blocks
            .map(|(block_hash, sequence_hash)| StoredBlock {
                engine_hash: EngineHash(sequence_hash.0),
                block_hash: *block_hash,
            })
            .collect(),
    };
    let applied = partition.apply_event(worker, &event);
    assert!(matches!(applied, Applied::Stored { refused: 0, .. }));
}

fn select(partition: &Partition, request: &SelectionRequest) -> Selection {
    partition.select(request, Instant::now()).unwrap()
}

fn try_reserve(
    partition: &Partition,
    request: &SelectionRequest,
    id: &str,
) -> Result<Reserved, SelectError> {
    partition.select_and_reserve(request, id.into(), Instant::now())
}

fn reserve(partition: &Partition, request: &SelectionRequest, id: &str) -> Reserved {
    try_reserve(partition, request, id).unwrap()
}

fn load(partition: &Partition, worker: WorkerWithDpRank) -> (u64, u64, u64) {
    let loads = partition.loads();
    let load = loads.iter().find(|load| load.worker == worker).unwrap();
    (
        load.active_prefill_tokens,
        load.decode_blocks,
        load.active_requests,
    )
}

fn is_idle(partition: &Partition) -> bool {
    let idle = |load: &RankLoad| {
        load.active_prefill_tokens == 0 && load.decode_blocks == 0 && load.active_requests == 0
    };
    partition.loads().iter().all(idle) && partition.stats().reservations == 0
}

/// A policy that is only a picker, made anew whenever one is built.
fn picking<P: WorkerPicker + 'static>(
    picker: impl Fn() -> P + Send + Sync + 'static,
) -> WorkerSelectionPolicyFactory {
    Arc::new(move |config: &KvRouterConfig, _, _| {
        WorkerSelectionPolicy::new(config.clone(), "test", Vec::new(), Box::new(picker()))
    })
}

/// Picks the first row, after calling a function.
struct First<F>(F);

impl<F: FnMut() + Send> WorkerPicker for First<F> {
    fn pick(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        _: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        (self.0)();
        Ok(0)
    }
}

#[test]
fn the_rank_that_holds_the_prompt_is_chosen_and_its_numbers_told() {
    let partition = partition();
    store(&partition, rank(2, 1), 1..=12);
    store(&partition, rank(2, 0), 1..=4);
    let selection = select(&partition, &tokens(1..=18));
    assert_eq!(selection.worker, rank(2, 1));
    assert_eq!(selection.overlap_blocks, 3);
    assert_eq!(selection.rank_overlaps, [(0, 1), (1, 3)]);
    assert_eq!((selection.block_size, selection.isl_tokens), (4, 18));
    assert_eq!(selection.predicted_cached_tokens, 12);
    assert_eq!(selection.effective_prefill_tokens, 6);
    assert_eq!(selection.potential_decode_blocks, 4);
    assert!(selection.record.is_none());
    assert!(is_idle(&partition), "a selection holds nothing");
}

#[test]
fn the_last_prompt_token_is_never_predicted_as_cached() {
    let partition = partition();
    store(&partition, rank(1, 0), 1..=12);
    let predicted = |tokens_end| {
        let selection = select(&partition, &tokens(1..=tokens_end));
        assert_eq!(selection.worker, rank(1, 0));
        (
            selection.predicted_cached_tokens,
            selection.effective_prefill_tokens,
        )
    };
    assert_eq!(predicted(12), (8, 0));
    assert_eq!(predicted(13), (12, 1));
    assert_eq!(predicted(4), (0, 0));
}

#[test]
fn an_adapter_does_not_match_the_plain_prompt() {
    let partition = partition();
    store(&partition, rank(1, 0), 1..=12);
    let request = SelectionRequest {
        lora_name: Some("adapter".into()),
        ..tokens(1..=12)
    };
    let selection = select(&partition, &request);
    assert_eq!(selection.rank_overlaps, [(0, 0), (1, 0)]);
}

#[test]
fn an_unknown_prompt_goes_where_there_is_room() {
    let partition = partition();
    let mut held = Vec::new();
    for id in 0..4 {
        held.push(reserve(&partition, &unknown(40), &format!("{id}")));
    }
    let ranks: BTreeSet<_> = held.iter().map(|held| held.reservation.worker()).collect();
    assert_eq!(ranks.len(), 4);
    assert_eq!(load(&partition, rank(1, 1)), (40, 10, 1));
    assert_eq!(held[0].selection.predicted_cached_tokens, 0);
    drop(held);
    assert!(is_idle(&partition));
}

#[test]
fn hashes_ask_the_index_by_blocks_and_share_load_by_sequences() {
    let partition = partition();
    store(&partition, rank(1, 1), 1..=8);
    let ids: Vec<u32> = (1..=8).collect();
    let hashes = prompt_hashes(&ids, partition.layout(), HashSeed::default(), &[]);
    let request = |sequence_hashes: &[u64]| SelectionRequest {
        prompt: Prompt::Hashes {
            block_hashes: hashes.block_hashes.clone(),
            sequence_hashes: sequence_hashes.iter().copied().map(SequenceHash).collect(),
            isl_tokens: 64,
        },
        pinned_worker: Some(rank(1, 1)),
        ..SelectionRequest::default()
    };
    let first = reserve(&partition, &request(&[91, 92]), "a");
    assert_eq!(first.selection.overlap_blocks, 2);
    assert_eq!(first.selection.effective_prefill_tokens, 56);
    let second = reserve(&partition, &request(&[91, 93]), "b");
    assert_eq!(second.selection.potential_decode_blocks, 3);
    assert_eq!(load(&partition, rank(1, 1)), (112, 3, 2));
    let error = partition.select(&request(&[91]), Instant::now());
    assert!(matches!(error, Err(SelectError::BadRequest(_))));
}

#[test]
fn no_claimed_size_panics_wraps_or_stays() {
    let partition = partition();
    let hashes = |isl_tokens| SelectionRequest {
        prompt: Prompt::Hashes {
            block_hashes: vec![BlockHash(1)],
            sequence_hashes: vec![SequenceHash(1)],
            isl_tokens,
        },
        ..SelectionRequest::default()
    };
    let mut held = Vec::new();
    for (at, size) in [0, 1, u64::MAX / 2 + 1, u64::MAX - 1, u64::MAX]
        .into_iter()
        .cycle()
        .take(40)
        .enumerate()
    {
        held.push(reserve(&partition, &unknown(size), &format!("u{at}")));
        held.push(reserve(&partition, &hashes(size), &format!("h{at}")));
        held.last_mut().unwrap().reservation.output_block(Some(0.3));
    }
    assert!(
        partition
            .loads()
            .iter()
            .any(|load| load.active_prefill_tokens == u64::MAX)
    );
    drop(held);
    assert!(is_idle(&partition));
}

#[test]
fn an_empty_prompt_is_routed_by_load() {
    let partition = partition();
    let selection = select(&partition, &tokens([]));
    assert_eq!(selection.predicted_cached_tokens, 0);
    assert_eq!(selection.effective_prefill_tokens, 0);
    assert_eq!(selection.potential_decode_blocks, 0);
}

#[test]
fn a_reservation_charges_until_it_is_dropped() {
    let partition = partition();
    store(&partition, rank(1, 0), 1..=4);
    let mut held = reserve(&partition, &tokens(1..=10), "a").reservation;
    assert_eq!(held.worker(), rank(1, 0));
    assert_eq!(load(&partition, rank(1, 0)), (6, 2, 1));
    held.prefill_complete();
    held.prefill_complete();
    assert_eq!(load(&partition, rank(1, 0)), (0, 2, 1));
    held.output_block(None);
    assert_eq!(load(&partition, rank(1, 0)), (0, 3, 1));
    assert!(held.move_to(rank(2, 1)));
    assert!(!held.move_to(rank(3, 0)));
    assert_eq!(held.worker(), rank(2, 1));
    assert_eq!(load(&partition, rank(1, 0)), (0, 0, 0));
    assert_eq!(load(&partition, rank(2, 1)), (0, 3, 1));
    drop(held);
    assert!(is_idle(&partition));
}

#[test]
fn an_id_that_is_held_is_refused_before_the_policy_is_asked() {
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let factory = picking(move || {
        let count = Arc::clone(&count);
        First(move || {
            count.fetch_add(1, Ordering::Relaxed);
        })
    });
    let partition = partition_with(KvRouterConfig::default(), factory);
    let held = reserve(&partition, &unknown(4), "a");
    let again = try_reserve(&partition, &unknown(4), "a");
    assert!(matches!(again, Err(SelectError::DuplicateReservation { id }) if id == "a"));
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    drop(held);
    drop(reserve(&partition, &unknown(4), "a"));
    assert!(is_idle(&partition));
}

#[test]
fn a_reservation_outlives_its_worker_and_its_partition() {
    fn is_send<T: Send>(_: &T) {}
    let partition = partition();
    let mut held = reserve(&partition, &tokens(1..=10), "a").reservation;
    is_send(&held);
    partition.set_workers(Vec::new());
    held.prefill_complete();
    held.output_block(None);
    assert!(!held.move_to(rank(1, 0)));
    assert_eq!(partition.stats().reservations, 1);
    partition.set_workers(vec![worker(1), worker(2)]);
    assert_eq!(load(&partition, held.worker()), (0, 3, 1));
    drop(partition);
    drop(held);
}

#[test]
fn overrides_decide_what_is_charged() {
    let charged = |router, overrides, id: &str| {
        let partition = partition_with(router, default_factory());
        let request = SelectionRequest {
            overrides,
            pinned_worker: Some(rank(1, 0)),
            ..tokens(1..=8)
        };
        let _first = reserve(&partition, &request, id);
        let _second = reserve(&partition, &request, "second");
        load(&partition, rank(1, 0))
    };
    let config = KvRouterConfig::default;
    let none = ConfigOverrides::default();
    assert_eq!(charged(config(), none, "plain"), (16, 2, 2));
    let untracked = ConfigOverrides {
        track_prefill_tokens: Some(false),
        ..none
    };
    assert_eq!(charged(config(), untracked, "untracked"), (0, 2, 2));
    let unshared = ConfigOverrides {
        assume_kv_reuse: Some(false),
        ..none
    };
    assert_eq!(charged(config(), unshared, "unshared"), (16, 4, 2));
    let blockless = KvRouterConfig {
        router_track_active_blocks: false,
        ..config()
    };
    assert_eq!(charged(blockless, none, "blockless"), (16, 0, 2));
}

#[test]
fn nonsense_is_refused_before_the_policy_sees_it() {
    let partition = partition();
    let refused = |request: SelectionRequest| {
        let outcome = partition.select(&request, Instant::now());
        assert!(matches!(outcome, Err(SelectError::BadRequest(_))));
    };
    let mut request = unknown(1);
    request
        .constraints
        .preferred_taints
        .insert("gpu".into(), f64::NAN);
    refused(request);
    let mut request = unknown(1);
    request.overrides.router_temperature = Some(-1.0);
    refused(request);
}

#[test]
fn a_policy_that_panics_costs_one_request_and_no_load() {
    let built = AtomicU64::new(0);
    let factory = picking(move || {
        let first = built.fetch_add(1, Ordering::Relaxed) == 0;
        First(move || assert!(!first, "on its first selection"))
    });
    let partition = partition_with(KvRouterConfig::default(), factory);
    let outcome = try_reserve(&partition, &unknown(4), "a");
    assert!(matches!(outcome, Err(SelectError::PolicyPanicked)));
    assert!(is_idle(&partition));
    assert_eq!(partition.stats().policy_panics, 1);
    reserve(&partition, &unknown(4), "a");
}

#[test]
fn a_policy_is_given_the_inputs_it_declared_and_no_others() {
    struct Declares(WorkerInputs);
    impl WorkerPicker for Declares {
        fn required_worker_inputs(&self) -> WorkerInputs {
            self.0
        }
        fn pick(
            &mut self,
            _: &WorkerSelectionContext<'_>,
            _: WorkerInputView<'_>,
        ) -> Result<usize, WorkerSelectionPolicyError> {
            Ok(0)
        }
    }
    let given = |inputs, prefers: bool, pinned: bool| {
        let factory = picking(move || Declares(inputs));
        let partition = partition_with(KvRouterConfig::default(), factory);
        let mut request = SelectionRequest {
            record: true,
            pinned_worker: pinned.then_some(rank(1, 0)),
            ..unknown(4)
        };
        if prefers {
            let preferred = &mut request.constraints.preferred_taints;
            preferred.insert("gpu".into(), 1.0);
        }
        let record = select(&partition, &request).record.unwrap();
        let row = &record.trace.rows[0].candidate;
        (
            row.cache().is_some(),
            row.load().is_some(),
            row.preferred_taint_multiplier().is_some(),
        )
    };
    let taints = WorkerInputs::PREFERRED_TAINT;
    assert_eq!(
        given(WorkerInputs::NONE, true, false),
        (false, false, false)
    );
    assert_eq!(
        given(WorkerInputs::CACHE, true, false),
        (true, false, false)
    );
    assert_eq!(given(WorkerInputs::LOAD, true, false), (false, true, false));
    assert_eq!(given(taints, true, false), (false, false, true));
    assert_eq!(given(taints, false, false), (false, false, false));
    assert_eq!(given(taints, true, true), (false, false, false));
}

#[test]
fn a_preferred_taint_tips_the_scale() {
    let partition = partition();
    let tainted = WorkerEntry {
        taints: ["gpu".to_owned()].into(),
        ..worker(2)
    };
    partition.set_workers(vec![worker(1), tainted]);
    let mut request = unknown(40);
    request
        .constraints
        .preferred_taints
        .insert("gpu".into(), 1.0);
    for _ in 0..20 {
        assert_eq!(select(&partition, &request).worker.worker_id, 2);
    }
}

#[test]
fn the_default_policy_keeps_a_session_on_its_worker() {
    let partition = partition();
    store(&partition, rank(1, 0), 1..=12);
    let request = SelectionRequest {
        affinity_target: Some(WorkerAffinityTarget {
            worker_id: 2,
            dp_rank: None,
        }),
        record: true,
        ..tokens(1..=12)
    };
    let selection = select(&partition, &request);
    assert_eq!(selection.worker.worker_id, 2);
    let excluded = selection.record.unwrap().excluded;
    assert_eq!(excluded.len(), 2);
    assert_eq!(excluded[0].reason, Ineligible::NotAffinityTarget);
    partition.set_workers(vec![worker(1)]);
    assert_eq!(select(&partition, &request).worker, rank(1, 0));
}

#[test]
fn a_record_holds_what_decided_and_its_seed_decides_again() {
    let partition = partition();
    let overloaded = WorkerEntry {
        overloaded: true,
        ..worker(3)
    };
    partition.set_workers(vec![worker(1), worker(2), overloaded]);
    store(&partition, rank(1, 1), 1..=4);
    let request = SelectionRequest {
        record: true,
        ..tokens(101..=112)
    };
    let now = Instant::now();
    let selection = partition.select(&request, now).unwrap();
    let record = selection.record.unwrap();
    assert_eq!(record.partition, *partition.id());
    assert_eq!(record.policy, "default");
    assert_eq!(record.decided_at, now);
    assert_eq!(record.picked, selection.worker);
    assert_eq!(record.candidates.len(), 4);
    assert_eq!(record.excluded.len(), 2);
    assert_eq!(record.excluded[0].reason, Ineligible::Overloaded);
    assert!(!record.trace.rows[0].contributions.is_empty());
    for _ in 0..10 {
        let again = SelectionRequest {
            random_seed: Some(record.signals.random_seed),
            ..request.clone()
        };
        assert_eq!(select(&partition, &again).worker, record.picked);
    }
}

#[test]
fn ties_are_spread() {
    let partition = partition();
    let chosen: BTreeSet<_> = (0..60)
        .map(|_| select(&partition, &unknown(16)).worker)
        .collect();
    assert_eq!(chosen.len(), 4);
}

#[test]
fn a_rank_that_left_is_unknown_and_forgotten() {
    let partition = partition();
    store(&partition, rank(1, 0), 1..=8);
    partition.set_workers(vec![worker(2)]);
    let event = KvEvent::Cleared;
    assert_eq!(
        partition.apply_event(rank(1, 0), &event),
        Applied::UnknownRank
    );
    partition.set_workers(vec![worker(1), worker(2)]);
    assert_eq!(partition.stats().index.entries, 0);
    store(&partition, rank(1, 0), 1..=8);
    // What did not change is kept.
    partition.set_workers(vec![worker(1), worker(2), worker(3)]);
    assert_eq!(partition.stats().index.entries, 2);
    assert_eq!(
        partition.clear_rank(rank(1, 0)),
        Applied::Cleared { blocks: 2 }
    );
}

#[test]
fn odd_registrations_do_no_harm() {
    let partition = partition();
    let ranks = |entry| {
        partition.set_workers(vec![worker(7), entry]);
        partition.loads().len()
    };
    let entry = |worker_id, first_rank, rank_count| WorkerEntry {
        worker_id,
        first_rank,
        rank_count,
        ..WorkerEntry::default()
    };
    assert_eq!(ranks(entry(8, 8, 8)), 10);
    assert_eq!(ranks(entry(8, u32::MAX, 8)), 3);
    assert_eq!(ranks(entry(8, 0, u32::MAX)), 4_098);
    assert_eq!(ranks(entry(8, 0, 0)), 2);
    assert_eq!(ranks(entry(7, 0, 1)), 1);
    partition.set_workers(Vec::new());
    let outcome = partition.select(&unknown(1), Instant::now());
    assert!(matches!(outcome, Err(SelectError::NoWorkers)));
}

#[test]
fn a_partition_is_named_model_and_group() {
    assert_eq!(PartitionId::new("org/m:7b", "g").to_string(), "org/m:7b:g");
}
