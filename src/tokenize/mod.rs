//! Prompts into the token ids that the worker will compute, so that blocks can be compared.
//!
//! Never fails a request that could be routed by load instead: only a template that refuses the
//! conversation does, because the worker would refuse it too.

mod fit;
mod local;
mod memo;
mod metrics;
mod offload;
mod python;
mod render;
mod template;
#[cfg(test)]
mod tests;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;

pub use metrics::TokenizeMetrics;

use crate::request::{self, ChatPrompt, Head, PromptInput, RequestError, RoutingRequest};

/// Bodies up to this size are parsed, and prompts up to it rendered, where they are: both take
/// less than the time that may be spent on the request path.
const INLINE_BYTES: usize = 512 * 1024;

/// Turns requests into tokens. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// `None`: every prompt is routed by load, but for those that come as token ids.
    local: Option<local::Local>,
    offload: offload::Offload,
    metrics: TokenizeMetrics,
    config: TokenizeConfig,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TokenizeConfig {
    /// Whether tools stay in the prompt under `tool_choice: "none"`. The workers must do the
    /// same, or prefixes never match; true is what a stock vLLM does.
    pub keep_refused_tools: bool,
    pub content_format: ContentFormat,
    pub engine: Engine,
    /// Memory for prompts seen before, in bytes. 0 turns the memo off.
    pub memo_bytes: usize,
    /// Longer texts are routed by load.
    pub max_text_bytes: usize,
    /// Estimated time from which on a text leaves the request path.
    pub offload_after: Duration,
    /// Threads for such texts.
    pub offload_threads: usize,
    /// How many may wait for one of these threads.
    pub offload_waiting: usize,
    pub deadline: Duration,
}

/// How a template wants a message's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentFormat {
    /// A list where the template loops over it, else text.
    #[default]
    Auto,
    Text,
    Parts,
}

/// What turns text into ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// The fast one where it can read the file, else the reference.
    #[default]
    Auto,
    Fast,
    Reference,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    pub ids: Vec<u32>,
    /// Why there are none, or fewer than the worker will see.
    pub degraded: Option<Degraded>,
}

/// Why a prompt is routed by load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Degraded {
    /// No tokenizer is configured.
    NoTokenizer,
    /// The model has no chat template.
    NoTemplate,
    /// The request is of a kind that is not read.
    Opaque,
    /// Content that is not text leaves no prefix to compare.
    NotText,
    /// The template failed where the worker's may not.
    Template,
    /// The text could not be encoded.
    Encoding,
    TooLong,
    /// All threads for long texts are taken, and all places to wait for one.
    Busy,
    Deadline,
    Panicked,
}

/// The chat template refuses the conversation, and so would the worker's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizeError {
    /// Display is the text for the client.
    #[error("the chat template refuses this conversation: {message}")]
    Refused { message: String },
    /// From [`Tokenizer::token_ids`] only.
    #[error("the prompt has no token ids here: {}", .0.as_str())]
    Degraded(Degraded),
}

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("reading {path}")]
    Read {
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} is not the JSON it should be")]
    Json {
        path: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("no engine can use {path}: {cause}")]
    Engine { path: String, cause: String },
    #[error("compiling the chat template {name}")]
    Template {
        name: String,
        #[source]
        source: minijinja::Error,
    },
}

impl Default for TokenizeConfig {
    fn default() -> Self {
        Self {
            keep_refused_tools: true,
            content_format: ContentFormat::Auto,
            engine: Engine::Auto,
            memo_bytes: 256 << 20,
            max_text_bytes: 32 << 20,
            offload_after: Duration::from_micros(500),
            offload_threads: 2,
            offload_waiting: 32,
            deadline: Duration::from_secs(5),
        }
    }
}

impl Degraded {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoTokenizer => "no_tokenizer",
            Self::NoTemplate => "no_template",
            Self::Opaque => "opaque",
            Self::NotText => "not_text",
            Self::Template => "template",
            Self::Encoding => "encoding",
            Self::TooLong => "too_long",
            Self::Busy => "busy",
            Self::Deadline => "deadline",
            Self::Panicked => "panicked",
        }
    }
}

impl From<Degraded> for TokenizeError {
    fn from(degraded: Degraded) -> Self {
        Self::Degraded(degraded)
    }
}

impl Tokenizer {
    /// Reads `tokenizer.json`, and beside it `tokenizer_config.json` and `chat_template.jinja`
    /// where they exist. Takes up to some seconds.
    pub fn load(dir: &Path, config: TokenizeConfig) -> Result<Self, LoadError> {
        let local = local::Local::load(dir, &config)?;
        Ok(Self::with(Some(local), config))
    }

    /// Without a model's files every prompt is routed by load.
    pub fn none() -> Self {
        Self::with(None, TokenizeConfig::default())
    }

    fn with(local: Option<local::Local>, config: TokenizeConfig) -> Self {
        let metrics = TokenizeMetrics::default();
        let offload = offload::Offload::new(&config);
        Self {
            shared: Arc::new(Shared {
                local,
                offload,
                metrics,
                config,
            }),
        }
    }

    pub fn metrics(&self) -> &TokenizeMetrics {
        &self.shared.metrics
    }

    /// [`request::parse`], away from the request path where the body is large.
    pub async fn parse(&self, head: &Head, body: &Bytes) -> Result<RoutingRequest, RequestError> {
        if body.len() <= INLINE_BYTES {
            return request::parse(head, body);
        }
        let owned = (head.clone(), body.clone());
        let parsed = self
            .shared
            .offload
            .run(move || request::parse(&owned.0, &owned.1));
        match parsed.await {
            Ok(parsed) => parsed,
            // Without its model a request may go to the wrong pool: rather be slow once.
            Err(_) => request::parse(head, body),
        }
    }

    /// The ids of a prompt, or why there are none. Cancelled by dropping, but for a text that
    /// is already being worked on.
    pub async fn tokenize(&self, request: &RoutingRequest) -> Result<Tokens, TokenizeError> {
        let started = Instant::now();
        let outcome = match self.shared.inline(&request.prompt) {
            Step::Done(outcome) => outcome,
            Step::Offload(work) => {
                let shared = Arc::clone(&self.shared);
                let work = self.shared.offload.run(move || shared.finish(work));
                work.await.unwrap_or_else(|degraded| Err(degraded.into()))
            }
        };
        self.shared.metrics.observe(&outcome, started.elapsed());
        match outcome {
            Ok(ids) => Ok(Tokens {
                ids,
                degraded: None,
            }),
            Err(TokenizeError::Degraded(degraded)) => Ok(Tokens {
                ids: Vec::new(),
                degraded: Some(degraded),
            }),
            Err(refused) => Err(refused),
        }
    }

    /// The ids of a prompt, at once and on this thread, however long that takes.
    pub fn token_ids(&self, request: &RoutingRequest) -> Result<Vec<u32>, TokenizeError> {
        let work = match &request.prompt {
            PromptInput::Tokens(ids) => return Ok(ids.to_vec()),
            PromptInput::Opaque { .. } => return Err(Degraded::Opaque.into()),
            PromptInput::Chat(chat) => Work::Chat(Arc::clone(chat)),
            PromptInput::Text(text) => Work::Text {
                text: Arc::clone(text),
                special: local::Special::Added,
                known: None,
            },
        };
        self.shared.finish(work)
    }

    /// The prompt as the worker's template writes it.
    pub fn render(&self, chat: &ChatPrompt) -> Result<String, TokenizeError> {
        self.shared.local()?.render(chat, &self.shared.config)
    }
}

type Outcome = Result<Vec<u32>, TokenizeError>;

enum Step {
    Done(Outcome),
    Offload(Work),
}

/// What is left to do, owned so that another thread can do it.
enum Work {
    Chat(Arc<ChatPrompt>),
    Text {
        text: Arc<str>,
        special: local::Special,
        /// `None`: not looked up yet.
        known: Option<memo::Known>,
    },
}

impl Shared {
    fn local(&self) -> Result<&local::Local, Degraded> {
        self.local.as_ref().ok_or(Degraded::NoTokenizer)
    }

    fn known(&self, text: &str) -> memo::Known {
        let local = self.local.as_ref();
        local.map_or_else(memo::Known::default, |local| local.known(text))
    }

    /// Does what is quick; says what is not.
    fn inline(&self, prompt: &PromptInput) -> Step {
        let work = match prompt {
            PromptInput::Tokens(ids) => return Step::Done(Ok(ids.to_vec())),
            PromptInput::Opaque { .. } => return Step::Done(Err(Degraded::Opaque.into())),
            PromptInput::Chat(chat) if chat.bytes > INLINE_BYTES => {
                return Step::Offload(Work::Chat(Arc::clone(chat)));
            }
            PromptInput::Chat(chat) => match guarded(|| self.rendered(chat)) {
                Ok(text) => self.text(text, local::Special::AsWritten),
                Err(error) => return Step::Done(Err(error)),
            },
            PromptInput::Text(text) => self.text(Arc::clone(text), local::Special::Added),
        };
        if self.is_quick(&work) {
            Step::Done(self.finish(work))
        } else {
            Step::Offload(work)
        }
    }

    fn text(&self, text: Arc<str>, special: local::Special) -> Work {
        let known = (text.len() <= INLINE_BYTES).then(|| self.known(&text));
        Work::Text {
            text,
            special,
            known,
        }
    }

    fn is_quick(&self, work: &Work) -> bool {
        match (work, &self.local) {
            (_, None) => true,
            (Work::Chat(_), _) => false,
            (Work::Text { text, known, .. }, Some(local)) => {
                let Some(known) = known else {
                    return false;
                };
                local.is_quick(&text[known.bytes()..], self.config.offload_after)
            }
        }
    }

    fn finish(&self, work: Work) -> Outcome {
        guarded(|| {
            let (text, special, known) = match work {
                Work::Chat(chat) => (self.rendered(&chat)?, local::Special::AsWritten, None),
                Work::Text {
                    text,
                    special,
                    known,
                } => (text, special, known),
            };
            if text.len() > self.config.max_text_bytes {
                return Err(Degraded::TooLong.into());
            }
            let known = known.unwrap_or_else(|| self.known(&text));
            let encoded = self.local()?.encode(&text, special, &known)?;
            self.metrics.reused(encoded.reused_bytes, text.len());
            Ok(encoded.ids)
        })
    }

    fn rendered(&self, chat: &ChatPrompt) -> Result<Arc<str>, TokenizeError> {
        let text = self.local()?.render(chat, &self.config)?;
        if text.is_empty() {
            Err(Degraded::NotText.into())
        } else {
            Ok(text.into())
        }
    }
}

/// A panic in a template's or tokenizer's depths costs this request its tokens, nothing else.
fn guarded<T>(work: impl FnOnce() -> Result<T, TokenizeError>) -> Result<T, TokenizeError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(Degraded::Panicked.into()))
}
