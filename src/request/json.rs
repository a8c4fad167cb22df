//! JSON into template values: key order kept, the last of equal keys wins, depth and memory
//! bounded.
//!
//! Never recurses without a bound, and never fails on what Python's reader accepts and engines
//! therefore serve, lone surrogates above all: those become U+FFFD.

use std::{cell::Cell, fmt};

use minijinja::Value;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::RequestError;

/// Far above what tool schemas need, far below what a thread's stack holds.
pub(super) const MAX_DEPTH: u8 = 128;

/// A value takes up to a hundred times the memory of the two bytes that can stand for it.
const MAX_VALUES: u32 = 256 * 1024;

/// What one document may still take, and what it took too much of.
#[derive(Debug)]
pub(super) struct Limits {
    values_left: Cell<u32>,
    broken: Cell<Option<Limit>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Depth,
    Values,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            values_left: Cell::new(MAX_VALUES),
            broken: Cell::new(None),
        }
    }
}

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
    limits: &Limits,
    seed: S,
) -> Result<S::Value, RequestError> {
    let mut reader = sonic_rs::Deserializer::from_str(text).utf8_lossy();
    let value = seed.deserialize(&mut reader);
    value
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| match limits.broken.get() {
            Some(Limit::Depth) => RequestError::TooDeep,
            Some(Limit::Values) => RequestError::TooManyValues,
            None => RequestError::NotJson {
                offset: error.offset(),
            },
        })
}

/// A value from text that is JSON of its own, such as a tool call's arguments.
pub(crate) fn parse_value(text: &str) -> Option<Value> {
    let limits = Limits::default();
    read(text, &limits, ValueSeed(Depth::new(&limits))).ok()
}

/// How much deeper a value may nest.
#[derive(Clone, Copy)]
pub(super) struct Depth<'a> {
    left: u8,
    limits: &'a Limits,
}

impl<'a> Depth<'a> {
    pub(super) fn new(limits: &'a Limits) -> Self {
        Self {
            left: MAX_DEPTH,
            limits,
        }
    }

    pub(super) fn deeper<E: Error>(self) -> Result<Self, E> {
        let left = self.left.checked_sub(1);
        let left = left.ok_or_else(|| self.broken(Limit::Depth))?;
        Ok(Self { left, ..self })
    }

    fn take_value<E: Error>(self) -> Result<(), E> {
        let left = self.limits.values_left.get().checked_sub(1);
        let left = left.ok_or_else(|| self.broken(Limit::Values))?;
        self.limits.values_left.set(left);
        Ok(())
    }

    fn broken<E: Error>(self, limit: Limit) -> E {
        self.limits.broken.set(Some(limit));
        E::custom("beyond a limit")
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
            self.0.take_value()?;
            values.push(value);
        }
        Ok(Value::from(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let seed = ValueSeed(self.0.deeper()?);
        let mut pairs = Vec::new();
        while let Some(key) = entries.next_key_seed(seed)? {
            self.0.take_value()?;
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
