//! Why a type cannot be registered or a configuration not be resolved, and what deserves a warning.
//!
//! It never logs; hosts do.

use std::fmt;

use crate::config::SelectionSource;
use crate::identity::WorkerType;
use crate::parameters::WorkerSelectionPolicyProviderError;
use crate::policy_yaml::RouterPolicyConfigError;
use crate::suggest::Choices;

/// Something in the configuration that has no effect; the host logs it once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PluginWarning {
    /// A selection of a role that this host does not serve.
    #[error(
        "{setting} = {selected:?} is ignored: only {served} workers are served here, no {role} workers"
    )]
    IgnoredSelection {
        /// The role whose selection is ignored.
        role: WorkerType,
        /// What was selected for it.
        selected: String,
        /// Where.
        setting: SelectionSource,
        /// The only role the host serves.
        served: WorkerType,
    },
    /// An instance that no role selects and whose type is not linked, so that its parameters were not checked.
    #[error(
        "instance {instance:?} is unused and of unknown policy type {policy_type:?}; {choices}"
    )]
    UnlinkedType {
        /// Name of the instance.
        instance: String,
        /// Its type.
        policy_type: String,
        /// The types that are linked.
        choices: Choices,
    },
}

/// What a type name is registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginKind {
    /// A worker-selection policy.
    Policy,
    /// A request classifier.
    Classifier,
}

impl PluginKind {
    /// The `linked` types of this kind as the choices for `given`.
    pub(super) fn choices<'a>(
        self,
        given: &str,
        linked: impl Iterator<Item = &'a String>,
    ) -> Choices {
        let title = match self {
            Self::Policy => "linked policy types",
            Self::Classifier => "linked classifier types",
        };
        Choices::new(title, given, linked)
    }
}

impl fmt::Display for PluginKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Policy => "policy",
            Self::Classifier => "classifier",
        })
    }
}

/// What is wrong with a plugin type: its name when it is registered, itself when it is resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what each field is")]
pub enum PluginTypeError {
    /// Registered without a name.
    #[error("{kind} type must not be empty")]
    EmptyName { kind: PluginKind },
    /// Registered under the word that selects the built-in one.
    #[error("{kind} type \"default\" is reserved")]
    ReservedDefault { kind: PluginKind },
    /// Registered under a name that no policy file could hold.
    #[error("{kind} type {name:?} is not a name; expected one or more of A-Z a-z 0-9 _ . -")]
    BadName { kind: PluginKind, name: String },
    /// Registered twice.
    #[error("{kind} type {name:?} is already registered")]
    Duplicate { kind: PluginKind, name: String },
    /// Selected, but not linked.
    #[error("unknown {kind} type {name:?}; {choices}")]
    Unknown {
        kind: PluginKind,
        name: String,
        choices: Choices,
    },
    /// Its provider refused the parameters.
    #[error("invalid parameters for {kind} type {name:?}{instance}: {source}")]
    Parameters {
        kind: PluginKind,
        name: String,
        instance: String,
        source: WorkerSelectionPolicyProviderError,
    },
}

/// Why a policy type cannot be registered, or a configuration not be resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerSelectionPolicyRegistryError {
    /// A type is wrong, unknown, or refuses its parameters.
    #[error(transparent)]
    Type(#[from] PluginTypeError),
    /// The `worker_selection` part contradicts itself.
    #[error(transparent)]
    Selection(#[from] RouterPolicyConfigError),
    /// An override selects an instance that is not configured.
    #[error("{setting} selects unknown instance {instance:?}; {choices}")]
    UnknownInstance {
        /// The name that was selected.
        instance: String,
        /// Where.
        setting: SelectionSource,
        /// The instances there are.
        choices: Choices,
    },
}

/// Why a classifier type cannot be registered or resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestClassifierRegistryError {
    /// The type is wrong, unknown, or refuses its parameters.
    #[error(transparent)]
    Type(#[from] PluginTypeError),
}

/// Why a configuration cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouterPluginRegistryError {
    /// Its worker selection.
    #[error(transparent)]
    WorkerSelection(#[from] WorkerSelectionPolicyRegistryError),
    /// Its request classifier.
    #[error(transparent)]
    RequestClassifier(#[from] RequestClassifierRegistryError),
}
