//! A response body, watched as it passes: how many tokens came, and what the worker counted.
//!
//! Never holds a byte back and never changes one.

mod sse;
#[cfg(test)]
mod tests;
mod unary;
mod usage;

pub use sse::SseCounter;
pub use unary::UnaryTail;
pub use usage::Usage;

/// What is known after the bytes seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseProgress {
    /// One for each event that carries choices.
    pub output_tokens_seen: u64,
    pub usage: Option<Usage>,
}

/// Either kind of body, told apart by its content type.
#[derive(Debug)]
pub enum BodyCounter {
    Stream(SseCounter),
    Unary(UnaryTail),
}

impl BodyCounter {
    pub fn new(content_type: Option<&str>) -> Self {
        let kind = content_type.unwrap_or_default().trim_start();
        let stream = "text/event-stream";
        let is_stream = kind
            .get(..stream.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(stream));
        if is_stream {
            Self::Stream(SseCounter::default())
        } else {
            Self::Unary(UnaryTail::default())
        }
    }

    pub fn push(&mut self, chunk: &[u8]) -> ResponseProgress {
        match self {
            Self::Stream(counter) => counter.push(chunk),
            Self::Unary(tail) => tail.push(chunk),
        }
    }

    /// To be asked once the body has ended.
    pub fn finish(&mut self) -> ResponseProgress {
        match self {
            Self::Stream(counter) => counter.finish(),
            Self::Unary(tail) => tail.finish(),
        }
    }
}
