//! What `/workers` shows of the audit of one rank; it judges nothing.

use std::fmt;
use std::time::Instant;

use serde::Serialize;
use utoipa::ToSchema;

use super::rank;

/// How the cached tokens that an engine reports compare with what its events promise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct RankAudit {
    /// Reports within a block of what was expected.
    pub agreed: u64,
    /// Reports of less than the engine's own events promised.
    pub over_predicted: u64,
    /// Reports of more than could be known of.
    pub under_predicted: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<RankQuarantine>,
}

/// A rank whose overlap does not count in full, because it did not deliver what its events promise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct RankQuarantine {
    pub reason: String,
    /// How much of its overlap counts, from 0 to 1.
    pub overlap_share: f64,
    pub seconds: u64,
    /// How often it was quarantined, or read again while it was, since it was last trusted for an hour.
    pub rounds: u32,
}

impl RankAudit {
    pub(super) fn of(rank: &rank::RankAudit, now: Instant) -> Self {
        let counts = rank.counts();
        let quarantine = rank.quarantine().map(|quarantine| RankQuarantine {
            reason: quarantine.evidence.to_string(),
            overlap_share: quarantine.evidence.share(),
            seconds: now.saturating_duration_since(quarantine.since).as_secs(),
            rounds: rank.rounds(),
        });
        Self {
            agreed: counts.agreed,
            over_predicted: counts.over,
            under_predicted: counts.under,
            quarantine,
        }
    }
}

impl fmt::Display for rank::Evidence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            comparisons,
            broken,
            promised,
            delivered,
        } = self;
        write!(
            formatter,
            "{broken} of {comparisons} responses reported less cached than the engine's events promise: {delivered} of {promised} tokens"
        )
    }
}
