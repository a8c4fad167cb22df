//! Published names that have no effect so far; listed only, never read.

use super::{Setting, ignored};

pub(super) const IGNORED: &[Setting] = &[
    ignored("DYN_EPP_INFERENCE_POOL_NAME", "Pool to watch."),
    ignored("POD_NAMESPACE", "Namespace of that pool."),
    ignored("POD_IP", "This pod's address."),
    ignored("DYN_EPP_TOKENIZER_SERVICE_URL", "Tokenizing service."),
    ignored("DYN_EPP_TOKENIZER_PROTOCOL", "Its protocol."),
    ignored(
        "DYN_EPP_TOKENIZER_MAX_RESPONSE_BYTES",
        "Its largest answer.",
    ),
    ignored("DYN_EPP_KV_EVENT_PORT", "Event port of discovered pods."),
    ignored(
        "DYN_EPP_KV_EVENT_REPLAY_PORT",
        "Replay port of discovered pods.",
    ),
    ignored(
        "DYN_EPP_MAX_NUM_BATCHED_TOKENS",
        "Batch size of discovered pods.",
    ),
    ignored("DYN_EPP_TOTAL_KV_BLOCKS", "Capacity of discovered pods."),
    ignored("DYN_EPP_SELECTION_INDEXER_THREADS", "Indexer threads."),
    ignored("DYN_EPP_PEER_SERVICE", "Service that lists the peers."),
    ignored("DYN_EPP_SELECTION_HTTP_PORT", "Port of the HTTP service."),
    ignored(
        "DYN_EPP_WORKER_ROLE_LABEL",
        "Pod label with a worker's role.",
    ),
    ignored("DYN_KUBE_DISCOVERY_MODE", "How pods are discovered."),
    ignored("DYN_ROUTER_EVENT_THREADS", "Event threads."),
    ignored("DYN_ROUTER_TRACKING_HASH", "Hash of tracked prompts."),
    ignored("DYN_ROUTER_TRACKING_KEY_FILE", "Key of that hash."),
    ignored("DYN_ROUTER_TRACKING_KEY_ID", "Name of that key."),
    ignored(
        "DYN_ROUTER_APPROXIMATE_CACHE_POLICY",
        "Eviction without events.",
    ),
    ignored(
        "DYN_ROUTER_CONDITIONAL_DISAGG_POLICY",
        "When remote prefill is skipped.",
    ),
    ignored(
        "DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_THRESHOLD",
        "Its token bound.",
    ),
    ignored(
        "DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_RATIO_THRESHOLD",
        "Its share bound.",
    ),
    ignored(
        "DYN_ROUTER_MIN_INITIAL_WORKERS",
        "Workers to wait for at start.",
    ),
    ignored(
        "DYN_ROUTER_OVERLAP_REFRESH_AFTER_SECS",
        "Age at which an overlap is looked up again.",
    ),
];
