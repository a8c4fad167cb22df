//! What replica synchronization counts. It measures and never decides.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::metrics::Name;

#[derive(Clone, Debug, Default)]
pub(crate) struct ReplicaMetrics {
    /// Replicas of ours that are heard.
    pub(super) live_peers: Gauge,
    /// Connections to peers, and of peers to us.
    pub(super) connected: Gauge,
    pub(super) subscribers: Gauge,
    pub(super) connection_failures: Counter,
    pub(super) mirrored: Gauge,
    pub(super) gaps: Counter,
    pub(super) snapshots_sent: Counter,
    pub(super) snapshots_applied: Counter,
    pub(super) deaths: Counter,
    pub(super) taken_over: Counter,
    pub(super) silent: Counter,
    dropped: Family<DroppedLabels, Counter>,
}

/// Why a message, or the load that it told of, was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dropped {
    Undecodable,
    Oversized,
    Affinity,
    UnknownPartition,
    BlockSize,
    UnknownWorker,
    UnknownRank,
    Duplicate,
    /// More than is kept of others.
    Full,
    /// Our own queue, before anything is sent.
    QueueFull,
    SlowSubscriber,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DroppedLabels {
    reason: Name,
}

impl ReplicaMetrics {
    pub(super) fn count_dropped(&self, reason: Dropped) {
        self.of(reason).inc();
    }

    fn of(&self, reason: Dropped) -> Counter {
        let name = match reason {
            Dropped::Undecodable => "undecodable",
            Dropped::Oversized => "oversized",
            Dropped::Affinity => "session_affinity",
            Dropped::UnknownPartition => "unknown_partition",
            Dropped::BlockSize => "block_size",
            Dropped::UnknownWorker => "unknown_worker",
            Dropped::UnknownRank => "unknown_rank",
            Dropped::Duplicate => "duplicate",
            Dropped::Full => "full",
            Dropped::QueueFull => "queue_full",
            Dropped::SlowSubscriber => "slow_subscriber",
        };
        let labels = DroppedLabels { reason: Name(name) };
        self.dropped.get_or_create_owned(&labels)
    }

    #[cfg(test)]
    pub(super) fn dropped(&self, reason: Dropped) -> u64 {
        self.of(reason).get()
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let gauges = [
            (
                "replica_live_peers",
                "Replicas of this product that are heard",
                &self.live_peers,
            ),
            (
                "replica_peer_connections",
                "Peers that are connected to",
                &self.connected,
            ),
            (
                "replica_subscribers",
                "Peers that listen here",
                &self.subscribers,
            ),
            (
                "replica_mirrored_reservations",
                "Reservations of other replicas",
                &self.mirrored,
            ),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        let counters = [
            (
                "replica_connection_failures",
                "Connections to peers that failed or broke",
                &self.connection_failures,
            ),
            (
                "replica_gaps",
                "Times that events of a peer were found missing",
                &self.gaps,
            ),
            (
                "replica_snapshots_sent",
                "Snapshots sent to peers",
                &self.snapshots_sent,
            ),
            (
                "replica_snapshots_applied",
                "Snapshots of peers applied",
                &self.snapshots_applied,
            ),
            (
                "replica_deaths",
                "Peers that were heard no more",
                &self.deaths,
            ),
            (
                "replica_reservations_taken_over",
                "Reservations taken over from peers that died",
                &self.taken_over,
            ),
            (
                "replica_reservations_silent",
                "Reservations of published peers freed because nothing was heard of them",
                &self.silent,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        registry.register(
            "replica_dropped",
            "Messages of replicas, or the load that they told of, not taken",
            self.dropped.clone(),
        );
    }
}
