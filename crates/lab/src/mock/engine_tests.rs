//! The scheduler: the rule of cached tokens, events against what is cached, freeing, queueing, time.

use std::collections::HashMap;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

const BLOCK: usize = 4;

fn engine(total_blocks: usize) -> Engine {
    Engine::new(EngineConfig {
        block_size: 4,
        total_blocks,
        host_blocks: 0,
        max_num_seqs: 4,
        max_num_batched_tokens: 32,
        max_waiting: 8,
        prefill_us_per_token: 10.0,
        prefill_overhead_us: 100.0,
        decode_us: 1_000.0,
        decode_us_per_seq: 50.0,
        metrics_padding_bytes: 0,
    })
}

fn job(prompt: &[u32], answer: &[u32]) -> Job {
    Job {
        prompt: prompt.to_vec(),
        answer: answer.to_vec(),
        salt: None,
        adapter: None,
    }
}

/// Hashes known from events alone, with the number of copies of each: what a router can know.
#[derive(Default)]
struct Mirror(HashMap<u64, usize>);

impl Mirror {
    fn apply(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::Stored(run) => {
                    assert_eq!(run.tokens.len(), run.hashes.len() * BLOCK);
                    for hash in &run.hashes {
                        *self.0.entry(*hash).or_default() += 1;
                    }
                }
                Event::Removed(hashes) => hashes.iter().for_each(|hash| self.remove(*hash)),
                Event::Cleared => self.0.clear(),
                Event::HostStored { .. } | Event::HostRemoved(_) => {}
            }
        }
    }

    fn remove(&mut self, hash: u64) {
        let copies = self.0.get_mut(&hash).expect("removed but never stored");
        *copies -= 1;
        if *copies == 0 {
            self.0.remove(&hash);
        }
    }

    /// The rule: matched blocks, but never the one with the last prompt token.
    fn predict(&self, prompt: &[u32]) -> usize {
        let mut parent = None;
        let mut matched = 0;
        for block in prompt.chunks_exact(BLOCK) {
            let hash = chained_hash(parent, None, block);
            if !self.0.contains_key(&hash) {
                break;
            }
            parent = Some(hash);
            matched += 1;
        }
        matched.min((prompt.len() - 1) / BLOCK) * BLOCK
    }
}

/// Runs until nothing is left to compute, and gives the cached tokens and the answer's length of each request.
fn drain(engine: &mut Engine, mirror: &mut Mirror) -> HashMap<RequestId, (usize, usize)> {
    let mut seen: HashMap<RequestId, (usize, usize)> = HashMap::new();
    while let Some(step) = engine.begin_step() {
        let outcome = engine.finish_step();
        mirror.apply(&outcome.events);
        for (id, progress) in step.admitted.into_iter().chain(outcome.progress) {
            match progress {
                Progress::Admitted { cached_tokens } => {
                    seen.entry(id).or_default().0 = cached_tokens;
                }
                Progress::Token { .. } => seen.entry(id).or_default().1 += 1,
            }
        }
    }
    seen
}

fn cached(engine: &mut Engine, mirror: &mut Mirror, prompt: &[u32], answer: &[u32]) -> usize {
    let id = engine.submit(job(prompt, answer)).unwrap();
    let seen = drain(engine, mirror)[&id];
    assert_eq!(seen.1, answer.len());
    seen.0
}

#[test]
fn the_last_prompt_token_is_never_cached() {
    let (mut engine, mut mirror) = (engine(64), Mirror::default());
    let prompt: Vec<u32> = (0..8).collect();
    assert_eq!(cached(&mut engine, &mut mirror, &prompt, &[9]), 0);
    assert_eq!(cached(&mut engine, &mut mirror, &prompt, &[9]), 4);
    assert_eq!(
        cached(
            &mut engine,
            &mut mirror,
            &[&prompt[..], &[1]].concat(),
            &[9]
        ),
        8
    );
}

#[test]
fn blocks_of_the_answer_are_cached_up_to_the_token_before_its_last() {
    let (mut engine, mut mirror) = (engine(64), Mirror::default());
    let answer: Vec<u32> = (10..16).collect();
    assert_eq!(cached(&mut engine, &mut mirror, &[1, 2], &answer), 0);
    // Two and six are eight tokens; the last one was sampled, not computed.
    let next = [&[1, 2], &answer[..], &[7, 7, 7]].concat();
    assert_eq!(cached(&mut engine, &mut mirror, &next, &[9]), 4);
    let longer: Vec<u32> = (20..27).collect();
    assert_eq!(cached(&mut engine, &mut mirror, &[5, 5], &longer), 0);
    let next = [&[5, 5], &longer[..], &[7, 7, 7]].concat();
    assert_eq!(cached(&mut engine, &mut mirror, &next, &[9]), 8);
}

#[test]
fn one_at_a_time_the_events_foretell_every_cached_token() {
    let seed = super::super::fresh_seed();
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let (mut engine, mut mirror) = (engine(40), Mirror::default());
    for _ in 0..3_000 {
        let length = random.random_range(1..60);
        let prompt: Vec<u32> = (0..length)
            .map(|_| u32::from(random.random_bool(0.1)))
            .collect();
        let answer = vec![3; random.random_range(1..20)];
        let foretold = mirror.predict(&prompt);
        assert_eq!(cached(&mut engine, &mut mirror, &prompt, &answer), foretold);
        assert_eq!(engine.gauges().blocks_held, mirror.0.len());
    }
}

#[test]
fn crowds_and_aborts_leave_no_block_in_use_and_events_that_match_the_cache() {
    let seed = super::super::fresh_seed();
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let (mut engine, mut mirror) = (engine(24), Mirror::default());
    let mut live: HashMap<RequestId, usize> = HashMap::new();
    for _ in 0..30_000 {
        if random.random_bool(0.4) {
            let length = random.random_range(1..40);
            let prompt: Vec<u32> = (0..length)
                .map(|_| u32::from(random.random_bool(0.1)))
                .collect();
            let answer = vec![3; random.random_range(1..30)];
            if let Ok(id) = engine.submit(job(&prompt, &answer)) {
                live.insert(id, answer.len());
            }
        }
        if random.random_bool(0.05) {
            let victim = live.keys().next().copied();
            if let Some(id) = victim {
                live.remove(&id);
                engine.abort(id);
            }
        }
        let step = engine.begin_step();
        assert!(
            step.is_some() || live.is_empty(),
            "work is left and nothing is done"
        );
        let outcome = engine.finish_step();
        mirror.apply(&outcome.events);
        for (id, progress) in outcome.progress {
            let left = live.get_mut(&id).expect("a token for nobody");
            *left -= 1;
            assert_eq!(progress, Progress::Token { last: *left == 0 });
            if *left == 0 {
                live.remove(&id);
            }
        }
    }
    assert!(engine.gauges().preemptions > 0);
    drain(&mut engine, &mut mirror);
    assert_eq!(engine.gauges().blocks_in_use, 0);
    assert_eq!(engine.gauges().blocks_held, mirror.0.len());
}

#[test]
fn a_request_that_finds_no_block_waits_for_one() {
    let (mut engine, mut mirror) = (engine(4), Mirror::default());
    let first = engine.submit(job(&[1; 12], &[2; 4])).unwrap();
    let second = engine.submit(job(&[3; 12], &[2; 4])).unwrap();
    let step = engine.begin_step().unwrap();
    assert_eq!(
        step.admitted,
        [(first, Progress::Admitted { cached_tokens: 0 })]
    );
    assert_eq!(engine.gauges().waiting, 1);
    mirror.apply(&engine.finish_step().events);
    let seen = drain(&mut engine, &mut mirror);
    assert_eq!(seen[&second], (0, 4));
}

#[test]
fn an_aborted_request_frees_its_blocks_and_leaves_them_cached() {
    let (mut engine, mut mirror) = (engine(64), Mirror::default());
    let prompt: Vec<u32> = (0..20).collect();
    let id = engine.submit(job(&prompt, &[2; 50])).unwrap();
    engine.begin_step().unwrap();
    mirror.apply(&engine.finish_step().events);
    engine.abort(id);
    assert_eq!(engine.gauges().blocks_in_use, 0);
    assert!(engine.begin_step().is_none());
    assert_eq!(cached(&mut engine, &mut mirror, &prompt, &[2]), 16);
}

#[test]
fn a_step_takes_time_by_uncached_tokens_and_by_batch() {
    let (mut engine, mut mirror) = (engine(64), Mirror::default());
    cached(&mut engine, &mut mirror, &[1; 12], &[2]);
    engine
        .submit(job(&[[1; 12], [5; 12]].concat(), &[2; 3]))
        .unwrap();
    engine.submit(job(&[6; 8], &[2; 3])).unwrap();
    // 12 of 24 tokens are cached, so 12 + 8 are computed.
    let prefill = engine.begin_step().unwrap().duration;
    assert_eq!(prefill, Duration::from_micros(100 + 20 * 10));
    engine.finish_step();
    let decode = engine.begin_step().unwrap().duration;
    assert_eq!(decode, Duration::from_micros(1_000 + 2 * 50));
}

#[test]
fn a_long_prompt_is_computed_in_several_steps() {
    let mut engine = engine(64);
    engine.submit(job(&[1; 40], &[2])).unwrap();
    engine.begin_step().unwrap();
    assert!(engine.finish_step().progress.is_empty());
    engine.begin_step().unwrap();
    assert_eq!(
        engine.finish_step().progress,
        [(0, Progress::Token { last: true })]
    );
}

#[test]
fn what_can_never_run_is_refused() {
    let mut engine = engine(4);
    assert_eq!(engine.submit(job(&[1; 16], &[2])), Err(Rejection::TooLong));
    assert_eq!(engine.submit(job(&[], &[2])), Err(Rejection::Empty));
    for _ in 0..8 {
        engine.submit(job(&[1], &[2])).unwrap();
    }
    assert_eq!(engine.submit(job(&[1], &[2])), Err(Rejection::QueueFull));
}

#[test]
fn a_reset_is_told_with_the_next_step_and_a_restart_never() {
    let (mut engine, mut mirror) = (engine(64), Mirror::default());
    cached(&mut engine, &mut mirror, &[1; 12], &[2]);
    assert!(engine.reset_cache());
    assert_eq!(cached(&mut engine, &mut mirror, &[1; 12], &[2]), 0);
    assert_eq!(mirror.0.len(), engine.gauges().blocks_held);
    engine.restart();
    engine.submit(job(&[9; 4], &[2])).unwrap();
    engine.begin_step().unwrap();
    assert!(matches!(
        engine.finish_step().events.as_slice(),
        [Event::Stored(_)]
    ));
}

#[test]
fn blocks_of_one_adapter_are_none_of_another() {
    let (mut engine, mut mirror) = (engine(64), Mirror::default());
    let prompt: Vec<u32> = (0..9).collect();
    let mut cached_by = |adapter: Option<&str>| {
        let job = Job {
            adapter: adapter.map(str::to_owned),
            ..job(&prompt, &[9])
        };
        let id = engine.submit(job).unwrap();
        drain(&mut engine, &mut mirror)[&id].0
    };
    let cached = [None, Some("a"), Some("b"), Some("a"), None].map(&mut cached_by);
    assert_eq!(cached, [0, 0, 0, 8, 8]);
}

#[test]
fn an_evicted_block_is_found_in_the_hosts_memory() {
    let mut config = engine(4).config;
    config.host_blocks = 8;
    let (mut engine, mut mirror) = (Engine::new(config), Mirror::default());
    let first: Vec<u32> = (0..9).collect();
    let second: Vec<u32> = (100..115).collect();
    assert_eq!(cached(&mut engine, &mut mirror, &first, &[9]), 0);
    assert_eq!(cached(&mut engine, &mut mirror, &second, &[9]), 0);
    // The second prompt took all four blocks.
    assert_eq!(mirror.predict(&first), 0);
    assert_eq!(cached(&mut engine, &mut mirror, &first, &[9]), 8);
    // Copied, so it is told as stored again.
    assert_eq!(mirror.predict(&first), 8);
}
