//! One task per peer: connects, subscribes, hands over what is said, asks for a snapshot when told to.
//!
//! It decides nothing, and reconnects with back-off for as long as the peer is followed.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tracing::{debug, info};

use super::metrics::{Dropped, ReplicaMetrics};
use super::mirror::LinkId;
use super::wire::{self, AFFINITY, EVENTS, MAX_MESSAGE_BYTES, PEERS};
use crate::service::Shared;
use crate::zmtp::{self, Connection, ConnectionError, Received, Role};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(1);
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// A peer that would answer, and says nothing for this long, is gone.
const SILENCE: Duration = Duration::from_secs(15);
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
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("the service has ended")]
    Ended,
}

impl Subscriber {
    pub(super) async fn run(self) {
        let mut pause = MIN_PAUSE;
        loop {
            let parting = match self.connect().await {
                Ok(connection) => {
                    pause = MIN_PAUSE;
                    self.serve(connection).await
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

    async fn connect(&self) -> Result<Connection, Parting> {
        let connected = timeout(CONNECT_TIMEOUT, self.subscribe()).await;
        Ok(connected.map_err(|_| Parting::Timeout(CONNECT_TIMEOUT))??)
    }

    async fn subscribe(&self) -> Result<Connection, ConnectionError> {
        let mut connection =
            Connection::open(&self.endpoint, Role::Subscriber, MAX_MESSAGE_BYTES).await?;
        // Events first: a snapshot must not stand before the events that follow on it.
        let topics = [EVENTS, AFFINITY, PEERS].map(|topic| zmtp::subscribe(topic.as_bytes()));
        connection.send(&topics.concat()).await?;
        Ok(connection)
    }

    /// Reads a connection to its end.
    async fn serve(&self, mut connection: Connection) -> Parting {
        info!(endpoint = self.endpoint, "peer connected");
        self.metrics.connected.inc();
        let parting = self.listen(&mut connection).await;
        self.metrics.connected.dec();
        info!(endpoint = self.endpoint, error = ?parting, "peer lost");
        match parting {
            Ok(never) => never,
            Err(parting) => parting,
        }
    }

    async fn listen(&self, connection: &mut Connection) -> Result<Parting, Parting> {
        let mut heard_at = Instant::now();
        let mut answers = connection.answers_pings();
        let mut ping = tokio::time::interval(PING_INTERVAL);
        loop {
            answers |= self.take_in(connection).await?;
            tokio::select! {
                filled = connection.fill() => {
                    filled?;
                    heard_at = Instant::now();
                }
                () = self.ask.notified() => {
                    let topic = PEERS.as_bytes();
                    let anew = [zmtp::cancel(topic), zmtp::subscribe(topic)].concat();
                    write(connection, &anew).await?;
                }
                _ = ping.tick() => {
                    if answers && heard_at.elapsed() > SILENCE {
                        return Err(Parting::Timeout(SILENCE));
                    }
                    if connection.answers_pings() {
                        write(connection, &zmtp::ping()).await?;
                    }
                }
            }
        }
    }

    /// Hands over what has come whole. True where the peer is one that never falls silent.
    async fn take_in(&self, connection: &mut Connection) -> Result<bool, Parting> {
        let mut beats = false;
        let mut turn = 0;
        while let Some(received) = connection.take()? {
            match received {
                Received::Message(frames) => {
                    beats |= frames.first().is_some_and(|topic| topic == PEERS);
                    self.hear(&frames)?;
                }
                Received::Oversized => self.metrics.count_dropped(Dropped::Oversized),
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

async fn write(connection: &mut Connection, bytes: &[u8]) -> Result<(), Parting> {
    let written = timeout(WRITE_TIMEOUT, connection.send(bytes)).await;
    Ok(written.map_err(|_| Parting::Timeout(WRITE_TIMEOUT))??)
}
