//! The response stream: drives one exchange in line, from the task that already serves its stream.
//!
//! It spawns nothing and queues nothing.

use std::{
    future::Future as _,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use envoy_types::pb::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use futures::Stream;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::Status;

use super::{
    Pick, Shared,
    exchange::{Close, Exchange},
};

/// The replies to one stream of messages.
pub struct Replies<P: Pick, S> {
    messages: S,
    exchange: Exchange<P>,
    silent_since: Instant,
    alarm: Option<Pin<Box<Sleep>>>,
    closing: Pin<Box<WaitForCancellationFutureOwned>>,
    done: bool,
}

impl<P, S> Replies<P, S>
where
    P: Pick,
    S: Stream<Item = Result<ProcessingRequest, Status>> + Unpin,
{
    pub(super) fn new(shared: Arc<Shared<P>>, messages: S) -> Self {
        let closing = Box::pin(shared.closing.clone().cancelled_owned());
        Self {
            messages,
            exchange: Exchange::new(shared),
            silent_since: Instant::now(),
            alarm: None,
            closing,
            done: false,
        }
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> bool {
        let Poll::Ready(message) = Pin::new(&mut self.messages).poll_next(cx) else {
            return false;
        };
        self.silent_since = Instant::now();
        match message {
            Some(Ok(message)) => self.exchange.on_message(message),
            Some(Err(status)) => self.exchange.on_error(status),
            None => self.exchange.on_end(),
        }
        true
    }

    fn poll_pick(&mut self, cx: &mut Context<'_>) -> bool {
        let done = self.exchange.poll_pick(cx);
        if done {
            self.silent_since = Instant::now();
        }
        done
    }

    fn poll_closing(&mut self, cx: &mut Context<'_>) -> bool {
        let closing = self.closing.as_mut().poll(cx).is_ready();
        if closing {
            self.exchange.on_closing();
        }
        closing
    }

    /// The alarm is set anew only when it rings too early, not at each message.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(patience) = self.exchange.patience() else {
            return false;
        };
        let deadline = self.silent_since + patience;
        let alarm = self
            .alarm
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if alarm.deadline() > deadline {
            alarm.as_mut().reset(deadline);
        }
        while alarm.as_mut().poll(cx).is_ready() {
            if Instant::now() >= deadline {
                self.alarm = None;
                self.exchange.on_silence();
                return true;
            }
            alarm.as_mut().reset(deadline);
        }
        false
    }
}

/// Nothing in it is pinned in place: what must be is boxed.
impl<P: Pick, S> Unpin for Replies<P, S> {}

impl<P, S> Stream for Replies<P, S>
where
    P: Pick,
    S: Stream<Item = Result<ProcessingRequest, Status>> + Unpin,
{
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(reply) = this.exchange.next_reply() {
                return Poll::Ready(Some(Ok(reply)));
            }
            if this.done {
                return Poll::Ready(None);
            }
            if let Some(close) = this.exchange.take_close() {
                this.done = true;
                match close {
                    Close::Clean => return Poll::Ready(None),
                    Close::Fault(status) => return Poll::Ready(Some(Err(status))),
                }
            }
            // Messages come first: the end of the stream cancels a pick that is just done.
            let progressed = this.poll_message(cx)
                || this.poll_pick(cx)
                || this.poll_closing(cx)
                || this.poll_silence(cx);
            if !progressed {
                return Poll::Pending;
            }
        }
    }
}

impl<P: Pick, S> std::fmt::Debug for Replies<P, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replies").finish_non_exhaustive()
    }
}
