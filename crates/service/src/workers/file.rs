//! The workers file: `workers:`, a list of registrations, read strictly.
//!
//! Unknown keys and duplicate ids refuse the whole file and name the entry. It reads no disk.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::registration::{FIELDS, MAX_DATA_PARALLEL_SIZE, WorkerRegistration};

/// The reader of workers files.
#[derive(Debug)]
pub struct WorkersFile;

/// Why a workers file was refused.
#[derive(Debug, thiserror::Error)]
pub enum WorkersFileError {
    #[error("the workers file is not valid yaml")]
    Yaml(#[source] serde_yaml::Error),
    #[error("the workers file must be a map with the single key `workers`, found {found}")]
    Shape { found: String },
    #[error("{entry} must be a map")]
    NotAMap { entry: Entry },
    #[error("{entry} has the unknown key `{key}`; the keys are {}", FIELDS.join(", "))]
    UnknownKey { entry: Entry, key: String },
    #[error("{entry} is not a worker")]
    BadEntry {
        entry: Entry,
        #[source]
        source: serde_yaml::Error,
    },
    #[error("{entry}: data_parallel_size is {value}, expected at most {MAX_DATA_PARALLEL_SIZE}")]
    TooManyRanks { entry: Entry, value: u32 },
    #[error("{entry} has the same worker_id as an earlier entry")]
    DuplicateId { entry: Entry },
}

/// Which entry of the list, counted from 1, and its `worker_id` where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub position: usize,
    pub worker_id: Option<u64>,
}

impl std::fmt::Display for Entry {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "entry {} of the workers file", self.position)?;
        match self.worker_id {
            Some(id) => write!(formatter, " (worker_id {id})"),
            None => Ok(()),
        }
    }
}

impl WorkersFile {
    /// Parses a whole file. An empty document, or an empty list, is no workers.
    pub fn from_yaml(text: &str) -> Result<Vec<WorkerRegistration>, WorkersFileError> {
        let document =
            serde_yaml::from_str::<serde_yaml::Value>(text).map_err(WorkersFileError::Yaml)?;
        let mut seen = BTreeSet::new();
        let mut workers = Vec::new();
        for (index, value) in entries(&document)?.iter().enumerate() {
            let registration = read_entry(index + 1, value)?;
            if !seen.insert(registration.worker_id) {
                let worker_id = Some(registration.worker_id);
                let entry = Entry {
                    position: index + 1,
                    worker_id,
                };
                return Err(WorkersFileError::DuplicateId { entry });
            }
            workers.push(registration);
        }
        Ok(workers)
    }
}

fn entries(document: &serde_yaml::Value) -> Result<&[serde_yaml::Value], WorkersFileError> {
    let wrong = |found: &str| WorkersFileError::Shape {
        found: found.to_owned(),
    };
    if document.is_null() {
        return Ok(&[]);
    }
    let map = document
        .as_mapping()
        .ok_or_else(|| wrong("something else"))?;
    for key in map.keys() {
        let name = key.as_str().unwrap_or("a key that is no text");
        if name != "workers" {
            return Err(wrong(&format!("the key `{name}`")));
        }
    }
    match map.get("workers") {
        None => Err(wrong("an empty map")),
        Some(list) if list.is_null() => Ok(&[]),
        Some(list) => list
            .as_sequence()
            .map(Vec::as_slice)
            .ok_or_else(|| wrong("`workers` that is no list")),
    }
}

fn read_entry(
    position: usize,
    value: &serde_yaml::Value,
) -> Result<WorkerRegistration, WorkersFileError> {
    let Some(map) = value.as_mapping() else {
        return Err(WorkersFileError::NotAMap {
            entry: Entry {
                position,
                worker_id: None,
            },
        });
    };
    let worker_id = map.get("worker_id").and_then(serde_yaml::Value::as_u64);
    let entry = Entry {
        position,
        worker_id,
    };
    for key in map.keys() {
        let name = key.as_str().unwrap_or("a key that is no text");
        if !FIELDS.contains(&name) {
            return Err(WorkersFileError::UnknownKey {
                entry,
                key: name.to_owned(),
            });
        }
    }
    let registration = WorkerRegistration::deserialize(value)
        .map_err(|source| WorkersFileError::BadEntry { entry, source })?;
    if registration.rank_count() > MAX_DATA_PARALLEL_SIZE {
        let value = registration.rank_count();
        return Err(WorkersFileError::TooManyRanks { entry, value });
    }
    Ok(registration)
}

#[cfg(test)]
mod tests;
