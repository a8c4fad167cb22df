//! The worker's own count of a request's tokens.
//!
//! Never fails: what is not there or not a count is simply not known.

use serde::Deserialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// `None`: the worker does not tell.
    pub cached_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    usage: Option<Fields>,
}

#[derive(Deserialize)]
struct Fields {
    #[serde(default)]
    prompt_tokens: Option<u64>,
    #[serde(default)]
    completion_tokens: Option<u64>,
    #[serde(default)]
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    #[serde(default)]
    cached_tokens: Option<u64>,
}

impl From<Fields> for Usage {
    fn from(fields: Fields) -> Self {
        Self {
            prompt_tokens: fields.prompt_tokens.unwrap_or_default(),
            completion_tokens: fields.completion_tokens.unwrap_or_default(),
            cached_tokens: fields
                .prompt_tokens_details
                .and_then(|details| details.cached_tokens),
        }
    }
}

/// From a whole JSON document that has a `usage`.
pub(super) fn of_document(json: &[u8]) -> Option<Usage> {
    // Anything else in the document, malformed or not, is none of ours.
    let body: Body = serde_json::from_slice(json).ok()?;
    body.usage.map(Usage::from)
}

/// From the end of a document whose beginning is lost: its last `usage` object.
pub(super) fn of_tail(tail: &[u8]) -> Option<Usage> {
    let mut end = tail.len();
    while let Some(at) = find_last(&tail[..end], b"\"usage\"") {
        if let Some(usage) = of_value(&tail[at + b"\"usage\"".len()..]) {
            return Some(usage);
        }
        end = at;
    }
    None
}

/// From what follows the key `usage`.
pub(super) fn of_value(rest: &[u8]) -> Option<Usage> {
    let rest = rest
        .trim_ascii_start()
        .strip_prefix(b":")?
        .trim_ascii_start();
    // Many workers send a null with each event until the last.
    if !rest.starts_with(b"{") {
        return None;
    }
    let mut values = serde_json::Deserializer::from_slice(rest).into_iter::<Fields>();
    values.next()?.ok().map(Usage::from)
}

fn find_last(text: &[u8], word: &[u8]) -> Option<usize> {
    text.windows(word.len()).rposition(|window| window == word)
}
