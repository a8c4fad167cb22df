//! Keeps one event stream alive: a task that panics is begun anew, with back-off and an empty rank.
//!
//! It knows what a stream is made of and nothing of what it does. A panic stays in its own stream.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::progress::RankProgress;
use super::stream::ClearCause;
use super::subscriber::Subscriber;
use super::{EventsConfig, RankStream};
use crate::metrics::EventMetrics;
use crate::recovery::Recovery;

/// What a stream is begun with, again and again if need be.
pub(super) struct Supervised {
    pub(super) stream: RankStream,
    pub(super) config: Arc<EventsConfig>,
    pub(super) progress: Arc<RankProgress>,
    pub(super) metrics: EventMetrics,
    pub(super) recovery: Arc<Recovery>,
}

impl Supervised {
    /// Runs the stream until `stop`; then what it said is forgotten.
    pub(super) async fn run(self, stop: CancellationToken) {
        let mut back_off = BackOff::new(self.config.reconnect_min, self.config.reconnect_max);
        loop {
            let mut subscriber = Subscriber::new(
                self.stream.clone(),
                Arc::clone(&self.config),
                Arc::clone(&self.progress),
                self.metrics.clone(),
                Arc::clone(&self.recovery),
            );
            if runs_to_its_stop(subscriber.run(), &stop).await {
                subscriber.leave();
                return;
            }
            self.metrics.failures.inc();
            let (worker_id, dp_rank) = (self.stream.worker_id, self.stream.dp_rank);
            error!(
                worker_id,
                dp_rank, "kv event stream panicked, beginning anew"
            );
            subscriber.clear(ClearCause::Failure);
            drop(subscriber);
            if stop
                .run_until_cancelled(sleep(back_off.pause()))
                .await
                .is_none()
            {
                return;
            }
        }
    }
}

/// True where `stop` ended it, false where it panicked or ended by itself.
async fn runs_to_its_stop(run: impl Future<Output = ()>, stop: &CancellationToken) -> bool {
    // What the task was working on is thrown away after a panic, so no half-done state is seen.
    let caught = AssertUnwindSafe(run).catch_unwind();
    stop.run_until_cancelled(caught).await.is_none()
}

/// Pauses that grow from failure to failure.
pub(super) struct BackOff {
    next: Duration,
    min: Duration,
    max: Duration,
}

impl BackOff {
    pub(super) fn new(min: Duration, max: Duration) -> Self {
        Self {
            next: min,
            min,
            max,
        }
    }

    pub(super) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.max);
        pause
    }

    pub(super) fn reset(&mut self) {
        self.next = self.min;
    }
}

#[cfg(test)]
mod tests;
