//! The doors over real sockets, with a pick that always says the same.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse,
    external_processor_client::ExternalProcessorClient, processing_request::Request as Part,
    processing_response::Response as Answer,
};
use hyper_util::rt::TokioIo;
use pointsman_service::ServiceState;
use prometheus_client::registry::Registry;
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::{io::AsyncReadExt as _, net::TcpStream, sync::mpsc, sync::watch};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Streaming,
    codegen::Service,
    transport::{Channel, Endpoint, Uri},
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::{Config, RunningServer, Security, Server, ServerMetrics};
use crate::{
    error::Refusal,
    ext_proc::{Held, Limits, Pick, Picked, ResponseHead, SubsetHint},
    request::Head,
};

struct Fixed;
struct Nothing;

impl Pick for Fixed {
    type Held = Nothing;

    async fn pick(&self, _: Head, _: Bytes, _: SubsetHint) -> Result<Picked<Nothing>, Refusal> {
        Ok(Picked {
            endpoint: "10.0.0.1:8000".to_owned(),
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

struct House {
    server: RunningServer,
    state: watch::Sender<ServiceState>,
}

fn ready() -> ServiceState {
    ServiceState {
        source_read: true,
        ..ServiceState::default()
    }
}

fn config() -> Config {
    let any = "127.0.0.1:0".parse().unwrap();
    Config {
        ext_proc: any,
        health: any,
        security: Security::Plaintext,
        threads: 2,
        propagation: Duration::ZERO,
        ..Config::default()
    }
}

fn open(config: &Config) -> House {
    let (state, receiver) = watch::channel(ready());
    let metrics = ServerMetrics::new(&mut Registry::default());
    let server = Server::start(config, Fixed, receiver, metrics).unwrap();
    House { server, state }
}

async fn channel(address: std::net::SocketAddr) -> Channel {
    let uri = format!("http://{address}");
    Endpoint::from_shared(uri).unwrap().connect().await.unwrap()
}

async fn health_of(channel: Channel, service: &str) -> Result<ServingStatus, Code> {
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let response = HealthClient::new(channel).check(request).await;
    response
        .map(|response| response.get_ref().status())
        .map_err(|status| status.code())
}

struct Talk {
    to: mpsc::Sender<ProcessingRequest>,
    from: Streaming<ProcessingResponse>,
}

impl Talk {
    async fn open(channel: Channel) -> Result<Self, tonic::Status> {
        let (to, messages) = mpsc::channel(16);
        let from = ExternalProcessorClient::new(channel)
            .process(ReceiverStream::new(messages))
            .await?
            .into_inner();
        Ok(Self { to, from })
    }

    async fn say(&self, part: Part) {
        let message = ProcessingRequest {
            request: Some(part),
            ..ProcessingRequest::default()
        };
        self.to.send(message).await.unwrap();
    }

    async fn hear(&mut self) -> Option<Answer> {
        self.from.message().await.unwrap()?.response
    }

    async fn is_routed(&mut self) -> bool {
        self.say(Part::RequestHeaders(ended())).await;
        matches!(self.hear().await, Some(Answer::RequestHeaders(_)))
    }
}

fn ended() -> HttpHeaders {
    HttpHeaders {
        end_of_stream: true,
        ..HttpHeaders::default()
    }
}

const READY_NAMES: [&str; 4] = [
    "",
    "readiness",
    "inference-extension",
    "envoy.service.ext_proc.v3.ExternalProcessor",
];

#[tokio::test]
async fn every_health_name_serves_on_both_ports() {
    let house = open(&config());
    for address in [house.server.ext_proc_addr(), house.server.health_addr()] {
        let channel = channel(address).await;
        for name in READY_NAMES.into_iter().chain(["liveness"]) {
            let status = health_of(channel.clone(), name).await;
            assert_eq!(status, Ok(ServingStatus::Serving), "{name} at {address}");
        }
        let unknown = health_of(channel, "unheard-of").await;
        assert_eq!(unknown, Err(Code::NotFound));
    }
}

#[tokio::test]
async fn before_the_source_is_read_and_while_peers_are_asked_only_liveness_serves() {
    let house = open(&config());
    let channel = channel(house.server.health_addr()).await;
    let recovering = ServiceState {
        recovering: true,
        ..ready()
    };
    for state in [ServiceState::default(), recovering] {
        house.state.send_replace(state);
        for name in READY_NAMES {
            let status = health_of(channel.clone(), name).await;
            assert_eq!(status, Ok(ServingStatus::NotServing), "{name}, {state:?}");
        }
        let liveness = health_of(channel.clone(), "liveness").await;
        assert_eq!(liveness, Ok(ServingStatus::Serving));
    }
}

#[tokio::test]
async fn a_watcher_hears_of_each_change_once() {
    let house = open(&config());
    let mut client = HealthClient::new(channel(house.server.health_addr()).await);
    let request = HealthCheckRequest {
        service: "readiness".to_owned(),
    };
    let mut statuses = client.watch(request).await.unwrap().into_inner();
    let mut heard = Vec::new();
    for change in 0..3 {
        heard.push(statuses.message().await.unwrap().unwrap().status());
        match change {
            0 => drop(house.state.send_replace(ServiceState::default())),
            1 => drop(house.state.send_replace(ready())),
            _ => house.server.stop_serving(),
        }
    }
    heard.push(statuses.message().await.unwrap().unwrap().status());
    let (yes, no) = (ServingStatus::Serving, ServingStatus::NotServing);
    assert_eq!(heard, [yes, no, yes, no]);
}

#[tokio::test]
async fn a_watcher_of_an_unknown_name_is_told_so_and_kept() {
    let house = open(&config());
    let mut client = HealthClient::new(channel(house.server.health_addr()).await);
    let request = HealthCheckRequest {
        service: "unheard-of".to_owned(),
    };
    let mut statuses = client.watch(request).await.unwrap().into_inner();
    let first = statuses.message().await.unwrap().unwrap().status();
    assert_eq!(first, ServingStatus::ServiceUnknown);
}

#[tokio::test]
async fn an_unknown_service_is_unimplemented() {
    let house = open(&config());
    let channel = channel(house.server.health_addr()).await;
    let refused = Talk::open(channel).await.err().unwrap();
    assert_eq!(
        refused.code(),
        Code::Unimplemented,
        "exchanges have their own port"
    );
}

#[tokio::test]
async fn a_draining_server_serves_on_and_lets_the_open_exchange_end() {
    let house = open(&config());
    let exchanges = channel(house.server.ext_proc_addr()).await;
    let health = channel(house.server.health_addr()).await;
    let mut first = Talk::open(exchanges.clone()).await.unwrap();
    assert!(first.is_routed().await);
    first
        .say(Part::ResponseHeaders(HttpHeaders::default()))
        .await;
    first.hear().await.unwrap();

    let in_flight = house.server.in_flight().clone();
    house.server.stop_serving();
    let drained = tokio::spawn(house.server.drain(Duration::from_mins(1)));
    assert_eq!(health_of(health, "").await, Ok(ServingStatus::NotServing));
    let mut second = Talk::open(exchanges).await.unwrap();
    assert!(second.is_routed().await);
    assert_eq!(in_flight.count(), 2);
    drop(second);

    let body = HttpBody {
        end_of_stream: true,
        ..HttpBody::default()
    };
    first.say(Part::ResponseBody(body)).await;
    assert!(matches!(first.hear().await, Some(Answer::ResponseBody(_))));
    drained.await.unwrap();
    assert_eq!(in_flight.count(), 0);
}

#[tokio::test]
async fn what_does_not_end_in_time_is_closed_cleanly() {
    let house = open(&config());
    let mut talk = Talk::open(channel(house.server.ext_proc_addr()).await)
        .await
        .unwrap();
    assert!(talk.is_routed().await);
    house.server.drain(Duration::from_millis(10)).await;
    assert!(talk.hear().await.is_none(), "ended with OK");
}

#[tokio::test]
async fn a_connection_too_many_is_closed() {
    let house = open(&Config {
        connections: 1,
        ..config()
    });
    let first = channel(house.server.ext_proc_addr()).await;
    assert_eq!(
        health_of(first.clone(), "").await,
        Ok(ServingStatus::Serving)
    );
    let mut second = TcpStream::connect(house.server.ext_proc_addr())
        .await
        .unwrap();
    let read = second.read(&mut [0; 1]).await;
    assert!(matches!(read, Ok(0) | Err(_)), "closed without a word");
}

#[tokio::test]
async fn a_handshake_that_takes_too_long_is_cut() {
    let house = open(&Config {
        security: Security::SelfSigned,
        handshake: Duration::from_millis(10),
        ..config()
    });
    let mut silent = TcpStream::connect(house.server.ext_proc_addr())
        .await
        .unwrap();
    let read = silent.read(&mut [0; 1]).await;
    assert!(matches!(read, Ok(0) | Err(_)), "closed without a word");
}

#[tokio::test]
async fn exchanges_travel_over_tls_with_a_self_signed_certificate() {
    let house = open(&Config {
        security: Security::SelfSigned,
        ..config()
    });
    let endpoint = Endpoint::from_shared(format!("http://{}", house.server.ext_proc_addr()));
    let channel = endpoint
        .unwrap()
        .connect_with_connector(trusting())
        .await
        .unwrap();
    let mut talk = Talk::open(channel).await.unwrap();
    assert!(talk.is_routed().await);
}

#[tokio::test]
async fn more_exchanges_than_the_bound_fit_one_connection_and_are_refused() {
    let house = open(&Config {
        limits: Limits {
            exchanges: 300,
            ..Limits::default()
        },
        ..config()
    });
    let channel = channel(house.server.ext_proc_addr()).await;
    let mut open = Vec::new();
    for _ in 0..300 {
        let mut talk = Talk::open(channel.clone()).await.unwrap();
        assert!(talk.is_routed().await);
        open.push(talk);
    }
    let mut one_more = Talk::open(channel).await.unwrap();
    one_more.say(Part::RequestHeaders(ended())).await;
    let Some(Answer::ImmediateResponse(refusal)) = one_more.hear().await else {
        panic!("not refused");
    };
    assert_eq!(refusal.status.unwrap().code, 429);
    assert!(one_more.hear().await.is_none(), "ended with OK");
}

// ---- a client that trusts anybody, as gateways do ----

#[derive(Clone)]
struct Trusting(TlsConnector);

fn trusting() -> Trusting {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Trusting(TlsConnector::from(Arc::new(config)))
}

impl Service<Uri> for Trusting {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.0.clone();
        Box::pin(async move {
            let stream = TcpStream::connect(uri.authority().unwrap().as_str()).await?;
            let name = ServerName::try_from("localhost").unwrap();
            let stream = connector.connect(name, stream).await?;
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
            Ok(TokioIo::new(stream))
        })
    }
}

#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
