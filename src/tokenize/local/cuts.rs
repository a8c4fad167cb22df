//! Places in a text where it can be cut in two without changing its tokens.
//!
//! Knows one kind only: the end of an added token that stands alone among all added tokens. Such
//! a token is taken out of the text before anything else looks at it, wherever it occurs, so
//! what is left of it and what is right of it are encoded apart in any case.

use serde_json::Value as Json;

/// Cuts closer together cost more than they save.
const MIN_PIECE_BYTES: usize = 512;

/// Tokens looked for at each place.
const MAX_TOKENS: usize = 32;

#[derive(Debug, Default)]
pub(super) struct Cuts {
    first: u8,
    /// All begin with `first`.
    tokens: Vec<String>,
}

struct Added<'a> {
    content: &'a str,
    strips: bool,
    single_word: bool,
    normalized: bool,
}

impl Cuts {
    /// Reads `tokenizer.json`; tokens that occur in a template are preferred.
    pub(super) fn find(file: &Json, template: &str) -> Self {
        let added = added_tokens(file);
        let is_plain = file["normalizer"].is_null();
        // A word's neighbour, or being first in a text, may decide what becomes of it.
        if added.iter().any(|token| token.single_word) || minds_the_first(&file["pre_tokenizer"]) {
            return Self::default();
        }
        let mut fit: Vec<&Added<'_>> = added
            .iter()
            .filter(|token| !token.strips && (is_plain || !token.normalized))
            .filter(|token| token.content.is_ascii() || token.content.len() > 3)
            .filter(|token| token.content.trim() == token.content && token.content.len() > 2)
            .collect();
        let is_written = |token: &&Added<'_>| template.contains(token.content);
        if fit.iter().any(is_written) {
            fit.retain(is_written);
        }
        let Some(first) = fit.first().map(|token| token.content.as_bytes()[0]) else {
            return Self::default();
        };
        let fit = fit
            .into_iter()
            .filter(|token| token.content.as_bytes()[0] == first);
        let fit = fit.filter(|token| stands_alone(token, &added));
        Self {
            first,
            tokens: fit
                .take(MAX_TOKENS)
                .map(|token| token.content.to_owned())
                .collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The end of the first cut token that leaves a piece worth having behind `start`.
    pub(super) fn next(&self, text: &str, start: usize) -> Option<usize> {
        let bytes = text.as_bytes();
        let mut from = start + MIN_PIECE_BYTES;
        while from < bytes.len() {
            let at = from + find_byte(self.first, &bytes[from..])?;
            let here = &bytes[at..];
            let found = self
                .tokens
                .iter()
                .find(|token| here.starts_with(token.as_bytes()));
            if let Some(token) = found {
                return Some(at + token.len());
            }
            from = at + 1;
        }
        None
    }
}

fn find_byte(byte: u8, bytes: &[u8]) -> Option<usize> {
    const BLOCK: usize = 64;
    let blocks = bytes.chunks(BLOCK).zip(0..);
    // Without a branch inside, a block is compared at once.
    let hit = blocks
        .into_iter()
        .find(|(block, _)| block.iter().fold(0, |hit, b| hit | u8::from(*b == byte)) != 0);
    let (block, index) = hit?;
    Some(index * BLOCK + block.iter().position(|b| *b == byte)?)
}

fn added_tokens(file: &Json) -> Vec<Added<'_>> {
    let flag = |token: &Json, name: &str| token[name].as_bool().unwrap_or(false);
    let tokens = file["added_tokens"].as_array().into_iter().flatten();
    tokens
        .filter_map(|token| {
            Some(Added {
                content: token["content"].as_str().filter(|text| !text.is_empty())?,
                strips: flag(token, "lstrip") || flag(token, "rstrip"),
                single_word: flag(token, "single_word"),
                normalized: flag(token, "normalized"),
            })
        })
        .collect()
}

/// Whether the pre-tokenizer treats the start of a text unlike the start of a later piece.
fn minds_the_first(step: &Json) -> bool {
    let inner = step["pretokenizers"].as_array().into_iter().flatten();
    step["prepend_scheme"] == "first" || inner.into_iter().any(minds_the_first)
}

/// Whether no occurrence of the token can overlap one of another added token, or of itself.
fn stands_alone(token: &Added<'_>, added: &[Added<'_>]) -> bool {
    let mine = token.content;
    added.iter().all(|other| {
        let other = other.content;
        let contained = other != mine && (other.contains(mine) || mine.contains(other));
        !contained && !runs_into(mine, other) && !runs_into(other, mine)
    })
}

/// Whether a proper end of `left` is a beginning of `right`.
fn runs_into(left: &str, right: &str) -> bool {
    let mut ends = left.char_indices().skip(1).map(|(at, _)| &left[at..]);
    ends.any(|end| end.len() < right.len() && right.starts_with(end))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn token(content: &str) -> Json {
        json!({"id": 1, "content": content, "normalized": false, "special": true})
    }

    fn cuts(tokens: &[&str], template: &str) -> Vec<String> {
        let tokens: Vec<Json> = tokens.iter().map(|content| token(content)).collect();
        Cuts::find(&json!({"added_tokens": tokens}), template).tokens
    }

    #[test]
    fn a_token_that_overlaps_another_is_no_cut() {
        assert_eq!(cuts(&["<|a|>", "<|a|>x"], ""), [""; 0]);
        assert_eq!(cuts(&["<|a|>", "|>b"], ""), [""; 0]);
        assert_eq!(cuts(&["<|a|>", "<|b|>"], ""), ["<|a|>", "<|b|>"]);
        assert_eq!(cuts(&["<a<", "zzz"], ""), [""; 0]);
    }

    #[test]
    fn tokens_of_the_template_are_preferred() {
        assert_eq!(cuts(&["<|a|>", "<|b|>"], "x <|b|> y"), ["<|b|>"]);
    }

    #[test]
    fn a_tokenizer_that_minds_the_start_of_a_text_has_no_cuts() {
        let first = json!({"type": "Metaspace", "prepend_scheme": "first"});
        let sequence = json!({"type": "Sequence", "pretokenizers": [first]});
        let file = json!({"added_tokens": [token("<|a|>")], "pre_tokenizer": sequence});
        assert!(Cuts::find(&file, "").is_empty());
    }

    #[test]
    fn a_token_that_takes_whitespace_with_it_is_no_cut() {
        let strips = json!({"content": "<|a|>", "rstrip": true});
        assert!(Cuts::find(&json!({"added_tokens": [strips]}), "").is_empty());
    }

    #[test]
    fn the_next_cut_is_far_enough_away() {
        let cuts = Cuts {
            first: b'<',
            tokens: vec!["<|a|>".to_owned()],
        };
        let text = format!("<|a|>{}< <|a|>{}", "x".repeat(600), "y".repeat(1_000));
        assert_eq!(cuts.next(&text, 0), Some(5 + 600 + 2 + 5));
        assert_eq!(cuts.next(&text, 612), None);
    }
}
