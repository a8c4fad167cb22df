//! Chat bodies of a wanted size: several turns, a system prompt shared with others, and text of their own.
//! The same seed and number always give the same body.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const WORDS: &str = "the of and to in is you that it he was for on are as with his they at be this have from or one \
had by word but not what all were we when your can said there use an each which she do how their if will up other \
about out many then them these so some her would make like him into time has look two more write go see number no \
way could people my than first water been call who oil its now find long down day did get come made may part over \
new sound take only little work know place year live me back give most very after thing our just name good sentence \
man think say great where help through much before line right too mean old any same tell boy follow came want show \
also around form three small set put end does another well large must big even such because turn here why ask went \
men read need land different home us move try kind hand picture again change off play spell air away animal house \
point page letter mother answer found study still learn should world engine cache tensor replica latency schedule \
prefix router token batch cluster gateway request response stream balance pressure memory bandwidth";
const CORPUS_BYTES: usize = 4 << 20;
const SYSTEM_PROMPTS: usize = 16;

/// The sizes that the tables have, in bytes of the whole body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Small,
    Large,
}

/// Text that bodies are cut from, so that building one costs a copy and no more.
#[derive(Debug)]
pub(crate) struct Prompts {
    corpus: String,
    seed: u64,
}

impl Size {
    pub(crate) const ALL: [Self; 2] = [Self::Small, Self::Large];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Small => "1 KB",
            Self::Large => "100 KB",
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Small => 1024,
            Self::Large => 100 * 1024,
        }
    }

    /// Messages after the system prompt; odd, so that the user speaks last.
    fn turns(self) -> usize {
        match self {
            Self::Small => 3,
            Self::Large => 21,
        }
    }

    fn system_bytes(self) -> usize {
        self.bytes() / 5
    }
}

impl Prompts {
    pub(crate) fn new(seed: u64) -> Self {
        let words: Vec<_> = WORDS.split_ascii_whitespace().collect();
        let mut random = SmallRng::seed_from_u64(seed);
        let mut corpus = String::with_capacity(CORPUS_BYTES + 16);
        while corpus.len() < CORPUS_BYTES {
            corpus.push_str(words[random.random_range(0..words.len())]);
            corpus.push_str(if random.random_ratio(1, 12) {
                ". "
            } else {
                " "
            });
        }
        Self { corpus, seed }
    }

    /// The body of request `number`.
    pub(crate) fn body(&self, size: Size, number: u64) -> String {
        let mut random =
            SmallRng::seed_from_u64(self.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut body = String::with_capacity(size.bytes() + 64);
        body.push_str(
            r#"{"model":"bench","max_tokens":64,"messages":[{"role":"system","content":""#,
        );
        let system = random.random_range(0..SYSTEM_PROMPTS) * size.system_bytes();
        body.push_str(&self.corpus[system..system + size.system_bytes()]);
        body.push_str(r#""}"#);
        for turn in 0..size.turns() {
            let (role, extra) = if turn % 2 == 0 {
                ("user", 33)
            } else {
                ("assistant", 38)
            };
            let left = size.bytes().saturating_sub(body.len()) / (size.turns() - turn);
            let text = left.saturating_sub(extra).max(8);
            let start = random.random_range(0..self.corpus.len() - text);
            body.push_str(r#",{"role":""#);
            body.push_str(role);
            body.push_str(r#"","content":""#);
            body.push_str(&self.corpus[start..start + text]);
            body.push_str(r#""}"#);
        }
        body.push_str("]}");
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_json_of_about_the_wanted_size_and_the_user_speaks_last() {
        let prompts = Prompts::new(7);
        for size in Size::ALL {
            let body = prompts.body(size, 3);
            assert!(
                body.len().abs_diff(size.bytes()) < size.bytes() / 10,
                "{} bytes",
                body.len()
            );
            let json: serde_json::Value = serde_json::from_str(&body).unwrap();
            let messages = json["messages"].as_array().unwrap();
            assert_eq!(messages.last().unwrap()["role"], "user");
        }
    }

    #[test]
    fn each_number_has_its_own_text_and_always_the_same() {
        let prompts = Prompts::new(7);
        assert_ne!(prompts.body(Size::Small, 1), prompts.body(Size::Small, 2));
        assert_eq!(
            prompts.body(Size::Small, 1),
            Prompts::new(7).body(Size::Small, 1)
        );
    }
}
