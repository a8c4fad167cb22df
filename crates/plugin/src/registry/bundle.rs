//! What a configuration resolved to.
//!
//! It never resolves anything itself; [`super::RouterPluginRegistry`] does.

use std::fmt;

use crate::classifier::RequestClassifierFactory;
use crate::policy::WorkerSelectionPolicyFactory;

use super::error::PluginWarning;

/// Everything that a configuration selects. An empty bundle means: the built-in policy, no classifier.
#[derive(Clone, Default)]
pub struct RouterPlugins {
    pub(super) worker_selection: Option<WorkerSelectionPolicyFactory>,
    pub(super) request_classifier: Option<RequestClassifierFactory>,
    pub(super) warnings: Vec<PluginWarning>,
}

impl RouterPlugins {
    /// The same bundle with another policy factory for all roles.
    #[must_use]
    pub fn with_worker_selection(self, factory: WorkerSelectionPolicyFactory) -> Self {
        Self {
            worker_selection: Some(factory),
            ..self
        }
    }

    /// The same bundle with another classifier.
    #[must_use]
    pub fn with_request_classifier(self, factory: RequestClassifierFactory) -> Self {
        Self {
            request_classifier: Some(factory),
            ..self
        }
    }

    /// The factory of every role, or `None` where all use the built-in policy.
    pub fn worker_selection(&self) -> Option<&WorkerSelectionPolicyFactory> {
        self.worker_selection.as_ref()
    }

    /// The classifier, or `None` to admit every request as it comes.
    pub fn request_classifier(&self) -> Option<&RequestClassifierFactory> {
        self.request_classifier.as_ref()
    }

    /// Whether some role uses another policy than the built-in one.
    pub fn has_custom_worker_selection(&self) -> bool {
        self.worker_selection.is_some()
    }

    /// Whether anything at all is not built in.
    pub fn has_custom_plugins(&self) -> bool {
        self.has_custom_worker_selection() || self.request_classifier.is_some()
    }

    /// Whether nothing but what is built in is used.
    pub fn is_empty(&self) -> bool {
        !self.has_custom_plugins()
    }

    /// What the host should log at start.
    pub fn warnings(&self) -> &[PluginWarning] {
        &self.warnings
    }
}

impl fmt::Debug for RouterPlugins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouterPlugins")
            .field("worker_selection", &self.worker_selection.is_some())
            .field("request_classifier", &self.request_classifier.is_some())
            .field("warnings", &self.warnings)
            .finish()
    }
}

/// The policy of one role.
#[derive(Clone)]
pub struct ResolvedPolicy {
    /// Name of the selected instance; `None` for the built-in policy.
    pub instance: Option<String>,
    /// Registered name of its type; `None` for the built-in policy.
    pub policy_type: Option<String>,
    /// Builds the policy of a partition.
    pub factory: WorkerSelectionPolicyFactory,
    /// What the host should log at start.
    pub warnings: Vec<PluginWarning>,
}

impl fmt::Debug for ResolvedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResolvedPolicy")
            .field("instance", &self.instance)
            .field("policy_type", &self.policy_type)
            .field("warnings", &self.warnings)
            .finish_non_exhaustive()
    }
}
