//! The routes that tell what is: health, loads, what a prompt would meet. Nothing is changed.

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::Api;
use super::answer::{DONE, Done, LoadAnswer, LoadsAnswer, OverlapScoresAnswer, ReadyAnswer};
use super::body::JsonBody;
use super::documents::{DumpedPartition, PromptFields};
use super::error::{ErrorBody, Refusal, json};
use super::filter::{Filter, filter};
use super::request::PromptCall;

/// Whether the process lives.
#[utoipa::path(get, path = "/health", tag = "inspection",
    responses((status = 200, description = "It does", body = Done)))]
pub(super) async fn health() -> Response {
    json(StatusCode::OK, &DONE)
}

/// Whether a request could be placed, and if not, why.
#[utoipa::path(get, path = "/ready", tag = "inspection",
    responses((status = 200, description = "At least one worker may serve", body = ReadyAnswer),
        (status = 503, description = "None may, the index is being recovered, or the service is stopping", body = ReadyAnswer)))]
pub(super) async fn ready(State(api): State<Api>) -> Response {
    let state = *api.service.state().borrow();
    let stopping = state.stopping || api.config.stopping.is_cancelled();
    let ready = state.schedulable > 0 && !stopping && !state.recovering;
    let answer = ReadyAnswer {
        ready,
        recovering: state.recovering,
        schedulable_workers: state.schedulable,
        workers: api.service.workers(),
    };
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    json(status, &answer)
}

/// For Prometheus.
pub(super) async fn metrics(State(api): State<Api>) -> Result<Response, Refusal> {
    let mut text = String::new();
    if let Some(registry) = &api.config.metrics {
        prometheus_client::encoding::text::encode(&mut text, registry)
            .map_err(|_| Refusal::internal())?;
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// What is charged to every rank now.
#[utoipa::path(get, path = "/loads", tag = "inspection", params(Filter),
    responses((status = 200, description = "By partition", body = [LoadsAnswer])))]
pub(super) async fn loads(
    State(api): State<Api>,
    query: Result<Query<Filter>, QueryRejection>,
) -> Result<Response, Refusal> {
    let filter = filter(query)?;
    let mut loads = api.service.loads();
    loads.retain(|partition| filter.admits(&partition.id.model_name, &partition.id.routing_group));
    let answer: Vec<_> = loads.iter().map(LoadsAnswer::new).collect();
    Ok(json(StatusCode::OK, &answer))
}

/// The load of every rank as it would be with this prompt on it.
#[utoipa::path(post, path = "/potential_loads", tag = "inspection", request_body = PromptFields,
    responses((status = 200, description = "By rank", body = [LoadAnswer]),
        (status = 503, description = "No worker serves this model and group", body = ErrorBody)))]
pub(super) async fn potential_loads(
    State(api): State<Api>,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let call = PromptCall::read(&body)?;
    let loads = api
        .service
        .potential_loads(&call.partition, &call.request)?;
    let answer: Vec<_> = loads.iter().map(LoadAnswer::potential).collect();
    Ok(json(StatusCode::OK, &answer))
}

/// How much of this prompt every rank has cached.
#[utoipa::path(post, path = "/overlap_scores", tag = "inspection", request_body = PromptFields,
    responses((status = 200, description = "By rank", body = OverlapScoresAnswer),
        (status = 503, description = "No worker serves this model and group", body = ErrorBody)))]
pub(super) async fn overlap_scores(
    State(api): State<Api>,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let call = PromptCall::read(&body)?;
    let service = &api.service;
    let scores = service
        .overlap_scores(&call.partition, call.request)
        .await?;
    Ok(json(StatusCode::OK, &OverlapScoresAnswer::new(&scores)))
}

/// What every rank has cached, for a service that starts: by partition, named `model:group`.
#[utoipa::path(get, path = "/dump", tag = "inspection",
    responses((status = 200, description = "Streamed; it may be large", body = BTreeMap<String, DumpedPartition>),
        (status = 429, description = "Too many dumps are under way", body = ErrorBody)))]
pub(super) async fn dump(State(api): State<Api>) -> Result<Response, Refusal> {
    let body = Body::from_stream(api.service.dump()?);
    let mut response = Response::new(body);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    Ok(response)
}
