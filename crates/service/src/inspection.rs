//! The part of the service's door that tells what is known of a prompt; it chooses and charges nothing.

use pointsman_core::{PartitionId, PotentialLoad, PromptOverlap, SelectionRequest};

use crate::error::SelectionServiceError;
use crate::service::SelectionService;

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

    /// How much of this prompt each rank of a partition has cached.
    pub fn overlap_scores(
        &self,
        partition: &PartitionId,
        request: &SelectionRequest,
    ) -> Result<PromptOverlap, SelectionServiceError> {
        let (partition, _) = self.partition(partition)?;
        Ok(partition.overlaps(request)?)
    }
}
