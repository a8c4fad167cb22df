//! One connection: its place among the others, its handshake, its HTTP/2.
//!
//! It never decides what a call means; the services behind the doors do.

use std::{convert::Infallible, future::Future, pin::Pin, sync::Arc, time::Duration};

use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::ExternalProcessorServer;
use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http2, service::Service};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body, codegen::Service as _};
use tonic_health::pb::health_server::HealthServer;
use tracing::debug;

use super::{Config, Security, StartError, health::Health, tls};
use crate::ext_proc::{self, Pick};

/// Counters of connections. Clones share their values.
#[derive(Clone, Debug)]
pub struct Metrics {
    open: Gauge,
    refused: Counter,
    failed_handshakes: Counter,
}

impl Metrics {
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            open: Gauge::default(),
            refused: Counter::default(),
            failed_handshakes: Counter::default(),
        };
        let registry = registry.sub_registry_with_prefix("pointsman");
        registry.register("connections", "open connections", metrics.open.clone());
        registry.register(
            "connections_refused",
            "connections closed because there were too many",
            metrics.refused.clone(),
        );
        registry.register(
            "handshakes_failed",
            "TLS handshakes that failed or took too long",
            metrics.failed_handshakes.clone(),
        );
        metrics
    }
}

/// What connections of one port share.
#[derive(Clone)]
pub(super) struct Host {
    pub(super) closing: CancellationToken,
    places: Arc<Semaphore>,
    tls: Option<TlsAcceptor>,
    handshake: Duration,
    streams: u32,
    metrics: Metrics,
}

/// A connection's place; dropping it makes room.
pub(super) struct Guest {
    _place: OwnedSemaphorePermit,
    open: Gauge,
}

/// The services behind a port.
pub(super) struct Doors<P> {
    pub(super) exchanges: Option<ExternalProcessorServer<ext_proc::Server<P>>>,
    pub(super) health: HealthServer<Health>,
}

/// Room for one message of Envoy's usual size before its window must be renewed.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// A gateway that vanished without a word must not keep its exchanges.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Streams above the bound on exchanges, which must be able to answer for itself.
const SPARE_STREAMS: usize = 256;

impl Host {
    pub(super) fn new(
        config: &Config,
        metrics: Metrics,
        closing: CancellationToken,
    ) -> Result<Self, StartError> {
        let tls = match config.security {
            Security::SelfSigned => Some(tls::self_signed()?),
            Security::Plaintext => None,
        };
        let streams = config.limits.exchanges.saturating_add(SPARE_STREAMS);
        Ok(Self {
            closing,
            places: Arc::new(Semaphore::new(config.connections)),
            tls,
            handshake: config.handshake,
            streams: u32::try_from(streams).unwrap_or(u32::MAX),
            metrics,
        })
    }

    /// The same, without TLS and with places of its own: probes must get through a full house.
    pub(super) fn plaintext(&self) -> Self {
        Self {
            places: Arc::new(Semaphore::new(self.places.available_permits())),
            tls: None,
            ..self.clone()
        }
    }

    pub(super) fn enter(&self) -> Option<Guest> {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            self.metrics.refused.inc();
            return None;
        };
        self.metrics.open.inc();
        Some(Guest {
            _place: place,
            open: self.metrics.open.clone(),
        })
    }

    fn http2(&self) -> http2::Builder<TokioExecutor> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_concurrent_streams(self.streams)
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            // A gateway cancels many exchanges at once when its clients go away; the defaults
            // would take that for an attack and end the connection with all that is on it.
            .max_pending_accept_reset_streams(usize::try_from(self.streams).unwrap_or(usize::MAX))
            .max_local_error_reset_streams(None);
        builder
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.open.dec();
    }
}

pub(super) async fn serve<P: Pick>(stream: TcpStream, guest: Guest, host: Host, doors: Doors<P>) {
    let _guest = guest;
    if let Err(error) = stream.set_nodelay(true) {
        return debug!(%error, "connection lost before it was served");
    }
    let Some(tls) = &host.tls else {
        return serve_http2(stream, &host, doors).await;
    };
    match tokio::time::timeout(host.handshake, tls.accept(stream)).await {
        Ok(Ok(stream)) => serve_http2(stream, &host, doors).await,
        Ok(Err(error)) => {
            host.metrics.failed_handshakes.inc();
            debug!(%error, "TLS handshake failed");
        }
        Err(_) => {
            host.metrics.failed_handshakes.inc();
            debug!("TLS handshake took too long");
        }
    }
}

async fn serve_http2<P: Pick>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    host: &Host,
    doors: Doors<P>,
) {
    let connection = host.http2().serve_connection(TokioIo::new(stream), doors);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = host.closing.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "connection ended");
    }
}

impl<P> Doors<P> {
    pub(super) fn health_only(&self) -> Self {
        Self {
            exchanges: None,
            health: self.health.clone(),
        }
    }
}

impl<P> Clone for Doors<P> {
    fn clone(&self) -> Self {
        Self {
            exchanges: self.exchanges.clone(),
            health: self.health.clone(),
        }
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl<P: Pick> Service<Request<Incoming>> for Doors<P> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Answer {
        let path = request.uri().path();
        if let Some(exchanges) = &self.exchanges
            && path.starts_with("/envoy.service.ext_proc.v3.ExternalProcessor/")
        {
            return exchanges.clone().call(request);
        }
        if path.starts_with("/grpc.health.v1.Health/") {
            return self.health.clone().call(request);
        }
        Box::pin(std::future::ready(Ok(Status::unimplemented(
            "no such service",
        )
        .into_http())))
    }
}
