//! Serves the routes on a socket, plain or over TLS, and ends without cutting an answer short.
//!
//! It knows no route. Connections, heads and handshakes are bounded; certificates are read anew when
//! their files change.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig as TlsConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::io::InspectWriter;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{LocalPoolHandle, TaskTracker};
use tracing::{debug, info, warn};

use super::connections::Connections;

/// Rest after a failure to accept, which is most often a lack of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// Where and how to listen.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub address: SocketAddr,
    pub tls: Option<TlsFiles>,
    /// Threads of the server's own, each with a runtime for itself, to which connections are dealt; with none they are
    /// served on the caller's runtime.
    pub threads: usize,
    pub max_connections: usize,
    /// Longest wait for a handshake; a connection on which nothing gets on for so long, as with half the head of a
    /// request, is cut at the next look, half of that later at most.
    pub head_timeout: Duration,
    /// How long callers under way are waited for at the end.
    pub drain: Duration,
}

/// Files in PEM. With `client_ca`, only clients with a certificate of it are let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub client_ca: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("cannot read {file}")]
    Pem {
        file: PathBuf,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    #[error("the certificate and key cannot be used")]
    Certificate(#[source] rustls::Error),
    #[error("the CA of clients cannot be used")]
    ClientCa(#[source] rustls::server::VerifierBuilderError),
}

impl TlsFiles {
    /// Whether they can be used, without serving anything.
    pub fn check(&self) -> Result<(), ServerError> {
        read_tls(self).map(drop)
    }
}

impl ServerConfig {
    /// Plain HTTP, with bounds that suit a trusted network.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            tls: None,
            threads: 0,
            max_connections: 4096,
            head_timeout: Duration::from_secs(30),
            drain: Duration::from_secs(30),
        }
    }
}

/// A bound port that serves once [`Server::serve`] runs.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    config: ServerConfig,
    tls: Option<Tls>,
    threads: Option<LocalPoolHandle>,
}

#[derive(Debug)]
struct Tls {
    files: TlsFiles,
    current: Arc<ArcSwap<TlsConfig>>,
}

/// What serves one connection.
#[derive(Clone)]
struct Door {
    router: Router,
    tls: Option<Arc<ArcSwap<TlsConfig>>>,
    head_timeout: Duration,
    drain: Duration,
    stop: CancellationToken,
    connections: Arc<Connections>,
}

impl Server {
    pub async fn bind(config: ServerConfig) -> Result<Self, ServerError> {
        let tls = match &config.tls {
            None => None,
            Some(files) => Some(Tls {
                files: files.clone(),
                current: Arc::new(ArcSwap::from_pointee(read_tls(files)?)),
            }),
        };
        let wanted = config.address;
        let failed = |source| ServerError::Listen {
            address: wanted,
            source,
        };
        let listener = TcpListener::bind(wanted).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self {
            listener,
            address,
            threads: (config.threads > 0).then(|| LocalPoolHandle::new(config.threads)),
            config,
            tls,
        })
    }

    /// The address with the real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`; then lets no one in, and waits for the answers under way.
    pub async fn serve(self, router: Router, stop: CancellationToken) {
        let open = Arc::new(Connections::default());
        let door = Door {
            connections: Arc::clone(&open),
            router,
            tls: self.tls.as_ref().map(|tls| Arc::clone(&tls.current)),
            head_timeout: self.config.head_timeout,
            drain: self.config.drain,
            stop: stop.clone(),
        };
        let room = Arc::new(Semaphore::new(self.config.max_connections));
        let connections = TaskTracker::new();
        let accepting = async {
            loop {
                let permit = Arc::clone(&room).acquire_owned().await;
                let Some(stream) = accept(&self.listener).await else {
                    continue;
                };
                let door = door.clone();
                let served = connections.track_future(async move {
                    door.enter(stream).await;
                    drop(permit);
                });
                match &self.threads {
                    Some(threads) => drop(threads.spawn_pinned(|| served)),
                    None => drop(tokio::spawn(served)),
                }
            }
        };
        let reloading = async {
            match &self.tls {
                Some(tls) => tls.reload().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = accepting => {}
            () = reloading => {}
            () = open.watch(self.config.head_timeout) => {}
        }
        drop(self.listener);
        connections.close();
        connections.wait().await;
    }
}

impl Door {
    async fn enter(self, stream: std::net::TcpStream) {
        let stream = match TcpStream::from_std(stream) {
            Ok(stream) => stream,
            Err(error) => return warn!(%error, "cannot serve a connection"),
        };
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "cannot set a connection to send at once");
        }
        let Some(tls) = &self.tls else {
            return self.serve(stream).await;
        };
        let acceptor = TlsAcceptor::from(tls.load_full());
        match timeout(self.head_timeout, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => self.serve(stream).await,
            Ok(Err(error)) => debug!(%error, "a handshake failed"),
            Err(_) => debug!("a handshake took too long"),
        }
    }

    async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let watched = self.connections.enter(&self.stop);
        let progress = Arc::clone(watched.progress());
        let stream = InspectWriter::new(stream, move |_: &[u8]| progress.wrote());
        let (router, progress) = (
            TowerToHyperService::new(self.router.clone()),
            watched.progress(),
        );
        let service = service_fn(|request| {
            let (answer, answering) = (router.call(request), progress.answer());
            async move {
                let answer = answer.await;
                drop(answering);
                answer
            }
        });
        let server = auto::Builder::new(TokioExecutor::new());
        let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = watched.ended() => {
                if !self.stop.is_cancelled() {
                    return debug!("a connection on which nothing got on was cut");
                }
                connection.as_mut().graceful_shutdown();
                timeout(self.drain, connection).await.ok()
            }
        };
        match ended {
            Some(Ok(())) => {}
            Some(Err(error)) => debug!(error, "a connection was lost"),
            None => warn!("a connection did not end in time and was cut"),
        }
    }
}

impl Tls {
    /// Reads the files anew now and then; what cannot be used changes nothing.
    async fn reload(&self) {
        let mut seen = contents(&self.files).await;
        loop {
            sleep(RELOAD_INTERVAL).await;
            let now = contents(&self.files).await;
            if now == seen {
                continue;
            }
            seen = now;
            match read_tls(&self.files) {
                Ok(config) => {
                    self.current.store(Arc::new(config));
                    info!("certificate read anew");
                }
                Err(error) => {
                    warn!(%error, "the new certificate cannot be used, the old one stays");
                }
            }
        }
    }
}

/// A connection that belongs to no runtime yet.
async fn accept(listener: &TcpListener) -> Option<std::net::TcpStream> {
    let accepted = listener.accept().await;
    match accepted.and_then(|(stream, _)| stream.into_std()) {
        Ok(stream) => Some(stream),
        Err(error) => {
            warn!(%error, "cannot accept a connection");
            sleep(ACCEPT_RETRY).await;
            None
        }
    }
}

/// What the files hold; one that cannot be read counts as empty, and is told when it is used.
async fn contents(files: &TlsFiles) -> Vec<Vec<u8>> {
    let mut contents = Vec::new();
    for file in [
        Some(&files.certificate),
        Some(&files.key),
        files.client_ca.as_ref(),
    ]
    .into_iter()
    .flatten()
    {
        contents.push(tokio::fs::read(file).await.unwrap_or_default());
    }
    contents
}

fn read_tls(files: &TlsFiles) -> Result<TlsConfig, ServerError> {
    let chain = read_certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|source| ServerError::Pem {
        file: files.key.clone(),
        source,
    })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = TlsConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(ServerError::Certificate)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for certificate in read_certificates(file)? {
                roots.add(certificate).map_err(ServerError::Certificate)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(ServerError::ClientCa)?)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(ServerError::Certificate)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn read_certificates(file: &PathBuf) -> Result<Vec<CertificateDer<'static>>, ServerError> {
    let failed = |source| ServerError::Pem {
        file: file.clone(),
        source,
    };
    let certificates = CertificateDer::pem_file_iter(file).map_err(failed)?;
    certificates.collect::<Result<_, _>>().map_err(failed)
}
