//! The exchange against a fake pick: scripts of messages in, replies out.

mod request;
mod response;
mod stream;

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Waker},
    time::Duration,
};

use bytes::Bytes;
use envoy_types::pb::{
    envoy::{
        config::core::v3::{HeaderMap, HeaderValue, Metadata},
        service::ext_proc::v3::{
            CommonResponse, HeadersResponse, HttpBody, HttpHeaders, HttpTrailers,
            ProcessingRequest, ProcessingResponse, ProtocolConfiguration, body_mutation::Mutation,
            processing_request::Request, processing_response::Response,
        },
    },
    google::protobuf::{ListValue, Struct, Value, value::Kind},
};
use futures::StreamExt as _;
use prometheus_client::registry::Registry;
use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::{
    Held, Limits, Metrics, Pick, Picked, Replies, ResponseHead, Server, SubsetHint,
    exchange::{Close, Exchange},
};
use crate::{error::Refusal, request::Head};

const ENDPOINT: &str = "10.0.0.1:8000";

// ---- the fake ----

#[derive(Clone, Default)]
struct Fake {
    behaviour: Behaviour,
    picks: Arc<AtomicUsize>,
    held: Arc<AtomicUsize>,
    seen: Arc<std::sync::Mutex<Vec<String>>>,
}

#[derive(Clone, Copy, Default)]
enum Behaviour {
    #[default]
    Route,
    Refuse,
    Never,
    Panic,
    PanicInHeld,
    /// Pending that many times.
    Slow(u32),
}

struct FakeHeld {
    fake: Fake,
}

impl Fake {
    fn that(behaviour: Behaviour) -> Self {
        Self {
            behaviour,
            ..Self::default()
        }
    }

    fn note(&self, what: String) {
        self.seen.lock().unwrap().push(what);
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }
}

impl Pick for Fake {
    type Held = FakeHeld;

    async fn pick(
        &self,
        head: Head,
        body: Bytes,
        subset: SubsetHint,
    ) -> Result<Picked<FakeHeld>, Refusal> {
        self.picks.fetch_add(1, Ordering::SeqCst);
        self.note(format!("pick {} {}", head.path, body.len()));
        if !subset.allows(ENDPOINT.parse().unwrap()) {
            return Err(Refusal::fixed(503, "none", "none"));
        }
        match self.behaviour {
            Behaviour::Refuse => return Err(Refusal::fixed(400, "bad", "bad request")),
            Behaviour::Never => std::future::pending().await,
            Behaviour::Panic => panic!("as told"),
            Behaviour::Slow(times) => yield_times(times).await,
            Behaviour::Route | Behaviour::PanicInHeld => {}
        }
        self.held.fetch_add(1, Ordering::SeqCst);
        Ok(Picked {
            endpoint: ENDPOINT.to_owned(),
            request_headers: Vec::new(),
            response_headers: Vec::new(),
            held: Some(FakeHeld { fake: self.clone() }),
        })
    }
}

impl Held for FakeHeld {
    fn response_headers(&mut self, head: &ResponseHead) {
        let served = head.served.as_deref().unwrap_or("-");
        self.fake.note(format!("served {served}"));
    }

    fn response_body(&mut self, chunk: &[u8], end: bool) {
        assert!(
            !matches!(self.fake.behaviour, Behaviour::PanicInHeld),
            "as told"
        );
        self.fake.note(format!("response {} {end}", chunk.len()));
    }
}

impl Drop for FakeHeld {
    fn drop(&mut self) {
        self.fake.held.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn yield_times(times: u32) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

// ---- messages in ----

fn message(request: Request) -> ProcessingRequest {
    ProcessingRequest {
        request: Some(request),
        ..ProcessingRequest::default()
    }
}

fn header(name: &str, value: &str) -> HeaderValue {
    HeaderValue {
        key: name.to_owned(),
        raw_value: value.as_bytes().to_vec(),
        ..HeaderValue::default()
    }
}

fn headers(fields: &[(&str, &str)], end_of_stream: bool) -> HttpHeaders {
    HttpHeaders {
        headers: Some(HeaderMap {
            headers: fields.iter().map(|(n, v)| header(n, v)).collect(),
        }),
        end_of_stream,
        ..HttpHeaders::default()
    }
}

fn post(extra: &[(&str, &str)], end: bool) -> ProcessingRequest {
    let mut fields = vec![
        (":method", "POST"),
        (":path", "/p"),
        ("x-request-id", "r-1"),
    ];
    fields.extend(extra);
    message(Request::RequestHeaders(headers(&fields, end)))
}

/// `>h` request headers, `>b:TEXT` request body, `>t` request trailers; `<h`, `<b:TEXT`, `<t` the
/// response's; a `!` at the end is `end_of_stream`.
fn said(word: &str) -> ProcessingRequest {
    let (word, end) = match word.strip_suffix('!') {
        Some(word) => (word, true),
        None => (word, false),
    };
    let body = |text: &str| HttpBody {
        body: text.as_bytes().to_vec(),
        end_of_stream: end,
        ..HttpBody::default()
    };
    match word.split_at(2) {
        (">h", _) => post(&[], end),
        (">b", text) => message(Request::RequestBody(body(&text[1..]))),
        (">t", _) => message(Request::RequestTrailers(HttpTrailers::default())),
        ("<h", _) => message(Request::ResponseHeaders(headers(
            &[(":status", "200")],
            end,
        ))),
        ("<b", text) => message(Request::ResponseBody(body(&text[1..]))),
        ("<t", _) => message(Request::ResponseTrailers(HttpTrailers::default())),
        other => panic!("no such word: {other:?}"),
    }
}

fn with_hint(
    mut message: ProcessingRequest,
    namespace: &str,
    key: &str,
    kind: Kind,
) -> ProcessingRequest {
    let value = Value { kind: Some(kind) };
    let fields = Struct {
        fields: [(key.to_owned(), value)].into(),
    };
    message.metadata_context = Some(Metadata {
        filter_metadata: [(namespace.to_owned(), fields)].into(),
        ..Metadata::default()
    });
    message
}

fn subset(message: ProcessingRequest, kind: Kind) -> ProcessingRequest {
    with_hint(
        message,
        "envoy.lb.subset_hint",
        "x-gateway-destination-endpoint-subset",
        kind,
    )
}

fn list(texts: &[&str]) -> Kind {
    let text = |text: &&str| Value {
        kind: Some(Kind::StringValue((*text).to_owned())),
    };
    Kind::ListValue(ListValue {
        values: texts.iter().map(text).collect(),
    })
}

fn modes(request: i32, response: i32, word: &str) -> ProcessingRequest {
    ProcessingRequest {
        protocol_config: Some(ProtocolConfiguration {
            request_body_mode: request,
            response_body_mode: response,
            send_body_without_waiting_for_header_response: false,
        }),
        ..said(word)
    }
}

// ---- replies out ----

fn heard(reply: &ProcessingResponse) -> String {
    let streamed = |common: &Option<CommonResponse>| {
        let mutation = common.as_ref().unwrap().body_mutation.as_ref().unwrap();
        match mutation.mutation.as_ref().unwrap() {
            Mutation::StreamedResponse(body) => {
                let text = String::from_utf8_lossy(&body.body).into_owned();
                format!("b:{text}{}", if body.end_of_stream { "!" } else { "" })
            }
            other => panic!("not streamed: {other:?}"),
        }
    };
    match reply.response.as_ref().unwrap() {
        Response::RequestHeaders(_) => ">h".to_owned(),
        Response::ResponseHeaders(_) => "<h".to_owned(),
        Response::RequestBody(body) => format!(">{}", streamed(&body.response)),
        Response::ResponseBody(body) => format!("<{}", streamed(&body.response)),
        Response::RequestTrailers(_) => ">t".to_owned(),
        Response::ResponseTrailers(_) => "<t".to_owned(),
        Response::ImmediateResponse(answer) => {
            let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
            let status = answer.status.unwrap().code;
            format!("{status} {}", body["error"]["code"].as_str().unwrap())
        }
        other @ Response::StreamedImmediateResponse(_) => panic!("unexpected: {other:?}"),
    }
}

struct Story {
    fake: Fake,
    server: Server<Fake>,
    exchange: Exchange<Fake>,
    replies: Vec<ProcessingResponse>,
}

impl Story {
    fn new(fake: Fake) -> Self {
        Self::within(Limits::default(), fake)
    }

    fn within(limits: Limits, fake: Fake) -> Self {
        let server = server(limits, &fake);
        let exchange = Exchange::new(Arc::clone(&server.shared));
        Self {
            fake,
            server,
            exchange,
            replies: Vec::new(),
        }
    }

    fn tell(&mut self, message: ProcessingRequest) {
        self.exchange.on_message(message);
        self.settle();
    }

    fn tell_all(&mut self, words: &str) {
        for word in words.split_whitespace() {
            self.tell(said(word));
        }
    }

    fn settle(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            while let Some(reply) = self.exchange.next_reply() {
                self.replies.push(reply);
            }
            if !self.exchange.poll_pick(&mut cx) {
                return;
            }
        }
    }

    fn heard(&mut self) -> Vec<String> {
        let mut heard: Vec<_> = self.replies.drain(..).map(|reply| heard(&reply)).collect();
        match self.exchange.take_close() {
            None => {}
            Some(Close::Clean) => heard.push("end".to_owned()),
            Some(Close::Fault(status)) => heard.push(format!("{:?}", status.code())),
        }
        heard
    }

    fn in_flight(&self) -> usize {
        self.server.in_flight().count()
    }
}

fn server(limits: Limits, fake: &Fake) -> Server<Fake> {
    Server::new(fake.clone(), limits, Metrics::new(&mut Registry::default()))
}

fn check(words: &str, expected: &str) {
    check_with(Fake::default(), words, expected);
}

fn check_with(fake: Fake, words: &str, expected: &str) -> Story {
    let mut story = Story::new(fake);
    story.tell_all(words);
    let heard = story.heard();
    assert_eq!(heard.join(" "), expected, "after {words}");
    story
}
