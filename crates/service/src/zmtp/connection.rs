//! A connection that we open: dialled, shaken hands on, read without a task of its own.
//!
//! It never dials again and keeps no time beside TCP's own: callers bound each wait, and may drop
//! any of them, for what has come by then stays here. Its buffer grows with what has arrived, to
//! at most twice the longest message; pings are answered while it is read.

use std::task::{Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::codec::{Decoder, Incoming, Role, ZmtpError, opening, pong};

/// What is read at once; bulk is read in larger pieces.
const MIN_ROOM: usize = 8 << 10;
const MAX_ROOM: usize = 64 << 10;
/// With less room than this a fresh buffer is taken: slices of the old one may live on, and what
/// they hold should be mostly theirs.
const LEAST_ROOM: usize = 2 << 10;
/// Bytes after which others have their turn.
const TURN_BYTES: usize = 64 << 10;
/// Answers that wait to be written; whoever pings on and reads none of them is not kept.
const MAX_UNREAD_BYTES: usize = 16 << 10;

/// A host that has vanished is noticed after half a minute.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// What a peer sent, without what concerns the connection alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Message(Vec<Bytes>),
    /// A message that was too large, or had too many frames, was read past.
    Oversized,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("neither tcp://host:port nor ipc://path")]
    Endpoint,
    #[error("the other end closed the connection")]
    Closed,
    #[error("the other end reads no answers")]
    Unread,
    #[error(transparent)]
    Socket(#[from] std::io::Error),
    #[error(transparent)]
    Zmtp(#[from] ZmtpError),
}

trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

pub(crate) struct Connection {
    stream: Box<dyn Duplex>,
    decoder: Decoder,
    /// Read, not yet taken.
    bytes: BytesMut,
    /// To be written.
    outgoing: BytesMut,
    /// What the next buffer has room for.
    room: usize,
    /// Bytes read in this turn.
    turn_bytes: usize,
}

impl Connection {
    /// Dials `tcp://host:port` or `ipc://path`, and shakes hands. A message longer than
    /// `max_message_bytes` will not be kept.
    pub(crate) async fn open(
        endpoint: &str,
        role: Role,
        max_message_bytes: usize,
    ) -> Result<Self, ConnectionError> {
        let stream = dial(endpoint).await?;
        Self::shake_hands(stream, role, max_message_bytes).await
    }

    async fn shake_hands(
        stream: Box<dyn Duplex>,
        role: Role,
        max_message_bytes: usize,
    ) -> Result<Self, ConnectionError> {
        let mut connection = Self {
            stream,
            decoder: Decoder::new(role, max_message_bytes),
            bytes: BytesMut::new(),
            outgoing: BytesMut::from(opening(role)),
            room: MIN_ROOM,
            turn_bytes: 0,
        };
        while !connection.decoder.is_ready() {
            let none = connection.decoder.next(&mut connection.bytes)?.is_none();
            if none && !connection.decoder.is_ready() {
                connection.fill().await?;
            }
        }
        Ok(connection)
    }

    pub(crate) fn answers_pings(&self) -> bool {
        self.decoder.answers_pings
    }

    /// The next message. Safe to drop at any time.
    pub(crate) async fn next(&mut self) -> Result<Received, ConnectionError> {
        loop {
            if let Some(received) = self.take()? {
                return Ok(received);
            }
            self.fill().await?;
        }
    }

    /// The next message of those that have come whole.
    pub(crate) fn take(&mut self) -> Result<Option<Received>, ConnectionError> {
        while let Some(incoming) = self.decoder.next(&mut self.bytes)? {
            match incoming {
                Incoming::Message(frames) => return Ok(Some(Received::Message(frames))),
                Incoming::Oversized => return Ok(Some(Received::Oversized)),
                Incoming::Ping(context) => {
                    if self.outgoing.len() > MAX_UNREAD_BYTES {
                        return Err(ConnectionError::Unread);
                    }
                    self.outgoing.extend_from_slice(&pong(&context));
                }
                Incoming::Subscribe(_) | Incoming::Cancel(_) | Incoming::Other => {}
            }
        }
        Ok(None)
    }

    /// Waits until more has come, and writes what waits to be written. Safe to drop at any time.
    pub(crate) async fn fill(&mut self) -> Result<(), ConnectionError> {
        if self.turn_bytes >= TURN_BYTES {
            self.turn_bytes = 0;
            tokio::task::yield_now().await;
        }
        let room = self.make_room();
        let Self {
            stream,
            bytes,
            outgoing,
            ..
        } = self;
        let read = std::future::poll_fn(|context| {
            if let Poll::Ready(Err(error)) = poll_write(stream, outgoing, context) {
                return Poll::Ready(Err(error));
            }
            // What has been read is in the buffer: nothing is lost with this future.
            std::pin::pin!(stream.read_buf(bytes)).poll(context)
        })
        .await?;
        if read == 0 {
            return Err(ConnectionError::Closed);
        }
        self.turn_bytes += read;
        if read == room {
            self.room = (self.room * 2).min(MAX_ROOM);
        } else if read < MIN_ROOM / 2 {
            self.room = MIN_ROOM;
        }
        Ok(())
    }

    /// Writes this, behind what waits already. Dropped half-way, the rest is written by the next
    /// call of this or of [`fill`](Self::fill).
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        self.outgoing.extend_from_slice(bytes);
        let Self {
            stream, outgoing, ..
        } = self;
        std::future::poll_fn(|context| poll_write(stream, outgoing, context)).await?;
        Ok(())
    }

    /// Makes room to read into, and says how much there is.
    fn make_room(&mut self) -> usize {
        let held = self.bytes.len();
        if self.bytes.capacity() - held < LEAST_ROOM {
            if held < self.room {
                let mut fresh = BytesMut::with_capacity(held + self.room);
                fresh.extend_from_slice(&self.bytes);
                self.bytes = fresh;
            } else {
                self.bytes.reserve(held);
            }
        }
        self.bytes.capacity() - held
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("decoder", &self.decoder)
            .finish_non_exhaustive()
    }
}

fn poll_write(
    stream: &mut dyn Duplex,
    outgoing: &mut BytesMut,
    context: &mut std::task::Context<'_>,
) -> Poll<std::io::Result<()>> {
    let mut stream = std::pin::Pin::new(stream);
    while !outgoing.is_empty() {
        let written = ready!(stream.as_mut().poll_write(context, outgoing))?;
        if written == 0 {
            return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into()));
        }
        outgoing.advance(written);
    }
    Poll::Ready(Ok(()))
}

async fn dial(endpoint: &str) -> Result<Box<dyn Duplex>, ConnectionError> {
    match endpoint.split_once("://") {
        Some(("tcp", address)) => Ok(Box::new(dial_tcp(address).await?)),
        Some(("ipc", path)) => Ok(Box::new(UnixStream::connect(path).await?)),
        _ => Err(ConnectionError::Endpoint),
    }
}

async fn dial_tcp(address: &str) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(stream)
}

#[cfg(test)]
mod tests;
