//! Settings of the start: mode, workers, tokenizer and policy; listed only, read elsewhere.

use super::Kind::{Bool, Bytes, Choice, Count, Path, Text};
use super::{MILLIS, Setting, used};

pub(super) const START: &[Setting] = &[
    Setting {
        key: None,
        ..used(
            "",
            "POINTSMAN_CONFIG",
            Path,
            "",
            "Settings file (YAML), with the keys of this page. A variable wins over the file.",
        )
    },
    used(
        "mode",
        "DYN_EPP_MODE",
        Choice(&["standalone", "dynamo"]),
        "standalone",
        "How the picker runs. Only `standalone` exists: there is no runtime mode, so `dynamo` stops start-up.",
    ),
];

pub(super) const WORKERS: &[Setting] = &[
    used(
        "workers_file",
        "POINTSMAN_WORKERS_FILE",
        Path,
        "",
        "YAML file that lists the workers under `workers:`; watched for changes. Unset: no workers.",
    ),
    used(
        "model_name",
        "DYN_MODEL_NAME",
        Text,
        "",
        "Model that every request is routed to, whatever its body says. Unset: the model of the body, or the only registered one.",
    ),
    used(
        "block_size",
        "DYN_KV_CACHE_BLOCK_SIZE",
        Count {
            min: 1,
            max: u32::MAX as u64,
        },
        "16",
        "KV-cache block size, in tokens, of workers that state none. It must equal the engine's.",
    ),
];

pub(super) const TOKENIZING: &[Setting] = &[
    used(
        "tokenizer.dir",
        "POINTSMAN_TOKENIZER_DIR",
        Path,
        "",
        "Directory with `tokenizer.json` and `tokenizer_config.json`. Unset: text prompts are routed by load.",
    ),
    used(
        "tokenizer.timeout_ms",
        "DYN_EPP_TOKENIZATION_TIMEOUT_MS",
        MILLIS,
        "5000",
        "Longest wait for one prompt's tokens; after that the request is routed by load.",
    ),
    used(
        "tokenizer.threads",
        "POINTSMAN_TOKENIZER_THREADS",
        Count { min: 1, max: 256 },
        "2",
        "Prompts too long for the request thread that are tokenized at once.",
    ),
    used(
        "tokenizer.max_waiting",
        "POINTSMAN_TOKENIZER_MAX_WAITING",
        Count {
            min: 0,
            max: 65_536,
        },
        "32",
        "Long prompts that may wait for a tokenizing thread; one more is routed by load.",
    ),
    used(
        "tokenizer.max_text_bytes",
        "POINTSMAN_TOKENIZER_MAX_TEXT_BYTES",
        Bytes { min: 1 },
        "32MiB",
        "Longest prompt text that is tokenized; a longer one is routed by load.",
    ),
    used(
        "tokenizer.memo_bytes",
        "POINTSMAN_TOKENIZER_MEMO_BYTES",
        Bytes { min: 0 },
        "256MiB",
        "Memory for the tokens of prompts seen before; 0 keeps none.",
    ),
    used(
        "tokenizer.engine",
        "POINTSMAN_TOKENIZER_ENGINE",
        Choice(&["auto", "fast", "reference"]),
        "auto",
        "What turns text into ids: the fast engine where it can read the model's file, or one of the two always.",
    ),
    used(
        "tokenizer.content_format",
        "POINTSMAN_TOKENIZER_CONTENT_FORMAT",
        Choice(&["auto", "text", "parts"]),
        "auto",
        "How the chat template gets a message's content: as one text, as a list of parts, or as the template asks.",
    ),
    used(
        "tokenizer.keep_refused_tools",
        "POINTSMAN_TOKENIZER_KEEP_REFUSED_TOOLS",
        Bool,
        "true",
        "Whether tools stay in the prompt where `tool_choice` is `none`. It must be as the engines have it.",
    ),
];

pub(super) const POLICY: &[Setting] = &[
    used(
        "policy.file",
        "DYN_ROUTER_POLICY_CONFIG",
        Path,
        "",
        "Router policy file (YAML). Unset or empty: the built-in policy everywhere.",
    ),
    used(
        "policy.worker_selection",
        "DYN_ROUTER_WORKER_SELECTION_POLICY",
        Text,
        "",
        "Policy instance for every role, over the policy file; `default` is the built-in one.",
    ),
    used(
        "policy.prefill",
        "DYN_ROUTER_PREFILL_POLICY",
        Text,
        "",
        "Policy instance for the prefill role. The standalone picker has no such role and says so.",
    ),
    used(
        "policy.decode",
        "DYN_ROUTER_DECODE_POLICY",
        Text,
        "",
        "Policy instance for the decode role. The standalone picker has no such role and says so.",
    ),
];
