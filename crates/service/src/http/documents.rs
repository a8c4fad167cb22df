//! The bodies that requests may have, as the API document shows them.
//!
//! Nothing is read into these: `request` reads bodies. A test there asks for every field of these.

#![allow(dead_code, reason = "fields are shown, never read")]
#![allow(clippy::struct_field_names, reason = "the names are published")]

use std::collections::BTreeMap;

use utoipa::ToSchema;

use crate::workers::KvTransferEnforcement;

/// A prompt, as `mm_routing_info`, or `token_ids`, or hashes with `isl_tokens`; the first that is
/// there wins.
#[derive(ToSchema)]
pub(super) struct PromptFields {
    mm_routing_info: Option<MediaPrompt>,
    token_ids: Option<Vec<u32>>,
    /// Media by block.
    block_mm_infos: Option<Vec<Option<BlockMedia>>>,
    /// 64 bits each, signed or unsigned.
    block_hashes: Option<Vec<i64>>,
    /// 64 bits each, signed or unsigned.
    sequence_hashes: Option<Vec<i64>>,
    isl_tokens: Option<u64>,
    lora_name: Option<String>,
    cache_salt: Option<String>,
    is_eagle: Option<bool>,
    router_config_override: Option<Overrides>,
    /// `default` if absent.
    model_name: Option<String>,
    /// `default` if absent.
    routing_group: Option<String>,
}

#[derive(ToSchema)]
struct MediaPrompt {
    routing_token_ids: Option<Vec<u32>>,
    block_mm_infos: Option<Vec<Option<BlockMedia>>>,
}

#[derive(ToSchema)]
struct BlockMedia {
    mm_objects: Vec<MediaObject>,
}

#[derive(ToSchema)]
struct MediaObject {
    mm_hash: u64,
}

/// Settings this request replaces.
#[derive(ToSchema)]
struct Overrides {
    #[schema(minimum = 0)]
    overlap_score_credit: Option<f64>,
    #[schema(minimum = 0)]
    prefill_load_scale: Option<f64>,
    #[schema(minimum = 0)]
    router_temperature: Option<f64>,
    assume_kv_reuse: Option<bool>,
    track_prefill_tokens: Option<bool>,
    #[schema(minimum = 0, maximum = 1)]
    shared_cache_multiplier: Option<f64>,
}

/// A request to be placed.
#[derive(ToSchema)]
pub(super) struct SelectFields {
    #[schema(inline)]
    #[serde(flatten)]
    prompt: PromptFields,
    #[schema(min_length = 1, max_length = 256)]
    selection_id: Option<String>,
    expected_output_tokens: Option<u32>,
    priority_jump: Option<f64>,
    strict_priority: Option<u32>,
    session_id: Option<String>,
    session_context: Option<Session>,
    affinity_target: Option<Affinity>,
    pinned_worker: Option<Pinned>,
    allowed_worker_ids: Option<Vec<u64>>,
    routing_constraints: Option<Constraints>,
    /// `/select` only: answer the load of the selected rank too.
    advisory: Option<bool>,
}

#[derive(ToSchema)]
struct Session {
    session_id: String,
    parent_session_id: Option<String>,
    session_final: Option<bool>,
    #[schema(value_type = Option<InputTrigger>)]
    input_trigger: Option<InputTrigger>,
    agent_headers: Option<BTreeMap<String, Vec<String>>>,
}

#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
enum InputTrigger {
    UserMessage,
    ToolResult,
    Other,
}

#[derive(ToSchema)]
struct Affinity {
    worker_id: u64,
    dp_rank: Option<u32>,
}

#[derive(ToSchema)]
struct Pinned {
    worker_id: u64,
    dp_rank: u32,
}

#[derive(ToSchema)]
struct Constraints {
    required_taints: Option<Vec<String>>,
    preferred_taints: Option<BTreeMap<String, f64>>,
}

/// A reservation: of a pending selection if there is no `worker_id`, else of what is said here.
#[derive(ToSchema)]
pub(super) struct ReserveFields {
    #[schema(min_length = 1, max_length = 256)]
    selection_id: String,
    worker_id: Option<u64>,
    dp_rank: Option<u32>,
    #[schema(inline)]
    #[serde(flatten)]
    prompt: PromptFields,
    /// What is charged; at most the length of the prompt. Given, prefill is tracked.
    effective_prefill_tokens: Option<u64>,
    track_prefill_tokens: Option<bool>,
    expected_output_tokens: Option<u32>,
}

/// The prompt is computed.
#[derive(ToSchema)]
pub(super) struct PrefillCompleteFields {
    /// Tokens of the prompt that the engine found in its cache, as it reports in its usage.
    cached_tokens: Option<u64>,
}

/// One more block of output.
#[derive(ToSchema)]
pub(super) struct OutputBlockFields {
    #[schema(minimum = 0, maximum = 1)]
    decay_fraction: Option<f64>,
}

#[derive(ToSchema)]
pub(super) struct PeerFields {
    #[schema(pattern = "^tcp://.+:[0-9]{1,5}$")]
    endpoint: String,
}

/// A worker; what is not said keeps its default. In a `PATCH`, only what is named changes and null
/// clears.
#[derive(ToSchema)]
pub(super) struct WorkerFields {
    worker_id: u64,
    #[schema(inline)]
    #[serde(flatten)]
    patch: WorkerPatchFields,
}

/// What may be known of a worker.
#[derive(ToSchema)]
pub(super) struct WorkerPatchFields {
    model_name: Option<String>,
    routing_group: Option<String>,
    endpoint: Option<String>,
    kv_events_endpoint: Option<String>,
    kv_events_endpoints: Option<BTreeMap<String, String>>,
    replay_endpoint: Option<String>,
    replay_endpoints: Option<BTreeMap<String, String>>,
    block_size: Option<u32>,
    data_parallel_start_rank: Option<u32>,
    #[schema(maximum = 4096)]
    data_parallel_size: Option<u32>,
    max_num_batched_tokens: Option<u64>,
    total_kv_blocks: Option<u64>,
    stable_routing_id: Option<String>,
    is_eagle: Option<bool>,
    taints: Option<Vec<String>>,
    topology_domains: Option<BTreeMap<String, String>>,
    kv_transfer_domain: Option<String>,
    kv_transfer_enforcement: Option<KvTransferEnforcement>,
    kv_transfer_preferred_weight: Option<f64>,
    router_hint_worker_type: Option<String>,
    router_hint_source_control_endpoints: Option<BTreeMap<String, String>>,
    kv_event_source_mode: Option<String>,
}

/// What a partition's ranks have cached, or why it cannot be told.
#[derive(ToSchema)]
pub(super) struct DumpedPartition {
    block_size: Option<u32>,
    model_name: Option<String>,
    routing_group: Option<String>,
    /// Blocks on devices first; a block comes after its parent.
    events: Option<Vec<DumpedEvent>>,
    /// How far the ranks' events were applied at least.
    watermarks: Option<Vec<Watermark>>,
    /// Blocks whose parents are gone, so that their place cannot be told.
    blocks_left_out: Option<u64>,
    error: Option<String>,
}

#[derive(ToSchema)]
struct DumpedEvent {
    worker_id: u64,
    storage_tier: StorageTier,
    event: RankEvent,
}

#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
enum StorageTier {
    Device,
    HostPinned,
    Disk,
    External,
}

#[derive(ToSchema)]
struct RankEvent {
    event_id: u64,
    dp_rank: u32,
    data: EventData,
}

#[derive(ToSchema)]
struct EventData {
    stored: StoredRun,
}

#[derive(ToSchema)]
struct StoredRun {
    #[schema(required = true)]
    parent_hash: Option<u64>,
    #[schema(required = true)]
    start_position: Option<u32>,
    blocks: Vec<DumpedBlock>,
}

#[derive(ToSchema)]
struct DumpedBlock {
    /// The engine's name of the block.
    block_hash: u64,
    tokens_hash: u64,
    /// Always null: media is in the hash of the tokens.
    #[schema(required = true, value_type = Option<Object>)]
    mm_extra_info: Option<()>,
}

#[derive(ToSchema)]
struct Watermark {
    worker_id: u64,
    dp_rank: u32,
    last_sequence: u64,
    /// The engine's blocks have another size: those of this rank are cut again, and may have names
    /// that the engine does not know. Omitted where they are not.
    recut: Option<bool>,
}
