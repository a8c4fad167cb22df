//! Model directories made for a test, and what their tokenizers and templates do.

mod engines;
mod paths;
mod templates;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;
use serde_json::{Value as Json, json};

use super::*;

/// The small tokenizer that all suites share.
fn small() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizer-small")
}

/// A directory that goes when the test ends.
struct ModelDir(PathBuf);

impl ModelDir {
    /// Holds the small tokenizer and nothing else.
    fn new() -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!(
            "pointsman-{}-{}",
            std::process::id(),
            MADE.fetch_add(1, Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        fs::copy(small().join("tokenizer.json"), path.join("tokenizer.json")).unwrap();
        Self(path)
    }

    fn with(self, name: &str, content: impl AsRef<[u8]>) -> Self {
        fs::write(self.0.join(name), content).unwrap();
        self
    }

    fn with_template(self, template: &str) -> Self {
        let config = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": template});
        self.with("tokenizer_config.json", config.to_string())
    }

    fn load(&self) -> Tokenizer {
        self.load_with(TokenizeConfig::default())
    }

    fn load_with(&self, config: TokenizeConfig) -> Tokenizer {
        Tokenizer::load(&self.0, config).unwrap()
    }
}

impl Drop for ModelDir {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn request(path: &str, body: &Json) -> RoutingRequest {
    let head = Head::new([(":method", "POST"), (":path", path)]);
    request::parse(&head, &Bytes::from(body.to_string())).unwrap()
}

fn chat_request(body: &Json) -> RoutingRequest {
    request("/v1/chat/completions", body)
}

fn text_request(prompt: &str) -> RoutingRequest {
    request("/v1/completions", &json!({"prompt": prompt}))
}

fn rendered(tokenizer: &Tokenizer, body: &Json) -> Result<String, TokenizeError> {
    match chat_request(body).prompt {
        PromptInput::Chat(chat) => tokenizer.render(&chat),
        other => panic!("not a chat: {other:?}"),
    }
}
