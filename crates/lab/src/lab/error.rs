//! What can go wrong in the lab, in words for whoever runs it.
//! Never an exit code; the command line has those.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use crate::mock::StartError;

#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error("starting the mock workers")]
    Fleet(#[from] StartError),
    #[error("{doing}")]
    Io {
        doing: String,
        #[source]
        source: io::Error,
    },
    #[error("{path} is not there; {advice}", path = .path.display())]
    Missing { path: PathBuf, advice: &'static str },
    #[error("reading the tokenizer")]
    Tokenizer(#[source] pointsman::tokenize::LoadError),
    #[error("{name} ended by itself with {status}; the end of {log}:\n{tail}", log = .log.display())]
    Ended {
        name: &'static str,
        status: ExitStatus,
        log: PathBuf,
        tail: String,
    },
    #[error("{name} was not ready after {waited:?}; the end of {log}:\n{tail}", log = .log.display())]
    NotReady {
        name: &'static str,
        waited: Duration,
        log: PathBuf,
        tail: String,
    },
    #[error("{request}: {problem}")]
    Request { request: String, problem: String },
    #[error(
        "Pointsman did not apply batch {sequence} of worker {worker_id} within {waited:?}; it is at {applied}"
    )]
    NotApplied {
        worker_id: u64,
        sequence: u64,
        applied: String,
        waited: Duration,
    },
}

impl LabError {
    pub(super) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}
