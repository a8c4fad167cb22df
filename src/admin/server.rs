//! Serves the admin pages over HTTP; knows nothing of what is on them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// Connections at once; a scraper and a few people need fewer.
const MAX_CONNECTIONS: usize = 128;
/// Longest wait for the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest life of a connection: pages are small, and whoever wants more connects again.
const CONNECTION_LIFE: Duration = Duration::from_mins(5);
/// Rest after a failure to accept, which is most often a lack of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for the admin pages")]
pub(crate) struct ServerError {
    address: SocketAddr,
    #[source]
    cause: io::Error,
}

/// A bound port that serves once [`Server::serve`] runs.
#[derive(Debug)]
pub(crate) struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    pub(crate) async fn bind(address: SocketAddr) -> Result<Self, ServerError> {
        let failed = |cause| ServerError { address, cause };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// The address with the real port.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`; every connection ends with it.
    pub(crate) async fn serve(self, router: Router, stop: CancellationToken) {
        let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let accepting = async {
            loop {
                let permit = Arc::clone(&room)
                    .acquire_owned()
                    .await
                    .expect("the semaphore is never closed");
                let Some(stream) = accept(&self.listener).await else {
                    continue;
                };
                let connection = stop
                    .child_token()
                    .run_until_cancelled_owned(serve_connection(stream, router.clone()));
                tokio::spawn(async move {
                    connection.await;
                    drop(permit);
                });
            }
        };
        stop.run_until_cancelled(accepting).await;
    }
}

async fn accept(listener: &TcpListener) -> Option<TcpStream> {
    match listener.accept().await {
        Ok((stream, _)) => Some(stream),
        Err(error) => {
            warn!(%error, "cannot accept an admin connection");
            tokio::time::sleep(ACCEPT_RETRY).await;
            None
        }
    }
}

async fn serve_connection(stream: TcpStream, router: Router) {
    let mut server = auto::Builder::new(TokioExecutor::new());
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT);
    let serving = server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Ok(Err(error)) = tokio::time::timeout(CONNECTION_LIFE, serving).await {
        debug!(error, "admin connection lost");
    }
}
