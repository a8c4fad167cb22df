//! Asks a cache that the engines share which blocks of a prompt it has, over HTTP, before a decision.
//!
//! It waits for no answer longer than its deadline and fails no request: whatever goes wrong, the
//! blocks count as not there, and who asks is told why. It knows no worker.

mod breaker;
mod request;
mod wire;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use pointsman_core::hash::BlockHash;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::metrics::{Name, OutcomeLabels};
use breaker::Breaker;

/// A question is given up after this long, whoever waits for it: its connection is of no use.
const LONGEST_QUESTION: Duration = Duration::from_secs(1);
const IDLE_CONNECTION: Duration = Duration::from_mins(1);

/// Which shared cache is asked, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedCacheConfig {
    url: Uri,
    /// A decision waits this long for an answer.
    pub deadline: Duration,
    /// Questions under way at once; beyond, decisions are made without asking.
    pub max_questions: usize,
}

/// The address of a shared cache that cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected http://host:port/path")]
pub struct BadSharedCacheUrl;

/// Why nothing is known of a shared cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SharedCacheError {
    #[error("no answer within the deadline")]
    Late,
    #[error("the shared cache was not reached")]
    Unreachable,
    #[error("the shared cache answered with status {0}")]
    Status(u16),
    #[error("the answer of the shared cache was not understood")]
    Malformed,
    #[error("not asked: the shared cache failed several times in a row")]
    Paused,
    #[error("not asked: too many questions are under way")]
    Busy,
}

/// What a shared cache has of one prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedCacheHits {
    /// There is a shared cache.
    pub enabled: bool,
    /// Block positions, ascending and apart from each other.
    pub ranges: Vec<Range<u32>>,
    /// Why there are none.
    pub error: Option<SharedCacheError>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct SharedCacheMetrics {
    questions: Family<OutcomeLabels, Counter>,
    hit_blocks: Counter,
    under_way: Gauge,
    paused: Gauge,
}

#[derive(Debug)]
pub(crate) struct SharedCache {
    config: SharedCacheConfig,
    client: Client<HttpConnector, Full<Bytes>>,
    breaker: Mutex<Breaker>,
    questions: Arc<Semaphore>,
    metrics: SharedCacheMetrics,
}

impl SharedCacheConfig {
    /// With a deadline of 5 ms and 256 questions at once.
    pub fn new(url: &str) -> Result<Self, BadSharedCacheUrl> {
        let url: Uri = url.parse().map_err(|_| BadSharedCacheUrl)?;
        let is_http = url.scheme_str() == Some("http");
        if !is_http || url.host().is_none_or(str::is_empty) {
            return Err(BadSharedCacheUrl);
        }
        Ok(Self {
            url,
            deadline: Duration::from_millis(5),
            max_questions: 256,
        })
    }
}

impl SharedCache {
    pub(crate) fn new(config: SharedCacheConfig, metrics: SharedCacheMetrics) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(LONGEST_QUESTION));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_CONNECTION)
            .pool_max_idle_per_host(config.max_questions)
            .build(connector);
        Self {
            questions: Arc::new(Semaphore::new(config.max_questions)),
            config,
            client,
            breaker: Mutex::default(),
            metrics,
        }
    }

    /// Which of these blocks, a prompt's from its start, are there.
    pub(crate) async fn hits(&self, block_hashes: &[BlockHash]) -> SharedCacheHits {
        let outcome = self.asked(wire::asked(block_hashes)).await;
        let name = match &outcome {
            Ok(_) => "answered",
            Err(error) => error.as_str(),
        };
        self.metrics
            .questions
            .get_or_create(&OutcomeLabels {
                outcome: Name(name),
            })
            .inc();
        let error = outcome.as_ref().err().copied();
        let ranges = outcome.unwrap_or_default();
        let blocks = ranges
            .iter()
            .map(|range| u64::from(range.end - range.start));
        self.metrics.hit_blocks.inc_by(blocks.sum());
        SharedCacheHits {
            enabled: true,
            ranges,
            error,
        }
    }

    async fn asked(&self, block_hashes: &[BlockHash]) -> Result<Vec<Range<u32>>, SharedCacheError> {
        if !self.breaker().admits(Instant::now()) {
            return Err(SharedCacheError::Paused);
        }
        let questions = Arc::clone(&self.questions);
        let permit = questions.try_acquire_owned();
        let permit = permit.map_err(|_| SharedCacheError::Busy)?;
        let outcome = self.answer(block_hashes, permit).await;
        self.learn(outcome.as_ref().err().copied());
        outcome
    }

    /// The question is a task of its own: an answer that comes too late for this decision still leaves a connection
    /// that the next one can use.
    async fn answer(
        &self,
        block_hashes: &[BlockHash],
        permit: OwnedSemaphorePermit,
    ) -> Result<Vec<Range<u32>>, SharedCacheError> {
        let blocks = block_hashes.len();
        let request = Request::post(self.config.url.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::from(wire::question(block_hashes)))
            .map_err(|_| SharedCacheError::Unreachable)?;
        let (sender, answer) = oneshot::channel();
        let question = post(self.client.clone(), request, wire::answer_bytes(blocks));
        let under_way = self.metrics.under_way.clone();
        under_way.inc();
        tokio::spawn(async move {
            let outcome = timeout(LONGEST_QUESTION, question).await;
            under_way.dec();
            drop(permit);
            // Whoever asked may have gone on without it.
            let _unwanted = sender.send(outcome.unwrap_or(Err(SharedCacheError::Late)));
        });
        let body = timeout(self.config.deadline, answer).await;
        let body = body.map_err(|_| SharedCacheError::Late)?;
        // A task that is gone without a word ended with its runtime.
        let body = body.map_err(|_| SharedCacheError::Unreachable)??;
        wire::ranges(&body, blocks)
    }

    fn learn(&self, error: Option<SharedCacheError>) {
        let (was_paused, is_paused) = {
            let mut breaker = self.breaker();
            let before = breaker.is_paused();
            match error {
                None => breaker.answered(),
                Some(_) => breaker.failed(Instant::now()),
            }
            (before, breaker.is_paused())
        };
        self.metrics.paused.set(i64::from(is_paused));
        match (was_paused, error) {
            (false, Some(error)) if is_paused => {
                warn!(%error, "shared cache keeps failing, not asked for a while");
            }
            (true, None) => info!("shared cache answers again"),
            _ => {}
        }
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn post(
    client: Client<HttpConnector, Full<Bytes>>,
    request: Request<Full<Bytes>>,
    limit: usize,
) -> Result<Bytes, SharedCacheError> {
    let response = client.request(request).await;
    let response = response.map_err(|_| SharedCacheError::Unreachable)?;
    let (head, body) = response.into_parts();
    if head.status != StatusCode::OK {
        return Err(SharedCacheError::Status(head.status.as_u16()));
    }
    let body = Limited::new(body, limit).collect().await;
    Ok(body.map_err(|_| SharedCacheError::Malformed)?.to_bytes())
}

impl SharedCacheError {
    fn as_str(self) -> &'static str {
        match self {
            Self::Late => "late",
            Self::Unreachable => "unreachable",
            Self::Status(_) => "refused",
            Self::Malformed => "malformed",
            Self::Paused => "paused",
            Self::Busy => "busy",
        }
    }
}

impl SharedCacheMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "shared_cache_questions",
            "Prompts for which a shared cache was asked, or should have been, by outcome",
            self.questions.clone(),
        );
        registry.register(
            "shared_cache_hit_blocks",
            "Blocks that it had of them",
            self.hit_blocks.clone(),
        );
        registry.register(
            "shared_cache_questions_under_way",
            "Questions to it that are not answered yet",
            self.under_way.clone(),
        );
        registry.register(
            "shared_cache_paused",
            "1 while it is not asked because it kept failing",
            self.paused.clone(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_http_with_a_host_can_be_asked() {
        for good in [
            "http://10.0.0.1:7000/query",
            "http://cache",
            "http://[::1]:80/",
        ] {
            assert!(SharedCacheConfig::new(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "cache:7000",
            "/query",
            "https://cache/",
            "http://",
            "http:///x",
            "ftp://x/",
        ] {
            assert_eq!(SharedCacheConfig::new(bad), Err(BadSharedCacheUrl), "{bad}");
        }
    }
}
