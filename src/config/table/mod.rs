//! The one table of settings: names, kinds, defaults and words; it reads nothing itself.

mod cache;
mod published;
mod router;
mod selection;
mod serving;
mod start;

use Kind::{Millis, Seconds, Text};

/// How the text of a setting becomes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `1|true|on|yes` or `0|false|off|no`, in any case.
    Bool,
    /// A TCP port, or `auto` for one the system picks.
    Port,
    /// An IP address to listen on.
    Host,
    /// A whole number within bounds, both included.
    Count { min: u64, max: u64 },
    /// A number of bytes; `KiB`, `MiB` and `GiB` may follow.
    Bytes { min: u64 },
    /// Whole seconds.
    Seconds { min: u64, max: u64 },
    /// Whole milliseconds.
    Millis { min: u64, max: u64 },
    /// A finite number, zero or more.
    Weight,
    /// A finite number from 0 to 1.
    Credit,
    /// A URL of plain HTTP.
    Url,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Any text.
    Text,
    /// The path of a file or directory.
    Path,
    /// A log filter: `info`, or `warn,pointsman=debug`.
    LogFilter,
}

/// What the program does with a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// It is used.
    Used,
    /// Only its default works so far; any other value stops start-up.
    NotYet,
    /// Only its default works, for this reason; any other value stops start-up.
    OnlyDefault(&'static str),
    /// Accepted, named in one warning, and without effect so far.
    Ignored,
    /// Refused, with the setting to use in its place.
    Replaced(&'static str),
}

/// One setting.
#[derive(Debug)]
pub(super) struct Setting {
    /// Dotted path in the settings file; `None` for what must be known before that file is read.
    pub(super) key: Option<&'static str>,
    pub(super) variable: &'static str,
    pub(super) aliases: &'static [&'static str],
    pub(super) kind: Kind,
    /// As it would be written in a variable; empty means unset.
    pub(super) default: &'static str,
    pub(super) status: Status,
    pub(super) doc: &'static str,
}

/// The settings of one part of the program.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) title: &'static str,
    pub(super) settings: &'static [Setting],
}

const DAY_SECONDS: u64 = 86_400;
const DAY_MILLIS: u64 = 86_400_000;
const SECONDS: Kind = Seconds {
    min: 0,
    max: DAY_SECONDS,
};
const MILLIS: Kind = Millis {
    min: 1,
    max: DAY_MILLIS,
};

const fn used(
    key: &'static str,
    variable: &'static str,
    kind: Kind,
    default: &'static str,
    doc: &'static str,
) -> Setting {
    Setting {
        key: Some(key),
        variable,
        aliases: &[],
        kind,
        default,
        status: Status::Used,
        doc,
    }
}

const fn not_yet(
    key: &'static str,
    variable: &'static str,
    kind: Kind,
    default: &'static str,
    doc: &'static str,
) -> Setting {
    Setting {
        status: Status::NotYet,
        ..used(key, variable, kind, default, doc)
    }
}

const fn ignored(variable: &'static str, doc: &'static str) -> Setting {
    Setting {
        key: None,
        variable,
        aliases: &[],
        kind: Text,
        default: "",
        status: Status::Ignored,
        doc,
    }
}

/// Every setting, in the order in which the documentation prints them.
pub(super) const SECTIONS: &[Section] = &[
    Section {
        title: "Start",
        settings: start::START,
    },
    Section {
        title: "Workers and models",
        settings: start::WORKERS,
    },
    Section {
        title: "Tokenizing",
        settings: start::TOKENIZING,
    },
    Section {
        title: "Policy",
        settings: start::POLICY,
    },
    Section {
        title: "Cost and load",
        settings: router::ROUTER,
    },
    Section {
        title: "What is cached where",
        settings: cache::CACHE,
    },
    Section {
        title: "Listening",
        settings: serving::SERVER,
    },
    Section {
        title: "Selection service over HTTP",
        settings: selection::SELECTION,
    },
    Section {
        title: "Waits and bounds",
        settings: serving::LIMITS,
    },
    Section {
        title: "Logs and debugging",
        settings: serving::LOGS,
    },
    Section {
        title: "Published names without effect so far",
        settings: published::IGNORED,
    },
];

/// Every setting, flat.
pub(super) fn settings() -> impl Iterator<Item = &'static Setting> {
    SECTIONS.iter().flat_map(|section| section.settings)
}
