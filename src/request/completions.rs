//! The prompt of a completions request: text, or token ids.
//!
//! Of several prompts only the first is read; the others land on the same worker.

use minijinja::{Value, value::ValueKind};

use super::{PromptInput, RequestError};

pub(super) fn prompt(prompt: Option<Value>, bytes: usize) -> Result<PromptInput, RequestError> {
    // Engines also take embeddings in place of a prompt.
    let Some(prompt) = prompt else {
        let reason = "no prompt";
        return Ok(PromptInput::Opaque { reason, bytes });
    };
    read(&prompt).ok_or(RequestError::Field {
        param: "prompt",
        problem: "must be a string, a list of strings, a list of token ids, or a list of such lists",
    })
}

fn read(prompt: &Value) -> Option<PromptInput> {
    if let Some(text) = prompt.as_str() {
        return Some(PromptInput::Text(text.into()));
    }
    let first = match prompt.kind() {
        ValueKind::Seq => prompt.try_iter().ok()?.next()?,
        _ => return None,
    };
    if let Some(text) = first.as_str() {
        return Some(PromptInput::Text(text.into()));
    }
    match first.kind() {
        ValueKind::Seq => token_ids(&first),
        _ => token_ids(prompt),
    }
}

fn token_ids(list: &Value) -> Option<PromptInput> {
    let ids = list.try_iter().ok()?.map(|id| token_id(&id));
    Some(PromptInput::Tokens(ids.collect::<Option<_>>()?))
}

fn token_id(value: &Value) -> Option<u32> {
    if value.is_integer() {
        u32::try_from(value.as_i64()?).ok()
    } else {
        None
    }
}
