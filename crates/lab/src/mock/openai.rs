//! The bodies of the `OpenAI` API as vLLM writes them: what is read of a request, chunks, answers, usage, errors.
//! Never touches the engine.

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

/// Which of the two completion routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Chat,
    Text,
}

/// What is read of a completion request besides its prompt.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Params {
    pub(super) model: Option<String>,
    pub(super) stream: bool,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    pub(super) ignore_eos: bool,
    pub(super) cache_salt: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: bool,
}

#[expect(clippy::struct_field_names, reason = "the API's own names")]
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    pub(super) prompt_tokens: usize,
    pub(super) completion_tokens: usize,
    pub(super) cached_tokens: usize,
}

/// Writes the pieces of one answer.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    pub(super) kind: Kind,
    pub(super) id: String,
    pub(super) model: String,
    pub(super) created: u64,
}

impl Kind {
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Text => "/v1/completions",
        }
    }

    pub(super) fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl",
            Self::Text => "cmpl",
        }
    }
}

impl Params {
    pub(super) fn max_tokens(&self) -> Option<usize> {
        self.max_completion_tokens.or(self.max_tokens)
    }

    pub(super) fn include_usage(&self) -> bool {
        let wanted = |options: &StreamOptions| options.include_usage;
        self.stream_options.as_ref().is_some_and(wanted)
    }
}

impl Usage {
    fn json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": { "cached_tokens": self.cached_tokens },
        })
    }
}

impl Writer {
    /// The chunk that opens a chat answer; a text answer has none.
    pub(super) fn role_chunk(&self) -> Option<Bytes> {
        let delta = json!({ "role": "assistant", "content": "" });
        (self.kind == Kind::Chat).then(|| self.chunk(&delta, &Value::Null))
    }

    pub(super) fn content_chunk(&self, text: &str) -> Bytes {
        self.chunk(&self.content(text), &Value::Null)
    }

    /// The chunk that says why the answer ended.
    pub(super) fn finish_chunk(&self, reason: &str) -> Bytes {
        let content = match self.kind {
            Kind::Chat => json!({}),
            Kind::Text => json!(""),
        };
        self.chunk(&content, &json!(reason))
    }

    pub(super) fn usage_chunk(&self, usage: Usage) -> Bytes {
        event(&self.envelope(true, &json!([]), usage.json()))
    }

    pub(super) fn done() -> Bytes {
        Bytes::from_static(b"data: [DONE]\n\n")
    }

    /// A whole answer in one body.
    pub(super) fn unary(&self, text: &str, reason: &str, usage: Usage) -> Bytes {
        let choice = match self.kind {
            Kind::Chat => json!({
                "index": 0,
                "message": { "role": "assistant", "content": text },
                "logprobs": null,
                "finish_reason": reason,
            }),
            Kind::Text => json!({
                "index": 0, "text": text, "logprobs": null, "finish_reason": reason,
            }),
        };
        let body = self.envelope(false, &json!([choice]), usage.json());
        Bytes::from(body.to_string())
    }

    fn content(&self, text: &str) -> Value {
        match self.kind {
            Kind::Chat => json!({ "content": text }),
            Kind::Text => json!(text),
        }
    }

    fn chunk(&self, content: &Value, reason: &Value) -> Bytes {
        let field = match self.kind {
            Kind::Chat => "delta",
            Kind::Text => "text",
        };
        let choice = json!({
            "index": 0, field: content, "logprobs": null, "finish_reason": reason,
        });
        event(&self.envelope(true, &json!([choice]), Value::Null))
    }

    fn envelope(&self, chunk: bool, choices: &Value, usage: Value) -> Value {
        let object = match (self.kind, chunk) {
            (Kind::Chat, true) => "chat.completion.chunk",
            (Kind::Chat, false) => "chat.completion",
            (Kind::Text, _) => "text_completion",
        };
        let mut body = json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        });
        if !usage.is_null() {
            body["usage"] = usage;
        }
        body
    }
}

/// An error body in vLLM's shape.
pub(super) fn error(status: StatusCode, message: &str) -> Value {
    let kind = match status {
        StatusCode::BAD_REQUEST => "BadRequestError",
        StatusCode::NOT_FOUND => "NotFoundError",
        _ => "InternalServerError",
    };
    let code = status.as_u16();
    json!({ "error": { "message": message, "type": kind, "param": null, "code": code } })
}

fn event(body: &Value) -> Bytes {
    Bytes::from(format!("data: {body}\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(kind: Kind) -> Writer {
        Writer {
            kind,
            id: "x".to_owned(),
            model: "m".to_owned(),
            created: 1,
        }
    }

    fn check(written: &Bytes, expected: &str) {
        assert_eq!(written.as_ref(), format!("data: {expected}\n\n").as_bytes());
    }

    #[test]
    fn a_chat_chunk_has_the_shape_of_an_engine() {
        check(
            &writer(Kind::Chat).content_chunk(" hi"),
            r#"{"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" hi"},"logprobs":null,"finish_reason":null}]}"#,
        );
    }

    #[test]
    fn a_text_chunk_carries_its_text_beside_the_index() {
        check(
            &writer(Kind::Text).finish_chunk("stop"),
            r#"{"id":"x","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}]}"#,
        );
    }

    #[test]
    fn a_usage_chunk_has_no_choices_and_names_cached_tokens() {
        let usage = Usage {
            prompt_tokens: 40,
            completion_tokens: 2,
            cached_tokens: 32,
        };
        check(
            &writer(Kind::Chat).usage_chunk(usage),
            r#"{"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":40,"total_tokens":42,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":32}}}"#,
        );
    }

    #[test]
    fn the_newer_name_of_the_token_limit_wins() {
        let body = r#"{"max_tokens":5,"max_completion_tokens":3,"messages":[]}"#;
        let params: Params = serde_json::from_str(body).unwrap();
        assert_eq!(params.max_tokens(), Some(3));
    }
}
