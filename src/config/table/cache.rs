//! Settings of what is known about caches; listed only, read elsewhere.

use super::Kind::{Bool, Count, Weight};
use super::{Setting, used};

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
        "router.predicted_blocks_per_rank",
        "POINTSMAN_PREDICTED_BLOCKS_PER_RANK",
        Count {
            min: 1,
            max: 100_000_000,
        },
        "100000",
        "How many such blocks a rank has room for, where its worker states no `total_kv_blocks`; the oldest go first.",
    ),
];
