//! A real Envoy with its configuration for one test: finds its own ports, ends when dropped.
//! Never decides what is tested.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::client;
use crate::eventually;

/// How Envoy reaches the worker that the picker named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataPlane {
    /// An `ORIGINAL_DST` cluster dials the address in the header.
    OriginalDst,
    /// A cluster of known hosts, one of them chosen by the metadata.
    OverrideHost,
}

/// What Envoy does with a request when the picker does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureMode {
    Open,
    Closed,
}

#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) plane: DataPlane,
    pub(crate) failure_mode: FailureMode,
    pub(crate) picker: SocketAddr,
    pub(crate) workers: Vec<SocketAddr>,
}

#[derive(Debug)]
pub(crate) struct Envoy {
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    _process: Child,
    _folder: PathBuf,
}

impl Envoy {
    pub(crate) async fn start(setup: &Setup, folder: &Path) -> Self {
        let binary = std::env::var("POINTSMAN_ENVOY")
            .expect("POINTSMAN_ENVOY names Envoy's binary: run these tests as `./test envoy`");
        let config = folder.join("envoy.json");
        let admin_file = folder.join("envoy-admin");
        std::fs::write(&config, configuration(setup).to_string())
            .expect("write Envoy's configuration");
        let log = std::fs::File::create(folder.join("envoy.log")).expect("create Envoy's log");
        let process = Command::new(binary)
            .args([
                "--concurrency",
                "1",
                "--use-dynamic-base-id",
                "--log-level",
                "warning",
            ])
            .arg("--config-path")
            .arg(&config)
            .arg("--admin-address-path")
            .arg(&admin_file)
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .expect("start Envoy");
        let admin: SocketAddr = eventually("Envoy writes its admin address", async || {
            std::fs::read_to_string(&admin_file)
                .ok()?
                .trim()
                .parse()
                .ok()
        })
        .await;
        let address = eventually("Envoy listens", async || listener(admin).await).await;
        Self {
            address,
            admin,
            _process: process,
            _folder: folder.to_owned(),
        }
    }

    /// One of Envoy's counters or gauges.
    pub(crate) async fn stat(&self, name: &str) -> u64 {
        let text = client::get_text(self.admin, &format!("/stats?filter=^{name}$")).await;
        text.trim()
            .rsplit(": ")
            .next()
            .and_then(|value| value.parse().ok())
            .unwrap_or(0)
    }
}

async fn listener(admin: SocketAddr) -> Option<SocketAddr> {
    let text = client::try_get_text(admin, "/listeners?format=json").await?;
    let listeners: Value = serde_json::from_str(&text).ok()?;
    let socket = &listeners["listener_statuses"][0]["local_address"]["socket_address"];
    let port = u16::try_from(socket["port_value"].as_u64()?).ok()?;
    Some(SocketAddr::from(([127, 0, 0, 1], port)))
}

const DESTINATION: &str = "x-gateway-destination-endpoint";
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

fn socket(address: SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}

fn hosts(addresses: &[SocketAddr]) -> Value {
    let endpoints: Vec<Value> = addresses
        .iter()
        .map(|address| json!({"endpoint": {"address": socket(*address)}}))
        .collect();
    json!([{"lb_endpoints": endpoints}])
}

fn configuration(setup: &Setup) -> Value {
    json!({
        "admin": {"address": socket(SocketAddr::from(([127, 0, 0, 1], 0)))},
        "static_resources": {
            "listeners": [{
                "name": "gateway",
                "address": socket(SocketAddr::from(([127, 0, 0, 1], 0))),
                "per_connection_buffer_limit_bytes": 32768,
                "filter_chains": [{"filters": [{
                    "name": "envoy.filters.network.http_connection_manager",
                    "typed_config": connection_manager(setup),
                }]}],
            }],
            "clusters": [workers_cluster(setup), picker_cluster(setup)],
        },
    })
}

fn connection_manager(setup: &Setup) -> Value {
    let strip = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
        "mutations": {"request_mutations": [{"remove": DESTINATION}]},
    });
    let picker = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "10s"},
        "failure_mode_allow": setup.failure_mode == FailureMode::Open,
        "message_timeout": "1000s",
        "allow_mode_override": false,
        "processing_mode": {
            "request_header_mode": "SEND", "response_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED", "response_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND", "response_trailer_mode": "SEND",
        },
        "metadata_options": {
            "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
    });
    json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "codec_type": "AUTO",
        "http_protocol_options": {"enable_trailers": true},
        "route_config": {"virtual_hosts": [{
            "name": "all", "domains": ["*"],
            "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "workers", "timeout": "0s"}}],
        }]},
        "http_filters": [
            {"name": "strip-destination", "typed_config": strip},
            {"name": "picker", "typed_config": picker},
            {"name": "router", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}},
        ],
    })
}

fn workers_cluster(setup: &Setup) -> Value {
    let common = json!({"name": "workers", "connect_timeout": "2s"});
    let special = match setup.plane {
        DataPlane::OriginalDst => json!({
            "type": "ORIGINAL_DST",
            "lb_policy": "CLUSTER_PROVIDED",
            "original_dst_lb_config": {"use_http_header": true, "http_header_name": DESTINATION},
        }),
        DataPlane::OverrideHost => json!({
            "type": "STATIC",
            "load_assignment": {"cluster_name": "workers", "endpoints": hosts(&setup.workers)},
            "load_balancing_policy": {"policies": [{"typed_extension_config": {
                "name": "override-host",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost",
                    "override_host_sources": [{"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}],
                    "selected_host_key": {"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint-served"}]},
                    "fallback_policy": {"policies": [{"typed_extension_config": {
                        "name": "round-robin",
                        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin"},
                    }}]},
                },
            }}]},
        }),
    };
    merged(common, special)
}

fn picker_cluster(setup: &Setup) -> Value {
    json!({
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "1s",
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "health_checks": [{
            "timeout": "1s", "interval": "1s", "no_traffic_interval": "1s", "unhealthy_threshold": 1, "healthy_threshold": 1,
            "grpc_health_check": {"service_name": "envoy.service.ext_proc.v3.ExternalProcessor"},
        }],
        "typed_extension_protocol_options": {HTTP_OPTIONS: {
            "@type": format!("type.googleapis.com/{HTTP_OPTIONS}"),
            "explicit_http_config": {"http2_protocol_options": {}},
        }},
        "load_assignment": {"cluster_name": "picker", "endpoints": hosts(&[setup.picker])},
    })
}

fn merged(mut left: Value, right: Value) -> Value {
    if let (Some(into), Value::Object(from)) = (left.as_object_mut(), right) {
        into.extend(from);
    }
    left
}
