//! Bodies on their way through: collected from pieces, sent in pieces, byte for byte.
//!
//! Nothing here waits, and nothing is copied that can be moved.

use bytes::Bytes;
use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingResponse;
use prometheus_client::metrics::gauge::Gauge;

use super::{
    message::{self, Chunk},
    protocol::REPLY_CHUNK_BYTES,
};

/// A request body being received.
pub(super) struct Upload {
    bytes: Vec<u8>,
    expected_bytes: usize,
    counted: Counted,
}

/// A whole request body.
pub(super) struct Body {
    bytes: Bytes,
    counted: Counted,
}

/// Bytes shown by the gauge for as long as this lives.
struct Counted {
    gauge: Gauge,
    bytes: i64,
}

/// The replies to one message, in the order in which Envoy wants them.
#[derive(Default)]
pub(super) struct Outbox {
    first: Option<ProcessingResponse>,
    body: Option<Outgoing>,
    request_trailers: bool,
}

/// What is left to send of a body.
struct Outgoing {
    rest: Bytes,
    end: bool,
    answer: fn(Chunk) -> ProcessingResponse,
    _counted: Option<Counted>,
}

/// A promise of much must not take memory before anything came.
const RESERVED_BYTES_MAX: usize = 1 << 20;

impl Upload {
    /// `expected_bytes` is what the client announced, zero if nothing.
    pub(super) fn new(expected_bytes: usize, gauge: Gauge) -> Self {
        Self {
            bytes: Vec::new(),
            expected_bytes,
            counted: Counted { gauge, bytes: 0 },
        }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn push(&mut self, piece: Vec<u8>) {
        self.counted.add(piece.len());
        if self.bytes.is_empty() {
            self.bytes = piece;
            return;
        }
        let missing = self.expected_bytes.saturating_sub(self.bytes.len());
        self.bytes
            .reserve(missing.min(RESERVED_BYTES_MAX).max(piece.len()));
        self.bytes.extend_from_slice(&piece);
    }

    pub(super) fn finish(self) -> Body {
        Body {
            bytes: self.bytes.into(),
            counted: self.counted,
        }
    }
}

impl Body {
    pub(super) fn bytes(&self) -> Bytes {
        self.bytes.clone()
    }
}

impl Outbox {
    pub(super) fn put(&mut self, reply: ProcessingResponse) {
        self.first = Some(reply);
    }

    /// `end` says that the last piece ends the request; otherwise trailers do.
    pub(super) fn put_request_body(&mut self, body: Body, end: bool) {
        if body.bytes.is_empty() && !end {
            return;
        }
        self.body = Some(Outgoing {
            rest: body.bytes,
            end,
            answer: message::request_body,
            _counted: Some(body.counted),
        });
    }

    pub(super) fn put_request_trailers(&mut self) {
        self.request_trailers = true;
    }

    pub(super) fn put_response_body(&mut self, chunk: Chunk) {
        if chunk.bytes.len() <= REPLY_CHUNK_BYTES {
            return self.put(message::response_body(chunk));
        }
        self.body = Some(Outgoing {
            rest: chunk.bytes.into(),
            end: chunk.end,
            answer: message::response_body,
            _counted: None,
        });
    }

    pub(super) fn next(&mut self) -> Option<ProcessingResponse> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        if let Some(outgoing) = &mut self.body {
            let (piece, last) = outgoing.next_piece();
            if last {
                self.body = None;
            }
            return Some(piece);
        }
        std::mem::take(&mut self.request_trailers).then(message::request_trailers)
    }
}

impl Outgoing {
    fn next_piece(&mut self) -> (ProcessingResponse, bool) {
        let last = self.rest.len() <= REPLY_CHUNK_BYTES;
        let bytes = if last {
            // No copy where nobody else holds the body any more.
            Vec::from(std::mem::take(&mut self.rest))
        } else {
            self.rest.split_to(REPLY_CHUNK_BYTES).to_vec()
        };
        let chunk = Chunk {
            bytes,
            end: last && self.end,
        };
        ((self.answer)(chunk), last)
    }
}

impl Counted {
    fn add(&mut self, bytes: usize) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.bytes = self.bytes.saturating_add(bytes);
        self.gauge.inc_by(bytes);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.gauge.dec_by(self.bytes);
    }
}
