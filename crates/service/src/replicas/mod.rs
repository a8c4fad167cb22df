//! Replicas tell each other of the load that they hold, so that each chooses by what all of them did.
//!
//! The layers, each blind to the next: bytes (`wire`, over `zmtp`), what this replica holds (`owned`, behind
//! `outbox`), what the others hold (`mirror`), sockets (`publisher`, `listener`, `subscriber`). Nothing here waits on
//! the way of a request, and no message of a peer makes a worker.

mod door;
mod listener;
mod metrics;
mod mirror;
mod outbox;
mod owned;
mod peers;
mod publisher;
mod record;
mod subscriber;
mod wire;

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use pointsman_core::{Charge, ChargeHandle, PartitionId, Reservation, SelectError};
use tokio::net::TcpListener;
use tracing::{info, warn};

use crate::error::SelectionServiceError;
use crate::reservation::Reservation as Told;
use crate::service::Shared;
use metrics::Dropped;
use mirror::{Action, Actions, Limits, LinkId, Mirror, Own, OwnChange, Takeover};
use outbox::Outbox;
use owned::New;
use peers::{Peers, Refused};
use publisher::Publisher;
use record::{Key, Record, told_hashes};
use subscriber::Subscriber;
use wire::Heard;

pub(crate) use metrics::ReplicaMetrics;
pub(crate) use outbox::{PrefillLine, Teller};
pub(crate) use record::HeldBy;

/// A replica of ours says something each second; after this it is dead.
const DEAD_AFTER: Duration = Duration::from_secs(10);
/// How long a reservation of a published peer is believed without a word of it.
const PUBLISHED_SILENCE: Duration = Duration::from_mins(5);
const MAX_ORIGINS: usize = 4096;
/// Others are told this often in a silence which ids live.
const RENEWALS_PER_SILENCE: u32 = 8;

/// Where this replica tells of its load, and what it keeps of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplicaConfig {
    /// 0 for any that is free.
    pub(crate) port: u16,
    /// Reservations of others that are kept.
    pub(crate) max_reservations: usize,
    /// After which a reservation that is known by its id alone is over.
    pub(crate) silence: Duration,
}

/// This replica among the others.
#[derive(Debug)]
pub(crate) struct Replicas {
    outbox: Arc<Outbox>,
    mirror: Mutex<Mirror<Reservation>>,
    peers: Peers,
    publisher: Publisher,
    metrics: ReplicaMetrics,
    workers_changed: AtomicBool,
}

/// What was chosen for a request, to be told.
#[derive(Debug)]
pub(crate) struct Booking<'a> {
    pub(crate) partition: &'a PartitionId,
    pub(crate) block_size: u32,
    pub(crate) charge: &'a Charge,
    pub(crate) expected_output_tokens: Option<u32>,
    pub(crate) lora_name: Option<&'a str>,
    pub(crate) held_by: HeldBy,
}

/// A reservation of another replica, as it is counted here.
#[derive(Debug)]
pub(crate) enum Mirrored {
    Charged(ChargeHandle),
    /// Its worker is not known here.
    Uncharged,
}

impl Replicas {
    pub(crate) async fn bind(port: u16) -> Result<TcpListener, SelectionServiceError> {
        let bound = Publisher::bind(port).await;
        bound.map_err(|source| SelectionServiceError::ReplicaPort { port, source })
    }

    /// Tells from now on; follows nobody yet.
    pub(crate) fn new(
        config: &ReplicaConfig,
        socket: TcpListener,
        metrics: ReplicaMetrics,
    ) -> Result<Self, SelectionServiceError> {
        let router_id = router_id();
        let outbox = Arc::new(Outbox::new(router_id, metrics.clone()));
        let limits = Limits {
            max_reservations: config.max_reservations,
            max_origins: MAX_ORIGINS,
            dead_after: DEAD_AFTER,
            published_silence: PUBLISHED_SILENCE,
        };
        let renewal = config.silence / RENEWALS_PER_SILENCE;
        let publisher = Publisher::start(socket, &outbox, renewal, metrics.clone());
        let publisher = publisher.map_err(|source| SelectionServiceError::ReplicaPort {
            port: config.port,
            source,
        })?;
        let address = publisher.address();
        warn!(
            %address,
            "replicas are told of load without authentication: whoever reaches this port reads it, and whoever \
             answers at a peer's address can move it; keep both inside a trusted network"
        );
        Ok(Self {
            outbox,
            mirror: Mutex::new(Mirror::new(router_id, limits, metrics.clone())),
            peers: Peers::default(),
            publisher,
            metrics,
            workers_changed: AtomicBool::new(false),
        })
    }

    /// Where others listen.
    pub(crate) fn address(&self) -> SocketAddr {
        self.publisher.address()
    }

    /// Follows a peer. False where it is followed already.
    pub(crate) fn register(
        &self,
        endpoint: &str,
        service: Weak<Shared>,
    ) -> Result<bool, SelectionServiceError> {
        check_endpoint(endpoint)?;
        let metrics = self.metrics.clone();
        let added = self.peers.add(endpoint, |link, ask| {
            let subscriber = Subscriber {
                endpoint: endpoint.to_owned(),
                link,
                ask,
                service,
                metrics,
            };
            tokio::spawn(subscriber.run())
        });
        match added {
            Ok(()) => {
                info!(endpoint, "peer registered");
                Ok(true)
            }
            Err(Refused::Known) => Ok(false),
            Err(Refused::Unavailable) => Err(SelectionServiceError::PeersUnavailable),
        }
    }

    /// Follows a peer no more. False where it was not followed.
    pub(crate) fn deregister(&self, endpoint: &str) -> bool {
        let Some(link) = self.peers.remove(endpoint) else {
            return false;
        };
        info!(endpoint, "peer deregistered");
        self.unlink(link);
        true
    }

    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.peers.endpoints()
    }

    /// Tells the others of a reservation that was made.
    pub(crate) fn tell(&self, reservation: &Reservation, booking: &Booking<'_>) -> Teller {
        let id = reservation.id();
        let record = Record {
            partition: booking.partition.clone(),
            block_size: booking.block_size,
            id: id.clone(),
            worker: reservation.worker(),
            hashes: told_hashes(booking.charge, id),
            prefill_tokens: booking.charge.prefill_tokens,
            expected_output_tokens: booking.expected_output_tokens,
            lora_name: booking.lora_name.map(str::to_owned),
            held_by: booking.held_by,
        };
        self.outbox.add(New {
            record: Arc::new(record),
            handle: reservation.handle(),
            silent: Duration::ZERO,
            from: None,
        })
    }

    /// Whether another replica holds the id.
    pub(crate) fn holds(&self, id: &str) -> bool {
        self.lock().holds(id)
    }

    /// A client's call was heard of an id that is held here.
    pub(crate) fn renew(&self, id: &str, now: Instant) {
        self.outbox.renew(id, now);
    }

    /// The load of a reservation that another replica made, heard of now. `None` where there is no
    /// such.
    pub(crate) fn call(&self, id: &str, now: Instant) -> Option<Mirrored> {
        let mut mirror = self.lock();
        let key = mirror.called_on(id, now)?;
        let handle = mirror.held(key).map(Reservation::handle);
        drop(mirror);
        self.outbox.renew(id, now);
        Some(handle.map_or(Mirrored::Uncharged, Mirrored::Charged))
    }

    pub(crate) fn complete_prefill(&self, shared: &Shared, id: &str, now: Instant) {
        let mut out = Vec::new();
        self.lock().complete_prefill(id, now, &mut out);
        self.act(shared, out);
    }

    /// Frees what other replicas hold by an id. False where they hold nothing.
    pub(crate) fn free(&self, shared: &Shared, id: &str, now: Instant) -> bool {
        let mut out = Vec::new();
        let freed = self.lock().free(id, now, &mut out);
        self.act(shared, out);
        freed
    }

    /// The load of these workers is gone with them.
    pub(crate) fn orphan(&self, worker_ids: &BTreeSet<u64>) {
        let released = self.lock().orphan(worker_ids);
        drop(released);
    }

    /// What could not be charged is tried again, soon.
    pub(crate) fn workers_changed(&self) {
        self.workers_changed.store(true, Ordering::Relaxed);
    }

    /// Ends what is over by time, and does what waits.
    pub(crate) fn tick(&self, shared: &Shared, now: Instant) {
        if self.workers_changed.swap(false, Ordering::Relaxed) {
            let mut waiting = self.lock().take_uncharged();
            self.repeat(shared, |mirror, out| mirror.retry(&mut waiting, out));
        }
        if self.outbox.has_newcomers() {
            // Whoever just began to listen may own what was called on before.
            let soon = Duration::from_millis(1);
            self.repeat(shared, |mirror, out| mirror.repeat_calls(now, soon, out));
        }
        self.repeat(shared, |mirror, out| mirror.tick(now, out));
    }

    /// Says no more, and waits until what was said is sent. Reservations of this replica that are
    /// known by id live on in the others.
    pub(crate) async fn stop(&self) {
        self.outbox.close();
        self.peers.close();
        self.publisher.flush().await;
        self.publisher.stop();
    }

    fn hear(&self, shared: &Shared, link: LinkId, heard: Heard, now: Instant) {
        let mut out = Vec::new();
        self.lock().hear(link, heard, now, &mut out);
        self.act(shared, out);
    }

    fn unlink(&self, link: LinkId) {
        self.lock().unlink(link);
    }

    /// One turn after the other, the lock let go between them.
    fn repeat(
        &self,
        shared: &Shared,
        mut turn: impl FnMut(&mut Mirror<Reservation>, &mut Actions<Reservation>) -> bool,
    ) {
        loop {
            let mut out = Vec::new();
            let more = turn(&mut self.lock(), &mut out);
            self.act(shared, out);
            if !more {
                return;
            }
        }
    }

    /// Does what the mirror says. No lock is held while load is charged or freed.
    fn act(&self, shared: &Shared, actions: Actions<Reservation>) {
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Charge(key, record) => actions.extend(self.charge(shared, key, &record)),
                Action::CompletePrefill(key) => {
                    let handle = self.lock().held(key).map(Reservation::handle);
                    if let Some(handle) = handle {
                        handle.prefill_complete();
                    }
                }
                Action::Release(reservation) => drop(reservation),
                Action::Own(own, change) => self.change_own(shared, &own, change),
                Action::Tell(record, change) => self.outbox.tell_of(record, change),
                Action::Ask(link) => self.peers.ask(link),
                Action::TakeOver(takeover) => self.take_over(shared, takeover),
                Action::GiveBack { origin } => actions.extend(self.give_back(shared, origin)),
                Action::RenewOwn(id) => {
                    let now = Instant::now();
                    self.outbox.heard(id.as_str(), now);
                    shared.reservations.hear(id.as_str(), now);
                }
            }
        }
    }

    fn charge(&self, shared: &Shared, key: Key, record: &Record) -> Actions<Reservation> {
        let outcome = charged(shared, record);
        let mut out = Vec::new();
        let unwanted = self.lock().charged(key, outcome, &mut out);
        drop(unwanted);
        out
    }

    /// A call of another replica's client on what is held here. Its owner's drop will find it gone.
    fn change_own(&self, shared: &Shared, own: &Own, change: OwnChange) {
        let seq = match own {
            Own::Numbered(seq) => Some(*seq),
            Own::Named(id, worker) => self.outbox.number_of(id.as_str(), *worker),
        };
        let known = seq.and_then(|seq| Some((seq, self.outbox.numbered(seq)?)));
        let Some((seq, (record, handle))) = known else {
            return;
        };
        let id = record.id.as_str();
        match change {
            OwnChange::PrefillCompleted => {
                let now = Instant::now();
                self.outbox.heard(id, now);
                shared.reservations.hear(id, now);
                handle.prefill_complete();
                self.outbox.complete_prefill(seq);
            }
            OwnChange::Free => {
                if record.held_by == HeldBy::Id {
                    shared.reservations.free(id);
                }
                handle.release();
                self.outbox.free(seq);
            }
        }
    }

    fn take_over(&self, shared: &Shared, takeover: Takeover<Reservation>) {
        let Takeover {
            key,
            record,
            held,
            prefill_completed,
            heard_at,
        } = takeover;
        // An id that is held here too is charged already, or about to be.
        let Ok(claim) = shared.reservations.claim(record.id.as_str(), heard_at) else {
            self.lock().left(key);
            return;
        };
        let mut record = Record::clone(&record);
        if prefill_completed {
            record.prefill_tokens = 0;
        }
        let teller = self.outbox.add(New {
            record: Arc::new(record),
            handle: held.handle(),
            silent: heard_at.elapsed(),
            from: Some(key.origin),
        });
        if prefill_completed {
            teller.complete_prefill();
        }
        self.metrics.taken_over.inc();
        let (id, seq) = (claim.id().clone(), teller.seq());
        claim.fulfil(Told::told(held, teller), None, heard_at);
        // From here on its id is found among our own: until here, in the mirror.
        // Either side's clients may have freed it meanwhile.
        if self.lock().left(key) || self.outbox.numbered(seq).is_none() {
            shared.reservations.free(id.as_str());
        }
    }

    fn give_back(&self, shared: &Shared, origin: u64) -> Actions<Reservation> {
        let mut out = Vec::new();
        for id in self.outbox.taken_from(origin) {
            shared.reservations.free(id.as_str());
            self.lock().promote(id.as_str(), &mut out);
        }
        out
    }

    fn lock(&self) -> MutexGuard<'_, Mirror<Reservation>> {
        self.mirror.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Replicas {
    /// Before the reservations: what ends with this process ends without a word.
    fn drop(&mut self) {
        self.outbox.close();
    }
}

/// Charges what another replica holds to the rank that it names, if all of that is known here.
fn charged(shared: &Shared, record: &Record) -> Result<Reservation, Dropped> {
    let partition = shared.partition(&record.partition);
    let partition = partition.ok_or(Dropped::UnknownPartition)?;
    if partition.layout().block_size.get() != record.block_size {
        return Err(Dropped::BlockSize);
    }
    let charged = partition.reserve(record.worker, record.charge(), record.id.clone());
    charged.map_err(|error| match error {
        SelectError::DuplicateReservation { .. } => Dropped::Duplicate,
        _ if shared.knows(record.worker.worker_id) => Dropped::UnknownRank,
        _ => Dropped::UnknownWorker,
    })
}

/// Whether a replica can be followed there: `tcp://host:port`.
pub fn check_endpoint(endpoint: &str) -> Result<(), SelectionServiceError> {
    let address = endpoint.strip_prefix("tcp://").unwrap_or_default();
    let good = address.rsplit_once(':').is_some_and(|(host, port)| {
        let bracketed = host.starts_with('[') && host.ends_with(']');
        !host.is_empty()
            && !host.contains(['/', ' '])
            && (bracketed || !host.contains(':'))
            && port.parse::<u16>().is_ok()
    });
    if good {
        return Ok(());
    }
    Err(SelectionServiceError::BadPeer {
        endpoint: endpoint.to_owned(),
    })
}

/// Random, and never 0.
fn router_id() -> u64 {
    loop {
        let (id, _) = uuid::Uuid::new_v4().as_u64_pair();
        if id != 0 {
            return id;
        }
    }
}

#[cfg(test)]
mod tests;
