//! What a client is told instead of an answer: the one table of status codes and stable codes of
//! the HTTP API.
//!
//! Causes stay here: no path, no address of ours and nothing of other clients is told.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use pointsman_core::SelectError;
use serde::Serialize;
use utoipa::ToSchema;

use super::json::JsonError;
use crate::error::SelectionServiceError;

const INVALID: &str = "invalid_request";
const INTERNAL: &str = "internal_error";
const FAILED: &str = "the service failed";
/// Bytes of an answer that says little.
const SHORT_ANSWER: usize = 128;
const RETRY_AFTER_SECS: HeaderValue = HeaderValue::from_static("1");

/// A refusal: status, stable code, words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    message: Cow<'static, str>,
    param: Option<String>,
}

/// Every error of this API has this body.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct ErrorBody {
    error: ErrorDetail,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
struct ErrorDetail {
    /// What is wrong, for people.
    message: String,
    /// The kind of error, as coarse as the status.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The field that is wrong, where it is one.
    #[schema(required = true)]
    param: Option<String>,
    /// What is wrong, for programs; it never changes.
    code: &'static str,
}

impl Refusal {
    pub(super) fn new(
        status: StatusCode,
        code: &'static str,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            param: None,
        }
    }

    pub(super) fn of(self, param: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..self
        }
    }

    pub(super) fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID, message)
    }

    pub(super) fn internal() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, INTERNAL, FAILED)
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::CONFLICT => "conflict_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "unavailable_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = ErrorBody {
            error: ErrorDetail {
                kind: self.kind(),
                message: self.message.into_owned(),
                param: self.param,
                code: self.code,
            },
        };
        let mut response = json(self.status, &body);
        let headers = response.headers_mut();
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => {
                headers.insert(header::RETRY_AFTER, RETRY_AFTER_SECS);
            }
            StatusCode::UNAUTHORIZED => {
                let challenge = HeaderValue::from_static("Bearer");
                headers.insert(header::WWW_AUTHENTICATE, challenge);
            }
            _ => {}
        }
        response
    }
}

/// Any answer. Nothing that we answer with can fail to be written as JSON.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    json_of_size(status, value, SHORT_ANSWER)
}

/// The same where it is known how many bytes will most often do.
pub(super) fn json_of_size(status: StatusCode, value: &impl Serialize, bytes: usize) -> Response {
    let mut text = Vec::with_capacity(bytes);
    if serde_json::to_writer(&mut text, value).is_err() {
        text.clear();
    }
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

impl From<JsonError> for Refusal {
    fn from(error: JsonError) -> Self {
        let message = error.to_string();
        match error {
            JsonError::Syntax { .. } => Self::new(StatusCode::BAD_REQUEST, "invalid_json", message),
            JsonError::NotAnObject => Self::bad_request(message),
            JsonError::Field { field, .. } => Self::bad_request(message).of(field),
        }
    }
}

impl From<SelectionServiceError> for Refusal {
    fn from(error: SelectionServiceError) -> Self {
        let (status, code) = row(&error);
        let refusal = if code == INTERNAL {
            Self::internal()
        } else {
            Self::new(status, code, error.to_string())
        };
        match error {
            SelectionServiceError::BadWorker { field, .. } => refusal.of(field),
            SelectionServiceError::BadPeer { .. } => refusal.of("endpoint"),
            SelectionServiceError::Select(SelectError::PinnedNotAllowed { .. }) => {
                refusal.of("pinned_worker")
            }
            SelectionServiceError::Select(SelectError::DuplicateReservation { .. }) => {
                refusal.of("selection_id")
            }
            _ => refusal,
        }
    }
}

/// The table: what each error is answered with.
fn row(error: &SelectionServiceError) -> (StatusCode, &'static str) {
    use SelectionServiceError as E;
    match error {
        E::Select(error) => selection_row(error),
        E::BadWorker { .. } | E::BadPeer { .. } => (StatusCode::BAD_REQUEST, INVALID),
        E::UnknownWorker { .. } => (StatusCode::NOT_FOUND, "unknown_worker"),
        E::UnknownReservation { .. } => (StatusCode::NOT_FOUND, "unknown_reservation"),
        E::NoPendingSelection { .. } => (StatusCode::NOT_FOUND, "no_pending_selection"),
        E::TooManyReservations { .. } => (StatusCode::TOO_MANY_REQUESTS, "too_many_reservations"),
        E::TooManyDumps { .. } => (StatusCode::TOO_MANY_REQUESTS, "too_many_dumps"),
        E::UnknownModel(_) => (StatusCode::SERVICE_UNAVAILABLE, "unknown_model"),
        E::UnknownPartition { .. } => (StatusCode::SERVICE_UNAVAILABLE, "unknown_partition"),
        E::NotReady => (StatusCode::SERVICE_UNAVAILABLE, "not_ready"),
        E::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
        E::WorkerNotSchedulable { .. } => {
            (StatusCode::SERVICE_UNAVAILABLE, "worker_not_schedulable")
        }
        E::SyncDisabled => (StatusCode::CONFLICT, "replica_sync_disabled"),
        E::PeersUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "peers_unavailable"),
        E::BadSetting { .. }
        | E::BadConfig { .. }
        | E::IndexerPeers(_)
        | E::Policy(_)
        | E::NoRuntime
        | E::ReplicaPort { .. } => (StatusCode::INTERNAL_SERVER_ERROR, INTERNAL),
    }
}

fn selection_row(error: &SelectError) -> (StatusCode, &'static str) {
    use SelectError as E;
    match error {
        E::BadRequest(_) => (StatusCode::BAD_REQUEST, INVALID),
        E::PinnedNotAllowed { .. } => (StatusCode::BAD_REQUEST, "pinned_worker_not_allowed"),
        E::DuplicateReservation { .. } => (StatusCode::CONFLICT, "duplicate_reservation"),
        E::PinnedOverloaded { .. } => (StatusCode::TOO_MANY_REQUESTS, "pinned_worker_overloaded"),
        E::AllOverloaded => (StatusCode::TOO_MANY_REQUESTS, "all_workers_overloaded"),
        E::NoWorkers => (StatusCode::SERVICE_UNAVAILABLE, "no_workers"),
        E::NoneEligible => (StatusCode::SERVICE_UNAVAILABLE, "no_eligible_worker"),
        E::AllFiltered { .. } => (StatusCode::SERVICE_UNAVAILABLE, "all_workers_filtered"),
        E::WorkerGone => (StatusCode::SERVICE_UNAVAILABLE, "worker_gone"),
        E::Policy(_) => (StatusCode::INTERNAL_SERVER_ERROR, "policy_failed"),
        E::PolicyPanicked => (StatusCode::INTERNAL_SERVER_ERROR, "policy_panicked"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, INTERNAL),
    }
}

impl SelectionServiceError {
    /// The status with which the HTTP API answers this error.
    pub fn status_code(&self) -> u16 {
        row(self).0.as_u16()
    }

    /// What kind of error this is, coarser than its variant.
    pub fn kind(&self) -> &'static str {
        match (self, row(self).0) {
            (Self::NotReady | Self::ShuttingDown | Self::PeersUnavailable, _) => "not_ready",
            (_, StatusCode::BAD_REQUEST) => "bad_request",
            (_, StatusCode::NOT_FOUND) => "not_found",
            (_, StatusCode::CONFLICT) => "conflict",
            (_, StatusCode::INTERNAL_SERVER_ERROR) => "internal",
            _ => "scheduler",
        }
    }
}
