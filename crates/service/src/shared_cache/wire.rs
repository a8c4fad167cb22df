//! What a shared cache is asked and what it answers, as JSON; it reads bytes and trusts none.

use std::ops::Range;

use pointsman_core::hash::BlockHash;
use serde::{Deserialize, Serialize, Serializer};

use super::SharedCacheError;

/// Blocks that are asked for at once; of a longer prompt, the rest counts as not there.
const MAX_BLOCKS: usize = 65_536;
/// Room for an answer: what it takes to say that every other block is there, and a bit.
const ANSWER_BYTES_PER_BLOCK: usize = 24;
const ANSWER_BYTES: usize = 64 << 10;

#[derive(Serialize)]
struct Question<'a> {
    #[serde(serialize_with = "numbers")]
    block_hashes: &'a [BlockHash],
}

#[derive(Deserialize)]
struct Answer {
    ranges: Vec<[u64; 2]>,
}

/// The blocks that are asked for.
pub(super) fn asked(block_hashes: &[BlockHash]) -> &[BlockHash] {
    &block_hashes[..block_hashes.len().min(MAX_BLOCKS)]
}

pub(super) fn question(asked: &[BlockHash]) -> Vec<u8> {
    let question = Question {
        block_hashes: asked,
    };
    // Numbers and nothing else: it cannot fail to be written.
    serde_json::to_vec(&question).unwrap_or_default()
}

/// The longest answer that is read.
pub(super) fn answer_bytes(asked_blocks: usize) -> usize {
    ANSWER_BYTES.saturating_add(asked_blocks.saturating_mul(ANSWER_BYTES_PER_BLOCK))
}

/// The ranges of an answer, ascending, apart from each other and within what was asked.
pub(super) fn ranges(
    body: &[u8],
    asked_blocks: usize,
) -> Result<Vec<Range<u32>>, SharedCacheError> {
    let answer: Answer = serde_json::from_slice(body).map_err(|_| SharedCacheError::Malformed)?;
    let limit = u32::try_from(asked_blocks).unwrap_or(u32::MAX);
    let within = |position: u64| u32::try_from(position).map_or(limit, |at| at.min(limit));
    let mut ranges = Vec::with_capacity(answer.ranges.len());
    for [start, end] in answer.ranges {
        if start > end {
            return Err(SharedCacheError::Malformed);
        }
        ranges.push(within(start)..within(end));
    }
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, kept| {
        let touches = next.start <= kept.end;
        if touches {
            kept.end = kept.end.max(next.end);
        }
        touches
    });
    Ok(ranges)
}

fn numbers<S: Serializer>(hashes: &[BlockHash], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(hashes.iter().map(|hash| hash.0))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn hashes_are_asked_for_as_unsigned_numbers() {
        let hashes = [BlockHash(1), BlockHash(u64::MAX)];
        let text = r#"{"block_hashes":[1,18446744073709551615]}"#;
        assert_eq!(question(&hashes), text.as_bytes());
    }

    #[test]
    fn a_long_prompt_is_asked_for_in_part() {
        let hashes = vec![BlockHash(7); MAX_BLOCKS + 1];
        assert_eq!(asked(&hashes).len(), MAX_BLOCKS);
        assert_eq!(asked(&hashes[..3]).len(), 3);
    }

    #[test]
    fn ranges_come_out_in_order_apart_and_within_what_was_asked() {
        let check = |body: &str, expected: &[(u32, u32)]| {
            let ranges = ranges(body.as_bytes(), 10).unwrap();
            let found: Vec<_> = ranges
                .iter()
                .map(|range| (range.start, range.end))
                .collect();
            assert_eq!(found, expected, "{body}");
        };
        check(r#"{"ranges":[]}"#, &[]);
        check(r#"{"ranges":[[2,4]],"more":1}"#, &[(2, 4)]);
        check(r#"{"ranges":[[6,8],[0,2],[2,3],[1,3]]}"#, &[(0, 3), (6, 8)]);
        check(r#"{"ranges":[[4,4],[8,99]]}"#, &[(8, 10)]);
        check(r#"{"ranges":[[12,18446744073709551615]]}"#, &[]);
        check(r#"{"ranges":[[0,9],[1,2],[3,10]]}"#, &[(0, 10)]);
    }

    #[test]
    fn random_ranges_agree_with_a_set_of_positions() {
        for seed in 0..500 {
            println!("seed {seed}");
            let mut random = StdRng::seed_from_u64(seed);
            let asked: u64 = random.random_range(0..40);
            let mut said = Vec::new();
            for _ in 0..random.random_range(0..12) {
                let start = random.random_range(0..50_u64);
                said.push([start, start + random.random_range(0..9)]);
            }
            let body = serde_json::json!({"ranges": said}).to_string();
            let blocks = usize::try_from(asked).unwrap();
            let found = ranges(body.as_bytes(), blocks).unwrap();
            let positions = said.iter().flat_map(|[start, end]| *start..*end);
            let expected: BTreeSet<u64> = positions.filter(|at| *at < asked).collect();
            let listed: Vec<u64> = found.iter().cloned().flatten().map(u64::from).collect();
            assert_eq!(listed, Vec::from_iter(expected), "{body}");
            assert!(found.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for body in [
            "",
            "null",
            "[]",
            "{}",
            r#"{"ranges":null}"#,
            r#"{"ranges":[[1]]}"#,
            r#"{"ranges":[[3,1]]}"#,
            r#"{"ranges":[[-1,1]]}"#,
            r#"{"ranges":[[1,2.5]]}"#,
            r#"{"ranges":[[0,1]]"#,
        ] {
            let read = ranges(body.as_bytes(), 10);
            assert_eq!(read, Err(SharedCacheError::Malformed), "{body}");
        }
    }
}
