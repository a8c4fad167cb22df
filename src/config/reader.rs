//! Collects the settings from environment and file, and every mistake in them; gives none a meaning.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::settings_file;
use super::spelling::nearest;
use super::table::{self, Kind, Setting, Status};
use super::value::{self, Port, Value};

const OURS: &str = "POINTSMAN_";
/// Beginnings of names that the project's tests and tools read.
const OTHER_PROGRAMS: [&str; 5] = [
    "POINTSMAN_BIN",
    "POINTSMAN_LAB_",
    "POINTSMAN_TEST_",
    "POINTSMAN_CACHE",
    "POINTSMAN_ENVOY",
];
const SHOWN_VALUE_CHARS: usize = 120;

/// One mistake in the settings: where, with which value, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) struct SettingError {
    /// The variable, or the key with its file.
    pub(crate) setting: String,
    pub(crate) value: Option<String>,
    pub(crate) problem: String,
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) if value.chars().count() > SHOWN_VALUE_CHARS => {
                let shown: String = value.chars().take(SHOWN_VALUE_CHARS).collect();
                write!(f, "{} = {shown:?}…: {}", self.setting, self.problem)
            }
            Some(value) => write!(f, "{} = {value:?}: {}", self.setting, self.problem),
            None => write!(f, "{}: {}", self.setting, self.problem),
        }
    }
}

/// What the process was started with: one reader of variables, and the names that are set.
pub(crate) struct Environment<'a> {
    pub(crate) read: &'a dyn Fn(&str) -> Option<String>,
    pub(crate) names: Vec<String>,
}

impl fmt::Debug for Environment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

/// A value that was set, and the name under which.
pub(super) struct Found {
    pub(super) setting: String,
    pub(super) text: String,
}

/// The parsed settings, by variable name.
#[derive(Default)]
pub(super) struct Values {
    parsed: HashMap<&'static str, Value>,
    origins: HashMap<&'static str, String>,
    pub(super) ignored: Vec<String>,
    pub(super) mistakes: Vec<SettingError>,
}

impl Values {
    /// Reads everything there is; what is wrong ends up in `mistakes` and keeps its default.
    pub(super) fn collect(environment: &Environment<'_>) -> Self {
        let mut values = Self::default();
        values.refuse_unknown_names(environment);
        let path = variable("POINTSMAN_CONFIG", environment);
        let mut file = settings_file::read(path, &mut values.mistakes);
        for setting in table::settings() {
            let from_file = setting.key.and_then(|key| file.remove(key));
            let found = from_environment(setting, environment);
            match (found, from_file) {
                (Some(found), overruled) => {
                    // The file's value is checked even where a variable wins over it.
                    if let Some(overruled) = &overruled {
                        values.parse(setting, overruled);
                    }
                    values.take(setting, &found);
                }
                (None, Some(found)) => values.take(setting, &found),
                (None, None) => values.take_default(setting),
            }
        }
        values
    }

    pub(super) fn refuse(&mut self, variable: &'static str, problem: impl Into<String>) {
        let value = match self.get(variable) {
            Some(Value::Text(text)) => Some(text.clone()),
            _ => None,
        };
        self.mistakes.push(SettingError {
            setting: self.origin(variable),
            value,
            problem: problem.into(),
        });
    }

    /// Where the value came from: a variable, or a key of the settings file; empty for a default.
    pub(super) fn origin(&self, variable: &'static str) -> String {
        self.origins
            .get(variable)
            .cloned()
            .unwrap_or_else(|| variable.to_owned())
    }

    fn get(&self, variable: &'static str) -> Option<&Value> {
        debug_assert!(
            table::settings().any(|setting| setting.variable == variable),
            "{variable} is not in the table"
        );
        self.parsed.get(variable)
    }

    pub(super) fn is_set(&self, variable: &'static str) -> bool {
        self.origins.contains_key(variable)
    }

    pub(super) fn bool(&self, variable: &'static str) -> bool {
        matches!(self.get(variable), Some(Value::Bool(true)))
    }

    pub(super) fn port(&self, variable: &'static str) -> Port {
        match self.get(variable) {
            Some(Value::Port(port)) => *port,
            _ => Port::Auto,
        }
    }

    pub(super) fn host(&self, variable: &'static str) -> Option<IpAddr> {
        match self.get(variable) {
            Some(Value::Host(host)) => Some(*host),
            _ => None,
        }
    }

    pub(super) fn count(&self, variable: &'static str) -> Option<u64> {
        match self.get(variable) {
            Some(Value::Count(count)) => Some(*count),
            _ => None,
        }
    }

    /// A count as `usize`; one that does not fit is the largest there is.
    pub(super) fn size(&self, variable: &'static str) -> usize {
        usize::try_from(self.count(variable).unwrap_or_default()).unwrap_or(usize::MAX)
    }

    pub(super) fn seconds(&self, variable: &'static str) -> Duration {
        Duration::from_secs(self.count(variable).unwrap_or_default())
    }

    pub(super) fn millis(&self, variable: &'static str) -> Duration {
        Duration::from_millis(self.count(variable).unwrap_or_default())
    }

    pub(super) fn number(&self, variable: &'static str) -> f64 {
        match self.get(variable) {
            Some(Value::Number(number)) => *number,
            _ => 0.0,
        }
    }

    pub(super) fn text(&self, variable: &'static str) -> Option<String> {
        match self.get(variable) {
            Some(Value::Text(text)) => Some(text.clone()),
            _ => None,
        }
    }

    pub(super) fn path(&self, variable: &'static str) -> Option<PathBuf> {
        self.text(variable).map(PathBuf::from)
    }

    fn parse(&mut self, setting: &Setting, found: &Found) -> Option<Value> {
        let mistake = |problem: String| SettingError {
            setting: found.setting.clone(),
            value: Some(found.text.clone()),
            problem,
        };
        match value::parse(setting.kind, &found.text) {
            Ok(value) => Some(value),
            Err(expected) => {
                self.mistakes
                    .push(mistake(explain(setting.kind, &found.text, &expected)));
                None
            }
        }
    }

    fn take(&mut self, setting: &'static Setting, found: &Found) {
        if setting.status == Status::Ignored {
            self.ignored.push(found.setting.clone());
            return;
        }
        if let Status::Replaced(other) = setting.status {
            self.mistakes.push(SettingError {
                setting: found.setting.clone(),
                value: Some(found.text.clone()),
                problem: format!("no longer read; use {other}"),
            });
            return;
        }
        let Some(value) = self.parse(setting, found) else {
            return self.take_default(setting);
        };
        let default = value::parse(setting.kind, setting.default).ok();
        let why = match setting.status {
            Status::NotYet => Some("not supported yet"),
            Status::OnlyDefault(why) => Some(why),
            Status::Used | Status::Ignored | Status::Replaced(_) => None,
        };
        if let Some(why) = why
            && Some(&value) != default.as_ref()
        {
            let only = if setting.default.is_empty() {
                "unset"
            } else {
                setting.default
            };
            self.mistakes.push(SettingError {
                setting: found.setting.clone(),
                value: Some(found.text.clone()),
                problem: format!("{why}; leave it {only}"),
            });
        }
        self.parsed.insert(setting.variable, value);
        self.origins.insert(setting.variable, found.setting.clone());
    }

    fn take_default(&mut self, setting: &'static Setting) {
        if let Ok(value) = value::parse(setting.kind, setting.default)
            && !setting.default.is_empty()
        {
            self.parsed.insert(setting.variable, value);
        }
    }

    fn refuse_unknown_names(&mut self, environment: &Environment<'_>) {
        let known: Vec<&str> = table::settings()
            .flat_map(|setting| {
                std::iter::once(setting.variable).chain(setting.aliases.iter().copied())
            })
            .collect();
        for name in &environment.names {
            if !name.starts_with(OURS)
                || known.contains(&name.as_str())
                || OTHER_PROGRAMS.iter().any(|prefix| name.starts_with(prefix))
                || is_service_link(name)
            {
                continue;
            }
            let problem = match nearest(name, known.iter().copied()) {
                Some(meant) => format!("no such setting; did you mean {meant}?"),
                None => "no such setting; the subcommand `settings` lists them all".to_owned(),
            };
            self.mistakes.push(SettingError {
                setting: name.clone(),
                value: (environment.read)(name),
                problem,
            });
        }
    }
}

fn from_environment(setting: &Setting, environment: &Environment<'_>) -> Option<Found> {
    std::iter::once(setting.variable)
        .chain(setting.aliases.iter().copied())
        .find_map(|name| {
            variable(name, environment).map(|text| Found {
                setting: name.to_owned(),
                text,
            })
        })
}

/// A variable's trimmed text; an empty one counts as unset.
fn variable(name: &str, environment: &Environment<'_>) -> Option<String> {
    let text = (environment.read)(name)?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn explain(kind: Kind, text: &str, expected: &str) -> String {
    match kind {
        Kind::Port if text.contains("://") => format!(
            "expected {expected}; this looks like a variable that Kubernetes made of a Service's name, \
             `enableServiceLinks: false` in the pod keeps it away"
        ),
        Kind::Choice(words) => match nearest(text, words.iter().copied()) {
            Some(meant) => format!("expected {expected}; did you mean {meant}?"),
            None => format!("expected {expected}"),
        },
        _ => format!("expected {expected}"),
    }
}

/// Kubernetes gives pods variables for each Service: `X_SERVICE_HOST`, `X_PORT_9002_TCP_ADDR`, ….
fn is_service_link(name: &str) -> bool {
    let has = |part: &str| name.contains(part);
    name.ends_with("_SERVICE_HOST")
        || has("_SERVICE_PORT")
        || name == "POINTSMAN_PORT"
        || (has("_PORT_") && (has("_TCP") || has("_UDP") || has("_SCTP")))
}
