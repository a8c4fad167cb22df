//! A client on bare HTTP/2 that drives exchanges as Envoy does, many at once over a few connections.
//! It never decodes a reply, so that its own cost stays small; its threads are not counted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::{Buf, Bytes, BytesMut};
use futures::future::try_join_all;
use h2::RecvStream;
use h2::client::{Connection, SendRequest};
use http::Request;
use tokio::net::TcpStream;

use super::messages::Exchange;

/// What a client asks of HTTP/2; large enough that flow control never decides a figure.
const WINDOW_BYTES: u32 = 1 << 20;

/// Connections to one server, kept over all repetitions.
#[derive(Debug)]
pub(super) struct Client {
    connections: Vec<SendRequest<Bytes>>,
    exchange: Arc<Exchange>,
    uri: String,
}

/// What the client saw of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    pub(super) exchanges_per_second: f64,
    pub(super) mean_latency: Duration,
}

impl Client {
    pub(super) async fn connect(server: SocketAddr, connections: usize) -> Result<Self> {
        let mut senders = Vec::with_capacity(connections);
        for _ in 0..connections {
            senders.push(
                open(server)
                    .await
                    .with_context(|| format!("connecting to {server}"))?,
            );
        }
        Ok(Self {
            connections: senders,
            exchange: Arc::new(Exchange::new()),
            uri: format!("http://{server}/envoy.service.ext_proc.v3.ExternalProcessor/Process"),
        })
    }

    /// Runs `exchanges` exchanges with `in_flight` of them open at any time.
    pub(super) async fn batch(&self, exchanges: usize, in_flight: usize) -> Result<Batch> {
        let left = AtomicUsize::new(exchanges);
        let started = Instant::now();
        let streams = (0..in_flight).map(|stream| {
            let connection = self.connections[stream % self.connections.len()].clone();
            let left = &left;
            async move {
                while left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                    .is_ok()
                {
                    self.exchange_on(connection.clone()).await?;
                }
                Ok::<_, anyhow::Error>(())
            }
        });
        try_join_all(streams).await?;
        let elapsed = started.elapsed();
        Ok(Batch {
            exchanges_per_second: exchanges as f64 / elapsed.as_secs_f64(),
            mean_latency: elapsed.mul_f64(in_flight as f64 / exchanges as f64),
        })
    }

    /// One exchange, and its replies as they came, without their frames.
    pub(super) async fn replies(&self) -> Result<Vec<Bytes>> {
        self.exchange_on(self.connections[0].clone()).await
    }

    async fn exchange_on(&self, connection: SendRequest<Bytes>) -> Result<Vec<Bytes>> {
        let mut connection = connection.ready().await?;
        let (response, mut stream) = connection.send_request(self.request()?, false)?;
        let mut replies = Vec::with_capacity(4);
        let [headers, body] = &self.exchange.request;
        stream.send_data(headers.clone(), false)?;
        stream.send_data(body.clone(), false)?;
        let mut incoming = Incoming::new(response.await?.into_body());
        replies.extend([incoming.reply().await?, incoming.reply().await?]);
        let [headers, body] = &self.exchange.response;
        stream.send_data(headers.clone(), false)?;
        stream.send_data(body.clone(), false)?;
        replies.extend([incoming.reply().await?, incoming.reply().await?]);
        stream.send_data(Bytes::new(), true)?;
        incoming.end().await?;
        Ok(replies)
    }

    fn request(&self) -> Result<Request<()>> {
        Ok(Request::post(&self.uri)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?)
    }
}

async fn open(server: SocketAddr) -> Result<SendRequest<Bytes>> {
    let socket = TcpStream::connect(server).await?;
    socket.set_nodelay(true)?;
    let (sender, connection): (_, Connection<_, Bytes>) = h2::client::Builder::new()
        .initial_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES * 16)
        .handshake(socket)
        .await?;
    // The task ends with its connection, which ends when the last sender is dropped.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            eprintln!("a connection of the client broke: {error}");
        }
    });
    Ok(sender.ready().await?)
}

/// The replies of one stream, cut into gRPC messages.
struct Incoming {
    stream: RecvStream,
    buffered: BytesMut,
}

impl Incoming {
    fn new(stream: RecvStream) -> Self {
        Self {
            stream,
            buffered: BytesMut::new(),
        }
    }

    async fn reply(&mut self) -> Result<Bytes> {
        loop {
            if let Some(message) = cut(&mut self.buffered) {
                return Ok(message);
            }
            let data = self
                .stream
                .data()
                .await
                .context("the server ended the stream before all replies")??;
            self.stream.flow_control().release_capacity(data.len())?;
            self.buffered.extend_from_slice(&data);
        }
    }

    async fn end(mut self) -> Result<()> {
        while let Some(data) = self.stream.data().await {
            ensure!(
                data?.is_empty() && self.buffered.is_empty(),
                "more replies than the exchange has messages"
            );
        }
        let trailers = self
            .stream
            .trailers()
            .await?
            .context("the server sent no trailers")?;
        let status = trailers.get("grpc-status").map(http::HeaderValue::as_bytes);
        ensure!(status == Some(b"0"), "the exchange ended with {trailers:?}");
        Ok(())
    }
}

fn cut(buffered: &mut BytesMut) -> Option<Bytes> {
    let length = buffered.get(1..5).map(|mut prefix| prefix.get_u32())?;
    let whole = 5 + usize::try_from(length).ok()?;
    (buffered.len() >= whole).then(|| buffered.split_to(whole).freeze().slice(5..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_cut_only_when_whole() {
        let mut buffered = BytesMut::from(&[0, 0, 0, 0, 2, b'o'][..]);
        assert_eq!(cut(&mut buffered), None);
        buffered.extend_from_slice(b"k\0");
        assert_eq!(cut(&mut buffered), Some(Bytes::from_static(b"ok")));
        assert_eq!(&buffered[..], b"\0");
    }
}
