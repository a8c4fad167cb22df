//! What a client is told instead of being routed: one table from causes to refusals.
//!
//! It never puts a cause into a client's text; causes go to the log.

use std::{borrow::Cow, time::Duration};

use pointsman_core::SelectError;
use pointsman_service::{SelectionServiceError, UnknownModel};
use serde::Serialize;

use crate::{request::RequestError, tokenize::TokenizeError};

/// An answer in place of a destination, in the shape of `OpenAI`'s errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    /// Stable, for programs. Also the label of the refusals metric.
    pub code: &'static str,
    /// Fixed text, for people.
    pub message: Cow<'static, str>,
    /// The field of the request that is at fault.
    pub param: Option<String>,
    pub retry_after: Option<Duration>,
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: Body<'a>,
}

#[derive(Serialize)]
struct Body<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: &'static str,
}

impl Refusal {
    pub const fn fixed(status: u16, code: &'static str, message: &'static str) -> Self {
        Self {
            status,
            code,
            message: Cow::Borrowed(message),
            param: None,
            retry_after: None,
        }
    }

    #[must_use]
    pub fn with_message(mut self, message: String) -> Self {
        self.message = Cow::Owned(message);
        self
    }

    #[must_use]
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    #[must_use]
    pub const fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    pub fn json(&self) -> Vec<u8> {
        let body = Body {
            message: &self.message,
            r#type: self.kind(),
            param: self.param.as_deref(),
            code: self.code,
        };
        serde_json::to_vec(&Envelope { error: body }).expect("strings always serialize")
    }

    const fn kind(&self) -> &'static str {
        match self.status {
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            503 => "service_unavailable_error",
            _ => "server_error",
        }
    }
}

/// Why a request was not routed.
#[derive(Debug, thiserror::Error)]
pub enum PickError {
    #[error("reading the request")]
    Request(#[from] RequestError),
    #[error("tokenizing the prompt")]
    Tokenize(#[from] TokenizeError),
    #[error("finding the partition of the request")]
    Model(#[from] UnknownModel),
    #[error("selecting a worker")]
    Select(#[from] SelectionServiceError),
    #[error("no ready worker may serve a request without a body")]
    NoReadyEndpoint,
    /// The worker source let through what a data plane cannot dial.
    #[error("the selected worker's endpoint {endpoint} is not http://ip:port")]
    Undialable { endpoint: String },
}

const OVERLOAD_RETRY: Duration = Duration::from_secs(1);

impl PickError {
    /// The one table from causes to what clients are told.
    pub fn refusal(&self) -> Refusal {
        match self {
            Self::Request(error) => {
                let message = error.to_string();
                let refusal = Refusal::fixed(400, "invalid_request", "").with_message(message);
                match error.param() {
                    Some(param) => refusal.with_param(param),
                    None => refusal,
                }
            }
            Self::Tokenize(error @ TokenizeError::Refused { .. }) => {
                Refusal::fixed(400, "invalid_prompt", "").with_message(error.to_string())
            }
            // Degraded prompts are routed by load; here one would be our own mistake.
            Self::Tokenize(TokenizeError::Degraded(_)) => exchange::internal(),
            Self::Model(UnknownModel { model: Some(_) }) => Refusal::fixed(
                404,
                "model_not_found",
                "the requested model does not exist here",
            )
            .with_param("model"),
            Self::Model(UnknownModel { model: None }) => Refusal::fixed(
                400,
                "model_required",
                "the request must name a model, several are served here",
            )
            .with_param("model"),
            Self::Select(error) => service_refusal(error),
            Self::NoReadyEndpoint | Self::Undialable { .. } => no_endpoint(),
        }
    }
}

fn service_refusal(error: &SelectionServiceError) -> Refusal {
    match error {
        SelectionServiceError::Select(error) => select_refusal(error),
        SelectionServiceError::UnknownPartition { .. }
        | SelectionServiceError::UnknownWorker { .. } => no_endpoint(),
        SelectionServiceError::UnknownModel(_) => Refusal::fixed(
            404,
            "model_not_found",
            "the requested model does not exist here",
        )
        .with_param("model"),
        SelectionServiceError::NotReady => Refusal::fixed(
            503,
            "not_ready",
            "the workers are not known yet, try again later",
        ),
        SelectionServiceError::ShuttingDown => exchange::shutting_down(),
        _ => exchange::internal(),
    }
}

fn select_refusal(error: &SelectError) -> Refusal {
    match error {
        SelectError::AllOverloaded | SelectError::PinnedOverloaded { .. } => Refusal::fixed(
            429,
            "overloaded",
            "every worker that may serve the request is overloaded, try again later",
        )
        .retry_after(OVERLOAD_RETRY),
        SelectError::NoWorkers
        | SelectError::NoneEligible
        | SelectError::AllFiltered { .. }
        | SelectError::WorkerGone => no_endpoint(),
        SelectError::PinnedNotAllowed { .. } | SelectError::BadRequest(_) => Refusal::fixed(
            400,
            "invalid_request",
            "the request's routing demands cannot be met",
        ),
        SelectError::Policy(_) | SelectError::PolicyPanicked => Refusal::fixed(
            500,
            "policy_failed",
            "the routing policy failed for this request",
        ),
        _ => exchange::internal(),
    }
}

fn no_endpoint() -> Refusal {
    Refusal::fixed(
        503,
        "no_endpoint",
        "no ready worker may serve the request, try again later",
    )
}

/// The refusals that the exchange itself gives, whatever picks.
pub(crate) mod exchange {
    use super::{Duration, Refusal};

    pub(crate) fn too_many_exchanges() -> Refusal {
        Refusal::fixed(
            429,
            "too_many_requests",
            "too many requests are in progress, try again later",
        )
        .retry_after(Duration::from_secs(1))
    }

    pub(crate) fn body_too_large() -> Refusal {
        Refusal::fixed(413, "request_too_large", "the request body is too large")
    }

    pub(crate) fn body_idle() -> Refusal {
        Refusal::fixed(
            408,
            "request_timeout",
            "the request body did not arrive in time",
        )
    }

    pub(crate) fn pick_overdue() -> Refusal {
        Refusal::fixed(
            503,
            "routing_timeout",
            "the request could not be routed in time",
        )
    }

    pub(crate) fn internal() -> Refusal {
        Refusal::fixed(500, "internal_error", "the request could not be routed")
    }

    pub(crate) fn shutting_down() -> Refusal {
        Refusal::fixed(503, "shutting_down", "the service is shutting down")
    }
}

#[cfg(test)]
mod tests {
    use pointsman_plugin::WorkerSelectionPolicyError;

    use super::*;

    fn check(error: impl Into<PickError>, status: u16, code: &str) {
        let error = error.into();
        let refusal = error.refusal();
        assert_eq!((refusal.status, refusal.code), (status, code), "{error:?}");
        assert_eq!(refusal.retry_after.is_some(), status == 429, "{error:?}");
    }

    fn check_select(error: SelectError, status: u16, code: &str) {
        check(SelectionServiceError::from(error), status, code);
    }

    #[test]
    fn what_the_client_did_wrong_is_400_or_404() {
        check(RequestError::NotJson { offset: 3 }, 400, "invalid_request");
        let refused = TokenizeError::Refused {
            message: "no".to_owned(),
        };
        check(refused, 400, "invalid_prompt");
        check(UnknownModel { model: None }, 400, "model_required");
        let model = Some("x".to_owned());
        check(UnknownModel { model }, 404, "model_not_found");
    }

    #[test]
    fn nobody_who_may_serve_is_503() {
        check(PickError::NoReadyEndpoint, 503, "no_endpoint");
        check_select(SelectError::NoWorkers, 503, "no_endpoint");
        check_select(SelectError::NoneEligible, 503, "no_endpoint");
        check_select(SelectError::WorkerGone, 503, "no_endpoint");
        let candidate_count = 2;
        check_select(
            SelectError::AllFiltered { candidate_count },
            503,
            "no_endpoint",
        );
        check(SelectionServiceError::NotReady, 503, "not_ready");
        check(SelectionServiceError::ShuttingDown, 503, "shutting_down");
    }

    #[test]
    fn overload_is_429_and_says_when_to_retry() {
        check_select(SelectError::AllOverloaded, 429, "overloaded");
    }

    #[test]
    fn a_policy_that_breaks_its_contract_is_500() {
        check_select(SelectError::PolicyPanicked, 500, "policy_failed");
        let failed = WorkerSelectionPolicyError::failed("secret");
        check_select(SelectError::Policy(failed), 500, "policy_failed");
    }

    #[test]
    fn a_cause_never_reaches_the_client() {
        let failed = SelectError::Policy(WorkerSelectionPolicyError::failed("secret"));
        let error = PickError::from(SelectionServiceError::from(failed));
        let text = String::from_utf8(error.refusal().json()).unwrap();
        assert!(!text.contains("secret"), "{text}");
    }

    #[test]
    fn the_body_has_the_shape_of_openai_errors() {
        let refusal = Refusal::fixed(400, "invalid_request", "no").with_param("model");
        let body: serde_json::Value = serde_json::from_slice(&refusal.json()).unwrap();
        let expected = serde_json::json!({ "error": {
            "message": "no", "type": "invalid_request_error",
            "param": "model", "code": "invalid_request",
        }});
        assert_eq!(body, expected);
    }
}
