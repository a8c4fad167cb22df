//! KV events from engines: subscribers that keep the index equal to what each rank holds.
//!
//! The layers, each blind to the next: bytes (`cursor`, `wire`), order (`stream`), meaning
//! (`ingest`), sockets (`subscriber`, `replay`, over `zmtp`). No layer chooses workers.

mod contents;
mod cursor;
mod ingest;
mod progress;
mod replay;
#[cfg(test)]
mod sample;
mod skip;
mod stream;
mod subscriber;
mod supervise;
mod wire;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use pointsman_core::Partition;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::metrics::EventMetrics;
use crate::recovery::Recovery;
use crate::workers::EventSource;

pub use contents::{PayloadContents, PayloadReader, UnreadablePayload};
pub(crate) use progress::RankProgress;
pub(crate) use skip::SkipReason;
pub(crate) use stream::ClearCause;

/// Longest message of an engine that is kept, live or replayed.
const MAX_MESSAGE_BYTES: usize = 32 << 20;

/// Waits and bounds of event subscribers.
#[derive(Clone, Debug)]
pub struct EventsConfig {
    /// One attempt to connect.
    pub connect_timeout: Duration,
    /// Pause before the first reconnect; doubled for each failure in a row, up to the maximum.
    pub reconnect_min: Duration,
    pub reconnect_max: Duration,
    /// A stream that says nothing for this long is reconnected, if a replay can prove that nothing
    /// was missed.
    pub silence: Duration,
    /// The wait for each message of a replay.
    pub replay_answer_timeout: Duration,
    /// A whole replay.
    pub replay_timeout: Duration,
    /// Pause before a failed replay is tried again; doubled up to the maximum.
    pub replay_retry_min: Duration,
    pub replay_retry_max: Duration,
    /// How long blocks that may be stale are believed before they are cleared.
    pub suspect_time: Duration,
    /// Live batches that wait behind a replay; beyond it the socket is left unread.
    pub held_batches: usize,
    pub held_bytes: usize,
}

impl Default for EventsConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            reconnect_min: Duration::from_millis(100),
            reconnect_max: Duration::from_secs(5),
            silence: Duration::from_mins(5),
            replay_answer_timeout: Duration::from_secs(2),
            replay_timeout: Duration::from_secs(30),
            replay_retry_min: Duration::from_secs(1),
            replay_retry_max: Duration::from_secs(30),
            suspect_time: Duration::from_mins(1),
            held_batches: 4096,
            held_bytes: 32 << 20,
        }
    }
}

impl EventsConfig {
    /// No wait is so short that a loop would spin, or so long that a clock could not hold it.
    fn bounded(mut self) -> Self {
        const DAY: Duration = Duration::from_hours(24);
        for wait in [
            &mut self.connect_timeout,
            &mut self.reconnect_min,
            &mut self.reconnect_max,
            &mut self.silence,
            &mut self.replay_answer_timeout,
            &mut self.replay_timeout,
            &mut self.replay_retry_min,
            &mut self.replay_retry_max,
            &mut self.suspect_time,
        ] {
            *wait = (*wait).clamp(Duration::from_millis(1), DAY);
        }
        self.held_batches = self.held_batches.max(1);
        self.held_bytes = self.held_bytes.max(1);
        self
    }
}

/// The rank whose events are wanted, and where they go.
#[derive(Clone, Debug)]
pub(crate) struct RankStream {
    pub(crate) partition: Arc<Partition>,
    pub(crate) worker_id: u64,
    pub(crate) dp_rank: u32,
    pub(crate) worker_ranks: Range<u32>,
    pub(crate) source: EventSource,
}

/// Starts subscribers; all of them stop with it.
#[derive(Debug)]
pub(crate) struct Subscribers {
    runtime: Handle,
    config: Arc<EventsConfig>,
    metrics: EventMetrics,
    recovery: Arc<Recovery>,
    stop: CancellationToken,
}

/// A running subscriber. Dropping it stops the task.
#[derive(Debug)]
pub(crate) struct Subscription {
    source: EventSource,
    progress: Arc<RankProgress>,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Subscribers {
    pub(crate) fn new(
        runtime: Handle,
        config: EventsConfig,
        metrics: EventMetrics,
        recovery: Arc<Recovery>,
    ) -> Self {
        Self {
            runtime,
            config: Arc::new(config.bounded()),
            metrics,
            recovery,
            stop: CancellationToken::new(),
        }
    }

    /// Starts a subscriber. It waits for `predecessor`, the one it replaces, which forgets what it
    /// said before it ends.
    pub(crate) fn start(
        &self,
        stream: RankStream,
        predecessor: Option<JoinHandle<()>>,
    ) -> Subscription {
        let stop = self.stop.child_token();
        let progress = Arc::new(RankProgress::default());
        let source = stream.source.clone();
        let supervised = supervise::Supervised {
            stream,
            config: Arc::clone(&self.config),
            progress: Arc::clone(&progress),
            metrics: self.metrics.clone(),
            recovery: Arc::clone(&self.recovery),
        };
        let token = stop.clone();
        let task = self.runtime.spawn(async move {
            if let Some(predecessor) = predecessor {
                // It was told to stop before this one was started; how it ended does not matter.
                let _ended = predecessor.await;
            }
            supervised.run(token).await;
        });
        Subscription {
            source,
            progress,
            stop,
            task: Some(task),
        }
    }

    pub(crate) fn stop_all(&self) {
        self.stop.cancel();
    }
}

impl Drop for Subscribers {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Subscription {
    pub(crate) fn source(&self) -> &EventSource {
        &self.source
    }

    pub(crate) fn progress(&self) -> &Arc<RankProgress> {
        &self.progress
    }

    /// Tells the task to stop and hands it over, to be awaited.
    pub(crate) fn retire(mut self) -> Option<JoinHandle<()>> {
        self.stop.cancel();
        self.task.take()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
