//! The prompt of a chat request, as the client wrote it.
//!
//! Holds what a template will see before it is fitted to that template; renders nothing.

use minijinja::{Value, value::ValueKind};
use pointsman_plugin::plugins::worker_selection::WorkerSelectionInputTrigger as Trigger;

use super::{
    RequestError,
    body::{Fields, is_true},
};

/// The parts of a chat body that a template reads. Each message is a map.
#[derive(Clone, Debug)]
pub struct ChatPrompt {
    pub(crate) messages: Vec<Value>,
    /// `None` also for an empty list: templates ask whether tools were given.
    pub(crate) tools: Option<Value>,
    pub(crate) documents: Option<Value>,
    /// Further names for the template, set by the client.
    pub(crate) arguments: Vec<(String, Value)>,
    pub(crate) add_generation_prompt: bool,
    pub(crate) continue_final_message: bool,
    pub(crate) tools_refused: bool,
    /// About how much text there is to render.
    pub(crate) bytes: usize,
}

pub(super) fn prompt(fields: &mut Fields, body_bytes: usize) -> Result<ChatPrompt, RequestError> {
    let messages = messages(fields.messages.take())?;
    let continues = fields.continue_final_message.as_ref().is_some_and(is_true);
    let generates = fields.add_generation_prompt.as_ref().map(is_true);
    let choice = fields.tool_choice.take();
    fields.trigger = messages.last().map(trigger);
    let tools = fields.tools.take().filter(is_filled_list);
    let documents = fields.documents.take().filter(is_filled_list);
    Ok(ChatPrompt {
        bytes: match (&tools, &documents) {
            (None, None) => messages.iter().map(text_bytes).sum(),
            _ => body_bytes,
        },
        messages,
        tools,
        documents,
        arguments: arguments(fields),
        // A final message that is to be continued must not be followed by a new turn.
        add_generation_prompt: generates.unwrap_or(true) && !continues,
        continue_final_message: continues,
        tools_refused: choice.is_some_and(|choice| choice.as_str() == Some("none")),
    })
}

fn messages(messages: Option<Value>) -> Result<Vec<Value>, RequestError> {
    let fault = |problem| RequestError::Field {
        param: "messages",
        problem,
    };
    let messages = messages.ok_or_else(|| fault("is required"))?;
    if messages.kind() != ValueKind::Seq {
        return Err(fault("must be a list"));
    }
    let items = messages.try_iter();
    let items: Vec<_> = items.map_err(|_| fault("must be a list"))?.collect();
    if items.is_empty() {
        return Err(fault("must not be empty"));
    }
    if items.iter().all(|item| item.kind() == ValueKind::Map) {
        Ok(items)
    } else {
        Err(fault("must hold objects only"))
    }
}

/// `chat_template_kwargs`, and what engines hand on under its own name.
fn arguments(fields: &mut Fields) -> Vec<(String, Value)> {
    let mut arguments = Vec::new();
    if let Some(effort) = fields.reasoning_effort.take() {
        arguments.push(("reasoning_effort".to_owned(), effort));
    }
    let Some(given) = fields.chat_template_kwargs.take() else {
        return arguments;
    };
    if given.kind() != ValueKind::Map {
        return arguments;
    }
    for key in given.try_iter().into_iter().flatten() {
        if let (Some(name), Ok(value)) = (key.as_str(), given.get_item(&key)) {
            arguments.retain(|(known, _)| known != name);
            arguments.push((name.to_owned(), value));
        }
    }
    arguments
}

/// What made the client send this request: its last message tells.
fn trigger(message: &Value) -> Trigger {
    let role = message.get_attr("role").ok();
    match role.as_ref().and_then(Value::as_str) {
        Some("user") => Trigger::UserMessage,
        Some("tool" | "function") => Trigger::ToolResult,
        _ => Trigger::Other,
    }
}

fn is_filled_list(value: &Value) -> bool {
    value.kind() == ValueKind::Seq && value.len().is_some_and(|length| length > 0)
}

/// About how much text a message brings into a prompt.
fn text_bytes(message: &Value) -> usize {
    let Ok(content) = message.get_attr("content") else {
        return 0;
    };
    if let Some(text) = content.as_str() {
        return text.len();
    }
    let parts = content.try_iter().into_iter().flatten();
    parts
        .filter_map(|part| part.get_attr("text").ok()?.as_str().map(str::len))
        .sum()
}
