//! Pages about the running picker, for people and probes, and the selection API where it is asked
//! for; the pages never change anything.

mod pages;
mod server;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use pointsman_service::{SelectionService, http};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

pub(crate) use server::Server;

/// What the pages tell about.
#[derive(Clone)]
struct Shown {
    service: SelectionService,
    registry: Arc<Registry>,
    /// Cancelled when the program was told to stop.
    stopping: CancellationToken,
}

/// The pages; one `GET` route each.
pub(crate) fn router(
    service: SelectionService,
    registry: Arc<Registry>,
    stopping: CancellationToken,
) -> Router {
    Router::new()
        .route("/", get(pages::index))
        .route("/metrics", get(pages::metrics))
        .route("/health", get(pages::health))
        .route("/ready", get(pages::ready))
        .route("/workers", get(pages::workers))
        .route("/loads", get(pages::loads))
        .route("/events/applied", get(pages::events_applied))
        .fallback(pages::not_found)
        .method_not_allowed_fallback(pages::method_not_allowed)
        .with_state(Shown {
            service,
            registry,
            stopping,
        })
}

/// The selection API with the pages that it has no routes for; its `/health`, `/ready`, `/workers`
/// and `/loads` take the place of the others.
pub(crate) fn router_with_api(
    service: SelectionService,
    registry: Arc<Registry>,
    config: http::Config,
) -> Router {
    let stopping = config.stopping.clone();
    let pages = Router::new()
        .route("/", get(pages::index))
        .route("/metrics", get(pages::metrics))
        .route("/events/applied", get(pages::events_applied))
        .method_not_allowed_fallback(pages::method_not_allowed)
        .with_state(Shown {
            service: service.clone(),
            registry,
            stopping,
        });
    http::router(service, config).merge(pages)
}
