//! One task per event stream: connects, reads, hands frames to the stream's state and does what it
//! says. It reconnects with back-off for as long as its worker is registered.
//!
//! A stream has its own sockets and its own task, so a slow or dead engine delays no other. It
//! decides nothing about order or meaning.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::metrics::gauge::Gauge;
use tokio::time::{sleep, sleep_until, timeout};
use tracing::{debug, info, warn};

use super::ingest::{Ingest, Target};
use super::progress::RankProgress;
use super::replay::{Replay, Reply};
use super::skip::SkipReason;
use super::stream::{Action, Actions, ClearCause, Limits, ReplayEnd, Sight, Stream};
use super::supervise::BackOff;
use super::{EventsConfig, MAX_MESSAGE_BYTES, RankStream, wire};
use crate::metrics::{EventMetrics, ReplayOutcome};
use crate::recovery::Recovery;
use crate::workers::EventSource;
use crate::zmtp::{self, Connection, ConnectionError, Received, Role};

/// Payload after which a task lets others run, and what a batch costs beside its payload: one turn
/// stays well under half a millisecond.
const TURN_BYTES: usize = 64 << 10;
const BATCH_BYTES: usize = 256;

#[derive(Debug)]
pub(super) struct Subscriber {
    worker_id: u64,
    dp_rank: u32,
    source: EventSource,
    config: Arc<EventsConfig>,
    progress: Arc<RankProgress>,
    metrics: EventMetrics,
    recovery: Arc<Recovery>,
    stream: Stream,
    ingest: Ingest,
    replay: Option<Replay>,
    actions: Actions,
    /// Bytes applied in this turn.
    turn_bytes: usize,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parting {
    Lost,
    Silent,
}

#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("no connection within {0:?}")]
    Timeout(Duration),
    #[error(transparent)]
    Connection(#[from] ConnectionError),
}

impl Subscriber {
    pub(super) fn new(
        stream: RankStream,
        config: Arc<EventsConfig>,
        progress: Arc<RankProgress>,
        metrics: EventMetrics,
        recovery: Arc<Recovery>,
    ) -> Self {
        let RankStream {
            partition,
            worker_id,
            dp_rank,
            worker_ranks,
            source,
        } = stream;
        let limits = Limits {
            suspect: config.suspect_time,
            retry_min: config.replay_retry_min,
            retry_max: config.replay_retry_max,
            held_frames: config.held_batches,
            held_bytes: config.held_bytes,
        };
        let layout = partition.layout();
        let target = Target {
            partition,
            layout,
            worker_id,
            dp_rank,
            ranks: worker_ranks,
        };
        Self {
            worker_id,
            dp_rank,
            stream: Stream::new(source.replay.is_some(), limits),
            ingest: Ingest::new(target, Arc::clone(&progress), metrics.clone()),
            source,
            config,
            progress,
            metrics,
            recovery,
            replay: None,
            actions: Actions::new(),
            turn_bytes: 0,
        }
    }

    /// Runs until it is dropped.
    pub(super) async fn run(&mut self) {
        let _counted = Counted::in_gauge(&self.metrics.subscribers);
        if let Some(claim) = self.ingest.claim(&self.recovery) {
            // It may be large; events that come meanwhile are right whatever it says.
            tokio::task::spawn_blocking(|| claim.believe());
        }
        let mut back_off = BackOff::new(self.config.reconnect_min, self.config.reconnect_max);
        let mut lost_at = Instant::now();
        loop {
            match self.connect().await {
                Ok(connection) => {
                    let connected_at = Instant::now();
                    if self.serve(connection).await == Parting::Silent {
                        continue;
                    }
                    lost_at = Instant::now();
                    self.stream.disconnected(lost_at, &mut self.actions);
                    self.act().await;
                    if lost_at - connected_at > self.config.reconnect_max {
                        back_off.reset();
                    }
                }
                Err(error) => {
                    let (worker_id, dp_rank) = (self.worker_id, self.dp_rank);
                    debug!(worker_id, dp_rank, %error, "kv event publisher not reached");
                }
            }
            self.metrics.connection_failures.inc();
            if lost_at.elapsed() >= self.config.suspect_time {
                self.stream.unreachable(&mut self.actions);
                self.act().await;
            }
            sleep(back_off.pause()).await;
        }
    }

    async fn connect(&self) -> Result<Connection, ConnectError> {
        let limit = self.config.connect_timeout;
        let connected = timeout(limit, self.subscribe()).await;
        Ok(connected.map_err(|_| ConnectError::Timeout(limit))??)
    }

    async fn subscribe(&self) -> Result<Connection, ConnectionError> {
        let publisher = &self.source.publisher;
        let mut connection =
            Connection::open(publisher, Role::Subscriber, MAX_MESSAGE_BYTES).await?;
        connection.send(&zmtp::subscribe(b"")).await?;
        Ok(connection)
    }

    /// Reads a connection to its end.
    async fn serve(&mut self, mut connection: Connection) -> Parting {
        let (worker_id, dp_rank) = (self.worker_id, self.dp_rank);
        info!(worker_id, dp_rank, "kv event stream connected");
        let _connected = Connected::new(&self.progress, &self.metrics.connected);
        self.stream.connected(Instant::now(), &mut self.actions);
        self.act().await;
        let mut heard_at = Instant::now();
        let progress = Arc::clone(&self.progress);
        let mut unread = None;
        loop {
            self.note_unread(&mut unread);
            let wake_at = self.stream.wake_at();
            let silent_at = heard_at + self.config.silence;
            tokio::select! {
                received = connection.next(), if unread.is_none() => {
                    heard_at = Instant::now();
                    match received {
                        Ok(received) => self.hear(received),
                        Err(error) => {
                            warn!(worker_id, dp_rank, %error, "kv event stream lost");
                            break;
                        }
                    }
                }
                reply = next_reply(self.replay.as_mut()) => self.hear_replay(reply),
                () = progress.asked_to_read_again() => {
                    self.stream.read_again(Instant::now(), &mut self.actions);
                }
                () = sleep_until(wake_at.unwrap_or(silent_at).into()), if wake_at.is_some() => {
                    self.stream.woke(Instant::now(), &mut self.actions);
                }
                () = sleep_until(silent_at.into()), if self.source.replay.is_some() => {
                    debug!(worker_id, dp_rank, "kv event stream silent, reconnecting");
                    return Parting::Silent;
                }
            }
            self.act().await;
        }
        self.replay = None;
        Parting::Lost
    }

    /// Counts the stream for as long as its socket has to be left unread.
    fn note_unread(&self, unread: &mut Option<Counted>) {
        match (self.stream.is_holding_full(), unread.is_some()) {
            (true, false) => {
                self.metrics.full_holds.inc();
                *unread = Some(Counted::in_gauge(&self.metrics.unread));
            }
            (false, true) => *unread = None,
            _ => {}
        }
    }

    fn drop_doubted(&mut self) {
        let blocks = self.ingest.drop_doubted();
        if blocks > 0 {
            let (worker_id, dp_rank) = (self.worker_id, self.dp_rank);
            warn!(
                worker_id,
                dp_rank, blocks, "kv blocks forgotten that nothing confirmed"
            );
        }
    }

    fn hear(&mut self, received: Received) {
        let frame = wire::parts(received).and_then(|parts| wire::live_frame(&parts));
        match frame {
            Ok(frame) => self.stream.live(frame, Instant::now(), &mut self.actions),
            Err(error) => {
                self.metrics.bad_frames.inc();
                let (worker_id, dp_rank) = (self.worker_id, self.dp_rank);
                debug!(worker_id, dp_rank, %error, "kv event message dropped");
            }
        }
    }

    fn hear_replay(&mut self, reply: Reply) {
        let now = Instant::now();
        match reply {
            Reply::Frame(frame) if self.ingest.is_foreign(&frame.payload) => {
                self.metrics.count_skipped(SkipReason::OtherRank, 1);
                self.stream.replayed_foreign(frame.sequence);
            }
            Reply::Frame(frame) => self.stream.replayed(frame, now, &mut self.actions),
            Reply::End(end) => {
                self.replay = None;
                self.metrics.count_replay(match end {
                    ReplayEnd::Complete => ReplayOutcome::Complete,
                    ReplayEnd::Failed => ReplayOutcome::Failed,
                });
                self.stream.replay_ended(end, now, &mut self.actions);
            }
        }
    }

    /// Does what the stream's state asks for.
    async fn act(&mut self) {
        let (worker_id, dp_rank) = (self.worker_id, self.dp_rank);
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            match action {
                Action::Apply { frame, replayed } => {
                    self.ingest.apply(&frame, replayed);
                    self.turn_bytes += frame.payload.len() + BATCH_BYTES;
                    if self.turn_bytes > TURN_BYTES {
                        self.turn_bytes = 0;
                        tokio::task::yield_now().await;
                    }
                }
                Action::Clear(cause) => self.clear(cause),
                Action::Doubt => {
                    self.metrics.doubts.inc();
                    // What others said of the rank, and its engine never did, must not be trusted
                    // with the rest later.
                    self.drop_doubted();
                    self.ingest.doubt();
                }
                Action::Trust => self.ingest.trust(),
                Action::DropDoubted => self.drop_doubted(),
                Action::Replay { from } => {
                    debug!(worker_id, dp_rank, from, "kv event replay asked for");
                    self.metrics.count_replay(ReplayOutcome::Asked);
                    let endpoint = self.source.replay.clone();
                    self.replay = endpoint.map(|endpoint| {
                        Replay::start(endpoint, from, &self.config, self.metrics.clone())
                    });
                }
                Action::StopReplay => self.replay = None,
                Action::Saw(Sight::Gap) => {
                    self.metrics.gaps.inc();
                }
                Action::Saw(Sight::Duplicate) => {
                    self.metrics.duplicates.inc();
                }
            }
        }
        // Its capacity is used again; nothing was added meanwhile.
        self.actions = actions;
        self.progress.set_suspect(self.stream.is_suspect());
    }

    /// Forgets what this stream said.
    pub(super) fn clear(&mut self, cause: ClearCause) {
        let (worker_id, dp_rank) = (self.worker_id, self.dp_rank);
        self.metrics.count_clear(cause);
        warn!(
            worker_id,
            dp_rank,
            cause = cause.as_str(),
            "kv blocks of a rank forgotten"
        );
        self.ingest.clear();
    }

    /// Ends: what this stream said is nobody's any more.
    pub(super) fn leave(&mut self) {
        self.ingest.clear();
        self.progress.set_suspect(false);
    }
}

/// The next message of the replay under way; never, without one.
async fn next_reply(replay: Option<&mut Replay>) -> Reply {
    match replay {
        Some(replay) => replay.next().await,
        None => std::future::pending().await,
    }
}

/// One in a gauge for as long as it lives.
struct Counted(Gauge);

impl Counted {
    fn in_gauge(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

struct Connected {
    progress: Arc<RankProgress>,
    _counted: Counted,
}

impl Connected {
    fn new(progress: &Arc<RankProgress>, gauge: &Gauge) -> Self {
        progress.set_connected(true);
        Self {
            progress: Arc::clone(progress),
            _counted: Counted::in_gauge(gauge),
        }
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.progress.set_connected(false);
    }
}
