//! The one door to tokenizing: from the path and body of a request to the tokens an engine would compute.
//! Never looks at sampling parameters; `openai` reads those.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;

/// The words answers are made of. Common ones: most vocabularies have each of them as one token.
const WORDS: &[&str] = &[
    "time", "water", "house", "people", "light", "river", "story", "paper", "music", "table",
    "world", "night", "city", "garden", "window", "summer", "winter", "road", "field", "morning",
    "letter", "number", "machine", "market", "school", "forest", "island", "mountain", "bridge",
    "engine", "color", "voice", "picture", "question", "answer", "friend", "family", "history",
    "science", "language", "memory", "future", "station", "village", "ocean", "planet", "stone",
    "glass", "metal", "cloud", "rain", "snow", "wind", "fire", "earth", "star", "moon", "sun",
    "day", "week", "month", "year",
];

type Answer = Pin<Box<dyn Future<Output = Result<Vec<u32>, PromptError>> + Send>>;
type Door = dyn Fn(&'static str, Bytes) -> Answer + Send + Sync;

/// Why a request has no tokens; the client is told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PromptError(pub String);

/// Turns a request (path and body) into its prompt's tokens.
#[derive(Clone)]
pub struct PromptTokens(Arc<Door>);

impl PromptTokens {
    pub fn new<F, A>(door: F) -> Self
    where
        F: Fn(&'static str, Bytes) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Vec<u32>, PromptError>> + Send + 'static,
    {
        Self(Arc::new(move |path, body| Box::pin(door(path, body))))
    }

    /// A stand-in for a tokenizer: each word is a token, a prompt of numbers is taken as it is.
    pub fn words() -> Self {
        Self::new(|_path, body| std::future::ready(word_tokens(&body)))
    }

    pub(super) async fn of(
        &self,
        path: &'static str,
        body: Bytes,
    ) -> Result<Vec<u32>, PromptError> {
        (self.0)(path, body).await
    }

    /// Tokens of plain text.
    pub(super) async fn of_text(&self, text: &str) -> Result<Vec<u32>, PromptError> {
        let body = serde_json::json!({ "model": "default", "prompt": text });
        self.of("/v1/completions", Bytes::from(body.to_string()))
            .await
    }
}

impl fmt::Debug for PromptTokens {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PromptTokens")
    }
}

/// What answers are made of: pieces of text that are one token each, so that an answer sent back in the next turn
/// has the very tokens that the engine computed.
#[derive(Clone, Debug)]
pub(super) struct Lexicon {
    first: Vec<(String, u32)>,
    next: Vec<(String, u32)>,
}

impl Lexicon {
    pub(super) async fn learn(tokens: &PromptTokens) -> Self {
        // Tokens that a tokenizer puts before any text.
        let once = tokens.of_text(" time").await.unwrap_or_default();
        let twice = tokens.of_text(" time time").await.unwrap_or_default();
        let prefix = (2 * once.len()).saturating_sub(twice.len());
        let mut lexicon = Self {
            first: Vec::new(),
            next: Vec::new(),
        };
        for word in WORDS {
            let mut capital = (*word).to_owned();
            capital[..1].make_ascii_uppercase();
            lexicon.first.extend(piece(tokens, prefix, capital).await);
            lexicon
                .next
                .extend(piece(tokens, prefix, format!(" {word}")).await);
        }
        if lexicon.first.is_empty() || lexicon.next.is_empty() {
            tracing::warn!(
                "no word is one token of this tokenizer, answers will not be found again"
            );
            lexicon.first.push(("Time".to_owned(), 1));
            lexicon.next.push((" time".to_owned(), 2));
        }
        lexicon
    }

    /// The piece number `index` of an answer, chosen by `draw`.
    pub(super) fn piece(&self, index: usize, draw: usize) -> (&str, u32) {
        let pieces = if index == 0 { &self.first } else { &self.next };
        let (text, token) = &pieces[draw % pieces.len()];
        (text, *token)
    }
}

async fn piece(tokens: &PromptTokens, prefix: usize, text: String) -> Option<(String, u32)> {
    let ids = tokens.of_text(&text).await.ok()?;
    match ids.get(prefix..) {
        Some([id]) => Some((text, *id)),
        _ => None,
    }
}

#[derive(Deserialize)]
struct WordBody {
    #[serde(default)]
    messages: Vec<WordMessage>,
    prompt: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct WordMessage {
    role: String,
    #[serde(default)]
    content: serde_json::Value,
}

fn word_tokens(body: &[u8]) -> Result<Vec<u32>, PromptError> {
    let body: WordBody =
        serde_json::from_slice(body).map_err(|error| PromptError(error.to_string()))?;
    let mut tokens = Vec::new();
    for message in &body.messages {
        tokens.push(word_token(&message.role));
        add_words(&message.content, &mut tokens);
    }
    match &body.prompt {
        Some(serde_json::Value::Array(ids)) if ids.iter().all(serde_json::Value::is_u64) => {
            let id = |id: &serde_json::Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
            tokens.extend(ids.iter().filter_map(id));
        }
        Some(prompt) => add_words(prompt, &mut tokens),
        None => {}
    }
    Ok(tokens)
}

fn add_words(content: &serde_json::Value, tokens: &mut Vec<u32>) {
    match content {
        serde_json::Value::String(text) => tokens.extend(text.split_whitespace().map(word_token)),
        serde_json::Value::Array(parts) => {
            for part in parts {
                add_words(part.get("text").unwrap_or(part), tokens);
            }
        }
        _ => {}
    }
}

fn word_token(word: &str) -> u32 {
    let start = 0x811c_9dc5_u32;
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    word.bytes().fold(start, step) % 100_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_sent_back_has_the_tokens_that_were_computed() {
        let words = PromptTokens::words();
        let lexicon = Lexicon::learn(&words).await;
        let pieces: Vec<_> = (0..50)
            .map(|index| lexicon.piece(index, index * 7))
            .collect();
        let text: String = pieces.iter().map(|(text, _)| *text).collect();
        let computed: Vec<u32> = pieces.iter().map(|(_, token)| *token).collect();
        assert_eq!(words.of_text(&text).await, Ok(computed));
    }

    #[tokio::test]
    async fn tokens_before_every_text_are_no_part_of_a_piece() {
        let bos = PromptTokens::new(|_, body: Bytes| async move {
            let mut tokens = vec![1];
            tokens.extend(word_tokens(&body)?);
            Ok(tokens)
        });
        let lexicon = Lexicon::learn(&bos).await;
        let (text, token) = lexicon.piece(1, 0);
        assert_eq!(bos.of_text(text).await, Ok(vec![1, token]));
    }

    #[tokio::test]
    async fn a_prompt_of_numbers_is_taken_as_it_is() {
        let body = Bytes::from_static(br#"{"prompt":[5,6,7]}"#);
        let tokens = PromptTokens::words().of("/v1/completions", body).await;
        assert_eq!(tokens, Ok(vec![5, 6, 7]));
    }
}
