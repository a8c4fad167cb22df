//! What a client is told instead of being routed: one table from causes to refusals.
//!
//! It never puts a cause into a client's text; causes go to the log.

use std::{borrow::Cow, time::Duration};

use serde::Serialize;

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
