//! The request phase, its refusals, and the filter's modes.

use super::*;

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
        for message in messages {
            story.tell(message);
        }
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
        story.tell_all(words);
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
