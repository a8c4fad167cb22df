//! What is read from bodies that clients really send, and from bodies that nobody should.

use std::sync::Arc;

use bytes::Bytes;
use minijinja::Value;
use pointsman_plugin::plugins::worker_selection::WorkerSelectionInputTrigger;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde_json::{Value as Json, json};

use super::*;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn head(path: &str, headers: &[(&str, &str)]) -> Head {
    let fixed = [(":method", "POST"), (":path", path)];
    Head::new(fixed.iter().chain(headers).map(|(n, v)| (*n, *v)))
}

fn parse_text(path: &str, body: impl Into<Vec<u8>>) -> Result<RoutingRequest, RequestError> {
    parse(&head(path, &[]), &Bytes::from(body.into()))
}

fn parse_json(path: &str, body: &Json) -> RoutingRequest {
    parse_text(path, body.to_string()).unwrap()
}

fn hello(extra: &Json) -> Json {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
    let fields = extra.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

fn chat(request: &RoutingRequest) -> &Arc<ChatPrompt> {
    match &request.prompt {
        PromptInput::Chat(chat) => chat,
        other => panic!("not a chat: {other:?}"),
    }
}

fn tokens(request: &RoutingRequest) -> &[u32] {
    match &request.prompt {
        PromptInput::Tokens(ids) => ids,
        other => panic!("not tokens: {other:?}"),
    }
}

fn reason(request: &RoutingRequest) -> &'static str {
    match request.prompt {
        PromptInput::Opaque { reason, .. } => reason,
        ref other => panic!("understood: {other:?}"),
    }
}

fn text(value: &Value, name: &str) -> String {
    value.get_attr(name).unwrap().to_string()
}

#[test]
fn a_chat_needs_no_prompt() {
    let request = parse_json(CHAT, &hello(&json!({"stream": true})));
    assert_eq!(request.model.as_deref(), Some("m"));
    assert!(request.stream);
    let chat = chat(&request);
    assert_eq!(chat.messages.len(), 1);
    assert_eq!(text(&chat.messages[0], "role"), "user");
    assert!(chat.add_generation_prompt && !chat.continue_final_message);
    assert!(chat.tools.is_none());
}

#[test]
fn of_several_prompts_the_first_is_read() {
    let body = json!({"model": "m", "prompt": ["hello world", "good day"]});
    match parse_json(COMPLETIONS, &body).prompt {
        PromptInput::Text(text) => assert_eq!(&*text, "hello world"),
        other => panic!("{other:?}"),
    }
    let body = json!({"prompt": [[1, 2], [3]]});
    assert_eq!(tokens(&parse_json(COMPLETIONS, &body)), [1, 2]);
}

#[test]
fn token_ids_are_taken_as_they_are() {
    let body = json!({"model": "m", "prompt": [1, 2, 3, 4, 5, 6, 7, 8]});
    assert_eq!(
        tokens(&parse_json(COMPLETIONS, &body)),
        [1, 2, 3, 4, 5, 6, 7, 8]
    );
}

#[test]
fn a_prompt_of_another_kind_is_refused_by_name() {
    for prompt in [
        json!([]),
        json!([-1]),
        json!([1.5]),
        json!({}),
        json!(7),
        json!([1, "a"]),
        json!([4_294_967_296_u64]),
    ] {
        let body = json!({"model": "m", "prompt": prompt}).to_string();
        let error = parse_text(COMPLETIONS, body).unwrap_err();
        assert_eq!(error.param(), Some("prompt"), "{prompt}");
    }
    assert_eq!(
        reason(&parse_json(COMPLETIONS, &json!({"prompt_embeds": "x"}))),
        "no prompt"
    );
}

#[test]
fn a_chat_without_messages_is_refused_by_name() {
    for messages in [
        json!([]),
        json!(null),
        json!("hi"),
        json!(["hi"]),
        json!({"role": "user"}),
    ] {
        let error =
            parse_text(CHAT, hello(&json!({"messages": messages})).to_string()).unwrap_err();
        assert_eq!(error.param(), Some("messages"), "{messages}");
        assert!(error.to_string().starts_with("messages: "), "{error}");
    }
}

#[test]
fn a_null_is_as_good_as_a_missing_key() {
    let nulls = json!({"max_tokens": null, "temperature": null, "stop": null, "tools": null,
        "stream": null, "nvext": null, "cache_salt": null, "chat_template_kwargs": null});
    let request = parse_json(CHAT, &hello(&nulls));
    assert_eq!(request.hints.expected_output_tokens, None);
    assert_eq!(request.hints.max_output_tokens, None);
    assert!(chat(&request).tools.is_none() && !request.stream);
}

#[test]
fn sampling_fields_are_never_judged() {
    for stop in [
        json!(["a", "b", "c", "d", "e"]),
        json!([1, 2, 3, 4, 5]),
        json!({"x": [[]]}),
    ] {
        let odd = json!({"stop": stop, "temperature": "hot", "seed": 12_345_678_901_234_567_890_u64,
            "max_tokens": "many", "stream": "yes", "tools": 3, "nvext": [1]});
        let request = parse_json(CHAT, &hello(&odd));
        assert_eq!(request.hints.max_output_tokens, None);
        assert!(!request.stream && chat(&request).tools.is_none());
    }
}

#[test]
fn an_encoded_body_is_routed_by_load() {
    let gzip = [0x1f, 0x8b, 0x08, 0, 0, 0, 0, 0];
    let head = head(CHAT, &[("Content-Encoding", "gzip")]);
    let request = parse(&head, &Bytes::copy_from_slice(&gzip)).unwrap();
    assert_eq!(reason(&request), "encoded body");
}

#[test]
fn what_is_not_json_is_refused_without_being_repeated() {
    let bodies: [&[u8]; 6] = [
        b"no healthy upstream",
        b"{\"model\":\"m\"",
        b"{}x",
        b"\xff\xfe{}",
        b"{\"a\":\x01}",
        b"   ",
    ];
    for body in bodies {
        let error = parse_text(CHAT, body).unwrap_err();
        assert!(
            matches!(error, RequestError::NotJson { .. }),
            "{error:?} for {body:?}"
        );
        assert!(error.to_string().len() < 100);
        assert!(!error.to_string().contains("upstream"));
    }
    for body in ["[]", "1", "null", "\"x\"", "true", "-1.5"] {
        assert_eq!(
            parse_text(CHAT, body).unwrap_err(),
            RequestError::NotAnObject,
            "{body}"
        );
    }
}

#[test]
fn a_request_without_a_body_is_routed_by_load() {
    let get = Head::new([(":method", "GET"), (":path", "/v1/models")]);
    assert_eq!(reason(&parse(&get, &Bytes::new()).unwrap()), "no body");
    assert_eq!(reason(&parse_text(CHAT, "").unwrap()), "no body");
}

#[test]
fn a_lone_surrogate_becomes_a_replacement_character() {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"fire \ud83d ends"}]}"#;
    let request = parse_text(CHAT, body).unwrap();
    assert_eq!(
        text(&chat(&request).messages[0], "content"),
        "fire \u{fffd} ends"
    );
}

#[test]
fn the_last_of_equal_keys_wins() {
    let body = r#"{"model":"allowed","messages":[{"role":"user","content":"a","content":"b"}],"model":"other"}"#;
    let request = parse_text(CHAT, body).unwrap();
    assert_eq!(request.model.as_deref(), Some("other"));
    assert_eq!(text(&chat(&request).messages[0], "content"), "b");
    let escaped = r#"{"prompt":"a","\u0070rompt":"b","model":"m","model":null}"#;
    let request = parse_text(COMPLETIONS, escaped).unwrap();
    assert!(matches!(&request.prompt, PromptInput::Text(text) if &**text == "b"));
    assert_eq!(request.model, None);
}

#[test]
fn odd_but_valid_json_is_read() {
    let body = "\u{feff}{ \"model\" : \"m\",\n \"seed\": 12345678901234567890, \"temperature\":0.10, \
        \"messages\":[{\"role\":\"user\",\"content\":\"caf\\u00e9 \\/ x\"}], \"vendor_x\": {\"b\":1,\"a\":1e2} }\n";
    let request = parse_text(CHAT, body).unwrap();
    assert_eq!(
        text(&chat(&request).messages[0], "content"),
        "caf\u{e9} / x"
    );
}

#[test]
fn an_unknown_path_is_routed_by_load_but_for_its_model() {
    let request = parse_json(
        "/v1/responses",
        &json!({"model": "m", "input": "hello", "stream": true}),
    );
    assert_eq!(
        (reason(&request), request.model.as_deref()),
        ("unknown path", Some("m"))
    );
    assert!(request.stream);
    for body in ["{", "[]", "{\"model\": 3}", "--form-data"] {
        let request = parse_text("/v1/audio/transcriptions", body).unwrap();
        assert_eq!(
            (reason(&request), request.model),
            ("unknown path", None),
            "{body}"
        );
    }
}

#[test]
fn the_end_of_the_path_tells_the_endpoint() {
    let check = |path, expected| assert_eq!(head(path, &[]).endpoint(), expected, "{path}");
    check(CHAT, Endpoint::ChatCompletions);
    check(
        "/team-a/v1/chat/completions?api-version=1",
        Endpoint::ChatCompletions,
    );
    check("/v1/completions/", Endpoint::Completions);
    check("/v1/completions/render", Endpoint::Other);
    check("/v1/embeddings?x=/completions", Endpoint::Other);
    let get = Head::new([(":method", "GET"), (":path", CHAT)]);
    assert_eq!(get.endpoint(), Endpoint::Other);
}

#[test]
fn an_empty_model_counts_as_missing() {
    for model in [json!(""), json!(null)] {
        assert_eq!(
            parse_json(CHAT, &hello(&json!({"model": model}))).model,
            None
        );
    }
    let error = parse_text(CHAT, hello(&json!({"model": 3})).to_string()).unwrap_err();
    assert_eq!(error.param(), Some("model"));
}

#[test]
fn fields_for_the_template_reach_it() {
    let body = hello(
        &json!({"tools": [{"type": "function"}], "tool_choice": "none", "documents": [{"text": "d"}],
        "chat_template_kwargs": {"enable_thinking": false, "x": 1}, "continue_final_message": true}),
    );
    let request = parse_json(CHAT, &body);
    let chat = chat(&request);
    assert!(chat.tools_refused && chat.tools.is_some() && chat.documents.is_some());
    assert!(chat.continue_final_message && !chat.add_generation_prompt);
    let names: Vec<_> = chat
        .arguments
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(names, ["enable_thinking", "x"]);
}

#[test]
fn the_salt_comes_from_the_tenant_then_the_extension_then_the_body() {
    let check = |headers: &[(&str, &str)], body: Json, expected: Option<&str>| {
        let request = parse(&head(CHAT, headers), &Bytes::from(hello(&body).to_string())).unwrap();
        assert_eq!(request.cache_salt.as_deref(), expected, "{body}");
    };
    let both = json!({"cache_salt": "top", "nvext": {"cache_salt": "ext"}});
    check(&[("X-Tenant-Id", "tenant")], both.clone(), Some("tenant"));
    check(&[("x-tenant-id", "")], both.clone(), Some("ext"));
    check(
        &[],
        json!({"cache_salt": "top", "nvext": {"cache_salt": ""}}),
        Some("top"),
    );
    check(&[], json!({"cache_salt": ""}), None);
    check(&[], json!({"cache_salt": 5}), None);
}

#[test]
fn a_hint_in_a_header_outranks_the_body() {
    let hints = json!({"priority": 3, "strict_priority": 2, "osl": 128});
    let body =
        Bytes::from(hello(&json!({"nvext": {"agent_hints": hints}, "max_tokens": 9})).to_string());
    let from_body = parse(&head(CHAT, &[]), &body).unwrap().hints;
    assert!((from_body.priority_jump - 3.0).abs() < f64::EPSILON);
    assert_eq!(
        (from_body.strict_priority, from_body.expected_output_tokens),
        (2, Some(128))
    );
    assert_eq!(from_body.max_output_tokens, Some(9));
    let headers = [
        ("x-dynamo-request-priority", "7.5"),
        ("x-dynamo-request-strict-priority", "4"),
        ("x-dynamo-meta-policy-class", " batch "),
        ("X-Dynamo-Session-ID", "s1"),
        ("x-dynamo-parent-session-id", "s0"),
        ("x-dynamo-session-final", "True"),
    ];
    let hints = parse(&head(CHAT, &headers), &body).unwrap().hints;
    assert!((hints.priority_jump - 7.5).abs() < f64::EPSILON);
    assert_eq!(
        (hints.strict_priority, hints.policy_class.as_deref()),
        (4, Some("batch"))
    );
    let session = hints.session.unwrap();
    assert_eq!(
        (session.session_id(), session.parent_session_id()),
        ("s1", Some("s0"))
    );
    assert_eq!(session.session_final(), Some(true));
    assert_eq!(
        session.input_trigger(),
        Some(WorkerSelectionInputTrigger::UserMessage)
    );
}

#[test]
fn a_hint_without_sense_is_no_hint() {
    let hints = json!({"priority": "high", "strict_priority": -1, "osl": 1.5});
    let body = Bytes::from(hello(&json!({"nvext": {"agent_hints": hints}})).to_string());
    let headers = [
        ("x-dynamo-request-priority", "NaN"),
        ("x-dynamo-session-id", " "),
    ];
    let request = parse(&head(CHAT, &headers), &body).unwrap();
    assert_eq!(request.hints, Hints::default());
}

#[test]
fn deep_nesting_is_refused_wherever_it_is() {
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    for template in [
        r#"{"vendor":@}"#,
        r#"{"messages":@}"#,
        r#"{"tools":{"a":@}}"#,
        "@",
    ] {
        for levels in [200, 2_000_000] {
            let error = parse_text(CHAT, template.replace('@', &deep(levels))).unwrap_err();
            assert_eq!(error, RequestError::TooDeep, "{template} {levels}");
        }
    }
    let open = format!("{{\"x\":{}", "{\"a\":".repeat(1_000_000));
    assert_eq!(parse_text(CHAT, open).unwrap_err(), RequestError::TooDeep);
    let body = format!(
        "{{\"vendor\":{},{}",
        deep(100),
        &hello(&json!({})).to_string()[1..]
    );
    assert!(parse_text(CHAT, body).is_ok());
}

#[test]
fn a_body_made_to_fill_memory_is_routed_by_load_but_for_its_model() {
    for item in ["0,", "{},", "[],", "{\"a\":0},"] {
        let items = item.repeat(300_000);
        let messages = format!(
            "{{\"messages\":[{}],\"model\":\"m\"}}",
            items.trim_end_matches(',')
        );
        let request = parse_text(CHAT, messages).unwrap();
        assert_eq!(
            (reason(&request), request.model.as_deref()),
            ("too many values", Some("m"))
        );
    }
    let ids = format!("{{\"prompt\":[{}1]}}", "7,".repeat(1_000_000));
    assert_eq!(
        tokens(&parse_text(COMPLETIONS, ids).unwrap()).len(),
        1_000_001
    );
}

#[test]
fn a_huge_body_is_read() {
    let body = hello(&json!({"messages": [{"role": "user", "content": "x".repeat(5 << 20)}]}));
    assert_eq!(chat(&parse_json(CHAT, &body)).bytes, 5 << 20);
}

#[test]
fn no_bytes_make_the_reader_panic() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let bases = [
        hello(&json!({"tools": [{"function": {"arguments": "{\"a\": 1}"}}], "nvext": {"agent_hints": {"osl": 1}}})).to_string(),
        json!({"prompt": [[1, 2, 3]], "model": "\u{1f600}", "x": [1e5, -0.1, true, null]}).to_string(),
        r#"{"model":"\ud83d\ude00\ud83d","messages":[{"content":[{"type":"text","text":"\u0000"}]}]}"#.to_owned(),
    ];
    let pieces: [&[u8]; 12] = [
        b"\"", b"{", b"}", b"[", b"]", b"\\u", b"\\ud800", b"\xff", b",", b":", b"1e999", b"\0",
    ];
    for _ in 0..20_000 {
        let mut body = bases[random.random_range(0..bases.len())]
            .clone()
            .into_bytes();
        for _ in 0..random.random_range(1..6) {
            let at = random.random_range(0..=body.len());
            match random.random_range(0..4) {
                0 => body.truncate(at),
                1 if at < body.len() => body[at] = random.random(),
                2 if at < body.len() => drop(body.remove(at)),
                _ => drop(body.splice(
                    at..at,
                    pieces[random.random_range(0..pieces.len())].iter().copied(),
                )),
            }
        }
        let path = if random.random() { CHAT } else { COMPLETIONS };
        if let Err(error) = parse_text(path, body) {
            assert!(error.to_string().len() < 200);
        }
    }
}
