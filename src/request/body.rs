//! The top-level fields of a body that decide where a request goes.
//!
//! Everything else is passed over unread: sampling fields are the worker's business.

use std::{borrow::Cow, fmt};

use minijinja::{Value, value::ValueKind};
use pointsman_plugin::plugins::worker_selection::WorkerSelectionInputTrigger as Trigger;
use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};

use super::{
    Endpoint, Head, PromptInput, RequestError, RoutingRequest,
    completions::{Prompt, PromptSeed},
    hints,
    json::{Depth, Limits, Skip, ValueSeed},
};

/// `None`: the key is missing or null.
#[derive(Debug, Default)]
pub(super) struct Fields {
    pub(super) model: Option<Value>,
    pub(super) messages: Option<Value>,
    pub(super) prompt: Option<Prompt>,
    pub(super) stream: Option<Value>,
    pub(super) tools: Option<Value>,
    pub(super) tool_choice: Option<Value>,
    pub(super) documents: Option<Value>,
    pub(super) chat_template_kwargs: Option<Value>,
    pub(super) add_generation_prompt: Option<Value>,
    pub(super) continue_final_message: Option<Value>,
    pub(super) reasoning_effort: Option<Value>,
    pub(super) max_tokens: Option<Value>,
    pub(super) max_completion_tokens: Option<Value>,
    pub(super) cache_salt: Option<Value>,
    pub(super) nvext: Option<Value>,
    /// Not a key: set once the messages are read.
    pub(super) trigger: Option<Trigger>,
}

impl Fields {
    fn slot(&mut self, key: &str, endpoint: Endpoint) -> Option<&mut Option<Value>> {
        let chat = endpoint == Endpoint::ChatCompletions;
        Some(match key {
            "model" => &mut self.model,
            "stream" => &mut self.stream,
            "cache_salt" => &mut self.cache_salt,
            "nvext" => &mut self.nvext,
            "max_tokens" => &mut self.max_tokens,
            "max_completion_tokens" => &mut self.max_completion_tokens,
            "messages" if chat => &mut self.messages,
            "tools" if chat => &mut self.tools,
            "tool_choice" if chat => &mut self.tool_choice,
            "documents" if chat => &mut self.documents,
            "chat_template_kwargs" if chat => &mut self.chat_template_kwargs,
            "add_generation_prompt" if chat => &mut self.add_generation_prompt,
            "continue_final_message" if chat => &mut self.continue_final_message,
            "reasoning_effort" if chat => &mut self.reasoning_effort,
            _ => return None,
        })
    }

    /// The model must be a string where it decides something.
    pub(super) fn checked(self, endpoint: Endpoint) -> Result<Self, RequestError> {
        let named = self.model.as_ref().map(Value::kind);
        if endpoint != Endpoint::Other && !matches!(named, None | Some(ValueKind::String)) {
            return Err(RequestError::Field {
                param: "model",
                problem: "must be a string",
            });
        }
        Ok(self)
    }

    pub(super) fn into_request(self, head: &Head, prompt: PromptInput) -> RoutingRequest {
        let hints = hints::read(head, &self);
        let model = self.model.as_ref().and_then(Value::as_str);
        RoutingRequest {
            model: model.filter(|name| !name.is_empty()).map(str::to_owned),
            prompt,
            lora_name: None,
            cache_salt: hints::cache_salt(head, &self),
            hints,
            stream: self.stream.is_some_and(|stream| is_true(&stream)),
        }
    }
}

/// A JSON `true`, not merely something truthy.
pub(super) fn is_true(value: &Value) -> bool {
    value.kind() == ValueKind::Bool && value.is_true()
}

/// Yields `None` for a document that is no object.
pub(super) struct FieldsSeed<'a> {
    endpoint: Endpoint,
    depth: Depth<'a>,
}

impl<'a> FieldsSeed<'a> {
    pub(super) fn new(endpoint: Endpoint, limits: &'a Limits) -> Self {
        Self {
            endpoint,
            depth: Depth::new(limits),
        }
    }
}

impl<'de> DeserializeSeed<'de> for FieldsSeed<'_> {
    type Value = Option<Fields>;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FieldsSeed<'_> {
    type Value = Option<Fields>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let depth = self.depth.deeper()?;
        let mut fields = Fields::default();
        while let Some(key) = entries.next_key_seed(KeySeed)? {
            if key == "prompt" && self.endpoint == Endpoint::Completions {
                fields.prompt = entries.next_value_seed(PromptSeed(depth))?;
                continue;
            }
            match fields.slot(&key, self.endpoint) {
                // The last of equal keys wins, as it does in the worker's reader.
                Some(slot) => {
                    let value = entries.next_value_seed(ValueSeed(depth))?;
                    *slot = (!value.is_none()).then_some(value);
                }
                None => entries.next_value_seed(Skip(depth))?,
            }
        }
        Ok(Some(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Self::Value, A::Error> {
        Skip(self.depth).visit_seq(items)?;
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// A key, borrowed from the body unless it holds escapes.
struct KeySeed;

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(key.into())
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(key.to_owned().into())
    }
}
