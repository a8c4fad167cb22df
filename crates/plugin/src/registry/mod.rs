//! The linked plugin types by name, and the way from a configuration to the factories it selects.
//!
//! It never builds a policy: hosts call the factories.

mod bundle;
mod error;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::classifier::{RequestClassifierFactory, RequestClassifierProvider};
use crate::config::{BUILT_IN, KvRouterConfig};
use crate::default_policy;
use crate::identity::WorkerType;
use crate::parameters::{WorkerSelectionPolicyParameters, WorkerSelectionPolicyProviderError};
use crate::policy::WorkerSelectionPolicyFactory;
use crate::policy_yaml::{
    RouterPolicyConfigError, WorkerSelectionConfig, WorkerSelectionInstance, is_name,
};

pub use bundle::{ResolvedPolicy, RouterPlugins};
pub use error::{
    PluginKind, PluginTypeError, PluginWarning, RequestClassifierRegistryError,
    RouterPluginRegistryError, WorkerSelectionPolicyRegistryError,
};

/// Validates a policy's parameters at start and yields its factory.
pub type WorkerSelectionPolicyProvider = Arc<
    dyn Fn(
            &WorkerSelectionPolicyParameters,
        ) -> Result<WorkerSelectionPolicyFactory, WorkerSelectionPolicyProviderError>
        + Send
        + Sync,
>;

/// Older name of [`RouterPluginRegistry`].
pub type WorkerSelectionPolicyRegistry = RouterPluginRegistry;

/// The plugin types linked into a program. [`Default`] has none, and serves with the built-in policy.
#[derive(Clone)]
pub struct RouterPluginRegistry {
    policies: BTreeMap<String, WorkerSelectionPolicyProvider>,
    classifiers: BTreeMap<String, RequestClassifierProvider>,
    default_factory: WorkerSelectionPolicyFactory,
}

impl Default for RouterPluginRegistry {
    fn default() -> Self {
        Self {
            policies: BTreeMap::new(),
            classifiers: BTreeMap::new(),
            default_factory: default_policy::default_factory(),
        }
    }
}

impl RouterPluginRegistry {
    /// Links a worker-selection policy type. A name that is taken is refused, never replaced.
    pub fn register_worker_selection(
        &mut self,
        policy_type: impl Into<String>,
        provider: WorkerSelectionPolicyProvider,
    ) -> Result<(), WorkerSelectionPolicyRegistryError> {
        Ok(link(
            &mut self.policies,
            PluginKind::Policy,
            policy_type.into(),
            provider,
        )?)
    }

    /// Older name of [`register_worker_selection`](Self::register_worker_selection).
    pub fn register(
        &mut self,
        policy_type: impl Into<String>,
        provider: WorkerSelectionPolicyProvider,
    ) -> Result<(), WorkerSelectionPolicyRegistryError> {
        self.register_worker_selection(policy_type, provider)
    }

    /// Links a request-classifier type. A name that is taken is refused, never replaced.
    pub fn register_request_classifier(
        &mut self,
        classifier_type: impl Into<String>,
        provider: RequestClassifierProvider,
    ) -> Result<(), RequestClassifierRegistryError> {
        Ok(link(
            &mut self.classifiers,
            PluginKind::Classifier,
            classifier_type.into(),
            provider,
        )?)
    }

    /// The same registry with another built-in policy.
    #[must_use]
    pub fn with_default_factory(self, default_factory: WorkerSelectionPolicyFactory) -> Self {
        Self {
            default_factory,
            ..self
        }
    }

    /// Whether no type is linked. The built-in policy does not count.
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.classifiers.is_empty()
    }

    /// Resolves everything that `config` selects, for a host that serves every role and runs classifiers.
    pub fn resolve_plugins(
        &self,
        config: &KvRouterConfig,
    ) -> Result<RouterPlugins, RouterPluginRegistryError> {
        let (worker_selection, warnings) = self.resolve_every_role(config)?;
        let request_classifier = self.resolve_request_classifier(config)?;
        Ok(RouterPlugins {
            worker_selection,
            request_classifier,
            warnings,
        })
    }

    /// One factory for every role that `config` selects, or `None` where all roles use the built-in policy.
    pub fn resolve(
        &self,
        config: &KvRouterConfig,
    ) -> Result<Option<WorkerSelectionPolicyFactory>, WorkerSelectionPolicyRegistryError> {
        Ok(self.resolve_every_role(config)?.0)
    }

    /// The policy of one role, for a host that serves that role alone. Selections of other roles are reported as
    /// ignored, and the types they need may be missing.
    pub fn resolve_for_worker_type(
        &self,
        config: &KvRouterConfig,
        role: WorkerType,
    ) -> Result<ResolvedPolicy, WorkerSelectionPolicyRegistryError> {
        let instances = Instances::validate(self, config)?;
        let selected = instances.selected(role)?;
        let mut warnings = ignored_selections(config, role);
        warnings.extend(instances.unlinked_warnings(&warnings));
        Ok(ResolvedPolicy {
            instance: selected.map(|(instance, _)| instance.name.clone()),
            policy_type: selected.map(|(instance, _)| instance.policy_type.clone()),
            factory: selected
                .map_or(&self.default_factory, |(_, factory)| factory)
                .clone(),
            warnings,
        })
    }

    /// The classifier that `config` selects, or `None`. A host that cannot run classifiers refuses a configuration that
    /// has one.
    pub fn resolve_request_classifier(
        &self,
        config: &KvRouterConfig,
    ) -> Result<Option<RequestClassifierFactory>, RequestClassifierRegistryError> {
        let Some(selected) = &config.request_classifier else {
            return Ok(None);
        };
        let classifier_type = &selected.classifier_type;
        let Some(provider) = self.classifiers.get(classifier_type) else {
            return Err(
                unknown_type(PluginKind::Classifier, classifier_type, &self.classifiers).into(),
            );
        };
        let factory = provider(&selected.parameters).map_err(|source| {
            bad_parameters(PluginKind::Classifier, classifier_type, None, source)
        })?;
        Ok(Some(factory))
    }

    fn resolve_every_role(
        &self,
        config: &KvRouterConfig,
    ) -> Result<
        (Option<WorkerSelectionPolicyFactory>, Vec<PluginWarning>),
        WorkerSelectionPolicyRegistryError,
    > {
        let instances = Instances::validate(self, config)?;
        let mut of_role = BTreeMap::new();
        for role in WorkerType::EVERY {
            if let Some((_, factory)) = instances.selected(role)? {
                of_role.insert(role, Arc::clone(factory));
            }
        }
        let warnings = instances.unlinked_warnings(&[]);
        if of_role.is_empty() {
            return Ok((None, warnings));
        }
        let built_in = Arc::clone(&self.default_factory);
        let by_role: WorkerSelectionPolicyFactory = Arc::new(move |config, role, partition| {
            let factory = of_role.get(&role).unwrap_or(&built_in);
            factory(config, role, partition)
        });
        Ok((Some(by_role), warnings))
    }
}

impl fmt::Debug for RouterPluginRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouterPluginRegistry")
            .field("policies", &self.policies.keys())
            .field("classifiers", &self.classifiers.keys())
            .finish_non_exhaustive()
    }
}

/// The configured instances with the factories of those whose type is linked, all validated.
struct Instances<'a> {
    registry: &'a RouterPluginRegistry,
    config: &'a KvRouterConfig,
    by_name: BTreeMap<
        &'a str,
        (
            &'a WorkerSelectionInstance,
            Option<WorkerSelectionPolicyFactory>,
        ),
    >,
}

impl<'a> Instances<'a> {
    /// Runs the provider of every instance whose type is linked, selected or not: a mistake in one shows at start.
    fn validate(
        registry: &'a RouterPluginRegistry,
        config: &'a KvRouterConfig,
    ) -> Result<Self, WorkerSelectionPolicyRegistryError> {
        let mut by_name = BTreeMap::new();
        if let Some(selection) = &config.worker_selection {
            selection
                .validate()
                .map_err(RouterPolicyConfigError::Refused)?;
            for instance in &selection.instances {
                let factory = registry
                    .policies
                    .get(&instance.policy_type)
                    .map(|provider| {
                        provider(&instance.parameters).map_err(|source| {
                            bad_parameters(
                                PluginKind::Policy,
                                &instance.policy_type,
                                Some(&instance.name),
                                source,
                            )
                        })
                    });
                by_name.insert(instance.name.as_str(), (instance, factory.transpose()?));
            }
        }
        Ok(Self {
            registry,
            config,
            by_name,
        })
    }

    /// The instance that `role` uses and its factory, or `None` for the built-in policy.
    fn selected(
        &self,
        role: WorkerType,
    ) -> Result<
        Option<(&'a WorkerSelectionInstance, &WorkerSelectionPolicyFactory)>,
        WorkerSelectionPolicyRegistryError,
    > {
        let Some((name, setting)) = self.config.selection_for(role) else {
            return Ok(None);
        };
        let Some((instance, factory)) = self.by_name.get(name) else {
            let none = WorkerSelectionConfig::default();
            let choices = self
                .config
                .worker_selection
                .as_ref()
                .unwrap_or(&none)
                .selectable(name);
            let instance = name.to_owned();
            return Err(WorkerSelectionPolicyRegistryError::UnknownInstance {
                instance,
                setting,
                choices,
            });
        };
        let Some(factory) = factory else {
            return Err(unknown_type(
                PluginKind::Policy,
                &instance.policy_type,
                &self.registry.policies,
            )
            .into());
        };
        Ok(Some((instance, factory)))
    }

    /// A warning for each instance that nobody uses and whose type is not linked, except those of an `ignored`
    /// selection: that warning is enough.
    fn unlinked_warnings(&self, ignored: &[PluginWarning]) -> Vec<PluginWarning> {
        let is_ignored = |name: &str| {
            ignored.iter().any(|warning| matches!(warning, PluginWarning::IgnoredSelection { selected, .. } if selected == name))
        };
        self.by_name
            .values()
            .filter(|(instance, factory)| factory.is_none() && !is_ignored(&instance.name))
            .map(|(instance, _)| PluginWarning::UnlinkedType {
                instance: instance.name.clone(),
                policy_type: instance.policy_type.clone(),
                choices: PluginKind::Policy
                    .choices(&instance.policy_type, self.registry.policies.keys()),
            })
            .collect()
    }
}

/// A warning for each role but `served` that something was selected for.
fn ignored_selections(config: &KvRouterConfig, served: WorkerType) -> Vec<PluginWarning> {
    let others = WorkerType::EVERY.into_iter().filter(|role| *role != served);
    others
        .filter_map(|role| {
            let (selected, setting) = config.role_selection(role)?;
            Some(PluginWarning::IgnoredSelection {
                role,
                selected: selected.to_owned(),
                setting,
                served,
            })
        })
        .collect()
}

fn link<P>(
    linked: &mut BTreeMap<String, P>,
    kind: PluginKind,
    name: String,
    provider: P,
) -> Result<(), PluginTypeError> {
    if name.is_empty() {
        return Err(PluginTypeError::EmptyName { kind });
    }
    if name == BUILT_IN {
        return Err(PluginTypeError::ReservedDefault { kind });
    }
    if !is_name(&name) {
        return Err(PluginTypeError::BadName { kind, name });
    }
    if linked.contains_key(&name) {
        return Err(PluginTypeError::Duplicate { kind, name });
    }
    linked.insert(name, provider);
    Ok(())
}

fn unknown_type<P>(kind: PluginKind, name: &str, linked: &BTreeMap<String, P>) -> PluginTypeError {
    PluginTypeError::Unknown {
        kind,
        name: name.to_owned(),
        choices: kind.choices(name, linked.keys()),
    }
}

fn bad_parameters(
    kind: PluginKind,
    name: &str,
    instance: Option<&str>,
    source: WorkerSelectionPolicyProviderError,
) -> PluginTypeError {
    let instance = instance
        .map(|instance| format!(" of instance {instance:?}"))
        .unwrap_or_default();
    PluginTypeError::Parameters {
        kind,
        name: name.to_owned(),
        instance,
        source,
    }
}

#[cfg(test)]
mod tests;
