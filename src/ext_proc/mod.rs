//! Envoy's external processing protocol: one stream carries one exchange, and a pick decides it.
//!
//! It has no opinion on where a request goes, and it never looks into a body.

mod body;
mod exchange;
mod gate;
mod message;
mod metrics;
mod protocol;
mod replies;
#[cfg(test)]
mod tests;

use std::{
    future::Future,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use bytes::Bytes;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    ProcessingRequest,
    external_processor_server::{ExternalProcessor, ExternalProcessorServer},
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::{error::Refusal, request::Head};

pub use gate::InFlight;
pub use metrics::Metrics;
pub use protocol::{AllowedEndpoint, SubsetHint};
pub use replies::Replies;

/// Decides where a request goes.
pub trait Pick: Send + Sync + 'static {
    type Held: Held;

    /// Dropped before it is done when the client goes away. An empty body is a request without one.
    fn pick(
        &self,
        head: Head,
        body: Bytes,
        subset: SubsetHint,
    ) -> impl Future<Output = Result<Picked<Self::Held>, Refusal>> + Send;
}

/// What a pick holds until the response ends. Dropped at any end, proven or not.
pub trait Held: Send + 'static {
    fn response_headers(&mut self, head: &ResponseHead);
    fn response_body(&mut self, chunk: &[u8], end: bool);
}

/// A decision, and what it holds.
#[derive(Debug)]
pub struct Picked<H> {
    /// `ip:port`, IPv6 in brackets.
    pub endpoint: String,
    /// Headers to set on the request, in lower case; a client's own are overwritten.
    pub request_headers: Vec<(&'static str, String)>,
    /// Headers to add to the response, in lower case.
    pub response_headers: Vec<(&'static str, String)>,
    pub held: Option<H>,
}

/// What a response's first message says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseHead {
    pub status: Option<u16>,
    pub content_type: Option<String>,
    /// The endpoint that served, where the data plane reports it.
    pub served: Option<String>,
}

/// Bounds on what one exchange, and all of them, may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub body_bytes: usize,
    /// Silence while a request body is awaited.
    pub body_idle: Duration,
    /// Longest wait for a pick: a safety net above the waits that a pick itself bounds.
    pub pick: Duration,
    pub exchanges: usize,
    /// Silence after the request phase until the load is freed.
    pub response_silence: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 32 << 20,
            body_idle: Duration::from_mins(1),
            pick: Duration::from_mins(1),
            exchanges: 1_024,
            response_silence: Duration::from_mins(30),
        }
    }
}

/// Largest message taken from Envoy. One body message can be as large as its buffer limit.
const MESSAGE_BYTES: usize = 64 << 20;

/// What all exchanges of one server share.
pub(crate) struct Shared<P> {
    pick: P,
    limits: Limits,
    metrics: Metrics,
    in_flight: InFlight,
    /// A misconfigured filter is told of once, not once per request.
    warned_of_mode: AtomicBool,
    /// Cancelled when exchanges that owe no answer shall end.
    closing: CancellationToken,
}

/// The gRPC service. Cheap to clone: clones share everything.
pub struct Server<P> {
    shared: Arc<Shared<P>>,
}

impl<P: Pick> Server<P> {
    pub fn new(pick: P, limits: Limits, metrics: Metrics) -> Self {
        let in_flight = InFlight::new(limits.exchanges, metrics.in_flight.clone());
        let shared = Shared {
            pick,
            limits,
            metrics,
            in_flight,
            warned_of_mode: AtomicBool::new(false),
            closing: CancellationToken::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    pub fn into_service(self) -> ExternalProcessorServer<Self> {
        ExternalProcessorServer::new(self)
            .max_decoding_message_size(MESSAGE_BYTES)
            .max_encoding_message_size(MESSAGE_BYTES)
    }

    /// The exchanges that hold or may come to hold load.
    pub fn in_flight(&self) -> &InFlight {
        &self.shared.in_flight
    }

    /// Cancelling it ends every exchange: those that owe an answer are refused, the others close
    /// cleanly, and new ones are turned away.
    pub fn closing(&self) -> &CancellationToken {
        &self.shared.closing
    }
}

impl<P> Clone for Server<P> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<P> std::fmt::Debug for Server<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("limits", &self.shared.limits)
            .finish_non_exhaustive()
    }
}

#[tonic::async_trait]
impl<P: Pick> ExternalProcessor for Server<P> {
    type ProcessStream = Replies<P, Streaming<ProcessingRequest>>;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        if self.shared.closing.is_cancelled() {
            return Err(Status::unavailable("the service is shutting down"));
        }
        Ok(Response::new(Replies::new(
            Arc::clone(&self.shared),
            request.into_inner(),
        )))
    }
}
