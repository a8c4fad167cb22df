//! The pick: from a request to an endpoint, and the load that is held for it.
//!
//! It has no opinion on who should serve: the selection service decides.

mod held;
mod metrics;

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use pointsman_core::{Prompt, Selection, SelectionRequest};
use pointsman_service::SelectionService;
use tracing::{debug, error};

pub use held::Charge;
pub use metrics::Metrics;

use crate::{
    error::{PickError, Refusal},
    ext_proc::{Pick, Picked, SubsetHint},
    request::{Head, RoutingRequest},
    tokenize::{Tokenizer, Tokens},
};

/// Response header that carries the prediction where `Config::debug_headers` is on.
const PREDICTED_HEADER: &str = "x-pointsman-predicted-cached-tokens";
/// Tells an engine with several data-parallel ranks which of them holds the cache and the load.
const RANK_HEADER: &str = "x-data-parallel-rank";
/// What a token takes of a prompt's bytes, where all that is known is its size.
const BYTES_PER_TOKEN: usize = 4;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Put the predicted cached tokens on each response.
    pub debug_headers: bool,
}

/// Picks endpoints by asking the selection service.
#[derive(Debug)]
pub struct EndpointPicker {
    service: SelectionService,
    tokenizer: Tokenizer,
    config: Config,
    metrics: Metrics,
    /// Requests without a body are spread evenly; nothing else is known of them.
    turns: AtomicUsize,
}

impl EndpointPicker {
    pub fn new(
        service: SelectionService,
        tokenizer: Tokenizer,
        config: Config,
        metrics: Metrics,
    ) -> Self {
        Self {
            service,
            tokenizer,
            config,
            metrics,
            turns: AtomicUsize::new(0),
        }
    }

    async fn route(
        &self,
        head: &Head,
        body: &Bytes,
        subset: &SubsetHint,
    ) -> Result<Picked<Charge>, PickError> {
        if body.is_empty() {
            return self.any_ready(subset);
        }
        let request = self.tokenizer.parse(head, body).await?;
        let partition = self.service.partition_of(request.model.as_deref())?;
        let tokens = self.tokenizer.tokenize(&request).await?;
        let selection = self.selection_request(request, tokens, body.len(), subset);
        let reserved = self
            .service
            .select_and_reserve(&partition, selection, None)
            .await?;
        let endpoint = dialable(&reserved.selected.endpoint)?;
        self.metrics.picked(&partition.model_name);
        let predicted = reserved.selected.selection.predicted_cached_tokens;
        debug!(%endpoint, predicted, "picked");
        let request_headers = rank_header(&reserved.selected.selection);
        let charge = Charge::new(
            reserved,
            endpoint,
            self.service.clone(),
            self.metrics.clone(),
        );
        Ok(Picked {
            endpoint: endpoint.to_string(),
            request_headers,
            response_headers: self.response_headers(predicted),
            held: Some(charge),
        })
    }

    fn any_ready(&self, subset: &SubsetHint) -> Result<Picked<Charge>, PickError> {
        let table = self.service.endpoints();
        let addresses = table.iter().filter_map(|(_, endpoint)| endpoint.address);
        let allowed: Vec<SocketAddr> = addresses.filter(|&at| subset.allows(at)).collect();
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let endpoint = turn
            .checked_rem(allowed.len())
            .and_then(|index| allowed.get(index))
            .ok_or(PickError::NoReadyEndpoint)?;
        Ok(Picked {
            endpoint: endpoint.to_string(),
            request_headers: Vec::new(),
            response_headers: Vec::new(),
            held: None,
        })
    }

    fn selection_request(
        &self,
        request: RoutingRequest,
        tokens: Tokens,
        body_bytes: usize,
        subset: &SubsetHint,
    ) -> SelectionRequest {
        let prompt = match tokens.degraded {
            None => Prompt::Tokens {
                ids: tokens.ids,
                media: Vec::new(),
            },
            Some(_) => Prompt::Unknown {
                estimated_tokens: (body_bytes / BYTES_PER_TOKEN) as u64,
            },
        };
        SelectionRequest {
            prompt,
            lora_name: request.lora_name,
            cache_salt: request.cache_salt,
            session_context: request.hints.session,
            allowed_worker_ids: self.allowed(subset),
            expected_output_tokens: request.hints.expected_output_tokens,
            priority_jump: request.hints.priority_jump,
            strict_priority: request.hints.strict_priority,
            ..SelectionRequest::default()
        }
    }

    /// `None` allows everybody.
    fn allowed(&self, subset: &SubsetHint) -> Option<HashSet<u64>> {
        if subset.is_any() {
            return None;
        }
        let table = self.service.endpoints();
        let allowed = table
            .iter()
            .filter(|(_, endpoint)| endpoint.address.is_some_and(|at| subset.allows(at)));
        Some(allowed.map(|(worker_id, _)| worker_id).collect())
    }

    fn response_headers(&self, predicted: u64) -> Vec<(&'static str, String)> {
        if self.config.debug_headers {
            vec![(PREDICTED_HEADER, predicted.to_string())]
        } else {
            Vec::new()
        }
    }
}

impl Pick for EndpointPicker {
    type Held = Charge;

    async fn pick(
        &self,
        head: Head,
        body: Bytes,
        subset: SubsetHint,
    ) -> Result<Picked<Charge>, Refusal> {
        let picked = self.route(&head, &body, &subset).await;
        picked.map_err(|error| told(&error, &head))
    }
}

impl<P: Pick> Pick for Arc<P> {
    type Held = P::Held;

    fn pick(
        &self,
        head: Head,
        body: Bytes,
        subset: SubsetHint,
    ) -> impl Future<Output = Result<Picked<P::Held>, Refusal>> + Send {
        P::pick(self, head, body, subset)
    }
}

/// The cause goes to the log, once; the client is told the fixed text.
fn told(error: &PickError, head: &Head) -> Refusal {
    let refusal = error.refusal();
    let request_id = head.header("x-request-id").unwrap_or_default();
    let cause: &dyn std::error::Error = error;
    if refusal.status == 500 {
        error!(request_id, code = refusal.code, cause, "request refused");
    } else {
        debug!(request_id, code = refusal.code, cause, "request refused");
    }
    refusal
}

/// Nothing where the worker has one rank alone: there is nothing to choose.
fn rank_header(selection: &Selection) -> Vec<(&'static str, String)> {
    if selection.rank_overlaps.len() < 2 {
        return Vec::new();
    }
    vec![(RANK_HEADER, selection.worker.dp_rank.to_string())]
}

/// `http://ip:port` as the address that Envoy dials.
fn dialable(url: &str) -> Result<SocketAddr, PickError> {
    url.strip_prefix("http://")
        .and_then(|rest| rest.split('/').next())
        .and_then(|authority| authority.parse().ok())
        .ok_or_else(|| PickError::Undialable {
            endpoint: url.to_owned(),
        })
}
