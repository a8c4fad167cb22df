//! The event side of one rank: numbers each batch, keeps the last ones for replay, sends them over ZMQ.
//! Never builds an event; the engine does.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use zeromq::{
    Endpoint, PubSocket, RouterSendHalf, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage,
};

use super::events::{self, Event, Form};
use super::fault::EventFaults;

/// Batches kept for replay, as in vLLM.
pub const REPLAY_BATCHES: usize = 10_000;
/// Batches on their way to the socket; beyond that they are lost, as at a socket's high-water mark.
const SEND_QUEUE: usize = 16_384;
/// Time for a subscriber to take one replay.
const REPLAY_DEADLINE: Duration = Duration::from_secs(30);
const END_OF_REPLAY: [u8; 8] = [0xff; 8];

#[derive(Clone, Debug)]
struct Batch {
    topic: Bytes,
    sequence: u64,
    payload: Bytes,
}

#[derive(Debug)]
enum Command {
    Send { batch: Batch, delay: Duration },
    Reopen,
}

#[derive(Debug, Default)]
struct Log {
    topic: Bytes,
    next: u64,
    kept: VecDeque<Batch>,
    held_back: Option<Batch>,
    faults: EventFaults,
    lost: u64,
}

/// Where the sockets of a rank listen.
#[derive(Clone, Debug)]
pub(super) struct Ports {
    pub(super) host: IpAddr,
    /// 0: any.
    pub(super) events: u16,
    /// 0: any.
    pub(super) replay: u16,
    pub(super) topic: String,
}

/// The numbered log of one rank's batches. What is published has its number at once, whenever it is sent.
#[derive(Debug)]
pub(super) struct Publisher {
    log: Arc<Mutex<Log>>,
    commands: mpsc::Sender<Command>,
    dp_rank: u32,
    form: Form,
    events_endpoint: String,
    replay_endpoint: String,
}

impl Publisher {
    /// Binds both sockets and serves them until `stop`.
    pub(super) async fn start(
        ports: &Ports,
        dp_rank: u32,
        form: Form,
        stop: CancellationToken,
    ) -> Result<Self, zeromq::ZmqError> {
        let log = Arc::new(Mutex::new(Log {
            topic: Bytes::from(ports.topic.clone()),
            ..Log::default()
        }));
        let mut events = PubSocket::new();
        let events_endpoint = events.bind(&address(ports.host, ports.events)).await?;
        let mut replay = RouterSocket::new();
        let replay_endpoint = replay.bind(&address(ports.host, ports.replay)).await?;
        let (commands, queue) = mpsc::channel(SEND_QUEUE);
        let sender = Sender {
            socket: Some(events),
            endpoint: events_endpoint.clone(),
        };
        let events_endpoint = dialable(&events_endpoint);
        tokio::spawn(sender.run(queue, stop.clone()));
        tokio::spawn(serve_replays(replay, Arc::clone(&log), stop));
        Ok(Self {
            log,
            commands,
            dp_rank,
            form,
            events_endpoint,
            replay_endpoint: dialable(&replay_endpoint),
        })
    }

    pub(super) fn events_endpoint(&self) -> &str {
        &self.events_endpoint
    }

    pub(super) fn replay_endpoint(&self) -> &str {
        &self.replay_endpoint
    }

    /// Number of the last batch; None before the first.
    pub(super) fn last_sequence(&self) -> Option<u64> {
        lock(&self.log).next.checked_sub(1)
    }

    /// Batches that never reached the socket because its queue was full.
    pub(super) fn lost(&self) -> u64 {
        lock(&self.log).lost
    }

    pub(super) fn publish(&self, events: &[Event]) {
        if events.is_empty() {
            return;
        }
        let payload = events::batch(events, self.dp_rank, self.form);
        let mut log = lock(&self.log);
        let delay = Duration::from_millis(log.faults.delay_ms.unwrap_or(0));
        for batch in log.append(payload) {
            let sent = self.commands.try_send(Command::Send { batch, delay });
            log.lost += u64::from(sent.is_err());
        }
    }

    pub(super) fn add_faults(&self, faults: &EventFaults, clear: bool) {
        let mut log = lock(&self.log);
        if clear {
            log.faults = EventFaults::default();
        }
        let now = &mut log.faults;
        now.gap = now.gap.saturating_add(faults.gap);
        now.drop = now.drop.saturating_add(faults.drop);
        now.duplicate = now.duplicate.saturating_add(faults.duplicate);
        now.reorder = now.reorder.saturating_add(faults.reorder);
        now.delay_ms = faults.delay_ms.or(now.delay_ms);
        if let Some(topic) = &faults.topic {
            now.topic = Some(topic.clone());
        }
    }

    /// A new process on the same port: subscribers are cut off, numbers begin at 0, nothing is kept for replay.
    pub(super) fn restart(&self) {
        let mut log = lock(&self.log);
        let before = std::mem::take(&mut *log);
        *log = Log {
            topic: before.topic,
            faults: before.faults,
            ..Log::default()
        };
        let told = self.commands.try_send(Command::Reopen);
        log.lost += u64::from(told.is_err());
    }
}

impl Log {
    /// Numbers and keeps a batch, and tells what is to be sent now under the faults asked for.
    fn append(&mut self, payload: Bytes) -> Vec<Batch> {
        self.next = self
            .next
            .saturating_add(std::mem::take(&mut self.faults.gap));
        let wrong = self.faults.topic.clone().map(Bytes::from);
        let batch = Batch {
            topic: wrong.unwrap_or_else(|| self.topic.clone()),
            sequence: self.next,
            payload,
        };
        self.next = self.next.saturating_add(1);
        if self.kept.len() >= REPLAY_BATCHES {
            self.kept.pop_front();
        }
        self.kept.push_back(batch.clone());
        let mut sent = Vec::with_capacity(2);
        if take_one(&mut self.faults.drop) {
            // Kept for replay only.
        } else if take_one(&mut self.faults.duplicate) {
            sent.extend([batch.clone(), batch]);
        } else if take_one(&mut self.faults.reorder) && self.held_back.is_none() {
            self.held_back = Some(batch);
            return sent;
        } else {
            sent.push(batch);
        }
        sent.extend(self.held_back.take());
        sent
    }

    fn kept_from(&self, first: u64) -> Vec<Batch> {
        let wanted = |batch: &&Batch| batch.sequence >= first;
        self.kept.iter().filter(wanted).cloned().collect()
    }
}

struct Sender {
    socket: Option<PubSocket>,
    endpoint: Endpoint,
}

impl Sender {
    async fn run(mut self, mut queue: mpsc::Receiver<Command>, stop: CancellationToken) {
        let serve = async {
            while let Some(command) = queue.recv().await {
                match command {
                    Command::Send { batch, delay } => self.send(batch, delay).await,
                    Command::Reopen => self.reopen().await,
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = serve => {}
        }
    }

    async fn send(&mut self, batch: Batch, delay: Duration) {
        if !delay.is_zero() {
            sleep(delay).await;
        }
        let Some(socket) = &mut self.socket else {
            return;
        };
        let frames = [
            batch.topic,
            Bytes::copy_from_slice(&batch.sequence.to_be_bytes()),
            batch.payload,
        ];
        if let Err(error) = socket.send(message(frames)).await {
            warn!(%error, "batch of kv events not sent");
        }
    }

    async fn reopen(&mut self) {
        self.socket = None;
        // The listener is closed by a task of the old socket; until it ran, the port is taken.
        for _ in 0..200 {
            let mut socket = PubSocket::new();
            if socket.bind(&self.endpoint.to_string()).await.is_ok() {
                self.socket = Some(socket);
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
        warn!(endpoint = %self.endpoint, "event port not free after a restart, no more events");
    }
}

async fn serve_replays(socket: RouterSocket, log: Arc<Mutex<Log>>, stop: CancellationToken) {
    let (mut replies, mut requests) = socket.split();
    loop {
        let request = tokio::select! {
            () = stop.cancelled() => return,
            request = requests.recv() => request,
        };
        let request = match request {
            Ok(request) => request.into_vec(),
            Err(error) => {
                warn!(%error, "replay socket lost");
                return;
            }
        };
        let [identity, _empty, first] = request.as_slice() else {
            debug!(frames = request.len(), "replay request of the wrong shape");
            continue;
        };
        let Ok(first) = <[u8; 8]>::try_from(first.as_ref()) else {
            debug!("replay request without a number of 8 bytes");
            continue;
        };
        let batches = lock(&log).kept_from(u64::from_be_bytes(first));
        let replay = send_replay(&mut replies, identity, batches);
        match timeout(REPLAY_DEADLINE, replay).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(%error, "replay not sent"),
            Err(_) => debug!("replay given up: the subscriber is too slow"),
        }
    }
}

async fn send_replay(
    replies: &mut RouterSendHalf,
    identity: &Bytes,
    batches: Vec<Batch>,
) -> Result<(), zeromq::ZmqError> {
    for batch in batches {
        let number = Bytes::copy_from_slice(&batch.sequence.to_be_bytes());
        let frames = [
            identity.clone(),
            Bytes::new(),
            batch.topic,
            number,
            batch.payload,
        ];
        replies.send(message(frames)).await?;
    }
    let number = Bytes::from_static(&END_OF_REPLAY);
    let frames = [
        identity.clone(),
        Bytes::new(),
        Bytes::new(),
        number,
        Bytes::new(),
    ];
    replies.send(message(frames)).await
}

fn message<const N: usize>(frames: [Bytes; N]) -> ZmqMessage {
    let mut frames = frames.into_iter();
    let mut message = ZmqMessage::from(frames.next().unwrap_or_default());
    for frame in frames {
        message.push_back(frame);
    }
    message
}

fn address(host: IpAddr, port: u16) -> String {
    match host {
        IpAddr::V4(host) => format!("tcp://{host}:{port}"),
        IpAddr::V6(host) => format!("tcp://[{host}]:{port}"),
    }
}

/// The endpoint as a peer dials it: an unspecified host is this machine.
fn dialable(endpoint: &Endpoint) -> String {
    let text = endpoint.to_string();
    text.replace("//0.0.0.0:", "//127.0.0.1:")
        .replace("//[::]:", "//[::1]:")
}

fn take_one(count: &mut u64) -> bool {
    let any = *count > 0;
    *count = count.saturating_sub(1);
    any
}

/// The log stays whole at every line, so a panic elsewhere while it was locked does no harm.
fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(faults: EventFaults, batches: usize) -> Vec<u64> {
        let mut log = Log {
            faults,
            ..Log::default()
        };
        let append = |_| log.append(Bytes::new());
        let sent = (0..batches).flat_map(append).map(|batch| batch.sequence);
        sent.collect()
    }

    #[test]
    fn batches_are_numbered_from_zero() {
        assert_eq!(sent(EventFaults::default(), 3), [0, 1, 2]);
    }

    #[test]
    fn a_gap_skips_numbers() {
        let faults = EventFaults {
            gap: 4,
            ..EventFaults::default()
        };
        assert_eq!(sent(faults, 2), [4, 5]);
    }

    #[test]
    fn a_duplicate_is_sent_twice() {
        let faults = EventFaults {
            duplicate: 1,
            ..EventFaults::default()
        };
        assert_eq!(sent(faults, 2), [0, 0, 1]);
    }

    #[test]
    fn a_reordered_batch_follows_the_next_one() {
        let faults = EventFaults {
            reorder: 1,
            ..EventFaults::default()
        };
        assert_eq!(sent(faults, 3), [1, 0, 2]);
    }

    #[test]
    fn a_dropped_batch_is_kept_for_replay() {
        let mut log = Log::default();
        log.faults.drop = 1;
        assert!(log.append(Bytes::from_static(b"first")).is_empty());
        assert_eq!(log.append(Bytes::new()).len(), 1);
        assert_eq!(log.kept_from(0)[0].payload, "first");
    }

    #[test]
    fn a_wrong_topic_stands_on_the_batches_that_follow() {
        let mut log = Log {
            topic: Bytes::from_static(b"kv@mine"),
            ..Log::default()
        };
        log.append(Bytes::new());
        log.faults.topic = Some("kv@other".to_owned());
        log.append(Bytes::new());
        let topics: Vec<&[u8]> = log.kept.iter().map(|batch| &batch.topic[..]).collect();
        assert_eq!(topics, [b"kv@mine" as &[u8], b"kv@other"]);
    }

    #[test]
    fn only_the_last_ten_thousand_batches_are_kept() {
        let mut log = Log::default();
        for _ in 0..=REPLAY_BATCHES {
            log.append(Bytes::new());
        }
        assert_eq!((log.kept.len(), log.kept[0].sequence), (REPLAY_BATCHES, 1));
    }
}
