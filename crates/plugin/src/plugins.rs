//! The published paths of the interface: registration here, the contracts in the two modules below.
//!
//! It never defines an item: each one lives in a private module of this crate.

pub use crate::config::{
    ConfigMistake, DYN_ROUTER_DECODE_POLICY, DYN_ROUTER_PREFILL_POLICY,
    DYN_ROUTER_WORKER_SELECTION_POLICY, QueuePolicy, SelectionSource,
};
pub use crate::parameters::{WorkerSelectionPolicyParameters, WorkerSelectionPolicyProviderError};
pub use crate::policy_yaml::{RouterPolicyConfig, RouterPolicyConfigError, RouterPolicyMistake};
pub use crate::registry::{
    PluginKind, PluginTypeError, PluginWarning, RequestClassifierRegistryError, ResolvedPolicy,
    RouterPluginRegistry, RouterPluginRegistryError, RouterPlugins, WorkerSelectionPolicyProvider,
    WorkerSelectionPolicyRegistry, WorkerSelectionPolicyRegistryError,
};

pub use crate::suggest::Choices;

/// What a worker-selection policy sees, implements and returns, and how a host runs one.
pub mod worker_selection {
    pub use crate::candidate::{
        ActiveLoad, CacheOverlap, ScoredWorkerCandidate, WorkerCacheInput, WorkerCandidate,
        WorkerInputView, WorkerInputs, WorkerLoadInput,
    };
    pub use crate::config::KvRouterConfig;
    pub use crate::identity::{
        RoutingPartitionRef, WorkerAffinityTarget, WorkerType, WorkerTypeError, WorkerWithDpRank,
    };
    pub use crate::parameters::{
        WorkerSelectionPolicyParameters, WorkerSelectionPolicyProviderError,
    };
    pub use crate::policy::{
        PolicySelection, PolicyTrace, TracedRow, WorkerFilter, WorkerPicker, WorkerScorer,
        WorkerSelectionPolicy, WorkerSelectionPolicyError, WorkerSelectionPolicyFactory,
    };
    pub use crate::policy_yaml::{WorkerSelectionConfig, WorkerSelectionInstance};
    pub use crate::registry::{WorkerSelectionPolicyProvider, WorkerSelectionPolicyRegistryError};
    pub use crate::rng::SeededRng;
    pub use crate::signals::{
        ConfigOverrides, RequestSignals, SessionContext, WorkerSelectionContext,
        WorkerSelectionInputTrigger,
    };
}

/// What a request classifier sees, implements and returns.
pub mod request_classifier {
    pub use crate::classifier::{
        AbortCause, ClassifierError, ClassifyEvent, ClassifyFuture, ClassifyInput, ClassifyRequest,
        RequestClassifier, RequestClassifierContext, RequestClassifierFactory,
        RequestClassifierParameters, RequestClassifierProvider, RequestClassifierProviderError,
        RequestClassifierWorker, RequestProgress, RequestProgressUpdater,
    };
    pub use crate::policy_yaml::RequestClassifierConfig;
    pub use crate::registry::RequestClassifierRegistryError;
    pub use crate::signals::SessionContext;
}
