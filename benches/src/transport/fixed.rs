//! Our server, as it ships, with a pick that always returns the same endpoint: nothing parsed, nothing reserved.
//! It never looks at what the exchange hands to it.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;
use bytes::Bytes;
use pointsman::error::Refusal;
use pointsman::ext_proc::{Held, Pick, Picked, ResponseHead, SubsetHint};
use pointsman::request::Head;
use pointsman::serve::{Config, RunningServer, Security, Server, ServerMetrics};
use pointsman_service::ServiceState;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

/// The name of the only thread that serves exchanges, as `serve` gives it.
pub(super) const THREAD_NAME: &str = "exchanges-0";
const ENDPOINT: &str = "10.0.0.1:8000";

struct Fixed;

struct Nothing;

impl Pick for Fixed {
    type Held = Nothing;

    async fn pick(&self, _: Head, _: Bytes, _: SubsetHint) -> Result<Picked<Nothing>, Refusal> {
        Ok(Picked {
            endpoint: ENDPOINT.to_owned(),
            request_headers: Vec::new(),
            response_headers: Vec::new(),
            held: Some(Nothing),
        })
    }
}

impl Held for Nothing {
    fn response_headers(&mut self, _: &ResponseHead) {}

    fn response_body(&mut self, _: &[u8], _: bool) {}
}

/// Our server on one thread of its own; stops when dropped.
#[derive(Debug)]
pub(super) struct Ours {
    server: RunningServer,
    /// Without a sender the server would take the service for ended.
    _state: watch::Sender<ServiceState>,
}

impl Ours {
    /// Must be called within a Tokio runtime, which serves nothing but the health port.
    pub(super) fn start() -> Result<Self> {
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = Config {
            ext_proc: any_port,
            health: any_port,
            security: Security::Plaintext,
            threads: 1,
            ..Config::default()
        };
        let (sender, state) = watch::channel(ServiceState::default());
        let metrics = ServerMetrics::new(&mut Registry::default());
        let server = Server::start(&config, Fixed, state, metrics)?;
        Ok(Self {
            server,
            _state: sender,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.server.ext_proc_addr()
    }
}
