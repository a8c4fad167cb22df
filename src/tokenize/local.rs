//! The tokenizer of a model directory: its engine, its templates, its memo.
//!
//! Never opens anything but files of that directory.

mod cuts;

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    io,
    panic::catch_unwind,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use minijinja::Value;
use serde_json::Value as Json;

use self::cuts::Cuts;
use super::{
    Degraded, Engine, LoadError, TokenizeConfig, TokenizeError,
    memo::{Cut, Known, Memo},
    render::Renderer,
    template::Templates,
};
use crate::request::ChatPrompt;

/// Texts shorter than this say nothing about speed.
const RATE_BYTES: usize = 1024;

/// However fast it usually is, a longer text may be one that was made to be slow.
const QUICK_BYTES: usize = 128 * 1024;

/// A run of one kind of character that covers such a block is looked for.
const RUN_BYTES: usize = 256;

/// Text for a first measurement.
const SAMPLE: &str = include_str!("sample.txt");

const SPECIAL_TOKENS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

#[derive(Debug)]
pub(super) struct Local {
    loaded: Loaded,
    cuts: Cuts,
    /// `None`: switched off, or the tokenizer's file does not allow cuts that are certain.
    memo: Option<Memo>,
    templates: Option<Templates>,
    special_tokens: Vec<(String, Value)>,
    mark: String,
    around: Around,
    /// Picoseconds a byte, a moving average.
    rate: AtomicU64,
}

#[expect(clippy::large_enum_variant, reason = "there is one for each model")]
enum Loaded {
    Fast(fastokens::Tokenizer),
    Reference(tokenizers::Tokenizer),
}

/// Whether the tokenizer adds its special tokens around the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    Added,
    /// The text has them already: the template wrote them.
    AsWritten,
}

/// The special tokens around any text.
#[derive(Debug)]
enum Around {
    Fixed {
        before: Vec<u32>,
        after: Vec<u32>,
    },
    /// Only the engine knows.
    Unknown,
}

pub(super) struct Encoded {
    pub(super) ids: Vec<u32>,
    pub(super) reused_bytes: usize,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Fast(_) => "fast",
            Self::Reference(_) => "reference",
        })
    }
}

impl Local {
    pub(super) fn load(dir: &Path, config: &TokenizeConfig) -> Result<Self, LoadError> {
        let path = dir.join("tokenizer.json");
        let file = read_json_if_there(&path)?.ok_or_else(|| LoadError::Read {
            path: path.display().to_string(),
            source: io::ErrorKind::NotFound.into(),
        })?;
        let settings = read_json_if_there(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
        let others = read_json_if_there(&dir.join("special_tokens_map.json"))?.unwrap_or_default();
        let loaded = Loaded::load(&path, config.engine)?;
        let templates = Templates::load(dir, &settings)?;
        let written = templates
            .iter()
            .flat_map(Templates::sources)
            .collect::<String>();
        let cuts = Cuts::find(&file, &written);
        let remembers = config.memo_bytes > 0 && !cuts.is_empty();
        let local = Self {
            around: loaded.around(),
            memo: remembers.then(|| Memo::new(config.memo_bytes)),
            special_tokens: special_tokens(&settings, &others),
            mark: mark(),
            rate: AtomicU64::new(0),
            loaded,
            cuts,
            templates,
        };
        local.measure()?;
        tracing::info!(
            dir = %dir.display(),
            engine = ?local.loaded,
            chat_template = local.templates.is_some(),
            memo = local.memo.is_some(),
            picoseconds_per_byte = local.rate.load(Relaxed),
            "tokenizer loaded"
        );
        if local.templates.is_none() {
            tracing::warn!(dir = %dir.display(), "no chat template: chat requests are routed by load");
        }
        Ok(local)
    }

    pub(super) fn render(
        &self,
        chat: &ChatPrompt,
        config: &TokenizeConfig,
    ) -> Result<String, TokenizeError> {
        let renderer = Renderer {
            templates: self.templates.as_ref().ok_or(Degraded::NoTemplate)?,
            special_tokens: &self.special_tokens,
            mark: &self.mark,
        };
        renderer.render(chat, config)
    }

    pub(super) fn known(&self, text: &str) -> Known {
        self.memo
            .as_ref()
            .map_or_else(Known::default, |memo| memo.known(text))
    }

    /// Whether this much new text can be encoded on the request path.
    pub(super) fn is_quick(&self, text: &str, limit: Duration) -> bool {
        let picoseconds = self.rate.load(Relaxed).saturating_mul(text.len() as u64);
        let takes = Duration::from_nanos(picoseconds / 1000);
        text.len() <= QUICK_BYTES && takes <= limit && !has_long_run(text)
    }

    pub(super) fn encode(
        &self,
        text: &Arc<str>,
        special: Special,
        known: &Known,
    ) -> Result<Encoded, Degraded> {
        let (before, after): (&[u32], &[u32]) = match (special, &self.around) {
            (Special::AsWritten, _) => (&[], &[]),
            (Special::Added, Around::Fixed { before, after }) => (before, after),
            (Special::Added, Around::Unknown) => {
                let ids = self.loaded.encode(text, Special::Added)?;
                return Ok(Encoded {
                    ids,
                    reused_bytes: 0,
                });
            }
        };
        let mut ids = Vec::with_capacity(before.len() + text.len() / 3 + after.len());
        ids.extend_from_slice(before);
        let cuts = self.encode_rest(text, known, &mut ids)?;
        if let Some(memo) = self.memo.as_ref().filter(|_| known.bytes() < text.len()) {
            memo.remember(text, &ids[before.len()..], &cuts);
        }
        ids.extend_from_slice(after);
        Ok(Encoded {
            ids,
            reused_bytes: known.bytes(),
        })
    }

    /// Appends the ids of the whole text, computing only those behind the known prefix; gives
    /// the cuts of the whole text.
    fn encode_rest(
        &self,
        text: &str,
        known: &Known,
        ids: &mut Vec<u32>,
    ) -> Result<Vec<Cut>, Degraded> {
        let first = ids.len();
        ids.extend_from_slice(known.ids());
        let mut cuts = known.cuts().to_vec();
        let started = Instant::now();
        let mut start = known.bytes();
        while start < text.len() {
            let cut = self.memo.as_ref().and_then(|_| self.cuts.next(text, start));
            let end = cut.unwrap_or(text.len());
            let piece = self.loaded.encode(&text[start..end], Special::AsWritten)?;
            ids.extend_from_slice(&piece);
            if cut.is_some() {
                cuts.push(Cut {
                    bytes: end,
                    ids: ids.len() - first,
                });
            }
            start = end;
        }
        self.observe(text.len() - known.bytes(), started.elapsed());
        Ok(cuts)
    }

    fn measure(&self) -> Result<(), LoadError> {
        let failed = |_| LoadError::Engine {
            path: "tokenizer.json".to_owned(),
            cause: "it cannot encode plain text".to_owned(),
        };
        let started = Instant::now();
        self.loaded
            .encode(SAMPLE, Special::AsWritten)
            .map_err(failed)?;
        self.observe(SAMPLE.len(), started.elapsed());
        Ok(())
    }

    fn observe(&self, bytes: usize, elapsed: Duration) {
        if bytes < RATE_BYTES {
            return;
        }
        let picoseconds = elapsed.as_nanos().saturating_mul(1000) / bytes as u128;
        let picoseconds = u64::try_from(picoseconds).unwrap_or(u64::MAX / 8).max(1);
        let rate = self.rate.load(Relaxed);
        let rate = match rate {
            0 => picoseconds,
            // A pause of the machine must not send everything away from the request path.
            _ => (rate * 7 + picoseconds.min(rate.saturating_mul(8))) / 8,
        };
        // Two writers may lose one measurement; the next makes up for it.
        self.rate.store(rate.max(1), Relaxed);
    }
}

impl Loaded {
    fn load(path: &Path, engine: Engine) -> Result<Self, LoadError> {
        let fast = || match catch_unwind(|| fastokens::Tokenizer::from_file(path)) {
            Ok(loaded) => loaded.map_err(|error| error.to_string()),
            Err(_) => Err("it panicked".to_owned()),
        };
        let mut causes = Vec::new();
        if engine != Engine::Reference {
            match fast() {
                Ok(mut loaded) => {
                    // A worker neither cuts nor pads a prompt, whatever the file says.
                    loaded.set_truncation(None);
                    loaded.set_padding(None);
                    return Ok(Self::Fast(loaded));
                }
                Err(cause) => causes.push(cause),
            }
        }
        if engine != Engine::Fast {
            if let Some(cause) = causes.first() {
                tracing::warn!(%cause, "the fast engine cannot use this tokenizer, using the reference");
            }
            match tokenizers::Tokenizer::from_file(path) {
                Ok(mut loaded) => {
                    let untruncated = loaded.with_truncation(None).map(|_| ());
                    untruncated.map_err(|error| LoadError::Engine {
                        path: path.display().to_string(),
                        cause: error.to_string(),
                    })?;
                    loaded.with_padding(None);
                    return Ok(Self::Reference(loaded));
                }
                Err(cause) => causes.push(cause.to_string()),
            }
        }
        Err(LoadError::Engine {
            path: path.display().to_string(),
            cause: causes.join("; "),
        })
    }

    fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>, Degraded> {
        let added = special == Special::Added;
        match self {
            Self::Fast(loaded) => loaded
                .encode_with_special_tokens(text, added)
                .map_err(|error| tracing::debug!(%error, "encoding failed")),
            Self::Reference(loaded) => loaded
                .encode_fast(text, added)
                .map(|encoding| encoding.get_ids().to_vec())
                .map_err(|error| tracing::debug!(%error, "encoding failed")),
        }
        .map_err(|()| Degraded::Encoding)
    }

    /// What the tokenizer puts around a text, seen on two texts and the empty one.
    fn around(&self) -> Around {
        let split = |text| {
            let with = self.encode(text, Special::Added).ok()?;
            let without = self.encode(text, Special::AsWritten).ok()?;
            let places = (0..=with.len().checked_sub(without.len())?).rev();
            let mut places = places.filter(|at| with[*at..].starts_with(&without));
            let at = places
                .next()
                .filter(|_| without.is_empty() || places.next().is_none())?;
            Some((with[..at].to_vec(), with[at + without.len()..].to_vec()))
        };
        match (split("hello"), split("a longer text, with 2 clauses")) {
            (Some(short), Some(long)) if short == long => Around::Fixed {
                before: long.0,
                after: long.1,
            },
            _ => Around::Unknown,
        }
    }
}

/// Whether there is a long run of letters, digits, spaces or signs, which becomes one word: the
/// time for a word grows faster than its length, up to a thousand times that of plain text. Any
/// run of twice [`RUN_BYTES`] is found, at the cost of a look at each block's first characters.
fn has_long_run(text: &str) -> bool {
    let mut start = 0;
    while start + RUN_BYTES <= text.len() {
        let block = &text[start..text.floor_char_boundary(start + RUN_BYTES)];
        let mut kinds = block.chars().map(kind);
        let first = kinds.next();
        if kinds.all(|kind| Some(kind) == first) {
            return true;
        }
        start += block.len();
    }
    false
}

fn kind(c: char) -> u8 {
    match c {
        'a'..='z' | 'A'..='Z' => 0,
        '0'..='9' => 1,
        _ if c.is_whitespace() => 2,
        _ if c.is_alphabetic() => 0,
        _ if c.is_numeric() => 1,
        _ => 3,
    }
}

pub(super) fn read_if_there(path: &Path) -> Result<Option<String>, LoadError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(LoadError::Read {
            path: path.display().to_string(),
            source,
        }),
    }
}

pub(super) fn read_json_if_there(path: &Path) -> Result<Option<Json>, LoadError> {
    let Some(text) = read_if_there(path)? else {
        return Ok(None);
    };
    let parsed = serde_json::from_str(&text);
    parsed.map(Some).map_err(|source| LoadError::Json {
        path: path.display().to_string(),
        source,
    })
}

/// `bos_token` and its like: a string, or an object that holds one.
fn special_tokens(settings: &Json, others: &Json) -> Vec<(String, Value)> {
    let text = |token: &Json| {
        let text = token.as_str().or_else(|| token.get("content")?.as_str());
        text.map(Value::from)
    };
    let named = SPECIAL_TOKENS.iter().filter_map(|name| {
        let token = text(&settings[*name]).or_else(|| text(&others[*name]))?;
        Some(((*name).to_owned(), token))
    });
    let mut tokens: Vec<_> = named.collect();
    if let Some(more) = settings["additional_special_tokens"].as_array() {
        let more: Vec<Value> = more.iter().filter_map(text).collect();
        tokens.push(("additional_special_tokens".to_owned(), Value::from(more)));
    }
    tokens
}

/// Text that no client can know.
fn mark() -> String {
    let secret = RandomState::new().hash_one(Instant::now());
    format!("\u{e0f3}{secret:016x}\u{e0f3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_one_kind_is_found_and_plain_text_has_none() {
        assert!(!has_long_run(&SAMPLE.repeat(20)));
        assert!(!has_long_run(&"灯台は岬の先にあります。".repeat(500)));
        assert!(!has_long_run(""));
        for run in ["x", "7", " ", "=", "山"] {
            for offset in [0, 1, 100, 255, 1_000] {
                let plain = &"ab 12. ".repeat(200)[..offset];
                let text = format!("{plain}{}{plain}", run.repeat(520 / run.len()));
                assert!(has_long_run(&text), "{run} at {offset}");
            }
        }
    }
}
