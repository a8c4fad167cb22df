//! The requests of the HTTP bench: one prompt as hashes or as tokens, with all that a caller sends beside it.
//! It knows no server.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::http1;

pub(super) const MODEL: &str = "bench";
pub(super) const BLOCK_SIZE: usize = 16;

/// How the prompt is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// This many blocks, by both their hashes.
    Hashes(usize),
    /// This many token ids.
    Tokens(usize),
}

/// The three calls of one request's life, ready to be sent.
#[derive(Debug)]
pub(super) struct Cycle {
    pub(super) reserve: Vec<u8>,
    pub(super) prefill_complete: Vec<u8>,
    pub(super) free: Vec<u8>,
}

impl Form {
    pub(super) fn name(self) -> String {
        match self {
            Self::Hashes(blocks) => format!("{blocks} blocks as hashes"),
            Self::Tokens(tokens) => format!("{tokens} token ids"),
        }
    }

    /// A cycle of its own id and prompt for each number.
    pub(super) fn cycle(self, seed: u64, number: usize) -> Cycle {
        let mut random = StdRng::seed_from_u64(seed ^ (number as u64).rotate_left(17));
        let id = format!("request-{number}");
        let body = match self {
            Self::Hashes(blocks) => {
                let mut hashes = || (0..blocks).map(|_| random.random()).collect::<Vec<i64>>();
                json!({
                    "selection_id": id,
                    "model_name": MODEL,
                    "block_hashes": hashes(),
                    "sequence_hashes": hashes(),
                    "isl_tokens": blocks * BLOCK_SIZE,
                })
            }
            Self::Tokens(tokens) => {
                let ids: Vec<u32> = (0..tokens)
                    .map(|_| random.random_range(0..150_000))
                    .collect();
                json!({"selection_id": id, "model_name": MODEL, "token_ids": ids})
            }
        };
        let path = format!("/reservations/{id}");
        Cycle {
            reserve: http1::post("/select_and_reserve", &body.to_string()),
            prefill_complete: http1::bare_post(&format!("{path}/prefill_complete")),
            free: http1::delete(&path),
        }
    }
}
