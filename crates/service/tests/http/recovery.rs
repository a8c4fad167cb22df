//! Asking peers for their index over mutual TLS: who is believed, who is passed over, and what the log says of it.

use std::io;
use std::sync::{Arc, Mutex};

use pointsman_plugin::{KvRouterConfig, RouterPluginRegistry, WorkerType};
use pointsman_service::http::{self, Config, Server, ServerConfig, TlsFiles};
use pointsman_service::{PeerTls, RecoveryConfig, SelectionServiceBuilder};
use prometheus_client::registry::Registry;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::pki::Pki;

/// What is logged while it is there.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn builder() -> SelectionServiceBuilder {
    let registry = RouterPluginRegistry::default();
    SelectionServiceBuilder::new(KvRouterConfig::default(), WorkerType::Aggregated, registry)
}

/// A service with a certificate of `of`, for clients with one of `clients`.
async fn peer(of: &Pki, clients: &Pki) -> (String, DropGuard) {
    let config = ServerConfig {
        tls: Some(TlsFiles {
            certificate: of.file("server.pem"),
            key: of.file("server.key"),
            client_ca: Some(clients.file("ca.pem")),
        }),
        ..ServerConfig::new(([127, 0, 0, 1], 0).into())
    };
    let server = Server::bind(config).await.unwrap();
    let url = format!("https://localhost:{}", server.address().port());
    let stop = CancellationToken::new();
    let service = builder().build().await.unwrap();
    tokio::spawn(server.serve(http::router(service, Config::default()), stop.clone()));
    (url, stop.drop_guard())
}

fn tls(ca: &Pki, own: Option<&Pki>) -> PeerTls {
    let own = own.map(|own| (own.file("client.pem"), own.file("client.key")));
    let own = own.as_ref().map(|(chain, key)| (&**chain, &**key));
    PeerTls::read(&ca.file("ca.pem"), own).unwrap()
}

/// Starts a service with these peers; how many failed and answered, and what was logged.
async fn recovered(urls: &[&str], tls: PeerTls) -> ([usize; 2], String) {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    // Its tasks run on this thread too.
    let _logged = tracing::subscriber::set_default(subscriber);
    let mut registry = Registry::default();
    let config = RecoveryConfig {
        tls: Some(tls),
        ..RecoveryConfig::default()
    };
    let service = builder()
        .indexer_peers(urls.iter().map(ToString::to_string).collect())
        .recovery(config)
        .metrics(&mut registry)
        .build()
        .await
        .unwrap();
    let mut state = service.state();
    state.wait_for(|state| !state.recovering).await.unwrap();
    let mut metrics = String::new();
    prometheus_client::encoding::text::encode(&mut metrics, &registry).unwrap();
    let count = |outcome: &str| {
        let name = format!("recovery_peers_total{{outcome=\"{outcome}\"}} ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
        value.map_or(0, |value| value.parse().unwrap())
    };
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    ([count("failed"), count("answered")], text)
}

/// The line that says why a peer was passed over.
fn reason<'a>(log: &'a str, url: &str) -> &'a str {
    let mut lines = log.lines().filter(|line| line.contains("cannot be had"));
    lines.find(|line| line.contains(url)).expect(log)
}

#[tokio::test]
async fn a_peer_that_asks_for_a_certificate_is_shown_ours() {
    let pki = Pki::new("recovery-mtls");
    let (url, _serving) = peer(&pki, &pki).await;
    let (outcome, log) = recovered(&[&url], tls(&pki, Some(&pki))).await;
    assert_eq!(outcome, [0, 1], "{log}");
}

#[tokio::test]
async fn a_peer_of_another_ca_is_passed_over_with_the_reason() {
    let (pki, other) = (Pki::new("recovery-ca"), Pki::new("recovery-other-ca"));
    let (stranger, _stranger) = peer(&other, &pki).await;
    let (url, _serving) = peer(&pki, &pki).await;
    let (outcome, log) = recovered(&[&stranger, &url], tls(&pki, Some(&pki))).await;
    assert_eq!(outcome, [1, 1], "{log}");
    let line = reason(&log, &stranger);
    assert!(line.contains("UnknownIssuer"), "{line}");
}

#[tokio::test]
async fn a_peer_that_does_not_take_our_certificate_is_passed_over_with_the_reason() {
    let (pki, other) = (Pki::new("recovery-own"), Pki::new("recovery-other-own"));
    let (choosy, _choosy) = peer(&pki, &pki).await;
    let (next, _next) = peer(&pki, &other).await;
    for (own, alert, expected) in [
        (None, "CertificateRequired", [2, 0]),
        (Some(&other), "UnknownCA", [1, 1]),
    ] {
        let (outcome, log) = recovered(&[&choosy, &next], tls(&pki, own)).await;
        assert_eq!(outcome, expected, "{log}");
        let line = reason(&log, &choosy);
        assert!(line.contains(alert), "{line}");
    }
}
