//! Settings of cost and load; listed only, read elsewhere.

use super::Kind::{Bool, Choice, Count, Weight};
use super::{Setting, Status, not_yet, used};

pub(super) const ROUTER: &[Setting] = &[
    used(
        "router.overlap_score_credit",
        "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT",
        Weight,
        "1.0",
        "Credit per prompt block that a worker already holds in device memory.",
    ),
    used(
        "router.overlap_score_credit_decay",
        "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY",
        Weight,
        "0.0",
        "How fast that credit shrinks as a worker's prefill load rises above the least loaded one.",
    ),
    used(
        "router.prefill_load_scale",
        "DYN_ROUTER_PREFILL_LOAD_SCALE",
        Weight,
        "1.0",
        "Weight of the prompt tokens that a worker has still to compute.",
    ),
    used(
        "router.decode_active_request_weight",
        "DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT",
        Weight,
        "0.0",
        "Cost, in blocks, of each request that is active on a worker.",
    ),
    used(
        "router.host_cache_hit_weight",
        "DYN_ROUTER_HOST_CACHE_HIT_WEIGHT",
        Weight,
        "0.75",
        "Credit per block held in host memory.",
    ),
    used(
        "router.disk_cache_hit_weight",
        "DYN_ROUTER_DISK_CACHE_HIT_WEIGHT",
        Weight,
        "0.25",
        "Credit per block held on disk.",
    ),
    used(
        "router.temperature",
        "DYN_ROUTER_TEMPERATURE",
        Weight,
        "0.0",
        "Zero picks the cheapest worker; more spreads the picks.",
    ),
    used(
        "router.track_active_blocks",
        "DYN_ROUTER_TRACK_ACTIVE_BLOCKS",
        Bool,
        "true",
        "Charge a worker for the blocks of its active requests.",
    ),
    used(
        "router.track_output_blocks",
        "DYN_ROUTER_TRACK_OUTPUT_BLOCKS",
        Bool,
        "true",
        "Charge a worker for blocks of output as they are streamed. Needs `track_active_blocks`.",
    ),
    used(
        "router.assume_kv_reuse",
        "DYN_ROUTER_ASSUME_KV_REUSE",
        Bool,
        "true",
        "Count blocks that active requests share once.",
    ),
    used(
        "router.track_prefill_tokens",
        "DYN_ROUTER_TRACK_PREFILL_TOKENS",
        Bool,
        "true",
        "Charge a worker for prompt tokens until the first output.",
    ),
    Setting {
        status: Status::OnlyDefault("`selection.replica_sync_port` turns it on"),
        ..used(
            "router.replica_sync",
            "DYN_ROUTER_REPLICA_SYNC",
            Bool,
            "false",
            "Share load with other replicas.",
        )
    },
    not_yet(
        "router.queue_threshold",
        "DYN_ROUTER_QUEUE_THRESHOLD",
        Weight,
        "",
        "Load above which requests wait for a turn.",
    ),
    not_yet(
        "router.queue_policy",
        "DYN_ROUTER_QUEUE_POLICY",
        Choice(&["fcfs", "lcfs", "wspt"]),
        "fcfs",
        "Order of waiting requests.",
    ),
    not_yet(
        "router.session_affinity_ttl_secs",
        "DYN_ROUTER_SESSION_AFFINITY_TTL_SECS",
        Count {
            min: 1,
            max: 31_536_000,
        },
        "",
        "How long a session stays with its worker.",
    ),
    not_yet(
        "router.conditional_disagg",
        "DYN_ROUTER_CONDITIONAL_DISAGG",
        Bool,
        "false",
        "Skip remote prefill of short prompts.",
    ),
    not_yet(
        "router.prefill_load_model",
        "DYN_ROUTER_PREFILL_LOAD_MODEL",
        Choice(&["none", "ais", "aic"]),
        "none",
        "Model of prefill time.",
    ),
    not_yet(
        "router.use_remote_indexer",
        "DYN_USE_REMOTE_INDEXER",
        Bool,
        "false",
        "Ask another process for overlaps.",
    ),
    not_yet(
        "topology_mode",
        "DYN_EPP_TOPOLOGY_MODE",
        Choice(&["aggregated", "disaggregated"]),
        "aggregated",
        "Whether prefill and decode are separate workers.",
    ),
    Setting {
        key: None,
        aliases: &["DYN_OVERLAP_SCORE_WEIGHT"],
        status: Status::Replaced(
            "DYN_ROUTER_PREFILL_LOAD_SCALE or DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT",
        ),
        ..used(
            "",
            "DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT",
            Weight,
            "",
            "An older weight.",
        )
    },
];
