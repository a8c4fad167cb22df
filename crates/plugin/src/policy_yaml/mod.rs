//! The policy file: which policy each role uses, which instances exist and with which parameters.
//!
//! It never opens the file, and never knows which types are linked; [`crate::registry`] does.

use std::collections::BTreeSet;
use std::fmt;

use serde_yaml::{Mapping, Value};

use crate::config::BUILT_IN;
use crate::identity::WorkerType;
use crate::parameters::WorkerSelectionPolicyParameters;
use crate::suggest::Choices;

/// A whole policy file. An empty one leaves everything at its default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouterPolicyConfig {
    /// Which worker-selection policies are used.
    pub worker_selection: Option<WorkerSelectionConfig>,
    /// Which request classifier is used.
    pub request_classifier: Option<RequestClassifierConfig>,
}

/// The `worker_selection` part of a policy file.
///
/// A role that is `None` uses the built-in policy, as does one that says `default`; roles never fall back to each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerSelectionConfig {
    /// Instance for pools that serve whole requests.
    pub aggregated: Option<String>,
    /// Instance for prefill pools.
    pub prefill: Option<String>,
    /// Instance for decode pools.
    pub decode: Option<String>,
    /// Instance for encode pools.
    pub encode: Option<String>,
    /// The configured instances, in any order.
    pub instances: Vec<WorkerSelectionInstance>,
}

/// A policy type with parameters, under a name.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerSelectionInstance {
    /// Name that selections refer to.
    pub name: String,
    /// Registered name of the provider; `type` in YAML.
    pub policy_type: String,
    /// What the provider is given.
    pub parameters: WorkerSelectionPolicyParameters,
}

/// The `request_classifier` part of a policy file.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestClassifierConfig {
    /// Registered name of the provider; `type` in YAML.
    pub classifier_type: String,
    /// What the provider is given.
    pub parameters: WorkerSelectionPolicyParameters,
}

/// Why a policy file is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouterPolicyConfigError {
    /// The text is not YAML, or repeats a key.
    #[error("policy file is not valid yaml: {0}")]
    Syntax(String),
    /// The text is YAML, but not a policy file. All mistakes are listed.
    #[error("policy file is refused: {}", Listed(.0))]
    Refused(Vec<RouterPolicyMistake>),
}

/// One mistake in a policy file. `field` is its path, such as `worker_selection.instances[0].type`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what each field is")]
pub enum RouterPolicyMistake {
    /// A key that a later version will understand.
    #[error("{key} is not supported yet; leave it out")]
    NotSupportedYet { key: &'static str },
    /// A key that means nothing there.
    #[error("unknown key {field}; {choices}")]
    UnknownKey { field: String, choices: Choices },
    /// A value of the wrong kind.
    #[error("{field} is {value}; expected {expected}")]
    WrongKind {
        field: String,
        value: String,
        expected: &'static str,
    },
    /// A key that must be there and is not.
    #[error("{field} is missing; expected {expected}")]
    Missing {
        field: String,
        expected: &'static str,
    },
    /// A name with characters that names do not have.
    #[error("{field} is {value:?}; expected one or more of A-Z a-z 0-9 _ . -")]
    BadName { field: String, value: String },
    /// An instance under the name that means the built-in policy.
    #[error("{field} is {value:?}, which selects the built-in policy; expected another name")]
    ReservedName { field: String, value: String },
    /// A second instance of one name.
    #[error("{field} is {value:?}, which another instance has; expected a name of its own")]
    DuplicateName { field: String, value: String },
    /// A selection of an instance that is not configured.
    #[error("{field} selects unknown instance {value:?}; {choices}")]
    UnknownInstance {
        field: String,
        value: String,
        choices: Choices,
    },
    /// A `worker_selection` that says nothing.
    #[error("worker_selection is empty; expected at least one instance or selection")]
    Empty,
}

const TOP_LEVEL_KEYS: [&str; 2] = ["worker_selection", "request_classifier"];
const LATER_KEYS: [&str; 6] = [
    "router",
    "default_policy_family",
    "policy_classes",
    "uncached_isl_buckets",
    "models",
    "request_classifier",
];
const INSTANCE_KEYS: [&str; 3] = ["name", "type", "parameters"];

impl RouterPolicyConfig {
    /// Reads a whole policy file. Unknown and repeated keys are refused, merge keys (`<<`) are followed, and all
    /// mistakes are reported at once. Parameters are checked later, by the provider of their type.
    pub fn from_yaml(text: &str) -> Result<Self, RouterPolicyConfigError> {
        let syntax = RouterPolicyConfigError::Syntax;
        let mut document: Value =
            serde_yaml::from_str(text).map_err(|error| syntax(error.to_string()))?;
        document
            .apply_merge()
            .map_err(|error| syntax(format!("merge key <<: {error}")))?;
        let mut reader = Reader::default();
        let config = reader.policy_file(&document);
        if reader.mistakes.is_empty() {
            Ok(config)
        } else {
            Err(RouterPolicyConfigError::Refused(reader.mistakes))
        }
    }
}

impl WorkerSelectionConfig {
    /// What is written for `role`, `default` included.
    pub fn selection_of(&self, role: WorkerType) -> Option<&str> {
        match role {
            WorkerType::Aggregated => self.aggregated.as_deref(),
            WorkerType::Prefill => self.prefill.as_deref(),
            WorkerType::Decode => self.decode.as_deref(),
            WorkerType::Encode => self.encode.as_deref(),
        }
    }

    /// Checks names and selections against each other; all mistakes are reported at once.
    pub fn validate(&self) -> Result<(), Vec<RouterPolicyMistake>> {
        let mut mistakes = Vec::new();
        if self.instances.is_empty()
            && WorkerType::EVERY
                .into_iter()
                .all(|role| self.selection_of(role).is_none())
        {
            mistakes.push(RouterPolicyMistake::Empty);
        }
        let mut names = BTreeSet::new();
        for (index, instance) in self.instances.iter().enumerate() {
            mistakes.extend(
                instance.mistake(&format!("worker_selection.instances[{index}]"), &mut names),
            );
        }
        for role in WorkerType::EVERY {
            let Some(selected) = self.selection_of(role).map(str::trim) else {
                continue;
            };
            if selected != BUILT_IN && !names.contains(selected) {
                mistakes.push(RouterPolicyMistake::UnknownInstance {
                    field: format!("worker_selection.{role}"),
                    value: selected.to_owned(),
                    choices: self.selectable(selected),
                });
            }
        }
        if mistakes.is_empty() {
            Ok(())
        } else {
            Err(mistakes)
        }
    }

    /// What a selection may say, as the choices for `given`.
    pub(crate) fn selectable(&self, given: &str) -> Choices {
        let names = self.instances.iter().map(|instance| instance.name.as_str());
        Choices::new("known choices", given, names.chain([BUILT_IN]))
    }
}

impl WorkerSelectionInstance {
    /// The first mistake in the name and type of the instance at `field`; a good name is added to `names`.
    fn mistake<'a>(
        &'a self,
        field: &str,
        names: &mut BTreeSet<&'a str>,
    ) -> Option<RouterPolicyMistake> {
        let at = |key: &str| format!("{field}.{key}");
        let name = self.name.clone();
        if !is_name(&self.name) {
            return Some(RouterPolicyMistake::BadName {
                field: at("name"),
                value: name,
            });
        }
        if self.name == BUILT_IN {
            return Some(RouterPolicyMistake::ReservedName {
                field: at("name"),
                value: name,
            });
        }
        if !names.insert(&self.name) {
            return Some(RouterPolicyMistake::DuplicateName {
                field: at("name"),
                value: name,
            });
        }
        if !is_name(&self.policy_type) {
            return Some(RouterPolicyMistake::BadName {
                field: at("type"),
                value: self.policy_type.clone(),
            });
        }
        None
    }
}

/// Whether `text` may name an instance or a type: `[A-Za-z0-9_.-]+`.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

/// Walks a document and collects what is wrong with it; a part that is wrong is read as its default.
#[derive(Default)]
struct Reader {
    mistakes: Vec<RouterPolicyMistake>,
}

impl Reader {
    fn policy_file(&mut self, document: &Value) -> RouterPolicyConfig {
        if document.is_null() {
            return RouterPolicyConfig::default();
        }
        let Some(top) = self.mapping("policy file", document) else {
            return RouterPolicyConfig::default();
        };
        for key in self.keys("", top) {
            if let Some(later) = LATER_KEYS.into_iter().find(|later| *later == key) {
                self.mistakes
                    .push(RouterPolicyMistake::NotSupportedYet { key: later });
            } else {
                self.known("", key, TOP_LEVEL_KEYS);
            }
        }
        let worker_selection = top
            .get("worker_selection")
            .map(|value| self.worker_selection(value));
        RouterPolicyConfig {
            worker_selection,
            request_classifier: None,
        }
    }

    fn worker_selection(&mut self, value: &Value) -> WorkerSelectionConfig {
        const FIELD: &str = "worker_selection";
        let empty = Mapping::new();
        let section = if value.is_null() {
            Some(&empty)
        } else {
            self.mapping(FIELD, value)
        };
        let Some(section) = section else {
            return WorkerSelectionConfig::default();
        };
        for key in self.keys(FIELD, section) {
            self.known(
                FIELD,
                key,
                WorkerType::EVERY
                    .map(WorkerType::as_str)
                    .into_iter()
                    .chain(["instances"]),
            );
        }
        let earlier = self.mistakes.len();
        let config = WorkerSelectionConfig {
            aggregated: self.selection(section, WorkerType::Aggregated),
            prefill: self.selection(section, WorkerType::Prefill),
            decode: self.selection(section, WorkerType::Decode),
            encode: self.selection(section, WorkerType::Encode),
            instances: self.instances(section),
        };
        // Names that could not be read would be reported twice.
        if earlier == self.mistakes.len() {
            self.mistakes
                .extend(config.validate().err().into_iter().flatten());
        }
        config
    }

    fn selection(&mut self, section: &Mapping, role: WorkerType) -> Option<String> {
        let value = section
            .get(role.as_str())
            .filter(|value| !value.is_null())?;
        self.string(
            format!("worker_selection.{role}"),
            value,
            "the name of an instance, or default",
        )
        .map(str::to_owned)
    }

    fn instances(&mut self, section: &Mapping) -> Vec<WorkerSelectionInstance> {
        let Some(value) = section.get("instances").filter(|value| !value.is_null()) else {
            return Vec::new();
        };
        let Some(items) = value.as_sequence() else {
            self.wrong_kind(
                "worker_selection.instances".to_owned(),
                value,
                "a list of instances",
            );
            return Vec::new();
        };
        let items = items.iter().enumerate();
        items
            .filter_map(|(index, item)| {
                self.instance(&format!("worker_selection.instances[{index}]"), item)
            })
            .collect()
    }

    fn instance(&mut self, field: &str, value: &Value) -> Option<WorkerSelectionInstance> {
        let instance = self.mapping(field, value)?;
        for key in self.keys(field, instance) {
            self.known(field, key, INSTANCE_KEYS);
        }
        let name = self.required(field, instance, "name", "a name of your choice");
        let policy_type =
            self.required(field, instance, "type", "the name of a linked policy type");
        let parameters = match instance.get("parameters").filter(|value| !value.is_null()) {
            Some(value) => self
                .mapping(&format!("{field}.parameters"), value)
                .cloned()?,
            None => Mapping::new(),
        };
        let parameters = WorkerSelectionPolicyParameters::from_mapping(parameters);
        Some(WorkerSelectionInstance {
            name: name?,
            policy_type: policy_type?,
            parameters,
        })
    }

    fn required(
        &mut self,
        field: &str,
        section: &Mapping,
        key: &'static str,
        expected: &'static str,
    ) -> Option<String> {
        let field = format!("{field}.{key}");
        match section.get(key) {
            Some(value) if !value.is_null() => {
                self.string(field, value, expected).map(str::to_owned)
            }
            _ => {
                self.mistakes
                    .push(RouterPolicyMistake::Missing { field, expected });
                None
            }
        }
    }

    fn string<'v>(
        &mut self,
        field: String,
        value: &'v Value,
        expected: &'static str,
    ) -> Option<&'v str> {
        let text = value.as_str();
        if text.is_none() {
            self.wrong_kind(field, value, expected);
        }
        text
    }

    fn mapping<'v>(&mut self, field: &str, value: &'v Value) -> Option<&'v Mapping> {
        // A tagged value is not a mapping to us, whatever it wraps.
        let Value::Mapping(mapping) = value else {
            self.wrong_kind(field.to_owned(), value, "a mapping");
            return None;
        };
        Some(mapping)
    }

    /// The keys of `section` that are text; the others are mistakes.
    fn keys<'v>(&mut self, field: &str, section: &'v Mapping) -> Vec<&'v str> {
        let section_name = if field.is_empty() {
            "policy file"
        } else {
            field
        };
        let keys = section.keys();
        keys.filter_map(|key| self.string(format!("a key of {section_name}"), key, "a word"))
            .collect()
    }

    fn known(&mut self, field: &str, key: &str, known: impl IntoIterator<Item = &'static str>) {
        let known: Vec<&str> = known.into_iter().collect();
        if !known.contains(&key) {
            let field = if field.is_empty() {
                key.to_owned()
            } else {
                format!("{field}.{key}")
            };
            let choices = Choices::new("known keys", key, known);
            self.mistakes
                .push(RouterPolicyMistake::UnknownKey { field, choices });
        }
    }

    fn wrong_kind(&mut self, field: String, value: &Value, expected: &'static str) {
        self.mistakes.push(RouterPolicyMistake::WrongKind {
            field,
            value: shown(value),
            expected,
        });
    }
}

/// What stands in the file, in a few words.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "empty".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::String(value) => format!("{value:?}"),
        Value::Sequence(_) => "a list".to_owned(),
        Value::Mapping(_) => "a mapping".to_owned(),
        Value::Tagged(tagged) => format!("tagged {}", tagged.tag),
    }
}

/// Several mistakes in one line.
struct Listed<'a>(&'a [RouterPolicyMistake]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; also " };
            write!(f, "{separator}{mistake}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
