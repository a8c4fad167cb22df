//! What would run: everything that is read and checked before anything starts, with all mistakes at once.

use std::error::Error;
use std::fmt;

use pointsman_plugin::plugins::worker_selection::WorkerType;
use pointsman_plugin::plugins::{ResolvedPolicy, RouterPluginRegistry};
use pointsman_service::{RecoveryConfig, WorkersFile};

use super::service;
use crate::config::{Settings, document};
use crate::serve::Security;
use crate::tokenize::Tokenizer;

/// Settings, and what they name, read and found good.
pub(super) struct Plan {
    pub(super) settings: Settings,
    pub(super) registry: RouterPluginRegistry,
    pub(super) tokenizer: Tokenizer,
    pub(super) recovery: RecoveryConfig,
    policy: ResolvedPolicy,
    workers: usize,
}

/// Every mistake that keeps the program from starting.
#[derive(Debug, thiserror::Error)]
pub(super) struct Refused(pub(super) Vec<String>);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = match self.0.len() {
            1 => "1 mistake".to_owned(),
            count => format!("{count} mistakes"),
        };
        writeln!(f, "nothing was started: {count}")?;
        for mistake in &self.0 {
            writeln!(f, "  - {}", mistake.replace('\n', "\n    "))?;
        }
        f.write_str("next: the subcommand `settings` lists what can be set, `check` looks again without starting")
    }
}

impl Plan {
    /// Reads settings, policy, workers file and tokenizer; goes on after a mistake to find the others.
    /// `more` looks for mistakes in what else the settings name.
    pub(super) fn make(
        registry: Option<RouterPluginRegistry>,
        more: fn(&Settings) -> Vec<String>,
    ) -> Result<Self, Refused> {
        let (settings, wrong) = Settings::of_process();
        let mut mistakes: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        let mut note = |mistake: String| mistakes.push(mistake);

        let registry = with_shipped_policies(registry).map_err(&mut note).ok();
        let policy = registry
            .as_ref()
            .and_then(|registry| policy(&settings, registry).map_err(&mut note).ok());
        let workers = workers(&settings).map_err(&mut note).ok();
        let tokenizer = tokenizer(&settings).map_err(&mut note).ok();
        let recovery = service::recovery(&settings.selection)
            .map_err(&mut note)
            .ok();
        mistakes.extend(more(&settings));
        match (registry, policy, workers, tokenizer, recovery) {
            (Some(registry), Some(policy), Some(workers), Some(tokenizer), Some(recovery))
                if mistakes.is_empty() =>
            {
                Ok(Self {
                    settings,
                    registry,
                    tokenizer,
                    recovery,
                    policy,
                    workers,
                })
            }
            _ => Err(Refused(mistakes)),
        }
    }

    /// The policy that chooses, as a person would name it.
    fn policy_name(&self) -> String {
        match (&self.policy.instance, &self.policy.policy_type) {
            (Some(instance), Some(policy_type)) => format!("{instance} (type {policy_type})"),
            _ => "built-in".to_owned(),
        }
    }

    /// Names that were set and have no effect yet.
    pub(super) fn ignored_names(&self) -> Option<String> {
        let names = &self.settings.ignored;
        (!names.is_empty()).then(|| names.join(", "))
    }
}

/// What `pointsman check` prints.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = &self.settings;
        writeln!(f, "no mistakes found; this would run:")?;
        let workers = match (&settings.workers_file, self.workers) {
            (None, _) => {
                "none: POINTSMAN_WORKERS_FILE is not set, requests would be answered 503".to_owned()
            }
            (Some(path), 1) => format!("1 worker of {}", path.display()),
            (Some(path), count) => format!("{count} workers of {}", path.display()),
        };
        writeln!(f, "  workers    {workers}")?;
        writeln!(f, "  policy     {}", self.policy_name())?;
        match &settings.tokenizer.dir {
            Some(dir) => writeln!(f, "  tokenizer  {}", dir.display())?,
            None => writeln!(f, "  tokenizer  none: text prompts would be routed by load")?,
        }
        let peers = &settings.selection.recovery.peers;
        if !peers.is_empty() {
            writeln!(f, "  index      at start from {}", peers.join(", "))?;
        }
        let security = match settings.serve.security {
            Security::SelfSigned => "TLS, self-signed",
            Security::Plaintext => "plain HTTP/2",
        };
        writeln!(f, "  ext_proc   {} ({security})", settings.serve.ext_proc)?;
        writeln!(f, "  health     {}", settings.serve.health)?;
        match settings.admin {
            Some(address) => writeln!(f, "  admin      http://{address}")?,
            None => writeln!(f, "  admin      off")?,
        }
        for warning in &self.policy.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        if let Some(names) = self.ignored_names() {
            writeln!(f, "warning: these settings have no effect yet: {names}")?;
        }
        Ok(())
    }
}

pub(super) fn with_shipped_policies(
    registry: Option<RouterPluginRegistry>,
) -> Result<RouterPluginRegistry, String> {
    let mut registry = registry.unwrap_or_default();
    pointsman_catalog::register(&mut registry).map_err(|error| {
        format!(
            "the shipped policies cannot be added to yours: {}; choose another name",
            chain(&error)
        )
    })?;
    Ok(registry)
}

pub(super) fn policy(
    settings: &Settings,
    registry: &RouterPluginRegistry,
) -> Result<ResolvedPolicy, String> {
    registry
        .resolve_for_worker_type(&settings.router, WorkerType::Aggregated)
        .map_err(|error| match &settings.policy_file {
            Some(path) => format!("policy file {}: {}", path.display(), chain(&error)),
            None => format!("policy: {}", chain(&error)),
        })
}

/// How many workers the file lists.
fn workers(settings: &Settings) -> Result<usize, String> {
    let Some(path) = &settings.workers_file else {
        return Ok(0);
    };
    let text = document::read(path).map_err(|error| format!("workers file: {}", chain(&error)))?;
    match WorkersFile::from_yaml(&text) {
        Ok(workers) => Ok(workers.len()),
        Err(error) => Err(format!(
            "workers file {}: {}",
            path.display(),
            chain(&error)
        )),
    }
}

fn tokenizer(settings: &Settings) -> Result<Tokenizer, String> {
    let Some(dir) = &settings.tokenizer.dir else {
        return Ok(Tokenizer::none());
    };
    Tokenizer::load(dir, settings.tokenizer.tokenize.clone())
        .map_err(|error| format!("tokenizer directory {}: {}", dir.display(), chain(&error)))
}

/// An error with all that caused it, in one line of thought.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        // Some errors repeat their cause in their own text.
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}
