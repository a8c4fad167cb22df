//! The bytes of KV events: frames of a message, and the `MessagePack` batch inside.
//!
//! Sans-IO: bytes in, values out. A batch decodes whole or not at all; an event that is unknown,
//! filtered or misshapen is counted and leaves the others untouched. It knows no partition, keeps
//! no state between batches and never panics.

mod event;
mod extra_keys;
#[cfg(test)]
mod tests;

use std::mem;

use bytes::Bytes;
use pointsman_core::index::Tier;

use super::MAX_MESSAGE_BYTES;
use super::cursor::{Cursor, CursorError, Shape};
use super::skip::Skips;
use crate::zmtp::Received;

/// The number that a replay's end marker carries; no batch has it.
pub(super) const END_SEQUENCE: u64 = u64::MAX;

/// One numbered batch, still encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) sequence: u64,
    pub(super) payload: Bytes,
}

/// One message of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReplayFrame {
    Batch(Frame),
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("a message is over {MAX_MESSAGE_BYTES} bytes or has too many frames")]
    Oversized,
    #[error("a message has {found} frames, expected {wanted}")]
    Count { found: usize, wanted: &'static str },
    #[error("the sequence frame has {found} bytes, expected 8")]
    SequenceWidth { found: usize },
    #[error("the sequence number is the end marker's")]
    ReservedSequence,
}

/// What is wrong with a payload as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BatchError {
    #[error("not a batch: {0}")]
    Malformed(#[from] CursorError),
    #[error("a batch array has {found} elements, expected at least 2")]
    TooShort { found: u32 },
    #[error("a batch map has no events")]
    NoEvents,
}

/// A decoded batch: what may concern the index, and what was left out.
///
/// One value decodes batch after batch and keeps its buffers, so that in the long run nothing is
/// allocated for blocks.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) dp_rank: Option<u32>,
    pub(super) events: Vec<Event>,
    pub(super) skipped: Skips,
    spare: Spare,
}

/// Buffers of events that are done with.
#[derive(Debug, Default)]
struct Spare {
    hashes: Vec<Vec<u64>>,
    tokens: Vec<Vec<u32>>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    Stored(Stored),
    Removed(Removed),
    Cleared,
}

impl Event {
    /// Blocks that it stores or removes.
    pub(super) fn blocks(&self) -> &[u64] {
        match self {
            Self::Stored(stored) => &stored.engine_hashes,
            Self::Removed(removed) => &removed.engine_hashes,
            Self::Cleared => &[],
        }
    }

    /// Blocks that it adds.
    pub(super) fn added(&self) -> &[u64] {
        match self {
            Self::Stored(stored) => &stored.engine_hashes,
            Self::Removed(_) | Self::Cleared => &[],
        }
    }

    /// Blocks that it takes to be there.
    pub(super) fn known(&self) -> &[u64] {
        match self {
            Self::Stored(stored) => stored.parent.as_slice(),
            Self::Removed(removed) => &removed.engine_hashes,
            Self::Cleared => &[],
        }
    }
}

/// Stored blocks, as the engine names them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stored {
    pub(super) engine_hashes: Vec<u64>,
    pub(super) parent: Option<u64>,
    /// None where a lower tier holds what is known from another.
    pub(super) tokens: Vec<u32>,
    /// The tokens came as pairs: a block's window is one token longer than its stride.
    pub(super) bigram: bool,
    pub(super) block_size: u32,
    pub(super) lora_name: Option<Box<str>>,
    pub(super) cache_salt: Option<Box<str>>,
    /// Media hashes per block; shorter than the blocks where the rest has none.
    pub(super) media: Vec<Vec<u64>>,
    /// Only this many leading blocks have an identity that we can compute.
    pub(super) readable_blocks: usize,
    pub(super) tier: Tier,
    pub(super) group: Group,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Removed {
    pub(super) engine_hashes: Vec<u64>,
    /// Copies left of each block, where the engine counts them; otherwise empty.
    pub(super) remaining: Vec<Option<u32>>,
    pub(super) tier: Tier,
    pub(super) group: Group,
}

/// The cache group of a hybrid model; both absent in any other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) index: Option<u32>,
    pub(super) kind: Option<CacheKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheKind {
    /// Every earlier block matters to every later one: reusable as a prefix.
    FullAttention,
    Other,
}

/// The frames of a message that was kept.
pub(super) fn parts(received: Received) -> Result<Vec<Bytes>, FrameError> {
    match received {
        Received::Message(parts) => Ok(parts),
        Received::Oversized => Err(FrameError::Oversized),
    }
}

/// Reads a published message: topic, sequence number, payload.
pub(super) fn live_frame(parts: &[Bytes]) -> Result<Frame, FrameError> {
    let [_topic, sequence, payload] = parts else {
        return Err(FrameError::Count {
            found: parts.len(),
            wanted: "3",
        });
    };
    frame(sequence, payload)
}

/// Reads a replay's message as a DEALER receives it: an empty frame, perhaps a topic, then the
/// sequence number and the payload, which is empty at the end. The empty frame may be missing.
pub(super) fn replay_frame(parts: &[Bytes]) -> Result<ReplayFrame, FrameError> {
    let (sequence, payload) = match parts {
        [sequence, payload] | [_, sequence, payload] => (sequence, payload),
        [empty, _, sequence, payload] if empty.is_empty() => (sequence, payload),
        _ => {
            return Err(FrameError::Count {
                found: parts.len(),
                wanted: "an empty one and 2 or 3",
            });
        }
    };
    if payload.is_empty() {
        return Ok(ReplayFrame::End);
    }
    frame(sequence, payload).map(ReplayFrame::Batch)
}

fn frame(sequence: &Bytes, payload: &Bytes) -> Result<Frame, FrameError> {
    let digits: [u8; 8] = sequence
        .as_ref()
        .try_into()
        .map_err(|_| FrameError::SequenceWidth {
            found: sequence.len(),
        })?;
    let sequence = u64::from_be_bytes(digits);
    if sequence == END_SEQUENCE {
        return Err(FrameError::ReservedSequence);
    }
    Ok(Frame {
        sequence,
        payload: payload.clone(),
    })
}

impl Batch {
    /// Decodes a payload, `[timestamp, [event, ..], dp_rank, ..]` or a map with the same names, in
    /// place of what was decoded before. After an error there is nothing in it.
    pub(super) fn decode(&mut self, payload: &[u8]) -> Result<(), BatchError> {
        self.clear();
        let mut cursor = Cursor::new(payload);
        let decoded = match cursor.shape() {
            Ok(Shape::Map) => self.decode_map(&mut cursor),
            Ok(_) => self.decode_array(&mut cursor),
            Err(error) => Err(error.into()),
        };
        if decoded.is_err() {
            self.clear();
        }
        decoded
    }

    fn clear(&mut self) {
        self.dp_rank = None;
        self.skipped = Skips::default();
        for event in &mut self.events {
            self.spare.keep_of(event);
        }
        self.events.clear();
    }

    fn decode_array(&mut self, cursor: &mut Cursor<'_>) -> Result<(), BatchError> {
        let found = cursor.array()?;
        if found < 2 {
            return Err(BatchError::TooShort { found });
        }
        cursor.skip()?;
        self.decode_events(cursor)?;
        if found > 2 {
            self.dp_rank = decode_rank(cursor)?;
        }
        for _ in 3..found {
            cursor.skip()?;
            self.skipped.add_fields(1);
        }
        Ok(())
    }

    fn decode_map(&mut self, cursor: &mut Cursor<'_>) -> Result<(), BatchError> {
        let mut has_events = false;
        for _ in 0..cursor.map()? {
            match map_key(cursor)? {
                Some(MapKey::Events) => {
                    self.decode_events(cursor)?;
                    has_events = true;
                }
                Some(MapKey::Rank) => self.dp_rank = decode_rank(cursor)?,
                Some(MapKey::Time) => cursor.skip()?,
                None => {
                    cursor.skip()?;
                    self.skipped.add_fields(1);
                }
            }
        }
        if has_events {
            Ok(())
        } else {
            Err(BatchError::NoEvents)
        }
    }

    fn decode_events(&mut self, cursor: &mut Cursor<'_>) -> Result<(), CursorError> {
        for _ in 0..cursor.array()? {
            event::decode(cursor, &mut self.spare, &mut self.skipped, &mut self.events)?;
        }
        Ok(())
    }
}

impl Spare {
    /// Buffers that are kept, of each kind, and the largest one that is worth it.
    const MOST: usize = 256;
    const LARGEST: usize = 64 << 10;

    fn keep_of(&mut self, event: &mut Event) {
        match event {
            Event::Stored(stored) => {
                self.keep_hashes(mem::take(&mut stored.engine_hashes));
                self.keep_tokens(mem::take(&mut stored.tokens));
            }
            Event::Removed(removed) => self.keep_hashes(mem::take(&mut removed.engine_hashes)),
            Event::Cleared => {}
        }
    }

    fn keep_hashes(&mut self, mut buffer: Vec<u64>) {
        if buffer.capacity() <= Self::LARGEST && self.hashes.len() < Self::MOST {
            buffer.clear();
            self.hashes.push(buffer);
        }
    }

    fn keep_tokens(&mut self, mut buffer: Vec<u32>) {
        if buffer.capacity() <= Self::LARGEST && self.tokens.len() < Self::MOST {
            buffer.clear();
            self.tokens.push(buffer);
        }
    }
}

/// Decodes a payload alone.
#[cfg(test)]
pub(super) fn decode_batch(payload: &[u8]) -> Result<Batch, BatchError> {
    let mut batch = Batch::default();
    batch.decode(payload)?;
    Ok(batch)
}

/// The rank that a payload is for, without its events; none also where it does not say.
pub(super) fn rank_of(payload: &[u8]) -> Option<u32> {
    let mut cursor = Cursor::new(payload);
    if cursor.shape().ok()? == Shape::Map {
        for _ in 0..cursor.map().ok()? {
            match map_key(&mut cursor).ok()? {
                Some(MapKey::Rank) => return decode_rank(&mut cursor).ok()?,
                _ => cursor.skip().ok()?,
            }
        }
        return None;
    }
    if cursor.array().ok()? < 3 {
        return None;
    }
    cursor.skip().ok()?;
    cursor.skip().ok()?;
    decode_rank(&mut cursor).ok()?
}

enum MapKey {
    Events,
    Rank,
    Time,
}

/// Steps over the key of a pair; none where it is no key that matters.
fn map_key(cursor: &mut Cursor<'_>) -> Result<Option<MapKey>, CursorError> {
    if cursor.shape()? != Shape::Text {
        cursor.skip()?;
        return Ok(None);
    }
    Ok(match cursor.text()? {
        "events" => Some(MapKey::Events),
        "data_parallel_rank" | "attn_dp_rank" | "dp_rank" => Some(MapKey::Rank),
        "ts" | "timestamp" => Some(MapKey::Time),
        _ => None,
    })
}

fn decode_rank(cursor: &mut Cursor<'_>) -> Result<Option<u32>, CursorError> {
    if cursor.nil()? {
        return Ok(None);
    }
    cursor.u32().map(Some)
}
