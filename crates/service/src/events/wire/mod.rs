//! The bytes of KV events: frames of a message, and the `MessagePack` batch inside.
//!
//! Sans-IO: bytes in, values out. A batch decodes whole or not at all; an event that is unknown,
//! filtered or misshapen is counted and leaves the others untouched. It knows no partition, keeps
//! no state between batches and never panics.

mod event;
mod extra_keys;
#[cfg(test)]
mod tests;

use bytes::Bytes;

use super::cursor::{Cursor, CursorError, Shape};
use super::skip::Skips;

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
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Batch {
    pub(super) dp_rank: Option<u32>,
    pub(super) events: Vec<Event>,
    pub(super) skipped: Skips,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    Stored(Stored),
    Removed(Removed),
    Cleared,
}

/// Blocks stored in device memory, as the engine names them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stored {
    pub(super) engine_hashes: Vec<u64>,
    pub(super) parent: Option<u64>,
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
    pub(super) group: Group,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Removed {
    pub(super) engine_hashes: Vec<u64>,
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
/// sequence number and the payload, which is empty at the end.
pub(super) fn replay_frame(parts: &[Bytes]) -> Result<ReplayFrame, FrameError> {
    let (sequence, payload) = match parts {
        [empty, sequence, payload] | [empty, _, sequence, payload] if empty.is_empty() => {
            (sequence, payload)
        }
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

/// Decodes a payload: `[timestamp, [event, ..], dp_rank, ..]`, or a map with the same names.
pub(super) fn decode_batch(payload: &[u8]) -> Result<Batch, BatchError> {
    let mut cursor = Cursor::new(payload);
    let mut batch = Batch::default();
    match cursor.shape()? {
        Shape::Map => decode_map(&mut cursor, &mut batch)?,
        _ => decode_array(&mut cursor, &mut batch)?,
    }
    Ok(batch)
}

fn decode_array(cursor: &mut Cursor<'_>, batch: &mut Batch) -> Result<(), BatchError> {
    let found = cursor.array()?;
    if found < 2 {
        return Err(BatchError::TooShort { found });
    }
    cursor.skip()?;
    decode_events(cursor, batch)?;
    if found > 2 {
        batch.dp_rank = decode_rank(cursor)?;
    }
    for _ in 3..found {
        cursor.skip()?;
    }
    Ok(())
}

fn decode_map(cursor: &mut Cursor<'_>, batch: &mut Batch) -> Result<(), BatchError> {
    let mut has_events = false;
    for _ in 0..cursor.map()? {
        if cursor.shape()? != Shape::Text {
            cursor.skip()?;
            cursor.skip()?;
            continue;
        }
        match cursor.text()? {
            "events" => {
                decode_events(cursor, batch)?;
                has_events = true;
            }
            "data_parallel_rank" | "attn_dp_rank" | "dp_rank" => {
                batch.dp_rank = decode_rank(cursor)?;
            }
            _ => cursor.skip()?,
        }
    }
    if has_events {
        Ok(())
    } else {
        Err(BatchError::NoEvents)
    }
}

fn decode_events(cursor: &mut Cursor<'_>, batch: &mut Batch) -> Result<(), CursorError> {
    for _ in 0..cursor.array()? {
        batch
            .events
            .extend(event::decode(cursor, &mut batch.skipped)?);
    }
    Ok(())
}

fn decode_rank(cursor: &mut Cursor<'_>) -> Result<Option<u32>, CursorError> {
    if cursor.nil()? {
        return Ok(None);
    }
    cursor.u32().map(Some)
}
