//! A replica between real sockets, at times that the tests choose.

mod peer;

use pointsman_core::{Prompt, ReservationId, SelectionRequest};
use pointsman_plugin::{KvRouterConfig, RouterPluginRegistry, WorkerType, WorkerWithDpRank};

use super::owned::{Change, Whose};
use super::*;
use crate::builder::SelectionServiceBuilder;
use crate::service::SelectionService;
use crate::workers::WorkerRegistration;
use crate::zmtp;
use peer::{Peer, Reader};

/// Long enough for a busy machine; no test waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_hours(1);

async fn replica(peers: Vec<String>) -> SelectionService {
    let builder = SelectionServiceBuilder::new(
        KvRouterConfig::default(),
        WorkerType::Aggregated,
        RouterPluginRegistry::default(),
    );
    let service = builder.replica_sync(0, peers).build().await.unwrap();
    for worker_id in 1..=2 {
        let worker = WorkerRegistration {
            model_name: "m".to_owned(),
            endpoint: Some(format!("http://127.0.0.1:{worker_id}")),
            block_size: Some(16),
            ..WorkerRegistration::new(worker_id)
        };
        service.register_worker(worker).unwrap();
    }
    service
}

fn endpoint(service: &SelectionService) -> String {
    let port = service.replica_sync_address().unwrap().port();
    format!("tcp://127.0.0.1:{port}")
}

fn partition() -> PartitionId {
    PartitionId::new("m", "default")
}

fn request() -> SelectionRequest {
    SelectionRequest {
        prompt: Prompt::Tokens {
            ids: (0..40).collect(),
            media: Vec::new(),
        },
        ..SelectionRequest::default()
    }
}

async fn reserve(service: &SelectionService, id: &str) {
    let partition = partition();
    let reserved = service.select_and_reserve_by_id(&partition, request(), Some(id.to_owned()));
    reserved.await.unwrap();
}

async fn hold(service: &SelectionService, id: Option<&str>) -> crate::service::Reserved {
    let partition = partition();
    let held = service.select_and_reserve(&partition, request(), id.map(str::to_owned));
    held.await.unwrap()
}

fn requests(service: &SelectionService) -> u64 {
    let loads = service.loads();
    let ranks = loads.iter().flat_map(|partition| &partition.loads);
    ranks.map(|rank| rank.active_requests).sum()
}

async fn until(holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
}

fn replicas(service: &SelectionService) -> &Replicas {
    service.shared().replicas.as_ref().unwrap()
}

fn record(id: &str, held_by: HeldBy) -> Arc<Record> {
    Arc::new(Record {
        partition: partition(),
        block_size: 16,
        id: ReservationId::from(id),
        worker: WorkerWithDpRank::from_worker_id(1),
        hashes: Arc::default(),
        prefill_tokens: 10,
        expected_output_tokens: None,
        lora_name: None,
        held_by,
    })
}

#[tokio::test]
async fn the_load_of_a_dead_replica_is_released_and_what_is_held_by_id_lives_its_own_time() {
    let a = replica(Vec::new()).await;
    let b = replica(vec![endpoint(&a)]).await;
    reserve(&a, "x").await;
    let exchange = hold(&a, None).await;
    until(|| requests(&b) == 2).await;
    drop(a);
    drop(exchange);
    let killed_at = Instant::now();
    b.shared().expire(killed_at + Duration::from_secs(8));
    assert_eq!(requests(&b), 2);
    b.shared().expire(killed_at + Duration::from_secs(11));
    assert_eq!(requests(&b), 1, "the exchange died with its process");
    assert_eq!(replicas(&b).metrics.deaths.get(), 1);
    assert_eq!(replicas(&b).metrics.taken_over.get(), 1);
    b.shared().expire(killed_at + Duration::from_mins(59));
    assert_eq!(requests(&b), 1);
    b.shared().expire(killed_at + HOUR);
    assert_eq!(requests(&b), 0);
}

#[tokio::test]
async fn a_replica_that_was_thought_dead_is_given_back_what_it_holds() {
    let a = replica(Vec::new()).await;
    let b = replica(vec![endpoint(&a)]).await;
    a.register_peer(&endpoint(&b)).unwrap();
    reserve(&a, "x").await;
    until(|| requests(&b) == 1).await;
    b.shared().expire(Instant::now() + Duration::from_secs(11));
    assert_eq!(
        (requests(&b), replicas(&b).metrics.taken_over.get()),
        (1, 1)
    );
    // It is heard again, within a second; its snapshot follows.
    until(|| {
        replicas(&b)
            .outbox
            .taken_from(replicas(&a).outbox.router_id)
            .is_empty()
    })
    .await;
    until(|| replicas(&b).lock().holds("x") && requests(&b) == 1 && requests(&a) == 1).await;
    a.free("x").unwrap();
    until(|| requests(&a) == 0 && requests(&b) == 0).await;
}

#[tokio::test]
async fn an_exchange_whose_load_a_peer_freed_frees_nothing_when_it_ends() {
    let mut peer = Peer::bind().await;
    let service = replica(vec![peer.endpoint()]).await;
    peer.accept().await;
    let exchange = hold(&service, Some("x")).await;
    let mut freed = Record::clone(&record("x", HeldBy::Id));
    freed.worker = exchange.reservation.worker();
    peer.published(freed, Change::Free(Whose::Own)).await;
    until(|| requests(&service) == 0).await;
    let again = hold(&service, Some("x")).await;
    drop(exchange);
    assert_eq!(requests(&service), 1);
    drop(again);
    assert_eq!(requests(&service), 0);
}

#[tokio::test]
async fn what_a_peer_says_of_what_is_not_known_here_is_dropped_and_counted() {
    let mut peer = Peer::bind().await;
    let service = replica(vec![peer.endpoint()]).await;
    peer.accept().await;
    let with = |change: fn(&mut Record)| {
        let mut record = Record::clone(&record("x", HeldBy::Id));
        change(&mut record);
        record
    };
    let told = [
        (
            with(|record| record.partition = PartitionId::new("m", "other")),
            Dropped::UnknownPartition,
        ),
        (with(|record| record.block_size = 32), Dropped::BlockSize),
        (
            with(|record| record.worker.worker_id = 9),
            Dropped::UnknownWorker,
        ),
        (
            with(|record| record.worker.dp_rank = 1),
            Dropped::UnknownRank,
        ),
    ];
    for (at, (mut record, reason)) in told.into_iter().enumerate() {
        record.id = ReservationId::from(at.to_string());
        peer.published(record, Change::Add).await;
        until(|| replicas(&service).metrics.dropped(reason) == 1).await;
    }
    peer.say(b"dynamo.slot-tracker.v1", b"no map").await;
    peer.say(b"pointsman.peer.v1", b"\x81\xa6Future\x80").await;
    until(|| replicas(&service).metrics.dropped(Dropped::Undecodable) == 2).await;
    peer.say(b"dynamo.slot-tracker.v1", &vec![0; wire::MAX_MESSAGE_BYTES])
        .await;
    until(|| replicas(&service).metrics.dropped(Dropped::Oversized) == 1).await;
    peer.say(b"dynamo.session-affinity.v1", b"\x80").await;
    until(|| replicas(&service).metrics.dropped(Dropped::Affinity) == 1).await;
    assert_eq!(requests(&service), 0);
    peer.published(Record::clone(&record("good", HeldBy::Id)), Change::Add)
        .await;
    until(|| requests(&service) == 1).await;
}

#[tokio::test]
async fn pings_of_a_publisher_are_answered() {
    let mut peer = Peer::bind().await;
    let _service = replica(vec![peer.endpoint()]).await;
    peer.accept().await;
    peer.send(&zmtp::ping()).await;
    peer.until_heard(b"\x04PONG").await;
}

#[tokio::test]
async fn pings_of_a_listener_are_answered() {
    let service = replica(Vec::new()).await;
    let mut reader = Reader::connect(&service).await;
    reader.send(&zmtp::ping()).await;
    reader.until_heard(b"\x04PONG").await;
}

#[tokio::test]
async fn a_listener_that_reads_nothing_delays_nobody() {
    let a = replica(Vec::new()).await;
    let mut stuck = Reader::connect(&a).await;
    stuck.send(&zmtp::subscribe(b"")).await;
    until(|| replicas(&a).metrics.subscribers.get() == 1).await;
    let b = replica(vec![endpoint(&a)]).await;
    for at in 0..2_000 {
        reserve(&a, &at.to_string()).await;
    }
    until(|| requests(&b) == 2_000).await;
    assert_eq!(replicas(&a).metrics.subscribers.get(), 2);
}

#[tokio::test]
async fn strangers_at_the_port_are_turned_away() {
    let service = replica(Vec::new()).await;
    let mut stranger = Reader::raw(&service).await;
    stranger.send(&[b'G'; 64]).await;
    assert!(stranger.is_closed().await);
    let mut greedy = Reader::connect(&service).await;
    greedy.send(b"\x06\xff\xff\xff\xff\xff\xff\xff\xff").await;
    assert!(greedy.is_closed().await);
    reserve(&service, "x").await;
    assert_eq!(requests(&service), 1);
}
