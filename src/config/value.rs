//! Turns the text of one setting into a value that cannot be wrong; knows nothing of where it stood.

use std::net::IpAddr;

use pointsman_service::SharedCacheConfig;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::table::Kind;

/// A port to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Port {
    Number(u16),
    /// One that the system picks.
    Auto,
}

/// The parsed value of a setting.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Bool(bool),
    Port(Port),
    Host(IpAddr),
    /// Counts, bytes and durations, in the unit of their kind.
    Count(u64),
    Number(f64),
    Text(String),
}

/// Parses `text`, which is trimmed and not empty; the error says what was expected.
pub(super) fn parse(kind: Kind, text: &str) -> Result<Value, String> {
    let value = match kind {
        Kind::Bool => boolean(text).map(Value::Bool),
        Kind::Port => port(text).map(Value::Port),
        Kind::Host => text.parse().ok().map(Value::Host),
        Kind::Count { min, max } | Kind::Seconds { min, max } | Kind::Millis { min, max } => text
            .parse()
            .ok()
            .filter(|count| (min..=max).contains(count))
            .map(Value::Count),
        Kind::Bytes { min } => bytes(text).filter(|bytes| *bytes >= min).map(Value::Count),
        Kind::Weight => number(text)
            .filter(|number| *number >= 0.0)
            .map(Value::Number),
        Kind::Credit => number(text)
            .filter(|number| (0.0..=1.0).contains(number))
            .map(Value::Number),
        Kind::Url => SharedCacheConfig::new(text)
            .is_ok()
            .then(|| Value::Text(text.to_owned())),
        Kind::Choice(words) => words
            .iter()
            .find(|word| word.eq_ignore_ascii_case(text))
            .map(|word| Value::Text((*word).to_owned())),
        Kind::Text | Kind::Path => Some(Value::Text(text.to_owned())),
        Kind::LogFilter => is_log_filter(text).then(|| Value::Text(text.to_owned())),
    };
    value.ok_or_else(|| expected(kind))
}

/// What a value of this kind looks like, for mistakes and for the documentation.
pub(super) fn expected(kind: Kind) -> String {
    match kind {
        Kind::Bool => "true or false (1, on, yes; 0, off, no)".to_owned(),
        Kind::Port => "a port from 0 to 65535, or auto".to_owned(),
        Kind::Host => "an IP address".to_owned(),
        Kind::Count { min, max } => range("a whole number", min, max),
        Kind::Bytes { min } => {
            format!("a number of bytes, at least {min}, such as 1048576 or 32MiB")
        }
        Kind::Seconds { min, max } => range("whole seconds", min, max),
        Kind::Millis { min, max } => range("whole milliseconds", min, max),
        Kind::Weight => "a finite number, 0 or more".to_owned(),
        Kind::Credit => "a finite number from 0 to 1".to_owned(),
        Kind::Url => "a URL such as http://10.0.0.9:7000/query".to_owned(),
        Kind::Choice(words) => format!("one of {}", words.join(", ")),
        Kind::Text => "text".to_owned(),
        Kind::Path => "a path".to_owned(),
        Kind::LogFilter => "a log filter such as info or warn,pointsman=debug".to_owned(),
    }
}

fn range(what: &str, min: u64, max: u64) -> String {
    if max == u64::MAX {
        format!("{what}, {min} or more")
    } else {
        format!("{what} from {min} to {max}")
    }
}

fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" => Some(true),
        "0" | "false" | "off" | "no" => Some(false),
        _ => None,
    }
}

fn port(text: &str) -> Option<Port> {
    if text.eq_ignore_ascii_case("auto") {
        return Some(Port::Auto);
    }
    text.parse().ok().map(Port::Number)
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

fn bytes(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = [("kib", 1 << 10), ("mib", 1 << 20), ("gib", 1 << 30)]
        .into_iter()
        .find_map(|(suffix, unit)| Some((lower.strip_suffix(suffix)?, unit)))
        .unwrap_or((&lower, 1));
    let count: u64 = digits.trim_end().parse().ok()?;
    count
        .checked_mul(unit)
        .filter(|bytes| usize::try_from(*bytes).is_ok())
}

/// A word alone must be a level: a misspelt one would otherwise name a module, and silence all others.
fn is_log_filter(text: &str) -> bool {
    let mut parts = text.split(',').map(str::trim);
    parts.all(|part| part.contains('=') || part.parse::<LevelFilter>().is_ok())
        && EnvFilter::try_new(text).is_ok()
}
