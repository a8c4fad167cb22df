//! Conversations of several turns, drawn from a seed; some of them share a system prompt.
//! Never sends anything.

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

/// Words of a question: enough for more than two blocks of 16 tokens in every turn, whatever is shared before it.
const QUESTION_WORDS: std::ops::RangeInclusive<usize> = 48..=120;
const SYSTEM_WORDS: usize = 320;
const SYSTEM_PROMPTS: u64 = 2;

const WORDS: &[&str] = &[
    "the", "a", "old", "new", "small", "bright", "quiet", "ship", "harbour", "captain", "map",
    "signal", "train", "track", "switch", "lamp", "bridge", "valley", "letter", "clock", "tower",
    "engine", "carries", "follows", "crosses", "finds", "keeps", "turns", "waits", "for", "near",
    "under", "behind", "with", "without", "before", "after", "because", "while", "until", "north",
    "south", "seven", "twelve", "forty", "copper", "silver", "paper", "stone", "river",
];

#[derive(Clone, Debug)]
pub(super) struct Conversation {
    pub(super) number: usize,
    /// Turns answered so far.
    pub(super) turn: usize,
    pub(super) turns: usize,
    /// Which shared system prompt it has, from 1.
    pub(super) system: Option<u64>,
    messages: Vec<Value>,
    random: SmallRng,
}

impl Conversation {
    /// `count` conversations of `turns` turns each. Two of three share one of the system prompts.
    pub(super) fn draw(seed: u64, count: usize, turns: usize) -> Vec<Self> {
        let mut random = SmallRng::seed_from_u64(seed);
        let systems: Vec<String> = (0..SYSTEM_PROMPTS)
            .map(|_| sentence(&mut random, SYSTEM_WORDS))
            .collect();
        let draw = |number| {
            let system = match random.random_range(0..=SYSTEM_PROMPTS) {
                0 => None,
                which => Some(which),
            };
            let text = system.and_then(|which| systems.get(usize::try_from(which - 1).ok()?));
            let message = |text: &String| json!({ "role": "system", "content": text });
            Self {
                number,
                turn: 0,
                turns,
                system,
                messages: text.map(message).into_iter().collect(),
                random: SmallRng::seed_from_u64(random.random()),
            }
        };
        (0..count).map(draw).collect()
    }

    /// Adds the next question and gives the request's body.
    pub(super) fn ask(&mut self, model: &str) -> Value {
        let words = self.random.random_range(QUESTION_WORDS);
        let question = sentence(&mut self.random, words);
        self.messages
            .push(json!({ "role": "user", "content": question }));
        json!({
            "model": model,
            "messages": self.messages,
            "stream": true,
            "stream_options": { "include_usage": true },
        })
    }

    /// Adds the answer; true while turns are left.
    pub(super) fn hear(&mut self, answer: &str) -> bool {
        self.messages
            .push(json!({ "role": "assistant", "content": answer }));
        self.turn += 1;
        self.turn < self.turns
    }
}

fn sentence(random: &mut SmallRng, words: usize) -> String {
    let draw = |_| *WORDS.choose(random).unwrap_or(&"a");
    let words: Vec<&str> = (0..words).map(draw).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(seed: u64) -> Vec<Value> {
        let conversations = Conversation::draw(seed, 6, 2);
        conversations
            .into_iter()
            .map(|mut each| each.ask("m"))
            .collect()
    }

    #[test]
    fn one_seed_draws_the_same_conversations() {
        assert_eq!(bodies(7), bodies(7));
        assert_ne!(bodies(7), bodies(8));
    }

    #[test]
    fn a_turn_repeats_all_that_was_said_before() {
        let mut conversation = Conversation::draw(3, 1, 2).remove(0);
        let first = conversation.ask("m")["messages"]
            .as_array()
            .unwrap()
            .clone();
        assert!(conversation.hear("yes"));
        let second = conversation.ask("m")["messages"]
            .as_array()
            .unwrap()
            .clone();
        assert_eq!(second[..first.len()], first[..]);
        assert_eq!(second[first.len()]["content"], "yes");
        assert!(!conversation.hear("no"));
    }

    #[test]
    fn some_conversations_share_a_system_prompt_and_some_have_none() {
        let conversations = Conversation::draw(1, 60, 1);
        for system in [None, Some(1), Some(2)] {
            let with = conversations.iter().filter(|each| each.system == system);
            let heads: Vec<_> = with.map(|each| each.messages.first()).collect();
            assert!(heads.len() > 1);
            assert!(heads.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }
}
