//! Everything that runs in the lab: the workers in this process, Pointsman and Envoy beside it.
//! Never sends a request of its own but to see whether a part is ready.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use serde_json::json;
use tokio::process::Command;

use super::child::Program;
use super::client::Client;
use super::draw::step;
use super::envoy::{Wiring, bootstrap};
use super::error::LabError;
use super::play::Settle;
use super::{Options, tokenizer};
use crate::mock::{Fleet, FleetConfig, Worker};

/// Where the parts listen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    /// Envoy's listener that asks Pointsman.
    pub(super) picked: SocketAddr,
    /// Envoy's listener that takes the workers in turn.
    pub(super) round_robin: SocketAddr,
    pub(super) envoy_admin: SocketAddr,
    pub(super) ext_proc: SocketAddr,
    pub(super) health: SocketAddr,
    /// Pointsman's admin port.
    pub(super) admin: SocketAddr,
}

#[derive(Debug)]
pub(super) struct Stage {
    pub(super) fleet: Fleet,
    pub(super) addresses: Addresses,
    pub(super) client: Client,
    pub(super) folder: PathBuf,
}

/// The programs beside the lab, kept apart from the stage so that they can be stopped whatever happened on it.
#[derive(Debug, Default)]
pub(super) struct Programs {
    pointsman: Option<Program>,
    envoy: Option<Program>,
}

impl Stage {
    pub(super) async fn set(options: &Options, programs: &mut Programs) -> Result<Self, LabError> {
        for (path, advice) in [
            (
                &options.pointsman,
                "build it with `cargo build --release`, or name it by --pointsman",
            ),
            (&options.envoy, "`./lab` fetches it; or name one by --envoy"),
            (
                &options.tokenizer_dir,
                "`./lab` fetches one; or name a folder by --tokenizer-dir",
            ),
        ] {
            if !path.exists() {
                return Err(LabError::Missing {
                    path: path.clone(),
                    advice,
                });
            }
        }
        let folder = options.folder.clone();
        fs::create_dir_all(&folder)
            .map_err(LabError::io(format!("creating {}", folder.display())))?;
        let addresses = Addresses::choose(options.port)?;
        let client = Client::new();

        step(&format!("starting {} mock workers", options.fleet.workers));
        let tokens = tokenizer::door(&options.tokenizer_dir).await?;
        let fleet = Fleet::start(&options.fleet, tokens).await?;
        let stage = Self {
            fleet,
            addresses,
            client,
            folder,
        };
        stage.start_pointsman(options, programs).await?;
        stage.start_envoy(options, programs).await?;
        stage.warm_up(&options.fleet).await?;
        Ok(stage)
    }

    /// Waiting until Pointsman knows all that the workers told.
    pub(super) fn settle(&self) -> Settle<'_> {
        Settle {
            client: self.client.clone(),
            url: format!("http://{}/events/applied", self.addresses.admin),
            workers: self.fleet.workers(),
        }
    }

    async fn start_pointsman(
        &self,
        options: &Options,
        programs: &mut Programs,
    ) -> Result<(), LabError> {
        step("starting Pointsman");
        let workers_file = self.folder.join("workers.yaml");
        write(&workers_file, &self.fleet.workers_file())?;
        let mut command = Command::new(&options.pointsman);
        let Addresses {
            ext_proc,
            health,
            admin,
            ..
        } = self.addresses;
        command
            .env_clear()
            .env("POINTSMAN_WORKERS_FILE", &workers_file)
            .env("POINTSMAN_TOKENIZER_DIR", &options.tokenizer_dir)
            .env("POINTSMAN_DEBUG_HEADERS", "true")
            .env("POINTSMAN_HOST", Ipv4Addr::LOCALHOST.to_string())
            .env("POINTSMAN_EXT_PROC_PORT", ext_proc.port().to_string())
            .env("POINTSMAN_HEALTH_PORT", health.port().to_string())
            .env("DYN_EPP_METRICS_PORT", admin.port().to_string())
            .env("DYN_SECURE_SERVING", "false")
            .env("DYN_EPP_GRACEFUL_SHUTDOWN_PROPAGATION_SECS", "0")
            .env("POINTSMAN_SHUTDOWN_DRAIN_SECS", "3")
            .envs(
                options
                    .pointsman_env
                    .iter()
                    .map(|(name, value)| (name, value)),
            );
        let log = self.folder.join("pointsman.log");
        let program = programs
            .pointsman
            .insert(Program::start("Pointsman", command, log)?);
        program
            .ready(&self.client, &format!("http://{admin}/ready"))
            .await
    }

    async fn start_envoy(
        &self,
        options: &Options,
        programs: &mut Programs,
    ) -> Result<(), LabError> {
        step("starting Envoy");
        let config = self.folder.join("envoy.json");
        let wiring = Wiring {
            admin: self.addresses.envoy_admin,
            picked: self.addresses.picked,
            round_robin: self.addresses.round_robin,
            ext_proc: self.addresses.ext_proc,
            workers: self.fleet.workers().iter().map(Worker::address).collect(),
        };
        write(&config, &bootstrap(&wiring))?;
        let mut command = Command::new(&options.envoy);
        command.arg("--config-path").arg(&config).args([
            "--log-level",
            "warning",
            "--disable-hot-restart",
            "--concurrency",
            "1",
        ]);
        let log = self.folder.join("envoy.log");
        let program = programs
            .envoy
            .insert(Program::start("Envoy", command, log)?);
        let ready = format!("http://{}/ready", self.addresses.envoy_admin);
        program.ready(&self.client, &ready).await
    }

    /// Lets each worker tell something, until Pointsman heard it: from then on no event is missed. Sent to the
    /// workers directly, for the picker would choose among them.
    async fn warm_up(&self, config: &FleetConfig) -> Result<(), LabError> {
        for worker in self.fleet.workers() {
            let words = format!("warm-up {} ", worker.name()).repeat(40);
            let body = json!({
                "model": config.model,
                "messages": [{ "role": "user", "content": words }],
                "max_tokens": 1,
                "stream": true,
                "stream_options": { "include_usage": true },
            });
            self.client
                .chat(&format!("http://{}", worker.address()), &body)
                .await?;
        }
        self.settle().wait().await
    }
}

impl Programs {
    /// Ends with an error as soon as one of the programs does.
    pub(super) async fn unexpected_end(&mut self) -> LabError {
        let (Some(pointsman), Some(envoy)) = (&mut self.pointsman, &mut self.envoy) else {
            return std::future::pending().await;
        };
        tokio::select! {
            error = pointsman.unexpected_end() => error,
            error = envoy.unexpected_end() => error,
        }
    }

    /// The error of a program that ended, if one did.
    pub(super) fn failure(&mut self) -> Option<LabError> {
        let mut programs = [&mut self.pointsman, &mut self.envoy].into_iter().flatten();
        programs.find_map(|program| program.still_runs().err())
    }

    /// Stops Envoy, then Pointsman, so that no request is cut by the picker going away first.
    pub(super) async fn stop(&mut self) {
        for program in [&mut self.envoy, &mut self.pointsman].into_iter().flatten() {
            program.stop().await;
        }
    }
}

impl Addresses {
    /// The ports from `first` on where they are free, others where they are not.
    fn choose(first: u16) -> Result<Self, LabError> {
        // Held until all are chosen, or one port would be given twice.
        let mut held = Vec::new();
        let mut next = |wanted: u16| {
            let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let listener =
                TcpListener::bind(address(wanted)).or_else(|_| TcpListener::bind(address(0)));
            let listener = listener.map_err(LabError::io("looking for a free port"))?;
            let chosen = listener
                .local_addr()
                .map_err(LabError::io("looking for a free port"));
            held.push(listener);
            chosen
        };
        Ok(Self {
            picked: next(first)?,
            round_robin: next(first.saturating_add(1))?,
            envoy_admin: next(first.saturating_add(2))?,
            ext_proc: next(9002)?,
            health: next(9003)?,
            admin: next(9090)?,
        })
    }
}

fn write(path: &Path, text: &str) -> Result<(), LabError> {
    fs::write(path, text).map_err(LabError::io(format!("writing {}", path.display())))
}
