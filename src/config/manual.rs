//! Prints the table of settings for people; takes every word from the table.

use std::fmt::Write as _;

use super::table::{self, Kind, Setting, Status};
use super::value::expected;

const INTRODUCTION: &str = "\
# Configuration

<!-- Printed by `pointsman settings --markdown`; a test compares the two. Change src/config/table.rs instead. -->

Every setting has an environment variable and, where a key is given, a place in the YAML file that
`POINTSMAN_CONFIG` names. The variable wins over the file, and the file over the default. An empty value counts as
unset. A value that is not what was expected, an unknown key of the file and an unknown variable that begins with
`POINTSMAN_` stop start-up; all mistakes are reported at once. `pointsman check` does the same and starts nothing.

Dots in a key are levels of the file:

```yaml
# the file of POINTSMAN_CONFIG
block_size: 16
workers_file: /etc/pointsman/workers.yaml
tokenizer:
  dir: /models/tokenizer
router:
  temperature: 0.1
```

Names that begin with `POINTSMAN_LAB_`, `POINTSMAN_TEST_`, `POINTSMAN_BIN`, `POINTSMAN_CACHE` or `POINTSMAN_ENVOY` belong
to the tests and tools of this project and are not looked at; nor are the variables that Kubernetes makes of a Service's name.
";

/// The table as `docs/configuration.md`.
pub(crate) fn markdown() -> String {
    let mut page = INTRODUCTION.to_owned();
    for section in table::SECTIONS {
        // Writing to a String cannot fail.
        let _ = write!(page, "\n## {}\n\n", section.title);
        page.push_str("| variable | key | default | expected | meaning |\n|---|---|---|---|---|\n");
        for setting in section.settings {
            let names: Vec<String> = std::iter::once(setting.variable)
                .chain(setting.aliases.iter().copied())
                .map(|name| format!("`{name}`"))
                .collect();
            let _ = writeln!(
                page,
                "| {} | {} | {} | {} | {} |",
                names.join(", "),
                quoted(setting.key.unwrap_or_default()),
                quoted(setting.default),
                expected_of(setting),
                meaning(setting),
            );
        }
    }
    page
}

/// The table for a terminal.
pub(crate) fn plain() -> String {
    let mut page = String::new();
    for section in table::SECTIONS {
        let _ = writeln!(page, "{}", section.title);
        for setting in section.settings {
            let default = if setting.default.is_empty() {
                "unset"
            } else {
                setting.default
            };
            let _ = writeln!(page, "  {} [{default}]", setting.variable);
            if let Some(key) = setting.key {
                let _ = writeln!(page, "      key {key}; {}", expected_of(setting));
            }
            let _ = writeln!(page, "      {}", meaning(setting));
        }
        page.push('\n');
    }
    page
}

fn quoted(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        format!("`{text}`")
    }
}

fn expected_of(setting: &Setting) -> String {
    match setting.kind {
        Kind::Text if setting.status == Status::Ignored => "anything".to_owned(),
        kind => expected(kind),
    }
}

fn meaning(setting: &Setting) -> String {
    match setting.status {
        Status::Used | Status::Ignored => setting.doc.to_owned(),
        Status::NotYet => format!(
            "{} Not supported yet: only the default is accepted.",
            setting.doc
        ),
        Status::OnlyDefault(why) => {
            format!("{} Only the default is accepted: {why}.", setting.doc)
        }
        Status::Replaced(other) => format!("{} No longer read: use {other}.", setting.doc),
    }
}
