//! A picker that starts with what a peer knows: the binary itself, asked over real gRPC, beside a peer that is only a dump.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use pointsman_core::hash::{HashLayout, HashSeed, prompt_hashes};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::client::Exchange;
use crate::house::{FIRST, MODEL, SECOND, soon, worker};

/// Four blocks of four tokens.
const PROMPT: [u32; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
const BLOCK_SIZE: u32 = 4;

/// The picker as a process, ended with the test.
struct Picker {
    child: Child,
    /// Kept open: a log that nobody can read ends nothing, but is an error to write.
    _log: BufReader<ChildStderr>,
    ext_proc: Channel,
    admin: SocketAddr,
}

impl Drop for Picker {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Picker {
    /// With two workers whose events never come, and this peer.
    async fn start(name: &str, peer: SocketAddr) -> Self {
        let workers = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.yaml"));
        let entries: Vec<_> = [(1, FIRST), (2, SECOND)]
            .into_iter()
            .map(|(worker_id, endpoint)| {
                let mut entry = worker(worker_id, endpoint);
                entry.kv_events_endpoint = Some("tcp://127.0.0.1:1".to_owned());
                entry
            })
            .collect();
        fs::write(&workers, json!({ "workers": entries }).to_string()).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_pointsman"))
            .env_clear()
            .env("POINTSMAN_WORKERS_FILE", workers)
            .env("POINTSMAN_INDEXER_PEERS", format!("http://{peer}"))
            .env("POINTSMAN_RECOVERY_MAX_SECS", "3600")
            .env("POINTSMAN_KV_SUSPECT_SECS", "3600")
            .env("POINTSMAN_HOST", "127.0.0.1")
            .env("POINTSMAN_EXT_PROC_PORT", "auto")
            .env("POINTSMAN_HEALTH_PORT", "auto")
            .env("DYN_EPP_METRICS_PORT", "auto")
            .env("DYN_SECURE_SERVING", "false")
            .env("POINTSMAN_LOG_FORMAT", "json")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let listening = loop {
            let mut line = String::new();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "it did not start");
            if line.contains("\"listening\"") {
                break serde_json::from_str::<Value>(&line).unwrap();
            }
        };
        let at = |what: &str| listening[what].as_str().unwrap().to_owned();
        let ext_proc = Endpoint::from_shared(format!("http://{}", at("ext_proc"))).unwrap();
        Self {
            child,
            _log: log,
            ext_proc: ext_proc.connect().await.unwrap(),
            admin: at("admin").parse().unwrap(),
        }
    }

    async fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.admin).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn health(&self, service: &str) -> ServingStatus {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let mut client = HealthClient::new(self.ext_proc.clone());
        let answer = client.check(request).await.unwrap();
        answer.get_ref().status()
    }

    /// Where the prompt is sent.
    async fn destination(&self) -> String {
        let body = json!({"model": MODEL, "prompt": PROMPT}).to_string();
        let mut exchange = Exchange::open(self.ext_proc.clone()).await.unwrap();
        exchange.post("/v1/completions").await;
        exchange.request_body(body.as_bytes(), true).await;
        exchange.upstream().await.routed.destination()
    }

    /// Waits until the peer's blocks of the prompt are in the index.
    async fn recovered(&self) {
        let applied = "pointsman_recovery_blocks_total{fate=\"applied\"} 4\n";
        soon(async { while !self.page("/metrics").await.contains(applied) {} }).await;
        soon(async { while self.health("readiness").await != ServingStatus::Serving {} }).await;
    }
}

/// Answers whoever asks with a dump, once it is let to.
struct Peer {
    address: SocketAddr,
    may_answer: watch::Sender<bool>,
}

impl Peer {
    /// One that knows that this worker holds the prompt.
    async fn start(holder: u64) -> Self {
        let body = dump(holder);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (may_answer, permission) = watch::channel(false);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut permission = permission.clone();
                let answer = format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{body}");
                tokio::spawn(async move {
                    let mut request = [0; 1024];
                    let length = stream.read(&mut request).await.unwrap();
                    assert!(request[..length].starts_with(b"GET /dump "));
                    // Without permission the test has ended.
                    if permission.wait_for(|may| *may).await.is_ok() {
                        stream.write_all(answer.as_bytes()).await.unwrap();
                    }
                });
            }
        });
        Self {
            address,
            may_answer,
        }
    }

    fn answer(&self) {
        self.may_answer.send_replace(true);
    }
}

fn dump(holder: u64) -> String {
    let layout = HashLayout {
        block_size: NonZeroU32::new(BLOCK_SIZE).unwrap(),
        eagle: false,
    };
    let hashes = prompt_hashes(&PROMPT, layout, HashSeed::default(), &[]).block_hashes;
    let blocks: Vec<_> = hashes
        .iter()
        .zip(100..)
        .map(|(hash, name)| json!({"block_hash": name, "tokens_hash": hash.0, "mm_extra_info": null}))
        .collect();
    let stored = json!({"parent_hash": null, "start_position": null, "blocks": blocks});
    json!({format!("{MODEL}:default"): {"block_size": BLOCK_SIZE, "events": [{
        "worker_id": holder,
        "storage_tier": "device",
        "event": {"event_id": 0, "dp_rank": 0, "data": {"stored": stored}},
    }]}})
    .to_string()
}

#[tokio::test]
async fn a_picker_that_starts_sends_the_first_request_to_whom_a_peer_says_holds_it() {
    for (holder, endpoint) in [(1, FIRST), (2, SECOND)] {
        let peer = Peer::start(holder).await;
        peer.answer();
        let picker = Picker::start(&format!("recovery-of-{holder}"), peer.address).await;
        picker.recovered().await;
        assert_eq!(picker.destination().await, endpoint);
    }
}

#[tokio::test]
async fn while_a_peer_is_asked_the_picker_is_not_ready_and_routes_all_the_same() {
    let peer = Peer::start(2).await;
    let picker = Picker::start("recovery-waits", peer.address).await;
    for name in ["", "readiness", "inference-extension"] {
        assert_eq!(
            picker.health(name).await,
            ServingStatus::NotServing,
            "{name}"
        );
    }
    assert_eq!(picker.health("liveness").await, ServingStatus::Serving);
    let ready = picker.page("/ready").await;
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
    assert!(ready.contains("taken over from a peer"), "{ready}");
    let destination = picker.destination().await;
    assert!([FIRST, SECOND].contains(&&*destination), "{destination}");

    peer.answer();
    picker.recovered().await;
    let ready = picker.page("/ready").await;
    assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
    assert_eq!(picker.destination().await, SECOND);
}

#[tokio::test]
async fn a_peer_that_cannot_be_asked_stops_the_picker() {
    let output = Command::new(env!("CARGO_BIN_EXE_pointsman"))
        .env_clear()
        .env("POINTSMAN_INDEXER_PEERS", "https://b:8092")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("POINTSMAN_INDEXER_PEERS: https://b:8092"),
        "{said}"
    );
}
