//! Embeds the selection service in an axum program of its own: the program's routes ask it in
//! process, and its published routes are served beside them.
//!
//! ```sh
//! cargo run -p pointsman-service --example embed
//! curl -s localhost:8092/place -H 'content-type: application/json' -d '{"tokens": [1, 2, 3]}'
//! curl -s localhost:8092/selection/loads
//! ```

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use pointsman_core::{PartitionId, Prompt, SelectionRequest};
use pointsman_plugin::{KvRouterConfig, RouterPluginRegistry, WorkerType};
use pointsman_service::{SelectionService, SelectionServiceBuilder, WorkerRegistration, http};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

#[derive(Deserialize)]
struct Request {
    tokens: Vec<u32>,
}

#[derive(Serialize)]
struct Placed {
    endpoint: String,
    dp_rank: u32,
}

/// Places a request and pretends to serve it.
async fn place(
    State(service): State<SelectionService>,
    Json(request): Json<Request>,
) -> Result<Json<Placed>, (StatusCode, String)> {
    let partition = PartitionId::new("model", "default");
    let request = SelectionRequest {
        prompt: Prompt::Tokens {
            ids: request.tokens,
            media: Vec::new(),
        },
        ..SelectionRequest::default()
    };
    let mut reserved = service
        .select_and_reserve(&partition, request, None)
        .await
        .map_err(|error| {
            let status = StatusCode::from_u16(error.status_code());
            let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            (status, error.to_string())
        })?;
    // Here the request would be sent; the first bytes of the answer end its prefill.
    reserved.reservation.prefill_complete();
    Ok(Json(Placed {
        endpoint: reserved.selected.endpoint,
        dp_rank: reserved.selected.selection.worker.dp_rank,
    }))
    // Dropped here, the reservation frees the load.
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let port = std::env::args().nth(1).unwrap_or_else(|| "8092".to_owned());
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    println!("listening on {}", listener.local_addr()?);
    let interrupted = async {
        // Without a handler for the signal there is nothing to wait for.
        drop(tokio::signal::ctrl_c().await);
    };
    serve(listener, interrupted).await
}

/// The whole program, until `stop`.
pub(crate) async fn serve(
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let service = SelectionServiceBuilder::new(
        KvRouterConfig::default(),
        WorkerType::Aggregated,
        RouterPluginRegistry::default(),
    )
    .build()
    .await?;
    for worker_id in 1..=2 {
        service.register_worker(WorkerRegistration {
            model_name: "model".to_owned(),
            endpoint: Some(format!("http://127.0.0.1:{}", 8000 + worker_id)),
            ..WorkerRegistration::new(worker_id)
        })?;
    }
    let program = Router::new()
        .route("/place", post(place))
        .with_state(service.clone())
        .nest(
            "/selection",
            http::router(service.clone(), http::Config::default()),
        );
    axum::serve(listener, program)
        .with_graceful_shutdown(stop)
        .await?;
    service.shutdown().await;
    Ok(())
}
