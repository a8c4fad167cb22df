//! Answers what is known of a prompt on every rank, without choosing one; it charges nothing and asks no policy.

use pointsman_plugin::WorkerWithDpRank;

use super::Partition;
use super::describe::{Rows, TierWeights};
use super::select::{SCRATCH, check};
use crate::selection::{SelectError, SelectionRequest, hits_beyond};

/// What would be charged to a rank if it served the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PotentialLoad {
    pub worker: WorkerWithDpRank,
    /// Active prefill with what the prompt would add, its cached part taken off.
    pub prefill_tokens: u64,
    /// Active blocks with the prompt's, those that are active already counted once.
    pub decode_blocks: u64,
    /// Active requests, this one not counted.
    pub active_requests: u64,
}

/// What of a prompt is cached where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptOverlap {
    pub block_size: u32,
    /// Complete blocks of the prompt.
    pub blocks: u64,
    /// Every rank, by worker and rank.
    pub ranks: Vec<RankOverlap>,
}

/// How many leading blocks of a prompt one rank holds, by tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankOverlap {
    pub worker: WorkerWithDpRank,
    pub device_blocks: u64,
    /// Blocks that continue the device's in host memory.
    pub host_blocks: u64,
    /// Blocks that continue the host's on disk or in external storage.
    pub disk_blocks: u64,
    /// Blocks of the shared cache beyond the device's.
    pub shared_beyond_device_blocks: u64,
}

impl Partition {
    /// The load of every rank as it would be with the prompt of `request` on it.
    pub fn potential_loads(
        &self,
        request: &SelectionRequest,
    ) -> Result<Vec<PotentialLoad>, SelectError> {
        check(request)?;
        let hashed = self.hash(request);
        let mut scratch = SCRATCH.take().unwrap_or_default();
        let table = self.look_up(&hashed, &mut scratch);
        scratch.rows.clear();
        scratch.rows.extend(0..table.rows().len());
        let tracked = request.overrides.tracks_prefill_tokens(&self.router);
        let block_size = u64::from(self.layout.block_size.get());
        // With no rank left there is nothing to list, which is an answer here.
        let listed = self.read_loads(&table, &hashed, None, &mut scratch).is_ok();
        let rows = Rows {
            table: &table,
            request,
            hashed: &hashed,
            scratch: &scratch,
            weights: TierWeights::of(&self.router),
        };
        let potential = |(at, load): (usize, crate::load::Load)| {
            let row = &table.rows()[at];
            let uncached = rows.uncached_tokens(row, block_size);
            let added = if tracked { uncached } else { 0 };
            PotentialLoad {
                worker: row.worker,
                prefill_tokens: load.prefill_tokens.saturating_add(added),
                decode_blocks: rows.potential_blocks(row, load),
                active_requests: load.requests,
            }
        };
        let loads = if listed {
            rows.iter().map(potential).collect()
        } else {
            Vec::new()
        };
        SCRATCH.set(Some(scratch));
        Ok(loads)
    }

    /// How much of the prompt of `request` each rank has cached.
    pub fn overlaps(&self, request: &SelectionRequest) -> Result<PromptOverlap, SelectError> {
        check(request)?;
        let hashed = self.hash(request);
        let mut scratch = SCRATCH.take().unwrap_or_default();
        let table = self.look_up(&hashed, &mut scratch);
        let ranks = table.rows().iter().map(|row| RankOverlap {
            worker: row.worker,
            device_blocks: u64::from(scratch.overlaps.blocks(row.index_slot)),
            host_blocks: u64::from(scratch.overlaps.host_blocks(row.index_slot)),
            disk_blocks: u64::from(scratch.overlaps.disk_blocks(row.index_slot)),
            shared_beyond_device_blocks: u64::from(hits_beyond(
                &request.shared_hits,
                scratch.overlaps.blocks(row.index_slot),
            )),
        });
        let ranks = ranks.collect();
        SCRATCH.set(Some(scratch));
        Ok(PromptOverlap {
            block_size: self.layout.block_size.get(),
            blocks: hashed.lookup.len().try_into().unwrap_or(u64::MAX),
            ranks,
        })
    }
}
