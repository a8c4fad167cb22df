//! The prompt of a completions request: text, or token ids.
//!
//! Of several prompts only the first is read; the others land on the same worker.

use std::{fmt, sync::Arc};

use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};

use super::{
    PromptInput, RequestError,
    json::{Depth, Skip},
};

#[derive(Debug)]
pub(super) enum Prompt {
    Text(Arc<str>),
    Tokens(Vec<u32>),
    /// Neither text nor token ids.
    Unusable,
}

pub(super) fn input(prompt: Option<Prompt>, bytes: usize) -> Result<PromptInput, RequestError> {
    match prompt {
        // Engines also take embeddings in place of a prompt.
        None => Ok(PromptInput::Opaque {
            reason: "no prompt",
            bytes,
        }),
        Some(Prompt::Text(text)) => Ok(PromptInput::Text(text)),
        Some(Prompt::Tokens(ids)) => Ok(PromptInput::Tokens(ids.into())),
        Some(Prompt::Unusable) => Err(RequestError::Field {
            param: "prompt",
            problem: "must be a string, a list of strings, a list of token ids, or a list of such \
                lists",
        }),
    }
}

/// Reads what stands at `prompt`; `None` for a null.
#[derive(Clone, Copy)]
pub(super) struct PromptSeed<'a>(pub(super) Depth<'a>);

impl<'de> DeserializeSeed<'de> for PromptSeed<'_> {
    type Value = Option<Prompt>;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        Ok(match ItemSeed(self.0).deserialize(reader)? {
            Item::Null => None,
            Item::Text(text) => Some(Prompt::Text(text)),
            Item::List(ids) => Some(Prompt::Tokens(ids)),
            Item::Id(_) | Item::Unusable => Some(Prompt::Unusable),
        })
    }
}

/// The prompt or an item of it. A list of texts, or of lists, counts as its first item.
enum Item {
    Null,
    Text(Arc<str>),
    Id(u32),
    List(Vec<u32>),
    Unusable,
}

#[derive(Clone, Copy)]
struct ItemSeed<'a>(Depth<'a>);

impl<'de> DeserializeSeed<'de> for ItemSeed<'_> {
    type Value = Item;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Item, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ItemSeed<'_> {
    type Value = Item;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a prompt")
    }

    fn visit_unit<E>(self) -> Result<Item, E> {
        Ok(Item::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Item, E> {
        Ok(Item::Unusable)
    }

    fn visit_i64<E>(self, value: i64) -> Result<Item, E> {
        Ok(u32::try_from(value).map_or(Item::Unusable, Item::Id))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Item, E> {
        Ok(u32::try_from(value).map_or(Item::Unusable, Item::Id))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Item, E> {
        Ok(Item::Unusable)
    }

    fn visit_str<E>(self, text: &str) -> Result<Item, E> {
        Ok(Item::Text(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Item, A::Error> {
        let depth = self.0.deeper()?;
        let first = match items.next_element_seed(ItemSeed(depth))? {
            Some(Item::Id(id)) => id,
            Some(first @ (Item::Text(_) | Item::List(_))) => {
                while items.next_element_seed(Skip(depth))?.is_some() {}
                return Ok(first);
            }
            Some(Item::Null | Item::Unusable) | None => {
                while items.next_element_seed(Skip(depth))?.is_some() {}
                return Ok(Item::Unusable);
            }
        };
        let mut ids = vec![first];
        let mut usable = true;
        while let Some(item) = items.next_element_seed(ItemSeed(depth))? {
            match item {
                Item::Id(id) => ids.push(id),
                _ => usable = false,
            }
        }
        Ok(if usable {
            Item::List(ids)
        } else {
            Item::Unusable
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<Item, A::Error> {
        Skip(self.0).visit_map(entries)?;
        Ok(Item::Unusable)
    }
}
