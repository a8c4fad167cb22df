//! The settings of what is known about caches; it asks no cache.

use pointsman_plugin::KvRouterConfig;

use super::reader::Values;

const USE_EVENTS: &str = "DYN_ROUTER_USE_KV_EVENTS";
const TTL: &str = "DYN_ROUTER_TTL_SECS";
const PREDICTED_TTL: &str = "DYN_ROUTER_PREDICTED_TTL_SECS";

/// Fills in where the index is fed from, and for how long what is routed is believed.
pub(super) fn apply(values: &mut Values, config: &mut KvRouterConfig) {
    config.use_kv_events = values.bool(USE_EVENTS);
    config.router_ttl_secs = values.number(TTL);
    let predicted = values.is_set(PREDICTED_TTL);
    config.router_predicted_ttl_secs = predicted.then(|| values.number(PREDICTED_TTL));
    if predicted && !config.use_kv_events {
        values.refuse(
            PREDICTED_TTL,
            format!("needs {USE_EVENTS}=true; without events {TTL} says how long"),
        );
        config.router_predicted_ttl_secs = None;
    }
    for (name, seconds) in [
        (TTL, Some(config.router_ttl_secs)),
        (PREDICTED_TTL, config.router_predicted_ttl_secs),
    ] {
        if seconds == Some(0.0) {
            values.refuse(name, "0 is no time, expected more");
        }
    }
}
