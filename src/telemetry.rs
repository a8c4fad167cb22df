//! Logs and metrics of the process; never decides what is worth telling.

use std::io::IsTerminal as _;

use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt as _;

/// How events are logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// A filter that is known to parse.
    pub filter: String,
    /// One JSON object per event in place of a line of text.
    pub json: bool,
}

/// Starts logging to standard error; a subscriber that an embedding program installed stays.
pub fn init(config: &Config) {
    let filter = EnvFilter::try_new(&config.filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let started = if config.json {
        builder.json().flatten_event(true).finish().try_init()
    } else {
        builder
            .with_ansi(std::io::stderr().is_terminal())
            .finish()
            .try_init()
    };
    // The only error is that one is installed already: then its owner decides.
    drop(started);
}

/// A registry with what describes the process itself.
pub fn registry() -> Registry {
    let mut registry = Registry::default();
    registry.register(
        "pointsman_build",
        "Version of the running program",
        Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]),
    );
    registry
}
