//! What the API answers with, as JSON: published names and units.
//!
//! It computes nothing but units: tokens are blocks times their size.

use pointsman_core::hash::SequenceHash;
use pointsman_core::{PartitionId, PotentialLoad, RankLoad, RankOverlap, Selection};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::by_id::Booked;
use crate::inspection::OverlapScores;
use crate::service::{PartitionLoads, Selected};
use crate::shared_cache::SharedCacheHits;
use crate::workers::WorkerRecord;

/// What a selection takes besides its lists: names, endpoint and numbers.
const FIXED_BYTES: usize = 512;
/// The longest hash and its comma.
const HASH_BYTES: usize = 21;
/// A rank and its tokens.
const RANK_BYTES: usize = 16;

/// `{"status": "ok"}`.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(super) struct Done {
    status: &'static str,
}

pub(super) const DONE: Done = Done { status: "ok" };

/// The worker that was selected. Token counts throughout.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SelectionAnswer<'a> {
    /// As sent, or as made for a reservation; omitted when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    selection_id: Option<&'a str>,
    /// Reservations only: by which the prompt's blocks are shared in the active load.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<i64>>)]
    sequence_hashes: Option<Signed<'a>>,
    /// Reservations only.
    #[serde(skip_serializing_if = "Option::is_none")]
    isl_tokens: Option<u64>,
    /// Reservations only.
    #[serde(skip_serializing_if = "Option::is_none")]
    track_prefill_tokens: Option<bool>,
    model_name: &'a str,
    routing_group: &'a str,
    worker_id: u64,
    dp_rank: u32,
    /// As registered.
    endpoint: &'a str,
    block_size: u32,
    overlap: OverlapAnswer<'a>,
    /// What is left to compute of the prompt after weighted cache credit.
    effective_prefill_tokens: u64,
    /// Active blocks of the selected rank with this request on it.
    potential_decode_blocks: u64,
    /// Whether those are more than the configured share of the worker's blocks; omitted where either
    /// is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    decode_busy: Option<bool>,
    /// With `advisory` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_load: Option<WorkerLoadAnswer>,
}

/// Hashes are answered signed.
#[derive(Clone, Copy, Debug)]
struct Signed<'a>(&'a [SequenceHash]);

impl Serialize for Signed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|hash| hash.0.cast_signed()))
    }
}

/// Matched tokens, cumulative over the tiers of the selected worker.
#[derive(Debug, Serialize, ToSchema)]
struct OverlapAnswer<'a> {
    longest_matched: u64,
    gpu: u64,
    /// On the device, by rank; every rank of the worker.
    #[serde(serialize_with = "by_rank")]
    #[schema(value_type = std::collections::BTreeMap<String, u64>)]
    dp: DeviceTokens<'a>,
    cpu: u64,
    disk: u64,
}

#[derive(Clone, Copy, Debug)]
struct DeviceTokens<'a> {
    rank_overlaps: &'a [(u32, u64)],
    block_size: u64,
}

/// The selected rank's load as it is now.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(super) struct WorkerLoadAnswer {
    pub(super) active_prefill_tokens: u64,
    /// `max_num_batched_tokens` of the worker, or ten million.
    pub(super) prefill_token_capacity: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) total_kv_blocks: Option<u64>,
    /// Whether the tokens are more than the configured share of the capacity; omitted where none is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prefill_busy: Option<bool>,
}

/// Load held under an id.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReservationAnswer<'a> {
    selection_id: &'a str,
    model_name: &'a str,
    routing_group: &'a str,
    worker_id: u64,
    dp_rank: u32,
    endpoint: &'a str,
}

/// The load of one partition.
#[derive(Debug, Serialize, ToSchema)]
pub struct LoadsAnswer<'a> {
    model_name: &'a str,
    routing_group: &'a str,
    loads: Vec<LoadAnswer>,
    /// Ranks whose worker was removed, moved or put out of service, until their requests end; left out where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    leaving: Vec<LoadAnswer>,
    /// Requests that wait to be selected.
    pending_count: u64,
    pending_isl_tokens: u64,
}

/// The load of one rank.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(super) struct LoadAnswer {
    worker_id: u64,
    dp_rank: u32,
    potential_prefill_tokens: u64,
    potential_decode_blocks: u64,
    active_requests: u64,
}

/// What of a prompt is cached where, in blocks.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OverlapScoresAnswer {
    block_size: u32,
    num_blocks: u64,
    workers: Vec<OverlapRowAnswer>,
    shared_cache: SharedCacheAnswer,
}

/// Cumulative over the tiers; the extensions say what a tier adds.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
struct OverlapRowAnswer {
    worker_id: u64,
    dp_rank: u32,
    device_blocks: u64,
    host_pinned_blocks: u64,
    disk_blocks: u64,
    host_pinned_extension_blocks: u64,
    disk_extension_blocks: u64,
    shared_beyond_device_blocks: u64,
}

/// What the cache has that all engines share, where one is set up.
#[derive(Debug, Serialize, ToSchema)]
struct SharedCacheAnswer {
    enabled: bool,
    total_hit_blocks: u64,
    /// Block positions of the prompt, each from a start to an end that is not in it.
    ranges: Vec<[u64; 2]>,
    /// Why nothing is known of it.
    #[schema(required = true)]
    error: Option<String>,
}

/// Whether requests can be placed.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReadyAnswer {
    pub(super) ready: bool,
    /// Peers are being asked for their index; omitted when not.
    #[serde(skip_serializing_if = "is_false")]
    #[schema(required = false)]
    pub(super) recovering: bool,
    pub(super) schedulable_workers: usize,
    pub(super) workers: Vec<WorkerRecord>,
}

impl<'a> SelectionAnswer<'a> {
    pub(super) fn new(
        partition: &'a PartitionId,
        selection_id: Option<&'a str>,
        selected: &'a Selected,
    ) -> Self {
        let Selected {
            selection,
            endpoint,
            ..
        } = selected;
        Self {
            selection_id,
            sequence_hashes: None,
            isl_tokens: None,
            track_prefill_tokens: None,
            model_name: &partition.model_name,
            routing_group: &partition.routing_group,
            worker_id: selection.worker.worker_id,
            dp_rank: selection.worker.dp_rank,
            endpoint,
            block_size: selection.block_size,
            overlap: OverlapAnswer::new(selection),
            effective_prefill_tokens: selection.effective_prefill_tokens,
            potential_decode_blocks: selection.potential_decode_blocks,
            decode_busy: None,
            worker_load: None,
        }
    }

    /// With what is known of a reservation only.
    pub(super) fn reserved(self, selection: &'a Selection) -> Self {
        let hashes = &*selection.sequence_hashes;
        Self {
            sequence_hashes: (!hashes.is_empty()).then_some(Signed(hashes)),
            isl_tokens: Some(selection.isl_tokens),
            track_prefill_tokens: Some(selection.track_prefill_tokens),
            ..self
        }
    }

    /// About how many bytes it takes to write.
    pub(super) fn size_hint(&self) -> usize {
        let hashes = self.sequence_hashes.map_or(0, |hashes| hashes.0.len());
        let ranks = self.overlap.dp.rank_overlaps.len();
        let lists = hashes.saturating_mul(HASH_BYTES);
        FIXED_BYTES.saturating_add(lists.saturating_add(ranks.saturating_mul(RANK_BYTES)))
    }

    pub(super) fn with_decode_busy(self, decode_busy: Option<bool>) -> Self {
        Self {
            decode_busy,
            ..self
        }
    }

    pub(super) fn with_load(self, load: WorkerLoadAnswer) -> Self {
        Self {
            worker_load: Some(load),
            ..self
        }
    }
}

impl<'a> OverlapAnswer<'a> {
    fn new(selection: &'a Selection) -> Self {
        let block_size = u64::from(selection.block_size);
        let best = |blocks_of: fn(&RankOverlap) -> u64| {
            let blocks = selection.rank_tiers.iter().map(blocks_of).max();
            blocks.unwrap_or(0).saturating_mul(block_size)
        };
        let (gpu, cpu, disk) = (
            best(|rank| rank.device_blocks),
            best(through_host),
            best(through_disk),
        );
        Self {
            longest_matched: gpu.max(cpu).max(disk),
            gpu,
            dp: DeviceTokens {
                rank_overlaps: &selection.rank_overlaps,
                block_size,
            },
            cpu,
            disk,
        }
    }
}

/// Leading blocks on the device and behind them in host memory.
fn through_host(rank: &RankOverlap) -> u64 {
    rank.device_blocks.saturating_add(rank.host_blocks)
}

/// Those and what follows on disk or in external storage.
fn through_disk(rank: &RankOverlap) -> u64 {
    through_host(rank).saturating_add(rank.disk_blocks)
}

impl<'a> ReservationAnswer<'a> {
    pub(super) fn new(partition: &'a PartitionId, id: &'a str, booked: &'a Booked) -> Self {
        Self {
            selection_id: id,
            model_name: &partition.model_name,
            routing_group: &partition.routing_group,
            worker_id: booked.worker.worker_id,
            dp_rank: booked.worker.dp_rank,
            endpoint: &booked.endpoint,
        }
    }
}

impl<'a> LoadsAnswer<'a> {
    /// The same in published names and units.
    pub fn new(partition: &'a PartitionLoads) -> Self {
        Self {
            model_name: &partition.id.model_name,
            routing_group: &partition.id.routing_group,
            loads: partition.loads.iter().map(LoadAnswer::active).collect(),
            leaving: partition.leaving.iter().map(LoadAnswer::active).collect(),
            pending_count: 0,
            pending_isl_tokens: 0,
        }
    }
}

impl LoadAnswer {
    fn active(load: &RankLoad) -> Self {
        Self {
            worker_id: load.worker.worker_id,
            dp_rank: load.worker.dp_rank,
            potential_prefill_tokens: load.active_prefill_tokens,
            potential_decode_blocks: load.decode_blocks,
            active_requests: load.active_requests,
        }
    }

    pub(super) fn potential(load: &PotentialLoad) -> Self {
        Self {
            worker_id: load.worker.worker_id,
            dp_rank: load.worker.dp_rank,
            potential_prefill_tokens: load.prefill_tokens,
            potential_decode_blocks: load.decode_blocks,
            active_requests: load.active_requests,
        }
    }
}

impl OverlapScoresAnswer {
    pub(super) fn new(scores: &OverlapScores) -> Self {
        let OverlapScores {
            overlap,
            shared_cache,
        } = scores;
        let rows = overlap.ranks.iter().map(|rank| OverlapRowAnswer {
            worker_id: rank.worker.worker_id,
            dp_rank: rank.worker.dp_rank,
            device_blocks: rank.device_blocks,
            host_pinned_blocks: through_host(rank),
            disk_blocks: through_disk(rank),
            host_pinned_extension_blocks: rank.host_blocks,
            disk_extension_blocks: rank.disk_blocks,
            shared_beyond_device_blocks: rank.shared_beyond_device_blocks,
        });
        Self {
            block_size: overlap.block_size,
            num_blocks: overlap.blocks,
            workers: rows.collect(),
            shared_cache: SharedCacheAnswer::new(shared_cache),
        }
    }
}

impl SharedCacheAnswer {
    fn new(hits: &SharedCacheHits) -> Self {
        let ranges: Vec<[u64; 2]> = hits
            .ranges
            .iter()
            .map(|range| [u64::from(range.start), u64::from(range.end)])
            .collect();
        Self {
            enabled: hits.enabled,
            total_hit_blocks: ranges.iter().map(|[start, end]| end - start).sum(),
            ranges,
            error: hits.error.map(|error| error.to_string()),
        }
    }
}

fn by_rank<S: Serializer>(tokens: &DeviceTokens<'_>, serializer: S) -> Result<S::Ok, S::Error> {
    let entries = tokens.rank_overlaps.iter();
    serializer.collect_map(
        entries.map(|(dp_rank, blocks)| (dp_rank, blocks.saturating_mul(tokens.block_size))),
    )
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_false(value: &bool) -> bool {
    !value
}
