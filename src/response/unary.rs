//! The usage of a response that comes as one JSON document.
//!
//! Never keeps more than the document's end, where workers put the usage.

use super::{ResponseProgress, usage};

/// More than any usage object takes, with what follows it.
const KEPT: usize = 16 * 1024;

#[derive(Debug, Default)]
pub struct UnaryTail {
    /// At most twice [`KEPT`]; the last [`KEPT`] bytes are certain to be in it.
    tail: Vec<u8>,
    is_whole: Whole,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Whole {
    #[default]
    Yes,
    No,
}

impl UnaryTail {
    pub fn push(&mut self, chunk: &[u8]) -> ResponseProgress {
        let kept = &chunk[chunk.len().saturating_sub(KEPT)..];
        if kept.len() < chunk.len() {
            self.tail.clear();
            self.is_whole = Whole::No;
        }
        if self.tail.len() + kept.len() > 2 * KEPT {
            self.tail.drain(..self.tail.len() - KEPT);
            self.is_whole = Whole::No;
        }
        self.tail.extend_from_slice(kept);
        ResponseProgress::default()
    }

    pub fn finish(&mut self) -> ResponseProgress {
        let whole = (self.is_whole == Whole::Yes).then(|| usage::of_document(&self.tail));
        let usage = whole.unwrap_or_else(|| usage::of_tail(&self.tail));
        ResponseProgress {
            output_tokens_seen: usage.map_or(0, |usage| usage.completion_tokens),
            usage,
        }
    }
}
