//! HTTP clients for the tests: one connection each, HTTP/1.1 or HTTP/2. Never retries.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

pub(crate) type Body = http_body_util::combinators::BoxBody<Bytes, std::convert::Infallible>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    Http2,
}

/// A response that is being received. Dropping it closes the connection.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    body: Incoming,
    connection: JoinHandle<()>,
}

impl Reply {
    /// The next piece of the body, or `None` at its end.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(data) = frame.expect("the body arrives whole").into_data() {
                return Some(data);
            }
        }
        None
    }

    pub(crate) async fn text(mut self) -> String {
        let mut all = Vec::new();
        while let Some(piece) = self.next().await {
            all.extend_from_slice(&piece);
        }
        String::from_utf8(all).expect("the body is text")
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

pub(crate) fn whole(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).boxed()
}

/// A body of unknown length, sent piece by piece: chunked in HTTP/1.1.
pub(crate) fn pieces(pieces: Vec<Bytes>) -> Body {
    let frames = pieces.into_iter().map(|piece| Ok(Frame::data(piece)));
    BodyExt::boxed(StreamBody::new(futures::stream::iter(frames)))
}

/// A body whose end is told by trailers.
pub(crate) fn with_trailers(piece: Bytes) -> Body {
    let trailers = http::HeaderMap::from_iter([(
        http::HeaderName::from_static("x-checksum"),
        http::HeaderValue::from_static("1"),
    )]);
    let frames = [Ok(Frame::data(piece)), Ok(Frame::trailers(trailers))];
    BodyExt::boxed(StreamBody::new(futures::stream::iter(frames)))
}

pub(crate) async fn send(address: SocketAddr, version: Version, request: Request<Body>) -> Reply {
    try_send(address, version, request)
        .await
        .expect("a response")
}

async fn try_send(address: SocketAddr, version: Version, request: Request<Body>) -> Option<Reply> {
    let io = TokioIo::new(TcpStream::connect(address).await.ok()?);
    let (response, connection) = match version {
        Version::Http1 => {
            let request = origin_form(request);
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.ok()?;
            let connection = tokio::spawn(async move { drop(connection.await) });
            (sender.send_request(request).await.ok()?, connection)
        }
        Version::Http2 => {
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
                    .await
                    .ok()?;
            let connection = tokio::spawn(async move { drop(connection.await) });
            (sender.send_request(request).await.ok()?, connection)
        }
    };
    let (head, body) = Response::into_parts(response);
    Some(Reply {
        status: head.status.as_u16(),
        headers: head.headers,
        body,
        connection,
    })
}

/// HTTP/1.1 names the host in a header, and only the path in its first line.
fn origin_form(request: Request<Body>) -> Request<Body> {
    let (mut head, body) = request.into_parts();
    let path = head.uri.path_and_query().cloned().expect("a path");
    head.uri = path.into();
    Request::from_parts(head, body)
}

pub(crate) fn request(method: &str, address: SocketAddr, path: &str, body: Body) -> Request<Body> {
    Request::builder()
        .method(method)
        .uri(format!("http://{address}{path}"))
        .header("host", address.to_string())
        .header("content-type", "application/json")
        .body(body)
        .expect("a valid request")
}

pub(crate) async fn try_get_text(address: SocketAddr, path: &str) -> Option<String> {
    let reply = try_send(
        address,
        Version::Http1,
        request("GET", address, path, whole("")),
    )
    .await?;
    Some(reply.text().await)
}

pub(crate) async fn get_text(address: SocketAddr, path: &str) -> String {
    try_get_text(address, path).await.expect("a response")
}
