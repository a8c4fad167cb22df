//! Panics in a stream, and what is left of it; the last over a real socket.

use std::num::NonZeroU32;

use bytes::Bytes;
use pointsman_core::{
    Partition, PartitionConfig, PartitionId, Prompt, SelectionRequest, WorkerEntry,
};
use pointsman_plugin::{KvRouterConfig, RouterPluginRegistry, WorkerType};
use zeromq::{Socket, SocketRecv, SocketSend, XPubSocket, ZmqMessage};

use super::super::ingest::POISON;
use super::super::sample::{V, batch, stored};
use super::*;
use crate::recovery::{Recovery, RecoveryMetrics};
use crate::workers::EventSource;

#[tokio::test]
async fn a_panic_is_caught_and_a_stop_is_told_from_it() {
    let stop = CancellationToken::new();
    assert!(!runs_to_its_stop(async { panic!("on purpose") }, &stop).await);
    stop.cancel();
    assert!(runs_to_its_stop(std::future::pending(), &stop).await);
}

#[test]
fn pauses_grow_to_a_bound_and_begin_again() {
    let seconds = Duration::from_secs;
    let mut back_off = BackOff::new(seconds(1), seconds(3));
    let pauses: Vec<_> = (0..4).map(|_| back_off.pause()).collect();
    assert_eq!(pauses, [seconds(1), seconds(2), seconds(3), seconds(3)]);
    back_off.reset();
    assert_eq!(back_off.pause(), seconds(1));
}

fn partition() -> Arc<Partition> {
    let config = KvRouterConfig::default();
    let policy = RouterPluginRegistry::default()
        .resolve_for_worker_type(&config, WorkerType::Aggregated)
        .unwrap();
    let size = NonZeroU32::new(4).unwrap();
    let config = PartitionConfig::new(config, WorkerType::Aggregated, policy.factory, size);
    let partition = Partition::new(PartitionId::new("m", "default"), config);
    partition.set_workers(vec![WorkerEntry {
        worker_id: 1,
        rank_count: 1,
        ..WorkerEntry::default()
    }]);
    Arc::new(partition)
}

fn blocks_held(partition: &Partition) -> u64 {
    let request = SelectionRequest {
        prompt: Prompt::Tokens {
            ids: vec![1, 2, 3, 4],
            media: vec![],
        },
        ..SelectionRequest::default()
    };
    partition.overlaps(&request).unwrap().ranks[0].device_blocks
}

async fn publish(publisher: &mut XPubSocket, sequence: u64, payload: Bytes) {
    let number = Bytes::copy_from_slice(&sequence.to_be_bytes());
    let frames = vec![Bytes::new(), number, payload];
    publisher
        .send(ZmqMessage::try_from(frames).unwrap())
        .await
        .unwrap();
}

async fn until(holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_stream_that_panics_begins_anew_with_an_empty_rank() {
    let mut publisher = XPubSocket::new();
    let address = publisher.bind("tcp://127.0.0.1:0").await.unwrap();
    let partition = partition();
    let metrics = EventMetrics::default();
    let recovery = Recovery::new(RecoveryMetrics::default(), Duration::ZERO, Duration::ZERO);
    let supervised = Supervised {
        stream: RankStream {
            partition: Arc::clone(&partition),
            worker_id: 1,
            dp_rank: 0,
            worker_ranks: 0..1,
            source: EventSource {
                publisher: address.to_string(),
                replay: None,
            },
        },
        config: Arc::new(EventsConfig::default()),
        progress: Arc::default(),
        metrics: metrics.clone(),
        recovery: Arc::new(recovery),
    };
    let stop = CancellationToken::new();
    let task = tokio::spawn(supervised.run(stop.clone()));
    let store = || batch(vec![V::List(stored(&[101], None, &[1, 2, 3, 4], 4))]);
    let _subscribed = publisher.recv().await.unwrap();
    publish(&mut publisher, 0, store()).await;
    until(|| blocks_held(&partition) == 1).await;
    publish(&mut publisher, 1, Bytes::from_static(POISON)).await;
    until(|| metrics.failures.get() == 1).await;
    until(|| blocks_held(&partition) == 0).await;
    // Its old subscription ends, and the new one begins.
    while publisher.recv().await.unwrap().get(0).unwrap().as_ref() != [1] {}
    publish(&mut publisher, 7, store()).await;
    until(|| blocks_held(&partition) == 1).await;
    stop.cancel();
    task.await.unwrap();
    assert_eq!(
        blocks_held(&partition),
        0,
        "a stream that ends takes along what it said"
    );
}
