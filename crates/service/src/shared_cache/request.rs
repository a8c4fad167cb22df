//! What a decision learns of the shared cache: its prompt is hashed, asked for and annotated; it chooses nothing.

use pointsman_core::hash::{HashLayout, HashSeed, prompt_hashes};
use pointsman_core::{PartitionId, Prompt, SelectionRequest};

use super::SharedCacheHits;
use crate::service::SelectionService;

impl SelectionService {
    /// Learns which blocks of the request a shared cache has, where there is one and nobody has said so yet. The
    /// prompt is hashed for it, and not again for the decision.
    pub(crate) async fn ask_shared_cache(
        &self,
        partition: &PartitionId,
        request: &mut SelectionRequest,
    ) -> SharedCacheHits {
        let Some(cache) = &self.shared().cache else {
            return SharedCacheHits::default();
        };
        if let Ok((partition, _)) = self.partition(partition)
            && request.shared_hits.is_empty()
        {
            hash_prompt(request, partition.layout());
        } else {
            return SharedCacheHits::default();
        }
        let hits = match &request.prompt {
            Prompt::Hashes { block_hashes, .. } if !block_hashes.is_empty() => {
                cache.hits(block_hashes).await
            }
            _ => SharedCacheHits {
                enabled: true,
                ..SharedCacheHits::default()
            },
        };
        request.shared_hits.clone_from(&hits.ranges);
        hits
    }
}

/// The same prompt, as hashes.
fn hash_prompt(request: &mut SelectionRequest, layout: HashLayout) {
    let Prompt::Tokens { ids, media } = &request.prompt else {
        return;
    };
    let seed = HashSeed::new(request.lora_name.as_deref(), request.cache_salt.as_deref());
    let hashes = prompt_hashes(ids, layout, seed, media);
    request.prompt = Prompt::Hashes {
        block_hashes: hashes.block_hashes,
        sequence_hashes: hashes.sequence_hashes,
        isl_tokens: request.prompt.isl_tokens(),
    };
}
