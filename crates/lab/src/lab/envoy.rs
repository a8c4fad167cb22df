//! The configuration of the lab's Envoy: one listener that asks Pointsman, one that does plain round robin.
//! Never starts it.

use std::net::SocketAddr;

use serde_json::{Value, json};

/// Header by which the picker names the endpoint.
const DESTINATION: &str = "x-gateway-destination-endpoint";
const API: &str = "type.googleapis.com/envoy";

/// Addresses the configuration is made of.
#[derive(Clone, Debug)]
pub(super) struct Wiring {
    pub(super) admin: SocketAddr,
    /// Asks Pointsman.
    pub(super) picked: SocketAddr,
    /// Takes the workers in turn.
    pub(super) round_robin: SocketAddr,
    pub(super) ext_proc: SocketAddr,
    pub(super) workers: Vec<SocketAddr>,
}

/// The bootstrap file. It is JSON, which Envoy takes as well as YAML.
pub(super) fn bootstrap(wiring: &Wiring) -> String {
    let config = json!({
        "admin": { "address": socket(wiring.admin) },
        "static_resources": {
            "listeners": [
                listener("picked", wiring.picked, "picked", vec![strip_destination(), ext_proc()]),
                listener("round_robin", wiring.round_robin, "round_robin", Vec::new()),
            ],
            "clusters": [
                original_destination(),
                round_robin(&wiring.workers),
                ext_proc_cluster(wiring.ext_proc),
            ],
        },
    });
    format!("{config:#}\n")
}

fn listener(name: &str, address: SocketAddr, cluster: &str, filters: Vec<Value>) -> Value {
    let router = json!({
        "name": "envoy.filters.http.router",
        "typed_config": {
            "@type": format!("{API}.extensions.filters.http.router.v3.Router"),
            "suppress_envoy_headers": true,
        },
    });
    let filters: Vec<Value> = filters.into_iter().chain([router]).collect();
    let route = json!({
        "match": { "prefix": "/" },
        "route": { "cluster": cluster, "timeout": "86400s", "idle_timeout": "86400s" },
    });
    json!({
        "name": name,
        "address": socket(address),
        "per_connection_buffer_limit_bytes": 32_768,
        "filter_chains": [{ "filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": format!("{API}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"),
                "stat_prefix": name,
                "codec_type": "AUTO",
                "server_header_transformation": "PASS_THROUGH",
                "use_remote_address": true,
                "normalize_path": true,
                "merge_slashes": true,
                "path_with_escaped_slashes_action": "UNESCAPE_AND_REDIRECT",
                "http2_protocol_options": {
                    "max_concurrent_streams": 1_000,
                    "initial_stream_window_size": 65_536,
                    "initial_connection_window_size": 1_048_576,
                },
                "route_config": {
                    "name": name,
                    "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": [route] }],
                },
                "http_filters": filters,
            },
        }] }],
    })
}

/// A client may not name the endpoint itself; only the picker may.
fn strip_destination() -> Value {
    json!({
        "name": "envoy.filters.http.header_mutation",
        "typed_config": {
            "@type": format!("{API}.extensions.filters.http.header_mutation.v3.HeaderMutation"),
            "mutations": { "request_mutations": [{ "remove": DESTINATION }] },
        },
    })
}

fn ext_proc() -> Value {
    json!({
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": format!("{API}.extensions.filters.http.ext_proc.v3.ExternalProcessor"),
            "grpc_service": { "envoy_grpc": { "cluster_name": "ext_proc", "authority": "pointsman" }, "timeout": "10s" },
            "failure_mode_allow": false,
            "message_timeout": "1000s",
            "processing_mode": {
                "request_header_mode": "SEND",
                "response_header_mode": "SEND",
                "request_body_mode": "FULL_DUPLEX_STREAMED",
                "response_body_mode": "FULL_DUPLEX_STREAMED",
                "request_trailer_mode": "SEND",
                "response_trailer_mode": "SEND",
            },
            "response_attributes": ["upstream.address"],
            "metadata_options": {
                "forwarding_namespaces": { "untyped": ["envoy.lb", "envoy.lb.subset_hint"] },
                "receiving_namespaces": { "untyped": ["envoy.lb"] },
            },
        },
    })
}

fn original_destination() -> Value {
    json!({
        "name": "picked",
        "type": "ORIGINAL_DST",
        "connect_timeout": "10s",
        "lb_policy": "CLUSTER_PROVIDED",
        "circuit_breakers": wide_open(),
        "original_dst_lb_config": { "use_http_header": true, "http_header_name": DESTINATION },
    })
}

fn round_robin(workers: &[SocketAddr]) -> Value {
    let endpoint = |worker: &SocketAddr| json!({ "endpoint": { "address": socket(*worker) } });
    let endpoints: Vec<Value> = workers.iter().map(endpoint).collect();
    json!({
        "name": "round_robin",
        "type": "STATIC",
        "connect_timeout": "10s",
        "lb_policy": "ROUND_ROBIN",
        "circuit_breakers": wide_open(),
        "load_assignment": { "cluster_name": "round_robin", "endpoints": [{ "lb_endpoints": endpoints }] },
    })
}

fn ext_proc_cluster(address: SocketAddr) -> Value {
    let http2 = json!({
        "@type": format!("{API}.extensions.upstreams.http.v3.HttpProtocolOptions"),
        "explicit_http_config": { "http2_protocol_options": {
            "initial_stream_window_size": 65_536,
            "initial_connection_window_size": 1_048_576,
        } },
    });
    json!({
        "name": "ext_proc",
        "type": "STATIC",
        "connect_timeout": "10s",
        "circuit_breakers": wide_open(),
        // Without it Envoy would send streams to a picker that is known to be down.
        "common_lb_config": { "healthy_panic_threshold": { "value": 0 } },
        "health_checks": [{
            "timeout": "2s",
            "interval": "5s",
            "unhealthy_threshold": 3,
            "healthy_threshold": 1,
            "grpc_health_check": { "service_name": "envoy.service.ext_proc.v3.ExternalProcessor" },
        }],
        "typed_extension_protocol_options": { "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2 },
        "load_assignment": {
            "cluster_name": "ext_proc",
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": socket(address) } }] }],
        },
    })
}

fn wide_open() -> Value {
    json!({ "thresholds": [{
        "max_connections": 40_000,
        "max_pending_requests": 40_000,
        "max_requests": 40_000,
        "max_retries": 1_024,
    }] })
}

fn socket(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_destination_is_stripped_before_the_picker_is_asked() {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let text = bootstrap(&Wiring {
            admin: address,
            picked: address,
            round_robin: address,
            ext_proc: address,
            workers: vec![address],
        });
        let config: Value = serde_json::from_str(&text).unwrap();
        let manager = "/filter_chains/0/filters/0/typed_config/http_filters";
        let names = |listener: usize| -> Vec<String> {
            let filters = config["static_resources"]["listeners"][listener]
                .pointer(manager)
                .unwrap();
            let name = |filter: &Value| {
                filter["name"]
                    .as_str()
                    .unwrap()
                    .replace("envoy.filters.http.", "")
            };
            filters.as_array().unwrap().iter().map(name).collect()
        };
        assert_eq!(names(0), ["header_mutation", "ext_proc", "router"]);
        assert_eq!(names(1), ["router"]);
    }
}
