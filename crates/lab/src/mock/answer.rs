//! One completion answered: what will be said, then the engine's progress turned into an SSE stream or one body.
//! Never chooses a rank and never reads a fault's source.

use std::io;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, stream};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::engine::Progress;
use super::openai::{Usage, Writer};
use super::prompt::Lexicon;
use super::rank::Running;

/// Longest answer, in tokens.
pub(super) const LONGEST_ANSWER: usize = 8_192;

/// What will be said: the same for the same prompt and seed, whoever serves it.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) pieces: Vec<String>,
    pub(super) tokens: Vec<u32>,
    pub(super) finish_reason: &'static str,
}

/// Limits of an answer's length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Length {
    pub(super) shortest: usize,
    pub(super) longest: usize,
    pub(super) limit: Option<usize>,
    pub(super) ignore_eos: bool,
}

impl Script {
    pub(super) fn write(lexicon: &Lexicon, seed: u64, prompt: &[u32], length: Length) -> Self {
        let mut random = SmallRng::seed_from_u64(prompt.iter().fold(seed, |state, &token| {
            (state.rotate_left(5) ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        }));
        let longest = length.longest.max(length.shortest);
        let wished = random.random_range(length.shortest..=longest);
        let limit = length.limit.unwrap_or(LONGEST_ANSWER);
        let cut = limit <= wished || (length.ignore_eos && length.limit.is_some());
        let count = if cut { limit } else { wished }.clamp(1, LONGEST_ANSWER);
        let mut script = Self {
            pieces: Vec::with_capacity(count),
            tokens: Vec::with_capacity(count),
            finish_reason: if cut { "length" } else { "stop" },
        };
        for index in 0..count {
            let (text, token) = lexicon.piece(index, random.random_range(0..1 << 20));
            script.pieces.push(text.to_owned());
            script.tokens.push(token);
        }
        script
    }
}

/// An admitted request with all that is needed to write its answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) running: Running,
    pub(super) script: Script,
    pub(super) writer: Writer,
    pub(super) prompt_tokens: usize,
    pub(super) cached_tokens: usize,
    /// Cut the connection after this many pieces.
    pub(super) reset_after: Option<usize>,
    pub(super) include_usage: bool,
}

impl Answer {
    fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.script.tokens.len(),
            cached_tokens: self.cached_tokens,
        }
    }

    /// The answer as an SSE stream. Dropping it aborts the request.
    pub(super) fn into_sse(self) -> Body {
        Body::from_stream(self.pieces())
    }

    /// The answer in one body; an error when the engine dropped the request or a cut was asked for.
    pub(super) async fn into_unary(mut self) -> io::Result<Bytes> {
        loop {
            match self.running.next().await {
                Some(Progress::Token { last: true }) => break,
                Some(_) => {}
                None => return Err(cut()),
            }
        }
        let text = self.script.pieces.concat();
        Ok(self
            .writer
            .unary(&text, self.script.finish_reason, self.usage()))
    }

    fn pieces(self) -> impl Stream<Item = io::Result<Bytes>> {
        let state = (self, 0_usize);
        let steps = stream::unfold(Some(state), |state| async move {
            let (mut answer, index) = state?;
            if answer.reset_after == Some(index) {
                return Some((Err(cut()), None));
            }
            match answer.running.next().await {
                Some(Progress::Token { last }) => {
                    let chunk = answer.chunk(index, last);
                    let rest = (!last).then_some((answer, index + 1));
                    Some((Ok(chunk), rest))
                }
                // The engine was restarted; admission comes once, before the stream.
                Some(Progress::Admitted { .. }) | None => Some((Err(cut()), None)),
            }
        });
        steps.fuse()
    }

    /// All that is sent with piece `index`: the role before the first, the end after the last.
    fn chunk(&self, index: usize, last: bool) -> Bytes {
        let mut bytes = BytesMut::new();
        if index == 0 {
            bytes.extend(self.writer.role_chunk());
        }
        let text = self.script.pieces.get(index).map_or("", String::as_str);
        bytes.extend_from_slice(&self.writer.content_chunk(text));
        if last {
            bytes.extend_from_slice(&self.writer.finish_chunk(self.script.finish_reason));
            if self.include_usage {
                bytes.extend_from_slice(&self.writer.usage_chunk(self.usage()));
            }
            bytes.extend_from_slice(&Writer::done());
        }
        bytes.freeze()
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "answer cut")
}
