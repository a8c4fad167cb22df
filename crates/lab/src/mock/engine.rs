//! The scheduler of one engine, step by step: waiting and running queues, chunked prefill, decode, preemption, and the
//! time a step takes. Never reads a clock: whoever drives it sleeps for as long as a step says.

use std::collections::VecDeque;
use std::time::Duration;

use super::blocks::{BlockCache, BlockId, chained_hash};
use super::events::{Event, StoredRun};

/// Size and speed of one engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Tokens in a block.
    pub block_size: u32,
    /// Blocks of KV cache.
    pub total_blocks: usize,
    /// Blocks of the host's memory, where evicted ones go and are found again; 0: none. Copying takes no time.
    pub host_blocks: usize,
    /// Sequences that run at a time.
    pub max_num_seqs: usize,
    /// Tokens computed in one step.
    pub max_num_batched_tokens: usize,
    /// Requests that may wait; one more is refused.
    pub max_waiting: usize,
    /// Prefill time per token that is not cached.
    pub prefill_us_per_token: f64,
    /// Time added to each step that has prefill in it.
    pub prefill_overhead_us: f64,
    /// Time of a decode step.
    pub decode_us: f64,
    /// Time added to a decode step by each sequence in it.
    pub decode_us_per_seq: f64,
    /// Comment lines of this many bytes at the end of `/metrics`: what a real engine's hundred metrics weigh.
    pub metrics_padding_bytes: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            block_size: 16,
            total_blocks: 65_536,
            host_blocks: 0,
            max_num_seqs: 256,
            max_num_batched_tokens: 8_192,
            max_waiting: 2_048,
            prefill_us_per_token: 40.0,
            prefill_overhead_us: 5_000.0,
            decode_us: 1_000.0,
            decode_us_per_seq: 100.0,
            metrics_padding_bytes: 0,
        }
    }
}

/// Number of a request within its engine.
pub(super) type RequestId = u64;

/// One request for the engine: its prompt, and the tokens that it will answer.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) prompt: Vec<u32>,
    pub(super) answer: Vec<u32>,
    pub(super) salt: Option<String>,
    /// Adapter that computes it; blocks are shared only within one adapter.
    pub(super) adapter: Option<String>,
}

impl Job {
    /// What separates the blocks of this job from those of the same tokens elsewhere.
    fn namespace(&self) -> Option<String> {
        match (&self.adapter, &self.salt) {
            (Some(adapter), salt) => Some(format!("{adapter}\0{}", salt.as_deref().unwrap_or(""))),
            (None, salt) => salt.clone(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Rejection {
    #[error("the waiting queue is full")]
    QueueFull,
    #[error("the prompt and its answer do not fit into the cache")]
    TooLong,
    #[error("the prompt or the answer is empty")]
    Empty,
}

/// What a step tells the request that it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Scheduled for the first time, with this many prompt tokens from the cache.
    Admitted { cached_tokens: usize },
    /// The next token of the answer is there.
    Token { last: bool },
}

/// Outcome of a step: who got what, and the events it caused.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) progress: Vec<(RequestId, Progress)>,
    pub(super) events: Vec<Event>,
}

/// A step under way: how long it takes, and whom it admitted.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) duration: Duration,
    pub(super) admitted: Vec<(RequestId, Progress)>,
}

/// Figures for `/metrics`.
#[derive(Clone, Debug, Default)]
pub(super) struct Gauges {
    pub(super) running: usize,
    pub(super) waiting: usize,
    pub(super) blocks_in_use: usize,
    pub(super) blocks_held: usize,
    pub(super) total_blocks: usize,
    pub(super) prefix_queries: u64,
    pub(super) prefix_hits: u64,
    pub(super) preemptions: u64,
    /// One entry per request that has an adapter.
    pub(super) running_adapters: Vec<String>,
    pub(super) waiting_adapters: Vec<String>,
}

#[derive(Debug)]
struct Sequence {
    id: RequestId,
    job: Job,
    namespace: Option<String>,
    /// Prompt and the part of the answer that is known.
    tokens: Vec<u32>,
    /// Hashes of the full blocks of `tokens`.
    hashes: Vec<u64>,
    blocks: Vec<BlockId>,
    /// Tokens whose KV is computed.
    computed: usize,
    /// Tokens that the step under way computes.
    scheduled: usize,
    /// Full blocks noted in the cache.
    stored: usize,
    admitted: bool,
}

#[derive(Debug)]
pub(super) struct Engine {
    config: EngineConfig,
    cache: BlockCache,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    next_id: RequestId,
    prefix_queries: u64,
    prefix_hits: u64,
    preemptions: u64,
    /// A fault: nothing cached is ever found.
    cache_unused: bool,
}

impl Engine {
    pub(super) fn new(config: EngineConfig) -> Self {
        let cache = BlockCache::new(config.total_blocks)
            .with_host_tier(config.host_blocks, config.block_size);
        Self {
            config,
            cache,
            waiting: VecDeque::new(),
            running: Vec::new(),
            next_id: 0,
            prefix_queries: 0,
            prefix_hits: 0,
            preemptions: 0,
            cache_unused: false,
        }
    }

    pub(super) fn submit(&mut self, job: Job) -> Result<RequestId, Rejection> {
        if job.prompt.is_empty() || job.answer.is_empty() {
            return Err(Rejection::Empty);
        }
        let longest = job.prompt.len().saturating_add(job.answer.len());
        if longest.div_ceil(self.block_size()) > self.cache.capacity() {
            return Err(Rejection::TooLong);
        }
        if self.waiting.len() >= self.config.max_waiting {
            return Err(Rejection::QueueFull);
        }
        let id = self.next_id;
        self.next_id += 1;
        let mut sequence = Sequence {
            id,
            tokens: job.prompt.clone(),
            namespace: job.namespace(),
            job,
            hashes: Vec::new(),
            blocks: Vec::new(),
            computed: 0,
            scheduled: 0,
            stored: 0,
            admitted: false,
        };
        sequence.hash_full_blocks(self.block_size());
        self.waiting.push_back(sequence);
        Ok(id)
    }

    /// Forgets a request and frees its blocks; their content stays cached.
    pub(super) fn abort(&mut self, id: RequestId) {
        self.waiting.retain(|sequence| sequence.id != id);
        if let Some(row) = self.running.iter().position(|sequence| sequence.id == id) {
            let sequence = self.running.remove(row);
            self.cache.release(&sequence.blocks);
        }
    }

    /// Starts a step; None when there is nothing to compute.
    pub(super) fn begin_step(&mut self) -> Option<Step> {
        let mut budget = self.config.max_num_batched_tokens.max(1);
        let preempted = self.schedule_running(&mut budget);
        let mut admitted = Vec::new();
        if !preempted {
            self.admit_waiting(&mut budget, &mut admitted);
        }
        for row in 0..self.running.len() {
            self.store_full_blocks(row);
        }
        let busy = self.running.iter().any(|sequence| sequence.scheduled > 0);
        busy.then(|| Step {
            duration: self.duration(),
            admitted,
        })
    }

    /// Ends the step: computed tokens count, answers grow by a token, finished requests leave.
    pub(super) fn finish_step(&mut self) -> Outcome {
        let block_size = self.block_size();
        let mut outcome = Outcome::default();
        let mut running = std::mem::take(&mut self.running);
        running.retain_mut(|sequence| {
            let Some(last) = sequence.advance(block_size) else {
                return true;
            };
            let progress = Progress::Token { last };
            outcome.progress.push((sequence.id, progress));
            if last {
                self.cache.release(&sequence.blocks);
            }
            !last
        });
        self.running = running;
        outcome.events = self.cache.take_events();
        outcome
    }

    /// Forgets the whole prefix cache; refused while requests run. The event leaves with the next step.
    pub(super) fn reset_cache(&mut self) -> bool {
        self.cache.clear()
    }

    /// From now on no request finds anything cached, or does again; what is stored and announced stays as it is.
    pub(super) fn leave_cache_unused(&mut self, unused: bool) {
        self.cache_unused = unused;
    }

    /// A new process: no requests, no cache, no event about either.
    pub(super) fn restart(&mut self) {
        self.waiting.clear();
        self.running.clear();
        self.cache.forget();
    }

    pub(super) fn gauges(&self) -> Gauges {
        Gauges {
            running: self.running.len(),
            waiting: self.waiting.len(),
            blocks_in_use: self.cache.in_use(),
            blocks_held: self.cache.held(),
            total_blocks: self.cache.capacity(),
            prefix_queries: self.prefix_queries,
            prefix_hits: self.prefix_hits,
            preemptions: self.preemptions,
            running_adapters: adapters(&self.running),
            waiting_adapters: adapters(&self.waiting),
        }
    }

    fn block_size(&self) -> usize {
        self.config.block_size.max(1) as usize
    }

    /// Gives running sequences their tokens of this step, oldest first. Who finds no block takes those of the newest.
    fn schedule_running(&mut self, budget: &mut usize) -> bool {
        let block_size = self.block_size();
        let mut preempted = false;
        let mut row = 0;
        while row < self.running.len() && *budget > 0 {
            let sequence = &mut self.running[row];
            let wanted = sequence.uncomputed().min(*budget);
            let blocks = (sequence.computed + wanted).div_ceil(block_size);
            let missing = blocks.saturating_sub(sequence.blocks.len());
            if self.cache.allocate(missing, &mut sequence.blocks) {
                sequence.scheduled = wanted;
                *budget -= wanted;
                row += 1;
            } else {
                preempted = true;
                self.preempt_newest();
            }
        }
        preempted
    }

    /// The newest running sequence goes back to the head of the queue and will compute its tokens again.
    fn preempt_newest(&mut self) {
        let Some(mut sequence) = self.running.pop() else {
            return;
        };
        self.cache.release(&sequence.blocks);
        sequence.blocks.clear();
        sequence.computed = 0;
        sequence.stored = 0;
        sequence.scheduled = 0;
        self.preemptions += 1;
        self.waiting.push_front(sequence);
    }

    fn admit_waiting(&mut self, budget: &mut usize, admitted: &mut Vec<(RequestId, Progress)>) {
        let block_size = self.block_size();
        while *budget > 0 && self.running.len() < self.config.max_num_seqs.max(1) {
            let Some(sequence) = self.waiting.front_mut() else {
                return;
            };
            // The last token is computed always: its logits are what the answer starts from.
            let reusable = if self.cache_unused {
                0
            } else {
                (sequence.tokens.len() - 1) / block_size
            };
            let hits = self.cache.prefix(&sequence.hashes[..reusable]);
            let copied = self
                .cache
                .host_prefix(&sequence.hashes[hits.len()..reusable]);
            let cached_tokens = (hits.len() + copied) * block_size;
            let scheduled = (sequence.tokens.len() - cached_tokens).min(*budget);
            let missing = (cached_tokens + scheduled).div_ceil(block_size) - hits.len();
            if missing + self.cache.idle_among(&hits) > self.cache.available() {
                return;
            }
            let Some(mut sequence) = self.waiting.pop_front() else {
                return;
            };
            self.cache.share(&hits);
            let copied = hits.len()..hits.len() + copied;
            self.cache.load_from_host(&sequence.hashes[copied]);
            sequence.stored = hits.len();
            sequence.blocks = hits;
            self.cache.allocate(missing, &mut sequence.blocks);
            sequence.computed = cached_tokens;
            sequence.scheduled = scheduled;
            *budget -= scheduled;
            if !sequence.admitted {
                sequence.admitted = true;
                self.prefix_queries += sequence.tokens.len() as u64;
                self.prefix_hits += cached_tokens as u64;
                admitted.push((sequence.id, Progress::Admitted { cached_tokens }));
            }
            self.running.push(sequence);
            // Stored at once: a request admitted in the same step shares what this one is about to compute.
            self.store_full_blocks(self.running.len() - 1);
        }
    }

    /// Notes in the cache the blocks that this step fills.
    fn store_full_blocks(&mut self, row: usize) {
        let block_size = self.block_size();
        let sequence = &mut self.running[row];
        let full = (sequence.computed + sequence.scheduled) / block_size;
        if full <= sequence.stored {
            return;
        }
        let first = sequence.stored;
        let run = StoredRun {
            hashes: sequence.hashes[first..full].to_vec(),
            parent: first.checked_sub(1).map(|before| sequence.hashes[before]),
            tokens: sequence.tokens[first * block_size..full * block_size].to_vec(),
            block_size: self.config.block_size,
            salt: sequence.job.salt.clone().filter(|_| first == 0),
            adapter: sequence.job.adapter.clone(),
        };
        self.cache.store(&sequence.blocks[first..full], run);
        sequence.stored = full;
    }

    fn duration(&self) -> Duration {
        let mut prefill_tokens = 0_usize;
        let mut decoding = 0_usize;
        for sequence in self.running.iter().filter(|row| row.scheduled > 0) {
            if sequence.computed >= sequence.job.prompt.len() {
                decoding += 1;
            } else {
                prefill_tokens += sequence.scheduled;
            }
        }
        let mut micros = 0.0;
        if prefill_tokens > 0 {
            micros += self.config.prefill_overhead_us;
            micros += self.config.prefill_us_per_token * as_f64(prefill_tokens);
        }
        if decoding > 0 {
            micros += self.config.decode_us + self.config.decode_us_per_seq * as_f64(decoding);
        }
        Duration::try_from_secs_f64(micros / 1e6).unwrap_or(Duration::ZERO)
    }
}

impl Sequence {
    fn uncomputed(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Counts the step's tokens. When all known tokens are computed the answer grows: Some(was it the last one).
    fn advance(&mut self, block_size: usize) -> Option<bool> {
        self.computed += std::mem::take(&mut self.scheduled);
        if self.computed < self.tokens.len() {
            return None;
        }
        let answered = self.tokens.len() - self.job.prompt.len();
        self.tokens.push(self.job.answer[answered]);
        self.hash_full_blocks(block_size);
        Some(answered + 1 == self.job.answer.len())
    }

    fn hash_full_blocks(&mut self, block_size: usize) {
        let namespace = self.namespace.as_deref();
        for block in self.tokens.chunks_exact(block_size).skip(self.hashes.len()) {
            let parent = self.hashes.last().copied();
            self.hashes.push(chained_hash(parent, namespace, block));
        }
    }
}

fn adapters<'a>(sequences: impl IntoIterator<Item = &'a Sequence>) -> Vec<String> {
    let adapter = |sequence: &Sequence| sequence.job.adapter.clone();
    sequences.into_iter().filter_map(adapter).collect()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "token counts are far below 2^52"
)]
fn as_f64(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
