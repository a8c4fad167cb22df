//! What a client asked for, read once from its headers and body: model, prompt, hints.
//!
//! Never changes or copies the body, never judges a field that does not decide where the
//! request goes, and never lets client text into an error.

mod body;
mod chat;
mod completions;
mod hints;
mod json;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use pointsman_plugin::plugins::worker_selection::SessionContext;

pub use chat::ChatPrompt;
pub(crate) use json::parse_value;

/// The head of an HTTP request, as Envoy reports it.
#[derive(Clone, Debug, Default)]
pub struct Head {
    pub method: String,
    pub path: String,
    headers: Vec<(String, String)>,
}

/// What is served at a path, as far as routing has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    ChatCompletions,
    Completions,
    /// Anything else is passed on, routed by load.
    Other,
}

#[derive(Clone, Debug)]
pub struct RoutingRequest {
    /// `None`: the pool's only model is meant.
    pub model: Option<String>,
    pub prompt: PromptInput,
    pub lora_name: Option<String>,
    pub cache_salt: Option<String>,
    pub hints: Hints,
    pub stream: bool,
}

/// What the worker will have to prefill. Cheap to clone.
#[derive(Clone, Debug)]
pub enum PromptInput {
    Chat(Arc<ChatPrompt>),
    Text(Arc<str>),
    Tokens(Arc<[u32]>),
    /// Not understood: routed by load, with the size as the only estimate.
    Opaque {
        reason: &'static str,
        bytes: usize,
    },
}

/// Wishes of the client about scheduling.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hints {
    pub priority_jump: f64,
    pub strict_priority: u32,
    /// What the client expects, not the limit it sets.
    pub expected_output_tokens: Option<u32>,
    /// The limit: `max_completion_tokens`, else `max_tokens`.
    pub max_output_tokens: Option<u32>,
    pub session: Option<SessionContext>,
    pub policy_class: Option<String>,
}

/// Why a request cannot be served by any worker. Display is the text for the client:
/// fixed, short, and free of anything the client sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("the request body is not valid JSON (at byte {offset})")]
    NotJson { offset: usize },
    #[error("the request body must be a JSON object")]
    NotAnObject,
    #[error("the request body is nested more than {} levels deep", json::MAX_DEPTH)]
    TooDeep,
    #[error("the request body holds too many values")]
    TooManyValues,
    #[error("{param}: {problem}")]
    Field {
        param: &'static str,
        problem: &'static str,
    },
}

impl RequestError {
    /// The field at fault, where there is one.
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::Field { param, .. } => Some(param),
            _ => None,
        }
    }
}

impl Head {
    /// Header names are made lower case; where `:method` and `:path` are among the pairs they
    /// are taken from there.
    pub fn new<N, V>(pairs: impl IntoIterator<Item = (N, V)>) -> Self
    where
        N: Into<String>,
        V: Into<String>,
    {
        let mut head = Self::default();
        for (name, value) in pairs {
            let (mut name, value) = (name.into(), value.into());
            name.make_ascii_lowercase();
            match name.as_str() {
                ":method" => head.method = value,
                ":path" => head.path = value,
                _ => head.headers.push((name, value)),
            }
        }
        head
    }

    /// The first value of a header; `name` is lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Gateways mount the API below prefixes, so the path's end decides.
    pub fn endpoint(&self) -> Endpoint {
        let path = self.path.split(['?', '#']).next().unwrap_or_default();
        let path = path.trim_end_matches('/');
        if !self.method.eq_ignore_ascii_case("POST") {
            Endpoint::Other
        } else if path.ends_with("/chat/completions") {
            Endpoint::ChatCompletions
        } else if path.ends_with("/completions") {
            Endpoint::Completions
        } else {
            Endpoint::Other
        }
    }

    fn body_is_encoded(&self) -> bool {
        let encoding = self.header("content-encoding").unwrap_or_default().trim();
        !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity")
    }
}

/// Reads a request. Takes about 0.5 ms per MB of body.
pub fn parse(head: &Head, body: &Bytes) -> Result<RoutingRequest, RequestError> {
    let opaque = |fields: body::Fields, reason| {
        let bytes = body.len();
        fields.into_request(head, PromptInput::Opaque { reason, bytes })
    };
    let unread = body::Fields::default();
    if body.is_empty() {
        return Ok(opaque(unread, "no body"));
    }
    if head.body_is_encoded() {
        return Ok(opaque(unread, "encoded body"));
    }
    let endpoint = head.endpoint();
    match (endpoint, read(endpoint, body)) {
        (Endpoint::Other, fields) => Ok(opaque(fields.unwrap_or(unread), "unknown path")),
        // A worker may still serve it, so only what decides about the pool is read.
        (_, Err(RequestError::TooManyValues)) => {
            let fields = read(Endpoint::Other, body)?;
            Ok(opaque(fields, "too many values"))
        }
        (_, Err(error)) => Err(error),
        (Endpoint::ChatCompletions, Ok(mut fields)) => {
            let prompt = PromptInput::Chat(Arc::new(chat::prompt(&mut fields, body.len())?));
            Ok(fields.into_request(head, prompt))
        }
        (Endpoint::Completions, Ok(mut fields)) => {
            let prompt = completions::input(fields.prompt.take(), body.len())?;
            Ok(fields.into_request(head, prompt))
        }
    }
}

fn read(endpoint: Endpoint, body: &Bytes) -> Result<body::Fields, RequestError> {
    let text = json::text(body)?;
    let limits = json::Limits::default();
    let fields = json::read(text, &limits, body::FieldsSeed::new(endpoint, &limits))?;
    match fields {
        Some(fields) => fields.checked(endpoint),
        None => Err(RequestError::NotAnObject),
    }
}
