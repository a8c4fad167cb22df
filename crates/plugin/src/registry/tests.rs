//! From a policy file, overrides and linked types to factories, warnings and refusals.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Deserialize;

use super::*;
use crate::classifier::{RequestClassifier, RequestClassifierContext};
use crate::identity::RoutingPartitionRef;
use crate::policy::{WorkerPicker, WorkerSelectionPolicy, WorkerSelectionPolicyError};
use crate::policy_yaml::{RequestClassifierConfig, RouterPolicyConfig};
use crate::{WorkerInputView, WorkerSelectionContext};

struct FirstRow;

impl WorkerPicker for FirstRow {
    fn pick(
        &mut self,
        _context: &WorkerSelectionContext<'_>,
        _input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        Ok(0)
    }
}

/// A factory whose policies are told apart by `label`.
fn factory(label: &'static str) -> WorkerSelectionPolicyFactory {
    Arc::new(move |config, _role, _partition| {
        WorkerSelectionPolicy::new(config.clone(), label, Vec::new(), Box::new(FirstRow))
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bound {
    min_device_overlap_blocks: f64,
}

fn least_busy(
    parameters: &WorkerSelectionPolicyParameters,
) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError> {
    let Bound {
        min_device_overlap_blocks: minimum,
    } = parameters.deserialize()?;
    if minimum.is_finite() && minimum >= 0.0 {
        Ok(factory("least-busy"))
    } else {
        Err(WorkerSelectionPolicyProviderError::new(format!(
            "min_device_overlap_blocks is {minimum}; expected a finite number of at least 0"
        )))
    }
}

fn plain(
    parameters: &WorkerSelectionPolicyParameters,
) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}
    let Nothing {} = parameters.deserialize()?;
    Ok(factory("plain"))
}

fn registry() -> RouterPluginRegistry {
    let mut registry = RouterPluginRegistry::default().with_default_factory(factory("built-in"));
    registry
        .register_worker_selection("least-busy", Arc::new(least_busy))
        .unwrap();
    registry
        .register_worker_selection("plain", Arc::new(plain))
        .unwrap();
    registry
}

fn config(yaml: &str) -> KvRouterConfig {
    let worker_selection = RouterPolicyConfig::from_yaml(yaml)
        .unwrap()
        .worker_selection;
    KvRouterConfig {
        worker_selection,
        ..KvRouterConfig::default()
    }
}

fn label(factory: &WorkerSelectionPolicyFactory, role: WorkerType) -> &'static str {
    factory(
        &KvRouterConfig::default(),
        role,
        RoutingPartitionRef::new("m", "default"),
    )
    .label()
}

/// What a standalone host starts with: the label of its policy and its warnings, or the refusal.
fn standalone(config: &KvRouterConfig) -> Result<(&'static str, Vec<String>), String> {
    let resolved = registry()
        .resolve_for_worker_type(config, WorkerType::Aggregated)
        .map_err(|error| error.to_string())?;
    let warnings = resolved.warnings.iter().map(ToString::to_string).collect();
    Ok((label(&resolved.factory, WorkerType::Aggregated), warnings))
}

fn started(yaml: &str) -> (&'static str, Vec<String>) {
    standalone(&config(yaml)).unwrap()
}

/// Expects a standalone host not to start, with a message that holds every one of `parts`.
fn refused(yaml: &str, parts: &[&str]) {
    let message = standalone(&config(yaml)).expect_err(yaml);
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

/// A file in which aggregated uses an instance `lb` of `policy_type` with `parameters`.
fn with_instance(policy_type: &str, parameters: &str) -> String {
    format!(
        "worker_selection: {{aggregated: lb, instances: [{{name: lb, type: {policy_type}, parameters: {parameters}}}]}}"
    )
}

#[test]
fn a_selected_instance_of_a_linked_type_serves() {
    let yaml = with_instance("least-busy", "{min_device_overlap_blocks: 0}");
    assert_eq!(started(&yaml), ("least-busy", Vec::new()));
    let resolved = registry()
        .resolve_for_worker_type(&config(&yaml), WorkerType::Aggregated)
        .unwrap();
    assert_eq!(resolved.instance.as_deref(), Some("lb"));
    assert_eq!(resolved.policy_type.as_deref(), Some("least-busy"));
}

#[test]
fn nothing_configured_means_the_built_in_policy() {
    assert_eq!(
        standalone(&KvRouterConfig::default()).unwrap(),
        ("built-in", Vec::new())
    );
    assert_eq!(started(""), ("built-in", Vec::new()));
}

#[test]
fn a_selected_type_that_is_not_linked_stops_the_start() {
    refused(
        &with_instance("lest-busy", "{min_device_overlap_blocks: 0}"),
        &[
            "unknown policy type \"lest-busy\"",
            "did you mean least-busy?",
            "linked policy types: least-busy, plain",
        ],
    );
}

#[test]
fn parameters_must_be_known_present_and_in_range() {
    refused(
        &with_instance("least-busy", "{min_device_overlap_block: 0}"),
        &[
            "invalid parameters for policy type \"least-busy\" of instance \"lb\"",
            "min_device_overlap_block`",
            "did you mean min_device_overlap_blocks?",
        ],
    );
    for parameters in [
        "{}",
        "",
        "{min_device_overlap_blocks: .nan}",
        "{min_device_overlap_blocks: -1}",
        "{min_device_overlap_blocks: -0.0001}",
        "{min_device_overlap_blocks: .inf}",
        "{min_device_overlap_blocks: lots}",
    ] {
        refused(
            &with_instance("least-busy", parameters),
            &["min_device_overlap_blocks"],
        );
    }
}

#[test]
fn parameters_may_be_left_out_where_the_type_needs_none() {
    let left_out = "worker_selection: {aggregated: pl, instances: [{name: pl, type: plain}]}";
    assert_eq!(started(left_out), ("plain", Vec::new()));
    assert_eq!(started(&with_instance("plain", "")), ("plain", Vec::new()));
    refused(&with_instance("plain", "{x: 1}"), &["unknown field `x`"]);
}

#[test]
fn an_unused_instance_of_a_linked_type_is_validated_too() {
    refused(
        "worker_selection: {aggregated: pl, instances:
            [{name: pl, type: plain}, {name: idle, type: least-busy, parameters: {typo: 1}}]}",
        &["instance \"idle\"", "unknown field `typo`"],
    );
}

#[test]
fn an_unused_instance_of_an_unlinked_type_only_warns() {
    let (label, warnings) = started(
        "worker_selection: {aggregated: pl, instances: [{name: pl, type: plain}, {name: idle, type: plian}]}",
    );
    assert_eq!(label, "plain");
    assert_eq!(
        warnings,
        [
            "instance \"idle\" is unused and of unknown policy type \"plian\"; \
          did you mean plain? linked policy types: least-busy, plain"
        ]
    );
}

#[test]
fn a_standalone_host_warns_once_of_each_selection_it_ignores() {
    let (label, warnings) = started(
        "worker_selection: {aggregated: lb, prefill: pf, decode: default, instances:
            [{name: lb, type: plain}, {name: pf, type: not-linked-here}]}",
    );
    assert_eq!(label, "plain");
    assert_eq!(
        warnings,
        [
            "worker_selection.prefill = \"pf\" is ignored: only aggregated workers are served here, no prefill workers",
            "worker_selection.decode = \"default\" is ignored: only aggregated workers are served here, no decode workers",
        ]
    );
}

#[test]
fn a_role_override_is_an_ignored_selection_too() {
    let config = KvRouterConfig {
        decode_override: Some("nowhere".to_owned()),
        ..KvRouterConfig::default()
    };
    let (label, warnings) = standalone(&config).unwrap();
    assert_eq!((label, warnings.len()), ("built-in", 1));
    assert!(
        warnings[0].starts_with("DYN_ROUTER_DECODE_POLICY = \"nowhere\" is ignored"),
        "{warnings:?}"
    );
}

#[test]
fn the_override_goes_before_the_file() {
    let mut config = config(&with_instance("plain", "{}"));
    config.worker_selection_override = Some("default".to_owned());
    assert_eq!(standalone(&config).unwrap(), ("built-in", Vec::new()));
}

#[test]
fn an_instance_that_an_override_put_aside_still_warns_of_its_missing_type() {
    let mut config = config(&with_instance("gone", "{}"));
    config.worker_selection_override = Some("default".to_owned());
    let (label, warnings) = standalone(&config).unwrap();
    assert_eq!((label, warnings.len()), ("built-in", 1));
    assert!(
        warnings[0].contains("unknown policy type \"gone\""),
        "{warnings:?}"
    );
}

#[test]
fn an_override_to_an_unknown_instance_names_the_variable_and_the_choices() {
    let mut config = config(&with_instance("plain", "{}"));
    config.worker_selection_override = Some("lbb".to_owned());
    assert_eq!(
        standalone(&config).unwrap_err(),
        "DYN_ROUTER_WORKER_SELECTION_POLICY selects unknown instance \"lbb\"; \
         did you mean lb? known choices: lb, default"
    );
}

#[test]
fn every_role_gets_its_own_policy_from_the_one_factory() {
    let mut config = config(
        "worker_selection: {aggregated: pl, prefill: lb, instances: [{name: pl, type: plain},
            {name: lb, type: least-busy, parameters: {min_device_overlap_blocks: 1}}]}",
    );
    let labels = |config: &KvRouterConfig| {
        let factory = registry().resolve(config).unwrap().unwrap();
        WorkerType::EVERY.map(|role| label(&factory, role))
    };
    assert_eq!(
        labels(&config),
        ["plain", "least-busy", "built-in", "built-in"]
    );
    config.worker_selection_override = Some("pl".to_owned());
    config.prefill_override = Some("default".to_owned());
    assert_eq!(labels(&config), ["plain", "built-in", "plain", "plain"]);
}

#[test]
fn an_empty_bundle_resolves_where_nothing_is_selected() {
    let plugins = registry()
        .resolve_plugins(&KvRouterConfig::default())
        .unwrap();
    assert!(plugins.is_empty() && plugins.worker_selection().is_none());
    assert!(
        registry()
            .resolve(&KvRouterConfig::default())
            .unwrap()
            .is_none()
    );
}

#[test]
fn a_bundle_says_what_is_custom_and_what_to_warn_of() {
    let config = config(
        "worker_selection: {decode: pl, instances: [{name: pl, type: plain}, {name: x, type: gone}]}",
    );
    let plugins = registry().resolve_plugins(&config).unwrap();
    assert!(plugins.has_custom_worker_selection() && plugins.has_custom_plugins());
    assert_eq!(
        label(plugins.worker_selection().unwrap(), WorkerType::Decode),
        "plain"
    );
    assert_eq!(plugins.warnings().len(), 1);
}

#[test]
fn a_provider_runs_once_per_instance_and_a_factory_not_at_all() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let mut registry = RouterPluginRegistry::default();
    let provider: WorkerSelectionPolicyProvider = Arc::new(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(|_, _, _| panic!("a factory was called")))
    });
    registry
        .register_worker_selection("counted", provider)
        .unwrap();
    let config = config(
        "worker_selection: {aggregated: a, prefill: a, instances: [{name: a, type: counted}]}",
    );
    registry.resolve_plugins(&config).unwrap();
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

#[test]
fn a_selection_built_in_code_is_checked_like_a_file() {
    let config = KvRouterConfig {
        worker_selection: Some(WorkerSelectionConfig {
            aggregated: Some("gone".to_owned()),
            ..WorkerSelectionConfig::default()
        }),
        ..KvRouterConfig::default()
    };
    let error = standalone(&config).unwrap_err();
    assert!(
        error.contains("worker_selection.aggregated selects unknown instance \"gone\""),
        "{error}"
    );
}

#[test]
fn type_names_are_refused_when_they_could_not_be_selected() {
    let register = |name: &str| {
        registry()
            .register(name, Arc::new(plain))
            .unwrap_err()
            .to_string()
    };
    assert_eq!(register(""), "policy type must not be empty");
    assert_eq!(register("default"), "policy type \"default\" is reserved");
    assert_eq!(
        register("a b"),
        "policy type \"a b\" is not a name; expected one or more of A-Z a-z 0-9 _ . -"
    );
    assert_eq!(
        register("plain"),
        "policy type \"plain\" is already registered"
    );
}

#[test]
fn a_registry_without_types_is_empty() {
    assert!(RouterPluginRegistry::default().is_empty());
    assert!(!registry().is_empty());
}

struct PassThrough;
impl RequestClassifier for PassThrough {}

fn with_classifier(classifier_type: &str, parameters: &str) -> KvRouterConfig {
    let parameters = WorkerSelectionPolicyParameters::from_yaml(parameters).unwrap();
    let classifier_type = classifier_type.to_owned();
    let request_classifier = Some(RequestClassifierConfig {
        classifier_type,
        parameters,
    });
    KvRouterConfig {
        request_classifier,
        ..KvRouterConfig::default()
    }
}

fn classifier_registry() -> RouterPluginRegistry {
    let mut registry = registry();
    let provider: RequestClassifierProvider = Arc::new(|parameters| {
        let Bound { .. } = parameters.deserialize()?;
        Ok(Arc::new(|_context| Box::new(PassThrough)))
    });
    registry
        .register_request_classifier("admission", provider)
        .unwrap();
    registry
}

#[test]
fn a_classifier_is_resolved_and_built() {
    let config = with_classifier("admission", "min_device_overlap_blocks: 1");
    let plugins = classifier_registry().resolve_plugins(&config).unwrap();
    assert!(plugins.has_custom_plugins() && !plugins.has_custom_worker_selection());
    let mut classifier =
        plugins.request_classifier().unwrap()(RequestClassifierContext::new(16, Vec::new));
    drop(classifier.classify(crate::classifier::tests::request(1, 0)));
}

#[test]
fn a_classifier_is_refused_like_a_policy() {
    let refuse = |config: KvRouterConfig| {
        classifier_registry()
            .resolve_plugins(&config)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refuse(with_classifier("admision", "")),
        "unknown classifier type \"admision\"; did you mean admission? linked classifier types: admission"
    );
    assert_eq!(
        refuse(with_classifier("admission", "x: 1")),
        "invalid parameters for classifier type \"admission\": unknown field `x`, expected `min_device_overlap_blocks`"
    );
}

#[test]
fn policies_and_classifiers_have_names_of_their_own() {
    let mut registry = classifier_registry();
    registry
        .register_worker_selection("admission", Arc::new(plain))
        .unwrap();
}
