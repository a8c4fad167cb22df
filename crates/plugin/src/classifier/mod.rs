//! The contract of request classifiers: plugins that may hold, reclassify or steer a request before it is admitted.
//!
//! It never runs one; a host that can deliver their events does.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::identity::{WorkerAffinityTarget, WorkerWithDpRank};
use crate::parameters::{WorkerSelectionPolicyParameters, WorkerSelectionPolicyProviderError};
use crate::signals::SessionContext;

/// Any error a classifier refuses a request with.
pub type ClassifierError = dyn Error + Send + Sync + 'static;
/// Any error a request was aborted for.
pub type AbortCause = dyn Error + Send + Sync + 'static;
/// A classification in progress: while it is pending the request is not admitted.
pub type ClassifyFuture =
    Pin<Box<dyn Future<Output = Result<ClassifyRequest, Box<ClassifierError>>> + Send + 'static>>;
/// Builds the classifier of one routed model.
pub type RequestClassifierFactory =
    Arc<dyn Fn(RequestClassifierContext) -> Box<dyn RequestClassifier> + Send + Sync>;
/// Validates a classifier's parameters at start and yields its factory.
pub type RequestClassifierProvider = Arc<
    dyn Fn(
            &RequestClassifierParameters,
        ) -> Result<RequestClassifierFactory, RequestClassifierProviderError>
        + Send
        + Sync,
>;
/// The parameters written for the classifier; read like those of a policy.
pub type RequestClassifierParameters = WorkerSelectionPolicyParameters;
/// Why a classifier's provider refuses its parameters.
pub type RequestClassifierProviderError = WorkerSelectionPolicyProviderError;

/// Decides about requests before they are admitted, and hears what becomes of them.
pub trait RequestClassifier: Send + 'static {
    /// Yields the request, perhaps later and perhaps with other metadata, or refuses it. As given here: at once, unchanged.
    fn classify(&mut self, request: ClassifyRequest) -> ClassifyFuture {
        Box::pin(std::future::ready(Ok(request)))
    }

    /// Hears of one step in a classified request's life. As given here: does nothing.
    ///
    /// Declared in the form that the `async-trait` attribute expands to, so that an implementation may write
    /// `async fn on_event(&mut self, event: ClassifyEvent)` under that attribute, or return the boxed future itself.
    fn on_event<'life0, 'async_trait>(
        &'life0 mut self,
        _event: ClassifyEvent,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'async_trait>>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(std::future::ready(()))
    }
}

/// What a host knows of a request when it asks for a classification.
#[derive(Clone, Debug)]
pub struct ClassifyInput {
    /// Id of the request, where it has one.
    pub request_id: Option<String>,
    /// Queue class the client asked for.
    pub policy_class: Option<String>,
    /// Length of the prompt in tokens.
    pub input_tokens: usize,
    /// Prompt tokens that some worker is known to hold in its cache.
    pub cached_tokens: usize,
    /// High-water mark of the request's context.
    pub progress: RequestProgress,
    /// When the request arrived.
    pub ingress_at: Instant,
    /// When it is due, where it has a deadline.
    pub due_at: Option<Instant>,
    /// The client's session, where it names one.
    pub session_context: Option<SessionContext>,
    /// The one worker that may serve it, where the caller insists.
    pub pinned_worker: Option<WorkerWithDpRank>,
    /// Where its session was served before.
    pub affinity_target: Option<WorkerAffinityTarget>,
}

/// A request under classification, with the metadata a classifier may change.
#[derive(Clone, Debug)]
pub struct ClassifyRequest {
    input: ClassifyInput,
    scheduling_cost_tokens: usize,
}

impl ClassifyRequest {
    /// Request of `input`; its scheduling cost is what is left to prefill, and at least 1.
    pub fn new(input: ClassifyInput) -> Self {
        let scheduling_cost_tokens = input
            .input_tokens
            .saturating_sub(input.cached_tokens)
            .max(1);
        Self {
            input,
            scheduling_cost_tokens,
        }
    }

    /// Id of the request, where it has one.
    pub fn request_id(&self) -> Option<&str> {
        self.input.request_id.as_deref()
    }

    /// Queue class, where one is set.
    pub fn policy_class(&self) -> Option<&str> {
        self.input.policy_class.as_deref()
    }

    /// Puts the request into another queue class. The host refuses one that is not configured.
    pub fn set_policy_class(&mut self, policy_class: impl Into<String>) {
        self.input.policy_class = Some(policy_class.into());
    }

    /// Length of the prompt in tokens.
    pub fn input_tokens(&self) -> usize {
        self.input.input_tokens
    }

    /// Read-only high-water mark of the context in tokens: prompt, then prompt and output as the host observes it.
    pub fn progress(&self) -> &RequestProgress {
        &self.input.progress
    }

    /// When the request arrived.
    pub fn ingress_at(&self) -> Instant {
        self.input.ingress_at
    }

    /// When the request is due, where it has a deadline.
    pub fn due_at(&self) -> Option<Instant> {
        self.input.due_at
    }

    /// Sets the deadline. The host refuses a request that is overdue.
    pub fn set_due_at(&mut self, due_at: Instant) {
        self.input.due_at = Some(due_at);
    }

    /// What admitting the request costs its queue class, in tokens.
    pub fn scheduling_cost_tokens(&self) -> usize {
        self.scheduling_cost_tokens
    }

    /// Sets the cost of admission, in tokens. The host refuses 0.
    pub fn set_scheduling_cost_tokens(&mut self, tokens: usize) {
        self.scheduling_cost_tokens = tokens;
    }

    /// Replaces the request's soft preference with exactly `worker`. Pins and eligibility stay above it.
    pub fn set_worker_selection_target(&mut self, worker: WorkerWithDpRank) {
        self.input.affinity_target = Some(worker.into());
    }

    /// Removes the request's soft preference.
    pub fn clear_worker_selection_target(&mut self) {
        self.input.affinity_target = None;
    }

    /// The request's soft preference as it stands, for the host.
    pub fn worker_selection_target(&self) -> Option<WorkerAffinityTarget> {
        self.input.affinity_target
    }

    /// The client's session, where it names one.
    pub fn session_context(&self) -> Option<&SessionContext> {
        self.input.session_context.as_ref()
    }

    /// The one worker that may serve the request, where the caller insists.
    pub fn pinned_worker(&self) -> Option<WorkerWithDpRank> {
        self.input.pinned_worker
    }
}

/// One step in the life of a classified request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ClassifyEvent {
    /// It was sent to a worker.
    Sent {
        /// Id of the request.
        request_id: String,
        /// The worker actually used.
        worker: WorkerWithDpRank,
    },
    /// Its first output arrived.
    Responding {
        /// Id of the request.
        request_id: String,
        /// The worker that answers.
        worker: WorkerWithDpRank,
    },
    /// It ended well. The last event of the request.
    Completed {
        /// Id of the request.
        request_id: String,
        /// The worker that answered.
        worker: WorkerWithDpRank,
        /// Prompt and output in tokens, where known.
        context_tokens: Option<usize>,
    },
    /// It ended otherwise. The last event of the request.
    Aborted {
        /// Id of the request.
        request_id: String,
        /// The worker it had been sent to, if any.
        worker: Option<WorkerWithDpRank>,
        /// The cause, where there is more to say than that the client went away.
        error: Option<Arc<AbortCause>>,
    },
}

/// What a classifier may know of the router it is built for. Clones show the same workers.
#[derive(Clone)]
pub struct RequestClassifierContext {
    block_size: u32,
    workers: Arc<dyn Fn() -> Vec<RequestClassifierWorker> + Send + Sync>,
}

impl RequestClassifierContext {
    /// Context with blocks of `block_size` tokens, whose workers are asked of `workers` each time.
    pub fn new(
        block_size: u32,
        workers: impl Fn() -> Vec<RequestClassifierWorker> + Send + Sync + 'static,
    ) -> Self {
        Self {
            block_size,
            workers: Arc::new(workers),
        }
    }

    /// Tokens in one KV block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// The workers registered now, one entry per rank. Says nothing of their health.
    pub fn workers(&self) -> Vec<RequestClassifierWorker> {
        (self.workers)()
    }
}

impl fmt::Debug for RequestClassifierContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestClassifierContext")
            .field("block_size", &self.block_size)
            .finish_non_exhaustive()
    }
}

/// One registered rank, as a classifier sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestClassifierWorker {
    worker: WorkerWithDpRank,
    total_kv_blocks: Option<u64>,
}

impl RequestClassifierWorker {
    /// Rank `worker` with the capacity it advertised.
    pub const fn new(worker: WorkerWithDpRank, total_kv_blocks: Option<u64>) -> Self {
        Self {
            worker,
            total_kv_blocks,
        }
    }

    /// The worker and rank.
    pub fn worker(&self) -> WorkerWithDpRank {
        self.worker
    }

    /// Capacity of the KV cache in blocks, not the free part of it; `None` if not advertised.
    pub fn total_kv_blocks(&self) -> Option<u64> {
        self.total_kv_blocks
    }
}

/// High-water mark of a request's context in tokens. Clones share it, and it never falls.
#[derive(Clone, Debug)]
pub struct RequestProgress(Arc<AtomicUsize>);

impl RequestProgress {
    /// Mark at `context_tokens`, with the handle that raises it.
    pub fn new(context_tokens: usize) -> (Self, RequestProgressUpdater) {
        let mark = Arc::new(AtomicUsize::new(context_tokens));
        (Self(Arc::clone(&mark)), RequestProgressUpdater(mark))
    }

    /// The most tokens observed so far: logical length, not cache in use.
    pub fn context_tokens(&self) -> usize {
        // The mark orders nothing else.
        self.0.load(Ordering::Relaxed)
    }
}

/// The host's end of a [`RequestProgress`].
#[derive(Clone, Debug)]
pub struct RequestProgressUpdater(Arc<AtomicUsize>);

impl RequestProgressUpdater {
    /// Raises the mark to `context_tokens`; a lower value changes nothing.
    pub fn observe(&self, context_tokens: usize) {
        self.0.fetch_max(context_tokens, Ordering::Relaxed);
    }
}

#[cfg(test)]
pub(crate) mod tests;
