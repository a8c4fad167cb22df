//! The selection service over HTTP: routes that are a thin door on [`SelectionService`].
//!
//! It has no opinion on routing and keeps no state but the configuration; whoever embeds the
//! service can leave it out, or merge [`router`] into a program of its own.

mod access;
mod answer;
mod body;
mod connections;
mod documents;
mod error;
mod filter;
mod inspection;
mod json;
mod openapi;
mod prompt;
mod replicas;
mod request;
mod reservations;
mod selection;
mod server;
mod token_file;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, patch, post};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::service::SelectionService;
use error::Refusal;

pub use access::{Access, Right, Tokens, TokensError};
pub use answer::LoadsAnswer;
pub use openapi::openapi_json;
pub use server::{Server, ServerConfig, ServerError, TlsFiles};
pub use token_file::{TokenFile, TokenFileError};

/// How requests are taken in.
#[derive(Clone, Debug)]
pub struct Config {
    pub max_body_bytes: usize,
    /// Longest wait for a whole body.
    pub body_timeout: Duration,
    pub access: Access,
    pub busy: BusyThresholds,
    /// Served at `/metrics`, where there are any.
    pub metrics: Option<Arc<Registry>>,
    /// Cancelled when the program was told to stop: from then on it is not ready.
    pub stopping: CancellationToken,
}

/// From which share of what a worker can take it is called busy; where unset, nothing is said of it.
/// Nobody is refused by it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BusyThresholds {
    /// Active prefill tokens, of those that the engine computes at once.
    pub prefill: Option<f64>,
    /// Active blocks with the request's, of those of the worker's KV cache.
    pub decode: Option<f64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_body_bytes: 8 << 20,
            body_timeout: Duration::from_mins(1),
            access: Access::default(),
            busy: BusyThresholds::default(),
            metrics: None,
            stopping: CancellationToken::new(),
        }
    }
}

/// What every route is given.
#[derive(Clone)]
struct Api {
    service: SelectionService,
    config: Arc<Config>,
}

/// Every route of the service.
pub fn router(service: SelectionService, config: Config) -> Router {
    let access = config.access.clone();
    let has_metrics = config.metrics.is_some();
    let api = Api {
        service,
        config: Arc::new(config),
    };
    let router = Router::new()
        .route("/workers", post(workers::register).get(workers::list))
        .route(
            "/workers/{worker_id}",
            patch(workers::patch).delete(workers::remove),
        )
        .route("/select", post(selection::select))
        .route("/select_and_reserve", post(selection::select_and_reserve))
        .route("/reservations", post(reservations::reserve))
        .route("/reservations/{selection_id}", delete(reservations::free))
        .route(
            "/reservations/{selection_id}/prefill_complete",
            post(reservations::prefill_complete),
        )
        .route(
            "/reservations/{selection_id}/output_block",
            post(reservations::output_block),
        )
        .route("/health", get(inspection::health))
        .route("/ready", get(inspection::ready))
        .route("/loads", get(inspection::loads))
        .route("/potential_loads", post(inspection::potential_loads))
        .route("/overlap_scores", post(inspection::overlap_scores))
        .route("/dump", get(inspection::dump))
        .route("/replica_sync/register_peer", post(replicas::register_peer))
        .route(
            "/replica_sync/deregister_peer",
            post(replicas::deregister_peer),
        )
        .route("/replica_sync/peers", get(replicas::peers))
        .route("/openapi.json", get(openapi::document));
    let router = if has_metrics {
        router.route("/metrics", get(inspection::metrics))
    } else {
        router
    };
    let router = router
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(api);
    match access {
        Access::Open => router,
        access => router.layer(from_fn_with_state(access, access::guard)),
    }
}

async fn not_found() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "route_not_found", "route not found")
}

async fn method_not_allowed() -> Refusal {
    Refusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        "method not allowed",
    )
}
