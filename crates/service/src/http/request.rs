//! What requests ask for, read from their bodies: checked at the door, so that nothing behind it
//! has to doubt a number.
//!
//! It asks no service.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use axum::body::Bytes;
use pointsman_core::{PartitionId, RoutingConstraints, SelectionRequest};
use pointsman_plugin::{
    ConfigOverrides, SessionContext, WorkerAffinityTarget, WorkerSelectionInputTrigger,
    WorkerWithDpRank,
};
use serde::Deserialize;

use super::error::Refusal;
use super::json::{JsonError, Object};
use super::prompt::{self, LISTS, Wanted};
use crate::by_id::ExplicitReservation;
use crate::replicas::check_endpoint;
use crate::service::checked_id;

const DEFAULT_NAME: &str = "default";

/// `POST /select` and `POST /select_and_reserve`.
#[derive(Debug)]
pub(super) struct SelectCall {
    pub(super) partition: PartitionId,
    pub(super) selection_id: Option<String>,
    pub(super) request: SelectionRequest,
    /// The load of the picked rank is wanted too.
    pub(super) advisory: bool,
}

/// `POST /potential_loads` and `POST /overlap_scores`.
#[derive(Debug)]
pub(super) struct PromptCall {
    pub(super) partition: PartitionId,
    pub(super) request: SelectionRequest,
}

/// `POST /reservations`.
#[derive(Debug)]
pub(super) enum ReserveCall {
    /// What was selected under this id.
    Pending { partition: PartitionId, id: String },
    /// What the caller says.
    Explicit {
        partition: PartitionId,
        wanted: Box<ExplicitReservation>,
    },
}

impl SelectCall {
    pub(super) fn read(body: &Bytes) -> Result<Self, Refusal> {
        let mut object = Object::parse(body, LISTS)?;
        let selection_id: Option<String> = object.get("selection_id")?;
        if let Some(id) = &selection_id {
            check_id(&object, id)?;
        }
        let request = SelectionRequest {
            prompt: prompt::read(&mut object, Wanted::BothHashes)?,
            session_context: session(&object)?,
            affinity_target: object.get::<WorkerAffinityTarget>("affinity_target")?,
            pinned_worker: object.get::<WorkerWithDpRank>("pinned_worker")?,
            allowed_worker_ids: object.get::<HashSet<u64>>("allowed_worker_ids")?,
            constraints: constraints(&object)?,
            expected_output_tokens: object.get("expected_output_tokens")?,
            priority_jump: object.get("priority_jump")?.unwrap_or_default(),
            strict_priority: object.get("strict_priority")?.unwrap_or_default(),
            ..prompt_request(&object)?
        };
        Ok(Self {
            partition: partition(&object)?,
            selection_id,
            request,
            advisory: object.get("advisory")?.unwrap_or_default(),
        })
    }
}

impl PromptCall {
    pub(super) fn read(body: &Bytes) -> Result<Self, Refusal> {
        let mut object = Object::parse(body, LISTS)?;
        let request = SelectionRequest {
            prompt: prompt::read(&mut object, Wanted::BothHashes)?,
            ..prompt_request(&object)?
        };
        Ok(Self {
            partition: partition(&object)?,
            request,
        })
    }
}

impl ReserveCall {
    pub(super) fn read(body: &Bytes) -> Result<Self, Refusal> {
        let mut object = Object::parse(body, LISTS)?;
        let id: String = object.require("selection_id")?;
        check_id(&object, &id)?;
        let partition = partition(&object)?;
        let Some(worker_id) = object.get::<u64>("worker_id")? else {
            return Ok(Self::Pending { partition, id });
        };
        let dp_rank = object.get("dp_rank")?.unwrap_or_default();
        let effective_prefill_tokens = object.get("effective_prefill_tokens")?;
        let mut request = SelectionRequest {
            prompt: prompt::read(&mut object, Wanted::SequenceHashes)?,
            expected_output_tokens: object.get("expected_output_tokens")?,
            ..prompt_request(&object)?
        };
        if let Some(track) = object.get("track_prefill_tokens")? {
            request.overrides.track_prefill_tokens = Some(track);
        }
        let isl_tokens = request.prompt.isl_tokens();
        if effective_prefill_tokens.is_some_and(|tokens| tokens > isl_tokens) {
            let reason = format!("must be at most the {isl_tokens} tokens of the prompt");
            return Err(object.bad("effective_prefill_tokens", reason).into());
        }
        Ok(Self::Explicit {
            partition,
            wanted: Box::new(ExplicitReservation {
                id,
                worker: WorkerWithDpRank { worker_id, dp_rank },
                request,
                effective_prefill_tokens,
            }),
        })
    }
}

/// The `decay_fraction` of an output block; the body may be missing.
pub(super) fn decay_fraction(body: &Bytes) -> Result<Option<f64>, Refusal> {
    if is_absent(body) {
        return Ok(None);
    }
    let object = Object::parse(body, &[])?;
    let fraction: Option<f64> = object.get("decay_fraction")?;
    if fraction.is_some_and(|fraction| !(0.0..=1.0).contains(&fraction)) {
        let reason = "must be a number from 0 to 1";
        return Err(object.bad("decay_fraction", reason).into());
    }
    Ok(fraction)
}

/// The `cached_tokens` that an engine reports when the prompt is computed; the body may be missing.
pub(super) fn cached_tokens(body: &Bytes) -> Result<Option<u64>, Refusal> {
    if is_absent(body) {
        return Ok(None);
    }
    let object = Object::parse(body, &[])?;
    Ok(object.get("cached_tokens")?)
}

/// Null is as good as no body.
fn is_absent(body: &Bytes) -> bool {
    body.is_empty() || body.trim_ascii() == b"null"
}

/// The `endpoint` of a peer.
pub(super) fn peer_endpoint(body: &Bytes) -> Result<String, Refusal> {
    let object = Object::parse(body, &[])?;
    let endpoint: String = object.require("endpoint")?;
    match check_endpoint(&endpoint) {
        Ok(()) => Ok(endpoint),
        Err(_) => Err(object.bad("endpoint", "must be tcp://host:port").into()),
    }
}

fn check_id(object: &Object<'_>, id: &str) -> Result<(), JsonError> {
    checked_id(id).map_err(|_| object.bad("selection_id", "must have 1 to 256 bytes"))
}

fn partition(object: &Object<'_>) -> Result<PartitionId, JsonError> {
    let name = |field| -> Result<String, JsonError> {
        let name: Option<String> = object.get(field)?;
        Ok(name.unwrap_or_else(|| DEFAULT_NAME.to_owned()))
    };
    Ok(PartitionId::new(
        name("model_name")?,
        name("routing_group")?,
    ))
}

/// What belongs to the prompt, beside the prompt.
fn prompt_request(object: &Object<'_>) -> Result<SelectionRequest, JsonError> {
    // How a partition cuts blocks is its workers' affair; the field is checked and no more.
    object.get::<bool>("is_eagle")?;
    Ok(SelectionRequest {
        lora_name: object.get("lora_name")?,
        cache_salt: object.get("cache_salt")?,
        overrides: overrides(object)?,
        ..SelectionRequest::default()
    })
}

fn overrides(object: &Object<'_>) -> Result<ConfigOverrides, JsonError> {
    let Some(inner) = object.object("router_config_override", &[])? else {
        return Ok(ConfigOverrides::default());
    };
    let credit: Option<f64> = inner.get("overlap_score_credit")?;
    let overrides = ConfigOverrides {
        // The second is the older name of the first.
        overlap_score_credit: match credit {
            Some(credit) => Some(credit),
            None => inner.get("overlap_score_weight")?,
        },
        prefill_load_scale: inner.get("prefill_load_scale")?,
        router_temperature: inner.get("router_temperature")?,
        assume_kv_reuse: inner.get("assume_kv_reuse")?,
        track_prefill_tokens: inner.get("track_prefill_tokens")?,
        shared_cache_multiplier: inner.get("shared_cache_multiplier")?,
    };
    match overrides.validate() {
        Ok(()) => Ok(overrides),
        Err(mistakes) => Err(mistakes.first().map_or_else(
            || object.bad("router_config_override", "is wrong"),
            |mistake| inner.bad(mistake.field, format!("must be {}", mistake.expected)),
        )),
    }
}

fn session(object: &Object<'_>) -> Result<Option<SessionContext>, JsonError> {
    let alone: Option<String> = object.get("session_id")?;
    let Some(inner) = object.object("session_context", &[])? else {
        return Ok(alone.map(|id| SessionContext::new(id, None, None, None)));
    };
    let trigger: Option<WorkerSelectionInputTrigger> = inner.get("input_trigger")?;
    let context = SessionContext::new(
        inner.require("session_id")?,
        inner.get("parent_session_id")?,
        inner.get("session_final")?,
        trigger,
    );
    let headers: Option<BTreeMap<String, Vec<String>>> = inner.get("agent_headers")?;
    Ok(Some(
        context.with_agent_headers(headers.unwrap_or_default()),
    ))
}

/// Numbers in JSON are finite, so every weight is.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Constraints {
    required_taints: Option<BTreeSet<String>>,
    preferred_taints: Option<BTreeMap<String, f64>>,
}

fn constraints(object: &Object<'_>) -> Result<RoutingConstraints, JsonError> {
    let read: Option<Constraints> = object.get("routing_constraints")?;
    let read = read.unwrap_or_default();
    Ok(RoutingConstraints {
        required_taints: read.required_taints.unwrap_or_default(),
        preferred_taints: read.preferred_taints.unwrap_or_default(),
    })
}
