//! The exchange against a fake pick: scripts of messages in, replies out.

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
        other => panic!("unexpected: {other:?}"),
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
    for word in words.split_whitespace() {
        story.tell(said(word));
    }
    let heard = story.heard();
    assert_eq!(heard.join(" "), expected, "after {words}");
    story
}

// ---- the request phase ----

#[test]
fn a_body_that_ends_by_flag_is_answered_in_order() {
    check(">h >b:ab >b:cd!", ">h >b:abcd!");
}

#[test]
fn a_body_that_ends_by_an_empty_piece_is_answered_once() {
    check(">h >b:abcd >b:!", ">h >b:abcd!");
}

#[test]
fn a_body_that_ends_by_trailers_leaves_the_end_to_them() {
    check(">h >b:ab >b:cd >t", ">h >b:abcd >t");
}

#[test]
fn trailers_without_a_body_are_answered() {
    check(">h >t", ">h >t");
}

#[test]
fn an_empty_body_is_answered_by_an_empty_end() {
    check(">h >b:!", ">h >b:!");
}

#[test]
fn headers_that_end_the_request_are_answered_alone() {
    check(">h!", ">h");
}

#[test]
fn nothing_is_said_before_the_body_has_ended() {
    check(">h >b:ab", "");
}

#[test]
fn an_end_that_is_repeated_changes_nothing() {
    let story = check_with(Fake::default(), ">h >b:ab >b:cd! >b:cd! >t", ">h >b:abcd!");
    assert_eq!(story.fake.picks.load(Ordering::SeqCst), 1);
}

#[test]
fn a_large_body_leaves_in_pieces_and_whole() {
    let mut story = Story::new(Fake::default());
    let sent: Vec<u8> = (0..300_001_u32).map(|n| n.to_le_bytes()[0]).collect();
    story.tell(said(">h"));
    for piece in sent.chunks(49_152) {
        story.tell(message(Request::RequestBody(HttpBody {
            body: piece.to_vec(),
            ..HttpBody::default()
        })));
    }
    story.tell(said(">b:!"));
    let mut got = Vec::new();
    let mut ends = Vec::new();
    for reply in &story.replies[1..] {
        let Some(Response::RequestBody(body)) = &reply.response else {
            panic!("not a body: {reply:?}");
        };
        let mutation = body.response.as_ref().unwrap().body_mutation.clone();
        let Some(Mutation::StreamedResponse(piece)) = mutation.unwrap().mutation else {
            panic!("not streamed");
        };
        assert!(piece.body.len() <= 62_000);
        got.extend(piece.body);
        ends.push(piece.end_of_stream);
    }
    assert_eq!(got, sent);
    assert_eq!(ends, [false, false, false, false, true]);
}

#[test]
fn the_answer_names_the_destination_in_header_and_metadata() {
    let mut story = Story::new(Fake::default());
    story.tell(post(
        &[("x-gateway-destination-endpoint", "203.0.113.9:1")],
        true,
    ));
    let reply = story.replies.remove(0);
    let Some(Response::RequestHeaders(HeadersResponse {
        response: Some(common),
    })) = reply.response
    else {
        panic!("not routed");
    };
    assert!(common.clear_route_cache);
    let mutation = common.header_mutation.unwrap();
    let set = &mutation.set_headers[0];
    let field = set.header.as_ref().unwrap();
    assert_eq!(field.key, "x-gateway-destination-endpoint");
    assert_eq!(field.raw_value, ENDPOINT.as_bytes());
    assert_eq!(field.value, "");
    assert_eq!(
        set.append_action().as_str_name(),
        "OVERWRITE_IF_EXISTS_OR_ADD"
    );
    assert_eq!(mutation.set_headers.len(), 1, "the request id was there");
    assert!(
        mutation
            .remove_headers
            .contains(&"x-prefiller-host-port".to_owned())
    );
    let metadata = reply.dynamic_metadata.unwrap();
    let Some(Kind::StructValue(lb)) = &metadata.fields["envoy.lb"].kind else {
        panic!("no struct");
    };
    assert_eq!(
        lb.fields["x-gateway-destination-endpoint"].kind,
        Some(Kind::StringValue(ENDPOINT.to_owned()))
    );
}

#[test]
fn a_missing_request_id_is_made() {
    let mut story = Story::new(Fake::default());
    story.tell(message(Request::RequestHeaders(headers(&[], true))));
    let Some(Response::RequestHeaders(headers)) = &story.replies[0].response else {
        panic!("not routed");
    };
    let common = headers.response.as_ref().unwrap();
    let set = &common.header_mutation.as_ref().unwrap().set_headers[1];
    let field = set.header.as_ref().unwrap();
    assert_eq!(
        (field.key.as_str(), field.raw_value.len()),
        ("x-request-id", 36)
    );
}

#[test]
fn a_subset_is_read_from_any_message_of_the_request() {
    let other = || list(&["10.0.0.9:1"]);
    let cases = [
        vec![subset(said(">h!"), other())],
        vec![said(">h"), subset(said(">b:x!"), other())],
        vec![said(">h"), said(">b:x"), subset(said(">t"), other())],
    ];
    for messages in cases {
        let mut story = Story::new(Fake::default());
        messages.into_iter().for_each(|message| story.tell(message));
        assert_eq!(story.heard(), ["503 none", "end"]);
    }
}

#[test]
fn a_subset_of_the_wrong_type_allows_nobody() {
    let cases = [
        (Kind::NumberValue(1.0), "503 none"),
        (list(&[]), "503 none"),
        (
            Kind::StringValue("10.0.0.1:8000, 10.0.0.2:8000".to_owned()),
            ">h",
        ),
        (list(&["10.0.0.1"]), ">h"),
    ];
    for (kind, expected) in cases {
        let mut story = Story::new(Fake::default());
        story.tell(subset(said(">h!"), kind.clone()));
        assert_eq!(story.heard()[0], expected, "{kind:?}");
    }
}

// ---- refusals ----

#[test]
fn a_refusal_is_the_only_answer_and_ends_cleanly() {
    let story = check_with(Fake::that(Behaviour::Refuse), ">h >b:x!", "400 bad end");
    assert_eq!(story.in_flight(), 0);
}

#[test]
fn a_panicking_pick_is_refused_with_500() {
    check_with(
        Fake::that(Behaviour::Panic),
        ">h >b:x!",
        "500 internal_error end",
    );
}

#[test]
fn what_arrives_after_a_refusal_is_passed_over() {
    check_with(
        Fake::that(Behaviour::Refuse),
        ">h! >b:x <h <b:x!",
        "400 bad end",
    );
}

#[test]
fn a_body_over_the_cap_is_refused_at_once() {
    let limits = Limits {
        body_bytes: 3,
        ..Limits::default()
    };
    for words in [">h >b:ab >b:cd", ">h >b:abcd!"] {
        let mut story = Story::within(limits, Fake::default());
        words.split(' ').for_each(|word| story.tell(said(word)));
        assert_eq!(story.heard(), ["413 request_too_large", "end"]);
    }
    let mut story = Story::within(limits, Fake::default());
    story.tell(post(&[("content-length", "4")], false));
    assert_eq!(story.heard(), ["413 request_too_large", "end"]);
}

#[test]
fn too_many_exchanges_are_refused_until_one_ends() {
    let limits = Limits {
        exchanges: 1,
        ..Limits::default()
    };
    let mut first = Story::within(limits, Fake::default());
    first.tell(said(">h!"));
    let mut second = Exchange::new(Arc::clone(&first.server.shared));
    second.on_message(said(">h!"));
    let refused = second.next_reply().unwrap();
    assert_eq!(heard(&refused), "429 too_many_requests");
    let Some(Response::ImmediateResponse(answer)) = refused.response else {
        panic!("not immediate");
    };
    let names: Vec<_> = answer
        .headers
        .unwrap()
        .set_headers
        .into_iter()
        .map(|set| set.header.unwrap().key)
        .collect();
    assert_eq!(names, ["content-type", "retry-after"]);
    first.tell(said("<h!"));
    let mut third = Exchange::new(Arc::clone(&first.server.shared));
    third.on_message(said(">h"));
    assert!(third.next_reply().is_none());
    assert_eq!(first.in_flight(), 1);
}

#[test]
fn silence_during_an_upload_is_refused_with_408() {
    let mut story = Story::new(Fake::default());
    story.tell(said(">h"));
    assert_eq!(story.exchange.patience(), Some(Duration::from_mins(1)));
    story.exchange.on_silence();
    story.settle();
    assert_eq!(story.heard(), ["408 request_timeout", "end"]);
}

// ---- the filter's modes ----

#[test]
fn a_body_mode_that_is_not_served_ends_the_stream_at_once() {
    for (request, response) in [(2, 4), (1, 4), (0, 0), (4, 2)] {
        let mut story = Story::new(Fake::default());
        story.tell(modes(request, response, ">h"));
        assert_eq!(
            story.heard(),
            ["FailedPrecondition"],
            "{request} {response}"
        );
    }
    for (request, response) in [(4, 4), (4, 0)] {
        let mut story = Story::new(Fake::default());
        story.tell(modes(request, response, ">h!"));
        assert_eq!(story.heard(), [">h"], "{request} {response}");
    }
}

#[test]
fn an_observing_filter_is_never_answered() {
    let mut story = Story::new(Fake::default());
    for word in [">h", ">b:x!", "<h", "<b:x!"] {
        story.tell(ProcessingRequest {
            observability_mode: true,
            ..said(word)
        });
    }
    assert!(story.heard().is_empty());
}

// ---- the response phase ----

#[test]
fn a_response_passes_piece_by_piece() {
    let story = check_with(
        Fake::default(),
        ">h! <h <b:ab <b:cd <b:!",
        ">h <h <b:ab <b:cd <b:!",
    );
    assert_eq!(story.fake.held(), 0);
    assert_eq!(
        story.fake.seen()[1..],
        [
            "served -",
            "response 2 false",
            "response 2 false",
            "response 0 true"
        ]
    );
}

#[test]
fn response_trailers_are_answered_and_end_it() {
    let story = check_with(Fake::default(), ">h! <h <b:ab <t", ">h <h <b:ab <t");
    assert_eq!(story.fake.held(), 0);
}

#[test]
fn headers_that_end_the_response_free_its_load() {
    let story = check_with(Fake::default(), ">h! <h!", ">h <h");
    assert_eq!((story.fake.held(), story.in_flight()), (0, 0));
}

#[test]
fn the_end_of_the_stream_frees_the_load_without_a_proof() {
    let mut story = check_with(Fake::default(), ">h! <h <b:ab", ">h <h <b:ab");
    assert_eq!(story.fake.held(), 1);
    story.exchange.on_end();
    assert_eq!((story.fake.held(), story.in_flight()), (0, 0));
    assert_eq!(story.heard(), ["end"]);
}

#[test]
fn a_long_silence_frees_the_load_and_keeps_the_stream() {
    let mut story = check_with(Fake::default(), ">h! <h <b:ab", ">h <h <b:ab");
    story.exchange.on_silence();
    assert_eq!((story.fake.held(), story.in_flight()), (0, 0));
    assert_eq!(story.exchange.patience(), None);
    story.tell(said("<b:cd!"));
    assert_eq!(story.heard(), ["<b:cd!"]);
}

#[test]
fn a_panic_while_counting_costs_the_load_and_not_the_response() {
    let story = check_with(
        Fake::that(Behaviour::PanicInHeld),
        ">h! <h <b:ab <b:cd!",
        ">h <h <b:ab <b:cd!",
    );
    assert_eq!(story.fake.held(), 0);
}

#[test]
fn an_answer_of_envoys_own_ends_the_pick() {
    let story = check_with(
        Fake::that(Behaviour::Never),
        ">h >b:x! <h <b:no!",
        "<h <b:no!",
    );
    assert_eq!(story.in_flight(), 0);
}

#[test]
fn a_response_that_was_never_routed_passes() {
    check("<h <b:no!", "<h <b:no!");
}

#[test]
fn the_served_endpoint_is_the_last_one_reported() {
    let mut story = Story::new(Fake::default());
    story.tell(said(">h!"));
    let served = Kind::StringValue("10.0.0.1:1,10.0.0.2:2".to_owned());
    story.tell(with_hint(
        said("<h"),
        "envoy.lb",
        "x-gateway-destination-endpoint-served",
        served,
    ));
    assert_eq!(story.fake.seen().last().unwrap(), "served 10.0.0.2:2");
}

#[test]
fn the_upstream_attribute_stands_in_for_the_served_endpoint() {
    let mut story = Story::new(Fake::default());
    story.tell(said(">h!"));
    let address = Value {
        kind: Some(Kind::StringValue("10.0.0.3:3".to_owned())),
    };
    let mut headers = said("<h");
    let group = Struct {
        fields: [("upstream.address".to_owned(), address)].into(),
    };
    headers.attributes = [("envoy.filters.http.ext_proc".to_owned(), group)].into();
    story.tell(headers);
    assert_eq!(story.fake.seen().last().unwrap(), "served 10.0.0.3:3");
}

// ---- closing ----

#[test]
fn a_closing_server_refuses_what_it_owes_and_leaves_the_rest() {
    for (words, expected) in [
        (">h >b:x", vec!["503 shutting_down", "end"]),
        (">h! <h <b:x", vec!["end"]),
    ] {
        let mut story = Story::new(Fake::default());
        words.split(' ').for_each(|word| story.tell(said(word)));
        story.heard();
        story.exchange.on_closing();
        story.settle();
        assert_eq!(story.heard(), expected);
        assert_eq!((story.fake.held(), story.in_flight()), (0, 0));
    }
}

// ---- the stream around it ----

#[tokio::test]
async fn a_pick_is_dropped_when_its_stream_ends() {
    let fake = Fake::that(Behaviour::Never);
    let server = server(Limits::default(), &fake);
    let messages = futures::stream::iter([Ok(said(">h")), Ok(said(">b:x!"))]);
    let mut replies = Replies::new(Arc::clone(&server.shared), messages);
    assert!(replies.next().await.is_none());
    assert_eq!(
        fake.picks.load(Ordering::SeqCst),
        0,
        "the end was already there"
    );
    assert_eq!(server.in_flight().count(), 0);
}

#[tokio::test]
async fn an_upload_that_stops_is_refused_after_its_patience() {
    let limits = Limits {
        body_idle: Duration::from_millis(5),
        ..Limits::default()
    };
    let server = server(limits, &Fake::default());
    let messages = futures::stream::iter([Ok(said(">h"))]).chain(futures::stream::pending());
    let mut replies = Replies::new(Arc::clone(&server.shared), messages);
    let reply = replies.next().await.unwrap().unwrap();
    assert_eq!(heard(&reply), "408 request_timeout");
    assert!(replies.next().await.is_none());
}

#[tokio::test]
async fn a_pick_that_never_ends_is_refused_after_its_patience() {
    let limits = Limits {
        pick: Duration::from_millis(5),
        ..Limits::default()
    };
    let server = server(limits, &Fake::that(Behaviour::Never));
    let messages = futures::stream::iter([Ok(said(">h!"))]).chain(futures::stream::pending());
    let mut replies = Replies::new(Arc::clone(&server.shared), messages);
    let reply = replies.next().await.unwrap().unwrap();
    assert_eq!(heard(&reply), "503 routing_timeout");
}

#[tokio::test]
async fn a_message_too_large_to_take_is_refused_with_413() {
    let server = server(Limits::default(), &Fake::default());
    let broken = Err(tonic::Status::out_of_range(
        "decoded message length too large",
    ));
    let messages = futures::stream::iter([Ok(said(">h")), broken]);
    let mut replies = Replies::new(Arc::clone(&server.shared), messages);
    let reply = replies.next().await.unwrap().unwrap();
    assert_eq!(heard(&reply), "413 request_too_large");
}

// ---- random cancellation ----

/// Any exchange may be dropped, ended or told to be silent at any point; nothing may stay behind.
#[test]
fn random_cancellation_leaves_nothing_held() {
    let seed = RandomState::new().build_hasher().finish();
    println!("seed {seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let fake = Fake::that(Behaviour::Slow(3));
    let server = server(Limits::default(), &fake);
    let script = [">h", ">b:ab", ">b:cd!", "<h", "<b:x", "<b:y", "<b:z!"];
    let mut open: Vec<(Exchange<Fake>, usize)> = Vec::new();
    let mut finished = 0;
    while finished < 10_000 {
        if open.len() < 50 {
            open.push((Exchange::new(Arc::clone(&server.shared)), 0));
        }
        let index = rng.random_range(0..open.len());
        let (exchange, position) = &mut open[index];
        let mut cx = Context::from_waker(Waker::noop());
        exchange.poll_pick(&mut cx);
        while exchange.next_reply().is_some() {}
        match rng.random_range(0..12) {
            0 => exchange.on_end(),
            1 => exchange.on_silence(),
            2 => exchange.on_closing(),
            3 => *position = script.len(),
            _ if *position < script.len() => {
                exchange.on_message(said(script[*position]));
                *position += 1;
            }
            _ => {}
        }
        if *position == script.len() {
            open.swap_remove(index);
            finished += 1;
        }
    }
    drop(open);
    assert_eq!(fake.held(), 0);
    assert_eq!(server.in_flight().count(), 0);
    assert_eq!(server.shared.metrics.body_bytes.get(), 0);
    assert_eq!(server.shared.metrics.in_flight.get(), 0);
}
