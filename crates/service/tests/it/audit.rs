//! Engines that report other cached tokens than their events promise, over real sockets.

use std::time::Duration;

use pointsman_core::SelectionRequest;
use pointsman_plugin::WorkerWithDpRank;
use pointsman_service::{AuditConfig, AuditMode, CacheReport, RankAudit, Selected};

use crate::engine::{Answer, Engine, store};
use crate::rig::{Replays, Rig, asking, partition, tokens, worker, worker_of};

/// Eight blocks that worker 1's engine says it holds, and a token more.
fn prompt() -> Vec<u32> {
    tokens(1..34)
}

const NAMES: [u32; 8] = [101, 102, 103, 104, 105, 106, 107, 108];

/// That worker 1 is quarantined.
const SHARE: &str = "cache_audit_overlap_share{worker_id=\"1\",dp_rank=\"0\"} 0.0";

/// Worker 1, whose engine holds the prompt by its word, and worker 2 without events.
struct Scene {
    rig: Rig,
    engine: Engine,
}

impl Scene {
    async fn new(replays: Replays, mode: AuditMode) -> Self {
        let audit = AuditConfig {
            mode,
            settling: Duration::ZERO,
        };
        let rig = Rig::built(|builder| builder.cache_audit(audit)).await;
        let mut engine = Engine::start(Answer::WithTopic).await;
        rig.service
            .register_worker(worker_of(1, &engine, replays))
            .unwrap();
        rig.service.register_worker(worker(2)).unwrap();
        engine.subscribed().await;
        engine.publish(store(&NAMES, None, &prompt()[..32])).await;
        rig.until_applied(1, 0, 0).await;
        Self { rig, engine }
    }

    /// A selection that the first worker must serve.
    async fn pinned(&self) -> Selected {
        let worker = WorkerWithDpRank::new(1, 0);
        self.rig.pinned(worker, &prompt()).await.unwrap()
    }

    /// Requests that find this many cached tokens.
    async fn served(&self, times: usize, cached_tokens: u64) {
        for _ in 0..times {
            let selected = self.pinned().await;
            self.report(&selected, cached_tokens);
        }
    }

    fn report(&self, selected: &Selected, cached_tokens: u64) {
        let report = CacheReport {
            cached_tokens,
            prompt_tokens: Some(33),
        };
        let service = &self.rig.service;
        service.report_cached_tokens(&selected.prediction, report);
    }

    fn audited(&self) -> RankAudit {
        let record = self.rig.service.worker(1).unwrap();
        record.cache_audit.get(&0).cloned().unwrap_or_default()
    }

    fn is_quarantined(&self) -> bool {
        self.audited().quarantine.is_some()
    }

    /// The worker that gets the prompt where it is free to choose.
    async fn chosen(&self) -> u64 {
        let request = SelectionRequest {
            random_seed: Some(7),
            ..asking(&prompt())
        };
        let selected = self.rig.service.select(&partition(), request).await;
        selected.unwrap().selection.worker.worker_id
    }
}

#[tokio::test]
async fn an_engine_that_keeps_its_promises_is_trusted() {
    let scene = Scene::new(Replays::Known, AuditMode::Quarantine).await;
    scene.served(50, 32).await;
    scene.served(50, 28).await;
    let audited = scene.audited();
    assert_eq!((audited.agreed, audited.over_predicted), (100, 0));
    assert_eq!(audited.quarantine, None);
    let name = "cache_audit_comparisons_total{outcome=\"agreed\"}";
    assert_eq!(scene.rig.metric(name), 100);
    scene.rig.service.shutdown().await;
}

#[tokio::test]
async fn an_engine_that_delivers_nothing_is_believed_less_and_read_again() {
    let scene = Scene::new(Replays::Known, AuditMode::Quarantine).await;
    assert_eq!(scene.chosen().await, 1);
    scene.served(8, 0).await;
    let quarantine = scene.audited().quarantine.unwrap();
    assert!(quarantine.overlap_share.abs() < f64::EPSILON);
    assert!(
        quarantine.reason.starts_with("8 of 8 responses"),
        "{quarantine:?}"
    );
    assert!(
        quarantine.reason.ends_with("0 of 256 tokens"),
        "{quarantine:?}"
    );
    assert_eq!(scene.rig.metric("cache_audit_quarantines_total"), 1);
    assert!(scene.rig.shows(SHARE));
    scene
        .rig
        .until(|rig| rig.metric("kv_event_replays_total{outcome=\"complete\"}") == 1)
        .await;
    assert_eq!(scene.engine.questions(), [0]);
    // The replay says the same as before, so the overlap is found, and counts for nothing.
    assert_eq!(scene.pinned().await.selection.overlap_blocks, 8);
    assert_eq!(scene.pinned().await.selection.effective_prefill_tokens, 33);
    scene.rig.service.shutdown().await;
}

#[tokio::test]
async fn agreement_restores_a_rank() {
    let scene = Scene::new(Replays::Known, AuditMode::Quarantine).await;
    scene.served(8, 0).await;
    scene
        .rig
        .until(|rig| !rig.service.worker(1).unwrap().kv_events[&0].suspect)
        .await;
    scene.served(7, 32).await;
    assert!(scene.is_quarantined());
    scene.served(1, 32).await;
    assert!(!scene.is_quarantined());
    assert_eq!(scene.rig.metric("cache_audit_restorations_total"), 1);
    assert_eq!(scene.pinned().await.selection.effective_prefill_tokens, 1);
    scene.rig.service.shutdown().await;
}

#[tokio::test]
async fn without_a_replay_what_was_wrong_is_forgotten() {
    let scene = Scene::new(Replays::Unknown, AuditMode::Quarantine).await;
    scene.served(8, 0).await;
    scene.rig.until_overlap(1, &prompt(), 0).await;
    assert_eq!(scene.rig.metric("kv_rank_clears_total{cause=\"wrong\"}"), 1);
    scene.rig.service.shutdown().await;
}

#[tokio::test]
async fn an_index_that_was_wrong_is_right_after_the_reading() {
    let mut scene = Scene::new(Replays::Known, AuditMode::Quarantine).await;
    // The engine cleared its cache, and the batch that says so was sent to nobody.
    scene.engine.lose(crate::engine::remove(&NAMES));
    scene.served(8, 0).await;
    scene.rig.until_overlap(1, &prompt(), 0).await;
    scene.rig.until_applied(1, 0, 1).await;
    scene.rig.service.shutdown().await;
}

#[tokio::test]
async fn what_may_be_counted_only_changes_nothing() {
    let scene = Scene::new(Replays::Known, AuditMode::Count).await;
    scene.served(50, 0).await;
    let audited = scene.audited();
    assert_eq!((audited.over_predicted, audited.quarantine), (50, None));
    assert!(scene.engine.questions().is_empty());
    scene.rig.service.shutdown().await;
}

#[tokio::test]
async fn without_the_audit_nothing_is_compared() {
    let scene = Scene::new(Replays::Known, AuditMode::Off).await;
    scene.served(50, 0).await;
    assert_eq!(scene.audited(), RankAudit::default());
    scene.rig.service.shutdown().await;
}

#[tokio::test]
async fn a_report_about_another_prompt_says_nothing() {
    let scene = Scene::new(Replays::Known, AuditMode::Quarantine).await;
    for (cached_tokens, prompt_tokens) in [(0, Some(40)), (0, Some(0)), (34, None)] {
        let selected = scene.pinned().await;
        let report = CacheReport {
            cached_tokens,
            prompt_tokens,
        };
        let service = &scene.rig.service;
        service.report_cached_tokens(&selected.prediction, report);
    }
    assert_eq!(scene.audited(), RankAudit::default());
    let name = "cache_audit_comparisons_total{outcome=\"other_prompt\"}";
    assert_eq!(scene.rig.metric(name), 3);
    scene.rig.service.shutdown().await;
}

#[tokio::test]
async fn more_than_could_be_known_is_counted_and_harms_nobody() {
    let scene = Scene::new(Replays::Known, AuditMode::Quarantine).await;
    let worker = WorkerWithDpRank::new(2, 0);
    for _ in 0..50 {
        let selected = scene.rig.pinned(worker, &prompt()).await.unwrap();
        scene.report(&selected, 32);
    }
    let audited = scene.rig.service.worker(2).unwrap().cache_audit[&0].clone();
    assert_eq!((audited.under_predicted, audited.quarantine), (50, None));
    scene.rig.service.shutdown().await;
}

#[tokio::test]
async fn a_worker_that_left_takes_its_record_along() {
    let scene = Scene::new(Replays::Known, AuditMode::Quarantine).await;
    let before = scene.pinned().await;
    scene.served(8, 0).await;
    assert!(scene.rig.shows(SHARE));
    scene.rig.service.remove_worker(1).unwrap();
    scene.report(&before, 0);
    assert!(!scene.rig.shows(SHARE));
    scene
        .rig
        .service
        .register_worker(worker_of(1, &scene.engine, Replays::Known))
        .unwrap();
    assert!(!scene.is_quarantined());
    scene.rig.service.shutdown().await;
}
