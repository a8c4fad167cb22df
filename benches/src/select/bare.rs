//! A service that parses the same bodies and answers constants: what HTTP and JSON cost before anybody chooses.
//! It keeps nothing and looks at nothing.

use std::net::Ipv4Addr;

use anyhow::Result;
use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{delete, post};
use axum::{Json, Router};
use clap::Args;
use serde::Deserialize;

#[derive(Args, Debug)]
pub(crate) struct BareArgs {
    port: u16,
    threads: usize,
}

/// What a caller sends, parsed as the framework does it.
#[derive(Deserialize)]
struct Request {
    selection_id: String,
    model_name: String,
    block_hashes: Option<Vec<i64>>,
    sequence_hashes: Option<Vec<i64>>,
    token_ids: Option<Vec<u32>>,
    isl_tokens: Option<u64>,
}

/// As long as the answer to a prompt of 64 blocks.
const SELECTED: &str = include_str!("selected.json");
const DONE: &str = r#"{"status":"ok"}"#;

pub(crate) fn run(args: &BareArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(args.threads)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).await?;
        let router = Router::new()
            .route("/health", axum::routing::get(done))
            .route(
                "/workers",
                post(|_: Bytes| async { (StatusCode::CREATED, DONE) }),
            )
            .route("/select_and_reserve", post(reserve))
            .route("/reservations/{id}/prefill_complete", post(done))
            .route("/reservations/{id}", delete(done));
        axum::serve(listener, router).await?;
        Ok(())
    })
}

async fn done() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DONE)
}

async fn reserve(Json(request): Json<Request>) -> impl IntoResponse {
    let lists = [request.block_hashes, request.sequence_hashes];
    let hashes: usize = lists.iter().flatten().map(Vec::len).sum();
    let tokens = request.token_ids.map_or(0, |ids| ids.len());
    std::hint::black_box((
        hashes + tokens,
        request.isl_tokens,
        request.selection_id,
        request.model_name,
    ));
    ([(header::CONTENT_TYPE, "application/json")], SELECTED)
}
