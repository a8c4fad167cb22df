//! Settings of ports, bounds and logs; listed only, read elsewhere.

use super::Kind::{Bool, Bytes, Choice, Count, Host, LogFilter, Port};
use super::{MILLIS, SECONDS, Setting, used};

pub(super) const SERVER: &[Setting] = &[
    used(
        "server.host",
        "POINTSMAN_HOST",
        Host,
        "0.0.0.0",
        "Address that every port listens on; `::` for IPv6.",
    ),
    used(
        "server.ext_proc_port",
        "POINTSMAN_EXT_PROC_PORT",
        Port,
        "9002",
        "Envoy's external-processing stream (gRPC).",
    ),
    used(
        "server.health_port",
        "POINTSMAN_HEALTH_PORT",
        Port,
        "9003",
        "gRPC health, in plain text.",
    ),
    used(
        "server.admin_port",
        "DYN_EPP_METRICS_PORT",
        Port,
        "9090",
        "Metrics, readiness and the read-only pages (HTTP). 0 turns them off.",
    ),
    used(
        "server.admin_api",
        "POINTSMAN_ADMIN_API",
        Bool,
        "false",
        "Serve the selection API on the admin port too: read-only, unless POINTSMAN_SELECTION_TOKENS_FILE names tokens.",
    ),
    used(
        "server.secure",
        "DYN_SECURE_SERVING",
        Bool,
        "true",
        "TLS on the external-processing port, with a certificate made at start; `false` is plain HTTP/2.",
    ),
    used(
        "server.threads",
        "POINTSMAN_THREADS",
        Count { min: 0, max: 1024 },
        "0",
        "Threads that serve Envoy's streams; 0 is one per processor.",
    ),
];

pub(super) const LIMITS: &[Setting] = &[
    used(
        "limits.max_inflight_requests",
        "DYN_EPP_MAX_INFLIGHT_REQUESTS",
        Count {
            min: 1,
            max: 1_000_000,
        },
        "1024",
        "Exchanges open at once; one more is answered 429.",
    ),
    used(
        "limits.max_body_bytes",
        "POINTSMAN_MAX_BODY_BYTES",
        Bytes { min: 1 },
        "32MiB",
        "Largest request body; a larger one is answered 413.",
    ),
    used(
        "limits.max_connections",
        "POINTSMAN_MAX_CONNECTIONS",
        Count {
            min: 1,
            max: 1_000_000,
        },
        "1024",
        "Connections from Envoy open at once; one more is closed.",
    ),
    used(
        "limits.body_idle_ms",
        "POINTSMAN_BODY_IDLE_MS",
        MILLIS,
        "60000",
        "Longest silence within a request body; then 408.",
    ),
    used(
        "limits.pick_ms",
        "POINTSMAN_PICK_MS",
        MILLIS,
        "60000",
        "Longest time for a pick as a whole, above the waits that it bounds itself; then 503.",
    ),
    used(
        "limits.response_idle_ms",
        "POINTSMAN_RESPONSE_IDLE_MS",
        MILLIS,
        "1800000",
        "Longest silence after the pick; then its load is freed and the stream kept.",
    ),
    used(
        "limits.tls_handshake_ms",
        "POINTSMAN_TLS_HANDSHAKE_MS",
        MILLIS,
        "10000",
        "Longest TLS handshake.",
    ),
    used(
        "limits.shutdown_propagation_secs",
        "DYN_EPP_GRACEFUL_SHUTDOWN_PROPAGATION_SECS",
        SECONDS,
        "5",
        "Wait between reporting `NOT_SERVING` and refusing streams, so that Envoy learns of it first.",
    ),
    used(
        "limits.shutdown_drain_secs",
        "POINTSMAN_SHUTDOWN_DRAIN_SECS",
        SECONDS,
        "30",
        "Longest wait for open exchanges to end after that.",
    ),
];

pub(super) const LOGS: &[Setting] = &[
    used(
        "log.level",
        "POINTSMAN_LOG",
        LogFilter,
        "info",
        "Log filter: a level, or levels by module.",
    ),
    used(
        "log.format",
        "POINTSMAN_LOG_FORMAT",
        Choice(&["text", "json"]),
        "text",
        "One line of text or of JSON per event.",
    ),
    used(
        "debug_headers",
        "POINTSMAN_DEBUG_HEADERS",
        Bool,
        "false",
        "Put `x-pointsman-predicted-cached-tokens` on each response.",
    ),
];
