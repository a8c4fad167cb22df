//! Counts exchanges in flight and bounds them.
//!
//! It never waits for room: who finds none is refused.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Notify;

/// The exchanges in flight, of all listeners together.
#[derive(Clone, Debug)]
pub struct InFlight {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    count: AtomicUsize,
    limit: usize,
    gauge: Gauge,
    emptied: Notify,
}

/// One exchange's place; dropping it makes room.
#[derive(Debug)]
pub(super) struct Place {
    state: Arc<State>,
}

impl InFlight {
    pub(super) fn new(limit: usize, gauge: Gauge) -> Self {
        Self {
            state: Arc::new(State {
                count: AtomicUsize::new(0),
                limit,
                gauge,
                emptied: Notify::new(),
            }),
        }
    }

    pub fn count(&self) -> usize {
        self.state.count.load(Ordering::SeqCst)
    }

    /// Waits until no exchange is in flight.
    pub async fn emptied(&self) {
        loop {
            let emptied = self.state.emptied.notified();
            if self.count() == 0 {
                return;
            }
            emptied.await;
        }
    }

    pub(super) fn enter(&self) -> Option<Place> {
        self.state
            .count
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
                (count < self.state.limit).then_some(count + 1)
            })
            .ok()?; // the count as it was; full is all there is to know
        self.state.gauge.inc();
        Some(Place {
            state: Arc::clone(&self.state),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.state.gauge.dec();
        if self.state.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.state.emptied.notify_waiters();
        }
    }
}
