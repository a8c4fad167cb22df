//! The `parameters` of a plugin in the policy file, and how a provider reads and refuses them.
//!
//! It never knows which parameters a plugin has.

use serde::de::DeserializeOwned;
use serde_yaml::{Mapping, Value};

use crate::suggest::nearest;

/// The parameters written for one plugin instance: a YAML mapping, empty where none are written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerSelectionPolicyParameters(Mapping);

impl WorkerSelectionPolicyParameters {
    /// Parameters as written in YAML, for tests of a provider. An empty text gives no parameters.
    pub fn from_yaml(text: &str) -> Result<Self, WorkerSelectionPolicyProviderError> {
        let parameters: Option<Mapping> =
            serde_yaml::from_str(text).map_err(|error| provider_error(&error))?;
        Ok(Self(parameters.unwrap_or_default()))
    }

    /// Reads all parameters as a `T`. Put `#[serde(deny_unknown_fields)]` on it, so that a misspelt name is refused;
    /// the error then names the field, what was expected and the nearest known name.
    pub fn deserialize<T: DeserializeOwned>(
        &self,
    ) -> Result<T, WorkerSelectionPolicyProviderError> {
        serde_yaml::from_value(Value::Mapping(self.0.clone())).map_err(|error| {
            // Reading a value does not say where in it the mistake is; reading its text does.
            let located = serde_yaml::to_string(&self.0)
                .ok()
                .and_then(|text| serde_yaml::from_str::<T>(&text).err());
            provider_error(&located.unwrap_or(error))
        })
    }

    pub(crate) fn from_mapping(mapping: Mapping) -> Self {
        Self(mapping)
    }
}

/// Why a provider refuses its parameters. Displays as the message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WorkerSelectionPolicyProviderError(String);

impl WorkerSelectionPolicyProviderError {
    /// Refusal with a message that names the parameter, its value and what is expected.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// The YAML error without its line and column, which are not those of the policy file, and with a suggestion.
fn provider_error(error: &serde_yaml::Error) -> WorkerSelectionPolicyProviderError {
    let mut message = error.to_string();
    if let Some(location) = error.location() {
        let place = format!(" at line {} column {}", location.line(), location.column());
        message = message.replace(&place, "");
    }
    if let Some(suggestion) = suggestion(&message) {
        message = format!("{message}; did you mean {suggestion}?");
    }
    WorkerSelectionPolicyProviderError(message)
}

/// The known name nearest to the unknown one, if `message` is serde's about an unknown field or variant: it then quotes
/// the unknown name and after it all known ones.
fn suggestion(message: &str) -> Option<String> {
    let (_, names) = message
        .split_once("unknown field ")
        .or_else(|| message.split_once("unknown variant "))?;
    let mut quoted = names.split('`').skip(1).step_by(2);
    let unknown = quoted.next()?;
    let known: Vec<&str> = quoted.collect();
    nearest(unknown, &known).map(str::to_owned)
}

#[cfg(test)]
mod tests;
