//! The settings of the selection service over HTTP; it opens no file that they name.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use pointsman_service::http::BusyThresholds;
use pointsman_service::{PendingConfig, ReservationsConfig, check_peer_endpoint};

use super::reader::Values;
use super::value::Port;

/// How `pointsman select-service` runs.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    pub(crate) address: SocketAddr,
    /// Threads that serve callers and take in events.
    pub(crate) threads: usize,
    pub(crate) pending: PendingConfig,
    pub(crate) reservations: ReservationsConfig,
    pub(crate) recovery: Recovery,
    pub(crate) busy: BusyThresholds,
    pub(crate) max_body_bytes: usize,
    pub(crate) tls_certificate: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) tls_client_ca: Option<PathBuf>,
    pub(crate) tokens_file: Option<PathBuf>,
    pub(crate) require_auth: bool,
    /// Where load is told to other replicas, and whose is followed.
    pub(crate) replica_sync: Option<ReplicaSync>,
    /// Whether the picker serves the API on its admin port.
    pub(crate) on_admin_port: bool,
}

/// Whose index is taken over at start, and how much of it.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    pub(crate) peers: Vec<String>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) max_time: Duration,
    pub(crate) max_bytes: u64,
    pub(crate) max_blocks: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReplicaSync {
    /// 0 for one that the system picks.
    pub(crate) port: u16,
    pub(crate) peers: Vec<String>,
}

pub(super) fn read(values: &mut Values) -> Selection {
    let replica_sync = replica_sync(values);
    let host = values
        .host("POINTSMAN_HOST")
        .unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let port = match values.port("POINTSMAN_SELECTION_PORT") {
        Port::Number(port) => port,
        Port::Auto => 0,
    };
    Selection {
        address: SocketAddr::new(host, port),
        threads: values.size("POINTSMAN_SELECTION_THREADS").max(1),
        pending: PendingConfig {
            time_to_live: values.seconds("POINTSMAN_SELECTION_CACHE_TTL_SECS"),
            max_entries: values.size("POINTSMAN_SELECTION_CACHE_MAX_ENTRIES"),
            max_bytes: values.size("POINTSMAN_SELECTION_CACHE_MAX_BYTES"),
        },
        reservations: ReservationsConfig {
            silence: values.seconds("DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS"),
            max_entries: values.size("POINTSMAN_SELECTION_MAX_RESERVATIONS"),
        },
        recovery: recovery(values),
        busy: busy(values),
        max_body_bytes: values.size("POINTSMAN_SELECTION_MAX_BODY_BYTES"),
        tls_certificate: values.path("POINTSMAN_SELECTION_TLS_CERTIFICATE"),
        tls_key: values.path("POINTSMAN_SELECTION_TLS_KEY"),
        tls_client_ca: values.path("POINTSMAN_SELECTION_TLS_CLIENT_CA"),
        tokens_file: values.path("POINTSMAN_SELECTION_TOKENS_FILE"),
        require_auth: values.bool("POINTSMAN_SELECTION_REQUIRE_AUTH"),
        replica_sync,
        on_admin_port: values.bool("POINTSMAN_ADMIN_API"),
    }
}

fn replica_sync(values: &mut Values) -> Option<ReplicaSync> {
    const PORT: &str = "POINTSMAN_REPLICA_SYNC_PORT";
    const PEERS: &str = "POINTSMAN_REPLICA_SYNC_PEERS";
    let peers = listed(&values.text(PEERS).unwrap_or_default());
    for peer in &peers {
        if let Err(error) = check_peer_endpoint(peer) {
            values.refuse(PEERS, error.to_string());
        }
    }
    if values.is_set(PORT) {
        let port = match values.port(PORT) {
            Port::Number(port) => port,
            Port::Auto => 0,
        };
        return Some(ReplicaSync { port, peers });
    }
    if !peers.is_empty() {
        values.refuse(PEERS, format!("needs {PORT}"));
    }
    None
}

fn busy(values: &Values) -> BusyThresholds {
    let share = |variable| values.is_set(variable).then(|| values.number(variable));
    BusyThresholds {
        prefill: share("DYN_ROUTER_CONDITIONAL_DISAGG_PREFILL_BUSY_THRESHOLD"),
        decode: share("DYN_ROUTER_CONDITIONAL_DISAGG_DECODE_BUSY_THRESHOLD"),
    }
}

fn recovery(values: &Values) -> Recovery {
    let peers = values.text("POINTSMAN_INDEXER_PEERS").unwrap_or_default();
    Recovery {
        peers: listed(&peers),
        token_file: values.path("POINTSMAN_INDEXER_PEERS_TOKEN_FILE"),
        ca: values.path("POINTSMAN_INDEXER_PEERS_CA"),
        max_time: values.seconds("POINTSMAN_RECOVERY_MAX_SECS"),
        max_bytes: values
            .count("POINTSMAN_RECOVERY_MAX_BYTES")
            .unwrap_or_default(),
        max_blocks: values.size("POINTSMAN_RECOVERY_MAX_BLOCKS"),
    }
}

/// The parts of a list that is separated by commas.
fn listed(text: &str) -> Vec<String> {
    let parts = text.split(',').map(str::trim);
    parts
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect()
}
