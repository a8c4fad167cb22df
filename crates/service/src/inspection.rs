//! The part of the service's door that tells what is known of a prompt; it chooses and charges nothing.

use pointsman_core::{PartitionId, PotentialLoad, PromptOverlap, SelectionRequest};

use pointsman_plugin::WorkerWithDpRank;

use crate::error::SelectionServiceError;
use crate::service::SelectionService;
use crate::shared_cache::SharedCacheHits;

/// What of a prompt is cached where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlapScores {
    pub overlap: PromptOverlap,
    pub shared_cache: SharedCacheHits,
}

impl SelectionService {
    /// The load of every rank of a partition as it would be with this prompt on it.
    pub fn potential_loads(
        &self,
        partition: &PartitionId,
        request: &SelectionRequest,
    ) -> Result<Vec<PotentialLoad>, SelectionServiceError> {
        let (partition, _) = self.partition(partition)?;
        Ok(partition.potential_loads(request)?)
    }

    /// What is charged to a rank of a partition now; 0 where it is not known.
    pub(crate) fn active_prefill_tokens(
        &self,
        partition: &PartitionId,
        worker: WorkerWithDpRank,
    ) -> u64 {
        let snapshot = self.snapshot();
        let loads = snapshot.partitions.get(partition).map(|of| of.loads());
        let mut ranks = loads.unwrap_or_default().into_iter();
        let rank = ranks.find(|rank| rank.worker == worker);
        rank.map_or(0, |rank| rank.active_prefill_tokens)
    }

    /// How much of this prompt each rank of a partition has cached, and the cache that they share.
    pub async fn overlap_scores(
        &self,
        partition: &PartitionId,
        mut request: SelectionRequest,
    ) -> Result<OverlapScores, SelectionServiceError> {
        let (of, _) = self.partition(partition)?;
        let shared_cache = self.ask_shared_cache(partition, &mut request).await;
        Ok(OverlapScores {
            overlap: of.overlaps(&request)?,
            shared_cache,
        })
    }
}
