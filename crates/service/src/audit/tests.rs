//! What the audit keeps of whom; the rules for one rank are tested beside them.

use std::num::NonZeroU32;

use pointsman_core::hash::EngineHash;
use pointsman_core::index::{KvEvent, StoredBlock};
use pointsman_core::{PartitionConfig, PartitionId, Prompt, SelectionRequest, WorkerEntry};
use pointsman_plugin::default_policy::default_factory;
use pointsman_plugin::{KvRouterConfig, WorkerType};

use super::*;

/// A partition whose only rank says that it holds four blocks of four tokens.
fn partition(model: &str) -> Arc<Partition> {
    let config = PartitionConfig::new(
        KvRouterConfig::default(),
        WorkerType::Aggregated,
        default_factory(),
        NonZeroU32::new(4).unwrap(),
    );
    let partition = Partition::new(PartitionId::new(model, "default"), config);
    partition.set_workers(vec![WorkerEntry {
        worker_id: 1,
        rank_count: 1,
        ..WorkerEntry::default()
    }]);
    let hashes = pointsman_core::hash::prompt_hashes(
        &tokens(),
        partition.layout(),
        pointsman_core::hash::HashSeed::default(),
        &[],
    );
    let blocks = (1..).zip(hashes.block_hashes);
    let event = KvEvent::Stored {
        parent: None,
        blocks: blocks
            .map(|(name, block_hash)| StoredBlock {
                engine_hash: EngineHash(name),
                block_hash,
            })
            .collect(),
    };
    partition.apply_event(WorkerWithDpRank::new(1, 0), &event);
    Arc::new(partition)
}

fn tokens() -> Vec<u32> {
    (1..=17).collect()
}

fn prediction(partition: &Arc<Partition>, now: Instant) -> CachePrediction {
    let request = SelectionRequest {
        prompt: Prompt::Tokens {
            ids: tokens(),
            media: Vec::new(),
        },
        ..SelectionRequest::default()
    };
    let selection = partition.select(&request, now).unwrap();
    CachePrediction::new(Arc::clone(partition), &selection, now)
}

fn report(cached_tokens: u64) -> CacheReport {
    CacheReport {
        cached_tokens,
        prompt_tokens: None,
    }
}

fn audit() -> Audit {
    Audit::new(AuditConfig::default(), AuditMetrics::default())
}

fn over_predicted(audit: &Audit, now: Instant) -> Option<u64> {
    let ranks = audit.of_worker(1, 0..1, now);
    ranks.get(&0).map(|rank| rank.over_predicted)
}

#[test]
fn a_prediction_is_compared_if_its_request_goes_out_soon() {
    let now = Instant::now();
    let prediction = prediction(&partition("m"), now);
    assert!(prediction.is_fresh(now + Duration::from_secs(10)));
    assert!(!prediction.is_fresh(now + Duration::from_secs(11)));
}

#[test]
fn a_rank_in_doubt_is_not_blamed() {
    let (audit, partition, now) = (audit(), partition("m"), Instant::now());
    let prediction = prediction(&partition, now);
    for _ in 0..20 {
        assert!(audit.hear(&prediction, report(0), || true, now).is_none());
    }
    assert_eq!(over_predicted(&audit, now), None);
}

#[test]
fn a_conviction_discounts_the_rank_and_reads_it_again_once() {
    let (audit, partition, now) = (audit(), partition("m"), Instant::now());
    let prediction = prediction(&partition, now);
    let mut readings = 0;
    for _ in 0..20 {
        if let Some(due) = audit.hear(&prediction, report(4), || false, now) {
            audit.carry_out(&due, || readings += 1);
        }
    }
    assert_eq!(readings, 1);
    let rank = WorkerWithDpRank::new(1, 0);
    assert!((partition.discount_of(rank) - 0.25).abs() < f64::EPSILON);
    assert_eq!(over_predicted(&audit, now), Some(8), "the rest was stale");
}

#[test]
fn a_discount_that_was_lost_is_set_again() {
    let (audit, partition, now) = (audit(), partition("m"), Instant::now());
    let prediction = prediction(&partition, now);
    for _ in 0..8 {
        audit.hear(&prediction, report(0), || false, now);
    }
    let rank = WorkerWithDpRank::new(1, 0);
    partition.discount_rank(rank, 1.0);
    for due in audit.pass(now, |_, _| true) {
        audit.carry_out(&due, || panic!("it was read again already"));
    }
    assert!(partition.discount_of(rank).abs() < f64::EPSILON);
}

#[test]
fn a_worker_that_serves_another_model_begins_anew() {
    let (audit, now) = (audit(), Instant::now());
    let [first, second] = ["m", "n"].map(|model| prediction(&partition(model), now));
    for _ in 0..7 {
        audit.hear(&first, report(0), || false, now);
    }
    assert!(audit.hear(&second, report(0), || false, now).is_none());
    assert_eq!(over_predicted(&audit, now), Some(1));
}

#[test]
fn ranks_that_are_registered_no_more_are_forgotten() {
    let (audit, now) = (audit(), Instant::now());
    let prediction = prediction(&partition("m"), now);
    audit.hear(&prediction, report(0), || false, now);
    audit.pass(now, |_, _| true);
    assert_eq!(over_predicted(&audit, now), Some(1));
    audit.pass(now, |_, _| false);
    assert_eq!(over_predicted(&audit, now), None);
}
