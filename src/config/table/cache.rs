//! Settings of what is known about caches; listed only, read elsewhere.

use super::Kind::{Bool, Choice, Count, Credit, Millis, Seconds, Url, Weight};
use super::{DAY_SECONDS, Setting, Status, used};

pub(super) const CACHE: &[Setting] = &[
    Setting {
        aliases: &["DYN_USE_KV_EVENTS"],
        ..used(
            "router.use_kv_events",
            "DYN_ROUTER_USE_KV_EVENTS",
            Bool,
            "true",
            "Learn from the engines' events what each worker holds. Without them, what is routed to a worker is taken to be cached there for `router.ttl_secs`.",
        )
    },
    used(
        "router.ttl_secs",
        "DYN_ROUTER_TTL_SECS",
        Weight,
        "120",
        "Without events: how long a block is believed to be where it was routed. More than 0.",
    ),
    used(
        "router.predicted_ttl_secs",
        "DYN_ROUTER_PREDICTED_TTL_SECS",
        Weight,
        "",
        "With events: how long a block is believed to be where it was routed, until its event arrives. More than 0; unset: not at all.",
    ),
    used(
        "router.max_index_entries",
        "POINTSMAN_MAX_INDEX_ENTRIES",
        Count {
            min: 1,
            max: 10_000_000_000,
        },
        "50000000",
        "Bound on the blocks indexed for one model and routing group, each counted on every rank that has it: 15 to 50 bytes each. New blocks beyond are not indexed, and counted in `pointsman_kv_index_blocks_refused_total`.",
    ),
    used(
        "router.predicted_blocks_per_rank",
        "POINTSMAN_PREDICTED_BLOCKS_PER_RANK",
        Count {
            min: 1,
            max: 100_000_000,
        },
        "100000",
        "How many such blocks a rank has room for, where its worker states no `total_kv_blocks`; the oldest go first.",
    ),
    used(
        "router.shared_cache_url",
        "POINTSMAN_SHARED_CACHE_URL",
        Url,
        "",
        "A cache that all engines share: before each decision it is sent `{\"block_hashes\": [..]}` by POST and answers `{\"ranges\": [[start, end], ..]}`, the block positions that it has. Unset: none is asked.",
    ),
    used(
        "router.shared_cache_timeout_ms",
        "POINTSMAN_SHARED_CACHE_TIMEOUT_MS",
        Millis { min: 1, max: 1_000 },
        "5",
        "How long a decision waits for its answer; after that it counts as having nothing.",
    ),
    used(
        "router.shared_cache_max_questions",
        "POINTSMAN_SHARED_CACHE_MAX_QUESTIONS",
        Count {
            min: 1,
            max: 100_000,
        },
        "256",
        "Questions to it under way at once; beyond, decisions are made without asking.",
    ),
    used(
        "router.shared_cache_multiplier",
        "DYN_SHARED_CACHE_MULTIPLIER",
        Credit,
        "",
        "Credit per prompt block that it has beyond a worker's device. Unset: 0.5 where a URL is set.",
    ),
    Setting {
        status: Status::OnlyDefault(
            "that kind reads one engine's store by the store's own protocol, which is not spoken here; put a service that answers over HTTP before it and set POINTSMAN_SHARED_CACHE_URL",
        ),
        ..used(
            "router.shared_cache_type",
            "DYN_SHARED_CACHE_TYPE",
            Choice(&["none", "hicache"]),
            "none",
            "The kind of shared cache that is read without a URL.",
        )
    },
    used(
        "router.kv_suspect_secs",
        "POINTSMAN_KV_SUSPECT_SECS",
        Seconds {
            min: 10,
            max: DAY_SECONDS,
        },
        "60",
        "How long blocks are believed that may be stale, as after a lost connection or a gap in the events, unless the engine names them again.",
    ),
    used(
        "router.cache_audit",
        "POINTSMAN_AUDIT_CACHES",
        Choice(&["off", "count", "quarantine"]),
        "quarantine",
        "What is done where an engine reports fewer cached tokens than its events promise: nothing, count it, or also believe less of that rank until its cache was read again.",
    ),
];
