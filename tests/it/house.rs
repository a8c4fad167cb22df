//! A picker that runs: a real selection service, a real server, workers that are only names.
//!
//! It asserts nothing.

use std::{future::Future, path::Path, sync::Arc, sync::Mutex, time::Duration};

use bytes::Bytes;
use pointsman::{
    error::Refusal,
    ext_proc::{Pick, Picked, SubsetHint},
    picker::{self, Charge, EndpointPicker},
    request::Head,
    serve::{Config, RunningServer, Security, Server, ServerMetrics},
    tokenize::{TokenizeConfig, Tokenizer},
};
use pointsman_plugin::{KvRouterConfig, RouterPluginRegistry, WorkerType};
use pointsman_service::{SelectionService, SelectionServiceBuilder, WorkerRegistration};
use prometheus_client::registry::Registry;
use tonic::transport::{Channel, Endpoint};

use crate::client::Exchange;

pub(crate) const FIRST: &str = "10.0.0.1:8000";
pub(crate) const SECOND: &str = "10.0.0.2:8000";
pub(crate) const MODEL: &str = "m";

/// The picker, its service and one connection to it.
pub(crate) struct House {
    pub(crate) service: SelectionService,
    pub(crate) server: RunningServer,
    pub(crate) witness: Arc<Witness>,
    pub(crate) channel: Channel,
    metrics: Registry,
}

/// What to build a house from.
pub(crate) struct Plan {
    pub(crate) workers: Vec<WorkerRegistration>,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) picker: picker::Config,
    pub(crate) router: KvRouterConfig,
}

/// Passes each pick on and remembers the bodies that were picked for.
pub(crate) struct Witness {
    picker: EndpointPicker,
    bodies: Mutex<Vec<Bytes>>,
}

impl Plan {
    /// Two workers, no tokenizer.
    pub(crate) fn plain() -> Self {
        Self {
            workers: vec![worker(1, FIRST), worker(2, SECOND)],
            tokenizer: Tokenizer::none(),
            picker: picker::Config::default(),
            router: KvRouterConfig {
                router_track_output_blocks: true,
                ..KvRouterConfig::default()
            },
        }
    }

    pub(crate) fn with_tokenizer(config: TokenizeConfig) -> Self {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizer-small");
        Self {
            tokenizer: Tokenizer::load(&dir, config).unwrap(),
            ..Self::plain()
        }
    }

    pub(crate) fn without_workers() -> Self {
        Self {
            workers: Vec::new(),
            ..Self::plain()
        }
    }

    pub(crate) async fn open(self) -> House {
        let mut metrics = Registry::default();
        let registry = RouterPluginRegistry::default();
        let service = SelectionServiceBuilder::new(self.router, WorkerType::Aggregated, registry)
            .require_ip_endpoints(true)
            .metrics(&mut metrics)
            .build()
            .await
            .unwrap();
        service.replace_workers(self.workers).unwrap();
        self.tokenizer.metrics().register(&mut metrics);
        let picker = EndpointPicker::new(
            service.clone(),
            self.tokenizer,
            self.picker,
            picker::Metrics::new(&mut metrics),
        );
        let witness = Arc::new(Witness {
            picker,
            bodies: Mutex::default(),
        });
        let server = serve(Arc::clone(&witness), &service, &mut metrics);
        let channel = connect(&server).await;
        House {
            service,
            server,
            witness,
            channel,
            metrics,
        }
    }
}

impl House {
    pub(crate) async fn open() -> Self {
        Plan::plain().open().await
    }

    pub(crate) async fn exchange(&self) -> Exchange {
        Exchange::open(self.channel.clone()).await.unwrap()
    }

    /// Requests that are charged to any worker.
    pub(crate) fn active_requests(&self) -> u64 {
        self.sum(|load| load.active_requests)
    }

    pub(crate) fn prefill_tokens(&self) -> u64 {
        self.sum(|load| load.active_prefill_tokens)
    }

    pub(crate) fn decode_blocks(&self) -> u64 {
        self.sum(|load| load.decode_blocks)
    }

    /// The worker that carries the only request.
    pub(crate) fn charged_worker(&self) -> u64 {
        let loads = self.service.loads();
        let mut loads = loads.iter().flat_map(|partition| &partition.loads);
        let busy = loads.find(|load| load.active_requests > 0).unwrap();
        busy.worker.worker_id
    }

    pub(crate) fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics).unwrap();
        text
    }

    /// Waits until nothing is charged any more.
    pub(crate) async fn freed(&self) {
        eventually("the load is freed", || self.active_requests() == 0).await;
    }

    fn sum(&self, of: impl Fn(&pointsman_core::RankLoad) -> u64) -> u64 {
        let loads = self.service.loads();
        loads
            .iter()
            .flat_map(|partition| &partition.loads)
            .map(of)
            .sum()
    }
}

impl Witness {
    pub(crate) fn bodies(&self) -> Vec<Bytes> {
        self.bodies.lock().unwrap().clone()
    }
}

impl Pick for Witness {
    type Held = Charge;

    async fn pick(
        &self,
        head: Head,
        body: Bytes,
        subset: SubsetHint,
    ) -> Result<Picked<Charge>, Refusal> {
        self.bodies.lock().unwrap().push(body.clone());
        self.picker.pick(head, body, subset).await
    }
}

pub(crate) fn worker(worker_id: u64, endpoint: &str) -> WorkerRegistration {
    let registration = serde_json::json!({
        "worker_id": worker_id,
        "model_name": MODEL,
        "endpoint": format!("http://{endpoint}"),
        "block_size": 4,
    });
    serde_json::from_value(registration).unwrap()
}

pub(crate) fn serve<P: Pick>(
    pick: P,
    service: &SelectionService,
    metrics: &mut Registry,
) -> RunningServer {
    let any = "127.0.0.1:0".parse().unwrap();
    let config = Config {
        ext_proc: any,
        health: any,
        security: Security::Plaintext,
        threads: 2,
        propagation: Duration::ZERO,
        ..Config::default()
    };
    Server::start(&config, pick, service.state(), ServerMetrics::new(metrics)).unwrap()
}

pub(crate) async fn connect(server: &RunningServer) -> Channel {
    let uri = format!("http://{}", server.ext_proc_addr());
    Endpoint::from_shared(uri).unwrap().connect().await.unwrap()
}

pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(5), async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(waited.await.is_ok(), "waited in vain: {what}");
}

/// No answer within this long counts as none at all.
pub(crate) async fn soon<T>(answer: impl Future<Output = T>) -> T {
    let answer = tokio::time::timeout(Duration::from_secs(5), answer).await;
    answer.expect("an answer in time")
}
