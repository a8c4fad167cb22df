//! Scheduling hints, from headers and from the body's `nvext`.
//!
//! A header outranks the body: a gateway can set it and a client behind it cannot. A hint that
//! makes no sense is as good as none; it never fails a request.

use minijinja::Value;
use pointsman_plugin::plugins::worker_selection::{
    SessionContext, WorkerSelectionInputTrigger as Trigger,
};

use super::{Head, Hints, body::Fields};

const TENANT: &str = "x-tenant-id";
const POLICY_CLASS: &str = "x-dynamo-meta-policy-class";
const PRIORITY: &str = "x-dynamo-request-priority";
const STRICT_PRIORITY: &str = "x-dynamo-request-strict-priority";
const SESSION: &str = "x-dynamo-session-id";
const PARENT_SESSION: &str = "x-dynamo-parent-session-id";
const SESSION_FINAL: &str = "x-dynamo-session-final";

pub(super) fn read(head: &Head, fields: &Fields) -> Hints {
    let nested = attribute(fields.nvext.as_ref(), "agent_hints");
    let hint = |name| attribute(nested.as_ref(), name);
    let output_limit = fields.max_completion_tokens.as_ref();
    let output_limit = output_limit.or(fields.max_tokens.as_ref());
    Hints {
        priority_jump: header(head, PRIORITY)
            .and_then(|text| text.parse().ok())
            .or_else(|| hint("priority").as_ref().and_then(number))
            .filter(|jump: &f64| jump.is_finite())
            .unwrap_or(0.0),
        strict_priority: header(head, STRICT_PRIORITY)
            .and_then(|text| text.parse().ok())
            .or_else(|| hint("strict_priority").as_ref().and_then(count))
            .unwrap_or(0),
        expected_output_tokens: hint("osl").as_ref().and_then(count),
        max_output_tokens: output_limit.and_then(count),
        session: session(head, fields.trigger),
        policy_class: header(head, POLICY_CLASS).map(str::to_owned),
    }
}

/// Separates the caches of tenants. Empty counts as absent.
pub(super) fn cache_salt(head: &Head, fields: &Fields) -> Option<String> {
    let text = |value: Option<Value>| {
        let text = value.as_ref().and_then(Value::as_str)?;
        (!text.is_empty()).then(|| text.to_owned())
    };
    header(head, TENANT)
        .map(str::to_owned)
        .or_else(|| text(attribute(fields.nvext.as_ref(), "cache_salt")))
        .or_else(|| text(fields.cache_salt.clone()))
}

fn session(head: &Head, trigger: Option<Trigger>) -> Option<SessionContext> {
    let id = header(head, SESSION)?;
    let parent = header(head, PARENT_SESSION).map(str::to_owned);
    let last = header(head, SESSION_FINAL).and_then(flag);
    Some(SessionContext::new(id.to_owned(), parent, last, trigger))
}

fn header<'a>(head: &'a Head, name: &str) -> Option<&'a str> {
    let value = head.header(name)?.trim();
    (!value.is_empty()).then_some(value)
}

fn flag(text: &str) -> Option<bool> {
    let is = |word: &str| text.eq_ignore_ascii_case(word);
    if is("true") || is("1") {
        return Some(true);
    }
    (is("false") || is("0")).then_some(false)
}

fn attribute(value: Option<&Value>, name: &str) -> Option<Value> {
    let found = value?.get_attr(name).ok()?;
    (!found.is_undefined() && !found.is_none()).then_some(found)
}

fn number(value: &Value) -> Option<f64> {
    if value.is_number() {
        f64::try_from(value.clone()).ok()
    } else {
        None
    }
}

fn count(value: &Value) -> Option<u32> {
    if value.is_integer() {
        u32::try_from(value.as_i64()?).ok()
    } else {
        None
    }
}
