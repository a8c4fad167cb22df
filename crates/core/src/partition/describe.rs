//! Puts into words what a selection sees and what it decided: signals and rows for the policy, the answer for the caller, the record for whoever asked; it takes no lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use pointsman_plugin::{
    ActiveLoad, CacheOverlap, KvRouterConfig, PolicySelection, PolicyTrace, RequestSignals,
    WorkerCacheInput, WorkerCandidate, WorkerInputs, WorkerLoadInput, WorkerSelectionPolicyError,
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::select::Scratch;
use super::workers::{Row, WorkerTable};
use super::{Partition, RankOverlap};
use crate::eligibility::{may_serve, preferred_taint_multiplier};
use crate::hash::{HashSeed, SequenceHash, chain_all, sequence_hashes};
use crate::load::Load;
use crate::record::{CandidateRecord, DecisionRecord, Excluded, Ineligible};
use crate::selection::{
    CacheForecast, Prompt, SelectError, Selection, SelectionRequest, hits_beyond,
};

/// A request's prompt as the index and the books see it.
pub(super) struct Hashed {
    /// What the index is asked by.
    pub(super) lookup: Arc<[SequenceHash]>,
    /// What the books share blocks by; empty if they may not be shared.
    pub(super) sequence_hashes: Arc<[SequenceHash]>,
    /// Blocks that count for this request alone.
    pub(super) private_blocks: u64,
    pub(super) isl_tokens: u64,
}

/// The rows of one selection and all that is known of them.
pub(super) struct Rows<'a> {
    pub(super) table: &'a WorkerTable,
    pub(super) request: &'a SelectionRequest,
    pub(super) hashed: &'a Hashed,
    pub(super) scratch: &'a Scratch,
    pub(super) weights: TierWeights,
}

/// Worth of a block outside the device, in blocks on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct TierWeights {
    host: f64,
    disk: f64,
}

impl TierWeights {
    pub(super) fn of(router: &KvRouterConfig) -> Self {
        Self {
            host: router.host_cache_hit_weight,
            disk: router.disk_cache_hit_weight,
        }
    }
}

/// What a policy chose: a row of the table and what is charged to its rank.
pub(super) struct Pick {
    selection: PolicySelection,
    row: usize,
    load: Load,
}

impl Partition {
    pub(super) fn hash(&self, request: &SelectionRequest) -> Hashed {
        let block_size = u64::from(self.layout.block_size.get());
        let seed = || HashSeed::new(request.lora_name.as_deref(), request.cache_salt.as_deref());
        let (lookup, shared, unknown_blocks) = match &request.prompt {
            Prompt::Tokens { ids, media } => {
                let hashes: Arc<[_]> = sequence_hashes(ids, self.layout, seed(), media).into();
                (Arc::clone(&hashes), hashes, 0)
            }
            Prompt::Hashes {
                block_hashes,
                sequence_hashes,
                ..
            } => (
                chain_all(block_hashes).into(),
                sequence_hashes.as_slice().into(),
                0,
            ),
            Prompt::Unknown { estimated_tokens } => (
                Arc::default(),
                Arc::default(),
                estimated_tokens / block_size,
            ),
        };
        let (sequence_hashes, private_blocks) = if !self.router.router_track_active_blocks {
            (Arc::default(), 0)
        } else if request.overrides.assumes_kv_reuse(&self.router) {
            (shared, unknown_blocks)
        } else {
            (
                Arc::default(),
                length(&shared).saturating_add(unknown_blocks),
            )
        };
        Hashed {
            lookup,
            sequence_hashes,
            private_blocks,
            isl_tokens: request.prompt.isl_tokens(),
        }
    }

    pub(super) fn signals(&self, request: &SelectionRequest, hashed: &Hashed) -> RequestSignals {
        let block_size = self.layout.block_size.get();
        RequestSignals {
            request_blocks: hashed.isl_tokens.div_ceil(u64::from(block_size)),
            block_size,
            prompt_tokens: clamped(hashed.isl_tokens),
            tracks_prefill_tokens: request.overrides.tracks_prefill_tokens(&self.router),
            session_context: request.session_context.clone(),
            affinity_target: request.affinity_target,
            pinned_worker: request.pinned_worker,
            expected_output_tokens: request.expected_output_tokens,
            priority_jump: request.priority_jump,
            strict_priority: request.strict_priority,
            router_temperature_override: request.overrides.router_temperature,
            random_seed: request.random_seed.unwrap_or_else(|| self.next_seed()),
            overrides: request.overrides,
        }
    }

    pub(super) fn describe(&self, rows: &Rows<'_>, tracked: bool, pick: &Pick) -> Selection {
        let Rows {
            table,
            hashed,
            scratch,
            ..
        } = rows;
        let siblings = table.siblings(pick.row);
        let row = &table.rows()[pick.row];
        let tiers = rows.tiers(row);
        let overlap = |row: &Row| u64::from(scratch.overlaps.blocks(row.index_slot));
        let overlap_blocks = overlap(row);
        let block_size = u64::from(self.layout.block_size.get());
        let isl_tokens = hashed.isl_tokens;
        // An engine computes the last prompt token whatever it has cached.
        let reusable_blocks = isl_tokens.saturating_sub(1) / block_size;
        Selection {
            worker: pick.selection.worker,
            block_size: self.layout.block_size.get(),
            isl_tokens,
            overlap_blocks,
            rank_overlaps: siblings
                .iter()
                .map(|row| (row.worker.dp_rank, overlap(row)))
                .collect(),
            host_overlap_blocks: tiers.host_blocks,
            disk_overlap_blocks: tiers.disk_blocks,
            rank_tiers: siblings.iter().map(|row| rows.tiers(row)).collect(),
            predicted_cached_tokens: overlap_blocks.min(reusable_blocks) * block_size,
            forecast: rows.forecast(row, reusable_blocks),
            effective_prefill_tokens: rows.uncached_tokens(row, block_size),
            potential_decode_blocks: rows.potential_blocks(row, pick.load),
            track_prefill_tokens: tracked,
            sequence_hashes: Arc::clone(&hashed.sequence_hashes),
            private_blocks: hashed.private_blocks,
            looked_up: Arc::default(),
            cost: pick.selection.cost,
            record: None,
        }
    }

    pub(super) fn record(
        &self,
        rows: &Rows<'_>,
        signals: RequestSignals,
        trace: PolicyTrace,
        selected: &Selection,
        now: Instant,
    ) -> DecisionRecord {
        DecisionRecord {
            partition: self.id.clone(),
            policy: self.policy_name.clone(),
            policy_fingerprint: self.policy_fingerprint,
            decided_at: now,
            signals,
            candidates: rows
                .iter()
                .map(|(row, load)| rows.known(row, load))
                .collect(),
            excluded: rows.excluded(),
            trace,
            picked: selected.worker,
            cost: selected.cost,
        }
    }

    fn next_seed(&self) -> u64 {
        let count = self.selections.fetch_add(1, Ordering::Relaxed);
        xxh3_64_with_seed(&count.to_le_bytes(), self.seed)
    }
}

impl Pick {
    /// Finds what the policy chose among what it was offered.
    pub(super) fn find(rows: &Rows<'_>, selection: PolicySelection) -> Result<Self, SelectError> {
        let found = rows.table.row_of(selection.worker).and_then(|row| {
            let at = rows.scratch.rows.binary_search(&row).ok()?;
            Some((row, rows.scratch.loads[at]))
        });
        let (row, load) = found.ok_or_else(|| {
            let text = format!("worker {} was chosen but not offered", selection.worker);
            SelectError::Policy(WorkerSelectionPolicyError::failed(text))
        })?;
        Ok(Self {
            selection,
            row,
            load,
        })
    }
}

impl Rows<'_> {
    /// Adds one candidate per row, each with the groups the policy declared and no others.
    pub(super) fn fill(&self, inputs: WorkerInputs, candidates: &mut Vec<WorkerCandidate>) {
        let wants_cache = inputs.contains(WorkerInputs::CACHE);
        let wants_load = inputs.contains(WorkerInputs::LOAD);
        let wants_taints = inputs.contains(WorkerInputs::PREFERRED_TAINT) && self.prefers_taints();
        candidates.extend(self.iter().map(|(at, load)| {
            let row = &self.table.rows()[at];
            WorkerCandidate::of_parts(
                row.worker,
                wants_cache.then(|| WorkerCacheInput::new(self.cache(row))),
                wants_load.then(|| WorkerLoadInput::new(self.active_load(row, load))),
                wants_taints.then(|| self.taint_multiplier(at)),
            )
        }));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, Load)> {
        let rows = self.scratch.rows.iter().copied();
        rows.zip(self.scratch.loads.iter().copied())
    }

    /// What a row's cache is worth, as far as it is to be believed.
    fn cache(&self, row: &Row) -> CacheOverlap {
        let Scratch {
            overlaps,
            discounts,
            ..
        } = self.scratch;
        if overlaps.is_empty() && self.request.shared_hits.is_empty() {
            return CacheOverlap::default();
        }
        let share = discounts.get(&row.worker).copied().unwrap_or(1.0);
        let device = overlaps.blocks(row.index_slot);
        let [device_blocks, host_blocks, disk_blocks] = [
            device,
            overlaps.host_blocks(row.index_slot),
            overlaps.disk_blocks(row.index_slot),
        ]
        .map(|blocks| f64::from(blocks) * share);
        CacheOverlap {
            device_blocks,
            host_blocks,
            disk_blocks,
            shared_beyond_device_blocks: hits_beyond(&self.request.shared_hits, device),
            effective_blocks: device_blocks
                + host_blocks * self.weights.host
                + disk_blocks * self.weights.disk,
        }
    }

    /// Prompt tokens that a row's rank would still compute, by the worth of its cache.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rounded count of tokens, not negative; the cast saturates"
    )]
    pub(super) fn uncached_tokens(&self, row: &Row, block_size: u64) -> u64 {
        let cached = self.cache(row).effective_blocks * block_size as f64;
        self.hashed.isl_tokens.saturating_sub(cached.round() as u64)
    }

    /// What a row's rank holds, in full.
    fn tiers(&self, row: &Row) -> RankOverlap {
        let overlaps = &self.scratch.overlaps;
        let device = overlaps.blocks(row.index_slot);
        RankOverlap {
            worker: row.worker,
            device_blocks: u64::from(device),
            host_blocks: u64::from(overlaps.host_blocks(row.index_slot)),
            disk_blocks: u64::from(overlaps.disk_blocks(row.index_slot)),
            shared_beyond_device_blocks: u64::from(hits_beyond(&self.request.shared_hits, device)),
        }
    }

    fn forecast(&self, row: &Row, reusable_blocks: u64) -> CacheForecast {
        let tiers = self.tiers(row);
        let active = u64::from(self.scratch.active.blocks(row.load_slot));
        let held = tiers.device_blocks + tiers.host_blocks + tiers.disk_blocks;
        let possible = held.max(active) + tiers.shared_beyond_device_blocks;
        CacheForecast {
            confirmed_blocks: tiers.device_blocks.min(reusable_blocks),
            possible_blocks: possible.min(reusable_blocks),
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "a cost; no load is near 2^52 blocks"
    )]
    fn active_load(&self, row: &Row, load: Load) -> ActiveLoad {
        ActiveLoad {
            prefill_tokens: clamped(load.prefill_tokens),
            decode_cost_blocks: self.potential_blocks(row, load) as f64,
            requests: clamped(load.requests),
            available: true,
        }
    }

    /// Active blocks of a row's rank if the request came: leading blocks that others have active
    /// there are not counted again.
    pub(super) fn potential_blocks(&self, row: &Row, load: Load) -> u64 {
        let shared = u64::from(self.scratch.active.blocks(row.load_slot));
        length(&self.hashed.sequence_hashes)
            .saturating_sub(shared)
            .saturating_add(self.hashed.private_blocks)
            .saturating_add(load.blocks)
    }

    /// Not so for pinned requests.
    fn prefers_taints(&self) -> bool {
        self.request.pinned_worker.is_none()
            && !self.request.constraints.preferred_taints.is_empty()
    }

    fn taint_multiplier(&self, row: usize) -> f64 {
        let taints = &self.table.entry_of(row).taints;
        preferred_taint_multiplier(&self.request.constraints, taints)
    }

    fn known(&self, at: usize, load: Load) -> CandidateRecord {
        let row = &self.table.rows()[at];
        CandidateRecord {
            worker: row.worker,
            cache: self.cache(row),
            load: self.active_load(row, load),
            preferred_taint_multiplier: self.prefers_taints().then(|| self.taint_multiplier(at)),
        }
    }

    fn excluded(&self) -> Vec<Excluded> {
        let rows = self.table.rows().iter().enumerate();
        rows.filter(|(row, _)| self.scratch.rows.binary_search(row).is_err())
            .map(|(row, of)| Excluded {
                worker: of.worker,
                reason: self.reason(row),
            })
            .collect()
    }

    fn reason(&self, row: usize) -> Ineligible {
        let worker = self.table.rows()[row].worker;
        if let Err(reason) = may_serve(self.table.entry_of(row), self.request) {
            return reason;
        }
        if self.request.pinned_worker.is_some_and(|pin| pin != worker) {
            return Ineligible::NotPinned;
        }
        let target = self.request.affinity_target;
        if target.is_some_and(|target| !target.matches(worker)) {
            return Ineligible::NotAffinityTarget;
        }
        Ineligible::Left
    }
}

fn length(hashes: &[SequenceHash]) -> u64 {
    hashes.len().try_into().unwrap_or(u64::MAX)
}

fn clamped(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
