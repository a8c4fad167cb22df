//! The response phase, and how a closing server ends it.

use super::*;

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

#[test]
fn a_closing_server_refuses_what_it_owes_and_leaves_the_rest() {
    for (words, expected) in [
        (">h >b:x", vec!["503 shutting_down", "end"]),
        (">h! <h <b:x", vec!["end"]),
    ] {
        let mut story = Story::new(Fake::default());
        story.tell_all(words);
        story.heard();
        story.exchange.on_closing();
        story.settle();
        assert_eq!(story.heard(), expected);
        assert_eq!((story.fake.held(), story.in_flight()), (0, 0));
    }
}
