//! The subcommand `select-service`: selection over HTTP, from command line to exit; it serves no Envoy.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use pointsman_plugin::plugins::RouterPluginRegistry;
use pointsman_service::RecoveryConfig;
use pointsman_service::http::{self, Access, Server, ServerConfig, TlsFiles, TokenFile};
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::plan::{self, Refused};
use super::service;
use super::signals::Signals;
use crate::config::{Selection, Settings};
use crate::telemetry;

/// Every flag stands for a setting and wins over its variable, which is named with it.
#[derive(Debug, Args)]
pub(super) struct Flags {
    /// HTTP port, 8092 unless set [`POINTSMAN_SELECTION_PORT`]
    #[arg(long)]
    port: Option<String>,
    /// Address to listen on, 0.0.0.0 unless set [`POINTSMAN_HOST`]
    #[arg(long)]
    host: Option<String>,
    /// Threads that serve, and as many that take in events, 4 unless set [`POINTSMAN_SELECTION_THREADS`]
    #[arg(long)]
    threads: Option<String>,
    /// HTTP URLs whose `/dump` fills the index at start [`POINTSMAN_INDEXER_PEERS`]
    #[arg(long)]
    indexer_peers: Option<String>,
    /// Port on which load is told to other replicas [`POINTSMAN_REPLICA_SYNC_PORT`]
    #[arg(long)]
    replica_sync_port: Option<String>,
    /// Endpoints of other replicas [`POINTSMAN_REPLICA_SYNC_PEERS`]
    #[arg(long)]
    replica_sync_peers: Option<String>,
    /// Seconds a selection waits to be reserved, 120 unless set [`POINTSMAN_SELECTION_CACHE_TTL_SECS`]
    #[arg(long)]
    selection_cache_ttl_secs: Option<String>,
    /// Selections that wait at once, 4096 unless set [`POINTSMAN_SELECTION_CACHE_MAX_ENTRIES`]
    #[arg(long)]
    selection_cache_max_entries: Option<String>,
    /// Memory of the selections that wait, 256 MiB unless set [`POINTSMAN_SELECTION_CACHE_MAX_BYTES`]
    #[arg(long)]
    selection_cache_max_bytes: Option<String>,
    /// Refuse to start without authentication beyond this machine [`POINTSMAN_SELECTION_REQUIRE_AUTH`]
    #[arg(long)]
    require_auth: bool,
}

impl Flags {
    /// What was given, by the variable it stands for.
    fn given(self) -> HashMap<&'static str, String> {
        let flags = [
            ("POINTSMAN_SELECTION_PORT", self.port),
            ("POINTSMAN_HOST", self.host),
            ("POINTSMAN_SELECTION_THREADS", self.threads),
            ("POINTSMAN_INDEXER_PEERS", self.indexer_peers),
            ("POINTSMAN_REPLICA_SYNC_PORT", self.replica_sync_port),
            ("POINTSMAN_REPLICA_SYNC_PEERS", self.replica_sync_peers),
            (
                "POINTSMAN_SELECTION_CACHE_TTL_SECS",
                self.selection_cache_ttl_secs,
            ),
            (
                "POINTSMAN_SELECTION_CACHE_MAX_ENTRIES",
                self.selection_cache_max_entries,
            ),
            (
                "POINTSMAN_SELECTION_CACHE_MAX_BYTES",
                self.selection_cache_max_bytes,
            ),
            (
                "POINTSMAN_SELECTION_REQUIRE_AUTH",
                self.require_auth.then(|| "true".to_owned()),
            ),
        ];
        flags
            .into_iter()
            .filter_map(|(variable, given)| Some((variable, given?)))
            .collect()
    }
}

/// What is read and checked before anything starts.
struct Checked {
    settings: Settings,
    registry: RouterPluginRegistry,
    recovery: RecoveryConfig,
    files: Files,
}

/// What the settings name, read and found good.
struct Files {
    tls: Option<TlsFiles>,
    tokens: Option<TokenFile>,
}

/// What is wrong with the files that only this subcommand reads.
pub(super) fn mistakes(settings: &Settings) -> Vec<String> {
    Files::read(&settings.selection).err().unwrap_or_default()
}

pub(super) async fn run(
    registry: Option<RouterPluginRegistry>,
    flags: Flags,
) -> anyhow::Result<()> {
    // Away from the caller's runtime: the service has one of its own, with as many threads as asked.
    spawn_blocking(move || {
        let checked = Checked::make(registry, flags)?;
        telemetry::init(&checked.settings.log);
        let runtime = Builder::new_multi_thread()
            .worker_threads(checked.settings.selection.threads)
            .thread_name("selection")
            .enable_all()
            .build()
            .context("cannot start the threads")?;
        runtime.block_on(serve(checked))
    })
    .await
    .context("the selection service panicked")?
}

impl Checked {
    fn make(registry: Option<RouterPluginRegistry>, flags: Flags) -> Result<Self, Refused> {
        let (settings, wrong) = Settings::of_process_with(&flags.given());
        let mut mistakes: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        let mut note = |mistake: String| mistakes.push(mistake);
        let registry = plan::with_shipped_policies(registry)
            .map_err(&mut note)
            .ok();
        let policy = registry
            .as_ref()
            .map(|registry| plan::policy(&settings, registry));
        if let Some(Err(mistake)) = policy {
            note(mistake);
        }
        let recovery = service::recovery(&settings.selection)
            .map_err(&mut note)
            .ok();
        let files = Files::read(&settings.selection);
        let files = files.map_err(|wrong| mistakes.extend(wrong)).ok();
        match (registry, recovery, files) {
            (Some(registry), Some(recovery), Some(files)) if mistakes.is_empty() => Ok(Self {
                settings,
                registry,
                recovery,
                files,
            }),
            _ => Err(Refused(mistakes)),
        }
    }
}

impl Files {
    fn read(selection: &Selection) -> Result<Self, Vec<String>> {
        let mut mistakes = Vec::new();
        let mut note = |mistake: String| mistakes.push(mistake);
        let tls = tls_files(selection).map_err(&mut note).ok();
        let file = selection.tokens_file.as_deref();
        let tokens = file.map(TokenFile::open).transpose();
        let tokens = tokens.map_err(|error| note(plan::chain(&error))).ok();
        match (tls, tokens) {
            (Some(tls), Some(tokens)) => Ok(Self { tls, tokens }),
            _ => Err(mistakes),
        }
    }
}

/// A certificate needs its key, and clients can be asked for theirs only over TLS.
fn tls_files(selection: &Selection) -> Result<Option<TlsFiles>, String> {
    match (
        &selection.tls_certificate,
        &selection.tls_key,
        &selection.tls_client_ca,
    ) {
        (None, None, None) => Ok(None),
        (Some(certificate), Some(key), client_ca) => {
            let files = TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                client_ca: client_ca.clone(),
            };
            files.check().map_err(|error| plan::chain(&error))?;
            Ok(Some(files))
        }
        _ => Err(
            "TLS needs both POINTSMAN_SELECTION_TLS_CERTIFICATE and POINTSMAN_SELECTION_TLS_KEY"
                .to_owned(),
        ),
    }
}

async fn serve(checked: Checked) -> anyhow::Result<()> {
    let Checked {
        settings,
        registry,
        recovery,
        files: Files { tls, tokens },
    } = checked;
    let selection = &settings.selection;
    let version = env!("CARGO_PKG_VERSION");
    info!(version, "starting the selection service");
    warn_of_exposure(selection, tokens.as_ref(), tls.as_ref())?;
    let signals = Signals::install().context("cannot handle signals")?;
    let mut metrics = telemetry::registry();
    let builder = service::builder(&settings, registry, recovery, &mut metrics);
    let built = builder.build().await;
    let service = built.context("cannot start the selection service")?;
    let server = Server::bind(ServerConfig {
        tls,
        threads: selection.threads,
        drain: settings.drain,
        ..ServerConfig::new(selection.address)
    })
    .await?;
    info!(http = %server.address(), "listening");

    let (stopping, closing) = (CancellationToken::new(), CancellationToken::new());
    let config = http::Config {
        max_body_bytes: selection.max_body_bytes,
        busy: selection.busy,
        access: tokens.as_ref().map_or(Access::Open, TokenFile::access),
        metrics: Some(Arc::new(metrics)),
        stopping: stopping.clone(),
        ..http::Config::default()
    };
    if let Some(tokens) = tokens {
        tokio::spawn(tokens.follow(closing.clone()));
    }
    let router = http::router(service.clone(), config);
    let serving = tokio::spawn(server.serve(router, closing.clone()));
    let ending = async {
        // First not ready, so that callers go elsewhere; then closed, once they have.
        stopping.cancel();
        tokio::time::sleep(settings.serve.propagation).await;
        closing.cancel();
        let ended = serving.await;
        service.shutdown().await;
        ended.context("the server panicked")
    };
    end_on_signal(signals, ending).await
}

/// Waits for a signal, then for `ending`; a second signal ends the process at once.
async fn end_on_signal(
    mut signals: Signals,
    ending: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let signal = signals.next().await;
    info!(signal, "stopping");
    tokio::select! {
        ended = ending => ended?,
        signal = signals.next() => {
            warn!(signal, "second signal, ending at once");
            std::process::exit(1)
        }
    }
    info!("stopped");
    Ok(())
}

/// Says what an open port means, or refuses it where that was asked for.
fn warn_of_exposure(
    selection: &Selection,
    tokens: Option<&TokenFile>,
    tls: Option<&TlsFiles>,
) -> anyhow::Result<()> {
    if selection.address.ip().is_loopback() {
        return Ok(());
    }
    if tokens.is_none() && selection.tls_client_ca.is_none() {
        let exposed = Exposed(selection.address);
        if selection.require_auth {
            bail!("{exposed}");
        }
        warn!("{exposed}");
    }
    if tokens.is_some() && tls.is_none() {
        warn!("tokens are sent without TLS: whoever sees the network can read them");
    }
    Ok(())
}

/// Why a port that anybody can reach is a danger, and how it is closed.
#[derive(Clone, Copy, Debug)]
struct Exposed(SocketAddr);

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.0;
        write!(
            f,
            "the selection service on {address} asks nobody who they are: whoever reaches it can add and remove workers, \
             reserve load and read everything. Close it with one of these settings:\n  \
             POINTSMAN_SELECTION_TOKENS_FILE=/path/to/tokens   # lines `read <token>` and `write <token>`\n  \
             POINTSMAN_HOST=127.0.0.1                          # this machine alone; or --host 127.0.0.1"
        )
    }
}
