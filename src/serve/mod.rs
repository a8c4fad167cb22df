//! The doors for Envoy: listeners, TLS, gRPC health, and how they close.
//!
//! It knows nothing of what travels through an exchange.

mod connection;
mod health;
mod listener;
#[cfg(test)]
mod tests;
mod tls;

use std::{io, net::SocketAddr, thread, time::Duration};

use pointsman_service::ServiceState;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic_health::pb::health_server::HealthServer;
use tracing::{info, warn};

use crate::ext_proc::{self, InFlight, Limits, Pick};

pub use connection::Metrics;

/// How the server listens.
#[derive(Clone, Debug)]
pub struct Config {
    /// Port 0 takes a free one; `RunningServer` tells which.
    pub ext_proc: SocketAddr,
    /// Plaintext gRPC health, beside the one on the `ext_proc` port.
    pub health: SocketAddr,
    pub security: Security,
    /// Threads for exchanges, each with its own listener; zero takes one per core.
    pub threads: usize,
    /// Connections of all listeners of exchanges together.
    pub connections: usize,
    pub handshake: Duration,
    /// How long a stopping server still takes new exchanges while the news of it travels.
    pub propagation: Duration,
    pub limits: Limits,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Security {
    /// TLS with a certificate made at start, for gateways that encrypt but do not verify.
    #[default]
    SelfSigned,
    Plaintext,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ext_proc: SocketAddr::from(([0, 0, 0, 0], 9002)),
            health: SocketAddr::from(([0, 0, 0, 0], 9003)),
            security: Security::default(),
            threads: 0,
            connections: 1_024,
            handshake: Duration::from_secs(10),
            propagation: Duration::from_secs(5),
            limits: Limits::default(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("listening on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("starting a thread for exchanges")]
    Thread(#[source] io::Error),
    #[error("making a self-signed certificate")]
    Certificate(#[source] rcgen::Error),
    #[error("setting up TLS")]
    Tls(#[source] rustls::Error),
}

/// What a server counts.
#[derive(Clone, Debug)]
pub struct ServerMetrics {
    pub exchanges: ext_proc::Metrics,
    pub connections: Metrics,
}

impl ServerMetrics {
    pub fn new(registry: &mut prometheus_client::registry::Registry) -> Self {
        Self {
            exchanges: ext_proc::Metrics::new(registry),
            connections: Metrics::new(registry),
        }
    }
}

/// Starts servers; a running one is a `RunningServer`.
#[derive(Debug)]
pub struct Server;

/// A server that listens. Dropping it stops it without waiting for anybody.
#[derive(Debug)]
pub struct RunningServer {
    ext_proc_addr: SocketAddr,
    health_addr: SocketAddr,
    propagation: Duration,
    in_flight: InFlight,
    serving: watch::Sender<bool>,
    closing: CancellationToken,
    threads: Vec<thread::JoinHandle<()>>,
}

/// How long connections may take to say goodbye once nothing is left on them.
const FAREWELL: Duration = Duration::from_secs(2);

impl Server {
    /// Must be called within a Tokio runtime, which serves the health port.
    pub fn start<P: Pick>(
        config: &Config,
        pick: P,
        state: watch::Receiver<ServiceState>,
        metrics: ServerMetrics,
    ) -> Result<RunningServer, StartError> {
        let exchanges = ext_proc::Server::new(pick, config.limits, metrics.exchanges);
        let closing = exchanges.closing().clone();
        let in_flight = exchanges.in_flight().clone();
        let (serving, serving_receiver) = watch::channel(true);
        let health = health::Health::new(state, serving_receiver, closing.clone());

        let doors = connection::Doors {
            exchanges: Some(exchanges.into_service()),
            health: HealthServer::new(health),
        };
        let health_listener = listener::bind(config.health)?;
        let health_addr = listener::address(&health_listener, config.health)?;
        let listeners = listener::bind_shared(config.ext_proc, thread_count(config.threads))?;
        let ext_proc_addr = listener::address(&listeners[0], config.ext_proc)?;

        let host = connection::Host::new(config, metrics.connections.clone(), closing.clone())?;
        let health_host = host.plaintext();
        let health_doors = doors.health_only();
        let threads = listeners
            .into_iter()
            .enumerate()
            .map(|(index, listener)| {
                listener::spawn_thread(index, listener, host.clone(), doors.clone())
            })
            .collect::<Result<Vec<_>, _>>()
            .inspect_err(|_| closing.cancel())?;
        tokio::spawn(listener::accept(health_listener, health_host, health_doors));
        info!(%ext_proc_addr, %health_addr, threads = threads.len(), "serving");
        Ok(RunningServer {
            ext_proc_addr,
            health_addr,
            propagation: config.propagation,
            in_flight,
            serving,
            closing,
            threads,
        })
    }
}

impl RunningServer {
    pub fn ext_proc_addr(&self) -> SocketAddr {
        self.ext_proc_addr
    }

    pub fn health_addr(&self) -> SocketAddr {
        self.health_addr
    }

    pub fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// Reports `NOT_SERVING` from now on; exchanges are served as before.
    pub fn stop_serving(&self) {
        self.serving.send_replace(false);
    }

    /// Stops: not serving at once, then open and new exchanges are served until none is in flight
    /// or `patience` is over, then all ends. An exchange that owes Envoy an answer is refused; one
    /// that does not is closed cleanly, and its response goes on without us.
    pub async fn drain(mut self, patience: Duration) {
        self.stop_serving();
        let quiet = async {
            tokio::time::sleep(self.propagation).await;
            self.in_flight.emptied().await;
        };
        if tokio::time::timeout(patience, quiet).await.is_err() {
            let left = self.in_flight.count();
            warn!(left, "closing exchanges that did not end in time");
        }
        self.closing.cancel();
        let threads = std::mem::take(&mut self.threads);
        let joined = tokio::task::spawn_blocking(move || {
            threads
                .into_iter()
                .filter_map(|thread| thread.join().err())
                .count()
        });
        let panicked = joined.await.unwrap_or(1);
        if panicked > 0 {
            warn!(panicked, "threads for exchanges ended by a panic");
        }
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.serving.send_replace(false);
        self.closing.cancel();
    }
}

fn thread_count(configured: usize) -> usize {
    match configured {
        0 => thread::available_parallelism().map_or(1, usize::from),
        count => count,
    }
}
