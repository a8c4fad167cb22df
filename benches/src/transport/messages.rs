//! The four messages of one exchange, as Envoy sends them in full-duplex streaming, framed for gRPC.
//! They are built once and sent many times; nothing here is measured.

use bytes::{BufMut, Bytes, BytesMut};
use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, ProcessingRequest, ProtocolConfiguration,
};
use prost::Message;

pub(super) const REQUEST_BODY_BYTES: usize = 4096;
pub(super) const RESPONSE_BODY_BYTES: usize = 1024;

const REQUEST_HEADERS: [(&str, &str); 14] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "inference.example.com"),
    (":path", "/v1/chat/completions"),
    ("content-type", "application/json"),
    ("content-length", "4096"),
    ("accept", "application/json"),
    ("accept-encoding", "gzip, deflate"),
    ("authorization", "Bearer 0123456789abcdef0123456789abcdef"),
    ("user-agent", "client/1.0"),
    ("x-forwarded-for", "10.1.2.3"),
    ("x-forwarded-proto", "http"),
    ("x-request-id", "5b6f5f0e-52d4-4b4c-9f0e-0a6a3a5d8f11"),
    ("x-envoy-expected-rq-timeout-ms", "86400000"),
];

const RESPONSE_HEADERS: [(&str, &str); 6] = [
    (":status", "200"),
    ("content-type", "application/json"),
    ("content-length", "1024"),
    ("date", "Mon, 30 Nov 2026 12:00:00 GMT"),
    ("server", "worker"),
    ("x-envoy-upstream-service-time", "12"),
];

/// One exchange, ready for the wire: what goes up before the first replies, and what goes up after.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) request: [Bytes; 2],
    pub(super) response: [Bytes; 2],
}

impl Exchange {
    pub(super) fn new() -> Self {
        let request_headers = Request::RequestHeaders(headers(&REQUEST_HEADERS));
        let request_body = Request::RequestBody(last_body(&chat_body(REQUEST_BODY_BYTES)));
        let response_headers = Request::ResponseHeaders(headers(&RESPONSE_HEADERS));
        let response_body = Request::ResponseBody(last_body(&completion_body(RESPONSE_BODY_BYTES)));
        Self {
            request: [first(request_headers), later(request_body)],
            response: [later(response_headers), later(response_body)],
        }
    }
}

fn first(request: Request) -> Bytes {
    let full_duplex = BodySendMode::FullDuplexStreamed.into();
    frame(&ProcessingRequest {
        request: Some(request),
        protocol_config: Some(ProtocolConfiguration {
            request_body_mode: full_duplex,
            response_body_mode: full_duplex,
            send_body_without_waiting_for_header_response: true,
        }),
        ..ProcessingRequest::default()
    })
}

fn later(request: Request) -> Bytes {
    frame(&ProcessingRequest {
        request: Some(request),
        ..ProcessingRequest::default()
    })
}

/// gRPC's five bytes before a message: not compressed, and its length.
fn frame(message: &ProcessingRequest) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(5 + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).expect("the messages here are a few KB"));
    message
        .encode(&mut framed)
        .expect("a growing buffer takes any message");
    framed.freeze()
}

fn headers(pairs: &[(&str, &str)]) -> HttpHeaders {
    let value = |&(key, value): &(&str, &str)| HeaderValue {
        key: key.to_owned(),
        raw_value: value.as_bytes().to_vec(),
        ..HeaderValue::default()
    };
    let headers = pairs.iter().map(value).collect();
    HttpHeaders {
        headers: Some(HeaderMap { headers }),
        ..HttpHeaders::default()
    }
}

fn last_body(body: &str) -> HttpBody {
    HttpBody {
        body: body.as_bytes().to_vec(),
        end_of_stream: true,
        ..HttpBody::default()
    }
}

fn chat_body(bytes: usize) -> String {
    let head = r#"{"model":"m","messages":[{"role":"user","content":""#;
    padded(head, r#""}]}"#, bytes)
}

fn completion_body(bytes: usize) -> String {
    let head = r#"{"object":"chat.completion","choices":[{"index":0,"message":{"content":""#;
    let tail = r#""}}],"usage":{"prompt_tokens":900,"completion_tokens":150,"total_tokens":1050}}"#;
    padded(head, tail, bytes)
}

fn padded(head: &str, tail: &str, bytes: usize) -> String {
    let fill = bytes.saturating_sub(head.len() + tail.len());
    let text: String = "every good boy does fine "
        .chars()
        .cycle()
        .take(fill)
        .collect();
    format!("{head}{text}{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_have_the_stated_sizes_and_are_json() {
        for body in [
            chat_body(REQUEST_BODY_BYTES),
            completion_body(RESPONSE_BODY_BYTES),
        ] {
            assert!(body.len() == REQUEST_BODY_BYTES || body.len() == RESPONSE_BODY_BYTES);
            assert!(serde_json::from_str::<serde_json::Value>(&body).is_ok());
        }
    }
}
