//! The part of the service's door that tells what is known of a prompt; it chooses and charges nothing.

use pointsman_core::{PartitionId, PotentialLoad, PromptOverlap, SelectionRequest};

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
