//! The routes of reservations and their lifecycle.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;

use super::Api;
use super::answer::{DONE, Done, ReservationAnswer};
use super::body::{JsonBody, OptionalJson};
use super::documents::{OutputBlockFields, PrefillCompleteFields, ReserveFields};
use super::error::{ErrorBody, Refusal, json};
use super::request::{ReserveCall, cached_tokens, decay_fraction};
use crate::audit::CacheReport;

/// Charges what was selected under the id, or, with a `worker_id`, what the body says.
#[utoipa::path(post, path = "/reservations", tag = "reservations", request_body = ReserveFields,
    responses((status = 201, description = "Reserved", body = ReservationAnswer),
        (status = 404, description = "No pending selection, or no such worker", body = ErrorBody),
        (status = 409, description = "The id is held already", body = ErrorBody),
        (status = 429, description = "Too many reservations are held", body = ErrorBody),
        (status = 503, description = "The worker cannot serve now", body = ErrorBody)))]
pub(super) async fn reserve(
    State(api): State<Api>,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let (partition, id, booked) = match ReserveCall::read(&body)? {
        ReserveCall::Pending { partition, id } => {
            let booked = api.service.reserve_pending(&partition, &id)?;
            (partition, id, booked)
        }
        ReserveCall::Explicit { partition, wanted } => {
            let id = wanted.id.clone();
            let booked = api.service.reserve_explicit(&partition, *wanted)?;
            (partition, id, booked)
        }
    };
    let answer = ReservationAnswer::new(&partition, &id, &booked);
    Ok(json(StatusCode::CREATED, &answer))
}

/// The prompt is computed: its tokens are no longer charged. Again, it does nothing. What the engine reports as cached
/// is compared with what was predicted, once.
#[utoipa::path(post, path = "/reservations/{selection_id}/prefill_complete", tag = "reservations",
    params(("selection_id" = String, Path)), request_body = Option<PrefillCompleteFields>,
    responses((status = 200, description = "Done", body = Done)))]
pub(super) async fn prefill_complete(
    State(api): State<Api>,
    id: Result<Path<String>, PathRejection>,
    OptionalJson(body): OptionalJson,
) -> Result<Response, Refusal> {
    let cached_tokens = cached_tokens(&body)?;
    let id = id_of(id)?;
    api.service.prefill_complete(&id)?;
    if let Some(cached_tokens) = cached_tokens {
        let report = CacheReport {
            cached_tokens,
            prompt_tokens: None,
        };
        api.service.report_cached_tokens_of(&id, report)?;
    }
    Ok(json(StatusCode::OK, &DONE))
}

/// One more block of output, on this replica.
#[utoipa::path(post, path = "/reservations/{selection_id}/output_block", tag = "reservations",
    params(("selection_id" = String, Path)), request_body = Option<OutputBlockFields>,
    responses((status = 200, description = "Done", body = Done)))]
pub(super) async fn output_block(
    State(api): State<Api>,
    id: Result<Path<String>, PathRejection>,
    OptionalJson(body): OptionalJson,
) -> Result<Response, Refusal> {
    let decay = decay_fraction(&body)?;
    api.service.output_block(&id_of(id)?, decay)?;
    Ok(json(StatusCode::OK, &DONE))
}

/// Ends the reservation and frees its load.
#[utoipa::path(delete, path = "/reservations/{selection_id}", tag = "reservations",
    params(("selection_id" = String, Path)),
    responses((status = 200, description = "Freed", body = Done)))]
pub(super) async fn free(
    State(api): State<Api>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Refusal> {
    api.service.free(&id_of(id)?)?;
    Ok(json(StatusCode::OK, &DONE))
}

fn id_of(path: Result<Path<String>, PathRejection>) -> Result<String, Refusal> {
    let Path(id) = path.map_err(|_| {
        Refusal::bad_request("the id in the path is not UTF-8 when decoded").of("selection_id")
    })?;
    Ok(id)
}
