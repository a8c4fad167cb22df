//! A model's chat templates: found beside its tokenizer, compiled once, rendered many times.
//!
//! Behaves as the worker's Jinja2 does, and never lets a template write without a bound.

use std::{error::Error as _, fs, io, path::Path};

use minijinja::{
    Environment, Error, ErrorKind, UndefinedBehavior, Value, syntax::SyntaxConfig, value::Rest,
};
use serde_json::Value as Json;

use super::{LoadError, python};

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// Characters of a template's refusal that a client is shown.
const REFUSAL_CHARS: usize = 300;

#[derive(Debug)]
pub(super) struct Templates {
    environment: Environment<'static>,
    /// Names, in the order in which they were found.
    found: Vec<Found>,
}

#[derive(Debug)]
struct Found {
    name: String,
    loops_over_content: bool,
    takes_text: bool,
}

/// One template, picked for one request.
pub(super) struct Picked<'a> {
    templates: &'a Templates,
    found: &'a Found,
}

#[derive(Debug)]
pub(super) enum RenderError {
    /// The template called `raise_exception`.
    Refused(String),
    TooLong,
    Failed(Error),
}

/// Carries the text of `raise_exception` through the engine.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

impl Templates {
    /// Reads `chat_template.jinja`, else `chat_template.json`, else the tokenizer's
    /// configuration. `None`: there is no template anywhere.
    pub(super) fn load(dir: &Path, config: &Json) -> Result<Option<Self>, LoadError> {
        let sources = sources(dir, config)?;
        let mut environment = environment();
        let mut found = Vec::new();
        for (name, source) in sources {
            let source = prepared(&source);
            found.push(Found {
                name: name.clone(),
                loops_over_content: loops_over_content(&source),
                takes_text: source.contains("is string") || source.contains("is not string"),
            });
            environment
                .add_template_owned(name.clone(), source)
                .map_err(|source| LoadError::Template { name, source })?;
        }
        Ok((!found.is_empty()).then_some(Self { environment, found }))
    }

    /// The one named `tool_use` where tools are given, else the one named `default`.
    pub(super) fn pick(&self, with_tools: bool) -> Picked<'_> {
        let named = |name| self.found.iter().find(|found| found.name == name);
        let tool_use = if with_tools { named(TOOL_USE) } else { None };
        let found = tool_use
            .or_else(|| named(DEFAULT))
            .unwrap_or(&self.found[0]);
        Picked {
            templates: self,
            found,
        }
    }

    /// The sources, as compiled.
    pub(super) fn sources(&self) -> impl Iterator<Item = String> {
        let templates = self.environment.templates();
        templates.map(|(_, template)| template.source().to_owned())
    }
}

impl Picked<'_> {
    pub(super) fn loops_over_content(&self) -> bool {
        self.found.loops_over_content
    }

    /// Whether it can tell text from a list of parts.
    pub(super) fn takes_text(&self) -> bool {
        self.found.takes_text
    }

    pub(super) fn render(&self, context: Value, max_bytes: usize) -> Result<String, RenderError> {
        let environment = &self.templates.environment;
        let template = environment.get_template(&self.found.name);
        let template = template.map_err(RenderError::Failed)?;
        let mut out = Bounded {
            text: Vec::new(),
            left: max_bytes,
            full: false,
        };
        match template.render_captured_to(context, &mut out) {
            Ok(_) => Ok(String::from_utf8(out.text).expect("a template writes whole strings")),
            Err(_) if out.full => Err(RenderError::TooLong),
            Err(error) => {
                Err(refusal(&error).map_or(RenderError::Failed(error), RenderError::Refused))
            }
        }
    }
}

/// Refuses to grow past a size.
struct Bounded {
    text: Vec<u8>,
    left: usize,
    full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(left) = self.left.checked_sub(bytes.len()) {
            self.left = left;
            self.text.extend_from_slice(bytes);
            Ok(bytes.len())
        } else {
            self.full = true;
            Err(io::ErrorKind::FileTooLarge.into())
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn refusal(error: &Error) -> Option<String> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(Refusal(message)) = error.downcast_ref() {
            return Some(message.chars().take(REFUSAL_CHARS).collect());
        }
        cause = error.source();
    }
    None
}

fn sources(dir: &Path, config: &Json) -> Result<Vec<(String, String)>, LoadError> {
    if let Some(source) = super::local::read_if_there(&dir.join("chat_template.jinja"))? {
        let mut sources = vec![(DEFAULT.to_owned(), source)];
        sources.extend(additional(&dir.join("additional_chat_templates")));
        return Ok(sources);
    }
    if let Some(file) = super::local::read_json_if_there(&dir.join("chat_template.json"))? {
        let sources = declared(&file["chat_template"]);
        if !sources.is_empty() {
            return Ok(sources);
        }
    }
    Ok(declared(&config["chat_template"]))
}

/// Named templates in files of their own, as newer models ship them.
fn additional(dir: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut sources: Vec<_> = entries
        .filter_map(|entry| {
            let path = entry.path();
            let name = path
                .file_name()?
                .to_str()?
                .strip_suffix(".jinja")?
                .to_owned();
            // A file that cannot be read is as good as missing: the default template serves.
            Some((name, fs::read_to_string(path).ok()?))
        })
        .collect();
    sources.sort();
    sources
}

/// A template, or a list of named ones.
fn declared(value: &Json) -> Vec<(String, String)> {
    if let Some(source) = value.as_str() {
        return vec![(DEFAULT.to_owned(), source.to_owned())];
    }
    let named = value.as_array().into_iter().flatten();
    named
        .filter_map(|entry| {
            let text = |key| entry.get(key)?.as_str().map(str::to_owned);
            Some((text("name")?, text("template")?))
        })
        .collect()
}

/// Instructions that one rendering may take: some hundred times what the longest conversations need.
const FUEL: u64 = 10_000_000;

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax());
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_formatter(|out, _, value| python::write(out, value));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_recursion_limit(200);
    environment.set_fuel(Some(FUEL));
    environment.add_filter("tojson", python::tojson);
    environment.add_test("sequence", python::is_sequence);
    environment.add_test("iterable", python::is_iterable);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", python::strftime_now);
    environment
}

fn syntax() -> SyntaxConfig {
    let mut builder = SyntaxConfig::builder();
    let builder = builder.trim_blocks(true).lstrip_blocks(true);
    builder.build().expect("the usual delimiters are valid")
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the engine hands over what it parsed"
)]
fn raise_exception(message: Rest<Value>) -> Result<Value, Error> {
    let message = message.first().map(ToString::to_string).unwrap_or_default();
    let error = Error::new(
        ErrorKind::InvalidOperation,
        "the template raised an exception",
    );
    Err(error.with_source(Refusal(message)))
}

/// The source as Jinja2 would read it, without the tag that only training needs.
fn prepared(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(start) = rest.find("{%") {
        out.push_str(&rest[..start]);
        let tag = &rest[start..];
        let Some(length) = tag.find("%}").map(|end| end + 2) else {
            rest = tag;
            break;
        };
        let inner = &tag[2..length - 2];
        // A scope of its own, as the tag has, and the same whitespace control.
        match inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+') {
            "generation" => out.push_str(&tag[..length].replace("generation", "with")),
            "endgeneration" => out.push_str(&tag[..length].replace("endgeneration", "endwith")),
            _ => out.push_str(&tag[..length]),
        }
        rest = &tag[length..];
    }
    out.push_str(rest);
    out
}

/// Whether the template walks a message's content as a list and cannot take it as text: it has
/// a loop over an attribute `content`, or over a name that was set to one.
fn loops_over_content(source: &str) -> bool {
    let statements: Vec<&str> = source
        .split("{%")
        .skip(1)
        .filter_map(|tag| tag.split("%}").next())
        .map(|tag| tag.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+'))
        .collect();
    let mut names = Vec::new();
    for statement in &statements {
        if let Some((name, value)) = assignment(statement)
            && reads_content(value, &[])
        {
            names.push(name);
        }
    }
    statements.iter().any(|statement| {
        let Some(clause) = statement.strip_prefix("for ") else {
            return false;
        };
        let walked = clause.split_once(" in ").map(|(_, walked)| walked);
        walked.is_some_and(|walked| reads_content(walked, &names))
    })
}

fn assignment(statement: &str) -> Option<(&str, &str)> {
    let (name, value) = statement.strip_prefix("set ")?.split_once('=')?;
    Some((name.trim(), value.trim()))
}

/// An expression that is a content, but for filters behind it.
fn reads_content(expression: &str, names: &[&str]) -> bool {
    let value = expression.split(['|', ' ']).next().unwrap_or_default();
    let is_content = [
        ".content",
        "['content']",
        "[\"content\"]",
        ".get('content')",
    ]
    .iter()
    .any(|suffix| value.ends_with(suffix));
    is_content || names.contains(&value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_become_scopes_with_the_same_whitespace_control() {
        let source = "a {%- generation -%} b {% endgeneration %} c {% set generation = 1 %}";
        let expected = "a {%- with -%} b {% endwith %} c {% set generation = 1 %}";
        assert_eq!(prepared(source), expected);
    }

    #[test]
    fn line_ends_are_unified() {
        assert_eq!(prepared("a\r\nb\rc\n"), "a\nb\nc\n");
    }

    #[test]
    fn a_loop_over_content_is_seen() {
        let check = |source, expected| assert_eq!(loops_over_content(source), expected, "{source}");
        check("{% for p in message['content'] %}{% endfor %}", true);
        check("{%- for p in m.content | list -%}{% endfor %}", true);
        check("{% set c = m.content %}{% for p in c %}{% endfor %}", true);
        check("{% for m in messages %}{{ m.content }}{% endfor %}", false);
        check(
            "{% set c = m.content %}{{ c }}{% for p in m.tool_calls %}{% endfor %}",
            false,
        );
        check(
            "{% set c = m.content.split('x')[0] %}{% for p in c %}{% endfor %}",
            false,
        );
    }
}
