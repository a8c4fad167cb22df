//! Tells the other replicas: takes what waits in the outbox and puts it in the queue of each listener.
//!
//! One listener that is slow, or stuck, delays neither the others nor any selection: its queue has
//! a bound, and what does not fit is dropped for it alone. Its numbers show it, and it asks anew.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use pointsman_core::ReservationId;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at, sleep};
use tracing::{debug, warn};

use super::listener::Listener;
use super::metrics::{Dropped, ReplicaMetrics};
use super::outbox::Outbox;
use super::owned::Piece;
use super::wire::{self, EVENTS, PEERS};

const HEARTBEAT: Duration = Duration::from_secs(1);
/// What comes within it leaves together: under load a wake, a write and a packet cost more than the event in them.
const REST: Duration = Duration::from_millis(1);
/// Events of one turn.
const TURN: usize = 256;
/// Pieces of snapshots of one turn: they are taken while nobody else can reserve.
const TURN_PIECES: usize = 4;
const RENEWED_IDS: usize = 1024;
const MAX_LISTENERS: usize = 1024;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long what waits is still sent when the service ends.
const FAREWELL: Duration = Duration::from_secs(1);
const FAREWELL_LOOK: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct Publisher {
    address: SocketAddr,
    listeners: Arc<Listeners>,
    outbox: Arc<Outbox>,
    tasks: [JoinHandle<()>; 2],
}

/// Whoever listens now.
#[derive(Debug)]
pub(super) struct Listeners {
    all: Mutex<BTreeMap<u64, Arc<Listener>>>,
    /// Rung when a snapshot is wanted, or there is room for more of one.
    bell: Notify,
    metrics: ReplicaMetrics,
}

impl Publisher {
    pub(super) async fn bind(port: u16) -> std::io::Result<TcpListener> {
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
    }

    pub(super) fn start(
        socket: TcpListener,
        outbox: &Arc<Outbox>,
        renewal: Duration,
        metrics: ReplicaMetrics,
    ) -> std::io::Result<Self> {
        let address = socket.local_addr()?;
        let listeners = Arc::new(Listeners {
            all: Mutex::default(),
            bell: Notify::new(),
            metrics,
        });
        let accepting = tokio::spawn(accept(socket, Arc::clone(&listeners)));
        let pump = Pump {
            outbox: Arc::clone(outbox),
            listeners: Arc::clone(&listeners),
            renewal: renewal.max(HEARTBEAT),
        };
        Ok(Self {
            address,
            listeners,
            outbox: Arc::clone(outbox),
            tasks: [accepting, tokio::spawn(pump.run())],
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until what was told is on its way, but not for long.
    pub(super) async fn flush(&self) {
        let deadline = Instant::now() + FAREWELL;
        let waits = || {
            !self.outbox.is_drained() || self.listeners.lock().values().any(|one| !one.is_drained())
        };
        while waits() && Instant::now() < deadline {
            sleep(FAREWELL_LOOK).await;
        }
    }

    /// Says no more, and closes every connection.
    pub(super) fn stop(&self) {
        for task in &self.tasks {
            task.abort();
        }
        for listener in self.listeners.lock().values() {
            listener.close();
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Listeners {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Listener>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Vec<Arc<Listener>> {
        self.lock().values().cloned().collect()
    }

    pub(super) fn ring(&self) {
        self.bell.notify_one();
    }

    fn send(&self, topic: &str, message: &Bytes, to: &[Arc<Listener>]) {
        for listener in to {
            if !listener.send(topic, message) {
                self.metrics.count_dropped(Dropped::SlowSubscriber);
            }
        }
    }
}

async fn accept(socket: TcpListener, listeners: Arc<Listeners>) {
    let mut next = 0_u64;
    loop {
        let (stream, address) = match socket.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "a peer's connection was not accepted");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if listeners.lock().len() >= MAX_LISTENERS {
            warn!(%address, "too many listeners, connection closed");
            continue;
        }
        next += 1;
        let (number, listener) = (next, Arc::new(Listener::default()));
        listeners.lock().insert(number, Arc::clone(&listener));
        let all = Arc::clone(&listeners);
        tokio::spawn(async move {
            all.metrics.subscribers.inc();
            let ended = listener.serve(stream, &all).await;
            all.metrics.subscribers.dec();
            all.lock().remove(&number);
            debug!(%address, ?ended, "listener gone");
        });
    }
}

/// The one who sends: events, then the pieces and heartbeats that are true behind them.
struct Pump {
    outbox: Arc<Outbox>,
    listeners: Arc<Listeners>,
    /// How often others are told which ids live.
    renewal: Duration,
}

impl Pump {
    async fn run(self) {
        let mut beat = interval(HEARTBEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut renewal = interval_at(Instant::now() + self.renewal, self.renewal);
        loop {
            let mut due = false;
            tokio::select! {
                () = self.outbox.rung() => {}
                () = self.listeners.bell.notified() => {}
                _ = beat.tick() => due = true,
                _ = renewal.tick() => self.renew(),
            }
            while self.turn(&mut due) {
                tokio::task::yield_now().await;
            }
            sleep(REST).await;
        }
    }

    /// Sends what is next; true where there is more.
    fn turn(&self, due: &mut bool) -> bool {
        let router_id = self.outbox.router_id;
        let listeners = self.listeners.now();
        let filling: Vec<_> = listeners
            .iter()
            .filter_map(|listener| Some((listener, listener.wants_piece()?)))
            .take(TURN_PIECES)
            .collect();
        let after: Vec<_> = filling.iter().map(|(_, after)| *after).collect();
        let batch = self.outbox.batch(TURN, &after, *due);
        if listeners.is_empty() {
            *due &= batch.heartbeat.is_none();
            return batch.more;
        }
        for event in &batch.events {
            let message = wire::event(router_id, event);
            self.listeners.send(EVENTS, &message, &listeners);
        }
        let mut more = batch.more || filling.len() == TURN_PIECES;
        for ((listener, after), piece) in filling.into_iter().zip(&batch.pieces) {
            more |= self.fill(listener, after, piece);
        }
        if let Some(heartbeat) = batch.heartbeat {
            let message = wire::heartbeat(router_id, heartbeat);
            self.listeners.send(PEERS, &message, &listeners);
            *due = false;
        }
        more
    }

    /// Sends a piece of a snapshot; true where the next may follow at once.
    fn fill(&self, listener: &Arc<Listener>, after: u64, piece: &Piece) -> bool {
        let message = wire::piece(self.outbox.router_id, piece);
        let next = (!piece.last).then_some(piece.through);
        if piece.last {
            self.listeners.metrics.snapshots_sent.inc();
            self.outbox.welcome();
        }
        listener.piece_sent(after, next);
        self.listeners
            .send(PEERS, &message, std::slice::from_ref(listener));
        listener.wants_piece().is_some()
    }

    fn renew(&self) {
        let ids: Vec<ReservationId> = self.outbox.take_renewed().into_iter().collect();
        let listeners = self.listeners.now();
        for ids in ids.chunks(RENEWED_IDS) {
            let message = wire::renewed(self.outbox.router_id, ids);
            self.listeners.send(PEERS, &message, &listeners);
        }
    }
}
