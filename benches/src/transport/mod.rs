//! What our transport costs beside a bare server that sends the same replies, both in this process.
//! Nothing is parsed, tokenized or reserved here, and the client's threads are never counted.

mod bare;
mod client;
mod fixed;
mod messages;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingResponse;
use prost::Message;

use self::bare::BareServer;
use self::client::Client;
use self::fixed::Ours;
use crate::cpu;
use crate::stats::{Spread, median};

/// What our server may cost beside the bare one, in CPU per exchange.
const LIMIT: f64 = 1.3;

#[derive(Args, Debug)]
pub(crate) struct TransportArgs {
    /// Repetitions; each measures both servers, in turn first
    #[arg(long, default_value_t = 15)]
    repetitions: usize,
    /// Exchanges of one server in one repetition
    #[arg(long, default_value_t = 10_000)]
    exchanges: usize,
    /// Exchanges in flight
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// HTTP/2 connections of the client
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Measure one server only, unloaded figures left out: for a profiler or an instruction counter
    #[arg(long, value_enum)]
    only: Option<Subject>,
    /// Exit with 1 when the ratio is above its limit
    #[arg(long)]
    enforce: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Subject {
    Bare,
    Pointsman,
}

/// One server with the client connected to it.
#[derive(Debug)]
struct Pair {
    server: Server,
    client: Client,
}

#[derive(Debug)]
enum Server {
    Bare(BareServer),
    Pointsman(Ours),
}

/// What one batch cost.
#[derive(Clone, Copy)]
struct Cost {
    cpu_us: f64,
    exchanges_per_second: f64,
    latency: Duration,
}

/// Returns whether the figure is within its limit, or need not be.
pub(crate) async fn run(args: TransportArgs) -> Result<bool> {
    let ours = Pair::new(Server::Pointsman(Ours::start()?), args.connections).await?;
    let replies = prebuilt(&ours.client).await?;
    let described = describe(&replies);
    let bare = Pair::new(Server::Bare(BareServer::start(replies)?), args.connections).await?;
    println!("transport alone: {described}");
    match args.only {
        Some(Subject::Bare) => alone(&bare, &args).await,
        Some(Subject::Pointsman) => alone(&ours, &args).await,
        None => compare(&bare, &ours, &args).await,
    }
}

impl Server {
    fn address(&self) -> SocketAddr {
        match self {
            Self::Bare(bare) => bare.address(),
            Self::Pointsman(ours) => ours.address(),
        }
    }

    fn cpu(&self) -> Result<Duration> {
        let name = match self {
            Self::Bare(_) => bare::THREAD_NAME,
            Self::Pointsman(_) => fixed::THREAD_NAME,
        };
        Ok(cpu::of_threads(name)?)
    }
}

impl Pair {
    async fn new(server: Server, connections: usize) -> Result<Self> {
        let client = Client::connect(server.address(), connections).await?;
        Ok(Self { server, client })
    }

    async fn batch(&self, exchanges: usize, in_flight: usize) -> Result<Cost> {
        let before = self.server.cpu()?;
        let batch = self.client.batch(exchanges, in_flight).await?;
        let used = self.server.cpu()?.saturating_sub(before);
        ensure!(
            !used.is_zero(),
            "no thread of the server was found to have used any CPU"
        );
        Ok(Cost {
            cpu_us: used.as_secs_f64() * 1e6 / exchanges as f64,
            exchanges_per_second: batch.exchanges_per_second,
            latency: batch.mean_latency,
        })
    }
}

/// Our own replies, for the bare server to send.
async fn prebuilt(client: &Client) -> Result<Arc<[ProcessingResponse]>> {
    let replies = client
        .replies()
        .await
        .context("taking our server's replies")?;
    let decoded: Vec<_> = replies
        .into_iter()
        .map(ProcessingResponse::decode)
        .collect::<Result<_, _>>()?;
    ensure!(
        decoded.iter().all(|reply| reply.response.is_some()),
        "our server sent an empty reply"
    );
    Ok(decoded.into())
}

fn describe(replies: &[ProcessingResponse]) -> String {
    let sizes: Vec<_> = replies
        .iter()
        .map(|reply| reply.encoded_len().to_string())
        .collect();
    format!(
        "14 request headers, {} B body, 6 response headers, {} B body; replies of {} B",
        messages::REQUEST_BODY_BYTES,
        messages::RESPONSE_BODY_BYTES,
        sizes.join(", ")
    )
}

async fn alone(pair: &Pair, args: &TransportArgs) -> Result<bool> {
    for _ in 0..args.repetitions {
        let cost = pair.batch(args.exchanges, args.in_flight).await?;
        println!(
            "CPU {:.2} us/exchange, {:.0} exchanges/s",
            cost.cpu_us, cost.exchanges_per_second
        );
    }
    Ok(true)
}

async fn compare(bare: &Pair, ours: &Pair, args: &TransportArgs) -> Result<bool> {
    println!(
        "loaded: {} in flight on {} connections, {} repetitions of {} exchanges; medians [quartiles]",
        args.in_flight, args.connections, args.repetitions, args.exchanges
    );
    let loaded = interleave(bare, ours, args, args.in_flight).await?;
    let ratio = report(&loaded);
    println!("unloaded: 1 in flight");
    let few = TransportArgs {
        exchanges: (args.exchanges / 10).max(1),
        ..*args
    };
    report(&interleave(bare, ours, &few, 1).await?);
    println!("\nratio of CPU per exchange, loaded: {ratio:.3} (limit {LIMIT})");
    let within = ratio.median <= LIMIT;
    Ok(within || !args.enforce)
}

/// Measures both servers once a repetition, the order turning, after one batch each to warm up.
async fn interleave(
    bare: &Pair,
    ours: &Pair,
    args: &TransportArgs,
    in_flight: usize,
) -> Result<Vec<[Cost; 2]>> {
    for pair in [bare, ours] {
        pair.batch(args.exchanges, in_flight).await?;
    }
    let mut costs = Vec::with_capacity(args.repetitions);
    for repetition in 0..args.repetitions {
        let order = if repetition % 2 == 0 {
            [bare, ours]
        } else {
            [ours, bare]
        };
        let first = order[0].batch(args.exchanges, in_flight).await?;
        let second = order[1].batch(args.exchanges, in_flight).await?;
        costs.push(if repetition % 2 == 0 {
            [first, second]
        } else {
            [second, first]
        });
    }
    Ok(costs)
}

/// Prints what both cost and returns the ratio of CPU per exchange.
fn report(costs: &[[Cost; 2]]) -> Spread {
    println!(
        "  {:<12} {:>22} {:>14} {:>16}",
        "", "CPU us/exchange", "exchanges/s", "mean latency us"
    );
    for (subject, name) in ["bare tonic", "pointsman"].into_iter().enumerate() {
        let each = |figure: fn(&Cost) -> f64| {
            costs
                .iter()
                .map(move |pair| figure(&pair[subject]))
                .collect::<Vec<_>>()
        };
        let cpu = format!("{:.1}", Spread::of(each(|cost| cost.cpu_us)));
        let rate = median(each(|cost| cost.exchanges_per_second));
        let latency = median(each(|cost| cost.latency.as_secs_f64() * 1e6));
        println!("  {name:<12} {cpu:>22} {rate:>14.0} {latency:>16.0}");
    }
    let ratio = Spread::of(
        costs
            .iter()
            .map(|[bare, ours]| ours.cpu_us / bare.cpu_us)
            .collect(),
    );
    println!("  ratio {ratio:.3}");
    ratio
}
