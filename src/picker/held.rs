//! The load of one request while its response passes: moved, lowered and grown as that shows.
//!
//! It never frees by itself: dropping it does.

use std::net::SocketAddr;

use pointsman_plugin::WorkerWithDpRank;
use pointsman_service::{CachePrediction, CacheReport, Reservation, Reserved, SelectionService};
use tracing::debug;

use super::Metrics;
use crate::{
    ext_proc::{Held, ResponseHead},
    response::{BodyCounter, ResponseProgress, Usage},
};

/// A reservation and what its response has shown so far.
#[derive(Debug)]
pub struct Charge {
    reservation: Reservation,
    picked: SocketAddr,
    service: SelectionService,
    metrics: Metrics,
    predicted_cached_tokens: u64,
    /// Gone where another rank served than the one that was selected.
    prediction: Option<CachePrediction>,
    block_size: u64,
    counter: BodyCounter,
    blocks: u64,
    prefill: Prefill,
    usage: Option<Usage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prefill {
    Running,
    Done,
}

impl Charge {
    pub(super) fn new(
        reserved: Reserved,
        picked: SocketAddr,
        service: SelectionService,
        metrics: Metrics,
    ) -> Self {
        let selection = &reserved.selected.selection;
        Self {
            predicted_cached_tokens: selection.predicted_cached_tokens,
            prediction: Some(reserved.selected.prediction),
            block_size: u64::from(selection.block_size).max(1),
            reservation: reserved.reservation,
            picked,
            service,
            metrics,
            counter: BodyCounter::new(None),
            blocks: 0,
            prefill: Prefill::Running,
            usage: None,
        }
    }

    fn served_by(&mut self, served: &str) {
        if served.parse() == Ok(self.picked) {
            return;
        }
        self.metrics.mismatches.inc();
        self.prediction = None;
        let worker = self.service.endpoints().worker_at(served);
        let record = worker.and_then(|worker_id| self.service.worker(worker_id));
        // Which of its ranks served, nobody tells: the first stands for the worker.
        let moved = record.is_some_and(|record| {
            let rank = record.registration.first_rank();
            let worker = WorkerWithDpRank::new(record.worker_id(), rank);
            self.reservation.move_to(worker)
        });
        debug!(served, picked = %self.picked, moved, "another endpoint served");
    }

    fn progressed(&mut self, progress: ResponseProgress) {
        let blocks = progress.output_tokens_seen / self.block_size;
        while self.blocks < blocks {
            self.reservation.output_block(None);
            self.blocks += 1;
        }
        self.usage = progress.usage.or(self.usage);
    }
}

impl Held for Charge {
    fn response_headers(&mut self, head: &ResponseHead) {
        self.counter = BodyCounter::new(head.content_type.as_deref());
        if let Some(served) = &head.served {
            self.served_by(served);
        }
    }

    fn response_body(&mut self, chunk: &[u8], end: bool) {
        if !chunk.is_empty() {
            if self.prefill == Prefill::Running {
                self.reservation.prefill_complete();
                self.prefill = Prefill::Done;
            }
            let progress = self.counter.push(chunk);
            self.progressed(progress);
        }
        if end {
            // No more blocks: the load is freed next. Only the worker's own count is of interest.
            self.usage = self.counter.finish().usage.or(self.usage);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let Some(usage) = self.usage else { return };
        let Some(cached_tokens) = usage.cached_tokens else {
            return;
        };
        self.metrics
            .cached(self.predicted_cached_tokens, cached_tokens);
        if let Some(prediction) = &self.prediction {
            let report = CacheReport {
                cached_tokens,
                prompt_tokens: Some(usage.prompt_tokens),
            };
            self.service.report_cached_tokens(prediction, report);
        }
    }
}
