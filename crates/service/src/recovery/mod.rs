//! Fills the index at start from a peer's `/dump`: the first peer that answers is believed, until the
//! engines' own events confirm or contradict it.
//!
//! It registers no worker and fixes no block size: a dump says nothing that the catalog must follow.
//! What is read is bounded in bytes, blocks and time.

mod held;
mod metrics;
mod parse;
mod peer;
mod pull;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tracing::{info, warn};

use metrics::PeerOutcome;
use parse::{Bounds, Ranks};
use peer::{Asking, Heard, PeerUrl};

pub(crate) use held::{Claim, Recovery};
pub(crate) use metrics::RecoveryMetrics;

/// The wait for a connection and for the head of an answer, and then for each piece of it.
const STEP: Duration = Duration::from_secs(10);

/// How peers are asked for their index, and how much of it is taken over.
#[derive(Clone, Debug)]
pub struct RecoveryConfig {
    /// Shown to every peer, as a bearer token.
    pub token: Option<String>,
    /// Needed for `https` peers.
    pub tls: Option<PeerTls>,
    /// For all peers together.
    pub max_time: Duration,
    /// Length of a dump. What is beyond it is left out.
    pub max_bytes: u64,
    /// Blocks of a dump, 16 bytes of memory each; a run of them counts as one more, a rank as 16.
    /// What is beyond it is left out.
    pub max_blocks: usize,
    /// How long what is said of ranks that are not registered is kept for them.
    pub hold_time: Duration,
}

impl Default for RecoveryConfig {
    fn default() -> Self {
        Self {
            token: None,
            tls: None,
            max_time: Duration::from_secs(30),
            max_bytes: 1 << 30,
            max_blocks: 10_000_000,
            hold_time: Duration::from_mins(5),
        }
    }
}

/// What `https` peers are checked with, and shown where they ask.
#[derive(Clone, Debug)]
pub struct PeerTls(Arc<ClientConfig>);

/// The peers to ask, checked.
#[derive(Clone, Debug)]
pub(crate) struct IndexerPeers {
    urls: Vec<PeerUrl>,
    asking: Asking,
    max_time: Duration,
}

/// Why peers cannot be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeersError {
    #[error("found {found:?}, expected URLs such as http://host:8092")]
    Url { found: String },
    #[error("{found} needs a CA to be checked with")]
    NoCa { found: String },
    #[error("a token must be printable ASCII without spaces")]
    Token,
    #[error("cannot read {file}")]
    Pem {
        file: PathBuf,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    #[error("the certificates cannot be used")]
    Certificate(#[source] rustls::Error),
}

impl RecoveryConfig {
    /// Whether these peers can be asked, without asking them.
    pub fn check(&self, urls: &[String]) -> Result<(), PeersError> {
        IndexerPeers::new(urls, self).map(drop)
    }
}

impl IndexerPeers {
    pub(crate) fn new(urls: &[String], config: &RecoveryConfig) -> Result<Self, PeersError> {
        let mut checked = Vec::with_capacity(urls.len());
        for found in urls {
            let url = PeerUrl::parse(found).ok_or_else(|| PeersError::Url {
                found: found.clone(),
            })?;
            if url.is_tls() && config.tls.is_none() {
                return Err(PeersError::NoCa {
                    found: found.clone(),
                });
            }
            checked.push(url);
        }
        let is_token =
            |token: &str| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        if !config.token.as_deref().is_none_or(is_token) {
            return Err(PeersError::Token);
        }
        Ok(Self {
            urls: checked,
            asking: Asking {
                bearer: config.token.as_deref().map(Arc::from),
                tls: config.tls.as_ref().map(|tls| Arc::clone(&tls.0)),
                bounds: Bounds {
                    max_bytes: config.max_bytes,
                    max_blocks: config.max_blocks,
                },
                step: STEP,
            },
            max_time: config.max_time,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.urls.is_empty()
    }

    /// Asks one peer after the other and hands over what the first one says.
    pub(crate) async fn recover(self, recovery: Arc<Recovery>) {
        let ranks = self.first_answer(&recovery).await;
        let now = std::time::Instant::now();
        let finished = spawn_blocking(move || recovery.finish(ranks, now)).await;
        if let Err(error) = finished {
            warn!(%error, "taking over a peer's index failed");
        }
    }

    async fn first_answer(&self, recovery: &Recovery) -> Ranks {
        let deadline = Instant::now() + self.max_time;
        for peer in &self.urls {
            let parsed = match peer.ask(&self.asking, deadline).await {
                Ok(Heard::Whole(parsed)) => {
                    recovery.metrics.asked(PeerOutcome::Answered);
                    parsed
                }
                Ok(Heard::Part(parsed, bound)) => {
                    recovery.metrics.asked(PeerOutcome::CutShort);
                    warn!(%peer, %bound, "a peer's index is taken over in part");
                    parsed
                }
                Err(error) => {
                    recovery.metrics.asked(PeerOutcome::Failed);
                    let reason = error.reason();
                    warn!(%peer, reason, "a peer's index cannot be had");
                    continue;
                }
            };
            let (ranks, blocks) = (parsed.ranks.len(), parsed.blocks);
            let (bad_entries, skipped_events) = (parsed.bad_entries, parsed.skipped_events);
            info!(%peer, ranks, blocks, bad_entries, skipped_events, "a peer's index was read");
            return parsed.ranks;
        }
        info!("no peer answered, starting with an empty index");
        Ranks::new()
    }
}

impl PeerTls {
    /// From files in PEM: the CA of the peers, and the certificate chain and key to show them.
    pub fn read(ca: &Path, identity: Option<(&Path, &Path)>) -> Result<Self, PeersError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(ca)? {
            roots.add(certificate).map_err(PeersError::Certificate)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(PeersError::Certificate)?
            .with_root_certificates(roots);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let read = PrivateKeyDer::from_pem_file(key);
                let key = read.map_err(|source| bad_pem(key, source))?;
                builder
                    .with_client_auth_cert(certificates(chain)?, key)
                    .map_err(PeersError::Certificate)?
            }
        };
        Ok(Self(Arc::new(config)))
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, PeersError> {
    let read = CertificateDer::pem_file_iter(file).map_err(|source| bad_pem(file, source))?;
    read.collect::<Result<_, _>>()
        .map_err(|source| bad_pem(file, source))
}

fn bad_pem(file: &Path, source: rustls::pki_types::pem::Error) -> PeersError {
    PeersError::Pem {
        file: file.to_owned(),
        source,
    }
}
