//! One connection of a peer that listens: what it subscribed to, and what waits to be written to it.
//!
//! It makes no message. Its queue is bounded in messages and bytes.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::publisher::Listeners;
use super::wire::{MAX_MESSAGE_BYTES, PEERS};
use crate::zmtp::{self, Decoder, Incoming, Role, ZmtpError};

const MAX_QUEUED: usize = 100_000;
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// A snapshot goes on while no more than this waits.
const PIECE_QUEUED_BYTES: usize = 1 << 20;
const MAX_TOPICS: usize = 64;
const MAX_TOPIC_BYTES: usize = 256;
const HANDSHAKE: Duration = Duration::from_secs(5);
/// A connection that takes nothing for this long is closed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
const WRITE_BYTES: usize = 64 << 10;
const READ_BYTES: usize = 4 << 10;

#[derive(Debug, Default)]
pub(super) struct Listener {
    state: Mutex<State>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct State {
    topics: Vec<Bytes>,
    queue: VecDeque<Bytes>,
    queued_bytes: usize,
    /// Taken from the queue, not yet written.
    writing: bool,
    /// The number behind which a snapshot goes on.
    piece_after: Option<u64>,
    closed: bool,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Gone {
    #[error("nothing was taken for {0:?}")]
    Timeout(Duration),
    #[error("closed")]
    Closed,
    #[error("too many or too long topics")]
    Topics,
    #[error(transparent)]
    Socket(#[from] std::io::Error),
    #[error(transparent)]
    Zmtp(#[from] ZmtpError),
}

impl Listener {
    /// Queues a message for it, if it subscribed to the topic. False where there was no room.
    pub(super) fn send(&self, topic: &str, message: &Bytes) -> bool {
        let mut state = self.lock();
        let matches = |prefix: &Bytes| topic.as_bytes().starts_with(prefix);
        if state.closed || !state.topics.iter().any(matches) {
            return true;
        }
        let room = state.queue.len() < MAX_QUEUED
            && state.queued_bytes.saturating_add(message.len()) <= MAX_QUEUED_BYTES;
        if room {
            state.push(message.clone());
            self.bell.notify_one();
        }
        room
    }

    /// Where its snapshot goes on, if one is wanted and there is room.
    pub(super) fn wants_piece(&self) -> Option<u64> {
        let state = self.lock();
        let room = state.queued_bytes <= PIECE_QUEUED_BYTES && !state.closed;
        state.piece_after.filter(|_| room)
    }

    /// The piece behind `after` was sent; unless a new snapshot was asked for meanwhile, it goes on
    /// behind `next`.
    pub(super) fn piece_sent(&self, after: u64, next: Option<u64>) {
        let mut state = self.lock();
        if state.piece_after == Some(after) {
            state.piece_after = next;
        }
    }

    pub(super) fn is_drained(&self) -> bool {
        let state = self.lock();
        state.closed || (state.queue.is_empty() && !state.writing)
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.bell.notify_one();
    }

    /// Serves the connection to its end.
    pub(super) async fn serve(&self, stream: TcpStream, of: &Listeners) -> Gone {
        let ended = self.run(stream, of).await;
        self.close();
        match ended {
            Ok(never) => never,
            Err(gone) => gone,
        }
    }

    async fn run(&self, stream: TcpStream, of: &Listeners) -> Result<Gone, Gone> {
        stream.set_nodelay(true)?;
        let (mut reader, mut writer) = stream.into_split();
        let mut decoder = Decoder::new(Role::Publisher, MAX_MESSAGE_BYTES);
        let mut bytes = BytesMut::new();
        let shaken = timeout(HANDSHAKE, async {
            writer.write_all(&zmtp::opening(Role::Publisher)).await?;
            while !decoder.is_ready() {
                if decoder.next(&mut bytes)?.is_none() && !decoder.is_ready() {
                    read(&mut reader, &mut bytes).await?;
                }
            }
            Ok::<_, Gone>(())
        });
        shaken.await.map_err(|_| Gone::Timeout(HANDSHAKE))??;
        tokio::select! {
            ended = self.read_all(reader, decoder, bytes, of) => ended,
            ended = self.write_all(writer, of) => ended,
        }
    }

    async fn read_all(
        &self,
        mut reader: OwnedReadHalf,
        mut decoder: Decoder,
        mut bytes: BytesMut,
        of: &Listeners,
    ) -> Result<Gone, Gone> {
        loop {
            while let Some(incoming) = decoder.next(&mut bytes)? {
                self.heard(incoming, of)?;
            }
            read(&mut reader, &mut bytes).await?;
        }
    }

    fn heard(&self, incoming: Incoming, of: &Listeners) -> Result<(), Gone> {
        let mut state = self.lock();
        match incoming {
            Incoming::Subscribe(topic) => {
                if topic.len() > MAX_TOPIC_BYTES || state.topics.len() >= MAX_TOPICS {
                    return Err(Gone::Topics);
                }
                let asks = topic == PEERS;
                state.topics.push(topic);
                if asks {
                    state.piece_after = Some(0);
                    drop(state);
                    of.ring();
                }
            }
            Incoming::Cancel(topic) => {
                if let Some(at) = state.topics.iter().position(|known| *known == topic) {
                    state.topics.swap_remove(at);
                }
            }
            Incoming::Ping(context) => {
                // Whoever pings and reads no answer is not kept.
                if state.queue.len() >= MAX_QUEUED {
                    return Err(Gone::Timeout(WRITE_TIMEOUT));
                }
                state.push(zmtp::pong(&context));
                self.bell.notify_one();
            }
            Incoming::Message(_) | Incoming::Oversized | Incoming::Other => {}
        }
        Ok(())
    }

    async fn write_all(&self, mut writer: OwnedWriteHalf, of: &Listeners) -> Result<Gone, Gone> {
        let mut bytes = BytesMut::new();
        loop {
            let fills = self.take(&mut bytes)?;
            if bytes.is_empty() {
                self.bell.notified().await;
                continue;
            }
            let written = timeout(WRITE_TIMEOUT, writer.write_all(&bytes)).await;
            written.map_err(|_| Gone::Timeout(WRITE_TIMEOUT))??;
            bytes.clear();
            if fills {
                of.ring();
            }
        }
    }

    /// Moves what is next from the queue; true where a snapshot waits for room.
    fn take(&self, bytes: &mut BytesMut) -> Result<bool, Gone> {
        let mut state = self.lock();
        if state.closed {
            return Err(Gone::Closed);
        }
        while bytes.len() < WRITE_BYTES {
            let Some(message) = state.queue.pop_front() else {
                break;
            };
            state.queued_bytes -= message.len();
            bytes.extend_from_slice(&message);
        }
        state.writing = !bytes.is_empty();
        Ok(state.piece_after.is_some())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn push(&mut self, message: Bytes) {
        self.queued_bytes += message.len();
        self.queue.push_back(message);
    }
}

async fn read(reader: &mut OwnedReadHalf, bytes: &mut BytesMut) -> Result<(), Gone> {
    bytes.reserve(READ_BYTES);
    match reader.read_buf(bytes).await? {
        0 => Err(Gone::Closed),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::EVENTS;
    use super::*;

    fn subscribed(topics: &[&str]) -> Listener {
        let listener = Listener::default();
        for topic in topics {
            let topic = Bytes::copy_from_slice(topic.as_bytes());
            listener.lock().topics.push(topic);
        }
        listener
    }

    fn queued(listener: &Listener) -> usize {
        listener.lock().queue.len()
    }

    #[test]
    fn it_is_sent_what_it_subscribed_to() {
        let listener = subscribed(&["dynamo.slot"]);
        let message = Bytes::from_static(b"m");
        assert!(listener.send(EVENTS, &message) && listener.send(PEERS, &message));
        assert_eq!(queued(&listener), 1);
        assert!(subscribed(&[]).send(EVENTS, &message));
    }

    #[test]
    fn what_waits_for_it_is_bounded_in_bytes_and_in_messages() {
        let (large, small) = (subscribed(&[""]), subscribed(&[""]));
        let message = Bytes::from(vec![0; 1 << 20]);
        let sent = (0..1_000).filter(|_| large.send(EVENTS, &message)).count();
        assert_eq!(sent, MAX_QUEUED_BYTES >> 20);
        let message = Bytes::from_static(b"m");
        let sent = (0..2 * MAX_QUEUED).filter(|_| small.send(EVENTS, &message));
        assert_eq!(sent.count(), MAX_QUEUED);
    }

    #[test]
    fn a_snapshot_waits_for_room_and_begins_anew_when_it_is_asked_for_anew() {
        let listener = subscribed(&[""]);
        assert_eq!(listener.wants_piece(), None);
        listener.lock().piece_after = Some(0);
        assert_eq!(listener.wants_piece(), Some(0));
        listener.piece_sent(0, Some(256));
        assert_eq!(listener.wants_piece(), Some(256));
        let message = Bytes::from(vec![0; PIECE_QUEUED_BYTES + 1]);
        assert!(listener.send(EVENTS, &message));
        assert_eq!(listener.wants_piece(), None);
        let mut bytes = BytesMut::new();
        assert!(
            listener.take(&mut bytes).unwrap(),
            "it goes on when this is written"
        );
        assert_eq!(listener.wants_piece(), Some(256));
        listener.lock().piece_after = Some(0);
        listener.piece_sent(256, Some(512));
        assert_eq!(listener.wants_piece(), Some(0));
    }
}
