//! The messages of replicas as bytes: the published topics and their `MessagePack` maps, and our own topic
//! beside them.
//!
//! It decides nothing. Published events carry keys of ours that others pass over: `seq`, the
//! number of the event; `exchange`, true for a reservation that ends with its process; `owner`,
//! whose reservation a call is about. Whatever bytes come, decoding ends in a message or an error.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pointsman_core::hash::SequenceHash;
use pointsman_core::{PartitionId, ReservationId};
use pointsman_plugin::WorkerWithDpRank;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::owned::{Change, Event, Heartbeat, Piece, Told, Whose};
use super::record::{HeldBy, MAX_BLOCKS, Record};
use crate::zmtp;

/// Published: what happens to reservations.
pub(super) const EVENTS: &str = "dynamo.slot-tracker.v1";
/// Published: where sessions are bound. Carried by the same sockets, followed by nobody here.
pub(super) const AFFINITY: &str = "dynamo.session-affinity.v1";
/// Ours: heartbeats, snapshots and renewals.
pub(super) const PEERS: &str = "pointsman.peer.v1";

/// Longest message of a peer that is kept.
pub(super) const MAX_MESSAGE_BYTES: usize = 4 << 20;
const MAX_NAME_BYTES: usize = 1024;

/// What a peer said.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Heard {
    Event(Happened),
    Heartbeat(u64, Heartbeat),
    Piece(u64, Piece),
    Renewed(u64, Vec<ReservationId>),
    Affinity,
}

/// Something happened to a reservation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Happened {
    pub(super) origin: u64,
    /// A published peer numbers nothing.
    pub(super) seq: Option<u64>,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum What {
    Add(Arc<Record>),
    PrefillCompleted(Call),
    Free(Call),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    pub(super) id: ReservationId,
    pub(super) worker: WorkerWithDpRank,
    pub(super) whose: Whose,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    #[error("expected a topic and a payload, found {0} frames")]
    Frames(usize),
    #[error("a topic that was not asked for")]
    Topic,
    #[error("an id or name over {MAX_NAME_BYTES} bytes")]
    Name,
    #[error(transparent)]
    Payload(#[from] rmp_serde::decode::Error),
}

#[derive(Serialize, Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    model_name: Cow<'a, str>,
    #[serde(borrow)]
    routing_group: Cow<'a, str>,
    block_size: u32,
    #[serde(borrow)]
    event: Sequence<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    exchange: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<Owner>,
}

#[derive(Serialize, Deserialize)]
struct Sequence<'a> {
    #[serde(borrow)]
    request_id: Cow<'a, str>,
    worker: Worker,
    data: Data,
    router_id: u64,
    #[serde(borrow)]
    lora_name: Option<Cow<'a, str>>,
}

#[derive(Serialize, Deserialize)]
struct Worker {
    worker_id: u64,
    dp_rank: u32,
}

#[derive(Serialize, Deserialize)]
struct Owner {
    router_id: u64,
    seq: Option<u64>,
}

#[derive(Serialize, Deserialize)]
enum Data {
    AddRequest {
        #[serde(default)]
        token_sequence: Hashes,
        #[serde(default = "yes")]
        track_prefill_tokens: bool,
        expected_output_tokens: Option<u32>,
        prefill_load_hint: Option<Hint>,
    },
    Free,
    MarkPrefillCompleted,
}

#[derive(Serialize, Deserialize)]
struct Hint {
    initial_effective_prefill_tokens: u64,
    expected_prefill_duration: Option<Duration>,
}

/// Present, or nothing at all.
#[derive(Default)]
struct Hashes(Option<Arc<[SequenceHash]>>);

#[derive(Serialize, Deserialize)]
enum PeerMessage<'a> {
    Heartbeat {
        router_id: u64,
        seq: u64,
        reservations: u64,
        digest: u64,
    },
    Snapshot {
        router_id: u64,
        seq: u64,
        after: u64,
        through: u64,
        last: bool,
        #[serde(borrow)]
        reservations: Vec<Listed<'a>>,
    },
    Renewed {
        router_id: u64,
        #[serde(borrow)]
        request_ids: Vec<Cow<'a, str>>,
    },
}

#[derive(Serialize, Deserialize)]
struct Listed<'a> {
    seq: u64,
    #[serde(borrow)]
    model_name: Cow<'a, str>,
    #[serde(borrow)]
    routing_group: Cow<'a, str>,
    block_size: u32,
    #[serde(borrow)]
    request_id: Cow<'a, str>,
    worker: Worker,
    token_sequence: Hashes,
    prefill_tokens: u64,
    prefill_completed: bool,
    expected_output_tokens: Option<u32>,
    #[serde(borrow)]
    lora_name: Option<Cow<'a, str>>,
    exchange: bool,
    silent_ms: u64,
}

fn yes() -> bool {
    true
}

impl Serialize for Hashes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Some(hashes) => serializer.collect_seq(hashes.iter().map(|hash| hash.0)),
            None => serializer.serialize_none(),
        }
    }
}

impl<'de> Deserialize<'de> for Hashes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let hashes = Option::<Vec<u64>>::deserialize(deserializer)?;
        let leading = |hashes: Vec<u64>| hashes.into_iter().take(MAX_BLOCKS);
        Ok(Self(
            hashes.map(|all| leading(all).map(SequenceHash).collect()),
        ))
    }
}

impl Hashes {
    fn of(record: &Record) -> Self {
        Self((!record.hashes.is_empty()).then(|| Arc::clone(&record.hashes)))
    }
}

/// An event as every replica reads it.
pub(super) fn event(router_id: u64, event: &Event) -> Bytes {
    framed(EVENTS, &envelope(router_id, event))
}

fn envelope(router_id: u64, event: &Event) -> Envelope<'_> {
    let record = &event.record;
    let (data, whose) = match event.change {
        Change::Add => (added(record), Whose::Own),
        Change::PrefillCompleted(whose) => (Data::MarkPrefillCompleted, whose),
        Change::Free(whose) => (Data::Free, whose),
    };
    Envelope {
        model_name: record.partition.model_name.as_str().into(),
        routing_group: record.partition.routing_group.as_str().into(),
        block_size: record.block_size,
        exchange: matches!(data, Data::AddRequest { .. }) && record.held_by == HeldBy::Exchange,
        event: Sequence {
            request_id: record.id.as_str().into(),
            worker: Worker::of(record),
            data,
            router_id,
            lora_name: record.lora_name.as_deref().map(Cow::from),
        },
        seq: Some(event.seq),
        owner: match whose {
            Whose::Own => None,
            Whose::Of { origin, seq } => Some(Owner {
                router_id: origin,
                seq,
            }),
        },
    }
}

fn added(record: &Record) -> Data {
    let tracked = record.prefill_tokens > 0;
    Data::AddRequest {
        token_sequence: Hashes::of(record),
        track_prefill_tokens: tracked,
        expected_output_tokens: record.expected_output_tokens,
        prefill_load_hint: tracked.then_some(Hint {
            initial_effective_prefill_tokens: record.prefill_tokens,
            expected_prefill_duration: None,
        }),
    }
}

pub(super) fn heartbeat(router_id: u64, heartbeat: Heartbeat) -> Bytes {
    let message = PeerMessage::Heartbeat {
        router_id,
        seq: heartbeat.seq,
        reservations: heartbeat.reservations,
        digest: heartbeat.digest,
    };
    framed(PEERS, &message)
}

pub(super) fn piece(router_id: u64, piece: &Piece) -> Bytes {
    let message = PeerMessage::Snapshot {
        router_id,
        seq: piece.seq,
        after: piece.after,
        through: piece.through,
        last: piece.last,
        reservations: piece.reservations.iter().map(Listed::of).collect(),
    };
    framed(PEERS, &message)
}

pub(super) fn renewed(router_id: u64, ids: &[ReservationId]) -> Bytes {
    let message = PeerMessage::Renewed {
        router_id,
        request_ids: ids.iter().map(|id| id.as_str().into()).collect(),
    };
    framed(PEERS, &message)
}

fn framed(topic: &str, payload: &impl Serialize) -> Bytes {
    // Writing maps of plain values to memory cannot fail; an empty payload is refused by everybody.
    let payload = rmp_serde::to_vec_named(payload).unwrap_or_default();
    zmtp::message(topic.as_bytes(), &payload)
}

/// What the frames of one message say.
pub(super) fn read(frames: &[Bytes]) -> Result<Heard, WireError> {
    let [topic, payload] = frames else {
        return Err(WireError::Frames(frames.len()));
    };
    if topic == EVENTS.as_bytes() {
        let envelope: Envelope<'_> = rmp_serde::from_slice(payload)?;
        Ok(Heard::Event(happened(envelope)?))
    } else if topic == PEERS.as_bytes() {
        peer_message(rmp_serde::from_slice(payload)?)
    } else if topic == AFFINITY.as_bytes() {
        Ok(Heard::Affinity)
    } else {
        Err(WireError::Topic)
    }
}

fn happened(envelope: Envelope<'_>) -> Result<Happened, WireError> {
    let event = envelope.event;
    let id = id(&event.request_id)?;
    let worker = event.worker.into();
    let whose = match envelope.owner {
        None => Whose::Own,
        Some(owner) => Whose::Of {
            origin: owner.router_id,
            seq: owner.seq,
        },
    };
    let what = match event.data {
        Data::AddRequest {
            token_sequence,
            track_prefill_tokens,
            expected_output_tokens,
            prefill_load_hint,
        } => {
            let tokens = prefill_load_hint.map_or(0, |hint| hint.initial_effective_prefill_tokens);
            What::Add(Arc::new(Record {
                partition: partition(&envelope.model_name, &envelope.routing_group)?,
                block_size: envelope.block_size,
                id,
                worker,
                hashes: token_sequence.0.unwrap_or_default(),
                prefill_tokens: if track_prefill_tokens { tokens } else { 0 },
                expected_output_tokens,
                lora_name: event.lora_name.as_deref().map(name).transpose()?,
                held_by: held_by(envelope.exchange),
            }))
        }
        Data::Free => What::Free(Call { id, worker, whose }),
        Data::MarkPrefillCompleted => What::PrefillCompleted(Call { id, worker, whose }),
    };
    Ok(Happened {
        origin: event.router_id,
        seq: envelope.seq,
        what,
    })
}

fn peer_message(message: PeerMessage<'_>) -> Result<Heard, WireError> {
    Ok(match message {
        PeerMessage::Heartbeat {
            router_id,
            seq,
            reservations,
            digest,
        } => Heard::Heartbeat(
            router_id,
            Heartbeat {
                seq,
                reservations,
                digest,
            },
        ),
        PeerMessage::Snapshot {
            router_id,
            seq,
            after,
            through,
            last,
            reservations,
        } => {
            let told: Result<_, _> = reservations.into_iter().map(Listed::told).collect();
            Heard::Piece(
                router_id,
                Piece {
                    seq,
                    after,
                    through,
                    last,
                    reservations: told?,
                },
            )
        }
        PeerMessage::Renewed {
            router_id,
            request_ids,
        } => {
            let ids: Result<_, _> = request_ids.iter().map(|text| id(text)).collect();
            Heard::Renewed(router_id, ids?)
        }
    })
}

impl<'a> Listed<'a> {
    fn of(told: &'a Told) -> Self {
        let record = &*told.record;
        Self {
            seq: told.seq,
            model_name: record.partition.model_name.as_str().into(),
            routing_group: record.partition.routing_group.as_str().into(),
            block_size: record.block_size,
            request_id: record.id.as_str().into(),
            worker: Worker::of(record),
            token_sequence: Hashes::of(record),
            prefill_tokens: record.prefill_tokens,
            prefill_completed: told.prefill_completed,
            expected_output_tokens: record.expected_output_tokens,
            lora_name: record.lora_name.as_deref().map(Cow::from),
            exchange: record.held_by == HeldBy::Exchange,
            silent_ms: u64::try_from(told.silent.as_millis()).unwrap_or(u64::MAX),
        }
    }

    fn told(self) -> Result<Told, WireError> {
        Ok(Told {
            seq: self.seq,
            record: Arc::new(Record {
                partition: partition(&self.model_name, &self.routing_group)?,
                block_size: self.block_size,
                id: id(&self.request_id)?,
                worker: self.worker.into(),
                hashes: self.token_sequence.0.unwrap_or_default(),
                prefill_tokens: self.prefill_tokens,
                expected_output_tokens: self.expected_output_tokens,
                lora_name: self.lora_name.as_deref().map(name).transpose()?,
                held_by: held_by(self.exchange),
            }),
            prefill_completed: self.prefill_completed,
            silent: Duration::from_millis(self.silent_ms),
        })
    }
}

impl Worker {
    fn of(record: &Record) -> Self {
        Self {
            worker_id: record.worker.worker_id,
            dp_rank: record.worker.dp_rank,
        }
    }
}

impl From<Worker> for WorkerWithDpRank {
    fn from(worker: Worker) -> Self {
        Self::new(worker.worker_id, worker.dp_rank)
    }
}

fn held_by(exchange: bool) -> HeldBy {
    if exchange {
        HeldBy::Exchange
    } else {
        HeldBy::Id
    }
}

fn partition(model_name: &str, routing_group: &str) -> Result<PartitionId, WireError> {
    Ok(PartitionId::new(name(model_name)?, name(routing_group)?))
}

fn id(text: &str) -> Result<ReservationId, WireError> {
    Ok(ReservationId::from(name(text)?))
}

fn name(text: &str) -> Result<String, WireError> {
    if text.len() > MAX_NAME_BYTES {
        return Err(WireError::Name);
    }
    Ok(text.to_owned())
}

#[cfg(test)]
pub(in crate::replicas) mod tests;
