//! Which way a prompt takes, and that each way ends.

use super::*;

fn hello() -> RoutingRequest {
    chat_request(&json!({"messages": [{"role": "user", "content": "hello"}]}))
}

fn degraded(degraded: Degraded) -> Tokens {
    Tokens {
        ids: Vec::new(),
        degraded: Some(degraded),
    }
}

#[tokio::test]
async fn without_a_tokenizer_only_token_ids_are_known() {
    let tokenizer = Tokenizer::none();
    assert_eq!(
        tokenizer.tokenize(&hello()).await,
        Ok(degraded(Degraded::NoTokenizer))
    );
    assert_eq!(
        tokenizer.tokenize(&text_request("hello")).await,
        Ok(degraded(Degraded::NoTokenizer))
    );
    let ids = request("/v1/completions", &json!({"prompt": [5, 6]}));
    assert_eq!(tokenizer.tokenize(&ids).await.unwrap().ids, [5, 6]);
    assert_eq!(tokenizer.metrics().degraded(Degraded::NoTokenizer), 2);
}

#[tokio::test]
async fn a_request_that_is_not_understood_is_routed_by_load() {
    let tokenizer = Tokenizer::load(&small(), TokenizeConfig::default()).unwrap();
    let other = request("/v1/responses", &json!({"input": "hello"}));
    assert_eq!(
        tokenizer.tokenize(&other).await,
        Ok(degraded(Degraded::Opaque))
    );
}

#[tokio::test]
async fn without_a_template_completions_still_count() {
    let tokenizer = ModelDir::new().with("tokenizer_config.json", "{}").load();
    assert_eq!(
        tokenizer.tokenize(&hello()).await,
        Ok(degraded(Degraded::NoTemplate))
    );
    assert!(
        !tokenizer
            .tokenize(&text_request("hello"))
            .await
            .unwrap()
            .ids
            .is_empty()
    );
}

#[tokio::test]
async fn a_refusal_of_the_template_is_an_error() {
    let tokenizer = ModelDir::new()
        .with_template("{{ raise_exception('no') }}")
        .load();
    let refused = tokenizer.tokenize(&hello()).await;
    assert!(matches!(refused, Err(TokenizeError::Refused { message }) if message == "no"));
}

#[tokio::test]
async fn a_long_text_gives_the_same_ids_away_from_the_request_path() {
    let offloads = TokenizeConfig {
        offload_after: Duration::ZERO,
        ..TokenizeConfig::default()
    };
    let quick = Tokenizer::load(&small(), TokenizeConfig::default()).unwrap();
    let offloads = Tokenizer::load(&small(), offloads).unwrap();
    let long = "the wind in the north ".repeat(60_000);
    for request in [hello(), text_request("hello"), text_request(&long)] {
        let tokens = offloads.tokenize(&request).await.unwrap();
        assert_eq!(tokens.ids, quick.token_ids(&request).unwrap());
        assert_eq!(tokens.degraded, None);
    }
}

#[test]
fn a_text_that_may_be_slow_leaves_the_request_path() {
    let tokenizer = Tokenizer::load(&small(), TokenizeConfig::default()).unwrap();
    let leaves = |text: &str| {
        matches!(
            tokenizer.shared.inline(&text_request(text).prompt),
            Step::Offload(_)
        )
    };
    assert!(!leaves("the wind in the north"));
    assert!(leaves(&"x".repeat(5_000)));
    assert!(leaves(&"the wind in the north ".repeat(10_000)));
}

#[tokio::test]
async fn a_text_over_the_limit_is_routed_by_load() {
    let config = TokenizeConfig {
        max_text_bytes: 1_000,
        ..TokenizeConfig::default()
    };
    let tokenizer = Tokenizer::load(&small(), config).unwrap();
    let long = text_request(&"x".repeat(1_001));
    assert_eq!(
        tokenizer.tokenize(&long).await,
        Ok(degraded(Degraded::TooLong))
    );
}

#[tokio::test]
async fn a_full_line_turns_a_text_away_at_once() {
    let config = TokenizeConfig {
        offload_threads: 1,
        offload_waiting: 1,
        ..TokenizeConfig::default()
    };
    let offload = offload::Offload::new(&config);
    let (release, gate) = std::sync::mpsc::channel::<()>();
    let mut running = Box::pin(offload.run(move || gate.recv().is_ok()));
    let mut waiting = Box::pin(offload.run(|| true));
    assert!(futures_pending(&mut running) && futures_pending(&mut waiting));
    assert_eq!(offload.run(|| true).await, Err(Degraded::Busy));
    release.send(()).unwrap();
    assert_eq!(running.await, Ok(true));
    assert_eq!(waiting.await, Ok(true));
    assert_eq!(offload.run(|| true).await, Ok(true));
}

#[tokio::test]
async fn a_text_that_takes_too_long_is_given_up() {
    let config = TokenizeConfig {
        offload_threads: 1,
        deadline: Duration::from_millis(1),
        ..TokenizeConfig::default()
    };
    let offload = offload::Offload::new(&config);
    let (release, gate) = std::sync::mpsc::channel::<()>();
    assert_eq!(
        offload.run(move || gate.recv().is_ok()).await,
        Err(Degraded::Deadline)
    );
    // The thread is still taken, so the next waits for it in vain.
    assert_eq!(offload.run(|| true).await, Err(Degraded::Deadline));
    drop(release);
}

#[tokio::test]
async fn a_panic_costs_one_request_its_tokens() {
    let offload = offload::Offload::new(&TokenizeConfig::default());
    assert_eq!(
        offload.run(|| panic!("on purpose")).await,
        Err::<(), _>(Degraded::Panicked)
    );
    assert_eq!(offload.run(|| 1).await, Ok(1));
    let outcome = guarded(|| -> Result<(), TokenizeError> { panic!("on purpose") });
    assert_eq!(outcome, Err(Degraded::Panicked.into()));
}

#[tokio::test]
async fn a_large_body_is_parsed_like_a_small_one() {
    let tokenizer = Tokenizer::none();
    let head = Head::new([(":method", "POST"), (":path", "/v1/completions")]);
    for bytes in [10, INLINE_BYTES * 2] {
        let body = json!({"model": "m", "prompt": "x".repeat(bytes)})
            .to_string()
            .into();
        let request = tokenizer.parse(&head, &body).await.unwrap();
        assert!(matches!(&request.prompt, PromptInput::Text(text) if text.len() == bytes));
    }
}

#[test]
fn a_directory_without_a_tokenizer_is_an_error_that_names_it() {
    let dir = ModelDir::new();
    fs::remove_file(dir.0.join("tokenizer.json")).unwrap();
    let error = Tokenizer::load(&dir.0, TokenizeConfig::default()).unwrap_err();
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
    let dir = dir.with("tokenizer.json", "{}");
    let error = Tokenizer::load(&dir.0, TokenizeConfig::default()).unwrap_err();
    assert!(matches!(error, LoadError::Engine { .. }), "{error}");
}

fn futures_pending(future: &mut (impl Future + Unpin)) -> bool {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    std::pin::Pin::new(future).poll(&mut context).is_pending()
}
