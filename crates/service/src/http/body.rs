//! Takes in the body of a request: whole, bounded in size and time, JSON, not compressed.
//!
//! It looks at no byte of it.

use std::error::Error;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::timeout;

use super::Api;
use super::error::Refusal;

/// A body that claims to be JSON.
#[derive(Debug)]
pub(super) struct JsonBody(pub(super) Bytes);

impl FromRequest<Api> for JsonBody {
    type Rejection = Refusal;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Refusal> {
        let body = OptionalJson::from_request(request, api).await?;
        if body.0.is_empty() {
            return Err(Refusal::new(
                StatusCode::BAD_REQUEST,
                "invalid_json",
                "the body is empty, expected a JSON object",
            ));
        }
        Ok(Self(body.0))
    }
}

/// A body that may be missing.
#[derive(Debug)]
pub(super) struct OptionalJson(pub(super) Bytes);

impl FromRequest<Api> for OptionalJson {
    type Rejection = Refusal;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Refusal> {
        let (head, body) = request.into_parts();
        if body.is_end_stream() {
            return Ok(Self(Bytes::new()));
        }
        check_length(&head.headers, api.config.max_body_bytes)?;
        let bytes = read(body, api).await?;
        if !bytes.is_empty() {
            check_type(&head.headers)?;
        }
        Ok(Self(bytes))
    }
}

async fn read(body: Body, api: &Api) -> Result<Bytes, Refusal> {
    let limited = Limited::new(body, api.config.max_body_bytes);
    match timeout(api.config.body_timeout, limited.collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if is_too_large(error.as_ref()) => Err(too_large(api.config.max_body_bytes)),
        Ok(Err(_)) => Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            "incomplete_body",
            "the body ended before it was complete",
        )),
        Err(_) => Err(Refusal::new(
            StatusCode::REQUEST_TIMEOUT,
            "body_timeout",
            "the body did not arrive in time",
        )),
    }
}

fn is_too_large(mut error: &(dyn Error + 'static)) -> bool {
    loop {
        if error.is::<LengthLimitError>() {
            return true;
        }
        let Some(cause) = error.source() else {
            return false;
        };
        error = cause;
    }
}

fn too_large(limit: usize) -> Refusal {
    Refusal::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "body_too_large",
        format!("the body is longer than {limit} bytes"),
    )
}

/// Refuses at once what says that it is too long.
fn check_length(headers: &HeaderMap, limit: usize) -> Result<(), Refusal> {
    let length = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let limit_bytes = u64::try_from(limit).unwrap_or(u64::MAX);
    if length.is_some_and(|length| length > limit_bytes) {
        return Err(too_large(limit));
    }
    Ok(())
}

/// A body without a type is taken for what it must be.
fn check_type(headers: &HeaderMap) -> Result<(), Refusal> {
    if let Some(content_type) = headers.get(header::CONTENT_TYPE)
        && !is_json(content_type.as_bytes())
    {
        return Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_content_type",
            "the content type must be application/json",
        ));
    }
    let encoding = headers.get(header::CONTENT_ENCODING);
    if encoding.is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_content_encoding",
            "the body must not be compressed",
        ));
    }
    Ok(())
}

fn is_json(content_type: &[u8]) -> bool {
    let mime = content_type.split(|byte| *byte == b';').next();
    let mime = mime.unwrap_or_default().trim_ascii();
    let Some((family, kind)) = mime.split_at_checked(b"application/".len()) else {
        return false;
    };
    let suffix = kind.split_at_checked(kind.len().saturating_sub(b"+json".len()));
    family.eq_ignore_ascii_case(b"application/")
        && (kind.eq_ignore_ascii_case(b"json")
            || suffix.is_some_and(|(_, suffix)| suffix.eq_ignore_ascii_case(b"+json")))
}
