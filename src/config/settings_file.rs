//! Reads the settings file: which keys it holds, and which of them exist; gives none a meaning.

use std::collections::HashMap;
use std::path::Path;

use serde_yaml::Value as Yaml;

use super::document;
use super::reader::{Found, SettingError};
use super::spelling::nearest;
use super::table;

/// The values of the file by dotted key; what is wrong with the file is added to `mistakes`.
pub(super) fn read(
    path: Option<String>,
    mistakes: &mut Vec<SettingError>,
) -> HashMap<&'static str, Found> {
    let Some(path) = path else {
        return HashMap::new();
    };
    match mapping(&path) {
        Ok(document) => {
            let mut leaves = Vec::new();
            flatten("", &document, &mut leaves);
            known_leaves(&path, leaves, mistakes)
        }
        Err(problem) => {
            mistakes.push(SettingError {
                setting: "POINTSMAN_CONFIG".to_owned(),
                value: Some(path),
                problem,
            });
            HashMap::new()
        }
    }
}

fn mapping(path: &str) -> Result<Yaml, String> {
    let text = document::read(Path::new(path)).map_err(|error| error.to_string())?;
    match serde_yaml::from_str(&text) {
        Ok(Yaml::Null) => Ok(Yaml::Mapping(serde_yaml::Mapping::new())),
        Ok(document @ Yaml::Mapping(_)) => Ok(document),
        Ok(_) => Err("expected a mapping of settings, such as `block_size: 16`".to_owned()),
        Err(error) => Err(format!("not valid YAML: {error}")),
    }
}

fn known_leaves(
    path: &str,
    leaves: Vec<(String, Result<String, String>)>,
    mistakes: &mut Vec<SettingError>,
) -> HashMap<&'static str, Found> {
    let mut found = HashMap::new();
    for (key, text) in leaves {
        let setting = format!("{path}: {key}");
        let known = table::settings().find_map(|setting| setting.key.filter(|known| *known == key));
        let is_section = || {
            table::settings().any(|setting| {
                setting
                    .key
                    .is_some_and(|known| known.starts_with(&format!("{key}.")))
            })
        };
        match (known, text) {
            (None, Ok(text)) if text.is_empty() && is_section() => {}
            (None, text) => mistakes.push(SettingError {
                setting,
                value: text.ok(),
                problem: unknown_key(&key),
            }),
            (Some(_), Err(problem)) => mistakes.push(SettingError {
                setting,
                value: None,
                problem,
            }),
            (Some(known), Ok(text)) if !text.is_empty() => {
                found.insert(known, Found { setting, text });
            }
            (Some(_), Ok(_)) => {}
        }
    }
    found
}

fn unknown_key(key: &str) -> String {
    if let Some(setting) = table::settings().find(|setting| setting.variable == key) {
        return match setting.key {
            Some(key) => format!("no such key; in the settings file this is {key}"),
            None => "no such key; it is read from the environment only".to_owned(),
        };
    }
    let keys = || table::settings().filter_map(|setting| setting.key);
    let leaf = |key: &str| key.rsplit('.').next().map(str::to_owned);
    // A right name in the wrong section is as common as a typo.
    let moved = keys().find(|known| leaf(known) == leaf(key));
    match nearest(key, keys()).or(moved) {
        Some(meant) => format!("no such key; did you mean {meant}?"),
        None => "no such key; the subcommand `settings` lists them all".to_owned(),
    }
}

fn flatten(prefix: &str, value: &Yaml, leaves: &mut Vec<(String, Result<String, String>)>) {
    let text = match value {
        Yaml::Mapping(mapping) => {
            for (key, value) in mapping {
                let key = scalar(key).unwrap_or_else(|| "(a key that is no text)".to_owned());
                let path = if prefix.is_empty() {
                    key
                } else {
                    format!("{prefix}.{key}")
                };
                flatten(&path, value, leaves);
            }
            return;
        }
        other => scalar(other).ok_or_else(|| "expected a single value".to_owned()),
    };
    leaves.push((prefix.to_owned(), text));
}

fn scalar(value: &Yaml) -> Option<String> {
    match value {
        Yaml::Null => Some(String::new()),
        Yaml::Bool(value) => Some(value.to_string()),
        Yaml::Number(value) => Some(value.to_string()),
        Yaml::String(value) => Some(value.trim().to_owned()),
        _ => None,
    }
}
