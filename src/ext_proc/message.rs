//! Envoy's messages, read into plain values and built from them: the only file that knows them.
//!
//! It decides nothing; `exchange` does.

use std::collections::HashMap;

use envoy_types::pb::{
    envoy::{
        config::core::v3::{
            HeaderMap, HeaderValue, HeaderValueOption, Metadata,
            header_value_option::HeaderAppendAction,
        },
        service::ext_proc::v3::{
            BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, HttpBody,
            HttpHeaders, ImmediateResponse, ProcessingRequest, ProcessingResponse,
            ProtocolConfiguration, StreamedBodyResponse, TrailersResponse, body_mutation::Mutation,
            processing_request::Request, processing_response::Response,
        },
        r#type::v3::HttpStatus,
    },
    google::protobuf::{Struct, Value, value::Kind},
};
use uuid::Uuid;

use super::{
    ResponseHead, SubsetHint,
    protocol::{
        BodyMode, BodyModes, DESTINATION, LB_NAMESPACE, REMOVED_HEADERS, REQUEST_ID, SERVED,
        SUBSET, SUBSET_NAMESPACE, UPSTREAM_ADDRESS,
    },
};
use crate::{error::Refusal, request::Head};

/// One message from Envoy.
pub(super) struct Incoming {
    pub(super) part: Part,
    /// Sent with the first message of a stream by a filter that announces its modes.
    pub(super) modes: Option<BodyModes>,
    /// The filter takes no answers.
    pub(super) observing: bool,
}

pub(super) enum Part {
    RequestHeaders {
        head: RequestHead,
        end: bool,
        subset: Option<SubsetHint>,
    },
    RequestBody {
        chunk: Chunk,
        subset: Option<SubsetHint>,
    },
    RequestTrailers {
        subset: Option<SubsetHint>,
    },
    ResponseHeaders {
        head: ResponseHead,
        end: bool,
    },
    ResponseBody(Chunk),
    ResponseTrailers,
    /// Nothing that this server knows: it is passed over.
    Unknown,
}

/// A request's headers, and the request id if one had to be made.
pub(super) struct RequestHead {
    pub(super) head: Head,
    pub(super) minted_id: Option<String>,
}

pub(super) struct Chunk {
    pub(super) bytes: Vec<u8>,
    pub(super) end: bool,
}

pub(super) fn read(message: ProcessingRequest) -> Incoming {
    let metadata = message.metadata_context.as_ref();
    let part = match message.request {
        None => Part::Unknown,
        Some(Request::RequestHeaders(headers)) => Part::RequestHeaders {
            end: headers.end_of_stream,
            head: request_head(headers),
            subset: subset_hint(metadata),
        },
        Some(Request::RequestBody(body)) => Part::RequestBody {
            chunk: chunk(body),
            subset: subset_hint(metadata),
        },
        Some(Request::RequestTrailers(_)) => Part::RequestTrailers {
            subset: subset_hint(metadata),
        },
        Some(Request::ResponseHeaders(headers)) => Part::ResponseHeaders {
            end: headers.end_of_stream,
            head: ResponseHead {
                served: served(metadata, &message.attributes),
                ..response_head(headers)
            },
        },
        Some(Request::ResponseBody(body)) => Part::ResponseBody(chunk(body)),
        Some(Request::ResponseTrailers(_)) => Part::ResponseTrailers,
    };
    Incoming {
        part,
        modes: message.protocol_config.map(body_modes),
        observing: message.observability_mode,
    }
}

/// The answer that routes: destination by header and by identical metadata, the rest untouched.
pub(super) fn routed(
    endpoint: String,
    minted_id: Option<String>,
    added: Vec<(&'static str, String)>,
) -> ProcessingResponse {
    let metadata = in_struct(LB_NAMESPACE, in_struct(DESTINATION, text(endpoint.clone())));
    let mut set_headers = Vec::with_capacity(2 + added.len());
    set_headers.push(set(DESTINATION, endpoint));
    set_headers.extend(minted_id.map(|id| set(REQUEST_ID, id)));
    set_headers.extend(added.into_iter().map(|(name, value)| set(name, value)));
    let common = CommonResponse {
        header_mutation: Some(HeaderMutation {
            set_headers,
            remove_headers: REMOVED_HEADERS.map(str::to_owned).into(),
        }),
        clear_route_cache: true,
        ..CommonResponse::default()
    };
    ProcessingResponse {
        dynamic_metadata: match metadata.kind {
            Some(Kind::StructValue(fields)) => Some(fields),
            _ => None,
        },
        ..answer(Response::RequestHeaders(HeadersResponse {
            response: Some(common),
        }))
    }
}

pub(super) fn response_headers(added: Vec<(&'static str, String)>) -> ProcessingResponse {
    let header_mutation = (!added.is_empty()).then(|| HeaderMutation {
        set_headers: added
            .into_iter()
            .map(|(name, value)| set(name, value))
            .collect(),
        remove_headers: Vec::new(),
    });
    answer(Response::ResponseHeaders(HeadersResponse {
        response: Some(CommonResponse {
            header_mutation,
            ..CommonResponse::default()
        }),
    }))
}

pub(super) fn request_body(chunk: Chunk) -> ProcessingResponse {
    answer(Response::RequestBody(streamed(chunk)))
}

pub(super) fn response_body(chunk: Chunk) -> ProcessingResponse {
    answer(Response::ResponseBody(streamed(chunk)))
}

pub(super) fn request_trailers() -> ProcessingResponse {
    answer(Response::RequestTrailers(TrailersResponse::default()))
}

pub(super) fn response_trailers() -> ProcessingResponse {
    answer(Response::ResponseTrailers(TrailersResponse::default()))
}

pub(super) fn refused(refusal: &Refusal) -> ProcessingResponse {
    let mut set_headers = vec![set("content-type", "application/json".to_owned())];
    if let Some(delay) = refusal.retry_after {
        set_headers.push(set("retry-after", delay.as_secs().max(1).to_string()));
    }
    answer(Response::ImmediateResponse(ImmediateResponse {
        status: Some(HttpStatus {
            code: i32::from(refusal.status),
        }),
        headers: Some(HeaderMutation {
            set_headers,
            remove_headers: Vec::new(),
        }),
        body: refusal.json(),
        details: refusal.code.to_owned(),
        ..ImmediateResponse::default()
    }))
}

fn answer(response: Response) -> ProcessingResponse {
    ProcessingResponse {
        response: Some(response),
        ..ProcessingResponse::default()
    }
}

fn streamed(chunk: Chunk) -> BodyResponse {
    let streamed = StreamedBodyResponse {
        body: chunk.bytes,
        end_of_stream: chunk.end,
        ..StreamedBodyResponse::default()
    };
    BodyResponse {
        response: Some(CommonResponse {
            body_mutation: Some(BodyMutation {
                mutation: Some(Mutation::StreamedResponse(streamed)),
            }),
            ..CommonResponse::default()
        }),
    }
}

/// Only `raw_value`: what is set by `value` arrives empty.
fn set(name: &'static str, value: String) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue {
            key: name.to_owned(),
            value: String::new(),
            raw_value: value.into_bytes(),
        }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..HeaderValueOption::default()
    }
}

fn text(value: String) -> Value {
    Value {
        kind: Some(Kind::StringValue(value)),
    }
}

fn in_struct(key: &str, value: Value) -> Value {
    Value {
        kind: Some(Kind::StructValue(Struct {
            fields: HashMap::from([(key.to_owned(), value)]),
        })),
    }
}

fn request_head(headers: HttpHeaders) -> RequestHead {
    let mut fields = header_fields(headers.headers);
    let has_id = fields
        .iter()
        .any(|(name, value)| name == REQUEST_ID && !value.is_empty());
    let minted_id = (!has_id).then(|| Uuid::new_v4().to_string());
    if let Some(id) = &minted_id {
        fields.retain(|(name, _)| name != REQUEST_ID);
        fields.push((REQUEST_ID.to_owned(), id.clone()));
    }
    RequestHead {
        head: Head::new(fields),
        minted_id,
    }
}

fn response_head(headers: HttpHeaders) -> ResponseHead {
    let mut head = ResponseHead::default();
    for header in headers.headers.unwrap_or_default().headers {
        match header.key.as_str() {
            ":status" => head.status = header_value(header).parse().ok(), // unreadable: unknown
            "content-type" => head.content_type = Some(header_value(header)),
            _ => {}
        }
    }
    head
}

fn header_fields(map: Option<HeaderMap>) -> Vec<(String, String)> {
    map.unwrap_or_default()
        .headers
        .into_iter()
        .map(|mut header| (std::mem::take(&mut header.key), header_value(header)))
        .collect()
}

/// Envoy fills `raw_value`; other data planes still fill `value`.
fn header_value(header: HeaderValue) -> String {
    if header.raw_value.is_empty() {
        return header.value;
    }
    String::from_utf8(header.raw_value)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn chunk(body: HttpBody) -> Chunk {
    Chunk {
        bytes: body.body,
        end: body.end_of_stream,
    }
}

fn subset_hint(metadata: Option<&Metadata>) -> Option<SubsetHint> {
    let hint = field(metadata, SUBSET_NAMESPACE, SUBSET)?;
    Some(match hint {
        Kind::StringValue(text) => SubsetHint::only([text.as_str()]),
        Kind::ListValue(list) => SubsetHint::only(list.values.iter().filter_map(string)),
        // Set, but to nothing that names an endpoint: failing open would ignore a restriction.
        _ => SubsetHint::Only(Vec::new()),
    })
}

fn served(metadata: Option<&Metadata>, attributes: &HashMap<String, Struct>) -> Option<String> {
    let reported = match field(metadata, LB_NAMESPACE, SERVED) {
        Some(Kind::StringValue(text)) => Some(text.as_str()),
        Some(Kind::ListValue(list)) => list.values.iter().filter_map(string).next_back(),
        _ => None,
    };
    let upstream = || {
        attributes
            .values()
            .find_map(|group| group.fields.get(UPSTREAM_ADDRESS).and_then(string))
    };
    // A list is in the order of attempts: the last one answered.
    let endpoint = reported.or_else(upstream)?.rsplit(',').next()?.trim();
    (!endpoint.is_empty()).then(|| endpoint.to_owned())
}

fn field<'a>(metadata: Option<&'a Metadata>, namespace: &str, key: &str) -> Option<&'a Kind> {
    let group = metadata?.filter_metadata.get(namespace)?;
    let value = group.fields.get(key)?;
    Some(value.kind.as_ref().unwrap_or(&Kind::NullValue(0)))
}

fn string(value: &Value) -> Option<&str> {
    match &value.kind {
        Some(Kind::StringValue(text)) => Some(text),
        _ => None,
    }
}

fn body_modes(config: ProtocolConfiguration) -> BodyModes {
    BodyModes {
        request: body_mode(config.request_body_mode),
        response: body_mode(config.response_body_mode),
    }
}

fn body_mode(number: i32) -> BodyMode {
    match number {
        0 => BodyMode::None,
        1 => BodyMode::Unsupported("STREAMED"),
        2 => BodyMode::Unsupported("BUFFERED"),
        3 => BodyMode::Unsupported("BUFFERED_PARTIAL"),
        4 => BodyMode::FullDuplexStreamed,
        5 => BodyMode::Unsupported("GRPC"),
        _ => BodyMode::Unsupported("UNKNOWN"),
    }
}
