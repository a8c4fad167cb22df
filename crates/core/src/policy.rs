//! Runs a partition's policy, user code that may do anything, so that nothing it does harms the partition; it judges no worker itself.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pointsman_plugin::{
    KvRouterConfig, PolicySelection, PolicyTrace, RequestSignals, RoutingPartitionRef,
    WorkerCandidate, WorkerInputs, WorkerSelectionContext, WorkerSelectionPolicy,
    WorkerSelectionPolicyError, WorkerSelectionPolicyFactory, WorkerType,
};

use crate::partition::PartitionId;
use crate::selection::SelectError;

/// What a policy is built from, again after each panic.
pub(crate) struct Blueprint {
    pub(crate) factory: WorkerSelectionPolicyFactory,
    pub(crate) config: KvRouterConfig,
    pub(crate) worker_type: WorkerType,
    pub(crate) partition: PartitionId,
}

/// A policy instance and the rows it is offered.
pub(crate) struct PolicyHost {
    blueprint: Blueprint,
    /// None after a panic, until the next selection builds it again.
    policy: Option<WorkerSelectionPolicy>,
    /// Filled by the caller before each [`select`](Self::select); kept for its capacity.
    pub(crate) candidates: Vec<WorkerCandidate>,
    panics: Arc<AtomicU64>,
}

/// What a policy wants of its host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wants {
    pub(crate) inputs: WorkerInputs,
    /// Whether a session's target, where it may serve, is to be the only candidate.
    pub(crate) exclusive_affinity: bool,
}

impl PolicyHost {
    /// Builds the policy at once; one that cannot be built yet is tried again at each selection.
    pub(crate) fn new(blueprint: Blueprint) -> Self {
        let mut host = Self {
            blueprint,
            policy: None,
            candidates: Vec::new(),
            panics: Arc::default(),
        };
        host.build();
        host
    }

    /// How often the policy or its factory panicked, for whoever counts along.
    pub(crate) fn panics(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.panics)
    }

    pub(crate) fn wants(&mut self) -> Result<Wants, SelectError> {
        if self.policy.is_none() {
            self.build();
        }
        let policy = self.policy.as_ref().ok_or(SelectError::PolicyPanicked)?;
        Ok(Wants {
            inputs: policy.required_worker_inputs(),
            exclusive_affinity: policy.exclusive_affinity(),
        })
    }

    /// Lets the policy choose among `candidates`.
    pub(crate) fn select(
        &mut self,
        signals: &RequestSignals,
        trace: Option<&mut PolicyTrace>,
    ) -> Result<PolicySelection, SelectError> {
        let policy = self.policy.as_mut().ok_or(SelectError::PolicyPanicked)?;
        let context = WorkerSelectionContext::new(signals);
        let rows = &mut self.candidates;
        // Unwind safe: a policy that panicked is dropped below, and the rows are cleared before
        // they are filled again, so nobody sees what a panic left half done.
        let outcome = catch_unwind(AssertUnwindSafe(|| match trace {
            Some(trace) => policy.select_traced(&context, rows, trace),
            None => policy.select(&context, rows),
        }));
        match outcome {
            Ok(Ok(selection)) => Ok(selection),
            Ok(Err(WorkerSelectionPolicyError::AllFiltered { candidate_count })) => {
                Err(SelectError::AllFiltered { candidate_count })
            }
            Ok(Err(error)) => Err(SelectError::Policy(error)),
            Err(payload) => {
                self.panicked(payload);
                let broken = self.policy.take();
                // Unwind safe: the policy is moved in and gone either way.
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(broken))) {
                    self.panicked(payload);
                }
                Err(SelectError::PolicyPanicked)
            }
        }
    }

    fn build(&mut self) {
        let Blueprint {
            factory,
            config,
            worker_type,
            partition,
        } = &self.blueprint;
        let reference = RoutingPartitionRef::new(&partition.model_name, &partition.routing_group);
        // Unwind safe: a factory is shared and immutable to us, and what it built is lost.
        match catch_unwind(AssertUnwindSafe(|| {
            factory(config, *worker_type, reference)
        })) {
            Ok(policy) => self.policy = Some(policy),
            Err(payload) => self.panicked(payload),
        }
    }

    fn panicked(&mut self, payload: Box<dyn Any + Send>) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        // The panic hook has printed the message. The payload is user code as well: its drop may
        // panic, and what that leaves is leaked, which cannot.
        if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(second);
        }
    }
}

impl fmt::Debug for PolicyHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyHost")
            .field("partition", &self.blueprint.partition)
            .field("built", &self.policy.is_some())
            .field("panics", &self.panics)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
