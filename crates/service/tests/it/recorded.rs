//! The recorded frames of real publishers, sent again over real sockets: what they held is what a
//! selection sees.

use std::collections::BTreeMap;

use bytes::Bytes;
use pointsman_core::hash::media_hash;
use pointsman_core::{Prompt, SelectionRequest};
use pointsman_plugin::WorkerWithDpRank;
use pointsman_service::WorkerRegistration;
use tokio_util::task::AbortOnDropHandle;
use zeromq::{RouterSocket, Socket, SocketRecv, SocketSend, XPubSocket, ZmqMessage};

use crate::recording::{Recording, recording};
use crate::rig::{Rig, asking, partition, tokens, worker};

const NUMBERS: &str = "vllm 0.33.0 rank 0, numbers";
const DIGESTS: &str = "vllm 0.33.0 rank 1, digests";
const PAGES: &str = "sglang 0.5.23 rank 0";
const BIGRAMS: &str = "sglang 0.5.23 rank 1, bigrams";
/// The id of the picture in the recorded prompts.
const PICTURE: &str = "92b2fa58028958317e408bd84ecfa70f5ee35b121991dbc232c49d166353708b";

/// A publisher that can say only what was recorded.
struct Publisher {
    socket: XPubSocket,
    address: String,
    replay_address: String,
    live: Vec<Vec<Bytes>>,
    _router: AbortOnDropHandle<()>,
}

impl Publisher {
    async fn start(title: &str) -> Self {
        let Recording { live, replays } = recording(title);
        let mut socket = XPubSocket::new();
        let address = bound(&mut socket).await;
        let mut router = RouterSocket::new();
        let replay_address = bound(&mut router).await;
        Self {
            socket,
            address,
            replay_address,
            live,
            _router: AbortOnDropHandle::new(tokio::spawn(answer(router, replays))),
        }
    }

    async fn subscribed(&mut self) {
        let message = self.socket.recv().await.unwrap();
        assert_eq!(message.get(0).unwrap().as_ref(), [1]);
    }

    async fn publish(&mut self, numbers: impl IntoIterator<Item = usize>) {
        for number in numbers {
            let message = ZmqMessage::try_from(self.live[number].clone()).unwrap();
            self.socket.send(message).await.unwrap();
        }
    }
}

async fn bound(socket: &mut impl Socket) -> String {
    socket.bind("tcp://127.0.0.1:0").await.unwrap().to_string()
}

/// Answers as was recorded: what of the longest replay is wanted, then its end.
async fn answer(mut router: RouterSocket, replays: Vec<Vec<Vec<Bytes>>>) {
    let longest = replays.iter().max_by_key(|answers| answers.len());
    let (end, batches) = longest.unwrap().split_last().unwrap();
    loop {
        let question = router.recv().await.unwrap().into_vec();
        let [peer, empty, from] = <[Bytes; 3]>::try_from(question).unwrap();
        assert!(empty.is_empty());
        let wanted = batches.iter().filter(|answer| answer[2] >= from);
        for answer in wanted.chain([end]) {
            let frames = [vec![peer.clone()], answer.clone()].concat();
            let message = ZmqMessage::try_from(frames).unwrap();
            router.send(message).await.unwrap();
        }
    }
}

/// Worker 1 with one rank per publisher, from `first_rank` on.
fn ranks_of(publishers: &[&Publisher], first_rank: u32) -> WorkerRegistration {
    let ranks = || (first_rank..).zip(publishers);
    let events: BTreeMap<u32, String> = ranks()
        .map(|(rank, publisher)| (rank, publisher.address.clone()))
        .collect();
    let replays = ranks()
        .map(|(rank, publisher)| (rank, publisher.replay_address.clone()))
        .collect();
    WorkerRegistration {
        data_parallel_start_rank: Some(first_rank),
        data_parallel_size: Some(u32::try_from(publishers.len()).unwrap()),
        kv_events_endpoints: events,
        replay_endpoints: replays,
        ..worker(1)
    }
}

/// The prompts that the recorded events speak of.
fn prompts() -> [SelectionRequest; 8] {
    let picture = media_hash(PICTURE).unwrap();
    let pictured = SelectionRequest {
        prompt: Prompt::Tokens {
            ids: tokens(1..9),
            media: vec![vec![picture], vec![picture]],
        },
        ..SelectionRequest::default()
    };
    [
        asking(&tokens(1..22)),
        SelectionRequest {
            lora_name: Some("poet".to_owned()),
            ..asking(&tokens(1..9))
        },
        SelectionRequest {
            cache_salt: Some("tenant-1".to_owned()),
            ..asking(&tokens(1..9))
        },
        pictured,
        asking(&tokens(101..105)),
        asking(&tokens(201..205)),
        asking(&tokens(301..305)),
        asking(&tokens(401..410)),
    ]
}

/// Leading blocks that a rank holds of each of [`prompts`].
async fn held(rig: &Rig, dp_rank: u32) -> [u64; 8] {
    let mut held = [0; 8];
    for (blocks, prompt) in held.iter_mut().zip(prompts()) {
        let request = SelectionRequest {
            pinned_worker: Some(WorkerWithDpRank {
                worker_id: 1,
                dp_rank,
            }),
            ..prompt
        };
        let selected = rig.service.select(&partition(), request).await.unwrap();
        *blocks = selected.selection.overlap_blocks;
    }
    held
}

/// Blocks of the plain prompt that a rank holds behind its device's in host memory, on disk and in a pool.
async fn behind_the_device(rig: &Rig, dp_rank: u32) -> (u64, u64) {
    let request = SelectionRequest {
        pinned_worker: Some(WorkerWithDpRank {
            worker_id: 1,
            dp_rank,
        }),
        ..asking(&tokens(1..22))
    };
    let selected = rig.service.select(&partition(), request).await.unwrap();
    let selection = selected.selection;
    (selection.host_overlap_blocks, selection.disk_overlap_blocks)
}

/// Before the clear: the prompt without its evicted end; what the adapter, the salt and the picture
/// keep apart; the full-attention group alone; nothing that has no identity.
const BEFORE_THE_CLEAR: [u64; 8] = [4, 1, 2, 2, 1, 0, 0, 0];
const AFTER_THE_CLEAR: [u64; 8] = [0, 0, 0, 0, 0, 0, 0, 2];

/// A worker with these ranks, subscribed to.
async fn subscribed(
    publishers: &mut [&mut Publisher],
    register: impl FnOnce(&[&Publisher]) -> WorkerRegistration,
) -> Rig {
    let rig = Rig::new().await;
    let shared: Vec<&Publisher> = publishers.iter().map(|publisher| &**publisher).collect();
    let registration = register(&shared);
    let record = rig.service.register_worker(registration).unwrap();
    assert!(record.not_schedulable_reasons.is_empty(), "{record:?}");
    for publisher in publishers {
        publisher.subscribed().await;
    }
    rig
}

#[tokio::test]
async fn two_ranks_of_one_engine_are_understood_live() {
    let mut first = Publisher::start(NUMBERS).await;
    let mut second = Publisher::start(DIGESTS).await;
    let rig = subscribed(&mut [&mut first, &mut second], |ranks| ranks_of(ranks, 0)).await;
    first.publish(0..=9).await;
    second.publish(0..=9).await;
    rig.until_applied(1, 0, 9).await;
    rig.until_applied(1, 1, 9).await;
    assert_eq!(held(&rig, 0).await, BEFORE_THE_CLEAR);
    assert_eq!(held(&rig, 1).await, BEFORE_THE_CLEAR);
    first.publish(10..=12).await;
    rig.until_applied(1, 0, 12).await;
    assert_eq!(held(&rig, 0).await, AFTER_THE_CLEAR);
    assert_eq!(held(&rig, 1).await, BEFORE_THE_CLEAR);
    assert_eq!(rig.metric("kv_event_bad_batches_total"), 0);
    assert_eq!(rig.metric("kv_event_bad_frames_total"), 0);
    rig.service.shutdown().await;
}

#[tokio::test]
async fn the_history_of_an_engine_is_understood_from_its_replay() {
    let mut publisher = Publisher::start(NUMBERS).await;
    let rig = subscribed(&mut [&mut publisher], |ranks| ranks_of(ranks, 0)).await;
    publisher.publish([9]).await;
    rig.until_applied(1, 0, 9).await;
    assert_eq!(held(&rig, 0).await, BEFORE_THE_CLEAR);
    assert_eq!(
        rig.metric("kv_event_replays_total{outcome=\"complete\"}"),
        1
    );
    rig.service.shutdown().await;
}

#[tokio::test]
async fn lost_digests_come_back_by_replay() {
    let mut publisher = Publisher::start(DIGESTS).await;
    let rig = subscribed(&mut [&mut publisher], |ranks| ranks_of(ranks, 1)).await;
    publisher.publish((0..=6).chain([9])).await;
    rig.until_applied(1, 1, 9).await;
    assert_eq!(held(&rig, 1).await, BEFORE_THE_CLEAR);
    assert_eq!(rig.metric("kv_event_gaps_total"), 1);
    rig.service.shutdown().await;
}

#[tokio::test]
async fn an_engine_that_stores_page_by_page_is_understood() {
    let mut publisher = Publisher::start(PAGES).await;
    let rig = subscribed(&mut [&mut publisher], |ranks| ranks_of(ranks, 0)).await;
    publisher.publish(0..=5).await;
    rig.until_applied(1, 0, 5).await;
    assert_eq!(held(&rig, 0).await, [1, 1, 2, 0, 0, 0, 0, 0]);
    assert_eq!(
        behind_the_device(&rig, 0).await,
        (1, 0),
        "the page behind it"
    );
    publisher.publish(6..=6).await;
    rig.until_applied(1, 0, 6).await;
    assert_eq!(held(&rig, 0).await, [3, 1, 2, 0, 0, 0, 0, 0]);
    publisher.publish(7..=8).await;
    rig.until_applied(1, 0, 8).await;
    assert_eq!(held(&rig, 0).await, [0, 0, 0, 0, 0, 0, 0, 1]);
    rig.service.shutdown().await;
}

#[tokio::test]
async fn pages_are_understood_from_their_replay() {
    let mut publisher = Publisher::start(PAGES).await;
    let rig = subscribed(&mut [&mut publisher], |ranks| ranks_of(ranks, 0)).await;
    publisher.publish([6]).await;
    rig.until_applied(1, 0, 6).await;
    assert_eq!(held(&rig, 0).await, [3, 1, 2, 0, 0, 0, 0, 0]);
    rig.service.shutdown().await;
}

#[tokio::test]
async fn pages_of_bigrams_are_understood() {
    let mut publisher = Publisher::start(BIGRAMS).await;
    let rig = subscribed(&mut [&mut publisher], |ranks| WorkerRegistration {
        is_eagle: Some(true),
        ..ranks_of(ranks, 1)
    })
    .await;
    publisher.publish([0, 1]).await;
    rig.until_applied(1, 1, 1).await;
    assert_eq!(held(&rig, 1).await[0], 3);
    // The third batch is lost; the replay brings it back.
    publisher.publish([3]).await;
    rig.until_applied(1, 1, 3).await;
    assert_eq!(held(&rig, 1).await[0], 3);
    publisher.publish([4, 5]).await;
    rig.until_applied(1, 1, 5).await;
    assert_eq!(held(&rig, 1).await, [0, 0, 0, 0, 0, 0, 0, 1]);
    rig.service.shutdown().await;
}
