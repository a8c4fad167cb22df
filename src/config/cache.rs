//! The settings of what is known about caches; it asks no cache.

use std::time::Duration;

use pointsman_plugin::KvRouterConfig;
use pointsman_service::{AuditConfig, AuditMode, SharedCacheConfig};

use super::reader::Values;

const USE_EVENTS: &str = "DYN_ROUTER_USE_KV_EVENTS";
const TTL: &str = "DYN_ROUTER_TTL_SECS";
const PREDICTED_TTL: &str = "DYN_ROUTER_PREDICTED_TTL_SECS";

const MULTIPLIER: &str = "DYN_SHARED_CACHE_MULTIPLIER";
const URL: &str = "POINTSMAN_SHARED_CACHE_URL";

/// The cache that is asked before each decision, if any.
#[derive(Clone, Debug)]
pub(crate) struct SharedCache {
    url: Option<String>,
    deadline: Duration,
    max_questions: usize,
}

impl SharedCache {
    pub(super) fn read(values: &Values) -> Self {
        Self {
            url: values.text(URL),
            deadline: values.millis("POINTSMAN_SHARED_CACHE_TIMEOUT_MS"),
            max_questions: values.size("POINTSMAN_SHARED_CACHE_MAX_QUESTIONS"),
        }
    }

    pub(crate) fn config(&self) -> Option<SharedCacheConfig> {
        // The table lets through nothing but a URL that can be asked.
        let mut config = SharedCacheConfig::new(self.url.as_deref()?).ok()?;
        config.deadline = self.deadline;
        config.max_questions = self.max_questions;
        Some(config)
    }
}

pub(super) fn audit(values: &Values) -> AuditConfig {
    let mode = match values.text("POINTSMAN_AUDIT_CACHES").as_deref() {
        Some("off") => AuditMode::Off,
        Some("count") => AuditMode::Count,
        _ => AuditMode::Quarantine,
    };
    AuditConfig {
        mode,
        ..AuditConfig::default()
    }
}

/// Fills in where the index is fed from, and for how long what is routed is believed.
pub(super) fn apply(values: &mut Values, config: &mut KvRouterConfig) {
    config.use_kv_events = values.bool(USE_EVENTS);
    config.router_ttl_secs = values.number(TTL);
    let worth = values.is_set(MULTIPLIER);
    config.shared_cache_multiplier = worth.then(|| values.number(MULTIPLIER));
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
