//! One replay: a fresh DEALER asks an engine's ROUTER for all batches from a number on.
//!
//! It is bounded in time as a whole and between messages, and in what it holds by its channel. It
//! applies nothing; dropping it closes the socket.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use super::stream::ReplayEnd;
use super::wire::{self, Frame, ReplayFrame};
use super::{EventsConfig, MAX_MESSAGE_BYTES};
use crate::metrics::EventMetrics;
use crate::zmtp::{self, Connection, ConnectionError, Role};

/// Batches read ahead of the subscriber.
const READ_AHEAD: usize = 16;
/// Messages without sense that one replay may send before it is given up.
const MAX_BAD_MESSAGES: usize = 16;

#[derive(Debug)]
pub(super) struct Replay {
    replies: mpsc::Receiver<Reply>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug)]
pub(super) enum Reply {
    Frame(Frame),
    /// The last one.
    End(ReplayEnd),
}

#[derive(Debug, thiserror::Error)]
enum ReplayError {
    #[error("no answer within {0:?}")]
    Silent(Duration),
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("{MAX_BAD_MESSAGES} messages that are no replay")]
    Nonsense,
    #[error("the subscriber has gone")]
    Unwanted,
}

struct Exchange {
    endpoint: String,
    from: u64,
    answer_timeout: Duration,
    metrics: EventMetrics,
    replies: mpsc::Sender<Reply>,
}

impl Replay {
    pub(super) fn start(
        endpoint: String,
        from: u64,
        config: &EventsConfig,
        metrics: EventMetrics,
    ) -> Self {
        let (sender, replies) = mpsc::channel(READ_AHEAD);
        let whole = config.replay_timeout;
        let answer_timeout = config.replay_answer_timeout;
        let exchange = Exchange {
            endpoint,
            from,
            answer_timeout,
            metrics,
            replies: sender.clone(),
        };
        let task = tokio::spawn(async move {
            let outcome = timeout(whole, exchange.run()).await;
            let end = match outcome.unwrap_or(Err(ReplayError::Silent(whole))) {
                Ok(()) => ReplayEnd::Complete,
                Err(error) => {
                    debug!(%error, "kv event replay failed");
                    ReplayEnd::Failed
                }
            };
            // Nobody waits for the end of a replay that was replaced.
            let _unwanted = sender.send(Reply::End(end)).await;
        });
        Self {
            replies,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Safe to drop at any time.
    pub(super) async fn next(&mut self) -> Reply {
        self.replies
            .recv()
            .await
            .unwrap_or(Reply::End(ReplayEnd::Failed))
    }
}

impl Exchange {
    async fn run(self) -> Result<(), ReplayError> {
        let opening = Connection::open(&self.endpoint, Role::Dealer, MAX_MESSAGE_BYTES);
        let mut connection = self.in_time(opening).await?;
        let question = zmtp::message(b"", &self.from.to_be_bytes());
        self.in_time(connection.send(&question)).await?;
        let mut bad = 0;
        loop {
            let received = self.in_time(connection.next()).await?;
            match wire::parts(received).and_then(|parts| wire::replay_frame(&parts)) {
                Ok(ReplayFrame::Batch(frame)) => {
                    let sent = self.replies.send(Reply::Frame(frame)).await;
                    sent.map_err(|_| ReplayError::Unwanted)?;
                }
                Ok(ReplayFrame::End) => return Ok(()),
                Err(error) => {
                    debug!(%error, "kv event replay message dropped");
                    self.metrics.bad_frames.inc();
                    bad += 1;
                    if bad == MAX_BAD_MESSAGES {
                        return Err(ReplayError::Nonsense);
                    }
                }
            }
        }
    }

    async fn in_time<T>(
        &self,
        step: impl Future<Output = Result<T, ConnectionError>>,
    ) -> Result<T, ReplayError> {
        let limit = self.answer_timeout;
        Ok(timeout(limit, step)
            .await
            .map_err(|_| ReplayError::Silent(limit))??)
    }
}
