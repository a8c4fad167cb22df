//! What a picker adds to a real Envoy: Envoy alone, with a trivial picker and with Pointsman, in turn.
//! Everything runs on this machine, over loopback, for a bounded time.

mod envoy;
mod load;
mod report;
mod stage;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;

use self::load::Plan;
use self::report::{Measured, Row, WAYS};
use self::stage::Stage;
use crate::cpu;
use crate::processes::Process;
use crate::prompts::{Prompts, Size};

/// At one request a second there is little to take a median of, so it lasts this many times longer.
const SLOW_FACTOR: u32 = 2;

#[derive(Args, Debug)]
pub(crate) struct LatencyArgs {
    /// Envoy's binary
    #[arg(long, env = "POINTSMAN_ENVOY")]
    envoy: PathBuf,
    /// Folder with `tokenizer.json` and `tokenizer_config.json`
    #[arg(long, env = "POINTSMAN_TOKENIZER_DIR")]
    tokenizer_dir: PathBuf,
    /// Pointsman's release binary
    #[arg(long, env = "POINTSMAN_BIN")]
    pointsman: PathBuf,
    /// Seconds of each load for each way, over all repeats (one request a second takes twice as long)
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Repeats; the ways take turns within each
    #[arg(long, default_value_t = 3)]
    repeats: u32,
    /// Constant rates, requests a second
    #[arg(long, value_delimiter = ',', default_values_t = [1, 50, 500])]
    rates: Vec<u32>,
    /// Threads of Pointsman; its own default unless given
    #[arg(long)]
    threads: Option<u32>,
    /// Seed of the prompts
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keep the configuration and the logs
    #[arg(long)]
    keep: bool,
}

/// CPU that each process uses by itself, as a share of the time.
#[derive(Clone, Copy, Debug, Default)]
struct Idle {
    envoy: f64,
    pickers: [f64; 3],
}

/// A stage that is ready to be measured.
struct Bench<'a> {
    args: &'a LatencyArgs,
    prompts: &'a Prompts,
    stage: &'a Stage,
    idle: Idle,
}

pub(crate) fn run(args: &LatencyArgs) -> Result<()> {
    ensure!(
        args.repeats > 0 && args.seconds > 0,
        "there must be something to measure"
    );
    let prompts = Prompts::new(args.seed);
    let stage = Stage::set(args, &prompts)?;
    let mut bench = Bench {
        args,
        prompts: &prompts,
        stage: &stage,
        idle: Idle::default(),
    };
    bench.warm_up()?;
    bench.idle = bench.measure_idle()?;
    let rows = bench.measure()?;
    report::print(&rows);
    let Idle {
        envoy,
        pickers: [_, trivial, ours],
    } = bench.idle;
    println!(
        "idle CPU, share of a core: Envoy {envoy:.4}, trivial {trivial:.4}, Pointsman {ours:.4}"
    );
    for (name, picker) in WAYS.iter().zip(&stage.pickers) {
        if let Some(mib) = picker.as_ref().and_then(Process::peak_mib) {
            println!("peak memory {name}: {mib:.0} MiB");
        }
    }
    if args.keep {
        println!("kept: {}", stage.folder.path().display());
    } else {
        stage.folder.remove()?;
    }
    Ok(())
}

impl Bench<'_> {
    /// Opens every connection and fills every cache that is not the prompts' own.
    fn warm_up(&self) -> Result<()> {
        for (way, name) in WAYS.into_iter().enumerate() {
            for size in Size::ALL {
                let lasting = Duration::from_secs(2);
                let plan = Plan {
                    server: self.server(way),
                    per_second: 50,
                    lasting,
                    size,
                    first_number: u64::MAX / 2,
                };
                let outcome = load::run(plan, self.prompts);
                ensure!(
                    outcome.errors == 0,
                    "{name}: {} of {} requests of {} failed while warming up; see {}",
                    outcome.errors,
                    plan.requests(),
                    size.label(),
                    self.stage.folder.path().display()
                );
            }
        }
        Ok(())
    }

    fn measure_idle(&self) -> Result<Idle> {
        let read = || -> Result<[Duration; 4]> {
            let [_, trivial, pointsman] = &self.stage.pickers;
            let cpu = |process: Option<&Process>| {
                process.map_or(Ok(Duration::ZERO), |p| cpu::of_process(p.pid()))
            };
            Ok([
                cpu(Some(&self.stage.envoy))?,
                Duration::ZERO,
                cpu(trivial.as_ref())?,
                cpu(pointsman.as_ref())?,
            ])
        };
        let lasting = Duration::from_secs(3);
        let before = read()?;
        thread::sleep(lasting);
        let after = read()?;
        let share = |n: usize| after[n].saturating_sub(before[n]).div_duration_f64(lasting);
        Ok(Idle {
            envoy: share(0),
            pickers: [share(1), share(2), share(3)],
        })
    }

    fn measure(&self) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for size in Size::ALL {
            for &per_second in &self.args.rates {
                rows.push(Row {
                    size,
                    per_second,
                    repeats: Vec::new(),
                });
            }
        }
        let mut number = 0;
        for repeat in 0..self.args.repeats {
            for row in &mut rows {
                println!(
                    "repeat {} of {}: {} at {} req/s",
                    repeat + 1,
                    self.args.repeats,
                    row.size.label(),
                    row.per_second
                );
                row.repeats
                    .push(self.measure_ways(row, repeat, &mut number)?);
            }
        }
        Ok(rows)
    }

    fn measure_ways(&self, row: &Row, repeat: u32, number: &mut u64) -> Result<[Measured; 3]> {
        let factor = if row.per_second == 1 { SLOW_FACTOR } else { 1 };
        let lasting = Duration::from_secs((self.args.seconds * factor).into()) / self.args.repeats;
        let mut measured = [const { None }; 3];
        for turn in 0..3 {
            let way = (turn + repeat as usize) % 3;
            let plan = Plan {
                server: self.server(way),
                per_second: row.per_second,
                lasting,
                size: row.size,
                first_number: *number,
            };
            *number += plan.requests();
            measured[way] = Some(self.measure_one(way, plan)?);
        }
        Ok(measured.map(|one| one.expect("three turns visit each of three ways")))
    }

    fn measure_one(&self, way: usize, plan: Plan) -> Result<Measured> {
        let picker = self.stage.pickers[way].as_ref();
        let read = || -> Result<(Duration, Duration)> {
            let of_picker =
                picker.map_or(Ok(Duration::ZERO), |picker| cpu::of_process(picker.pid()))?;
            Ok((cpu::of_process(self.stage.envoy.pid())?, of_picker))
        };
        let (envoy_before, picker_before) = read()?;
        let started = Instant::now();
        let outcome = load::run(plan, self.prompts);
        let took = started.elapsed();
        let (envoy_after, picker_after) = read()?;
        let each = |used: Duration, idle: f64| {
            let net = used.as_secs_f64() - idle * took.as_secs_f64();
            net.max(0.0) * 1e6 / plan.requests() as f64
        };
        Ok(Measured {
            outcome,
            envoy_us: each(envoy_after.saturating_sub(envoy_before), self.idle.envoy),
            picker_us: picker.map(|_| {
                each(
                    picker_after.saturating_sub(picker_before),
                    self.idle.pickers[way],
                )
            }),
        })
    }

    fn server(&self, way: usize) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.stage.ports[way]))
    }
}
