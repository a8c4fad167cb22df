//! An engine whose events promise what its requests do not get, and a selection service that finds out.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use pointsman_core::{PartitionId, Prompt, SelectionRequest};
use pointsman_plugin::{KvRouterConfig, RouterPluginRegistry, WorkerType, WorkerWithDpRank};
use pointsman_service::{
    AuditConfig, CacheReport, RankAudit, SelectionService, SelectionServiceBuilder, WorkersFile,
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;

const DEADLINE: Duration = Duration::from_secs(20);

/// Two engines, and the service that routes to them.
struct Scene {
    fleet: Fleet,
    service: SelectionService,
}

impl Scene {
    async fn new() -> Self {
        let mut config = FleetConfig {
            workers: 2,
            time_scale: 0.0,
            ..FleetConfig::default()
        };
        config.engine.block_size = 4;
        let fleet = Fleet::start(&config, PromptTokens::words()).await.unwrap();
        let audit = AuditConfig {
            settling: Duration::ZERO,
            ..AuditConfig::default()
        };
        let (router, registry) = (KvRouterConfig::default(), RouterPluginRegistry::default());
        let service = SelectionServiceBuilder::new(router, WorkerType::Aggregated, registry)
            .cache_audit(audit)
            .build()
            .await
            .unwrap();
        let workers = WorkersFile::from_yaml(&fleet.workers_file()).unwrap();
        service.replace_workers(workers).unwrap();
        let scene = Self { fleet, service };
        let all_connected = || {
            let records = scene.service.workers();
            records.iter().all(|record| record.kv_events[&0].connected)
        };
        scene.until(all_connected).await;
        scene
    }

    async fn until(&self, holds: impl Fn() -> bool) {
        let wait = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(DEADLINE, wait).await.unwrap();
    }

    /// Lets the prompt be served, by the worker that is chosen or by the one that must: which one that was.
    async fn ask(&self, pinned: Option<u64>) -> u64 {
        let ids: Vec<u32> = (1..42).collect();
        let request = SelectionRequest {
            prompt: Prompt::Tokens {
                ids: ids.clone(),
                media: Vec::new(),
            },
            pinned_worker: pinned.map(WorkerWithDpRank::from_worker_id),
            ..SelectionRequest::default()
        };
        let partition = PartitionId::new("mock-model", "default");
        let reserved = self.service.select_and_reserve(&partition, request, None);
        let selected = reserved.await.unwrap().selected;
        let worker_id = selected.selection.worker.worker_id;
        let body = json!({"model": "mock-model", "prompt": ids, "max_tokens": 1});
        let answer = self.post(worker_id, "/v1/completions", &body).await;
        let usage = &answer["usage"];
        let report = CacheReport {
            cached_tokens: usage["prompt_tokens_details"]["cached_tokens"]
                .as_u64()
                .unwrap(),
            prompt_tokens: usage["prompt_tokens"].as_u64(),
        };
        self.service
            .report_cached_tokens(&selected.prediction, report);
        self.caught_up(worker_id).await;
        worker_id
    }

    /// Waits until the service has applied all that a worker published.
    async fn caught_up(&self, worker_id: u64) {
        let state = self.post(worker_id, "/mock/state", &Value::Null).await;
        let last = state["ranks"][0]["last_sequence"].as_u64();
        self.until(|| {
            let applied = self.service.events_applied(worker_id, 0).unwrap();
            applied.last_sequence >= last
        })
        .await;
    }

    /// Without a body it is a `GET`.
    async fn post(&self, worker_id: u64, path: &str, body: &Value) -> Value {
        let worker = &self.fleet.workers()[usize::try_from(worker_id - 1).unwrap()];
        let uri = format!("http://{}{path}", worker.address());
        let request = if body.is_null() {
            Request::get(uri).body(Body::empty())
        } else {
            Request::post(uri)
                .header("content-type", "application/json")
                .body(Body::from(body.to_string()))
        };
        let client = Client::builder(TokioExecutor::new()).build_http();
        let response = timeout(DEADLINE, client.request(request.unwrap()));
        let body = response.await.unwrap().unwrap().into_body().collect().await;
        serde_json::from_slice(&body.unwrap().to_bytes()).unwrap_or_default()
    }

    async fn leave_cache_unused(&self, worker_id: u64, unused: bool) {
        let fault = json!({"cache": {"unused": unused}});
        self.post(worker_id, "/fault", &fault).await;
    }

    fn audited(&self, worker_id: u64) -> RankAudit {
        let record = self.service.worker(worker_id).unwrap();
        record.cache_audit.get(&0).cloned().unwrap_or_default()
    }
}

#[tokio::test]
async fn an_engine_that_does_not_use_what_it_announces_is_found_out_and_trusted_again() {
    let scene = Scene::new().await;
    let home = scene.ask(None).await;
    for _ in 0..3 {
        assert_eq!(scene.ask(None).await, home, "where the prompt is cached");
    }
    assert_eq!(scene.audited(home).agreed, 4);

    scene.leave_cache_unused(home, true).await;
    let mut asked = 0;
    while scene.audited(home).quarantine.is_none() {
        scene.ask(Some(home)).await;
        asked += 1;
        assert!(asked < 20, "{:?}", scene.audited(home));
    }
    let quarantine = scene.audited(home).quarantine.unwrap();
    assert!(quarantine.overlap_share < 0.5, "{quarantine:?}");

    scene.leave_cache_unused(home, false).await;
    asked = 0;
    while scene.audited(home).quarantine.is_some() {
        scene.ask(Some(home)).await;
        asked += 1;
        assert!(asked < 40, "{:?}", scene.audited(home));
    }
    assert_eq!(scene.ask(None).await, home);
    scene.service.shutdown().await;
}

#[tokio::test]
async fn engines_that_tell_the_truth_stay_trusted() {
    let scene = Scene::new().await;
    for turn in 0..60 {
        scene.ask(Some(1 + turn % 2)).await;
    }
    for worker_id in [1, 2] {
        let audited = scene.audited(worker_id);
        assert_eq!(
            (audited.agreed, audited.over_predicted),
            (30, 0),
            "{audited:?}"
        );
    }
    scene.service.shutdown().await;
}
