//! Settings of the selection service over HTTP; listed only, read elsewhere.

use super::Kind::{Bool, Bytes, Count, Path, Port, Seconds, Text, Weight};
use super::{DAY_SECONDS, SECONDS, Setting, used};

pub(super) const SELECTION: &[Setting] = &[
    used(
        "selection.port",
        "POINTSMAN_SELECTION_PORT",
        Port,
        "8092",
        "Port of `pointsman select-service` (HTTP). Flag `--port`.",
    ),
    used(
        "selection.threads",
        "POINTSMAN_SELECTION_THREADS",
        Count { min: 1, max: 1024 },
        "4",
        "Threads that serve its callers, and as many that take in KV events. Flag `--threads`.",
    ),
    used(
        "selection.indexer_peers",
        "POINTSMAN_INDEXER_PEERS",
        Text,
        "",
        "HTTP URLs, separated by commas, whose `/dump` fills the index at start, the picker's too; the first that answers counts. Flag `--indexer-peers`.",
    ),
    used(
        "selection.indexer_peers_token_file",
        "POINTSMAN_INDEXER_PEERS_TOKEN_FILE",
        Path,
        "",
        "File with the bearer token that those peers are sent.",
    ),
    used(
        "selection.indexer_peers_ca",
        "POINTSMAN_INDEXER_PEERS_CA",
        Path,
        "",
        "CA certificates (PEM) that those peers are checked with; `https` needs it. A peer that asks for a certificate is shown `selection.tls_certificate`.",
    ),
    used(
        "selection.recovery_max_secs",
        "POINTSMAN_RECOVERY_MAX_SECS",
        Seconds {
            min: 1,
            max: DAY_SECONDS,
        },
        "30",
        "Longest time at start for asking those peers; `/ready` is 503, and the picker's gRPC health `NOT_SERVING`, until then.",
    ),
    used(
        "selection.recovery_max_bytes",
        "POINTSMAN_RECOVERY_MAX_BYTES",
        Bytes { min: 1 },
        "1GiB",
        "How much of a peer's dump is read. It is never in memory whole.",
    ),
    used(
        "selection.recovery_max_blocks",
        "POINTSMAN_RECOVERY_MAX_BLOCKS",
        Count {
            min: 1,
            max: 1_000_000_000,
        },
        "10000000",
        "How many blocks of a peer's dump are kept for their workers, 16 bytes each.",
    ),
    Setting {
        aliases: &["DYN_EPP_REPLICA_SYNC_PORT"],
        ..used(
            "selection.replica_sync_port",
            "POINTSMAN_REPLICA_SYNC_PORT",
            Port,
            "",
            "Port on which load is told to other replicas (ZMQ PUB, on all addresses, without authentication); unset: none is told. Flag `--replica-sync-port`.",
        )
    },
    used(
        "selection.replica_sync_peers",
        "POINTSMAN_REPLICA_SYNC_PEERS",
        Text,
        "",
        "Other replicas whose load is followed, `tcp://host:port` each, separated by commas; needs the port. Flag `--replica-sync-peers`.",
    ),
    used(
        "selection.cache_ttl_secs",
        "POINTSMAN_SELECTION_CACHE_TTL_SECS",
        SECONDS,
        "120",
        "How long a selection waits to be reserved. Flag `--selection-cache-ttl-secs`.",
    ),
    used(
        "selection.cache_max_entries",
        "POINTSMAN_SELECTION_CACHE_MAX_ENTRIES",
        Count {
            min: 0,
            max: 100_000_000,
        },
        "4096",
        "Selections that wait at once; the oldest make room. Flag `--selection-cache-max-entries`.",
    ),
    used(
        "selection.cache_max_bytes",
        "POINTSMAN_SELECTION_CACHE_MAX_BYTES",
        Bytes { min: 0 },
        "256MiB",
        "Approximate memory of the selections that wait. Flag `--selection-cache-max-bytes`.",
    ),
    used(
        "selection.reservation_silence_secs",
        "DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS",
        Seconds {
            min: 1,
            max: 365 * DAY_SECONDS,
        },
        "3600",
        "A reservation made over HTTP ends when nothing is heard of it for this long.",
    ),
    used(
        "selection.max_reservations",
        "POINTSMAN_SELECTION_MAX_RESERVATIONS",
        Count {
            min: 1,
            max: 100_000_000,
        },
        "1000000",
        "Reservations held over HTTP at once; one more is answered 429.",
    ),
    used(
        "selection.prefill_busy_threshold",
        "DYN_ROUTER_CONDITIONAL_DISAGG_PREFILL_BUSY_THRESHOLD",
        Weight,
        "",
        "Share of `max_num_batched_tokens` above which an advisory answer calls a worker's prefill busy.",
    ),
    used(
        "selection.decode_busy_threshold",
        "DYN_ROUTER_CONDITIONAL_DISAGG_DECODE_BUSY_THRESHOLD",
        Weight,
        "",
        "Share of `total_kv_blocks` above which an answer calls a worker's decoding busy.",
    ),
    used(
        "selection.max_body_bytes",
        "POINTSMAN_SELECTION_MAX_BODY_BYTES",
        Bytes { min: 1 },
        "8MiB",
        "Largest request body; a larger one is answered 413.",
    ),
    used(
        "selection.tls_certificate",
        "POINTSMAN_SELECTION_TLS_CERTIFICATE",
        Path,
        "",
        "Certificate chain (PEM), read again when it changes. With `selection.tls_key` it turns TLS on.",
    ),
    used(
        "selection.tls_key",
        "POINTSMAN_SELECTION_TLS_KEY",
        Path,
        "",
        "Private key (PEM) of that certificate.",
    ),
    used(
        "selection.tls_client_ca",
        "POINTSMAN_SELECTION_TLS_CLIENT_CA",
        Path,
        "",
        "CA certificates (PEM): only clients with a certificate of one of them are let in.",
    ),
    used(
        "selection.tokens_file",
        "POINTSMAN_SELECTION_TOKENS_FILE",
        Path,
        "",
        "Bearer tokens, one a line: `read <token>` or `write <token>`; read again when it changes. Unset: no token is asked for.",
    ),
    used(
        "selection.require_auth",
        "POINTSMAN_SELECTION_REQUIRE_AUTH",
        Bool,
        "false",
        "Refuse to start without tokens or client certificates where the port is open beyond this machine. Flag `--require-auth`.",
    ),
];
