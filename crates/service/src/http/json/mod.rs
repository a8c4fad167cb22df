//! Reads the JSON objects that requests are: field by field, so that a wrong one can be named, and
//! long lists of ids without a detour.
//!
//! It knows no route and no field. Everything is checked to be JSON, also what nobody asks for.

mod ids;

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;

use ids::Id;

/// Longest reason that is told, in characters.
const MAX_REASON: usize = 200;

/// Why a body cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum JsonError {
    #[error("the body is not valid JSON: {what} at byte {at}")]
    Syntax { what: &'static str, at: usize },
    #[error("the body must be a JSON object")]
    NotAnObject,
    #[error("{field} {reason}")]
    Field { field: String, reason: String },
}

/// The fields of one object. Unknown ones cost nothing but their check; of two with one name the
/// last counts.
#[derive(Debug)]
pub(super) struct Object<'a> {
    fields: Vec<(Cow<'a, str>, Value<'a>)>,
    /// What is put before a name when it is told.
    prefix: &'static str,
}

#[derive(Debug)]
enum Value<'a> {
    Raw(&'a str),
    Tokens(Vec<u32>),
    Hashes(Vec<u64>),
}

/// What the long list of a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListOf {
    Tokens,
    Hashes,
}

/// The fields that hold long lists.
pub(super) type Lists = &'static [(&'static str, ListOf)];

impl<'a> Object<'a> {
    /// Reads a whole body.
    pub(super) fn parse(body: &'a [u8], lists: Lists) -> Result<Self, JsonError> {
        let text = std::str::from_utf8(body).map_err(|error| JsonError::Syntax {
            what: "bytes that are not UTF-8",
            at: error.valid_up_to(),
        })?;
        Self::parse_text(text, lists, "")
    }

    fn parse_text(text: &'a str, lists: Lists, prefix: &'static str) -> Result<Self, JsonError> {
        let mut reader = Reader { text, at: 0 };
        reader.skip_space();
        if reader.peek() != Some(b'{') {
            // What is no JSON at all is told so.
            reader.value()?;
            return Err(JsonError::NotAnObject);
        }
        reader.at += 1;
        let mut fields = Vec::with_capacity(16);
        reader.skip_space();
        if reader.peek() == Some(b'}') {
            reader.at += 1;
        } else {
            loop {
                fields.push(reader.field(lists)?);
                match reader.next_byte() {
                    Some(b',') => {}
                    Some(b'}') => break,
                    _ => return Err(reader.wrong("`,` or `}` is missing")),
                }
            }
        }
        reader.skip_space();
        if reader.at < text.len() {
            return Err(reader.wrong("more after its end"));
        }
        Ok(Self { fields, prefix })
    }

    /// A field of any type that serde can read; `null` is absence.
    pub(super) fn get<T: Deserialize<'a>>(
        &self,
        name: &'static str,
    ) -> Result<Option<T>, JsonError> {
        match self.find(name) {
            None => Ok(None),
            Some(Value::Raw(text)) => {
                serde_json::from_str(text).map_err(|error| self.bad(name, reason(&error)))
            }
            Some(_) => Err(self.bad(name, "must not be a list of ids")),
        }
    }

    pub(super) fn require<T: Deserialize<'a>>(&self, name: &'static str) -> Result<T, JsonError> {
        self.get(name)?.ok_or_else(|| self.bad(name, "is required"))
    }

    /// An object within this one.
    pub(super) fn object(
        &self,
        name: &'static str,
        lists: Lists,
    ) -> Result<Option<Object<'a>>, JsonError> {
        match self.find(name) {
            None | Some(Value::Raw("null")) => Ok(None),
            Some(Value::Raw(text)) if text.starts_with('{') => {
                Object::parse_text(text, lists, name).map(Some)
            }
            Some(_) => Err(self.bad(name, "must be an object")),
        }
    }

    /// A list of token ids, taken out.
    pub(super) fn tokens(&mut self, name: &'static str) -> Result<Option<Vec<u32>>, JsonError> {
        match self.find_mut(name) {
            Some(Value::Tokens(list)) => Ok(Some(std::mem::take(list))),
            other => {
                let text = raw(other.as_deref());
                self.no_list(name, text, ListOf::Tokens)
            }
        }
    }

    /// A list of hashes, taken out; they may come signed or unsigned.
    pub(super) fn hashes(&mut self, name: &'static str) -> Result<Option<Vec<u64>>, JsonError> {
        match self.find_mut(name) {
            Some(Value::Hashes(list)) => Ok(Some(std::mem::take(list))),
            other => {
                let text = raw(other.as_deref());
                self.no_list(name, text, ListOf::Hashes)
            }
        }
    }

    /// A fault of a field of this object.
    pub(super) fn bad(&self, name: &str, reason: impl Into<String>) -> JsonError {
        let field = if self.prefix.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.prefix)
        };
        JsonError::Field {
            field,
            reason: reason.into(),
        }
    }

    /// A field that was not read as a list: absent, null, or wrong.
    fn no_list<T>(
        &self,
        name: &str,
        text: Option<&str>,
        of: ListOf,
    ) -> Result<Option<T>, JsonError> {
        match text {
            None | Some("null") => Ok(None),
            Some(text) => Err(self.bad(name, ids::complaint(text, of))),
        }
    }

    fn find(&self, name: &str) -> Option<&Value<'a>> {
        let mut fields = self.fields.iter().rev();
        let (_, value) = fields.find(|(known, _)| known == name)?;
        Some(value)
    }

    fn find_mut(&mut self, name: &str) -> Option<&mut Value<'a>> {
        let mut fields = self.fields.iter_mut().rev();
        let (_, value) = fields.find(|(known, _)| known == name)?;
        Some(value)
    }
}

fn raw<'a>(value: Option<&Value<'a>>) -> Option<&'a str> {
    match value {
        Some(Value::Raw(text)) => Some(text),
        _ => None,
    }
}

/// What serde says, without its position, which is one within the field, and not too long.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let said = text.split(" at line ").next().unwrap_or(&text);
    let short: String = said.chars().take(MAX_REASON).collect();
    let more = if short.len() < said.len() { "…" } else { "" };
    format!("is wrong: {short}{more}")
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn field(&mut self, lists: Lists) -> Result<(Cow<'a, str>, Value<'a>), JsonError> {
        self.skip_space();
        let name = self.name()?;
        if self.next_byte() != Some(b':') {
            return Err(self.wrong("`:` is missing"));
        }
        self.skip_space();
        let list = match lists.iter().find(|(list, _)| *list == name) {
            Some((_, ListOf::Tokens)) => self.list().map(Value::Tokens),
            Some((_, ListOf::Hashes)) => self.list().map(Value::Hashes),
            None => None,
        };
        let value = match list {
            Some(list) => list,
            None => Value::Raw(self.value()?),
        };
        Ok((name, value))
    }

    /// A list of ids; `None`, and nothing read, where there is none.
    fn list<T: Id>(&mut self) -> Option<Vec<T>> {
        let (list, end) = ids::read(self.text.as_bytes(), self.at).ok()?;
        self.at = end;
        Some(list)
    }

    fn name(&mut self) -> Result<Cow<'a, str>, JsonError> {
        if self.peek() != Some(b'"') {
            return Err(self.wrong("a field name is missing"));
        }
        let inside = &self.text[self.at + 1..];
        let stop = inside
            .bytes()
            .position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20));
        if let Some(end) = stop
            && inside.as_bytes()[end] == b'"'
        {
            self.at += end + 2;
            return Ok(Cow::Borrowed(&inside[..end]));
        }
        let name = serde_json::from_str::<String>(self.value()?);
        name.map(Cow::Owned)
            .map_err(|_| self.wrong("a field name is broken"))
    }

    /// Any value, checked.
    fn value(&mut self) -> Result<&'a str, JsonError> {
        let rest = &self.text[self.at..];
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
        match values.next() {
            Some(Ok(_)) => {
                let end = values.byte_offset();
                self.at += end;
                Ok(rest[..end].trim_ascii_start())
            }
            Some(Err(error)) if !error.is_eof() => Err(self.wrong("a value is broken")),
            _ => Err(self.wrong("it ends too early")),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Takes the next byte that is no space.
    fn next_byte(&mut self) -> Option<u8> {
        self.skip_space();
        let byte = self.peek()?;
        // What is compared with it is ASCII, so `at` stays on a boundary or parsing ends.
        self.at += 1;
        Some(byte)
    }

    fn skip_space(&mut self) {
        self.at = ids::skip_space(self.text.as_bytes(), self.at);
    }

    fn wrong(&self, what: &'static str) -> JsonError {
        JsonError::Syntax { what, at: self.at }
    }
}

#[cfg(test)]
mod tests;
