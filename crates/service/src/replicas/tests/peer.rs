//! Ends of connections that say what a test wants them to say.

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::super::owned::Event;
use super::*;

/// A publisher.
pub(super) struct Peer {
    listener: TcpListener,
    connection: Option<Reader>,
}

impl Peer {
    pub(super) async fn bind() -> Self {
        Self {
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            connection: None,
        }
    }

    pub(super) fn endpoint(&self) -> String {
        format!("tcp://{}", self.listener.local_addr().unwrap())
    }

    /// Waits for a subscriber to all topics.
    pub(super) async fn accept(&mut self) {
        let (stream, _) = self.listener.accept().await.unwrap();
        let mut connection = Reader {
            stream,
            heard: BytesMut::new(),
        };
        connection.send(&zmtp::opening(zmtp::Role::Publisher)).await;
        connection.until_heard(wire::PEERS.as_bytes()).await;
        self.connection = Some(connection);
    }

    /// Says something as a published peer does: without numbers.
    pub(super) async fn published(&mut self, record: Record, change: Change) {
        let event = Event {
            seq: 0,
            record: Arc::new(record),
            change,
        };
        let message = wire::tests::published(77, &event);
        self.send(&message).await;
    }

    pub(super) async fn say(&mut self, topic: &[u8], payload: &[u8]) {
        self.send(&zmtp::message(topic, payload)).await;
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) {
        self.connection.as_mut().unwrap().send(bytes).await;
    }

    pub(super) async fn until_heard(&mut self, wanted: &[u8]) {
        self.connection.as_mut().unwrap().until_heard(wanted).await;
    }
}

/// A connection as bytes.
pub(super) struct Reader {
    stream: TcpStream,
    heard: BytesMut,
}

impl Reader {
    pub(super) async fn raw(service: &SelectionService) -> Self {
        let port = service.replica_sync_address().unwrap().port();
        Self {
            stream: TcpStream::connect(("127.0.0.1", port)).await.unwrap(),
            heard: BytesMut::new(),
        }
    }

    /// A subscriber to nothing so far.
    pub(super) async fn connect(service: &SelectionService) -> Self {
        let mut reader = Self::raw(service).await;
        reader.send(&zmtp::opening(zmtp::Role::Subscriber)).await;
        reader
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    pub(super) async fn until_heard(&mut self, wanted: &[u8]) {
        let has = |heard: &BytesMut| heard.windows(wanted.len()).any(|part| part == wanted);
        while !has(&self.heard) {
            let read = self.stream.read_buf(&mut self.heard);
            let count = tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
            assert_ne!(count, 0, "closed before it was heard");
        }
    }

    /// Reads to the end.
    pub(super) async fn is_closed(&mut self) -> bool {
        let read = async {
            loop {
                match self.stream.read_buf(&mut self.heard).await {
                    Ok(0) | Err(_) => return true,
                    Ok(_) => {}
                }
            }
        };
        tokio::time::timeout(PATIENCE, read).await.unwrap()
    }
}
