//! The fast engine against the reference, and both against prompts that are built to differ.
//!
//! `POINTSMAN_TEST_TOKENIZERS` names directories of real models, separated by colons.

use rand::{Rng, SeedableRng, rngs::SmallRng, seq::IndexedRandom};
use tokenizers::Tokenizer as Oracle;

use super::*;

fn model_dirs() -> Vec<PathBuf> {
    let more = std::env::var_os("POINTSMAN_TEST_TOKENIZERS").unwrap_or_default();
    let more = std::env::split_paths(&more).filter(|path| !path.as_os_str().is_empty());
    std::iter::once(small())
        .chain(more.collect::<Vec<_>>())
        .collect()
}

fn oracle_ids(oracle: &Oracle, text: &str) -> Vec<u32> {
    oracle.encode_fast(text, true).unwrap().get_ids().to_vec()
}

/// Added tokens of the model, and words that are made to run into them.
fn pieces(oracle: &Oracle) -> Vec<String> {
    let added = oracle.get_added_tokens_decoder();
    let mut added: Vec<String> = added.into_values().map(|token| token.content).collect();
    added.sort();
    let cut = added.iter().map(|token| token.chars().skip(1).collect());
    let open = added.iter().map(|token| token.chars().take(3).collect());
    let words = [
        " ",
        "\n",
        "\n\n",
        "  \t",
        "a",
        "the harbour",
        " don't",
        "1234567",
        "é",
        "e\u{301}",
        "\u{fb01}",
        "日本語",
        "\u{1f468}\u{200d}\u{1f469}",
        "\u{0}",
        "\u{feff}",
        "\u{2028}",
        "<|",
        "|>",
        "<",
        "\r\n",
        "'LL",
        "\u{1e9b}\u{323}",
        "עברית",
        "ǅ",
        "x".repeat(90).leak(),
        " ".repeat(70).leak(),
        "!?".repeat(20).leak(),
    ];
    let words = words.into_iter().map(str::to_owned);
    words
        .chain(cut)
        .chain(open)
        .chain(added.iter().take(40).cloned())
        .collect()
}

fn random_text(random: &mut SmallRng, pieces: &[String], bytes: usize) -> String {
    let mut text = String::new();
    while text.len() < bytes {
        match random.random_range(0..10) {
            0 => text.push(random.random()),
            _ => text.push_str(pieces.choose(random).unwrap()),
        }
    }
    text
}

#[test]
fn both_engines_give_the_same_ids() {
    let seed = rand::random();
    println!("seed {seed}");
    for dir in model_dirs() {
        let mut random = SmallRng::seed_from_u64(seed);
        let oracle = Oracle::from_file(dir.join("tokenizer.json")).unwrap();
        let config = TokenizeConfig {
            engine: Engine::Fast,
            ..TokenizeConfig::default()
        };
        let tokenizer = Tokenizer::load(&dir, config).unwrap();
        let pieces = pieces(&oracle);
        for _ in 0..300 {
            let bytes = random.random_range(0..400);
            let text = random_text(&mut random, &pieces, bytes);
            let ids = tokenizer.token_ids(&text_request(&text)).unwrap();
            assert_eq!(
                ids,
                oracle_ids(&oracle, &text),
                "{} {text:?}",
                dir.display()
            );
        }
    }
}

/// Conversations that grow, fork and repeat: whatever the memo knows by then, the ids are those
/// that the reference computes from nothing.
#[test]
fn a_known_prefix_never_changes_the_ids() {
    let seed = rand::random();
    println!("seed {seed}");
    for dir in model_dirs() {
        let mut random = SmallRng::seed_from_u64(seed);
        let oracle = Oracle::from_file(dir.join("tokenizer.json")).unwrap();
        for engine in [Engine::Fast, Engine::Reference] {
            let config = TokenizeConfig {
                engine,
                memo_bytes: 1 << 20,
                ..TokenizeConfig::default()
            };
            let tokenizer = Tokenizer::load(&dir, config).unwrap();
            let pieces = pieces(&oracle);
            let mut conversations = vec![random_text(&mut random, &pieces, 3_000)];
            for _ in 0..60 {
                let mut text = conversations.choose(&mut random).unwrap().clone();
                if random.random_ratio(1, 3) {
                    let mut end = random.random_range(0..=text.len());
                    while !text.is_char_boundary(end) {
                        end -= 1;
                    }
                    text.truncate(end);
                }
                let bytes = random.random_range(0..2_000);
                text.push_str(&random_text(&mut random, &pieces, bytes));
                let ids = tokenizer.token_ids(&text_request(&text)).unwrap();
                assert_eq!(
                    ids,
                    oracle_ids(&oracle, &text),
                    "{} {text:?}",
                    dir.display()
                );
                conversations.push(text);
                if conversations.len() > 6 {
                    conversations.remove(0);
                }
            }
        }
    }
}

#[test]
fn only_what_is_new_in_a_conversation_is_encoded() {
    let tokenizer = Tokenizer::load(&small(), TokenizeConfig::default()).unwrap();
    let mut messages =
        vec![json!({"role": "system", "content": "You are a helpful assistant. ".repeat(200)})];
    for turn in 0..10 {
        messages.push(json!({"role": "user", "content": format!("turn {turn} {}", "of the wind ".repeat(100))}));
        let request = chat_request(&json!({"messages": messages}));
        tokenizer.token_ids(&request).unwrap();
        messages.push(json!({"role": "assistant", "content": "the harbour is closed ".repeat(50)}));
    }
    let (text, reused) = tokenizer.metrics().bytes();
    assert!(reused * 10 > text * 6, "{reused} of {text}");
}

#[test]
fn special_tokens_are_added_to_a_completion_and_not_to_a_chat() {
    let added = json!([{"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true}]);
    let around = json!([{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
    let processor = json!({"type": "TemplateProcessing", "single": around, "pair": around,
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}});
    let model = json!({"type": "WordLevel", "vocab": {"<s>": 0, "hello": 1, "world": 2, "[UNK]": 3}, "unk_token": "[UNK]"});
    let file = json!({"version": "1.0", "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst",
        "stride": 0}, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": processor, "decoder": null, "model": model});
    let dir = ModelDir::new().with("tokenizer.json", file.to_string());
    let tokenizer = dir
        .with_template("{{ bos_token }}{{ messages[0].content }}")
        .load();
    let chat = chat_request(&json!({"messages": [{"role": "user", "content": "hello world"}]}));
    assert_eq!(tokenizer.token_ids(&chat).unwrap(), [0, 1, 2]);
    assert_eq!(
        tokenizer.token_ids(&text_request("hello world")).unwrap(),
        [0, 1, 2]
    );
}
