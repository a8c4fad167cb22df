//! The routes that choose a worker.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use pointsman_core::{PartitionId, Selection};
use pointsman_plugin::WorkerWithDpRank;

use super::Api;
use super::answer::{SelectionAnswer, WorkerLoadAnswer};
use super::body::JsonBody;
use super::documents::SelectFields;
use super::error::{ErrorBody, Refusal, json_of_size};
use super::request::SelectCall;

/// What a worker is taken to compute at once that does not say it.
const UNSTATED_PREFILL_CAPACITY: u64 = 10_000_000;

/// Chooses a worker and charges nothing. With an id the choice is remembered, to be reserved.
#[utoipa::path(post, path = "/select", tag = "selection", request_body = SelectFields,
    params(("x-dynamo-meta-policy-class" = Option<String>, Header,
        description = "The request's class, for admission by class; taken, and of no effect where there is none")),
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
    let answer = SelectionAnswer::new(partition, id, &selected)
        .with_decode_busy(decode_busy(&api, &selected.selection));
    let answer = if call.advisory {
        answer.with_load(load_of(&api, partition, selected.selection.worker))
    } else {
        answer
    };
    Ok(json_of_size(StatusCode::OK, &answer, answer.size_hint()))
}

/// Chooses a worker and charges it at once, under the id that was sent or one that is made.
#[utoipa::path(post, path = "/select_and_reserve", tag = "selection", request_body = SelectFields,
    params(("x-dynamo-meta-policy-class" = Option<String>, Header,
        description = "The request's class, for admission by class; taken, and of no effect where there is none")),
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
    let selection = &reserved.selected.selection;
    let answer = SelectionAnswer::new(partition, Some(&reserved.id), &reserved.selected)
        .with_decode_busy(decode_busy(&api, selection))
        .reserved(selection);
    Ok(json_of_size(StatusCode::OK, &answer, answer.size_hint()))
}

fn decode_busy(api: &Api, selection: &Selection) -> Option<bool> {
    let share = api.config.busy.decode?;
    let worker = api.service.registered(selection.worker.worker_id)?;
    let total_blocks = worker.registration.total_kv_blocks?;
    Some(exceeds(
        selection.potential_decode_blocks,
        share,
        total_blocks,
    ))
}

/// What is charged to a rank now, and what its worker can take.
fn load_of(api: &Api, partition: &PartitionId, worker: WorkerWithDpRank) -> WorkerLoadAnswer {
    let record = api.service.registered(worker.worker_id);
    let registration = record.map(|record| record.registration);
    let capacity = registration
        .as_ref()
        .and_then(|worker| worker.max_num_batched_tokens)
        .unwrap_or(UNSTATED_PREFILL_CAPACITY);
    let active = api.service.active_prefill_tokens(partition, worker);
    let share = api.config.busy.prefill;
    WorkerLoadAnswer {
        active_prefill_tokens: active,
        prefill_token_capacity: capacity,
        total_kv_blocks: registration.and_then(|worker| worker.total_kv_blocks),
        prefill_busy: share.map(|share| exceeds(active, share, capacity)),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a threshold is not that exact")]
fn exceeds(value: u64, share: f64, whole: u64) -> bool {
    value as f64 > share * whole as f64
}
