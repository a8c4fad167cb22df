//! What engines really sent, or could send, and what routers made of it: each kind of trouble that
//! users reported of any router, as bytes over real sockets into this one.
//!
//! | kind of trouble | tests |
//! |---|---|
//! | hashes over the signed range, or bytes | `blocks::a_name_is_64_bits_however_it_is_written` |
//! | unknown fields, elements and events | `wire::what_is_not_known_is_passed_over` |
//! | events as maps, batches as maps, metadata where a string was | `wire::a_map_is_read_like_an_array`, `wire::metadata_may_stand_where_the_adapter_was` |
//! | wrong frames, broken payloads | `wire::wrong_frames_are_counted_and_not_applied`, `wire::broken_payloads_use_their_numbers` |
//! | tokens that fill no block, block sizes that are none | `wire::events_that_contradict_themselves_leave_the_others` |
//! | block size unlike the catalog's | `blocks::a_multiple_or_divisor_of_the_block_size_is_cut_again`, `blocks::a_size_that_fits_nothing_is_shown_and_routed_by_load` |
//! | gaps, first numbers above zero, replays of many messages, silent replays | `order` |
//! | a replay that comes late, of another rank, or of an engine that forgot | `order` |
//! | restarts, duplicates, new publishers, deaf and dead connections | `lifecycle` |
//! | clears that are only logged, workers that leave | `lifecycle` |
//! | unknown parents, parents that were evicted, wrong parents in one event | `blocks` |
//! | copies: of one hash, in groups, as the engine counts them | `blocks`, `placement` |
//! | removals of what is not there, or from another tier | `placement` |
//! | placeholders of offloaded blocks | `placement::a_placeholder_in_host_memory_outlives_the_device` |
//! | groups that are no attention | `placement::groups_that_are_no_attention_stay_out` |
//! | adapters, salts, media | `namespaces` |
//! | ranks: in the batch, unknown, sharing a topic or a socket | `ranks` |
//! | a peer's dump that is broken or has another block size | `crate::recovery` |
//! | frames of real publishers | `crate::recorded` |

mod blocks;
mod lifecycle;
mod namespaces;
mod order;
mod placement;
mod ranks;
mod wire;

use std::time::Duration;

use bytes::Bytes;
use pointsman_core::SelectionRequest;
use pointsman_service::EventsConfig;

use crate::engine::{Answer, Engine};
use crate::pack::{Store, V, batch};
use crate::rig::{Replays, Rig, asking, partition, worker_of};

/// Worker 1 and its engine, connected.
struct Stage {
    rig: Rig,
    engine: Engine,
}

impl Stage {
    /// Without a replay endpoint.
    async fn new() -> Self {
        Self::with(EventsConfig::default(), Answer::Never, Replays::Unknown).await
    }

    async fn replaying(answer: Answer) -> Self {
        Self::with(EventsConfig::default(), answer, Replays::Known).await
    }

    async fn with(config: EventsConfig, answer: Answer, replays: Replays) -> Self {
        let rig = Rig::with_events(config).await;
        let mut engine = Engine::start(answer).await;
        rig.service
            .register_worker(worker_of(1, &engine, replays))
            .unwrap();
        engine.subscribed().await;
        Self { rig, engine }
    }

    /// Publishes a batch of these events and waits until it is applied.
    async fn tell(&mut self, events: Vec<V>) {
        self.tell_bytes(batch(Some(0), events)).await;
    }

    async fn tell_bytes(&mut self, payload: Bytes) {
        let sequence = self.engine.lose(payload.clone());
        self.engine.send(sequence, payload).await;
        self.rig.until_applied(1, 0, sequence).await;
    }

    /// Leading tokens of worker 1 on the device.
    async fn gpu(&self, tokens: &[u32]) -> u64 {
        self.found(&asking(tokens), 0).await[0]
    }

    /// Leading tokens of a rank of worker 1 on the device, and with those that continue them in host
    /// memory, and on disk.
    async fn found(&self, request: &SelectionRequest, dp_rank: u32) -> [u64; 3] {
        tokens_found(&self.rig, 1, dp_rank, request).await
    }

    async fn until_gpu(&self, tokens: &[u32], expected: u64) {
        self.rig.until_overlap(1, tokens, expected / 4).await;
    }

    async fn end(self) {
        self.rig.service.shutdown().await;
    }
}

async fn tokens_found(
    rig: &Rig,
    worker_id: u64,
    dp_rank: u32,
    request: &SelectionRequest,
) -> [u64; 3] {
    let of = partition();
    let scores = rig.service.overlap_scores(&of, request.clone());
    let scores = scores.await.unwrap().overlap;
    let is_it = |rank: &&pointsman_core::RankOverlap| {
        (rank.worker.worker_id, rank.worker.dp_rank) == (worker_id, dp_rank)
    };
    let found = scores.ranks.iter().find(is_it).unwrap();
    let size = u64::from(scores.block_size);
    let host = found.device_blocks + found.host_blocks;
    [found.device_blocks, host, host + found.disk_blocks].map(|blocks| blocks * size)
}

/// Waits short enough for a test, everything else as shipped.
fn impatient() -> EventsConfig {
    EventsConfig {
        replay_answer_timeout: Duration::from_millis(50),
        replay_retry_min: Duration::from_millis(50),
        replay_retry_max: Duration::from_millis(50),
        suspect_time: Duration::from_millis(300),
        reconnect_min: Duration::from_millis(10),
        reconnect_max: Duration::from_millis(50),
        ..EventsConfig::default()
    }
}
