//! A client's messages, fitted to what the worker's server hands to its template.
//!
//! Never changes the words of a message: only the shape around them.

use minijinja::{Value, value::ValueKind};

use super::ContentFormat;
use crate::request::parse_value;

/// Messages as a template wants them.
#[derive(Debug)]
pub(super) struct Fitted {
    pub(super) messages: Vec<Value>,
    /// Whether a mark stands where content that is not text begins.
    pub(super) marked: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Fit<'a> {
    /// Content as a list of parts (never [`ContentFormat::Auto`]).
    pub(super) format: ContentFormat,
    /// Whether content that came as text becomes a list too.
    pub(super) wrap_text: bool,
    pub(super) mark: &'a str,
}

impl Fit<'_> {
    pub(super) fn messages(self, messages: &[Value]) -> Fitted {
        let mut marked = false;
        let messages = messages
            .iter()
            .map(|message| self.message(message, &mut marked));
        Fitted {
            messages: messages.collect(),
            marked,
        }
    }

    fn message(self, message: &Value, marked: &mut bool) -> Value {
        let attribute = |name| message.get_attr(name).ok();
        let content = attribute("content").unwrap_or_default();
        let is_text = content.kind() == ValueKind::String && !self.wrap_text;
        let calls_tools = attribute("tool_calls").is_some_and(|calls| !calls.is_undefined());
        let reasons = attribute("reasoning").is_some_and(|reasoning| !reasoning.is_undefined());
        if is_text && !calls_tools && !reasons && !has_null(message) {
            return message.clone();
        }
        let mut fields = Vec::new();
        let mut has_content = false;
        let mut reasoning = (None, false);
        for key in message.try_iter().into_iter().flatten() {
            let value = message.get_item(&key).unwrap_or_default();
            let fitted = match key.as_str() {
                Some("content") => {
                    has_content = true;
                    self.content(&value, marked)
                }
                // The worker's server leaves out what is null.
                _ if value.is_none() => continue,
                Some("tool_calls") => tool_calls(&value),
                Some("reasoning") => {
                    reasoning.0 = Some(value.clone());
                    value
                }
                Some("reasoning_content") => {
                    reasoning.1 = true;
                    value
                }
                _ => value,
            };
            fields.push((key, fitted));
        }
        if !has_content {
            fields.push((
                Value::from("content"),
                self.content(&Value::from(()), marked),
            ));
        }
        // One field under its newer and its older name.
        if let (Some(text), false) = reasoning {
            fields.push((Value::from("reasoning_content"), text));
        }
        Value::from_pairs(fields)
    }

    fn content(self, content: &Value, marked: &mut bool) -> Value {
        let wants_parts = self.format == ContentFormat::Parts;
        match content.kind() {
            ValueKind::None | ValueKind::Undefined if self.wrap_text => {
                Value::from(Vec::<Value>::new())
            }
            ValueKind::None | ValueKind::Undefined => Value::from(""),
            ValueKind::String if self.wrap_text => Value::from(vec![text_part(content.clone())]),
            ValueKind::String => content.clone(),
            ValueKind::Seq if wants_parts => self.parts(content, marked),
            ValueKind::Seq => self.joined(content, marked),
            _ => self.unknown(wants_parts, marked),
        }
    }

    fn parts(self, content: &Value, marked: &mut bool) -> Value {
        let mut parts = Vec::new();
        for part in content.try_iter().into_iter().flatten() {
            if let Some(text) = text_of(&part) {
                parts.push(text_part(text));
            } else {
                *marked = true;
                parts.push(text_part(Value::from(self.mark)));
                parts.push(part);
            }
        }
        Value::from(parts)
    }

    /// Worker servers put placeholders for what is not text before the text of a message.
    fn joined(self, content: &Value, marked: &mut bool) -> Value {
        let mut joined = String::new();
        let parts = content.try_iter().into_iter().flatten();
        for (index, part) in parts.enumerate() {
            let Some(text) = text_of(&part) else {
                return self.unknown(false, marked);
            };
            if index > 0 {
                joined.push('\n');
            }
            joined.push_str(text.as_str().unwrap_or_default());
        }
        Value::from(joined)
    }

    fn unknown(self, wants_parts: bool, marked: &mut bool) -> Value {
        *marked = true;
        let mark = Value::from(self.mark);
        if wants_parts {
            Value::from(vec![text_part(mark)])
        } else {
            mark
        }
    }
}

fn has_null(message: &Value) -> bool {
    let mut keys = message.try_iter().into_iter().flatten();
    keys.any(|key| message.get_item(&key).is_ok_and(|value| value.is_none()))
}

fn text_part(text: Value) -> Value {
    Value::from_pairs([("type", Value::from("text")), ("text", text)])
}

/// The text of a part, if it is one of text.
fn text_of(part: &Value) -> Option<Value> {
    if part.kind() == ValueKind::String {
        return Some(part.clone());
    }
    let kind = part.get_attr("type").ok()?;
    let key = match kind.as_str()? {
        "text" | "input_text" | "output_text" => "text",
        "refusal" => "refusal",
        "thinking" => "thinking",
        _ => return None,
    };
    let text = part.get_attr(key).ok()?;
    (text.kind() == ValueKind::String).then_some(text)
}

/// Calls whose arguments are JSON in a string get them as the value they stand for.
fn tool_calls(calls: &Value) -> Value {
    if calls.kind() != ValueKind::Seq {
        return calls.clone();
    }
    let calls = calls.try_iter().into_iter().flatten();
    Value::from(calls.map(|call| tool_call(&call)).collect::<Vec<_>>())
}

fn tool_call(call: &Value) -> Value {
    let function = match call.get_attr("function") {
        Ok(function) if function.kind() == ValueKind::Map => function,
        _ => return call.clone(),
    };
    let arguments = function.get_attr("arguments").unwrap_or_default();
    let decoded = match arguments.as_str() {
        Some(text) if !text.is_empty() => parse_value(text).unwrap_or_else(|| arguments.clone()),
        None if arguments.is_true() => return call.clone(),
        _ => Value::from_pairs(Vec::<(Value, Value)>::new()),
    };
    replaced(call, "function", replaced(&function, "arguments", decoded))
}

/// A copy of a map with one value set, in its place where it has one.
fn replaced(map: &Value, key: &str, value: Value) -> Value {
    let keys = map.try_iter().into_iter().flatten();
    let pairs = keys.map(|key| {
        let value = map.get_item(&key).unwrap_or_default();
        (key, value)
    });
    Value::from_pairs(pairs.chain([(Value::from(key), value)]))
}
