//! A few threads for what takes too long on the request path, and a bounded line for them.
//!
//! Never makes a caller wait past the deadline, and never takes on more than it can hold.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Semaphore, task, time};

use super::{Degraded, TokenizeConfig};

#[derive(Debug)]
pub(super) struct Offload {
    /// One for each thread, held until the work ends even if nobody waits for it any more.
    running: Arc<Semaphore>,
    /// One for each caller, working or waiting.
    admitted: Semaphore,
    deadline: Duration,
}

impl Offload {
    pub(super) fn new(config: &TokenizeConfig) -> Self {
        let threads = config.offload_threads.clamp(1, Semaphore::MAX_PERMITS / 2);
        let waiting = config.offload_waiting.min(Semaphore::MAX_PERMITS / 2);
        Self {
            running: Arc::new(Semaphore::new(threads)),
            admitted: Semaphore::new(threads + waiting),
            deadline: config.deadline,
        }
    }

    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Degraded> {
        let _place = self.admitted.try_acquire().map_err(|_| Degraded::Busy)?;
        let turn = async {
            let running = Arc::clone(&self.running).acquire_owned().await;
            let running = running.map_err(|_| Degraded::Busy)?;
            let done = task::spawn_blocking(move || {
                let _running = running;
                work()
            });
            done.await.map_err(|_| Degraded::Panicked)
        };
        match time::timeout(self.deadline, turn).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Degraded::Deadline),
        }
    }
}
