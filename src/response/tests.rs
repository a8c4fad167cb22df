//! Response bodies as workers send them, split wherever a network may split them.

use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::*;

const STREAM: &str = concat!(
    ": comment\n\n",
    "data: {\"id\":\"1\",\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}],\"usage\":null}\n\n",
    "data: {\"id\":\"1\",\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\r\n\r\n",
    "event: x\ndata:{\"choices\" : [ {\"text\":\"\\\"usage\\\": {\\\"prompt_tokens\\\": 9}\"}]}\n\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"choices\\\":[]\"}}],\"usage\":{\"prompt_tokens\":1,",
    "\"completion_tokens\":2}}\n\n",
    "data: {\"choices\": [ ],\"usage\":{\"prompt_tokens\":70,\"total_tokens\":74,\"completion_tokens\":4,",
    "\"prompt_tokens_details\":{\"cached_tokens\":64}}}\n\n",
    "data: [DONE]\n\n",
);

fn usage(prompt_tokens: u64, completion_tokens: u64, cached_tokens: Option<u64>) -> Usage {
    Usage {
        prompt_tokens,
        completion_tokens,
        cached_tokens,
    }
}

fn of(chunks: &[&[u8]]) -> ResponseProgress {
    let mut counter = SseCounter::default();
    for chunk in chunks {
        counter.push(chunk);
    }
    counter.finish()
}

#[test]
fn events_with_choices_are_counted_and_the_last_usage_is_kept() {
    let progress = of(&[STREAM.as_bytes()]);
    assert_eq!(progress.output_tokens_seen, 4);
    assert_eq!(progress.usage, Some(usage(70, 4, Some(64))));
}

#[test]
fn progress_is_known_at_once() {
    let mut counter = SseCounter::default();
    assert_eq!(
        counter.push(b"data: {\"choices\":[{}").output_tokens_seen,
        0
    );
    assert_eq!(counter.push(b"]}\n").output_tokens_seen, 1);
    assert_eq!(
        counter
            .push(b"\ndata: {\"choices\":[{}]}")
            .output_tokens_seen,
        1
    );
    assert_eq!(counter.finish().output_tokens_seen, 2);
}

#[test]
fn a_split_at_any_byte_changes_nothing() {
    let stream = STREAM.as_bytes();
    let whole = of(&[stream]);
    for first in 0..=stream.len() {
        for second in (first..=stream.len()).step_by(17) {
            assert_eq!(
                of(&[&stream[..first], &stream[first..second], &stream[second..]]),
                whole
            );
        }
    }
}

#[test]
fn random_splits_of_random_streams_change_nothing() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let long = "x".repeat(70_000);
    let pieces = [
        "data:",
        "data: ",
        "{\"choices\":[{}]}",
        "\"choices\":",
        "[",
        "]",
        "\n",
        "\r\n",
        "\n\n",
        "[DONE]",
        "\"usage\":",
        "{\"prompt_tokens\":3,\"completion_tokens\":1}",
        "{",
        "}",
        "\"",
        "\\",
        &long,
        "é",
    ];
    for _ in 0..500 {
        let count = random.random_range(1..30);
        let stream: String = (0..count)
            .map(|_| pieces[random.random_range(0..pieces.len())])
            .collect();
        let stream = stream.as_bytes();
        let whole = of(&[stream]);
        for _ in 0..5 {
            let mut chunks = Vec::new();
            let mut rest = stream;
            while !rest.is_empty() {
                let longest = if random.random() { 5 } else { 80_000 };
                let (chunk, after) =
                    rest.split_at(random.random_range(0..=rest.len().min(longest)));
                chunks.push(chunk);
                rest = after;
            }
            assert_eq!(of(&chunks), whole, "{:?}", String::from_utf8_lossy(stream));
        }
    }
}

#[test]
fn a_line_too_long_to_keep_still_counts_as_one() {
    let long = format!(
        "data: {{\"choices\":[{{\"text\":\"{}\"}}]}}\n",
        "x".repeat(200_000)
    );
    let next = b"data: {\"choices\":[{}]}\n";
    let chunks: Vec<&[u8]> = long.as_bytes().chunks(1_000).chain([&next[..]]).collect();
    assert_eq!(of(&chunks).output_tokens_seen, 2);
}

#[test]
fn the_usage_of_one_document_is_found() {
    let document = br#"{"choices":[{"message":{"content":"\"usage\":{}"}}],
        "usage":{"prompt_tokens":5,"completion_tokens":3,"prompt_tokens_details":null}}"#;
    for size in [1, 7, document.len()] {
        let mut tail = BodyCounter::new(Some("application/json"));
        document.chunks(size).for_each(|chunk| {
            tail.push(chunk);
        });
        let progress = tail.finish();
        assert_eq!(
            (progress.usage, progress.output_tokens_seen),
            (Some(usage(5, 3, None)), 3)
        );
    }
}

#[test]
fn the_usage_at_the_end_of_a_long_document_is_found() {
    let text = "y".repeat(300_000);
    let document = format!(
        "{{\"choices\":[{{\"text\":\"{text}\"}}],\"usage\":{{\"prompt_tokens\":5,\"completion_tokens\":3,\
        \"prompt_tokens_details\":{{\"cached_tokens\":2}}}},\"usage_note\":\"\\\"usage\\\"\"}}"
    );
    for size in [100, 50_000, document.len()] {
        let mut tail = BodyCounter::new(None);
        document.as_bytes().chunks(size).for_each(|chunk| {
            tail.push(chunk);
        });
        assert_eq!(tail.finish().usage, Some(usage(5, 3, Some(2))), "{size}");
    }
}

#[test]
fn a_body_without_usage_has_none() {
    for body in [
        "",
        "{",
        "no json",
        "{\"usage\":null}",
        "{\"usage\":5}",
        "[1]",
        "{\"usage\"",
    ] {
        let mut tail = BodyCounter::new(Some("application/json"));
        tail.push(body.as_bytes());
        assert_eq!(tail.finish(), ResponseProgress::default(), "{body}");
    }
}

#[test]
fn the_content_type_tells_a_stream() {
    let is_stream = |kind| matches!(BodyCounter::new(kind), BodyCounter::Stream(_));
    assert!(is_stream(Some("text/event-stream")));
    assert!(is_stream(Some("Text/Event-Stream; charset=utf-8")));
    assert!(!is_stream(Some("application/json")));
    assert!(!is_stream(None));
}
