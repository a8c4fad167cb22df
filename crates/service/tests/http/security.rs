//! Tokens, TLS and mutual TLS over real sockets.

use std::sync::Arc;

use arc_swap::ArcSwap;
use hyper::Method;
use pointsman_plugin::{KvRouterConfig, RouterPluginRegistry, WorkerType};
use pointsman_service::SelectionServiceBuilder;
use pointsman_service::http::{self, Access, Config, Server, ServerConfig, TlsFiles, Tokens};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use crate::pki::Pki;
use crate::rig::{Rig, asking, worker};

const WRITE: &[(&str, &str)] = &[
    ("content-type", "application/json"),
    ("authorization", "Bearer writer-0123456789"),
];

#[tokio::test]
async fn tokens_open_their_routes_and_new_ones_count_at_once() {
    let first = "read reader-0123456789\nwrite writer-0123456789";
    let tokens = Arc::new(ArcSwap::from_pointee(Tokens::parse(first).unwrap()));
    let config = Config {
        access: Access::Tokens(Arc::clone(&tokens)),
        ..Config::default()
    };
    let rig = Rig::with(|builder| builder, config).await;
    let refused = rig.post("/workers", worker(1)).await;
    assert_eq!((refused.status, refused.code()), (401, "unauthorized"));
    assert_eq!(refused.headers["www-authenticate"], "Bearer");
    let register = async || {
        rig.send(Method::POST, "/workers", WRITE, worker(1).to_string())
            .await
    };
    assert_eq!(register().await.status, 201);
    assert_eq!(rig.get("/ready").await.status, 200);
    let read: &[(&str, &str)] = &[("authorization", "Bearer reader-0123456789")];
    assert_eq!(rig.send(Method::GET, "/loads", read, "").await.status, 200);
    let prompt = asking(serde_json::json!({})).to_string();
    for (path, status) in [("/overlap_scores", 200), ("/select", 403)] {
        let answer = rig.send(Method::POST, path, read, prompt.clone()).await;
        assert_eq!(answer.status, status, "{path}");
    }
    tokens.store(Arc::new(Tokens::parse("write another-0123456789").unwrap()));
    assert_eq!(register().await.status, 401);
}

#[tokio::test]
async fn read_only_access_changes_nothing() {
    let config = Config {
        access: Access::ReadOnly,
        ..Config::default()
    };
    let rig = Rig::with(|builder| builder, config).await;
    let refused = rig.post("/workers", worker(1)).await;
    assert_eq!((refused.status, refused.code()), (403, "read_only"));
    assert_eq!(rig.get("/workers").await.status, 200);
}

fn connector(pki: &Pki, with_certificate: bool) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(pki.file("ca.pem")).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = if with_certificate {
        let chain = vec![CertificateDer::from_pem_file(pki.file("client.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(pki.file("client.key")).unwrap();
        builder.with_client_auth_cert(chain, key).unwrap()
    } else {
        builder.with_no_client_auth()
    };
    TlsConnector::from(Arc::new(config))
}

async fn health(
    address: std::net::SocketAddr,
    connector: &TlsConnector,
) -> std::io::Result<String> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = connector.connect(name, stream).await?;
    let request = "GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

async fn serve(tls: TlsFiles, stop: &CancellationToken) -> std::net::SocketAddr {
    let registry = RouterPluginRegistry::default();
    let config = KvRouterConfig::default();
    let builder = SelectionServiceBuilder::new(config, WorkerType::Aggregated, registry);
    let service = builder.build().await.unwrap();
    let config = ServerConfig {
        tls: Some(tls),
        ..ServerConfig::new(([127, 0, 0, 1], 0).into())
    };
    let server = Server::bind(config).await.unwrap();
    let address = server.address();
    let router = http::router(service, Config::default());
    tokio::spawn(server.serve(router, stop.clone()));
    address
}

#[tokio::test]
async fn tls_serves_whoever_trusts_the_certificate() {
    let (pki, stop) = (Pki::new("tls"), CancellationToken::new());
    let files = TlsFiles {
        certificate: pki.file("server.pem"),
        key: pki.file("server.key"),
        client_ca: None,
    };
    let address = serve(files, &stop).await;
    let answer = health(address, &connector(&pki, false)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    stop.cancel();
}

#[tokio::test]
async fn mutual_tls_lets_in_only_clients_of_its_ca() {
    let (pki, stop) = (Pki::new("mtls"), CancellationToken::new());
    let files = TlsFiles {
        certificate: pki.file("server.pem"),
        key: pki.file("server.key"),
        client_ca: Some(pki.file("ca.pem")),
    };
    let address = serve(files, &stop).await;
    let answer = health(address, &connector(&pki, true)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(health(address, &connector(&pki, false)).await.is_err());
    stop.cancel();
}

#[tokio::test]
async fn files_that_cannot_be_used_stop_the_start_and_are_named() {
    let pki = Pki::new("broken");
    pki.write("empty.pem", "");
    for (certificate, key, named) in [
        ("missing.pem", "server.key", "missing.pem"),
        ("server.pem", "missing.key", "missing.key"),
        ("server.pem", "server.pem", "server.pem"),
    ] {
        let config = ServerConfig {
            tls: Some(TlsFiles {
                certificate: pki.file(certificate),
                key: pki.file(key),
                client_ca: None,
            }),
            ..ServerConfig::new(([127, 0, 0, 1], 0).into())
        };
        let error = Server::bind(config).await.unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}
