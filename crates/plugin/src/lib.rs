//! The policy interface of Pointsman: what a policy sees, what it implements, how it is registered and chosen, and the
//! policy that serves when none is chosen.
//!
//! It never decides which workers exist or may serve, never keeps load, and does no I/O: hosts bring the facts, policies
//! bring the judgement. The same items are exported at three places: [`plugins`] (the paths of the guide), the crate
//! root, and the older paths [`services::selection`] and [`protocols`].
//!
//! # Writing a policy
//!
//! Implement any of [`WorkerFilter`], [`WorkerScorer`] and [`WorkerPicker`], build a [`WorkerSelectionPolicy`] from them
//! in a factory, and register a provider of that factory under a name. Everything a test needs is here too:
//!
//! ```
//! use pointsman_plugin::plugins::worker_selection::{
//!     ActiveLoad, RequestSignals, WorkerCandidate, WorkerInputView, WorkerInputs, WorkerLoadInput, WorkerPicker,
//!     WorkerSelectionContext, WorkerSelectionPolicy, WorkerSelectionPolicyError, WorkerWithDpRank,
//! };
//!
//! struct FewestRequests;
//! impl WorkerPicker for FewestRequests {
//!     fn required_worker_inputs(&self) -> WorkerInputs {
//!         WorkerInputs::LOAD
//!     }
//!     fn pick(
//!         &mut self,
//!         _context: &WorkerSelectionContext<'_>,
//!         input: WorkerInputView<'_>,
//!     ) -> Result<usize, WorkerSelectionPolicyError> {
//!         let load = input.load().ok_or_else(|| WorkerSelectionPolicyError::failed("load input unavailable"))?;
//!         (0..load.len())
//!             .min_by_key(|&row| load[row].active_requests())
//!             .ok_or_else(|| WorkerSelectionPolicyError::failed("no row"))
//!     }
//! }
//!
//! let mut policy = WorkerSelectionPolicy::new(Default::default(), "fewest", Vec::new(), Box::new(FewestRequests));
//! let busy = |worker_id, requests| {
//!     WorkerCandidate::new(WorkerWithDpRank::from_worker_id(worker_id))
//!         .with_load(WorkerLoadInput::new(ActiveLoad { requests, ..ActiveLoad::default() }))
//! };
//! let mut rows = vec![busy(1, 4), busy(2, 1)];
//! let signals = RequestSignals::default();
//! let picked = policy.select(&WorkerSelectionContext::new(&signals), &mut rows)?;
//! assert_eq!(picked.worker.worker_id, 2);
//! # Ok::<(), WorkerSelectionPolicyError>(())
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod candidate;
mod classifier;
mod config;
pub mod default_policy;
mod identity;
mod parameters;
pub mod plugins;
mod policy;
mod policy_yaml;
mod registry;
mod rng;
mod signals;
mod suggest;

pub use plugins::request_classifier::*;
pub use plugins::worker_selection::*;
pub use plugins::{
    Choices, ConfigMistake, DYN_ROUTER_DECODE_POLICY, DYN_ROUTER_PREFILL_POLICY,
    DYN_ROUTER_WORKER_SELECTION_POLICY, PluginKind, PluginTypeError, PluginWarning, QueuePolicy,
    RequestClassifierRegistryError, ResolvedPolicy, RouterPluginRegistry,
    RouterPluginRegistryError, RouterPlugins, RouterPolicyConfig, RouterPolicyConfigError,
    RouterPolicyMistake, SelectionSource, WorkerSelectionPolicyRegistry,
};

/// Older paths of the selection interface; the same items as [`plugins`].
pub mod services {
    /// Older path of [`crate::plugins`] and [`crate::plugins::worker_selection`].
    pub mod selection {
        pub use crate::plugins::worker_selection::*;
        pub use crate::plugins::{
            DYN_ROUTER_DECODE_POLICY, DYN_ROUTER_PREFILL_POLICY,
            DYN_ROUTER_WORKER_SELECTION_POLICY, RouterPluginRegistry, RouterPluginRegistryError,
            RouterPlugins, WorkerSelectionPolicyRegistry,
        };
    }
}

/// Older path of the worker identities.
pub mod protocols {
    pub use crate::identity::{WorkerAffinityTarget, WorkerWithDpRank};
}
