//! Asks one peer for its index over HTTP or HTTPS and has the answer read as it arrives.
//!
//! Every wait is bounded, no redirect is followed, and what arrives is never kept whole: it is read
//! on a thread that may wait, through a channel of a few pieces.

use std::error::Error as _;
use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST};
use hyper::http::uri::Scheme;
use hyper::{Request, Response, Uri, client::conn::http1};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use super::parse::{Bounds, Parsed, parse};
use super::pull::Bad;

/// Pieces of the answer that wait to be read.
const PIECES_AHEAD: usize = 4;
const AGENT: &str = concat!("pointsman/", env!("CARGO_PKG_VERSION"));

/// A checked URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PeerUrl {
    is_tls: bool,
    host: String,
    port: u16,
    path: String,
}

#[derive(Clone, Debug)]
pub(super) struct Asking {
    /// What the peer is shown, where it asks.
    pub(super) bearer: Option<Arc<str>>,
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) bounds: Bounds,
    /// The wait for a connection, for the head of the answer, and for each piece of it.
    pub(super) step: Duration,
}

/// How far the answer was read.
#[derive(Debug)]
pub(super) enum Heard {
    Whole(Parsed),
    /// A bound was met; what came before it can be used.
    Part(Parsed, Bad),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum PeerError {
    #[error("no connection")]
    Connect(#[source] io::Error),
    #[error("no answer in time")]
    Time,
    #[error("the request failed")]
    Http(#[from] hyper::Error),
    #[error("the request cannot be made")]
    Request(#[from] hyper::http::Error),
    #[error("the peer answered {0}")]
    Status(hyper::StatusCode),
    #[error("the host's name cannot be checked")]
    Name(#[from] rustls::pki_types::InvalidDnsNameError),
    #[error("the answer is no dump")]
    Dump(#[source] Bad),
    #[error("reading the answer panicked")]
    Reader(#[source] tokio::task::JoinError),
}

impl PeerError {
    /// What went wrong, with all that caused it: a handshake fails deep down.
    pub(super) fn reason(&self) -> String {
        let mut reason = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            // Some errors repeat their cause in their own text.
            let said = error.to_string();
            if !reason.contains(&said) {
                reason = format!("{reason}: {said}");
            }
            cause = error.source();
        }
        reason
    }
}

impl fmt::Display for PeerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}{}", self.host, self.port, self.path)
    }
}

impl PeerUrl {
    /// `None` for what is no URL of HTTP with a host.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let uri: Uri = text.parse().ok()?;
        let is_tls = match uri.scheme()? {
            scheme if *scheme == Scheme::HTTP => false,
            scheme if *scheme == Scheme::HTTPS => true,
            _ => return None,
        };
        let authority = uri.authority()?;
        if authority.as_str().contains('@') || uri.query().is_some() || authority.host().is_empty()
        {
            return None;
        }
        let stated = &authority.as_str()[authority.host().len()..];
        let port = match stated.strip_prefix(':') {
            Some(port) => port.parse().ok().filter(|port| *port != 0)?,
            None if is_tls => 443,
            None => 80,
        };
        Some(Self {
            is_tls,
            host: authority.host().to_owned(),
            port,
            path: format!("{}/dump", uri.path().trim_end_matches('/')),
        })
    }

    pub(super) fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Without the brackets that a URL puts around IPv6.
    fn bare_host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Asks for the dump, until `deadline`.
    pub(super) async fn ask(&self, asking: &Asking, deadline: Instant) -> Result<Heard, PeerError> {
        let head_by = deadline.min(Instant::now() + asking.step);
        let response = timeout_at(head_by, self.request(asking)).await;
        let response = response.map_err(|_| PeerError::Time)??;
        if !response.status().is_success() {
            return Err(PeerError::Status(response.status()));
        }
        read(response.into_body(), asking, deadline).await
    }

    async fn request(&self, asking: &Asking) -> Result<Response<Incoming>, PeerError> {
        let host = self.bare_host();
        let stream = TcpStream::connect((host, self.port)).await;
        let stream = stream.map_err(PeerError::Connect)?;
        let Some(tls) = asking.tls.as_ref().filter(|_| self.is_tls) else {
            return self.exchange(asking, stream).await;
        };
        let name = ServerName::try_from(host.to_owned())?;
        let connector = TlsConnector::from(Arc::clone(tls));
        let stream = connector.connect(name, stream).await;
        self.exchange(asking, stream.map_err(PeerError::Connect)?)
            .await
    }

    async fn exchange(
        &self,
        asking: &Asking,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Response<Incoming>, PeerError> {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // It ends with the answer, or with whoever reads it.
        tokio::spawn(connection);
        let mut request = Request::get(&self.path)
            .header(HOST, format!("{}:{}", self.host, self.port))
            .header(ACCEPT, "application/json")
            .header(hyper::header::USER_AGENT, AGENT);
        if let Some(token) = &asking.bearer {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Empty::<Bytes>::new())?;
        Ok(sender.send_request(request).await?)
    }
}

/// Hands the body on to a thread that reads it.
async fn read(body: Incoming, asking: &Asking, deadline: Instant) -> Result<Heard, PeerError> {
    let (pieces, received) = mpsc::channel(PIECES_AHEAD);
    let bounds = asking.bounds;
    let reading = spawn_blocking(move || {
        let mut parsed = Parsed::default();
        let read = parse(Pieces::new(received), bounds, &mut parsed);
        (parsed, read)
    });
    feed(body, pieces, asking.step, deadline).await;
    let (parsed, read) = reading.await.map_err(PeerError::Reader)?;
    match read {
        Ok(()) => Ok(Heard::Whole(parsed)),
        Err(bound @ (Bad::TooLong { .. } | Bad::TooMany { .. })) => Ok(Heard::Part(parsed, bound)),
        Err(Bad::Read(error)) if error.kind() == io::ErrorKind::TimedOut => {
            Ok(Heard::Part(parsed, Bad::Read(error)))
        }
        Err(bad) => Err(PeerError::Dump(bad)),
    }
}

/// Passes the body on until it ends or breaks, the time is over, or nobody reads any more.
async fn feed(
    mut body: Incoming,
    pieces: mpsc::Sender<io::Result<Bytes>>,
    step: Duration,
    deadline: Instant,
) {
    loop {
        let piece = match timeout_at(deadline, timeout(step, body.frame())).await {
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
            // A peer that falls silent is broken, not slow.
            Ok(Err(_)) => Err(io::ErrorKind::ConnectionAborted.into()),
            Ok(Ok(None)) => return,
            Ok(Ok(Some(Err(error)))) => Err(io::Error::other(error)),
            Ok(Ok(Some(Ok(frame)))) => match frame.into_data() {
                Ok(bytes) => Ok(bytes),
                Err(_) => continue,
            },
        };
        let is_last = piece.is_err();
        if pieces.send(piece).await.is_err() || is_last {
            return;
        }
    }
}

/// The pieces as a stream of bytes, for a thread that may wait.
struct Pieces {
    received: mpsc::Receiver<io::Result<Bytes>>,
    current: Bytes,
}

impl Pieces {
    fn new(received: mpsc::Receiver<io::Result<Bytes>>) -> Self {
        Self {
            received,
            current: Bytes::new(),
        }
    }
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.received.blocking_recv() {
                Some(piece) => self.current = piece?,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.current.len());
        self.current.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_a_url_of_http_with_a_host() {
        let path = |text: &str| PeerUrl::parse(text).map(|url| (url.host, url.port, url.path));
        let url = |host: &str, port, path: &str| Some((host.to_owned(), port, path.to_owned()));
        assert_eq!(path("http://b:8092"), url("b", 8092, "/dump"));
        assert_eq!(path("http://b:8092/"), url("b", 8092, "/dump"));
        assert_eq!(path("https://b/select/"), url("b", 443, "/select/dump"));
        assert_eq!(path("http://[::1]:1"), url("[::1]", 1, "/dump"));
        assert_eq!(PeerUrl::parse("http://[::1]:1").unwrap().bare_host(), "::1");
        for wrong in [
            "",
            "b",
            "b:8092",
            "tcp://b:1",
            "http://",
            "http://:1",
            "http://b:x",
            "http://b:",
            "http://b:99999",
            "http://user@b",
            "http://b/?x=1",
            "http://b c",
        ] {
            assert_eq!(PeerUrl::parse(wrong), None, "{wrong}");
        }
    }
}
