//! One exchange as a state machine: messages and facts go in, replies come out.
//!
//! It reads no socket and no clock; `replies` drives it. A message is taken only when all replies
//! to the one before have been taken, so that what waits to be sent is never more than one answer.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use envoy_types::pb::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use futures::FutureExt as _;
use tonic::{Code, Status};
use tracing::{debug, error, warn};

use super::{
    Held, Pick, Picked, ResponseHead, Shared, SubsetHint,
    body::{Body, Outbox, Upload},
    gate::Place,
    message::{self, Chunk, Part, RequestHead},
    metrics::Outcome,
    protocol::BodyModes,
};
use crate::{
    error::{Refusal, exchange as refusals},
    request::Head,
};

pub(super) struct Exchange<P: Pick> {
    shared: Arc<Shared<P>>,
    phase: Phase<P::Held>,
    outbox: Outbox,
    close: Option<Close>,
}

/// How the stream ends once all replies are out.
#[derive(Debug)]
pub(super) enum Close {
    Clean,
    Fault(Status),
}

enum Phase<H> {
    Opening,
    Uploading(Uploading),
    Picking(Picking<H>),
    Answering(Answering<H>),
    /// Nothing more will be answered.
    Over(Outcome),
}

struct Uploading {
    head: Head,
    minted_id: Option<String>,
    subset: Option<SubsetHint>,
    upload: Upload,
    place: Place,
}

struct Picking<H> {
    pick: PickFuture<H>,
    minted_id: Option<String>,
    body: Body,
    ending: Ending,
    place: Place,
}

type PickFuture<H> =
    Pin<Box<dyn Future<Output = std::thread::Result<Result<Picked<H>, Refusal>>> + Send>>;

/// From the answer that routed, or from a response that needed none.
struct Answering<H> {
    load: Option<Load<H>>,
    response_headers: Vec<(&'static str, String)>,
    ended: bool,
}

struct Load<H> {
    held: Option<H>,
    _place: Place,
}

/// What closed the request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Headers,
    Flag,
    Trailers,
}

impl<P: Pick> Exchange<P> {
    pub(super) fn new(shared: Arc<Shared<P>>) -> Self {
        Self {
            shared,
            phase: Phase::Opening,
            outbox: Outbox::default(),
            close: None,
        }
    }

    pub(super) fn next_reply(&mut self) -> Option<ProcessingResponse> {
        self.outbox.next()
    }

    /// Asked for once no reply is left.
    pub(super) fn take_close(&mut self) -> Option<Close> {
        self.close.take()
    }

    /// How long silence may last in this phase.
    pub(super) fn patience(&self) -> Option<Duration> {
        let limits = &self.shared.limits;
        match &self.phase {
            Phase::Opening | Phase::Uploading(_) => Some(limits.body_idle),
            Phase::Picking(_) => Some(limits.pick),
            Phase::Answering(answering) => {
                answering.load.is_some().then_some(limits.response_silence)
            }
            Phase::Over(_) => None,
        }
    }

    pub(super) fn on_message(&mut self, message: ProcessingRequest) {
        let incoming = message::read(message);
        if incoming.observing || matches!(self.phase, Phase::Over(_)) {
            return;
        }
        if matches!(self.phase, Phase::Opening)
            && let Some((which, mode)) = incoming.modes.and_then(BodyModes::fault)
        {
            return self.unserved(which, mode);
        }
        match incoming.part {
            Part::RequestHeaders { head, end, subset } => self.request_headers(head, end, subset),
            Part::RequestBody { chunk, subset } => self.request_body(chunk, subset),
            Part::RequestTrailers { subset } => self.request_trailers(subset),
            Part::ResponseHeaders { head, end } => self.response_headers(&head, end),
            Part::ResponseBody(chunk) => self.response_body(chunk),
            Part::ResponseTrailers => self.response_trailers(),
            Part::Unknown => {}
        }
    }

    /// True when the pick is done, one way or the other.
    pub(super) fn poll_pick(&mut self, cx: &mut Context<'_>) -> bool {
        let Phase::Picking(picking) = &mut self.phase else {
            return false;
        };
        let Poll::Ready(decision) = picking.pick.as_mut().poll(cx) else {
            return false;
        };
        match decision {
            Ok(Ok(picked)) => self.routed(picked),
            Ok(Err(refusal)) => self.refuse(&refusal),
            Err(_) => {
                self.shared.metrics.panics.inc();
                error!("the pick panicked, its request is refused");
                self.refuse(&refusals::internal());
            }
        }
        true
    }

    /// The stream ended: whatever the reason, nothing is held from here on.
    pub(super) fn on_end(&mut self) {
        self.close_with(Close::Clean);
    }

    /// The stream broke, or carried a message that cannot be taken.
    pub(super) fn on_error(&mut self, status: Status) {
        debug!(%status, "request stream failed");
        match (&self.phase, status.code()) {
            (Phase::Opening | Phase::Uploading(_), Code::OutOfRange) => {
                self.refuse(&refusals::body_too_large());
            }
            (Phase::Opening | Phase::Uploading(_), _) => self.refuse(&refusals::internal()),
            (Phase::Picking(_) | Phase::Over(_), _) => self.close_with(Close::Clean),
            // A clean close would pass the lost piece of the response off as its end.
            (Phase::Answering(_), _) => self.close_with(Close::Fault(status)),
        }
    }

    /// Nothing came for as long as `patience` said.
    pub(super) fn on_silence(&mut self) {
        match &mut self.phase {
            Phase::Opening => self.close_with(Close::Clean),
            Phase::Uploading(_) => self.refuse(&refusals::body_idle()),
            Phase::Picking(_) => self.refuse(&refusals::pick_overdue()),
            Phase::Answering(answering) => {
                answering.load = None;
                self.shared.metrics.silent.inc();
            }
            Phase::Over(_) => {}
        }
    }

    /// The server is closing. Only who still owes an answer must give one.
    pub(super) fn on_closing(&mut self) {
        match &self.phase {
            Phase::Uploading(_) | Phase::Picking(_) => self.refuse(&refusals::shutting_down()),
            Phase::Opening | Phase::Answering(_) | Phase::Over(_) => self.close_with(Close::Clean),
        }
    }

    fn request_headers(&mut self, head: RequestHead, end: bool, subset: Option<SubsetHint>) {
        if !matches!(self.phase, Phase::Opening) {
            return;
        }
        let Some(place) = self.shared.in_flight.enter() else {
            return self.refuse(&refusals::too_many_exchanges());
        };
        let RequestHead { head, minted_id } = head;
        let length = content_length(&head);
        if length > self.shared.limits.body_bytes {
            return self.refuse(&refusals::body_too_large());
        }
        let uploading = Uploading {
            head,
            minted_id,
            subset,
            upload: Upload::new(length, self.shared.metrics.body_bytes.clone()),
            place,
        };
        if end {
            self.start_pick(uploading, Ending::Headers);
        } else {
            self.phase = Phase::Uploading(uploading);
        }
    }

    fn request_body(&mut self, chunk: Chunk, subset: Option<SubsetHint>) {
        let uploading = match &mut self.phase {
            Phase::Uploading(uploading) => uploading,
            Phase::Opening => return self.unserved("request_header_mode", "SKIP"),
            // After the end: some versions of Envoy send the last piece twice.
            Phase::Picking(_) | Phase::Answering(_) | Phase::Over(_) => return,
        };
        uploading.hint(subset);
        if uploading.upload.len() + chunk.bytes.len() > self.shared.limits.body_bytes {
            return self.refuse(&refusals::body_too_large());
        }
        uploading.upload.push(chunk.bytes);
        if chunk.end {
            self.upload_ended(Ending::Flag);
        }
    }

    fn request_trailers(&mut self, subset: Option<SubsetHint>) {
        match &mut self.phase {
            Phase::Uploading(uploading) => {
                uploading.hint(subset);
                self.upload_ended(Ending::Trailers);
            }
            Phase::Opening => self.unserved("request_header_mode", "SKIP"),
            Phase::Picking(_) | Phase::Answering(_) | Phase::Over(_) => {}
        }
    }

    fn upload_ended(&mut self, ending: Ending) {
        match std::mem::replace(&mut self.phase, Phase::Opening) {
            Phase::Uploading(uploading) => self.start_pick(uploading, ending),
            other => self.phase = other,
        }
    }

    fn start_pick(&mut self, uploading: Uploading, ending: Ending) {
        let body = uploading.upload.finish();
        let shared = Arc::clone(&self.shared);
        let (head, bytes) = (uploading.head, body.bytes());
        let subset = uploading.subset.unwrap_or_default();
        let pick = async move { shared.pick.pick(head, bytes, subset).await };
        self.phase = Phase::Picking(Picking {
            pick: Box::pin(AssertUnwindSafe(pick).catch_unwind()),
            minted_id: uploading.minted_id,
            body,
            ending,
            place: uploading.place,
        });
    }

    fn routed(&mut self, picked: Picked<P::Held>) {
        let load = |place| Load {
            held: picked.held,
            _place: place,
        };
        let answering = |load| Answering {
            load: Some(load),
            response_headers: picked.response_headers,
            ended: false,
        };
        match std::mem::replace(&mut self.phase, Phase::Opening) {
            Phase::Picking(picking) => {
                // The pick's own handle on the body goes first, so that it is sent without a copy.
                drop(picking.pick);
                self.outbox.put(message::routed(
                    picked.endpoint,
                    picking.minted_id,
                    picked.request_headers,
                ));
                match picking.ending {
                    Ending::Headers => {}
                    Ending::Flag => self.outbox.put_request_body(picking.body, true),
                    Ending::Trailers => {
                        self.outbox.put_request_body(picking.body, false);
                        self.outbox.put_request_trailers();
                    }
                }
                self.phase = Phase::Answering(answering(load(picking.place)));
            }
            other => self.phase = other,
        }
    }

    fn response_headers(&mut self, head: &ResponseHead, end: bool) {
        let answering = self.answering();
        let added = std::mem::take(&mut answering.response_headers);
        self.with_held(|held| held.response_headers(head));
        if end {
            self.response_ended();
        }
        self.outbox.put(message::response_headers(added));
    }

    fn response_body(&mut self, chunk: Chunk) {
        if self.answering().ended {
            return;
        }
        self.with_held(|held| held.response_body(&chunk.bytes, chunk.end));
        if chunk.end {
            self.response_ended();
        }
        self.outbox.put_response_body(chunk);
    }

    fn response_trailers(&mut self) {
        if self.answering().ended {
            return;
        }
        self.response_ended();
        self.outbox.put(message::response_trailers());
    }

    /// The response phase, entered now if Envoy answers by itself before there was a decision.
    fn answering(&mut self) -> &mut Answering<P::Held> {
        if !matches!(self.phase, Phase::Answering(_)) {
            self.phase = Phase::Answering(Answering {
                load: None,
                response_headers: Vec::new(),
                ended: false,
            });
        }
        match &mut self.phase {
            Phase::Answering(answering) => answering,
            _ => unreachable!("the phase was set above"),
        }
    }

    fn response_ended(&mut self) {
        let answering = self.answering();
        answering.ended = true;
        answering.load = None;
    }

    /// A panic there costs the counting of this response, not the response.
    fn with_held(&mut self, count: impl FnOnce(&mut P::Held)) {
        let Phase::Answering(Answering {
            load: Some(load), ..
        }) = &mut self.phase
        else {
            return;
        };
        let counted = catch_unwind(AssertUnwindSafe(|| {
            if let Some(held) = &mut load.held {
                count(held);
            }
        }));
        if counted.is_err() {
            let held = load.held.take();
            // A second panic, from what the first left behind, has nothing more to tell.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(held)));
            self.shared.metrics.panics.inc();
            error!("counting a response panicked, its load is freed");
        }
    }

    fn refuse(&mut self, refusal: &Refusal) {
        self.shared.metrics.refused(refusal.code);
        self.phase = Phase::Over(Outcome::Refused);
        self.outbox.put(message::refused(refusal));
        self.close = Some(Close::Clean);
    }

    fn unserved(&mut self, which: &'static str, mode: &'static str) {
        if self.shared.warned_of_mode.swap(true, Ordering::Relaxed) {
            debug!(which, mode, "the filter's processing mode cannot be served");
        } else {
            warn!(which, mode, "the filter's processing mode cannot be served");
        }
        self.phase = Phase::Over(Outcome::Unserved);
        self.close = Some(Close::Fault(Status::failed_precondition(format!(
            "{which} {mode} is not served, use FULL_DUPLEX_STREAMED bodies and sent headers"
        ))));
    }

    fn close_with(&mut self, close: Close) {
        if let Some(outcome) = self.outcome() {
            self.phase = Phase::Over(outcome);
        }
        self.close = Some(close);
    }

    fn outcome(&self) -> Option<Outcome> {
        match &self.phase {
            Phase::Opening => None,
            Phase::Uploading(_) | Phase::Picking(_) => Some(Outcome::Cancelled),
            Phase::Answering(answering) if answering.ended => Some(Outcome::Completed),
            Phase::Answering(_) => Some(Outcome::Ended),
            Phase::Over(outcome) => Some(*outcome),
        }
    }
}

impl<P: Pick> Drop for Exchange<P> {
    fn drop(&mut self) {
        if let Some(outcome) = self.outcome() {
            self.shared.metrics.ended(outcome);
        }
    }
}

impl Uploading {
    /// The first hint counts, whichever message of the request brings it.
    fn hint(&mut self, subset: Option<SubsetHint>) {
        if self.subset.is_none() {
            self.subset = subset;
        }
    }
}

/// What the client announces; zero where it does not, or not readably.
fn content_length(head: &Head) -> usize {
    head.header("content-length")
        .and_then(|length| length.parse().ok())
        .unwrap_or(0)
}
