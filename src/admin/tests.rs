//! What the admin pages answer, over a real socket.

use std::net::SocketAddr;
use std::sync::Arc;

use pointsman_plugin::KvRouterConfig;
use pointsman_plugin::plugins::RouterPluginRegistry;
use pointsman_plugin::plugins::worker_selection::WorkerType;
use pointsman_service::{SelectionService, SelectionServiceBuilder, WorkerRegistration};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::{Server, router};
use crate::telemetry;

struct Pages {
    service: SelectionService,
    address: SocketAddr,
    stopping: CancellationToken,
    stop: CancellationToken,
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

impl Pages {
    async fn serve() -> Self {
        let service = SelectionServiceBuilder::new(
            KvRouterConfig::default(),
            WorkerType::Aggregated,
            RouterPluginRegistry::default(),
        )
        .build()
        .await
        .unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::bind(address).await.unwrap();
        let address = server.address();
        let stop = CancellationToken::new();
        let stopping = CancellationToken::new();
        let registry = Arc::new(telemetry::registry());
        let pages = router(service.clone(), registry, stopping.clone());
        tokio::spawn(server.serve(pages, stop.clone()));
        Self {
            service,
            address,
            stopping,
            stop,
        }
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path).await
    }

    async fn ask(&self, method: &str, path: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }
}

fn worker(worker_id: u64, model_name: &str) -> WorkerRegistration {
    WorkerRegistration {
        model_name: model_name.to_owned(),
        endpoint: Some(format!("http://127.0.0.1:{}", 8000 + worker_id)),
        block_size: Some(16),
        ..WorkerRegistration::new(worker_id)
    }
}

#[tokio::test]
async fn ready_says_why_not_until_a_worker_is_schedulable() {
    let pages = Pages::serve().await;
    let answer = pages.get("/ready").await;
    assert_eq!(answer.status, 503);
    assert_eq!(
        answer.json()["reasons"],
        json!([
            "the worker source has not been read yet",
            "no worker is schedulable"
        ])
    );
    pages.service.replace_workers(Vec::new()).unwrap();
    let answer = pages.get("/ready").await;
    assert_eq!(
        answer.json()["reasons"],
        json!(["no worker is schedulable"])
    );

    pages.service.replace_workers(vec![worker(7, "a")]).unwrap();
    let answer = pages.get("/ready").await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.json()["ready"], json!(true));
    assert_eq!(answer.json()["schedulable_workers"], json!(1));
}

#[tokio::test]
async fn ready_says_so_as_soon_as_it_is_told_to_stop() {
    let pages = Pages::serve().await;
    pages.service.replace_workers(vec![worker(7, "a")]).unwrap();
    pages.stopping.cancel();
    let answer = pages.get("/ready").await;
    assert_eq!(answer.status, 503);
    assert_eq!(
        answer.json()["reasons"],
        json!(["the picker is shutting down"])
    );
}

#[tokio::test]
async fn a_worker_that_cannot_serve_is_listed_with_its_reasons() {
    let pages = Pages::serve().await;
    let incomplete = WorkerRegistration::new(9);
    pages.service.replace_workers(vec![incomplete]).unwrap();
    let record = &pages.get("/workers").await.json()[0];
    assert_eq!(record["worker_id"], json!(9));
    assert_eq!(record["lifecycle"], json!("incomplete"));
    assert!(
        !record["not_schedulable_reasons"]
            .as_array()
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn workers_and_loads_can_be_narrowed_to_a_model() {
    let pages = Pages::serve().await;
    let both = vec![worker(1, "a"), worker(2, "org/b")];
    pages.service.replace_workers(both).unwrap();
    for page in ["/workers", "/loads"] {
        let all = pages.get(page).await.json();
        assert_eq!(all.as_array().unwrap().len(), 2, "{page}: {all}");
        let one = pages
            .get(&format!("{page}?model_name=org%2Fb"))
            .await
            .json();
        assert_eq!(one.as_array().unwrap().len(), 1, "{page}: {one}");
        assert_eq!(one[0]["model_name"], json!("org/b"));
        let none = pages.get(&format!("{page}?routing_group=x")).await.json();
        assert_eq!(none, json!([]), "{page}");
    }
    let loads = pages.get("/loads?model_name=org%2Fb").await.json();
    assert_eq!(
        loads[0]["loads"][0],
        json!({
            "worker_id": 2,
            "dp_rank": 0,
            "potential_prefill_tokens": 0,
            "potential_decode_blocks": 0,
            "active_requests": 0
        })
    );
}

#[tokio::test]
async fn metrics_are_in_the_format_that_prometheus_asks_for() {
    let pages = Pages::serve().await;
    let answer = pages.get("/metrics").await;
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("application/openmetrics-text"));
    assert!(
        answer.body.contains("pointsman_build_info{version="),
        "{}",
        answer.body
    );
    assert!(answer.body.ends_with("# EOF\n"));
}

#[tokio::test]
async fn health_and_the_index_answer_without_workers() {
    let pages = Pages::serve().await;
    assert_eq!(pages.get("/health").await.json(), json!({"status": "ok"}));
    assert_eq!(pages.get("/events/applied").await.json(), json!([]));
    let index = pages.get("/").await;
    assert!(index.head.contains("text/html"));
    for page in [
        "/ready",
        "/workers",
        "/loads",
        "/events/applied",
        "/metrics",
        "/health",
    ] {
        assert!(index.body.contains(&format!("href=\"{page}\"")), "{page}");
        assert_ne!(pages.get(page).await.status, 404, "{page}");
    }
}

#[tokio::test]
async fn unknown_routes_and_methods_are_answered_in_the_shape_of_all_errors() {
    let pages = Pages::serve().await;
    let check = |answer: Answer, status: u16, code: &str| {
        assert_eq!(answer.status, status);
        let error = &answer.json()["error"];
        assert_eq!(error["code"], json!(code));
        assert!(error["message"].is_string() && error["type"].is_string());
        assert!(error.as_object().unwrap().contains_key("param"));
    };
    check(pages.get("/nothing").await, 404, "not_found");
    check(
        pages.ask("POST", "/workers").await,
        405,
        "method_not_allowed",
    );
    check(
        pages.ask("DELETE", "/ready").await,
        405,
        "method_not_allowed",
    );
}

#[tokio::test]
async fn stopping_ends_open_connections() {
    let pages = Pages::serve().await;
    let mut idle = TcpStream::connect(pages.address).await.unwrap();
    // An answered request: the connection has been accepted for certain.
    let request = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    idle.write_all(request).await.unwrap();
    let mut first = [0; 8];
    idle.read_exact(&mut first).await.unwrap();
    pages.stop.cancel();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).await.unwrap();
}
