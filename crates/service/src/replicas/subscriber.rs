//! One task per peer: connects, subscribes, hands over what is said, asks for a snapshot when told to.
//!
//! It decides nothing, and reconnects with back-off for as long as the peer is followed.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tracing::{debug, info};

use super::metrics::{Dropped, ReplicaMetrics};
use super::mirror::LinkId;
use super::wire::{self, AFFINITY, EVENTS, PEERS};
use crate::service::Shared;
use crate::zmtp::{self, Decoder, Incoming, Role, ZmtpError};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(1);
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// A peer that would answer, and says nothing for this long, is gone.
const SILENCE: Duration = Duration::from_secs(15);
const READ_BYTES: usize = 64 << 10;
/// Messages after which others have their turn.
const TURN: usize = 64;

#[derive(Debug)]
pub(super) struct Subscriber {
    pub(super) endpoint: String,
    pub(super) link: LinkId,
    pub(super) ask: Arc<Notify>,
    pub(super) service: Weak<Shared>,
    pub(super) metrics: ReplicaMetrics,
}

#[derive(Debug, thiserror::Error)]
enum Parting {
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("the other end closed the connection")]
    Closed,
    #[error(transparent)]
    Socket(#[from] std::io::Error),
    #[error(transparent)]
    Zmtp(#[from] ZmtpError),
    #[error("the service has ended")]
    Ended,
}

impl Subscriber {
    pub(super) async fn run(self) {
        let mut pause = MIN_PAUSE;
        loop {
            let parting = match self.connect().await {
                Ok((stream, decoder, bytes)) => {
                    pause = MIN_PAUSE;
                    self.serve(stream, decoder, bytes).await
                }
                Err(parting) => parting,
            };
            if matches!(parting, Parting::Ended) {
                return;
            }
            self.metrics.connection_failures.inc();
            debug!(endpoint = self.endpoint, error = %parting, "peer not reached");
            sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    async fn connect(&self) -> Result<(TcpStream, Decoder, BytesMut), Parting> {
        let connected = timeout(CONNECT_TIMEOUT, self.shake_hands()).await;
        connected.map_err(|_| Parting::Timeout(CONNECT_TIMEOUT))?
    }

    async fn shake_hands(&self) -> Result<(TcpStream, Decoder, BytesMut), Parting> {
        let address = self.endpoint.strip_prefix("tcp://");
        let mut stream = TcpStream::connect(address.unwrap_or(&self.endpoint)).await?;
        stream.set_nodelay(true)?;
        stream.write_all(&zmtp::opening(Role::Subscriber)).await?;
        let mut decoder = Decoder::new(Role::Subscriber);
        let mut bytes = BytesMut::new();
        while !decoder.is_ready() {
            if decoder.next(&mut bytes)?.is_none() && !decoder.is_ready() {
                read(&mut stream, &mut bytes).await?;
            }
        }
        // Events first: a snapshot must not stand before the events that follow on it.
        let topics = [EVENTS, AFFINITY, PEERS].map(|topic| zmtp::subscribe(topic.as_bytes()));
        stream.write_all(&topics.concat()).await?;
        Ok((stream, decoder, bytes))
    }

    /// Reads a connection to its end.
    async fn serve(&self, mut stream: TcpStream, mut decoder: Decoder, bytes: BytesMut) -> Parting {
        info!(endpoint = self.endpoint, "peer connected");
        self.metrics.connected.inc();
        let parting = self.listen(&mut stream, &mut decoder, bytes).await;
        self.metrics.connected.dec();
        info!(endpoint = self.endpoint, error = ?parting, "peer lost");
        match parting {
            Ok(never) => never,
            Err(parting) => parting,
        }
    }

    async fn listen(
        &self,
        stream: &mut TcpStream,
        decoder: &mut Decoder,
        mut bytes: BytesMut,
    ) -> Result<Parting, Parting> {
        let mut heard_at = Instant::now();
        let mut answers = decoder.answers_pings;
        let mut ping = tokio::time::interval(PING_INTERVAL);
        loop {
            answers |= self.take_in(stream, decoder, &mut bytes).await?;
            tokio::select! {
                read = read(stream, &mut bytes) => {
                    read?;
                    heard_at = Instant::now();
                }
                () = self.ask.notified() => {
                    let topic = PEERS.as_bytes();
                    let anew = [zmtp::cancel(topic), zmtp::subscribe(topic)].concat();
                    write(stream, anew.into()).await?;
                }
                _ = ping.tick() => {
                    if answers && heard_at.elapsed() > SILENCE {
                        return Err(Parting::Timeout(SILENCE));
                    }
                    if decoder.answers_pings {
                        write(stream, zmtp::ping()).await?;
                    }
                }
            }
        }
    }

    /// Hands over what has come whole. True where the peer is one that never falls silent.
    async fn take_in(
        &self,
        stream: &mut TcpStream,
        decoder: &mut Decoder,
        bytes: &mut BytesMut,
    ) -> Result<bool, Parting> {
        let mut beats = false;
        let mut turn = 0;
        while let Some(incoming) = decoder.next(bytes)? {
            match incoming {
                Incoming::Message(frames) => {
                    beats |= frames.first().is_some_and(|topic| topic == PEERS);
                    self.hear(&frames)?;
                }
                Incoming::Oversized => self.metrics.count_dropped(Dropped::Oversized),
                Incoming::Ping(context) => write(stream, zmtp::pong(&context)).await?,
                Incoming::Subscribe(_) | Incoming::Cancel(_) | Incoming::Other => {}
            }
            turn += 1;
            if turn % TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
        Ok(beats)
    }

    fn hear(&self, frames: &[Bytes]) -> Result<(), Parting> {
        let heard = match wire::read(frames) {
            Ok(heard) => heard,
            Err(error) => {
                self.metrics.count_dropped(Dropped::Undecodable);
                debug!(endpoint = self.endpoint, %error, "message of a peer dropped");
                return Ok(());
            }
        };
        let shared = self.service.upgrade().ok_or(Parting::Ended)?;
        if let Some(replicas) = &shared.replicas {
            replicas.hear(&shared, self.link, heard, Instant::now());
        }
        Ok(())
    }
}

async fn read(stream: &mut TcpStream, bytes: &mut BytesMut) -> Result<(), Parting> {
    bytes.reserve(READ_BYTES);
    match stream.read_buf(bytes).await? {
        0 => Err(Parting::Closed),
        _ => Ok(()),
    }
}

async fn write(stream: &mut TcpStream, bytes: Bytes) -> Result<(), Parting> {
    let written = timeout(WRITE_TIMEOUT, stream.write_all(&bytes)).await;
    Ok(written.map_err(|_| Parting::Timeout(WRITE_TIMEOUT))??)
}
