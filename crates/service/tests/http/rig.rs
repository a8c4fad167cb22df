//! A service behind a socket, and a client that asks it.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Method, Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use pointsman_plugin::{KvRouterConfig, RouterPluginRegistry, WorkerType};
use pointsman_service::http::{self, Config, Server, ServerConfig};
use pointsman_service::{SelectionService, SelectionServiceBuilder};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Long enough for a busy machine; no test waits for it to pass.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Rig {
    pub(crate) service: SelectionService,
    pub(crate) address: SocketAddr,
    pub(crate) stop: CancellationToken,
    pub(crate) serving: JoinHandle<()>,
    caller: Caller,
    _guard: DropGuard,
}

/// Somebody who asks one address.
pub(crate) struct Caller {
    address: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// What the service said.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }

    pub(crate) fn param(&self) -> &str {
        self.body["error"]["param"].as_str().unwrap_or_default()
    }
}

impl Rig {
    pub(crate) async fn new() -> Self {
        Self::built(|builder| builder).await
    }

    pub(crate) async fn built(
        set: impl FnOnce(SelectionServiceBuilder) -> SelectionServiceBuilder,
    ) -> Self {
        Self::with(set, Config::default()).await
    }

    pub(crate) async fn with(
        set: impl FnOnce(SelectionServiceBuilder) -> SelectionServiceBuilder,
        config: Config,
    ) -> Self {
        let builder = SelectionServiceBuilder::new(
            KvRouterConfig::default(),
            WorkerType::Aggregated,
            RouterPluginRegistry::default(),
        );
        let service = set(builder).build().await.unwrap();
        let local = ServerConfig::new(([127, 0, 0, 1], 0).into());
        let server = Server::bind(local).await.unwrap();
        let address = server.address();
        let stop = CancellationToken::new();
        let router = http::router(service.clone(), config);
        let serving = tokio::spawn(server.serve(router, stop.clone()));
        Self {
            service,
            address,
            _guard: stop.clone().drop_guard(),
            stop,
            serving,
            caller: Caller::of(address),
        }
    }

    /// With these workers of model `m`.
    pub(crate) async fn with_workers(worker_ids: std::ops::RangeInclusive<u64>) -> Self {
        let rig = Self::new().await;
        for worker_id in worker_ids {
            rig.register(worker(worker_id)).await;
        }
        rig
    }

    pub(crate) async fn register(&self, worker: Value) -> Answer {
        let answer = self.post("/workers", worker).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        answer
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.with_json(Method::POST, path, &body).await
    }

    pub(crate) async fn patch(&self, path: &str, body: Value) -> Answer {
        self.with_json(Method::PATCH, path, &body).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, &[], "").await
    }

    async fn with_json(&self, method: Method, path: &str, body: &Value) -> Answer {
        let headers = [("content-type", "application/json")];
        self.send(method, path, &headers, body.to_string()).await
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        self.caller.send(method, path, headers, body).await
    }

    pub(crate) async fn until_totals(&self, totals: (u64, u64)) {
        let wait = async {
            while self.totals().await != totals {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap();
    }

    /// Active requests and prefill tokens over all partitions.
    pub(crate) async fn totals(&self) -> (u64, u64) {
        let loads = self.get("/loads").await;
        assert_eq!(loads.status, 200);
        totals_of(&loads.body)
    }
}

impl Caller {
    pub(crate) fn of(address: SocketAddr) -> Self {
        Self {
            address,
            client: Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let uri = format!("http://{}{path}", self.address);
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        let response = tokio::time::timeout(PATIENCE, self.client.request(request));
        let response = response.await.unwrap().unwrap();
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        assert_ne!(head.status, StatusCode::INTERNAL_SERVER_ERROR, "{text}");
        Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body: serde_json::from_str(&text).unwrap_or_default(),
            text,
        }
    }
}

pub(crate) fn totals_of(loads: &Value) -> (u64, u64) {
    let partitions = loads.as_array().unwrap().iter();
    let ranks = partitions.flat_map(|partition| partition["loads"].as_array().unwrap());
    ranks.fold((0, 0), |(requests, tokens), rank| {
        (
            requests + rank["active_requests"].as_u64().unwrap(),
            tokens + rank["potential_prefill_tokens"].as_u64().unwrap(),
        )
    })
}

/// A worker of model `m` with blocks of 16 tokens and no events.
pub(crate) fn worker(worker_id: u64) -> Value {
    json!({
        "worker_id": worker_id,
        "model_name": "m",
        "routing_group": "default",
        "endpoint": format!("http://127.0.0.1:{}", 18_000 + worker_id % 10_000),
        "block_size": 16,
        "data_parallel_start_rank": 0,
        "data_parallel_size": 1,
    })
}

/// A prompt of eight blocks for model `m`, with more fields.
pub(crate) fn asking(more: Value) -> Value {
    let prompt = json!({
        "model_name": "m",
        "block_hashes": [11, 12, 13, 14, 15, 16, 17, 18],
        "sequence_hashes": [21, 22, 23, 24, 25, 26, 27, 28],
        "isl_tokens": 128,
    });
    merged(prompt, more)
}

/// The second object laid over the first.
pub(crate) fn merged(mut under: Value, over: Value) -> Value {
    let Value::Object(over) = over else {
        panic!("an object");
    };
    under.as_object_mut().unwrap().extend(over);
    under
}
