//! Measures Pointsman's KV index and what belongs to it beside the published router's, in one process on the same inputs; it prints each figure beside its limit and judges nothing else.
//!
//! Answers are compared before anything is timed. `replicas` and `recovery` time nothing: they show that the two understand each other.

mod busy;
mod cycle;
mod decode;
mod events;
mod hashing;
mod index;
mod inputs;
mod lookups;
mod memory;
mod recovery;
mod replicas;
mod report;
mod scale;
mod serve;
mod traces;

use std::process::ExitCode;

#[cfg(feature = "heap")]
#[global_allocator]
static HEAP: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

const USAGE: &str = "usage: pointsman-bench-peer BENCH [workers,..] [blocks,..]
       pointsman-bench-peer serve PORT THREADS

  lookups   warm lookups: full hit, prefix only, miss; many owners and few
  cold      the same with 9 million entries, each lookup timed alone
  busy      lookups in a partition while a million blocks a second pour in (ours alone)
  traces    lookups over request traces: traces [FOLDER] [workers,..]
  events    blocks stored and removed per second of CPU, bulk and one by one
  decode    payloads of KV events decoded, arrays and maps
  hashing   blocks of prompts hashed and chained
  cycle     CPU of select and reserve, prefill complete and free, in process
  scale     large fleets and the memory bound (ours alone); bytes with --features heap
  memory    live heap per entry; needs --features heap
  replicas  two selectors, one of each kind, share their load; also prints what the published one sends
  recovery  a published selector starts with our dump and says the same of prompts
  serve     the published selection service over HTTP, for `benches/run select`";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let list = |at: usize, default: &[usize]| -> Vec<usize> {
        let given = args
            .get(at)
            .map(|text| text.split(',').filter_map(|part| part.parse().ok()));
        given.map_or_else(|| default.to_vec(), Iterator::collect)
    };
    let workers = list(1, &[8, 64, 512, 2_000]);
    let blocks = list(2, &[64, 512, 8_192]);
    match args.first().map(String::as_str) {
        Some("lookups") => lookups::warm(&workers, &blocks),
        Some("cold") => lookups::cold(&list(1, &[64, 2_000])),
        Some("events") => events::run(&workers, &blocks),
        Some("busy") => busy::run(&list(1, &[64, 512])),
        Some("traces") => traces::run(args.get(1), &list(2, &[8, 64, 512])),
        Some("decode") => decode::run(),
        Some("hashing") => hashing::run(),
        Some("scale") => scale::run(),
        Some("cycle") => cycle::run(&list(1, &[8, 64, 512])),
        Some("serve") => {
            let number = |at: usize, default: u16| {
                let given = args.get(at).and_then(|text| text.parse().ok());
                given.unwrap_or(default)
            };
            serve::run(number(1, 8092), usize::from(number(2, 2)));
        }
        Some("memory") => memory::run(&workers, &blocks),
        Some(shown @ ("replicas" | "recovery")) => {
            let outcome = match shown {
                "replicas" => replicas::run(),
                _ => recovery::run(),
            };
            if let Err(error) = outcome {
                eprintln!("failed: {error}");
                return ExitCode::FAILURE;
            }
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
