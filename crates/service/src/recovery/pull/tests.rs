use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

use super::*;

const SEED: u64 = 0x5eed_0006;

/// Reads any value, so that it can be compared.
fn value<R: Read>(pull: &mut Pull<R>) -> Result<Value, Bad> {
    match pull.peek()? {
        b'{' => {
            let mut fields = Map::new();
            pull.object(|pull, name| {
                let name = name.to_owned();
                fields.insert(name, value(pull)?);
                Ok(())
            })?;
            Ok(Value::Object(fields))
        }
        b'[' => {
            let mut elements = Vec::new();
            pull.array(|pull| {
                elements.push(value(pull)?);
                Ok(())
            })?;
            Ok(Value::Array(elements))
        }
        b'"' => Ok(pull.string()?.into()),
        b'0'..=b'9' => Ok(pull.unsigned()?.into()),
        _ => {
            pull.skip()?;
            Ok(Value::Null)
        }
    }
}

fn read(text: &[u8]) -> Result<Value, Bad> {
    let mut pull = Pull::new(text, u64::MAX);
    let read = value(&mut pull)?;
    pull.finish()?;
    Ok(read)
}

fn random(random: &mut StdRng, depth: u32) -> Value {
    match random.random_range(0..if depth == 0 { 4 } else { 6 }) {
        0 => Value::Null,
        1 => json!(random.random::<u64>() >> random.random_range(0..64)),
        2 | 3 => {
            let characters = ['a', '"', '\\', '\n', '\u{1}', 'é', '\u{1F600}', '/', ' '];
            let text = (0..random.random_range(0..9))
                .map(|_| characters[random.random_range(0..characters.len())]);
            Value::String(text.collect())
        }
        4 => (0..random.random_range(0..5))
            .map(|_| self::random(random, depth - 1))
            .collect(),
        _ => {
            let fields = (0..random.random_range(0..5)).map(|index| {
                let value = self::random(random, depth - 1);
                (format!("f{index}\"é"), value)
            });
            Value::Object(fields.collect())
        }
    }
}

/// Gives one byte at a time, as a slow peer does.
struct Drops<'a>(&'a [u8]);

impl Read for Drops<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some((first, rest)) = self.0.split_first() else {
            return Ok(0);
        };
        buffer[0] = *first;
        self.0 = rest;
        Ok(1)
    }
}

#[test]
fn what_is_read_is_what_was_written() {
    let mut generator = StdRng::seed_from_u64(SEED);
    for round in 0..2000 {
        let written = random(&mut generator, 4);
        let text = match round % 2 {
            0 => serde_json::to_vec(&written).unwrap(),
            _ => serde_json::to_vec_pretty(&written).unwrap(),
        };
        assert_eq!(read(&text).unwrap(), written);
        let mut slow = Pull::new(Drops(&text), u64::MAX);
        assert_eq!(value(&mut slow).unwrap(), written);
    }
}

#[test]
fn cut_or_changed_text_never_stops_the_reader() {
    let mut generator = StdRng::seed_from_u64(SEED);
    for _ in 0..2000 {
        let mut text = serde_json::to_vec(&random(&mut generator, 4)).unwrap();
        if !text.is_empty() {
            let at = generator.random_range(0..text.len());
            match generator.random_range(0..3) {
                0 => text.truncate(at),
                1 => text[at] = generator.random(),
                _ => text.insert(at, b"{}[],:\"\\0e"[generator.random_range(0..10)]),
            }
        }
        // Whether it is still JSON depends on the change; reading ends either way.
        drop(read(&text));
    }
}

#[test]
fn what_has_another_shape_is_skipped_and_absent() {
    let text = br#"{"a": -1, "b": 1.5, "c": 18446744073709551616, "d": {"e": [1, "x"]}, "f": 7, "g": true}"#;
    let mut pull = Pull::new(&text[..], u64::MAX);
    let mut found = Vec::new();
    pull.object(|pull, _| {
        found.push(pull.unsigned()?);
        Ok(())
    })
    .unwrap();
    assert_eq!(found, [None, None, None, None, Some(7), None]);
}

#[test]
fn escapes_and_surrogates_are_read() {
    assert_eq!(
        read(br#""\u00e9\ud83d\ude00\/\b""#).unwrap(),
        "é\u{1F600}/\u{8}"
    );
    for broken in [
        &br#""\ud83d""#[..],
        br#""\ud83d\u0041""#,
        br#""\u12""#,
        br#""\x""#,
        b"\"\n\"",
    ] {
        assert!(matches!(read(broken), Err(Bad::Syntax { .. })));
    }
}

#[test]
fn no_text_makes_it_keep_much_or_go_deep() {
    let long = format!("\"{}\"", "x".repeat(MAX_STRING + 1));
    assert!(matches!(read(long.as_bytes()), Err(Bad::Syntax { .. })));
    let mut skipping = Pull::new(long.as_bytes(), u64::MAX);
    skipping.skip().unwrap();
    skipping.finish().unwrap();
    let deep = "[".repeat(1_000_000);
    assert!(matches!(read(deep.as_bytes()), Err(Bad::Syntax { .. })));
    let mut skipping = Pull::new(deep.as_bytes(), u64::MAX);
    assert!(matches!(skipping.skip(), Err(Bad::Syntax { .. })));
}

#[test]
fn a_text_beyond_the_bound_is_too_long() {
    let text = format!("[{}0]", "0,".repeat(200_000));
    let mut pull = Pull::new(text.as_bytes(), 100_000);
    assert!(matches!(pull.skip(), Err(Bad::TooLong { max: 100_000 })));
}
