//! The policy that serves where no other is selected: cost in blocks of work, lowest wins.
//!
//! It never uses anything but the public traits, so it shows what any policy can do.
//!
//! For each row, with `bs` the block size and every count in blocks:
//!
//! ```text
//! device  = device overlap, or the host's effective estimate where no tier matched
//! fade    = 1 / (1 + decay * (active_prefill - least active_prefill) / bs / max(1, request_blocks))
//! credit  = overlap_score_credit * fade * device + host_w * host + disk_w * disk + shared_multiplier * shared
//! prefill = prefill_load_scale * max(0, (active_prefill + prompt_tokens) / bs - credit)
//! cost    = (prefill + decode_cost_blocks + request_weight * active_requests) * preferred taint multiplier
//! ```
//!
//! `fade` is 1 and `prefill` 0 for a request whose prefill is not tracked. In the decode role the credit of such a
//! request is taken off `decode_cost_blocks` instead, down to 0. Of a worker whose load is unknown, active prefill and
//! requests count as 0, and it does not count as the least loaded one.

use std::sync::Arc;

use crate::candidate::{
    ScoredWorkerCandidate, WorkerCacheInput, WorkerCandidate, WorkerInputView, WorkerInputs,
    WorkerLoadInput,
};
use crate::config::{ConfigMistake, KvRouterConfig};
use crate::identity::{WorkerType, WorkerWithDpRank};
use crate::policy::{
    WorkerPicker, WorkerScorer, WorkerSelectionPolicy, WorkerSelectionPolicyError,
    WorkerSelectionPolicyFactory,
};
use crate::rng::SeededRng;
use crate::signals::{ConfigOverrides, WorkerSelectionContext};

/// The numbers of the default cost and choice. All are finite and at least 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// What one block cached on the device takes off the cost, in blocks.
    pub overlap_score_credit: f64,
    /// How fast that credit fades with prefill backlog.
    pub overlap_score_credit_decay: f64,
    /// What one block left to prefill costs.
    pub prefill_load_scale: f64,
    /// What one active request costs, in blocks.
    pub decode_active_request_weight: f64,
    /// Worth of a block in host memory.
    pub host_cache_hit_weight: f64,
    /// Worth of a block on disk.
    pub disk_cache_hit_weight: f64,
    /// Worth of a block in the shared cache, 0 to 1.
    pub shared_cache_multiplier: f64,
    /// Randomness of the choice; 0 takes the lowest cost.
    pub router_temperature: f64,
}

impl Weights {
    /// The numbers that `config` sets.
    pub fn of(config: &KvRouterConfig) -> Self {
        Self {
            overlap_score_credit: config.overlap_score_credit,
            overlap_score_credit_decay: config.overlap_score_credit_decay,
            prefill_load_scale: config.prefill_load_scale,
            decode_active_request_weight: config.decode_active_request_weight,
            host_cache_hit_weight: config.host_cache_hit_weight,
            disk_cache_hit_weight: config.disk_cache_hit_weight,
            shared_cache_multiplier: config.shared_cache_multiplier.unwrap_or(0.0),
            router_temperature: config.router_temperature,
        }
    }

    /// Checks every number by the rules of [`KvRouterConfig::validate`]; all mistakes are reported at once.
    pub fn validate(&self) -> Result<(), Vec<ConfigMistake>> {
        KvRouterConfig {
            overlap_score_credit: self.overlap_score_credit,
            overlap_score_credit_decay: self.overlap_score_credit_decay,
            prefill_load_scale: self.prefill_load_scale,
            decode_active_request_weight: self.decode_active_request_weight,
            host_cache_hit_weight: self.host_cache_hit_weight,
            disk_cache_hit_weight: self.disk_cache_hit_weight,
            shared_cache_multiplier: Some(self.shared_cache_multiplier),
            router_temperature: self.router_temperature,
            ..KvRouterConfig::default()
        }
        .validate()
    }

    /// The numbers for one request. Its temperature is left to the picker.
    fn overridden(self, overrides: &ConfigOverrides) -> Self {
        Self {
            overlap_score_credit: overrides
                .overlap_score_credit
                .unwrap_or(self.overlap_score_credit),
            prefill_load_scale: overrides
                .prefill_load_scale
                .unwrap_or(self.prefill_load_scale),
            shared_cache_multiplier: overrides
                .shared_cache_multiplier
                .unwrap_or(self.shared_cache_multiplier),
            ..self
        }
    }
}

/// Factory of the default policy with the weights of the router's configuration.
pub fn default_factory() -> WorkerSelectionPolicyFactory {
    Arc::new(|config, role, _partition| policy(config, role, Weights::of(config), None))
}

/// The default policy with `weights` in `role`.
///
/// Without `seed` each request's choice is drawn from its own [`random_seed`](WorkerSelectionContext::random_seed).
/// With it the draws follow one sequence of that seed: the same requests in the same order are sent to the same workers.
pub fn policy(
    config: &KvRouterConfig,
    role: WorkerType,
    weights: Weights,
    seed: Option<u64>,
) -> WorkerSelectionPolicy {
    let scorer = CostScorer { weights, role };
    let picker = CostPicker {
        temperature: weights.router_temperature,
        sequence: seed.map(SeededRng::new),
    };
    WorkerSelectionPolicy::new(
        config.clone(),
        role.default_selector_label(),
        vec![Box::new(scorer)],
        Box::new(picker),
    )
    .with_exclusive_affinity(true)
}

/// Scores a row by the formula of this module.
struct CostScorer {
    weights: Weights,
    role: WorkerType,
}

impl WorkerScorer for CostScorer {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::CACHE | WorkerInputs::LOAD | WorkerInputs::PREFERRED_TAINT
    }

    fn score(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidate: &WorkerCandidate,
    ) -> Result<f64, WorkerSelectionPolicyError> {
        let mut cost = [f64::NAN];
        self.score_batch(context, std::slice::from_ref(candidate), &mut cost)?;
        Ok(cost[0])
    }

    fn score_batch(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: &[WorkerCandidate],
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        let formula = RowCost::new(context, self.weights, self.role, candidates);
        for (candidate, cost) in candidates.iter().zip(costs) {
            *cost = formula.of(candidate);
        }
        Ok(())
    }
}

/// What of the formula is the same for all rows of one request.
struct RowCost {
    weights: Weights,
    block_size: f64,
    request_blocks: f64,
    prompt_tokens: f64,
    tracks_prefill: bool,
    credits_decode: bool,
    /// Whether the credit depends on the backlog; where not, the least of it is not looked for.
    fades: bool,
    least_prefill_tokens: f64,
}

impl RowCost {
    #[expect(
        clippy::cast_precision_loss,
        reason = "token and block counts are far below 2^52"
    )]
    fn new(
        context: &WorkerSelectionContext<'_>,
        weights: Weights,
        role: WorkerType,
        candidates: &[WorkerCandidate],
    ) -> Self {
        let tracks_prefill = context.tracks_prefill_tokens();
        let weights = weights.overridden(context.config_overrides());
        let fades = tracks_prefill && weights.overlap_score_credit_decay != 0.0;
        let loads = candidates.iter().filter_map(known_load);
        let least = fades
            .then(|| loads.map(WorkerLoadInput::active_prefill_tokens).min())
            .flatten();
        Self {
            weights,
            fades,
            block_size: f64::from(context.block_size().max(1)),
            request_blocks: context.request_blocks() as f64,
            prompt_tokens: context.prompt_tokens() as f64,
            tracks_prefill,
            credits_decode: role == WorkerType::Decode && !tracks_prefill,
            least_prefill_tokens: least.unwrap_or(0) as f64,
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "token and request counts are far below 2^52"
    )]
    fn of(&self, candidate: &WorkerCandidate) -> f64 {
        let (decode_blocks, known) = match candidate.load() {
            Some(load) => (
                load.decode_cost_blocks(),
                load.is_available().then_some(load),
            ),
            None => (self.request_blocks, None),
        };
        let active_prefill = known.map(|load| load.active_prefill_tokens() as f64);
        let active_requests = known.map_or(0.0, |load| load.active_requests() as f64);
        let credit = candidate
            .cache()
            .map_or(0.0, |cache| self.credit(cache, active_prefill));
        let prefill = if self.tracks_prefill {
            let work = (active_prefill.unwrap_or(0.0) + self.prompt_tokens) / self.block_size;
            self.weights.prefill_load_scale * (work - credit).max(0.0)
        } else {
            0.0
        };
        let decode = if self.credits_decode {
            (decode_blocks - credit).max(0.0)
        } else {
            decode_blocks
        };
        let requests = self.weights.decode_active_request_weight * active_requests;
        (prefill + decode + requests) * candidate.preferred_taint_multiplier().unwrap_or(1.0)
    }

    /// What the worker's cache takes off the prompt, in blocks.
    fn credit(&self, cache: &WorkerCacheInput, active_prefill: Option<f64>) -> f64 {
        let [device, host, disk] = [
            cache.device_overlap_blocks(),
            cache.host_overlap_blocks(),
            cache.disk_overlap_blocks(),
        ];
        let no_tier_matched = device <= 0.0 && host <= 0.0 && disk <= 0.0;
        let device = if no_tier_matched {
            cache.effective_overlap_blocks()
        } else {
            device
        };
        self.weights.overlap_score_credit * self.fade(active_prefill) * device
            + self.weights.host_cache_hit_weight * host
            + self.weights.disk_cache_hit_weight * disk
            + self.weights.shared_cache_multiplier * f64::from(cache.shared_beyond_device_blocks())
    }

    /// How much of the device credit is left on a worker with this much active prefill: 1 on the least loaded one.
    fn fade(&self, active_prefill: Option<f64>) -> f64 {
        if !self.fades {
            return 1.0;
        }
        let decay = self.weights.overlap_score_credit_decay;
        let excess_tokens = active_prefill.map_or(0.0, |tokens| tokens - self.least_prefill_tokens);
        1.0 / (1.0 + decay * (excess_tokens / self.block_size) / self.request_blocks.max(1.0))
    }
}

/// The load of a row, where it is known.
fn known_load(candidate: &WorkerCandidate) -> Option<&WorkerLoadInput> {
    candidate.load().filter(|load| load.is_available())
}

/// Takes the lowest cost, ties uniformly at random; above temperature 0, row `i` with probability in proportion to
/// `exp(-(cost_i - min) / ((max - min) * temperature))`, and any row where all cost the same.
///
/// Each row draws its own number from the seed and its worker, and the lowest handicapped cost wins (for the softmax a
/// Gumbel draw, for ties a plain one). That gives the same distribution as walking the rows with one generator, and
/// the pick does not depend on their order.
struct CostPicker {
    temperature: f64,
    sequence: Option<SeededRng>,
}

impl WorkerPicker for CostPicker {
    fn pick(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let seed = self
            .sequence
            .as_mut()
            .map_or(context.random_seed(), SeededRng::next_u64);
        let temperature = context
            .router_temperature_override()
            .unwrap_or(self.temperature);
        let costs = || input.candidates().iter().map(ScoredWorkerCandidate::cost);
        let least = costs().fold(f64::INFINITY, f64::min);
        let spread = if temperature > 0.0 {
            let most = costs().fold(f64::NEG_INFINITY, f64::max);
            (most - least) * temperature
        } else {
            0.0
        };
        // Without temperature or spread, and where a product left the range of numbers, the lowest cost wins.
        let softens = spread.is_normal() && spread > 0.0;
        let rows = input.candidates().iter().enumerate();
        // Between equal numbers the worker decides, so that the order of the rows never does.
        let by_worker = |one: usize, other: usize| {
            let worker = |row: usize| input.candidates()[row].worker();
            worker(one).cmp(&worker(other))
        };
        let picked = if softens {
            rows.map(|(row, scored)| {
                let handicap = gumbel(seed, scored.worker());
                ((scored.cost() - least) / spread - handicap, row)
            })
            .min_by(|one, other| {
                let order = one.0.total_cmp(&other.0);
                order.then_with(|| by_worker(one.1, other.1))
            })
            .map(|(_, row)| row)
        } else {
            let mut cheapest = rows.filter(move |(_, scored)| scored.cost() <= least);
            let is_tie = cheapest.clone().nth(1).is_some();
            if is_tie {
                cheapest
                    .map(|(row, scored)| (lot(seed, scored.worker()), row))
                    .min_by(|one, other| {
                        let order = one.0.cmp(&other.0);
                        order.then_with(|| by_worker(one.1, other.1))
                    })
                    .map(|(_, row)| row)
            } else {
                cheapest.next().map(|(row, _)| row)
            }
        };
        picked.ok_or_else(|| WorkerSelectionPolicyError::failed("no candidate to pick from"))
    }
}

/// The number a worker draws for a tie.
fn lot(seed: u64, worker: WorkerWithDpRank) -> u64 {
    SeededRng::for_worker(seed, worker).next_u64()
}

/// A draw from the standard Gumbel distribution.
fn gumbel(seed: u64, worker: WorkerWithDpRank) -> f64 {
    let draw = SeededRng::for_worker(seed, worker).next_unit();
    -(-draw.ln()).ln()
}

#[cfg(test)]
mod tests;
