//! What this crate counts, in one struct that is registered once; every label is from a closed set.
//!
//! It measures and never decides.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::audit::AuditMetrics;
use crate::events::{ClearCause, SkipReason};
use crate::indexed::IndexMetrics;
use crate::pending::PendingMetrics;
use crate::predictions::PredictionMetrics;
use crate::recovery::RecoveryMetrics;
use crate::replicas::ReplicaMetrics;
use crate::reservations::ReservationMetrics;
use crate::shared_cache::SharedCacheMetrics;
use crate::workers::Lifecycle;

/// The counters of one service. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct SelectionMetrics {
    selections: Family<OutcomeLabels, Counter>,
    pub(crate) reservations: Counter,
    workers: Family<LifecycleLabels, Gauge>,
    pub(crate) events: EventMetrics,
    pub(crate) pending: PendingMetrics,
    pub(crate) by_id: ReservationMetrics,
    pub(crate) predictions: PredictionMetrics,
    pub(crate) index: IndexMetrics,
    pub(crate) recovery: RecoveryMetrics,
    pub(crate) shared_cache: SharedCacheMetrics,
    pub(crate) audit: AuditMetrics,
    pub(crate) replicas: ReplicaMetrics,
}

/// The part that the event subscribers count.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventMetrics {
    pub(crate) batches: Counter,
    pub(crate) replayed_batches: Counter,
    pub(crate) bad_batches: Counter,
    pub(crate) bad_frames: Counter,
    pub(crate) duplicates: Counter,
    pub(crate) gaps: Counter,
    pub(crate) doubts: Counter,
    pub(crate) unknown_fields: Counter,
    pub(crate) failures: Counter,
    pub(crate) subscribers: Gauge,
    pub(crate) connected: Gauge,
    pub(crate) unread: Gauge,
    pub(crate) waiting_pieces: Gauge,
    pub(crate) full_holds: Counter,
    pub(crate) connection_failures: Counter,
    applied: Family<KindLabels, Counter>,
    skipped: Family<SkipLabels, Counter>,
    clears: Family<ClearLabels, Counter>,
    replays: Family<ReplayLabels, Counter>,
}

/// What an applied event did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EventKind {
    Stored,
    /// Stored, once its parent is.
    Waiting,
    Removed,
    Cleared,
}

impl EventKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Waiting => "waiting",
            Self::Removed => "removed",
            Self::Cleared => "cleared",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ReplayOutcome {
    Asked,
    Complete,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OutcomeLabels {
    pub(crate) outcome: Name,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LifecycleLabels {
    lifecycle: Name,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: Name,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SkipLabels {
    reason: Name,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClearLabels {
    cause: Name,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReplayLabels {
    outcome: Name,
}

/// A label value fixed in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name(pub(crate) &'static str);

impl EncodeLabelValue for Name {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.0.encode(encoder)
    }
}

impl SelectionMetrics {
    /// Makes the metrics and registers each; call once per registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "selections",
            "Selections by outcome",
            metrics.selections.clone(),
        );
        registry.register(
            "reservations",
            "Selections that reserved load",
            metrics.reservations.clone(),
        );
        registry.register(
            "workers",
            "Registered workers by lifecycle",
            metrics.workers.clone(),
        );
        metrics.events.register(registry);
        metrics.pending.register(registry);
        metrics.by_id.register(registry);
        metrics.predictions.register(registry);
        metrics.index.register(registry);
        metrics.recovery.register(registry);
        metrics.shared_cache.register(registry);
        metrics.audit.register(registry);
        metrics.replicas.register(registry);
        metrics
    }

    pub(crate) fn count_selection(&self, outcome: &'static str) {
        self.selections
            .get_or_create(&OutcomeLabels {
                outcome: Name(outcome),
            })
            .inc();
    }

    pub(crate) fn set_workers(&self, count_of: impl Fn(Lifecycle) -> usize) {
        for lifecycle in Lifecycle::ALL {
            let labels = LifecycleLabels {
                lifecycle: Name(lifecycle.as_str()),
            };
            let count = i64::try_from(count_of(lifecycle)).unwrap_or(i64::MAX);
            self.workers.get_or_create(&labels).set(count);
        }
    }
}

impl EventMetrics {
    fn register(&self, registry: &mut Registry) {
        for (name, help, counter) in self.counters() {
            registry.register(name, help, counter.clone());
        }
        registry.register(
            "kv_event_subscribers",
            "Event subscribers",
            self.subscribers.clone(),
        );
        registry.register(
            "kv_event_subscribers_connected",
            "Event subscribers that are connected",
            self.connected.clone(),
        );
        registry.register(
            "kv_event_streams_unread",
            "Event streams whose live batches stay in the socket, because as many as may wait behind a replay do",
            self.unread.clone(),
        );
        registry.register(
            "kv_event_waiting_pieces",
            "Small engine blocks that wait for their parent before they are joined",
            self.waiting_pieces.clone(),
        );
        registry.register(
            "kv_events_applied",
            "KV events applied by kind",
            self.applied.clone(),
        );
        registry.register(
            "kv_events_skipped",
            "KV events left out by reason",
            self.skipped.clone(),
        );
        registry.register(
            "kv_rank_clears",
            "Ranks forgotten by cause",
            self.clears.clone(),
        );
        registry.register(
            "kv_event_replays",
            "Replays by outcome",
            self.replays.clone(),
        );
    }

    fn counters(&self) -> [(&'static str, &'static str, &Counter); 11] {
        [
            (
                "kv_event_batches",
                "Batches of KV events applied",
                &self.batches,
            ),
            (
                "kv_event_replayed_batches",
                "Batches applied from a replay",
                &self.replayed_batches,
            ),
            (
                "kv_event_bad_batches",
                "Batches dropped because they do not decode",
                &self.bad_batches,
            ),
            (
                "kv_event_bad_frames",
                "Messages dropped for their frames",
                &self.bad_frames,
            ),
            (
                "kv_event_duplicates",
                "Batches that came again",
                &self.duplicates,
            ),
            ("kv_event_gaps", "Gaps seen in event streams", &self.gaps),
            (
                "kv_event_unknown_fields",
                "Fields of KV events and batches that were passed over, having no name here",
                &self.unknown_fields,
            ),
            (
                "kv_rank_doubts",
                "Times that all blocks of a rank became suspect",
                &self.doubts,
            ),
            (
                "kv_event_full_holds",
                "Times that an event stream was left unread behind a replay",
                &self.full_holds,
            ),
            (
                "kv_event_stream_failures",
                "Event streams that panicked and were begun anew",
                &self.failures,
            ),
            (
                "kv_event_connection_failures",
                "Connections to event publishers that failed or broke",
                &self.connection_failures,
            ),
        ]
    }

    pub(crate) fn count_applied(&self, kind: EventKind) {
        let labels = KindLabels {
            kind: Name(kind.as_str()),
        };
        self.applied.get_or_create(&labels).inc();
    }

    pub(crate) fn count_skipped(&self, reason: SkipReason, count: u32) {
        let labels = SkipLabels {
            reason: Name(reason.as_str()),
        };
        self.skipped.get_or_create(&labels).inc_by(u64::from(count));
    }

    pub(crate) fn count_clear(&self, cause: ClearCause) {
        self.clears
            .get_or_create(&ClearLabels {
                cause: Name(cause.as_str()),
            })
            .inc();
    }

    pub(crate) fn count_replay(&self, outcome: ReplayOutcome) {
        let name = match outcome {
            ReplayOutcome::Asked => "asked",
            ReplayOutcome::Complete => "complete",
            ReplayOutcome::Failed => "failed",
        };
        self.replays
            .get_or_create(&ReplayLabels {
                outcome: Name(name),
            })
            .inc();
    }

    #[cfg(test)]
    pub(crate) fn applied(&self, kind: EventKind) -> u64 {
        let labels = KindLabels {
            kind: Name(kind.as_str()),
        };
        self.applied.get_or_create(&labels).get()
    }

    #[cfg(test)]
    pub(crate) fn skipped(&self, reason: SkipReason) -> u64 {
        self.skipped
            .get_or_create(&SkipLabels {
                reason: Name(reason.as_str()),
            })
            .get()
    }
}
