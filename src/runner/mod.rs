//! The whole program from command line to exit; never picks an endpoint.

mod plan;
mod select_service;
mod service;
mod signals;
mod threads;

use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use pointsman_plugin::plugins::RouterPluginRegistry;
use pointsman_service::http::{self, Access, TokenFile};
use pointsman_service::{SelectionService, WorkersFile};
use prometheus_client::registry::Registry;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{error, info, warn};

use crate::config::{self, Selection, Settings};
use crate::discovery::{FileSource, Metrics};
use crate::picker::{self, EndpointPicker};
use crate::serve::{self, ServerMetrics};
use crate::{admin, telemetry};
use plan::{Plan, Refused};
use signals::Signals;

const MISTAKES_FOUND: i32 = 2;
/// Longest wait for the tasks that end with the process anyway.
const FAREWELL: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  pointsman                       run; with no workers, requests are answered 503
  pointsman check                 name every mistake in the settings and start nothing
  pointsman settings              list every setting, its default and what it means

  # route to the workers of a file, by the KV cache that they hold
  POINTSMAN_WORKERS_FILE=workers.yaml POINTSMAN_TOKENIZER_DIR=/models/qwen3 pointsman

  # choose a policy, and settings from a file
  DYN_ROUTER_POLICY_CONFIG=policy.yaml POINTSMAN_CONFIG=settings.yaml pointsman

  # selection over HTTP for a runtime of your own; docs/http-api.md walks through it
  pointsman select-service --port 8092

  # look at a picker that runs
  curl localhost:9090/ready       why it is or is not ready; also /workers /loads /metrics

Settings come from environment variables, then the YAML file named by POINTSMAN_CONFIG, then defaults.";

const ABOUT: &str =
    "Endpoint picker for inference gateways: KV-cache-aware selection over Envoy's ext_proc";

#[derive(Debug, Parser)]
#[command(name = "pointsman", version, about = ABOUT, after_help = EXAMPLES)]
struct CommandLine {
    #[command(subcommand)]
    task: Option<Task>,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run the endpoint picker (what happens without a subcommand)
    Epp,
    /// Serve selection and load bookkeeping over HTTP, without Envoy
    SelectService(Box<select_service::Flags>),
    /// Check settings, policy, workers file and tokenizer, say what would run, and start nothing
    Check,
    /// List every setting
    Settings {
        /// As the documentation has it
        #[arg(long)]
        markdown: bool,
    },
}

/// Runs the program: its command line, and by default the endpoint picker until it is told to stop.
///
/// `registry` holds the policy types of the caller; the shipped ones are added to it. A type of a name that is taken is
/// an error.
pub async fn run(registry: Option<RouterPluginRegistry>) -> anyhow::Result<()> {
    match CommandLine::parse().task.unwrap_or(Task::Epp) {
        Task::Epp => Box::pin(epp(registry)).await,
        Task::SelectService(flags) => select_service::run(registry, *flags).await,
        Task::Check => check(registry).await,
        Task::Settings { markdown } => {
            let table = if markdown {
                config::markdown()
            } else {
                config::plain()
            };
            print(&table)
        }
    }
}

async fn check(registry: Option<RouterPluginRegistry>) -> anyhow::Result<()> {
    match planned(registry, select_service::mistakes).await? {
        Ok(plan) => print(&plan.to_string()),
        Err(refused) => {
            // Nothing is left to do if standard error is gone too.
            drop(writeln!(io::stderr(), "{refused}"));
            std::process::exit(MISTAKES_FOUND)
        }
    }
}

async fn epp(registry: Option<RouterPluginRegistry>) -> anyhow::Result<()> {
    let settled = threads::settle(config::is_set_in_process);
    let plan = planned(registry, |_| Vec::new()).await??;
    telemetry::init(&plan.settings.log);
    if let Err(error) = settled {
        warn!(%error, "the tokenizer may use threads of its own");
    }
    info!(version = env!("CARGO_PKG_VERSION"), "starting");
    if let Some(names) = plan.ignored_names() {
        warn!(names, "these settings have no effect yet");
    }
    let mut signals = Signals::install().context("cannot handle signals")?;
    let running = Running::start(plan).await?;
    let signal = signals.next().await;
    info!(signal, "stopping");
    tokio::select! {
        () = running.stop() => info!("stopped"),
        signal = signals.next() => {
            warn!(signal, "second signal, ending at once");
            std::process::exit(1)
        }
    }
    Ok(())
}

/// Reads and checks everything, away from the caller's runtime: a tokenizer takes seconds to load.
async fn planned(
    registry: Option<RouterPluginRegistry>,
    more: fn(&Settings) -> Vec<String>,
) -> anyhow::Result<Result<Plan, Refused>> {
    spawn_blocking(move || Plan::make(registry, more))
        .await
        .context("checking the settings panicked")
}

/// Everything that has to be stopped.
struct Running {
    service: SelectionService,
    server: serve::RunningServer,
    /// Cancelled at the first signal: whoever asks is told.
    stopping: CancellationToken,
    /// Stops what goes last: the workers file and the admin pages.
    stop: DropGuard,
    tasks: Vec<JoinHandle<()>>,
    patience: Duration,
}

impl Running {
    async fn start(plan: Plan) -> anyhow::Result<Self> {
        let Plan {
            settings,
            registry,
            tokenizer,
            recovery,
            ..
        } = plan;
        let mut metrics = telemetry::registry();
        tokenizer.metrics().register(&mut metrics);
        let built = service::builder(&settings, registry, recovery, &mut metrics)
            .default_model(settings.model_name.clone())
            .require_ip_endpoints(true)
            .build()
            .await;
        let service = built.context("cannot start the selection service")?;
        let stopping = CancellationToken::new();
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        let mut tasks = Vec::new();
        tasks.extend(follow_workers(&settings, &service, &mut metrics, &stop)?);
        let server_metrics = ServerMetrics::new(&mut metrics);
        let picker_metrics = picker::Metrics::new(&mut metrics);
        let picker =
            EndpointPicker::new(service.clone(), tokenizer, settings.picker, picker_metrics);

        let api = selection_api(&settings.selection, &stop, &mut tasks)?.map(|api| http::Config {
            stopping: stopping.clone(),
            ..api
        });
        let admin =
            match settings.admin {
                Some(address) => {
                    let bound = admin::Server::bind(address).await;
                    Some(bound.context(
                        "cannot start; the setting of this port is DYN_EPP_METRICS_PORT",
                    )?)
                }
                None => None,
            };
        let server =
            serve::Server::start(&settings.serve, picker, service.state(), server_metrics)?;
        info!(
            ext_proc = %server.ext_proc_addr(),
            health = %server.health_addr(),
            admin = admin.as_ref().map(|admin| tracing::field::display(admin.address())),
            "listening"
        );
        if let Some(admin) = admin {
            let (service, metrics) = (service.clone(), Arc::new(metrics));
            let router = match api {
                Some(api) => admin::router_with_api(service, metrics, api),
                None => admin::router(service, metrics, stopping.clone()),
            };
            tasks.push(tokio::spawn(admin.serve(router, stop.clone())));
        }
        Ok(Self {
            service,
            server,
            stopping,
            stop: guard,
            tasks,
            patience: settings.serve.propagation.saturating_add(settings.drain),
        })
    }

    async fn stop(self) {
        self.stopping.cancel();
        self.server.drain(self.patience).await;
        self.service.shutdown().await;
        drop(self.stop);
        for task in self.tasks {
            match tokio::time::timeout(FAREWELL, task).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => error!(%error, "a task of the picker panicked"),
                Err(_) => warn!("a task of the picker did not stop in time"),
            }
        }
    }
}

/// How the admin port serves the selection API, where it is asked for: to look at alone, unless a
/// file of tokens says who may change what.
fn selection_api(
    selection: &Selection,
    stop: &CancellationToken,
    tasks: &mut Vec<JoinHandle<()>>,
) -> anyhow::Result<Option<http::Config>> {
    if !selection.on_admin_port {
        return Ok(None);
    }
    let file = selection.tokens_file.as_deref();
    let tokens = file.map(TokenFile::open).transpose()?;
    let access = tokens.as_ref().map_or(Access::ReadOnly, TokenFile::access);
    tasks.extend(tokens.map(|tokens| tokio::spawn(tokens.follow(stop.clone()))));
    Ok(Some(http::Config {
        max_body_bytes: selection.max_body_bytes,
        busy: selection.busy,
        access,
        ..http::Config::default()
    }))
}

/// Registers the workers of the file and keeps them up to date; without a file there are none.
fn follow_workers(
    settings: &Settings,
    service: &SelectionService,
    metrics: &mut Registry,
    stop: &CancellationToken,
) -> anyhow::Result<Option<JoinHandle<()>>> {
    let Some(path) = &settings.workers_file else {
        service.replace_workers(Vec::new())?;
        return Ok(None);
    };
    let counters = Metrics::default();
    counters.register(metrics);
    let service = service.clone();
    let apply = move |text: &str| {
        let workers = WorkersFile::from_yaml(text).map_err(|error| plan::chain(&error))?;
        let count = workers.len();
        service
            .replace_workers(workers)
            .map_err(|error| plan::chain(&error))?;
        Ok(count)
    };
    let source = FileSource::open(path, apply, counters)?;
    Ok(Some(tokio::spawn(source.follow(stop.clone()))))
}

/// Writes to standard output; a reader that has gone away has seen enough.
fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}
