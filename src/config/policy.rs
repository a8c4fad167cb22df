//! Reads the router policy file into the router's configuration; resolves no policy.

use std::path::Path;

use pointsman_plugin::{KvRouterConfig, RouterPolicyConfig};

use super::document;
use super::reader::Values;

const FILE: &str = "DYN_ROUTER_POLICY_CONFIG";

/// Fills in the instances and selections of the policy file and of the role variables.
pub(super) fn apply(values: &mut Values, config: &mut KvRouterConfig) {
    config.worker_selection_override = values.text("DYN_ROUTER_WORKER_SELECTION_POLICY");
    config.prefill_override = values.text("DYN_ROUTER_PREFILL_POLICY");
    config.decode_override = values.text("DYN_ROUTER_DECODE_POLICY");
    let Some(path) = values.path(FILE) else {
        return;
    };
    match load(&path) {
        Ok(policy) => {
            config.worker_selection = policy.worker_selection;
            config.request_classifier = policy.request_classifier;
        }
        Err(problem) => values.refuse(FILE, problem),
    }
}

fn load(path: &Path) -> Result<RouterPolicyConfig, String> {
    let text = document::read(path).map_err(|error| error.to_string())?;
    RouterPolicyConfig::from_yaml(&text).map_err(|error| error.to_string())
}
