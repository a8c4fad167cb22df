//! Taking over a peer's index at start: from our own dump, from the published format, and from peers
//! that are broken, slow or hostile.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pointsman_core::PartitionId;
use pointsman_plugin::WorkerWithDpRank;
use pointsman_service::http::{Access, Config, Server, ServerConfig, Tokens, router};
use pointsman_service::{RecoveryConfig, SelectionServiceBuilder, WorkerRegistration};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::engine::{Answer, Engine, remove, store};
use crate::rig::{Replays, Rig, asking, tokens, worker, worker_of};

/// A service's routes on a port of their own.
async fn serve(rig: &Rig, access: Access) -> (String, DropGuard) {
    let local = ServerConfig::new(([127, 0, 0, 1], 0).into());
    let server = Server::bind(local).await.unwrap();
    let url = format!("http://{}", server.address());
    let stop = CancellationToken::new();
    let config = Config {
        access,
        ..Config::default()
    };
    tokio::spawn(server.serve(router(rig.service.clone(), config), stop.clone()));
    (url, stop.drop_guard())
}

/// Answers every connection with these bytes; with none, it never answers. Notes what it was asked.
struct Peer {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Peer {
    async fn start(answer: Option<Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&asked);
        tokio::spawn(async move {
            let mut silent = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = vec![0; 4096];
                let length = stream.read(&mut request).await.unwrap();
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                heard.lock().unwrap().push(request);
                match &answer {
                    // Whoever asked may have gone.
                    Some(answer) => drop(stream.write_all(answer).await),
                    None => silent.push(stream),
                }
            }
        });
        Self { address, asked }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

fn ok(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{body}").into_bytes()
}

/// A published dump: one entry, blocks of one worker.
fn published(key: &str, block_size: u32, tokens_hashes: &[u64]) -> Value {
    let blocks: Vec<_> = tokens_hashes
        .iter()
        .enumerate()
        .map(|(index, hash)| json!({"block_hash": 100 + index, "tokens_hash": hash, "mm_extra_info": null}))
        .collect();
    json!({key: {"block_size": block_size, "events": [{
        "worker_id": 1,
        "storage_tier": "device",
        "event": {"event_id": 0, "data": {"stored": {
            "parent_hash": null, "start_position": null, "blocks": blocks,
        }}, "dp_rank": 0},
    }]}})
}

/// Hashes of the blocks of 4 of the tokens 1 to 12.
const GOLDEN: [u64; 3] = [
    14_643_705_804_678_351_452,
    16_777_012_769_546_811_212,
    483_935_686_894_639_516,
];

async fn recovering(urls: Vec<String>, config: RecoveryConfig) -> Rig {
    Rig::built(|builder: SelectionServiceBuilder| builder.indexer_peers(urls).recovery(config))
        .await
}

async fn until_recovered(rig: &Rig) {
    let mut state = rig.service.state();
    state.wait_for(|state| !state.recovering).await.unwrap();
}

#[tokio::test]
async fn what_one_service_dumps_another_starts_with() {
    let seed = 0x5eed_0009;
    println!("seed {seed:#x}");
    let mut random = StdRng::seed_from_u64(seed);
    let first = Rig::new().await;
    let mut engine = Engine::start(Answer::Bare).await;
    let registration = worker_of(1, &engine, Replays::Unknown);
    first.service.register_worker(registration.clone()).unwrap();
    engine.subscribed().await;
    let mut prompts = Vec::new();
    for chain in 0..40_u32 {
        let blocks = random.random_range(1..6);
        let prompt: Vec<u32> = (0..blocks * 4).map(|_| random.random_range(0..9)).collect();
        let names: Vec<u32> = (0..blocks).map(|block| chain * 100 + block + 1).collect();
        engine.publish(store(&names, None, &prompt)).await;
        if random.random_bool(0.3) {
            engine.publish(remove(&names[names.len() / 2..])).await;
        }
        prompts.push(prompt);
    }
    first.until_applied(1, 0, engine.published() - 1).await;

    let (url, _serving) = serve(&first, Access::Open).await;
    let second = recovering(vec![url], RecoveryConfig::default()).await;
    until_recovered(&second).await;
    second.service.register_worker(registration).unwrap();
    for prompt in &prompts {
        let known = first.overlap(1, 0, prompt).await;
        second.until_overlap(1, prompt, known).await;
    }
    // And what the second dumps then, is the same again.
    let (url, _serving) = serve(&second, Access::Open).await;
    let third = recovering(vec![url], RecoveryConfig::default()).await;
    until_recovered(&third).await;
    third
        .service
        .register_worker(worker_of(1, &engine, Replays::Unknown))
        .unwrap();
    for prompt in &prompts {
        let known = first.overlap(1, 0, prompt).await;
        third.until_overlap(1, prompt, known).await;
    }
}

#[tokio::test]
async fn a_published_dump_is_taken_over_and_the_engine_has_the_last_word() {
    let peer = Peer::start(Some(ok(&published("m:default", 4, &GOLDEN).to_string()))).await;
    let rig = recovering(vec![peer.url()], RecoveryConfig::default()).await;
    let mut engine = Engine::start(Answer::Bare).await;
    rig.service
        .register_worker(worker_of(1, &engine, Replays::Unknown))
        .unwrap();
    engine.subscribed().await;
    let prompt = tokens(1..13);
    rig.until_overlap(1, &prompt, 3).await;
    engine.publish(remove(&[102])).await;
    rig.until_overlap(1, &prompt, 2).await;
    let head = peer.asked.lock().unwrap()[0].to_lowercase();
    assert!(head.starts_with("get /dump http/1.1\r\n"), "{head}");
    assert!(!head.contains("authorization"), "{head}");
}

/// Answered by the published selection service, release 1.6.1, after a worker of two ranks had
/// stored blocks of the tokens 1 to 20 on devices and in host memory; `GET /dump`, as it came.
const RECORDED: &str = include_str!("../data/published_dump.json");

#[tokio::test]
async fn a_dump_recorded_from_the_published_service_is_taken_over() {
    let peer = Peer::start(Some(ok(RECORDED))).await;
    let rig = recovering(vec![peer.url()], RecoveryConfig::default()).await;
    until_recovered(&rig).await;
    let engines = [
        Engine::start(Answer::Bare).await,
        Engine::start(Answer::Bare).await,
    ];
    let at = |rank: usize| engines[rank].publisher_at.clone();
    let registration = WorkerRegistration {
        model_name: "hub:model".to_owned(),
        kv_events_endpoints: [(0, at(0)), (1, at(1))].into(),
        data_parallel_size: Some(2),
        ..worker(1)
    };
    rig.service.register_worker(registration).unwrap();
    // Children come before their parents in it; they wait for them.
    let expected = vec![(0, 4, 1), (1, 2, 0)];
    let taken_over = async {
        while held_of_recorded(&rig).await != expected {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(30), taken_over).await;
    assert!(in_time.is_ok(), "{:?}", held_of_recorded(&rig).await);
}

/// Leading blocks on the device, and behind them in host memory, by rank.
async fn held_of_recorded(rig: &Rig) -> Vec<(u32, u64, u64)> {
    let partition = PartitionId::new("hub:model", "default");
    let scores = rig
        .service
        .overlap_scores(&partition, asking(&tokens(1..21)));
    let ranks = scores.await.unwrap().overlap.ranks;
    let held = ranks
        .iter()
        .map(|rank| (rank.worker.dp_rank, rank.device_blocks, rank.host_blocks));
    held.collect()
}

#[tokio::test]
async fn a_complete_replay_drops_what_it_does_not_name() {
    let peer = Peer::start(Some(ok(&published("m:default", 4, &GOLDEN).to_string()))).await;
    let rig = recovering(vec![peer.url()], RecoveryConfig::default()).await;
    until_recovered(&rig).await;
    let mut engine = Engine::start(Answer::Bare).await;
    engine.lose(store(&[100], None, &tokens(1..5)));
    rig.service
        .register_worker(worker_of(1, &engine, Replays::Known))
        .unwrap();
    engine.subscribed().await;
    rig.until_overlap(1, &tokens(1..13), 3).await;
    engine.publish(store(&[500], None, &tokens(50..54))).await;
    rig.until_overlap(1, &tokens(1..13), 1).await;
    assert_eq!(engine.questions(), [0]);
}

#[tokio::test]
async fn a_stream_that_breaks_soon_takes_what_was_never_confirmed_along() {
    let peer = Peer::start(Some(ok(&published("m:default", 4, &GOLDEN).to_string()))).await;
    let rig = recovering(vec![peer.url()], RecoveryConfig::default()).await;
    until_recovered(&rig).await;
    let mut engine = Engine::start(Answer::Bare).await;
    rig.service
        .register_worker(worker_of(1, &engine, Replays::Known))
        .unwrap();
    engine.subscribed().await;
    rig.until_overlap(1, &tokens(1..13), 3).await;
    engine.publish(store(&[100], None, &tokens(1..5))).await;
    rig.until_applied(1, 0, 0).await;
    drop(engine);
    rig.until_overlap(1, &tokens(1..13), 1).await;
}

#[tokio::test]
async fn a_model_name_with_colons_is_recovered() {
    let dump = published("hub:a/b:default", 4, &GOLDEN);
    let peer = Peer::start(Some(ok(&dump.to_string()))).await;
    let rig = recovering(vec![peer.url()], RecoveryConfig::default()).await;
    until_recovered(&rig).await;
    let engine = Engine::start(Answer::Bare).await;
    let registration = WorkerRegistration {
        model_name: "hub:a/b".to_owned(),
        ..worker_of(1, &engine, Replays::Unknown)
    };
    rig.service.register_worker(registration).unwrap();
    rig.until(|rig| rig.metric("recovery_blocks_total{fate=\"applied\"}") == 3)
        .await;
}

#[tokio::test]
async fn a_dump_pins_no_block_size_and_registers_nobody() {
    let dump = published("m:default", 8, &GOLDEN);
    let peer = Peer::start(Some(ok(&dump.to_string()))).await;
    let rig = recovering(vec![peer.url()], RecoveryConfig::default()).await;
    until_recovered(&rig).await;
    assert!(rig.service.workers().is_empty());
    assert!(rig.service.loads().is_empty());
    let mut engine = Engine::start(Answer::Bare).await;
    let record = rig
        .service
        .register_worker(worker_of(1, &engine, Replays::Unknown))
        .unwrap();
    assert!(record.is_schedulable(), "{record:?}");
    engine.subscribed().await;
    rig.until(|rig| rig.metric("recovery_blocks_total{fate=\"block_size\"}") == 3)
        .await;
    engine
        .publish(store(&[101, 102, 103], None, &tokens(1..13)))
        .await;
    rig.until_overlap(1, &tokens(1..13), 3).await;
}

#[tokio::test]
async fn the_first_peer_that_answers_wins() {
    let refused = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = format!("http://{}", refused.local_addr().unwrap());
    drop(refused);
    let good = published("m:default", 4, &GOLDEN).to_string();
    let failing = Peer::start(Some(
        b"HTTP/1.1 500 Oh\r\ncontent-length: 2\r\n\r\n{}".to_vec(),
    ))
    .await;
    let html = Peer::start(Some(ok("<html>"))).await;
    let half = Peer::start(Some(ok(&good[..good.len() / 2]))).await;
    let moved = Peer::start(Some(
        b"HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n".to_vec(),
    ))
    .await;
    let right = Peer::start(Some(ok(&good))).await;
    let never = Peer::start(Some(ok(&good))).await;
    let mut urls = vec![closed];
    urls.extend([&failing, &html, &half, &moved, &right, &never].map(Peer::url));
    let rig = recovering(urls, RecoveryConfig::default()).await;
    until_recovered(&rig).await;
    assert_eq!(rig.metric("recovery_peers_total{outcome=\"failed\"}"), 5);
    assert_eq!(rig.metric("recovery_peers_total{outcome=\"answered\"}"), 1);
    assert_eq!(rig.metric("recovery_blocks_held"), 3);
    assert!(never.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_silent_peer_costs_no_more_than_the_time_allowed_and_callers_are_served_meanwhile() {
    let peer = Peer::start(None).await;
    let config = RecoveryConfig {
        max_time: Duration::from_millis(300),
        ..RecoveryConfig::default()
    };
    let rig = recovering(vec![peer.url()], config).await;
    assert!(rig.service.state().borrow().recovering);
    rig.service.register_worker(worker(1)).unwrap();
    let place = WorkerWithDpRank::new(1, 0);
    assert!(rig.pinned(place, &tokens(0..8)).await.is_ok());
    until_recovered(&rig).await;
    assert_eq!(rig.metric("recovery_peers_total{outcome=\"failed\"}"), 1);
}

#[tokio::test]
async fn a_dump_beyond_its_bounds_is_taken_over_in_part() {
    let hashes: Vec<u64> = (0..4000).collect();
    let mut dump = published("m:default", 4, &hashes[..1000]);
    let more = published("x:default", 4, &hashes[1000..]);
    dump["x:default"] = more["x:default"].clone();
    let text = dump.to_string();
    let in_blocks = RecoveryConfig {
        max_blocks: 1500,
        ..RecoveryConfig::default()
    };
    let in_bytes = RecoveryConfig {
        max_bytes: u64::try_from(text.len() / 2).unwrap(),
        ..RecoveryConfig::default()
    };
    for config in [in_blocks, in_bytes] {
        let peer = Peer::start(Some(ok(&text))).await;
        let rig = recovering(vec![peer.url()], config).await;
        until_recovered(&rig).await;
        assert_eq!(rig.metric("recovery_peers_total{outcome=\"cut_short\"}"), 1);
        assert_eq!(rig.metric("recovery_blocks_held"), 1000);
    }
}

#[tokio::test]
async fn a_configured_token_opens_a_peer_that_asks_for_one() {
    let first = Rig::new().await;
    first.service.register_worker(worker(1)).unwrap();
    let tokens = Tokens::parse("read a-token-to-read-with").unwrap();
    let access = Access::Tokens(Arc::new(arc_swap::ArcSwap::from_pointee(tokens)));
    let (url, _serving) = serve(&first, access).await;
    for (token, outcome) in [(None, "failed"), (Some("a-token-to-read-with"), "answered")] {
        let config = RecoveryConfig {
            token: token.map(str::to_owned),
            ..RecoveryConfig::default()
        };
        let rig = recovering(vec![url.clone()], config).await;
        until_recovered(&rig).await;
        let name = format!("recovery_peers_total{{outcome=\"{outcome}\"}}");
        assert_eq!(rig.metric(&name), 1);
    }
}

#[tokio::test]
async fn peers_that_cannot_be_asked_stop_the_start() {
    for (url, token) in [
        ("b:8092", None),
        ("https://b:8092", None),
        ("http://b:8092", Some("with space")),
    ] {
        let config = RecoveryConfig {
            token: token.map(str::to_owned),
            ..RecoveryConfig::default()
        };
        assert!(config.check(&[url.to_owned()]).is_err(), "{url}");
    }
}
