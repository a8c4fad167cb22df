//! What the audit counts; labels of ranks are there only while a rank is quarantined.

use std::sync::atomic::AtomicU64;

use pointsman_plugin::WorkerWithDpRank;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::rank::Comparison;
use crate::metrics::{Name, OutcomeLabels};

#[derive(Clone, Debug, Default)]
pub(crate) struct AuditMetrics {
    comparisons: Family<OutcomeLabels, Counter>,
    promised_tokens: Counter,
    delivered_tokens: Counter,
    shares: Family<RankLabels, Gauge<f64, AtomicU64>>,
    pub(super) quarantines: Counter,
    pub(super) restorations: Counter,
}

/// What became of one report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Agreed,
    Over,
    Under,
    /// It is about a prompt of another length than was selected for.
    OtherPrompt,
    /// What the rank holds was in doubt anyway.
    Doubted,
    /// The decision is older than what is now known of the rank.
    Stale,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RankLabels {
    worker_id: u64,
    dp_rank: u32,
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Agreed => "agreed",
            Self::Over => "over_predicted",
            Self::Under => "under_predicted",
            Self::OtherPrompt => "other_prompt",
            Self::Doubted => "doubted",
            Self::Stale => "stale",
        }
    }
}

impl AuditMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "cache_audit_comparisons",
            "Cached tokens that engines reported, compared with what was predicted, by outcome",
            self.comparisons.clone(),
        );
        registry.register(
            "cache_audit_promised_tokens",
            "Cached tokens that engines' events promised, of requests that were compared",
            self.promised_tokens.clone(),
        );
        registry.register(
            "cache_audit_delivered_tokens",
            "Of those, the tokens that engines reported as cached",
            self.delivered_tokens.clone(),
        );
        registry.register(
            "cache_audit_quarantines",
            "Quarantines of ranks, each with a new reading of the rank's cache",
            self.quarantines.clone(),
        );
        registry.register(
            "cache_audit_restorations",
            "Quarantines that ended",
            self.restorations.clone(),
        );
        registry.register(
            "cache_audit_overlap_share",
            "How much of the overlap of a quarantined rank counts",
            self.shares.clone(),
        );
    }

    pub(super) fn count(&self, outcome: Outcome) {
        let labels = OutcomeLabels {
            outcome: Name(outcome.as_str()),
        };
        self.comparisons.get_or_create(&labels).inc();
    }

    pub(super) fn add_tokens(&self, comparison: &Comparison) {
        self.promised_tokens.inc_by(comparison.promised);
        let delivered = comparison.reported.min(comparison.promised);
        self.delivered_tokens.inc_by(delivered);
    }

    /// `None` for a rank that is not quarantined.
    pub(super) fn set_share(&self, worker: WorkerWithDpRank, share: Option<f64>) {
        let labels = RankLabels {
            worker_id: worker.worker_id,
            dp_rank: worker.dp_rank,
        };
        match share {
            Some(share) => drop(self.shares.get_or_create(&labels).set(share)),
            None => drop(self.shares.remove(&labels)),
        }
    }
}
