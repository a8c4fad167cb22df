//! Server-sent events of a completion, counted as they pass.
//!
//! Never stores an event: only a line that is split between chunks is carried over, up to a
//! bound, and a longer line counts as one event without being read.

use super::{ResponseProgress, Usage, usage};

/// A partial line longer than this is no longer kept.
const MAX_LINE_BYTES: usize = 64 * 1024;

#[derive(Debug, Default)]
pub struct SseCounter {
    progress: ResponseProgress,
    /// The beginning of a line whose end has not come.
    partial: Vec<u8>,
    line: Line,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Line {
    #[default]
    Kept,
    /// Too long to be kept: what comes up to its end is passed over.
    Skipped { had_choices: bool },
}

impl SseCounter {
    pub fn push(&mut self, chunk: &[u8]) -> ResponseProgress {
        let mut rest = chunk;
        while let Some(end) = line_end(rest) {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            self.end_line(line);
            rest = after;
        }
        self.carry(rest);
        self.progress
    }

    /// A last line may come without its end.
    pub fn finish(&mut self) -> ResponseProgress {
        self.end_line(b"");
        self.progress
    }

    fn end_line(&mut self, end: &[u8]) {
        if self.line == Line::Kept && self.partial.is_empty() {
            read_line(&mut self.progress, end);
            return;
        }
        self.carry(end);
        match self.line {
            Line::Kept => read_line(&mut self.progress, &self.partial),
            Line::Skipped { had_choices } => {
                self.progress.output_tokens_seen += u64::from(had_choices);
            }
        }
        self.partial.clear();
        self.line = Line::Kept;
    }

    fn carry(&mut self, part: &[u8]) {
        if self.line != Line::Kept || part.is_empty() {
            return;
        }
        if self.partial.len() + part.len() <= MAX_LINE_BYTES {
            self.partial.extend_from_slice(part);
            return;
        }
        let missing = MAX_LINE_BYTES - self.partial.len();
        self.partial.extend_from_slice(&part[..missing]);
        let had_choices = long_line_has_choices(&self.partial);
        self.partial.clear();
        self.line = Line::Skipped { had_choices };
    }
}

fn line_end(bytes: &[u8]) -> Option<usize> {
    const BLOCK: usize = 64;
    let mut start = 0;
    for block in bytes.chunks(BLOCK) {
        // Without a branch inside, a block is compared at once.
        if block
            .iter()
            .fold(0, |hit, byte| hit | u8::from(*byte == b'\n'))
            != 0
        {
            return block
                .iter()
                .position(|byte| *byte == b'\n')
                .map(|at| start + at);
        }
        start += block.len();
    }
    None
}

fn read_line(progress: &mut ResponseProgress, line: &[u8]) {
    if line.len() > MAX_LINE_BYTES {
        let had_choices = long_line_has_choices(&line[..MAX_LINE_BYTES]);
        progress.output_tokens_seen += u64::from(had_choices);
        return;
    }
    let Some(data) = line.strip_prefix(b"data:") else {
        return;
    };
    let data = data.trim_ascii();
    if data.is_empty() || data == b"[DONE]" {
        return;
    }
    progress.output_tokens_seen += u64::from(has_choices(data));
    progress.usage = last_usage(data).or(progress.usage);
}

/// Quotes inside a JSON string are escaped, so a key in quotes cannot be part of a text.
fn last_usage(data: &[u8]) -> Option<Usage> {
    const KEY: &[u8] = b"\"usage\"";
    let mut found = None;
    let mut rest = data;
    while let Some(at) = find(rest, KEY) {
        rest = &rest[at + KEY.len()..];
        found = usage::of_value(rest).or(found);
    }
    found
}

/// Whether the event has a list `choices` that is not empty.
fn has_choices(data: &[u8]) -> bool {
    const KEY: &[u8] = b"\"choices\"";
    let Some(at) = find(data, KEY) else {
        return false;
    };
    let rest = data[at + KEY.len()..].trim_ascii_start();
    let list = rest.strip_prefix(b":").map(<[u8]>::trim_ascii_start);
    let inside = list.and_then(|list| list.strip_prefix(b"["));
    inside.is_some_and(|inside| !inside.trim_ascii_start().starts_with(b"]"))
}

/// Choices come before whatever makes an event that long, so its beginning tells.
fn long_line_has_choices(start: &[u8]) -> bool {
    start.strip_prefix(b"data:").is_some_and(has_choices)
}

/// Looks for the quote that begins the word.
fn find(text: &[u8], word: &[u8]) -> Option<usize> {
    let mut places = text
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == word[0]);
    places
        .find(|(at, _)| text[*at..].starts_with(word))
        .map(|(at, _)| at)
}
