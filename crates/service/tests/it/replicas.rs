//! Replicas over real sockets: what one holds, the others count.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use pointsman_core::{PartitionId, RankLoad, SelectionRequest};
use pointsman_plugin::{KvRouterConfig, RouterPluginRegistry, WorkerType, WorkerWithDpRank};
use pointsman_service::{
    ExplicitReservation, Reserved, SelectionService, SelectionServiceBuilder, SelectionServiceError,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::rig::{asking, partition, tokens, worker};

/// Long enough for a busy machine; no test waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(30);

/// A replica that listens on `port`, with three workers.
async fn replica(port: u16, peers: &[&SelectionService]) -> SelectionService {
    let peers: Vec<_> = peers.iter().map(|peer| endpoint(peer)).collect();
    let service = bare(port, peers).await;
    for worker_id in 1..=3 {
        service.register_worker(worker(worker_id)).unwrap();
    }
    service
}

async fn bare(port: u16, peers: Vec<String>) -> SelectionService {
    let until = Instant::now() + PATIENCE;
    loop {
        let builder = SelectionServiceBuilder::new(
            KvRouterConfig::default(),
            WorkerType::Aggregated,
            RouterPluginRegistry::default(),
        );
        match builder.replica_sync(port, peers.clone()).build().await {
            Ok(service) => return service,
            // The socket of the one that was killed may take a moment to close.
            Err(SelectionServiceError::ReplicaPort { .. }) if Instant::now() < until => {
                tokio::task::yield_now().await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn endpoint(service: &SelectionService) -> String {
    let port = service.replica_sync_address().unwrap().port();
    format!("tcp://127.0.0.1:{port}")
}

/// Two replicas that follow each other.
async fn pair() -> (SelectionService, SelectionService) {
    let a = replica(0, &[]).await;
    let b = replica(0, &[&a]).await;
    assert!(a.register_peer(&endpoint(&b)).unwrap());
    // Each is heard by the other once what it holds is seen there.
    for (one, other) in [(&a, &b), (&b, &a)] {
        reserve(one, "probe").await.unwrap();
        until_requests(other, 1).await;
        one.free("probe").unwrap();
        until_requests(other, 0).await;
    }
    (a, b)
}

async fn reserve(service: &SelectionService, id: &str) -> Result<u64, SelectionServiceError> {
    reserve_for(service, id, asking(&tokens(0..40))).await
}

/// The worker that was chosen.
async fn reserve_for(
    service: &SelectionService,
    id: &str,
    request: SelectionRequest,
) -> Result<u64, SelectionServiceError> {
    let (partition, id) = (partition(), Some(id.to_owned()));
    let reserved = service.select_and_reserve_by_id(&partition, request, id);
    let reserved = reserved.await?;
    Ok(reserved.selected.selection.worker.worker_id)
}

/// Load that an exchange holds.
async fn hold(service: &SelectionService, request: SelectionRequest) -> Reserved {
    let partition = partition();
    let held = service.select_and_reserve(&partition, request, None);
    held.await.unwrap()
}

fn loads(service: &SelectionService) -> Vec<(PartitionId, Vec<RankLoad>)> {
    let loads = service.loads().into_iter();
    loads
        .map(|partition| (partition.id, partition.loads))
        .collect()
}

fn requests(service: &SelectionService) -> u64 {
    let loads = loads(service);
    let ranks = loads.iter().flat_map(|(_, ranks)| ranks);
    ranks.map(|rank| rank.active_requests).sum()
}

fn prefill_tokens(service: &SelectionService) -> u64 {
    let loads = loads(service);
    let ranks = loads.iter().flat_map(|(_, ranks)| ranks);
    ranks.map(|rank| rank.active_prefill_tokens).sum()
}

async fn until_requests(service: &SelectionService, count: u64) {
    until(|| requests(service) == count).await;
}

async fn until(holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
}

#[tokio::test]
async fn what_one_replica_holds_the_other_counts_to_the_token() {
    let (a, b) = pair().await;
    reserve(&a, "x").await.unwrap();
    let held = hold(&a, asking(&tokens(90..150))).await;
    until(|| requests(&b) == 2 && loads(&a) == loads(&b)).await;
    assert_eq!(prefill_tokens(&b), 100);
    a.prefill_complete("x").unwrap();
    until(|| prefill_tokens(&b) == 60).await;
    drop(held);
    until(|| requests(&b) == 1 && loads(&a) == loads(&b)).await;
    a.free("x").unwrap();
    until_requests(&b, 0).await;
}

#[tokio::test]
async fn output_blocks_stay_where_they_were_told() {
    let (a, b) = pair().await;
    reserve(&a, "x").await.unwrap();
    until_requests(&b, 1).await;
    let blocks = |service: &SelectionService| -> u64 {
        let loads = loads(service);
        let ranks = loads.iter().flat_map(|(_, ranks)| ranks);
        ranks.map(|rank| rank.decode_blocks).sum()
    };
    a.output_block("x", None).unwrap();
    b.output_block("x", None).unwrap();
    b.output_block("x", None).unwrap();
    // Told after them, and in order.
    a.prefill_complete("x").unwrap();
    until(|| prefill_tokens(&b) == 0).await;
    assert_eq!((blocks(&a), blocks(&b)), (11, 12));
}

#[tokio::test]
async fn an_id_is_held_by_all_replicas_and_ended_by_any() {
    let (a, b) = pair().await;
    reserve(&a, "x").await.unwrap();
    until_requests(&b, 1).await;
    let twice = reserve(&b, "x").await.unwrap_err();
    assert_eq!(twice.status_code(), 409);
    let explicit = ExplicitReservation {
        id: "x".to_owned(),
        worker: WorkerWithDpRank::from_worker_id(1),
        request: SelectionRequest::default(),
        effective_prefill_tokens: None,
    };
    let twice = b.reserve_explicit(&partition(), explicit).unwrap_err();
    assert_eq!(twice.status_code(), 409);

    b.prefill_complete("x").unwrap();
    assert_eq!(prefill_tokens(&b), 0);
    until(|| prefill_tokens(&a) == 0).await;
    b.free("x").unwrap();
    assert_eq!(requests(&b), 0);
    until_requests(&a, 0).await;
    assert_eq!(a.free("x").unwrap_err().status_code(), 404);
    assert_eq!(b.free("x").unwrap_err().status_code(), 404);
    reserve(&b, "x").await.unwrap();
    until_requests(&a, 1).await;
    a.free("x").unwrap();
    until_requests(&b, 0).await;
}

#[tokio::test]
async fn whoever_joins_is_given_what_lives_and_charges_it_once_its_workers_are_there() {
    let a = replica(0, &[]).await;
    for at in 0..300 {
        reserve(&a, &format!("{at}")).await.unwrap();
    }
    a.prefill_complete("7").unwrap();
    let b = replica(0, &[&a]).await;
    until(|| loads(&a) == loads(&b)).await;
    let late = bare(0, vec![endpoint(&a)]).await;
    late.register_worker(worker(9)).unwrap();
    for worker_id in 1..=3 {
        late.register_worker(worker(worker_id)).unwrap();
    }
    late.remove_worker(9).unwrap();
    until(|| loads(&a) == loads(&late)).await;
}

#[tokio::test]
async fn a_choice_counts_what_other_replicas_chose() {
    let (a, b) = pair().await;
    let mut chosen = Vec::new();
    for at in 0..6_u32 {
        let service = if at % 2 == 0 { &a } else { &b };
        // Prompts that share nothing: load alone decides.
        let prompt = asking(&tokens(at * 1_000..at * 1_000 + 40));
        chosen.push(reserve_for(service, &at.to_string(), prompt).await.unwrap());
        until(|| requests(&a) == u64::from(at) + 1 && requests(&b) == u64::from(at) + 1).await;
    }
    chosen.sort_unstable();
    assert_eq!(chosen, [1, 1, 2, 2, 3, 3]);
}

#[tokio::test]
async fn peers_come_and_go() {
    let (a, b) = pair().await;
    assert!(!a.register_peer(&endpoint(&b)).unwrap());
    assert_eq!(a.peers(), [endpoint(&b)]);
    assert!(a.deregister_peer(&endpoint(&b)).unwrap());
    assert!(!a.deregister_peer(&endpoint(&b)).unwrap());
    assert!(a.peers().is_empty());
    for bad in [
        "",
        "tcp://",
        "tcp://host",
        "http://h:1",
        "tcp://a b:1",
        "tcp://::1:5",
    ] {
        assert_eq!(
            a.register_peer(bad).unwrap_err().status_code(),
            400,
            "{bad}"
        );
    }
    let alone = crate::rig::Rig::new().await.service;
    assert_eq!(
        alone.register_peer("tcp://h:1").unwrap_err().status_code(),
        409
    );
    assert_eq!(alone.replica_sync_address(), None);
    a.shutdown().await;
    assert_eq!(a.register_peer("tcp://h:1").unwrap_err().status_code(), 503);
}

#[tokio::test]
async fn an_id_whose_worker_is_removed_everywhere_ends_once_wherever_it_is_asked_for() {
    let (a, b) = pair().await;
    for id in ["here", "there"] {
        let pinned = SelectionRequest {
            pinned_worker: Some(WorkerWithDpRank::from_worker_id(2)),
            ..asking(&tokens(0..40))
        };
        reserve_for(&a, id, pinned).await.unwrap();
    }
    until_requests(&b, 2).await;
    a.remove_worker(2).unwrap();
    b.remove_worker(2).unwrap();
    assert_eq!((requests(&a), requests(&b)), (0, 0));
    a.free("here").unwrap();
    assert_eq!(a.free("here").unwrap_err().status_code(), 404);
    b.free("there").unwrap();
    assert_eq!(b.free("there").unwrap_err().status_code(), 404);
    until(|| b.free("here").is_err() && a.free("there").is_err()).await;
    for service in [&a, &b] {
        service.register_worker(worker(2)).unwrap();
        assert_eq!(requests(service), 0);
    }
}

#[tokio::test]
async fn a_replica_that_shuts_down_leaves_what_is_held_by_id_to_the_others() {
    let (a, b) = pair().await;
    reserve(&a, "stays").await.unwrap();
    let exchange = hold(&a, asking(&tokens(0..9))).await;
    until_requests(&b, 2).await;
    drop(exchange);
    a.shutdown().await;
    until_requests(&b, 1).await;
    let port = a.replica_sync_address().unwrap().port();
    drop(a);
    let a = replica(port, &[&b]).await;
    until_requests(&a, 1).await;
    a.free("stays").unwrap();
    until_requests(&b, 0).await;
}

/// What the clients of the storm know.
struct Clients {
    random: StdRng,
    /// Ids that live, and whether the replica that booked them was killed since.
    live: HashMap<String, Booked>,
    /// Ids that nobody knew when they were to be freed. What the killed had told may have been
    /// under way.
    lost: Vec<String>,
    /// Ids whose end the first replica knows; whether it has told, its clients do not.
    freed_at_first: Vec<String>,
    next: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Booked {
    Safely,
    /// What it had not told is gone with it.
    AtTheKilled,
}

impl Clients {
    /// One request at any replica, or the next step of an earlier one.
    async fn act(&mut self, replicas: &[&SelectionService]) {
        let service = replicas[self.random.random_range(0..replicas.len())];
        self.next += 1;
        let id = format!("r{}", self.next);
        let from = self.random.random_range(0..50);
        let length = self.random.random_range(1..60);
        let request = asking(&tokens(from..from + length));
        reserve_for(service, &id, request).await.unwrap();
        self.live.insert(id, Booked::Safely);
        while self.live.len() > 200 || (!self.live.is_empty() && self.random.random_ratio(2, 5)) {
            let at = self.random.random_range(0..self.live.len());
            let id = self.live.keys().nth(at).unwrap().clone();
            if self.random.random() {
                // It may not have been told there yet, or be gone with the killed.
                let _known = service.prefill_complete(&id).is_ok();
            }
            self.free(&id, replicas);
        }
    }

    /// At one replica or, where it is not known yet, at the other.
    fn free(&mut self, id: &str, replicas: &[&SelectionService]) {
        let start = self.random.random_range(0..replicas.len());
        let mut order = (0..replicas.len()).cycle().skip(start).take(replicas.len());
        let freed_at = order.find(|at| replicas[*at].free(id).is_ok());
        let booked = self.live.remove(id);
        match freed_at {
            Some(0) if replicas.len() == 2 => self.freed_at_first.push(id.to_owned()),
            Some(_) => {}
            None => {
                assert_eq!(booked, Some(Booked::AtTheKilled), "{id} is known to nobody");
                self.lost.push(id.to_owned());
            }
        }
    }

    fn killed(&mut self) {
        for booked in self.live.values_mut() {
            *booked = Booked::AtTheKilled;
        }
        self.lost.append(&mut self.freed_at_first);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_a_storm_with_kills_two_replicas_end_equal_and_empty() {
    let seed = 0x5eed_0020;
    println!("seed {seed:#x}");
    let mut clients = Clients {
        random: StdRng::seed_from_u64(seed),
        live: HashMap::new(),
        lost: Vec::new(),
        freed_at_first: Vec::new(),
        next: 0,
    };
    let (mut a, b) = pair().await;
    let port = a.replica_sync_address().unwrap().port();
    for part in 0..5 {
        for _ in 0..1_000 {
            clients.act(&[&a, &b]).await;
        }
        if part == 1 || part == 3 {
            drop(a);
            clients.killed();
            for _ in 0..100 {
                clients.act(&[&b]).await;
            }
            a = replica(port, &[&b]).await;
        }
    }
    let quiet = Instant::now();
    until(|| loads(&a) == loads(&b) && requests(&a) > 0).await;
    println!("equal after {:?}, {} live", quiet.elapsed(), requests(&a));
    assert!(
        quiet.elapsed() < Duration::from_secs(2),
        "{:?}",
        quiet.elapsed()
    );
    for id in std::mem::take(&mut clients.lost) {
        let _known = a.free(&id).is_ok() || b.free(&id).is_ok();
    }
    for id in clients.live.clone().into_keys() {
        clients.free(&id, &[&a, &b]);
    }
    until(|| requests(&a) == 0 && requests(&b) == 0).await;
    assert_eq!((prefill_tokens(&a), prefill_tokens(&b)), (0, 0));
    assert_eq!(loads(&a), loads(&b));
}
