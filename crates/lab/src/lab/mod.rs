//! The lab: a real Envoy, Pointsman and mock workers on one machine, conversations through them, and what they show.
//! Never a benchmark: the workers' times follow a formula.

mod child;
mod client;
mod conversation;
mod draw;
mod envoy;
mod error;
mod play;
mod stage;
mod tokenizer;
mod verdict;

use std::path::PathBuf;

use tokio::signal::unix::{SignalKind, signal};

pub use error::LabError;
pub use tokenizer::door as tokenizer_door;

use crate::mock::{FaultRequest, FleetConfig};
use conversation::Conversation;
use draw::{Progress, rate, step};
use play::{Pace, Restarts, Turn, play};
use stage::{Programs, Stage};
use verdict::{Figures, broken_promises, figures, wrong_predictions};

/// Broken promises that are printed one by one.
const MOST_SHOWN: usize = 20;

/// What the lab does after its parts are up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Show the conversations against round robin, then stay up.
    Stay,
    /// Show them, then end.
    Once,
    /// Check the promises, then end.
    Check,
}

#[derive(Clone, Debug)]
pub struct Options {
    pub pointsman: PathBuf,
    pub envoy: PathBuf,
    pub tokenizer_dir: PathBuf,
    /// For logs and generated configuration.
    pub folder: PathBuf,
    /// Envoy's first port; another free one is taken where it is in use.
    pub port: u16,
    pub fleet: FleetConfig,
    /// More settings for Pointsman.
    pub pointsman_env: Vec<(String, String)>,
    pub mode: Mode,
    pub conversations: usize,
    pub turns: usize,
    /// Requests in flight in the shown runs and in the second run of a check.
    pub in_flight: usize,
}

/// How the lab ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Done,
    Interrupted,
    /// A promise was broken; it has been said which.
    Broken,
}

/// Runs the lab to its end, or to a signal. Whatever happens, the programs it started are stopped.
pub async fn run(options: &Options) -> Result<Ending, LabError> {
    let mut programs = Programs::default();
    let outcome = tokio::select! {
        outcome = act(options, &mut programs) => outcome,
        interrupted = interrupted() => interrupted.map(|()| Ending::Interrupted),
    };
    let outcome = match outcome {
        // A request that failed because a program died: the death is what must be told.
        Err(error) => Err(programs.failure().unwrap_or(error)),
        Ok(ending) => Ok(ending),
    };
    if outcome.is_ok() {
        step("stopping");
    }
    programs.stop().await;
    outcome
}

async fn act(options: &Options, programs: &mut Programs) -> Result<Ending, LabError> {
    let stage = Stage::set(options, programs).await?;
    let ending = match options.mode {
        Mode::Check => check(options, &stage).await?,
        Mode::Once => show(options, &stage).await?,
        Mode::Stay => {
            show(options, &stage).await?;
            println!("{}", invitation(options, &stage));
            return Err(programs.unexpected_end().await);
        }
    };
    stage.fleet.shutdown().await;
    Ok(ending)
}

/// Waits for Ctrl-C or a request to end.
pub async fn interrupted() -> Result<(), LabError> {
    let watch = |kind| signal(kind).map_err(LabError::io("watching for signals"));
    let (mut interrupt, mut terminate) = (
        watch(SignalKind::interrupt())?,
        watch(SignalKind::terminate())?,
    );
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

/// The same conversations twice: picked by Pointsman, and in turn.
async fn show(options: &Options, stage: &Stage) -> Result<Ending, LabError> {
    let conversations =
        Conversation::draw(options.fleet.seed, options.conversations, options.turns);
    let systems: Vec<Option<u64>> = conversations.iter().map(|each| each.system).collect();
    step(&format!(
        "{} conversations of {} turns, {} in flight (--in-flight): through Pointsman, then by round robin",
        options.conversations, options.turns, options.in_flight,
    ));
    let picked = perform(options, stage, &conversations, Gateway::Pointsman).await?;
    let in_turn = perform(options, stage, &conversations, Gateway::RoundRobin).await?;
    print!(
        "{}",
        draw::table(
            "Pointsman: who served each turn, and how much of its prompt was cached",
            &picked,
            &systems
        )
    );
    print!("{}", draw::table("Round robin", &in_turn, &systems));
    print!(
        "{}",
        draw::comparison(&figures(&picked), &figures(&in_turn))
    );
    Ok(Ending::Done)
}

#[derive(Clone, Copy, Debug)]
enum Gateway {
    Pointsman,
    RoundRobin,
}

/// One run from empty caches.
async fn perform(
    options: &Options,
    stage: &Stage,
    conversations: &[Conversation],
    gateway: Gateway,
) -> Result<Vec<Turn>, LabError> {
    for worker in stage.fleet.workers() {
        worker.reset_caches().await;
    }
    let (label, address) = match gateway {
        Gateway::Pointsman => ("through Pointsman", stage.addresses.picked),
        Gateway::RoundRobin => ("by round robin", stage.addresses.round_robin),
    };
    let pace = Pace {
        in_flight: options.in_flight,
        settle: None,
        seed: options.fleet.seed,
    };
    let progress = Progress::new(label, conversations.len() * options.turns);
    let base = format!("http://{address}");
    let model = &options.fleet.model;
    play(
        &stage.client,
        &base,
        model,
        conversations.to_vec(),
        &pace,
        &progress,
    )
    .await
}

/// One request in flight: every promise must hold. Then many: the rates are told.
async fn check(options: &Options, stage: &Stage) -> Result<Ending, LabError> {
    let requests = options.conversations * options.turns;
    step(&format!(
        "{requests} requests, one in flight, each after all events of the one before were applied"
    ));
    let conversations =
        Conversation::draw(options.fleet.seed, options.conversations, options.turns);
    let pace = Pace {
        in_flight: 1,
        settle: Some(stage.settle()),
        seed: options.fleet.seed,
    };
    let base = format!("http://{}", stage.addresses.picked);
    let model = &options.fleet.model;
    let progress = Progress::new("one in flight", requests);
    let turns = play(&stage.client, &base, model, conversations, &pace, &progress).await?;
    println!("{}", rates("    1 in flight", &figures(&turns)));
    let mut broken = broken_promises(&turns);

    step(&format!(
        "{requests} requests, {} in flight, nothing waited for",
        options.in_flight
    ));
    let conversations =
        Conversation::draw(options.fleet.seed ^ 1, options.conversations, options.turns);
    let crowd = perform(options, stage, &conversations, Gateway::Pointsman).await?;
    println!(
        "{}",
        rates(
            &format!("{:>5} in flight", options.in_flight),
            &figures(&crowd)
        )
    );

    broken.extend(drill(options, stage).await?);
    if broken.is_empty() {
        println!(
            "ok: every conversation stayed on its worker and every prediction was right, \
             after a worker was killed too"
        );
        return Ok(Ending::Done);
    }
    println!(
        "FAILED: with one request in flight, {} promises were broken:",
        broken.len()
    );
    for line in broken.iter().take(MOST_SHOWN) {
        println!("  {line}");
    }
    Ok(Ending::Broken)
}

/// A worker is killed and starts again with an empty cache: once that is known, each prediction must be right.
async fn drill(options: &Options, stage: &Stage) -> Result<Vec<String>, LabError> {
    let Some(worker) = stage.fleet.workers().first() else {
        return Ok(Vec::new());
    };
    let requests = options.conversations * options.turns;
    step(&format!(
        "{} is killed and starts again; then {requests} requests, one in flight",
        worker.name()
    ));
    stage.settle().wait().await?;
    let restarts = Restarts::of(stage).await?;
    let restart = FaultRequest {
        restart: true,
        ..FaultRequest::default()
    };
    worker.ask_fault(&restart).await;
    restarts.wait_for_more(worker.ranks().into()).await?;
    let conversations =
        Conversation::draw(options.fleet.seed ^ 2, options.conversations, options.turns);
    let pace = Pace {
        in_flight: 1,
        settle: Some(stage.settle()),
        seed: options.fleet.seed,
    };
    let base = format!("http://{}", stage.addresses.picked);
    let progress = Progress::new("after the restart", requests);
    let model = &options.fleet.model;
    let turns = play(&stage.client, &base, model, conversations, &pace, &progress).await?;
    println!("{}", rates("after a restart", &figures(&turns)));
    Ok(wrong_predictions(&turns))
}

fn rates(label: &str, run: &Figures) -> String {
    format!(
        "{label}: stayed on the worker of the turn before {} ({} of {}), cached tokens as predicted {} ({} of {}), \
         {}% of prompt tokens cached",
        rate(run.stayed, run.later_turns),
        run.stayed,
        run.later_turns,
        rate(run.predicted_right, run.requests),
        run.predicted_right,
        run.requests,
        run.cached_tokens * 100 / run.prompt_tokens.max(1),
    )
}

/// What to try while the lab stays up.
fn invitation(options: &Options, stage: &Stage) -> String {
    let addresses = &stage.addresses;
    let model = &options.fleet.model;
    let worker = stage
        .fleet
        .workers()
        .first()
        .map(|worker| worker.address().to_string());
    let worker = worker.unwrap_or_default();
    let folder = stage.folder.display();
    let body = format!(
        "{{\"model\":\"{model}\",\"stream\":true,\"messages\":[{{\"role\":\"user\",\"content\":\"Tell me about the old harbour, its ships and its lamps, and who keeps them alight at night while the river is frozen.\"}}]}}"
    );
    format!(
        "
Everything stays up until Ctrl-C. Try, in another terminal:

  # a request through Envoy and Pointsman; send it twice and watch x-mock-cached-tokens
  curl -iN http://{picked}/v1/chat/completions -H 'content-type: application/json' -d '{body}'

  # the same by plain round robin
  curl -iN http://{round_robin}/v1/chat/completions -H 'content-type: application/json' -d '{body}'

  # what Pointsman knows: readiness, workers, load, events applied, metrics
  curl http://{admin}/ready
  curl http://{admin}/loads
  curl http://{admin}/events/applied
  curl http://{admin}/metrics

  # a worker's own account, and a fault: its next 2 batches of events are lost
  curl http://{worker}/mock/state
  curl http://{worker}/fault -d '{{\"events\":{{\"drop\":2}}}}'

Logs and configuration: {folder}",
        picked = addresses.picked,
        round_robin = addresses.round_robin,
        admin = addresses.admin,
    )
}
