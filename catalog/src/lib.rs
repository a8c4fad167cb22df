//! The policies that Pointsman ships, each under its registered name.
//!
//! It never sees more of Pointsman than any private catalog does: the policy interface.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod default_cost;

use std::sync::Arc;

use pointsman_plugin::plugins::{RouterPluginRegistry, WorkerSelectionPolicyRegistryError};

pub use default_cost::TYPE as DEFAULT_COST;

/// Links every shipped policy. A name that is already taken is refused.
pub fn register(
    registry: &mut RouterPluginRegistry,
) -> Result<(), WorkerSelectionPolicyRegistryError> {
    registry.register_worker_selection(default_cost::TYPE, Arc::new(default_cost::provider))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registering_twice_is_refused_by_name() {
        let mut registry = RouterPluginRegistry::default();
        register(&mut registry).unwrap();
        let error = register(&mut registry).unwrap_err().to_string();
        assert_eq!(
            error,
            "policy type \"dynamo-default-cost-fn\" is already registered"
        );
    }
}
