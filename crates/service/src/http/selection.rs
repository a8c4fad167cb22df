//! The routes that choose a worker.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use pointsman_plugin::WorkerWithDpRank;

use super::Api;
use super::answer::{SelectionAnswer, WorkerLoadAnswer};
use super::body::JsonBody;
use super::documents::SelectFields;
use super::error::{ErrorBody, Refusal, json};
use super::request::SelectCall;

/// Chooses a worker and charges nothing. With an id the choice is remembered, to be reserved.
#[utoipa::path(post, path = "/select", tag = "selection", request_body = SelectFields,
    responses((status = 200, description = "Selected", body = SelectionAnswer),
        (status = 429, description = "Every worker that may serve is overloaded", body = ErrorBody),
        (status = 500, description = "The policy broke its contract", body = ErrorBody),
        (status = 503, description = "No worker may serve", body = ErrorBody)))]
pub(super) async fn select(
    State(api): State<Api>,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let call = SelectCall::read(&body)?;
    let service = &api.service;
    let (partition, id) = (&call.partition, call.selection_id.as_deref());
    let selected = match id {
        Some(id) => {
            service
                .select_pending(partition, call.request, id.to_owned())
                .await?
        }
        None => service.select(partition, call.request).await?,
    };
    let answer = SelectionAnswer::new(partition, id, &selected);
    let answer = if call.advisory {
        answer.with_load(load_of(&api, selected.selection.worker))
    } else {
        answer
    };
    Ok(json(StatusCode::OK, &answer))
}

/// Chooses a worker and charges it at once, under the id that was sent or one that is made.
#[utoipa::path(post, path = "/select_and_reserve", tag = "selection", request_body = SelectFields,
    responses((status = 200, description = "Selected and reserved", body = SelectionAnswer),
        (status = 409, description = "The id is held already", body = ErrorBody),
        (status = 429, description = "Every worker that may serve is overloaded, or too many reservations are held", body = ErrorBody),
        (status = 500, description = "The policy broke its contract", body = ErrorBody),
        (status = 503, description = "No worker may serve", body = ErrorBody)))]
pub(super) async fn select_and_reserve(
    State(api): State<Api>,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let call = SelectCall::read(&body)?;
    let partition = &call.partition;
    let reserved = api
        .service
        .select_and_reserve_by_id(partition, call.request, call.selection_id)
        .await?;
    let answer = SelectionAnswer::new(partition, Some(&reserved.id), &reserved.selected)
        .reserved(&reserved.selected.selection);
    Ok(json(StatusCode::OK, &answer))
}

/// What is charged to a rank now, and what its worker can take.
fn load_of(api: &Api, worker: WorkerWithDpRank) -> WorkerLoadAnswer {
    let record = api.service.worker(worker.worker_id);
    let loads = api.service.loads();
    let mut ranks = loads.iter().flat_map(|partition| &partition.loads);
    let load = ranks.find(|load| load.worker == worker);
    let registration = record.map(|record| record.registration);
    WorkerLoadAnswer {
        active_prefill_tokens: load.map_or(0, |load| load.active_prefill_tokens),
        prefill_token_capacity: registration
            .as_ref()
            .and_then(|worker| worker.max_num_batched_tokens),
        total_kv_blocks: registration.and_then(|worker| worker.total_kv_blocks),
    }
}
