//! A chat prompt through the model's template, as the worker's server does it.
//!
//! Never shows a template anything but the request and the model's own tokens.

use minijinja::{Value, value::ValueKind};

use super::{
    ContentFormat, Degraded, TokenizeConfig, TokenizeError,
    fit::Fit,
    template::{Picked, RenderError, Templates},
};
use crate::request::ChatPrompt;

/// Names that a client may not set for the template.
const RESERVED: [&str; 4] = [
    "messages",
    "chat_template",
    "tokenize",
    "continue_final_message",
];

pub(super) struct Renderer<'a> {
    pub(super) templates: &'a Templates,
    /// `bos_token` and its like.
    pub(super) special_tokens: &'a [(String, Value)],
    /// Stands in a rendered prompt where content that is not text begins. No client knows it.
    pub(super) mark: &'a str,
}

impl Renderer<'_> {
    pub(super) fn render(
        &self,
        chat: &ChatPrompt,
        config: &TokenizeConfig,
    ) -> Result<String, TokenizeError> {
        let keeps_tools = config.keep_refused_tools || !chat.tools_refused;
        let tools = chat.tools.clone().filter(|_| keeps_tools);
        let template = self.templates.pick(tools.is_some());
        let fit = self.fit(&template, config.content_format);
        let fitted = fit.messages(&chat.messages);
        let last = fitted.messages.last().cloned().unwrap_or_default();
        let context = self.context(chat, Value::from(fitted.messages), tools);
        let rendered = template.render(context, config.max_text_bytes);
        let mut text = rendered.map_err(|error| match error {
            RenderError::Refused(message) => TokenizeError::Refused { message },
            RenderError::TooLong => Degraded::TooLong.into(),
            RenderError::Failed(error) => {
                tracing::debug!(%error, "chat template failed");
                Degraded::Template.into()
            }
        })?;
        if fitted.marked {
            // A template may leave the mark out; then nobody knows where the prefix ends.
            let end = text.find(self.mark).ok_or(Degraded::NotText)?;
            text.truncate(end);
        } else if chat.continue_final_message {
            text.truncate(end_of_final(&text, &last).ok_or(Degraded::Template)?);
        }
        Ok(text)
    }

    fn fit(&self, template: &Picked<'_>, format: ContentFormat) -> Fit<'_> {
        let parts = match format {
            ContentFormat::Auto => template.loops_over_content(),
            ContentFormat::Text => false,
            ContentFormat::Parts => true,
        };
        Fit {
            format: if parts {
                ContentFormat::Parts
            } else {
                ContentFormat::Text
            },
            // A template that asks for the kind of a content can take it as it came.
            wrap_text: parts && !template.takes_text(),
            mark: self.mark,
        }
    }

    fn context(&self, chat: &ChatPrompt, messages: Value, tools: Option<Value>) -> Value {
        let mut names: Vec<(String, Value)> = self.special_tokens.to_vec();
        let mut set = |name: &str, value: Value| names.push((name.to_owned(), value));
        set("tools", Value::from(tools));
        set("documents", Value::from(chat.documents.clone()));
        set("add_generation_prompt", chat.add_generation_prompt.into());
        for (name, value) in &chat.arguments {
            if !RESERVED.contains(&name.as_str()) {
                set(name, value.clone());
            }
        }
        set("messages", messages);
        Value::from_pairs(names)
    }
}

/// Where the final message's own text ends: what the template wrote behind it belongs to a turn
/// that is closed, and this one is to be continued.
fn end_of_final(text: &str, last: &Value) -> Option<usize> {
    let mut content = last.get_attr("content").ok()?;
    if content.kind() == ValueKind::Seq {
        content = content.try_iter().ok()?.last()?.get_attr("text").ok()?;
    }
    let content = content.as_str()?;
    let start = text.rfind(content.trim())?;
    let whole = content.trim_start();
    let kept = if text[start..].starts_with(whole) {
        whole.len()
    } else {
        content.trim().len()
    };
    Some(start + kept)
}
