//! The settings of the selection service over HTTP; it opens no file that they name.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use pointsman_service::{PendingConfig, ReservationsConfig};

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
    pub(crate) max_body_bytes: usize,
    pub(crate) tls_certificate: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) tls_client_ca: Option<PathBuf>,
    pub(crate) tokens_file: Option<PathBuf>,
    pub(crate) require_auth: bool,
    /// Whether the picker serves the API on its admin port.
    pub(crate) on_admin_port: bool,
}

pub(super) fn read(values: &Values) -> Selection {
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
        max_body_bytes: values.size("POINTSMAN_SELECTION_MAX_BODY_BYTES"),
        tls_certificate: values.path("POINTSMAN_SELECTION_TLS_CERTIFICATE"),
        tls_key: values.path("POINTSMAN_SELECTION_TLS_KEY"),
        tls_client_ca: values.path("POINTSMAN_SELECTION_TLS_CLIENT_CA"),
        tokens_file: values.path("POINTSMAN_SELECTION_TOKENS_FILE"),
        require_auth: values.bool("POINTSMAN_SELECTION_REQUIRE_AUTH"),
        on_admin_port: values.bool("POINTSMAN_ADMIN_API"),
    }
}
