//! Every published path names the same item: this file compiles only then.
//!
//! It never runs any of them.

use pointsman_plugin as root;
use pointsman_plugin::plugins::{self, request_classifier, worker_selection};
use pointsman_plugin::protocols;
use pointsman_plugin::services::selection;

/// Checks that a type has the same identity under every path given.
macro_rules! same_type {
    ($($first:ty = $($other:ty),+;)+) => {
        $($(const _: fn($first) -> $other = std::convert::identity;)+)+
    };
}

same_type! {
    worker_selection::WorkerCandidate = root::WorkerCandidate, selection::WorkerCandidate;
    worker_selection::WorkerInputs = root::WorkerInputs, selection::WorkerInputs;
    worker_selection::WorkerCacheInput = root::WorkerCacheInput, selection::WorkerCacheInput;
    worker_selection::WorkerLoadInput = root::WorkerLoadInput, selection::WorkerLoadInput;
    worker_selection::ScoredWorkerCandidate = root::ScoredWorkerCandidate, selection::ScoredWorkerCandidate;
    worker_selection::WorkerInputView<'static> = root::WorkerInputView<'static>, selection::WorkerInputView<'static>;
    worker_selection::WorkerSelectionContext<'static> = root::WorkerSelectionContext<'static>;
    worker_selection::SessionContext = root::SessionContext, request_classifier::SessionContext;
    worker_selection::WorkerSelectionInputTrigger = root::WorkerSelectionInputTrigger;
    worker_selection::WorkerSelectionPolicy = root::WorkerSelectionPolicy, selection::WorkerSelectionPolicy;
    worker_selection::WorkerSelectionPolicyError = root::WorkerSelectionPolicyError;
    worker_selection::WorkerSelectionPolicyFactory = root::WorkerSelectionPolicyFactory;
    worker_selection::KvRouterConfig = root::KvRouterConfig, selection::KvRouterConfig;
    worker_selection::RoutingPartitionRef<'static> = root::RoutingPartitionRef<'static>;
    worker_selection::WorkerType = root::WorkerType, selection::WorkerType;
    protocols::WorkerWithDpRank = root::WorkerWithDpRank, worker_selection::WorkerWithDpRank;
    protocols::WorkerAffinityTarget = root::WorkerAffinityTarget, worker_selection::WorkerAffinityTarget;
    worker_selection::WorkerSelectionConfig = root::WorkerSelectionConfig;
    worker_selection::WorkerSelectionInstance = root::WorkerSelectionInstance;
    plugins::WorkerSelectionPolicyParameters =
        root::WorkerSelectionPolicyParameters, worker_selection::WorkerSelectionPolicyParameters;
    plugins::WorkerSelectionPolicyProvider =
        root::WorkerSelectionPolicyProvider, worker_selection::WorkerSelectionPolicyProvider;
    plugins::WorkerSelectionPolicyProviderError =
        root::WorkerSelectionPolicyProviderError, worker_selection::WorkerSelectionPolicyProviderError;
    plugins::WorkerSelectionPolicyRegistryError =
        root::WorkerSelectionPolicyRegistryError, worker_selection::WorkerSelectionPolicyRegistryError;
    plugins::RouterPluginRegistry =
        root::RouterPluginRegistry, plugins::WorkerSelectionPolicyRegistry, selection::WorkerSelectionPolicyRegistry;
    plugins::RouterPlugins = root::RouterPlugins, selection::RouterPlugins;
    request_classifier::ClassifyRequest = root::ClassifyRequest;
    request_classifier::RequestClassifierFactory = root::RequestClassifierFactory;
    request_classifier::RequestClassifierProvider = root::RequestClassifierProvider;
}

same_type! {
    Box<dyn worker_selection::WorkerFilter> = Box<dyn root::WorkerFilter>, Box<dyn selection::WorkerFilter>;
    Box<dyn worker_selection::WorkerScorer> = Box<dyn root::WorkerScorer>, Box<dyn selection::WorkerScorer>;
    Box<dyn worker_selection::WorkerPicker> = Box<dyn root::WorkerPicker>, Box<dyn selection::WorkerPicker>;
    Box<dyn request_classifier::RequestClassifier> = Box<dyn root::RequestClassifier>;
}

/// Every error is a `std::error::Error` that may cross threads.
const fn is_error<E: std::error::Error + Send + Sync + 'static>() {}
const _: () = is_error::<worker_selection::WorkerSelectionPolicyError>();
const _: () = is_error::<plugins::WorkerSelectionPolicyProviderError>();
const _: () = is_error::<plugins::WorkerSelectionPolicyRegistryError>();
const _: () = is_error::<plugins::RequestClassifierRegistryError>();
const _: () = is_error::<plugins::RouterPluginRegistryError>();
const _: () = is_error::<plugins::RouterPolicyConfigError>();
const _: () = is_error::<worker_selection::WorkerTypeError>();

#[test]
fn the_names_of_the_overriding_variables_are_published() {
    assert_eq!(
        plugins::DYN_ROUTER_WORKER_SELECTION_POLICY,
        "DYN_ROUTER_WORKER_SELECTION_POLICY"
    );
    assert_eq!(
        plugins::DYN_ROUTER_PREFILL_POLICY,
        "DYN_ROUTER_PREFILL_POLICY"
    );
    assert_eq!(
        plugins::DYN_ROUTER_DECODE_POLICY,
        "DYN_ROUTER_DECODE_POLICY"
    );
}
