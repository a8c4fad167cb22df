//! Reads every setting of the program once, at start; nothing else reads the environment.

mod cache;
pub(crate) mod document;
mod manual;
mod policy;
mod reader;
#[cfg(test)]
pub(crate) mod scratch;
mod selection;
mod settings_file;
mod spelling;
mod table;
#[cfg(test)]
mod tests;
mod value;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use pointsman_plugin::KvRouterConfig;
use pointsman_service::AuditConfig;
use pointsman_service::EventsConfig;

pub(crate) use manual::{markdown, plain};
pub(crate) use reader::{Environment, SettingError};
pub(crate) use selection::Selection;

use reader::Values;
use value::Port;

use crate::ext_proc;
use crate::picker;
use crate::serve;
use crate::telemetry;
use crate::tokenize::{ContentFormat, Engine, TokenizeConfig};

/// Everything the program was told, checked.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) model_name: Option<String>,
    /// For workers that state none.
    pub(crate) block_size: u32,
    pub(crate) workers_file: Option<PathBuf>,
    pub(crate) policy_file: Option<PathBuf>,
    pub(crate) router: KvRouterConfig,
    /// Of workers that state no capacity.
    pub(crate) predicted_blocks_per_rank: usize,
    pub(crate) max_index_entries: usize,
    pub(crate) shared_cache: cache::SharedCache,
    pub(crate) events: EventsConfig,
    pub(crate) cache_audit: AuditConfig,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) serve: serve::Config,
    pub(crate) selection: Selection,
    /// Where the admin pages are; `None` for nowhere.
    pub(crate) admin: Option<SocketAddr>,
    /// Longest wait for open exchanges, after the propagation of a stop.
    pub(crate) drain: Duration,
    pub(crate) log: telemetry::Config,
    pub(crate) picker: picker::Config,
    /// Published names that were set and have no effect so far.
    pub(crate) ignored: Vec<String>,
}

/// Where the tokenizer's files are, and how prompts become tokens.
#[derive(Clone, Debug)]
pub(crate) struct Tokenizer {
    pub(crate) dir: Option<PathBuf>,
    pub(crate) tokenize: TokenizeConfig,
}

impl Settings {
    /// Reads all settings, and all that is wrong with them; what is wrong has its default.
    pub(crate) fn examine(environment: &Environment<'_>) -> (Self, Vec<SettingError>) {
        let mut values = Values::collect(environment);
        if values.text("DYN_EPP_MODE").as_deref() == Some("dynamo") {
            values.refuse(
                "DYN_EPP_MODE",
                "there is no runtime mode; leave it unset, or set it to standalone",
            );
        }
        let (serve, admin) = serve(&mut values);
        let settings = Self {
            model_name: values.text("DYN_MODEL_NAME"),
            block_size: u32::try_from(values.size("DYN_KV_CACHE_BLOCK_SIZE")).unwrap_or(u32::MAX),
            workers_file: values.path("POINTSMAN_WORKERS_FILE"),
            policy_file: values.path("DYN_ROUTER_POLICY_CONFIG"),
            router: router(&mut values),
            predicted_blocks_per_rank: values.size("POINTSMAN_PREDICTED_BLOCKS_PER_RANK"),
            max_index_entries: values.size("POINTSMAN_MAX_INDEX_ENTRIES"),
            shared_cache: cache::SharedCache::read(&values),
            events: EventsConfig {
                suspect_time: values.seconds("POINTSMAN_KV_SUSPECT_SECS"),
                ..EventsConfig::default()
            },
            cache_audit: cache::audit(&values),
            tokenizer: Tokenizer {
                dir: values.path("POINTSMAN_TOKENIZER_DIR"),
                tokenize: tokenize(&values),
            },
            serve,
            selection: selection::read(&mut values),
            admin,
            drain: values.seconds("POINTSMAN_SHUTDOWN_DRAIN_SECS"),
            log: telemetry::Config {
                filter: values.text("POINTSMAN_LOG").unwrap_or_default(),
                json: values.text("POINTSMAN_LOG_FORMAT").as_deref() == Some("json"),
            },
            picker: picker::Config {
                debug_headers: values.bool("POINTSMAN_DEBUG_HEADERS"),
            },
            ignored: std::mem::take(&mut values.ignored),
        };
        (settings, values.mistakes)
    }

    /// Examines the settings of this process.
    pub(crate) fn of_process() -> (Self, Vec<SettingError>) {
        Self::of_process_with(&HashMap::new())
    }

    /// The same; what flags say, by the variable they stand for, wins.
    pub(crate) fn of_process_with(
        flags: &HashMap<&'static str, String>,
    ) -> (Self, Vec<SettingError>) {
        Self::examine(&Environment {
            read: &|name| {
                let flag = flags.get(name).cloned();
                flag.or_else(|| Some(std::env::var_os(name)?.to_string_lossy().into_owned()))
            },
            names: std::env::vars_os()
                .map(|(name, _)| name.to_string_lossy().into_owned())
                .collect(),
        })
    }
}

/// Whether a variable that is not ours has a value.
pub(crate) fn is_set_in_process(name: &str) -> bool {
    std::env::var_os(name).is_some()
}

fn router(values: &mut Values) -> KvRouterConfig {
    let track_active_blocks = values.bool("DYN_ROUTER_TRACK_ACTIVE_BLOCKS");
    let output_blocks_asked = values.is_set("DYN_ROUTER_TRACK_OUTPUT_BLOCKS");
    let track_output_blocks = values.bool("DYN_ROUTER_TRACK_OUTPUT_BLOCKS");
    if output_blocks_asked && track_output_blocks && !track_active_blocks {
        values.refuse(
            "DYN_ROUTER_TRACK_OUTPUT_BLOCKS",
            "true needs DYN_ROUTER_TRACK_ACTIVE_BLOCKS=true",
        );
    }
    let mut config = KvRouterConfig {
        overlap_score_credit: values.number("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT"),
        overlap_score_credit_decay: values.number("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY"),
        prefill_load_scale: values.number("DYN_ROUTER_PREFILL_LOAD_SCALE"),
        decode_active_request_weight: values.number("DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT"),
        host_cache_hit_weight: values.number("DYN_ROUTER_HOST_CACHE_HIT_WEIGHT"),
        disk_cache_hit_weight: values.number("DYN_ROUTER_DISK_CACHE_HIT_WEIGHT"),
        router_temperature: values.number("DYN_ROUTER_TEMPERATURE"),
        router_track_active_blocks: track_active_blocks,
        router_track_output_blocks: track_output_blocks && track_active_blocks,
        router_assume_kv_reuse: values.bool("DYN_ROUTER_ASSUME_KV_REUSE"),
        router_replica_sync: values.is_set("POINTSMAN_REPLICA_SYNC_PORT"),
        router_track_prefill_tokens: values.bool("DYN_ROUTER_TRACK_PREFILL_TOKENS"),
        ..KvRouterConfig::default()
    };
    cache::apply(values, &mut config);
    policy::apply(values, &mut config);
    config
}

fn tokenize(values: &Values) -> TokenizeConfig {
    TokenizeConfig {
        keep_refused_tools: values.bool("POINTSMAN_TOKENIZER_KEEP_REFUSED_TOOLS"),
        content_format: match values.text("POINTSMAN_TOKENIZER_CONTENT_FORMAT").as_deref() {
            Some("text") => ContentFormat::Text,
            Some("parts") => ContentFormat::Parts,
            _ => ContentFormat::Auto,
        },
        engine: match values.text("POINTSMAN_TOKENIZER_ENGINE").as_deref() {
            Some("fast") => Engine::Fast,
            Some("reference") => Engine::Reference,
            _ => Engine::Auto,
        },
        memo_bytes: values.size("POINTSMAN_TOKENIZER_MEMO_BYTES"),
        max_text_bytes: values.size("POINTSMAN_TOKENIZER_MAX_TEXT_BYTES"),
        offload_threads: values.size("POINTSMAN_TOKENIZER_THREADS"),
        offload_waiting: values.size("POINTSMAN_TOKENIZER_MAX_WAITING"),
        deadline: values.millis("DYN_EPP_TOKENIZATION_TIMEOUT_MS"),
        ..TokenizeConfig::default()
    }
}

/// How Envoy is served, and the address of the admin pages.
fn serve(values: &mut Values) -> (serve::Config, Option<SocketAddr>) {
    const ADMIN: &str = "DYN_EPP_METRICS_PORT";
    let ports = [
        (
            "POINTSMAN_EXT_PROC_PORT",
            values.port("POINTSMAN_EXT_PROC_PORT"),
        ),
        (
            "POINTSMAN_HEALTH_PORT",
            values.port("POINTSMAN_HEALTH_PORT"),
        ),
        (ADMIN, values.port(ADMIN)),
    ];
    for (index, (name, port)) in ports.iter().enumerate() {
        let taken = ports[..index].iter().find(|(_, other)| other == port);
        if let (Some((other, _)), Port::Number(number @ 1..)) = (taken, port) {
            let other = values.origin(other);
            values.refuse(name, format!("port {number} is that of {other} too"));
        }
    }
    let host = values
        .host("POINTSMAN_HOST")
        .unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let address = |port| match port {
        Port::Number(number) => SocketAddr::new(host, number),
        Port::Auto => SocketAddr::new(host, 0),
    };
    let [(_, ext_proc), (_, health), (_, admin)] = ports;
    let config = serve::Config {
        ext_proc: address(ext_proc),
        health: address(health),
        security: if values.bool("DYN_SECURE_SERVING") {
            serve::Security::SelfSigned
        } else {
            serve::Security::Plaintext
        },
        threads: values.size("POINTSMAN_THREADS"),
        connections: values.size("POINTSMAN_MAX_CONNECTIONS"),
        handshake: values.millis("POINTSMAN_TLS_HANDSHAKE_MS"),
        propagation: values.seconds("DYN_EPP_GRACEFUL_SHUTDOWN_PROPAGATION_SECS"),
        limits: exchange_limits(values),
    };
    let admin = (admin != Port::Number(0)).then(|| address(admin));
    (config, admin)
}

fn exchange_limits(values: &Values) -> ext_proc::Limits {
    ext_proc::Limits {
        body_bytes: values.size("POINTSMAN_MAX_BODY_BYTES"),
        body_idle: values.millis("POINTSMAN_BODY_IDLE_MS"),
        pick: values.millis("POINTSMAN_PICK_MS"),
        exchanges: values.size("DYN_EPP_MAX_INFLIGHT_REQUESTS"),
        response_silence: values.millis("POINTSMAN_RESPONSE_IDLE_MS"),
    }
}
