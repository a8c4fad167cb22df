//! The command line of the benches: one subcommand for each question that has a figure for an answer.
//! It never measures anything itself.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]
#![expect(
    clippy::cast_precision_loss,
    reason = "what is counted here stays far below 2^52"
)]

mod cpu;
mod dump;
mod fleet;
mod http1;
mod latency;
mod processes;
mod profile;
mod prompts;
mod select;
mod stats;
mod transport;
mod trivial;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "pointsman-benches",
    about = "Measures Pointsman on this machine, over loopback only"
)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// CPU per exchange of our server beside a bare one that sends the same replies
    Transport(transport::TransportArgs),
    /// Serve a picker that parses nothing and takes the workers in turn
    TrivialPicker(trivial::TrivialArgs),
    /// What a picker adds to a real Envoy, in latency and in CPU
    Latency(latency::LatencyArgs),
    /// What one request costs the selection service over HTTP, beside a bare service and the published one
    Select(select::SelectArgs),
    /// Serve the same routes with constants for answers
    BareSelect(select::BareArgs),
    /// How long events wait while a rank is told to another replica
    Dump(dump::DumpArgs),
    /// What each step of one request costs inside Pointsman
    Profile(profile::ProfileArgs),
}

/// A figure above its limit ends with 1, whatever kept a figure from being taken with 2.
fn main() -> ExitCode {
    match run(Cli::parse().bench) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(bench: Bench) -> Result<bool> {
    match bench {
        Bench::Transport(args) => on_one_thread(transport::run(args)),
        Bench::TrivialPicker(args) => on_one_thread(trivial::run(args)).map(|()| true),
        Bench::Latency(args) => latency::run(&args).map(|()| true),
        Bench::Select(args) => select::run(&args),
        Bench::BareSelect(args) => select::serve_bare(&args).map(|()| true),
        Bench::Dump(args) => dump::run(&args),
        Bench::Profile(args) => profile::run(&args).map(|()| true),
    }
}

fn on_one_thread<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}
