//! The two Envoys of the latency bench: the one measured, with a way past each picker, and the one
//! that stands for ten workers. It only writes their configuration.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};

const HCM: &str = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const ROUTER: &str = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
const BUFFER: &str = "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer";
const EXT_PROC: &str =
    "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor";
const HTTP_OPTIONS: &str =
    "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
const BUFFER_BYTES: u32 = 32 * 1024;
const MANY: u32 = 40_000;

/// A listener of the measured Envoy, and the picker behind it, if any.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) port: u16,
    pub(super) picker_port: Option<u16>,
}

/// Envoy in front: workers in turn by its own round robin where a way has no picker, else where the picker says.
pub(super) fn front(admin_port: u16, ways: &[Way], workers: &[SocketAddr]) -> Value {
    let listeners: Vec<_> = ways.iter().copied().map(way).collect();
    let mut clusters = vec![round_robin(workers), original_destination()];
    clusters.extend(ways.iter().filter_map(|way| way.picker_port).map(picker));
    bootstrap(admin_port, &listeners, &clusters)
}

/// Ten workers in one Envoy: each reads the whole request, then gives a fixed answer with usage.
pub(super) fn upstream(admin_port: u16, workers: &[SocketAddr]) -> Value {
    let answer = json!({
        "id": "chatcmpl-bench", "object": "chat.completion", "created": 0, "model": "bench",
        "choices": [{"index": 0, "finish_reason": "stop",
            "message": {"role": "assistant", "content": "a short answer that is always the same. ".repeat(8)}}],
        "usage": {"prompt_tokens": 200, "completion_tokens": 64, "total_tokens": 264},
    });
    let route = json!({
        "match": {"prefix": "/"},
        "direct_response": {"status": 200, "body": {"inline_string": answer.to_string()}},
        "response_headers_to_add": [{
            "header": {"key": "content-type", "value": "application/json"},
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        }],
    });
    // Without the buffer a direct response would not wait for the request's body, as a worker does.
    let buffer = json!({
        "name": "envoy.filters.http.buffer",
        "typed_config": {"@type": BUFFER, "max_request_bytes": 8 << 20},
    });
    let listen = |worker: &SocketAddr| listener(*worker, &route, std::slice::from_ref(&buffer));
    let listeners: Vec<_> = workers.iter().map(listen).collect();
    bootstrap(admin_port, &listeners, &[])
}

fn bootstrap(admin_port: u16, listeners: &[Value], clusters: &[Value]) -> Value {
    json!({
        "admin": {"address": address(SocketAddr::from((Ipv4Addr::LOCALHOST, admin_port)))},
        "static_resources": {"listeners": listeners, "clusters": clusters},
    })
}

fn way(way: Way) -> Value {
    let cluster = if way.picker_port.is_some() {
        "original_destination"
    } else {
        "round_robin"
    };
    let route =
        json!({"match": {"prefix": "/"}, "route": {"cluster": cluster, "timeout": "86400s"}});
    let filters: Vec<_> = way.picker_port.map(ext_proc).into_iter().collect();
    listener(
        SocketAddr::from((Ipv4Addr::LOCALHOST, way.port)),
        &route,
        &filters,
    )
}

fn listener(bind: SocketAddr, route: &Value, filters: &[Value]) -> Value {
    let mut filters = filters.to_vec();
    filters.push(json!({"name": "envoy.filters.http.router", "typed_config": {"@type": ROUTER}}));
    json!({
        "name": bind.to_string(),
        "address": address(bind),
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": HCM,
                "stat_prefix": "bench",
                "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
                "http_filters": filters,
            },
        }]}],
    })
}

fn ext_proc(picker_port: u16) -> Value {
    json!({
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": EXT_PROC,
            "grpc_service": {"envoy_grpc": {"cluster_name": picker_name(picker_port)}, "timeout": "10s"},
            "processing_mode": {
                "request_header_mode": "SEND",
                "response_header_mode": "SEND",
                "request_body_mode": "FULL_DUPLEX_STREAMED",
                "response_body_mode": "FULL_DUPLEX_STREAMED",
                "request_trailer_mode": "SEND",
                "response_trailer_mode": "SEND",
            },
            "message_timeout": "1000s",
        },
    })
}

fn round_robin(workers: &[SocketAddr]) -> Value {
    cluster("round_robin", workers)
}

fn original_destination() -> Value {
    json!({
        "name": "original_destination",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "5s",
        "circuit_breakers": circuit_breakers(),
        "original_dst_lb_config": {
            "use_http_header": true,
            "http_header_name": "x-gateway-destination-endpoint",
        },
    })
}

fn picker(port: u16) -> Value {
    let mut picker = cluster(
        &picker_name(port),
        &[SocketAddr::from((Ipv4Addr::LOCALHOST, port))],
    );
    picker["typed_extension_protocol_options"] = json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": HTTP_OPTIONS,
            "explicit_http_config": {"http2_protocol_options": {
                "initial_stream_window_size": 65536,
                "initial_connection_window_size": 1_048_576,
            }},
        },
    });
    picker
}

fn picker_name(port: u16) -> String {
    format!("picker_{port}")
}

fn cluster(name: &str, endpoints: &[SocketAddr]) -> Value {
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|endpoint| json!({"endpoint": {"address": address(*endpoint)}}))
        .collect();
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": circuit_breakers(),
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
    })
}

fn circuit_breakers() -> Value {
    json!({"thresholds": [{"max_connections": MANY, "max_pending_requests": MANY, "max_requests": MANY}]})
}

fn address(at: SocketAddr) -> Value {
    json!({"socket_address": {"address": at.ip().to_string(), "port_value": at.port()}})
}
