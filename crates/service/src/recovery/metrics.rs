//! What recovery counts; every label is from a closed set. It measures and never decides.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::metrics::Name;

#[derive(Clone, Debug, Default)]
pub(crate) struct RecoveryMetrics {
    peers: Family<PeerLabels, Counter>,
    blocks: Family<FateLabels, Counter>,
    pub(super) held: Gauge,
}

/// How asking a peer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerOutcome {
    Answered,
    /// A bound was met: what came before it is used.
    CutShort,
    Failed,
}

/// What became of a peer's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Applied,
    /// Their rank went meanwhile.
    Refused,
    BlockSize,
    /// Their rank was not registered in time, or has no events.
    Unclaimed,
    /// Given to the index, and dropped at the end of the suspect time.
    Unconfirmed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PeerLabels {
    outcome: Name,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FateLabels {
    fate: Name,
}

impl RecoveryMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "recovery_peers",
            "Peers asked for their index at start, by outcome",
            self.peers.clone(),
        );
        registry.register(
            "recovery_blocks",
            "Blocks of a peer's index by what became of them",
            self.blocks.clone(),
        );
        registry.register(
            "recovery_blocks_held",
            "Blocks of a peer's index that wait for their worker",
            self.held.clone(),
        );
    }

    pub(super) fn asked(&self, outcome: PeerOutcome) {
        let outcome = Name(match outcome {
            PeerOutcome::Answered => "answered",
            PeerOutcome::CutShort => "cut_short",
            PeerOutcome::Failed => "failed",
        });
        self.peers.get_or_create(&PeerLabels { outcome }).inc();
    }

    pub(super) fn count(&self, fate: Fate, blocks: usize) {
        let fate = Name(match fate {
            Fate::Applied => "applied",
            Fate::Refused => "refused",
            Fate::BlockSize => "block_size",
            Fate::Unclaimed => "unclaimed",
            Fate::Unconfirmed => "unconfirmed",
        });
        let blocks = u64::try_from(blocks).unwrap_or(u64::MAX);
        self.blocks
            .get_or_create(&FateLabels { fate })
            .inc_by(blocks);
    }
}
