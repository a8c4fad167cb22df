//! The other side of an exchange: says what Envoy says, and reads what it would act on.
//!
//! It knows no workers.

use envoy_types::pb::{
    envoy::{
        config::core::v3::{HeaderMap, HeaderValue, HeaderValueOption, Metadata},
        service::ext_proc::v3::{
            BodyResponse, HeaderMutation, HeadersResponse, HttpBody, HttpHeaders, HttpTrailers,
            ProcessingRequest, ProcessingResponse, ProtocolConfiguration, body_mutation::Mutation,
            external_processor_client::ExternalProcessorClient, processing_request::Request,
            processing_response::Response,
        },
    },
    google::protobuf::{ListValue, Struct, Value, value::Kind},
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming, transport::Channel};

use crate::house::soon;

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const HELLO: &str = r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
const DESTINATION: &str = "x-gateway-destination-endpoint";
/// Above the picker's own limit, so that it can be overstepped.
const MESSAGE_BYTES: usize = 128 << 20;

/// One stream to the picker.
pub(crate) struct Exchange {
    to: mpsc::Sender<ProcessingRequest>,
    from: Streaming<ProcessingResponse>,
    /// Goes out with the next message, once.
    modes: Option<ProtocolConfiguration>,
    /// Goes out with every message of the request.
    subset: Option<Kind>,
}

/// One reply, as far as a data plane acts on it.
#[derive(Debug)]
pub(crate) enum Reply {
    Routed(Routed),
    RequestBody(Piece),
    RequestTrailers,
    ResponseHeaders(Option<HeaderMutation>),
    ResponseBody(Piece),
    ResponseTrailers,
    Refused(Refused),
    Ended(Code),
}

#[derive(Debug)]
pub(crate) struct Routed {
    pub(crate) set: Vec<HeaderValueOption>,
    pub(crate) removed: Vec<String>,
    pub(crate) in_metadata: String,
    pub(crate) clears_route: bool,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Piece {
    pub(crate) bytes: Vec<u8>,
    pub(crate) end: bool,
}

#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) status: i32,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: serde_json::Value,
}

/// What leaves for the worker.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) routed: Routed,
    pub(crate) pieces: Vec<Piece>,
}

impl Exchange {
    /// As a filter that announces full duplex both ways.
    pub(crate) async fn open(channel: Channel) -> Result<Self, Status> {
        let mut exchange = Self::open_without_modes(channel).await?;
        exchange.announce(4, 4, true);
        Ok(exchange)
    }

    pub(crate) async fn open_without_modes(channel: Channel) -> Result<Self, Status> {
        let (to, messages) = mpsc::channel(64);
        let from = ExternalProcessorClient::new(channel)
            .max_encoding_message_size(MESSAGE_BYTES)
            .process(ReceiverStream::new(messages))
            .await?
            .into_inner();
        Ok(Self {
            to,
            from,
            modes: None,
            subset: None,
        })
    }

    pub(crate) fn announce(&mut self, request: i32, response: i32, without_waiting: bool) {
        self.modes = Some(ProtocolConfiguration {
            request_body_mode: request,
            response_body_mode: response,
            send_body_without_waiting_for_header_response: without_waiting,
        });
    }

    pub(crate) fn allow_only(&mut self, hint: Kind) {
        self.subset = Some(hint);
    }

    // ---- what Envoy says ----

    pub(crate) async fn post(&mut self, path: &str) {
        self.request(&[(":method", "POST"), (":path", path)], false)
            .await;
    }

    pub(crate) async fn get(&mut self, path: &str) {
        self.request(&[(":method", "GET"), (":path", path)], true)
            .await;
    }

    pub(crate) async fn request(&mut self, fields: &[(&str, &str)], end: bool) {
        let named = fields.iter().any(|(name, _)| *name == "x-request-id");
        let id = (!named).then_some(("x-request-id", "r-1"));
        let fields: Vec<_> = fields.iter().copied().chain(id).collect();
        self.say(Request::RequestHeaders(headers(&fields, end)))
            .await;
    }

    pub(crate) async fn request_body(&mut self, bytes: &[u8], end: bool) {
        self.say(Request::RequestBody(body(bytes, end))).await;
    }

    pub(crate) async fn request_trailers(&mut self) {
        self.say(Request::RequestTrailers(HttpTrailers::default()))
            .await;
    }

    pub(crate) async fn response(&mut self, fields: &[(&str, &str)], end: bool) {
        self.say(Request::ResponseHeaders(headers(fields, end)))
            .await;
    }

    pub(crate) async fn response_body(&mut self, bytes: &[u8], end: bool) {
        self.say(Request::ResponseBody(body(bytes, end))).await;
    }

    pub(crate) async fn response_trailers(&mut self) {
        self.say(Request::ResponseTrailers(HttpTrailers::default()))
            .await;
    }

    /// Response headers that report who served.
    pub(crate) async fn response_from(&mut self, served: &str) {
        let kind = Kind::StringValue(served.to_owned());
        let message = ProcessingRequest {
            metadata_context: Some(metadata(
                "envoy.lb",
                "x-gateway-destination-endpoint-served",
                kind,
            )),
            request: Some(Request::ResponseHeaders(headers(
                &[(":status", "200")],
                false,
            ))),
            ..ProcessingRequest::default()
        };
        self.send(message).await;
    }

    async fn say(&mut self, request: Request) {
        let subset = self.subset.clone();
        let message = ProcessingRequest {
            protocol_config: self.modes.take(),
            metadata_context: subset.map(|hint| {
                let key = "x-gateway-destination-endpoint-subset";
                metadata("envoy.lb.subset_hint", key, hint)
            }),
            request: Some(request),
            ..ProcessingRequest::default()
        };
        self.send(message).await;
    }

    /// A stream that has ended takes nothing more; what it answered is still to be read.
    async fn send(&mut self, message: ProcessingRequest) {
        drop(self.to.send(message).await);
    }

    // ---- what it hears ----

    pub(crate) async fn reply(&mut self) -> Reply {
        match soon(self.from.message()).await {
            Ok(Some(reply)) => read(reply),
            Ok(None) => Reply::Ended(Code::Ok),
            Err(status) => Reply::Ended(status.code()),
        }
    }

    pub(crate) async fn routed(&mut self) -> Routed {
        match self.reply().await {
            Reply::Routed(routed) => routed,
            other => panic!("not routed: {other:?}"),
        }
    }

    pub(crate) async fn refused(&mut self) -> Refused {
        match self.reply().await {
            Reply::Refused(refused) => refused,
            other => panic!("not refused: {other:?}"),
        }
    }

    pub(crate) async fn ended(&mut self) -> Code {
        match self.reply().await {
            Reply::Ended(code) => code,
            other => panic!("not ended: {other:?}"),
        }
    }

    /// Headers and the whole body, up to its end.
    pub(crate) async fn upstream(&mut self) -> Upstream {
        let routed = self.routed().await;
        let mut pieces = Vec::new();
        loop {
            let Reply::RequestBody(piece) = self.reply().await else {
                panic!("not a body");
            };
            let end = piece.end;
            pieces.push(piece);
            if end {
                return Upstream { routed, pieces };
            }
        }
    }

    pub(crate) async fn response_piece(&mut self) -> Piece {
        match self.reply().await {
            Reply::ResponseBody(piece) => piece,
            other => panic!("not a response body: {other:?}"),
        }
    }

    /// A chat request in one piece, up to its last answer.
    pub(crate) async fn chat(&mut self) -> Upstream {
        self.post(CHAT).await;
        self.request_body(HELLO.as_bytes(), true).await;
        self.upstream().await
    }

    /// A whole response, answered.
    pub(crate) async fn complete(&mut self) {
        self.response(&[(":status", "200")], false).await;
        self.reply().await;
        self.response_body(b"{}", true).await;
        assert!(self.response_piece().await.end);
    }
}

impl Routed {
    pub(crate) fn destination(&self) -> String {
        self.header(DESTINATION).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let fields = self.set.iter().filter_map(|set| set.header.as_ref());
        let mut named = fields.filter(|field| field.key == name);
        named.next().map(raw)
    }
}

impl Upstream {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.pieces
            .iter()
            .flat_map(|piece| piece.bytes.clone())
            .collect()
    }

    pub(crate) fn ends(&self) -> Vec<bool> {
        self.pieces.iter().map(|piece| piece.end).collect()
    }
}

impl Refused {
    pub(crate) fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut named = self.headers.iter().filter(|(known, _)| known == name);
        named.next().map(|(_, value)| value.as_str())
    }
}

pub(crate) fn texts(texts: &[&str]) -> Kind {
    let value = |text: &&str| Value {
        kind: Some(Kind::StringValue((*text).to_owned())),
    };
    Kind::ListValue(ListValue {
        values: texts.iter().map(value).collect(),
    })
}

fn read(reply: ProcessingResponse) -> Reply {
    let in_metadata = destination_of(reply.dynamic_metadata);
    match reply.response.unwrap() {
        Response::RequestHeaders(headers) => Reply::Routed(routed(headers, in_metadata)),
        Response::ResponseHeaders(headers) => {
            Reply::ResponseHeaders(headers.response.unwrap().header_mutation)
        }
        Response::RequestBody(body) => Reply::RequestBody(piece(body)),
        Response::ResponseBody(body) => Reply::ResponseBody(piece(body)),
        Response::RequestTrailers(_) => Reply::RequestTrailers,
        Response::ResponseTrailers(_) => Reply::ResponseTrailers,
        Response::ImmediateResponse(refusal) => Reply::Refused(Refused {
            status: refusal.status.unwrap().code,
            headers: fields(refusal.headers.unwrap().set_headers),
            body: serde_json::from_slice(&refusal.body).unwrap(),
        }),
        other @ Response::StreamedImmediateResponse(_) => panic!("unexpected: {other:?}"),
    }
}

fn routed(headers: HeadersResponse, in_metadata: String) -> Routed {
    let common = headers.response.unwrap();
    let mutation = common.header_mutation.unwrap();
    Routed {
        set: mutation.set_headers,
        removed: mutation.remove_headers,
        in_metadata,
        clears_route: common.clear_route_cache,
    }
}

fn piece(body: BodyResponse) -> Piece {
    match body.response.unwrap().body_mutation.unwrap().mutation {
        Some(Mutation::StreamedResponse(streamed)) => Piece {
            bytes: streamed.body,
            end: streamed.end_of_stream,
        },
        other => panic!("not streamed: {other:?}"),
    }
}

fn destination_of(metadata: Option<Struct>) -> String {
    let lb = metadata.and_then(|mut metadata| metadata.fields.remove("envoy.lb")?.kind);
    let Some(Kind::StructValue(mut lb)) = lb else {
        return String::new();
    };
    match lb.fields.remove(DESTINATION).and_then(|value| value.kind) {
        Some(Kind::StringValue(endpoint)) => endpoint,
        _ => String::new(),
    }
}

fn fields(set: Vec<HeaderValueOption>) -> Vec<(String, String)> {
    set.into_iter()
        .filter_map(|set| set.header)
        .map(|header| (header.key.clone(), raw(&header)))
        .collect()
}

/// A data plane takes nothing but `raw_value`.
fn raw(header: &HeaderValue) -> String {
    assert!(header.value.is_empty());
    String::from_utf8(header.raw_value.clone()).unwrap()
}

fn headers(fields: &[(&str, &str)], end_of_stream: bool) -> HttpHeaders {
    let header = |(name, value): &(&str, &str)| HeaderValue {
        key: (*name).to_owned(),
        raw_value: value.as_bytes().to_vec(),
        ..HeaderValue::default()
    };
    HttpHeaders {
        headers: Some(HeaderMap {
            headers: fields.iter().map(header).collect(),
        }),
        end_of_stream,
        ..HttpHeaders::default()
    }
}

fn body(bytes: &[u8], end_of_stream: bool) -> HttpBody {
    HttpBody {
        body: bytes.to_vec(),
        end_of_stream,
        ..HttpBody::default()
    }
}

fn metadata(namespace: &str, key: &str, kind: Kind) -> Metadata {
    let value = Value { kind: Some(kind) };
    let fields = Struct {
        fields: [(key.to_owned(), value)].into(),
    };
    Metadata {
        filter_metadata: [(namespace.to_owned(), fields)].into(),
        ..Metadata::default()
    }
}
