//! Times a whole cycle of a reservation in process: select and reserve, prefill complete, free; CPU of all threads of a side.
//! Nothing is parsed: requests are values made beforehand.

use dynamo_kv_router::WorkerSelectionPolicy as PeerPolicy;
use dynamo_kv_router::services::selection::{
    RouterPluginRegistry as PeerRegistry, SelectAndReserveRequest, SelectionService as PeerService,
    SelectionServiceBuilder as PeerBuilder,
};
use dynamo_kv_router::{KvRouterConfig as PeerConfig, WorkerType as PeerType};
use pointsman_core::hash::{BlockHash, HashLayout, HashSeed, SequenceHash, prompt_hashes};
use pointsman_core::{PartitionId, Prompt, SelectionRequest};
use pointsman_plugin::{KvRouterConfig, RouterPluginRegistry, WorkerType};
use pointsman_service::{SelectionService, SelectionServiceBuilder};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::report::{cpu, quantile, verdict};

const BLOCK_SIZE: u32 = 16;
const MODEL: &str = "m";
/// Requests that are held on each worker all the while.
const STANDING: usize = 4;
const CYCLES: usize = 500;
const REPEATS: usize = 7;
/// Tokens that all prompts begin with.
const SYSTEM_TOKENS: usize = 512;

#[derive(Clone, Copy, Debug)]
enum Form {
    Tokens,
    Hashes,
}

struct Sides {
    runtime: Runtime,
    ours: SelectionService,
    partition: PartitionId,
    peer: PeerService,
}

pub(crate) fn run(workers: &[usize]) {
    println!("one cycle, us of CPU: ours / peer");
    for workers in workers {
        for (form, tokens, limit) in [
            (Form::Hashes, 1_024, 0.25),
            (Form::Tokens, 1_024, 0.25),
            (Form::Tokens, 8_000, 0.25),
        ] {
            let limit = if *workers >= 512 { 0.08 } else { limit };
            row(*workers, form, tokens, limit);
        }
    }
}

fn row(workers: usize, form: Form, tokens: usize, limit: f64) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let sides = Sides::new(runtime, workers);
    let prompts = prompts(CYCLES + STANDING * workers);
    let prompts: Vec<_> = prompts.iter().map(|ids| &ids[..tokens]).collect();
    let (standing, prompts) = prompts.split_at(STANDING * workers);
    for (at, ids) in standing.iter().enumerate() {
        let id = format!("standing-{at}");
        sides.reserve_ours(ours_request(form, ids), &id);
        sides.reserve_peers(peers_request(form, ids, &id));
    }
    let mut figures = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..REPEATS {
        let ours: Vec<_> = prompts.iter().map(|ids| ours_request(form, ids)).collect();
        let peers: Vec<_> = prompts
            .iter()
            .map(|ids| peers_request(form, ids, "timed"))
            .collect();
        let start = cpu();
        for request in ours {
            sides.reserve_ours(request, "timed");
            sides.ours.prefill_complete("timed").expect("held");
            sides.ours.free("timed").expect("held");
        }
        let between = cpu();
        for request in peers {
            sides.reserve_peers(request);
            sides.runtime.block_on(async {
                sides.peer.prefill_complete("timed").await.expect("held");
                sides.peer.free_reservation("timed").await.expect("held");
            });
        }
        let done = cpu();
        let [our, their] =
            [between - start, done - between].map(|time| time * 1e6 / prompts.len() as f64);
        figures[0].push(our);
        figures[1].push(their);
        figures[2].push(our / their);
    }
    let [our, their, ratio] = figures.map(|mut figures| quantile(&mut figures, 0.5));
    println!(
        "{workers:>5} workers, {tokens:>5} tokens as {form:?}: {our:>8.1} / {their:>8.1}  {}",
        verdict(ratio, limit)
    );
}

impl Sides {
    fn new(runtime: Runtime, workers: usize) -> Self {
        let builder = SelectionServiceBuilder::new(
            KvRouterConfig::default(),
            WorkerType::Aggregated,
            RouterPluginRegistry::default(),
        );
        let ours = runtime.block_on(builder.build()).expect("a service");
        let builder = PeerBuilder::new(
            PeerConfig::default(),
            PeerType::Aggregated,
            PeerRegistry::default(),
        );
        let builder =
            builder.worker_selection_policy_factory(std::sync::Arc::new(|config, role, _| {
                PeerPolicy::reference(config.clone(), role.default_selector_label())
            }));
        let peer = runtime.block_on(builder.build()).expect("a service");
        for at in 0..workers {
            let worker = registration(at);
            let ours_is = serde_json::from_value(worker.clone()).expect("a registration");
            ours.register_worker(ours_is).expect("registered");
            // The peer wants a source of events; nothing ever comes from this one.
            let mut worker = worker;
            worker["kv_events_endpoint"] = format!("inproc://{at}").into();
            let peers_is = serde_json::from_value(worker).expect("a registration");
            runtime
                .block_on(peer.upsert_worker(peers_is))
                .expect("registered");
        }
        Self {
            runtime,
            ours,
            partition: PartitionId::new(MODEL, "default"),
            peer,
        }
    }

    fn reserve_ours(&self, request: SelectionRequest, id: &str) {
        let reserve =
            self.ours
                .select_and_reserve_by_id(&self.partition, request, Some(id.to_owned()));
        self.runtime.block_on(reserve).expect("reserved");
    }

    fn reserve_peers(&self, request: SelectAndReserveRequest) {
        let reserve = self.peer.select_and_reserve(request);
        self.runtime.block_on(reserve).expect("reserved");
    }
}

fn registration(worker: usize) -> Value {
    json!({
        "worker_id": worker,
        "model_name": MODEL,
        "endpoint": format!("http://10.0.{}.{}:8000", worker / 250, worker % 250 + 1),
        "block_size": BLOCK_SIZE,
        "max_num_batched_tokens": 8192,
        "total_kv_blocks": 100_000,
    })
}

fn prompts(count: usize) -> Vec<Vec<u32>> {
    let mut random = SmallRng::seed_from_u64(5);
    let system: Vec<u32> = (0..SYSTEM_TOKENS).map(|_| random.random()).collect();
    (0..count)
        .map(|_| {
            let mut ids = system.clone();
            ids.extend((SYSTEM_TOKENS..8_000).map(|_| random.random::<u32>()));
            ids
        })
        .collect()
}

fn hashes(ids: &[u32]) -> (Vec<BlockHash>, Vec<SequenceHash>) {
    let layout = HashLayout {
        block_size: BLOCK_SIZE.try_into().expect("a size"),
        eagle: false,
    };
    let hashes = prompt_hashes(ids, layout, HashSeed::default(), &[]);
    (hashes.block_hashes, hashes.sequence_hashes)
}

fn ours_request(form: Form, ids: &[u32]) -> SelectionRequest {
    let prompt = match form {
        Form::Tokens => Prompt::Tokens {
            ids: ids.to_vec(),
            media: Vec::new(),
        },
        Form::Hashes => {
            let (block_hashes, sequence_hashes) = hashes(ids);
            Prompt::Hashes {
                block_hashes,
                sequence_hashes,
                isl_tokens: ids.len() as u64,
            }
        }
    };
    SelectionRequest {
        prompt,
        ..SelectionRequest::default()
    }
}

fn peers_request(form: Form, ids: &[u32], id: &str) -> SelectAndReserveRequest {
    let request = json!({"model_name": MODEL, "selection_id": id});
    let mut request: SelectAndReserveRequest = serde_json::from_value(request).expect("a request");
    match form {
        Form::Tokens => request.prompt.token_ids = Some(ids.to_vec()),
        Form::Hashes => {
            let (blocks, sequences) = hashes(ids);
            let signed = |hash: u64| hash.cast_signed();
            request.prompt.block_hashes = Some(blocks.iter().map(|hash| signed(hash.0)).collect());
            request.prompt.sequence_hashes =
                Some(sequences.iter().map(|hash| signed(hash.0)).collect());
            request.prompt.isl_tokens = Some(ids.len());
        }
    }
    request
}
