//! JSON into template values: key order kept, the last of equal keys wins, depth bounded.
//!
//! Never recurses without a bound, and never fails on what Python's reader accepts and engines
//! therefore serve, lone surrogates above all: those become U+FFFD.

use std::{cell::Cell, fmt};

use minijinja::Value;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::RequestError;

/// Far above what tool schemas need, far below what a thread's stack holds.
pub(super) const MAX_DEPTH: u8 = 128;

/// The body as text, without a byte order mark.
pub(super) fn text(body: &[u8]) -> Result<&str, RequestError> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    std::str::from_utf8(body).map_err(|error| RequestError::NotJson {
        offset: error.valid_up_to(),
    })
}

/// Reads one whole document.
pub(super) fn read<'de, S: DeserializeSeed<'de>>(
    text: &'de str,
    too_deep: &Cell<bool>,
    seed: S,
) -> Result<S::Value, RequestError> {
    let mut reader = sonic_rs::Deserializer::from_str(text).utf8_lossy();
    let value = seed.deserialize(&mut reader);
    value
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| {
            if too_deep.get() {
                RequestError::TooDeep
            } else {
                RequestError::NotJson {
                    offset: error.offset(),
                }
            }
        })
}

/// A value from text that is JSON of its own, such as a tool call's arguments.
pub(crate) fn parse_value(text: &str) -> Option<Value> {
    let too_deep = Cell::new(false);
    read(text, &too_deep, ValueSeed(Depth::new(&too_deep))).ok()
}

/// How much deeper a value may nest.
#[derive(Clone, Copy)]
pub(super) struct Depth<'a> {
    left: u8,
    too_deep: &'a Cell<bool>,
}

impl<'a> Depth<'a> {
    pub(super) fn new(too_deep: &'a Cell<bool>) -> Self {
        Self {
            left: MAX_DEPTH,
            too_deep,
        }
    }

    pub(super) fn deeper<E: Error>(self) -> Result<Self, E> {
        if let Some(left) = self.left.checked_sub(1) {
            Ok(Self { left, ..self })
        } else {
            self.too_deep.set(true);
            Err(E::custom("nested too deeply"))
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct ValueSeed<'a>(pub(super) Depth<'a>);

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_> {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::from(()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let seed = ValueSeed(self.0.deeper()?);
        let mut values = Vec::new();
        while let Some(value) = items.next_element_seed(seed)? {
            values.push(value);
        }
        Ok(Value::from(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let seed = ValueSeed(self.0.deeper()?);
        let mut pairs = Vec::new();
        while let Some(key) = entries.next_key_seed(seed)? {
            pairs.push((key, entries.next_value_seed(seed)?));
        }
        Ok(Value::from_pairs(pairs))
    }
}

/// Passes over a value. Unlike the reader's own skipping it is bounded in depth.
#[derive(Clone, Copy)]
pub(super) struct Skip<'a>(pub(super) Depth<'a>);

impl<'de> DeserializeSeed<'de> for Skip<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Skip<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let seed = Skip(self.0.deeper()?);
        while items.next_element_seed(seed)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let seed = Skip(self.0.deeper()?);
        // A key is a string, so ignoring it cannot recurse.
        while entries.next_key::<IgnoredAny>()?.is_some() {
            entries.next_value_seed(seed)?;
        }
        Ok(())
    }
}
