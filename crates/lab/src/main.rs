//! The command line of the lab.
//! Never decides anything: it reads arguments and calls the library.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use pointsman_lab::lab::{self, Ending, Mode, Options};
use pointsman_lab::mock::{EventForm, Fleet, FleetConfig, HashForm, PromptTokens};

/// Mock workers and a lab for Pointsman: no model, no GPU, no cluster.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
Examples:
  # three workers on ports 8000 to 8002, and a workers file for Pointsman
  pointsman-lab mock --http-port 8000 --kv-events-port 5557 --replay-port 5657 --workers-file workers.yaml

  # the lab; ./lab fetches Envoy and a tokenizer and runs this
  pointsman-lab run --envoy ENVOY --tokenizer-dir FOLDER --pointsman target/release/pointsman"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start mock workers and print where they are
    Mock(MockArgs),
    /// Start workers, Pointsman and Envoy, send conversations, show who served what
    Run(RunArgs),
}

#[derive(Debug, Args)]
struct FleetArgs {
    /// Workers, all in this process
    #[arg(long, default_value_t = 3)]
    workers: u16,
    /// Ranks of each worker
    #[arg(long, default_value_t = 1)]
    dp_size: u32,
    /// Model that the workers serve
    #[arg(long, default_value = "mock-model")]
    model: String,
    /// Tokens in a block
    #[arg(long, default_value_t = 16)]
    block_size: u32,
    /// Blocks of KV cache of each rank
    #[arg(long, default_value_t = 65_536)]
    blocks: usize,
    /// All simulated time is multiplied by this; 0 answers at once
    #[arg(long, default_value_t = 1.0)]
    time_scale: f64,
    /// Prefill time of a token that is not cached, in microseconds
    #[arg(long, default_value_t = 150.0)]
    prefill_us: f64,
    /// Seed of answers, faults and conversations
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How batches of events are written
    #[arg(long, value_enum, default_value_t)]
    event_form: EventForm,
    /// How block hashes are written
    #[arg(long, value_enum, default_value_t)]
    hash_form: HashForm,
}

#[derive(Debug, Args)]
struct MockArgs {
    #[command(flatten)]
    fleet: FleetArgs,
    /// Address to listen on
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// HTTP port of the first worker; 0: any free ones
    #[arg(long, default_value_t = 0)]
    http_port: u16,
    /// Event port of the first rank of the first worker; 0: any free ones
    #[arg(long, default_value_t = 0)]
    kv_events_port: u16,
    /// Replay port of the first rank of the first worker; 0: any free ones
    #[arg(long, default_value_t = 0)]
    replay_port: u16,
    /// Folder with the tokenizer files of a model; without it each word is a token
    #[arg(long)]
    tokenizer_dir: Option<PathBuf>,
    /// Write the workers here, as Pointsman reads them
    #[arg(long)]
    workers_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct RunArgs {
    #[command(flatten)]
    fleet: FleetArgs,
    /// The Pointsman to run [default: the one beside this program]
    #[arg(long)]
    pointsman: Option<PathBuf>,
    /// The Envoy to run
    #[arg(long)]
    envoy: PathBuf,
    /// Folder with the tokenizer files of a model
    #[arg(long)]
    tokenizer_dir: PathBuf,
    /// Folder for logs and configuration [default: one in the system's temporary folder]
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Envoy's first port; another free one is taken where it is in use
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// A setting for Pointsman, NAME=VALUE; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<String>,
    /// Check what must hold, print the rates, and end: 0 if it held, 1 if not
    #[arg(long, conflicts_with = "once")]
    check: bool,
    /// End after the conversations instead of staying up
    #[arg(long)]
    once: bool,
    /// Conversations [default: 12, or 40 with --check]
    #[arg(long)]
    conversations: Option<usize>,
    /// Turns of each conversation
    #[arg(long, default_value_t = 5)]
    turns: usize,
    /// Requests in flight [default: 1, or 16 in the second run of --check]
    #[arg(long)]
    in_flight: Option<usize>,
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(std::io::stderr)
        .init();
    let done = match Cli::parse().command {
        Command::Mock(args) => mock(&args).await,
        Command::Run(args) => run(args).await,
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

async fn mock(args: &MockArgs) -> anyhow::Result<ExitCode> {
    let config = FleetConfig {
        host: args.host,
        http_port: args.http_port,
        kv_events_port: args.kv_events_port,
        replay_port: args.replay_port,
        ..args.fleet.config()
    };
    let tokens = match &args.tokenizer_dir {
        Some(folder) => lab::tokenizer_door(folder).await?,
        None => PromptTokens::words(),
    };
    let fleet = Fleet::start(&config, tokens).await?;
    if let Some(path) = &args.workers_file {
        fs::write(path, fleet.workers_file())
            .with_context(|| format!("writing {}", path.display()))?;
    }
    let mut text = String::new();
    for worker in fleet.workers() {
        write!(text, "{} http://{}", worker.name(), worker.address())?;
        for dp_rank in 0..worker.ranks() {
            let events = worker.kv_events_endpoint(dp_rank).unwrap_or_default();
            let replay = worker.replay_endpoint(dp_rank).unwrap_or_default();
            write!(text, " rank {dp_rank}: events {events} replay {replay}")?;
        }
        text.push('\n');
    }
    print!("{text}");
    lab::interrupted().await?;
    fleet.shutdown().await;
    Ok(ExitCode::SUCCESS)
}

async fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let options = args.options()?;
    Ok(match lab::run(&options).await? {
        Ending::Done | Ending::Interrupted => ExitCode::SUCCESS,
        Ending::Broken => ExitCode::FAILURE,
    })
}

impl FleetArgs {
    fn config(&self) -> FleetConfig {
        let mut config = FleetConfig {
            workers: self.workers,
            dp_size: self.dp_size,
            model: self.model.clone(),
            time_scale: self.time_scale,
            seed: self.seed,
            event_form: self.event_form,
            hash_form: self.hash_form,
            ..FleetConfig::default()
        };
        config.engine.block_size = self.block_size;
        config.engine.total_blocks = self.blocks;
        config.engine.prefill_us_per_token = self.prefill_us;
        config
    }
}

impl RunArgs {
    fn options(self) -> anyhow::Result<Options> {
        let mode = match (self.check, self.once) {
            (true, _) => Mode::Check,
            (false, true) => Mode::Once,
            (false, false) => Mode::Stay,
        };
        let beside = || {
            let program = std::env::current_exe().context("finding this program")?;
            anyhow::Ok(program.with_file_name("pointsman"))
        };
        let mut pointsman_env = Vec::new();
        for setting in &self.settings {
            let Some((name, value)) = setting.split_once('=') else {
                bail!("--set {setting}: expected NAME=VALUE");
            };
            pointsman_env.push((name.to_owned(), value.to_owned()));
        }
        if self.turns == 0 || self.conversations == Some(0) || self.in_flight == Some(0) {
            bail!("--turns, --conversations and --in-flight must be at least 1");
        }
        let temporary = format!("pointsman-lab-{}", std::process::id());
        let (conversations, in_flight) = if mode == Mode::Check {
            (40, 16)
        } else {
            (12, 1)
        };
        Ok(Options {
            pointsman: self.pointsman.map_or_else(beside, Ok)?,
            envoy: self.envoy,
            tokenizer_dir: self.tokenizer_dir,
            folder: self
                .folder
                .unwrap_or_else(|| std::env::temp_dir().join(temporary)),
            port: self.port,
            fleet: self.fleet.config(),
            pointsman_env,
            mode,
            conversations: self.conversations.unwrap_or(conversations),
            turns: self.turns,
            in_flight: self.in_flight.unwrap_or(in_flight),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// What `./lab` shows, and knows options by, before anything is built.
    const OPTIONS: &str = include_str!("../../../docs/lab-options.txt");

    #[test]
    fn the_options_in_the_docs_are_those_of_the_program() {
        let mut program = Cli::command().term_width(100);
        let run = program.find_subcommand_mut("run").unwrap();
        let help = run.clone().term_width(100).render_help().to_string();
        let options = help.split_once("Options:\n").unwrap().1;
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            words(OPTIONS),
            words(options),
            "write this there:\n{options}"
        );
    }
}
