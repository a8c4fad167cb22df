//! The routes of the worker catalog.

use axum::body::Bytes;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value};

use super::Api;
use super::body::JsonBody;
use super::documents::{WorkerFields, WorkerPatchFields};
use super::error::{Refusal, json};
use super::filter::{Filter, filter};
use super::json::Object;
use crate::workers::{BadField, WorkerPatch, WorkerRecord, WorkerRegistration};

/// Registers a worker, or replaces what is registered under its id. A worker that cannot serve is
/// kept all the same; its record says why.
#[utoipa::path(post, path = "/workers", tag = "workers", request_body = WorkerFields,
    responses((status = 201, description = "Registered", body = WorkerRecord)))]
pub(super) async fn register(
    State(api): State<Api>,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let registration = WorkerRegistration::from_fields(fields(&body)?).map_err(bad_field)?;
    let record = api.service.register_worker(registration)?;
    Ok(json(StatusCode::CREATED, &record))
}

/// Changes the fields that the body names; null clears one.
#[utoipa::path(patch, path = "/workers/{worker_id}", tag = "workers", request_body = WorkerPatchFields,
    params(("worker_id" = u64, Path)),
    responses((status = 200, description = "Changed", body = WorkerRecord)))]
pub(super) async fn patch(
    State(api): State<Api>,
    worker_id: Result<Path<String>, PathRejection>,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let patch = WorkerPatch::new(fields(&body)?);
    let record = api.service.patch_worker(id_of(worker_id)?, &patch)?;
    Ok(json(StatusCode::OK, &record))
}

/// Removes a worker and answers the record it had.
#[utoipa::path(delete, path = "/workers/{worker_id}", tag = "workers",
    params(("worker_id" = u64, Path)),
    responses((status = 200, description = "Removed", body = WorkerRecord)))]
pub(super) async fn remove(
    State(api): State<Api>,
    worker_id: Result<Path<String>, PathRejection>,
) -> Result<Response, Refusal> {
    let record = api.service.remove_worker(id_of(worker_id)?)?;
    Ok(json(StatusCode::OK, &record))
}

/// Every registered worker, by id.
#[utoipa::path(get, path = "/workers", tag = "workers", params(Filter),
    responses((status = 200, description = "The workers", body = [WorkerRecord])))]
pub(super) async fn list(
    State(api): State<Api>,
    query: Result<Query<Filter>, QueryRejection>,
) -> Result<Response, Refusal> {
    let filter = filter(query)?;
    let mut records = api.service.workers();
    records.retain(|record| {
        let of = &record.registration;
        filter.admits(&of.model_name, &of.routing_group)
    });
    Ok(json(StatusCode::OK, &records))
}

/// The body as a map, checked as every body is.
fn fields(body: &Bytes) -> Result<Map<String, Value>, Refusal> {
    Object::parse(body, &[])?;
    serde_json::from_slice(body).map_err(|_| {
        // What parsed above and not here is nested deeper than any worker is.
        Refusal::bad_request("the body is nested too deeply")
    })
}

fn bad_field(bad: BadField) -> Refusal {
    let reason: String = bad.reason.chars().take(200).collect();
    Refusal::bad_request(format!("{}: {reason}", bad.field)).of(bad.field)
}

fn id_of<E>(path: Result<Path<String>, E>) -> Result<u64, Refusal> {
    let wrong = || {
        Refusal::bad_request("the worker id in the path must be an integer of 64 bits")
            .of("worker_id")
    };
    let Path(text) = path.map_err(|_| wrong())?;
    text.parse().map_err(|_| wrong())
}
