//! Where the time of one request goes inside Pointsman: each step called by itself, on texts not seen before.
//! It measures no transport; `transport` and `latency` do.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Args;
use pointsman::ext_proc::{Pick, SubsetHint};
use pointsman::picker::{self, EndpointPicker};
use pointsman::request::{self, Head, PromptInput};
use pointsman::response::BodyCounter;
use pointsman::tokenize::{TokenizeConfig, Tokenizer};
use pointsman_core::Prompt;
use pointsman_core::hash::{HashLayout, HashSeed, prompt_hashes};
use pointsman_core::selection::SelectionRequest;
use pointsman_plugin::{KvRouterConfig, RouterPluginRegistry, WorkerType};
use pointsman_service::{SelectionService, SelectionServiceBuilder};
use prometheus_client::registry::Registry;

use crate::fleet::{BLOCK_SIZE, MODEL, MockFleet, Sent};
use crate::prompts::{Prompts, Size};
use crate::stats::median;

#[derive(Args, Debug)]
pub(crate) struct ProfileArgs {
    /// Folder with `tokenizer.json` and `tokenizer_config.json`
    #[arg(long, env = "POINTSMAN_TOKENIZER_DIR")]
    tokenizer_dir: PathBuf,
    /// Requests of each size
    #[arg(long, default_value_t = 300)]
    requests: u64,
    /// Seed of the prompts
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

const STEPS: [&str; 9] = [
    "parse the body",
    "render the template",
    "encode to token ids",
    "hash the blocks",
    "index, policy, reservation",
    "free the reservation",
    "sum of the above",
    "the whole pick, as one call",
    "count a 1 KB JSON answer",
];
const SUMMED: usize = 6;
const SSE_EVENT: &str = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word\"}}]}\n\n";

/// What the steps are called on.
struct Parts {
    service: SelectionService,
    tokenizer: Tokenizer,
    picker: EndpointPicker,
    head: Head,
}

pub(crate) fn run(args: &ProfileArgs) -> Result<()> {
    let prompts = Prompts::new(args.seed);
    let fleet = MockFleet::start(&args.tokenizer_dir)?;
    let parts = fleet.runtime().block_on(Parts::new(args, &fleet))?;
    fleet.fill(&prompts)?;
    fleet.runtime().block_on(parts.caught_up(&fleet.sent()));
    let columns = Size::ALL.map(|size| parts.measure(&fleet, &prompts, size, args.requests));
    let [small, large] = columns.map(|column| column.map(|costs| medians(&costs)));
    let (small, large) = (small?, large?);
    println!(
        "one request, {} of each size, texts not seen before; medians in us\n",
        args.requests
    );
    println!(
        "{:<30} {:>9} {:>9}",
        "step",
        Size::Small.label(),
        Size::Large.label()
    );
    for (step, name) in STEPS.into_iter().enumerate() {
        println!("{name:<30} {:>9.1} {:>9.1}", small[step], large[step]);
    }
    println!(
        "{:<30} {:>9.2}",
        "count one token of an SSE answer",
        sse_event_us()
    );
    Ok(())
}

impl Parts {
    async fn new(args: &ProfileArgs, fleet: &MockFleet) -> Result<Self> {
        let registry = RouterPluginRegistry::default();
        let service = SelectionServiceBuilder::new(
            KvRouterConfig::default(),
            WorkerType::Aggregated,
            registry,
        );
        let service = service.require_ip_endpoints(true).build().await?;
        let registrations = fleet
            .registrations(None)
            .into_iter()
            .map(serde_json::from_value);
        service.replace_workers(registrations.collect::<Result<_, _>>()?)?;
        let tokenizer = Tokenizer::load(&args.tokenizer_dir, TokenizeConfig::default())?;
        let metrics = picker::Metrics::new(&mut Registry::default());
        let picker = EndpointPicker::new(
            service.clone(),
            tokenizer.clone(),
            picker::Config::default(),
            metrics,
        );
        let head = Head::new([(":method", "POST"), (":path", "/v1/chat/completions")]);
        Ok(Self {
            service,
            tokenizer,
            picker,
            head,
        })
    }

    /// Waits until every event sent has reached the index.
    async fn caught_up(&self, sent: &[Sent]) {
        let applied = |sent: &Sent| {
            self.service
                .events_applied(sent.worker_id, 0)
                .and_then(|events| events.last_sequence)
        };
        while sent.iter().any(|sent| applied(sent) != sent.last_sequence) {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    fn measure(
        &self,
        fleet: &MockFleet,
        prompts: &Prompts,
        size: Size,
        requests: u64,
    ) -> Result<Vec<[f64; STEPS.len()]>> {
        // The first tenth warms up and is left out.
        let warm_up = requests / 10;
        let mut costs = Vec::new();
        for number in 0..warm_up + requests {
            let body = |number| Bytes::from(prompts.body(size, number));
            let mut cost = self.steps(fleet, &body(2 * number))?;
            let whole = body(2 * number + 1);
            cost[SUMMED + 1] = fleet.runtime().block_on(self.whole(whole))?;
            if number >= warm_up {
                costs.push(cost);
            }
        }
        Ok(costs)
    }

    fn steps(&self, fleet: &MockFleet, body: &Bytes) -> Result<[f64; STEPS.len()]> {
        let mut cost = [0.0; STEPS.len()];
        let (request, took) = timed(|| request::parse(&self.head, body));
        let request = request?;
        cost[0] = took;
        let PromptInput::Chat(chat) = &request.prompt else {
            anyhow::bail!("a chat body was read as something else")
        };
        let (rendered, took) = timed(|| self.tokenizer.render(chat));
        rendered?;
        cost[1] = took;
        let (ids, took) = timed(|| self.tokenizer.token_ids(&request));
        let ids = ids?;
        cost[2] = (took - cost[1]).max(0.0);
        let layout = HashLayout {
            block_size: BLOCK_SIZE.try_into()?,
            eagle: false,
        };
        cost[3] = timed(|| prompt_hashes(&ids, layout, HashSeed::new(None, None), &[])).1;
        let partition = self.service.partition_of(Some(MODEL))?;
        let prompt = Prompt::Tokens {
            ids,
            media: Vec::new(),
        };
        let selection = SelectionRequest {
            prompt,
            ..SelectionRequest::default()
        };
        let reserve = self.service.select_and_reserve(&partition, selection, None);
        let (reserved, took) = timed(|| fleet.runtime().block_on(reserve));
        let reserved = reserved?;
        cost[4] = (took - cost[3]).max(0.0);
        cost[5] = timed(|| drop(reserved)).1;
        cost[SUMMED] = cost[..SUMMED].iter().sum();
        cost[SUMMED + 2] = unary_us();
        Ok(cost)
    }

    async fn whole(&self, body: Bytes) -> Result<f64> {
        let started = Instant::now();
        let picked = self
            .picker
            .pick(self.head.clone(), body, SubsetHint::default())
            .await;
        let picked = picked.ok().context("the pick was refused")?;
        drop(picked);
        Ok(started.elapsed().as_secs_f64() * 1e6)
    }
}

fn medians(costs: &[[f64; STEPS.len()]]) -> [f64; STEPS.len()] {
    std::array::from_fn(|step| median(costs.iter().map(|cost| cost[step]).collect()))
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let started = Instant::now();
    let done = work();
    (done, started.elapsed().as_secs_f64() * 1e6)
}

fn unary_us() -> f64 {
    let text = "word ".repeat(180);
    let answer = format!(
        r#"{{"choices":[{{"message":{{"content":"{text}"}}}}],"usage":{{"prompt_tokens":9,"completion_tokens":4}}}}"#
    );
    let mut counter = BodyCounter::new(Some("application/json"));
    timed(|| {
        counter.push(answer.as_bytes());
        counter.finish()
    })
    .1
}

fn sse_event_us() -> f64 {
    const EVENTS: u32 = 10_000;
    let mut counter = BodyCounter::new(Some("text/event-stream"));
    let push_all = || {
        for _ in 0..EVENTS {
            std::hint::black_box(counter.push(SSE_EVENT.as_bytes()));
        }
    };
    timed(push_all).1 / f64::from(EVENTS)
}
