//! The prompt of a request in its three forms: tokens with media, tokens, hashes.
//!
//! It hashes nothing: that is the partition's part.

use pointsman_core::Prompt;
use pointsman_core::hash::{BlockHash, SequenceHash};
use serde::Deserialize;

use super::json::{JsonError, ListOf, Lists, Object};

pub(super) const LISTS: Lists = &[
    ("token_ids", ListOf::Tokens),
    ("block_hashes", ListOf::Hashes),
    ("sequence_hashes", ListOf::Hashes),
];
const MEDIA_LISTS: Lists = &[("routing_token_ids", ListOf::Tokens)];

/// Which hashes a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Of blocks and of sequences.
    BothHashes,
    /// Nothing is looked up: those of sequences will do.
    SequenceHashes,
}

/// The prompt as hashes, or what there is of it.
#[derive(Debug)]
struct HashForm {
    block_hashes: Option<Vec<u64>>,
    sequence_hashes: Option<Vec<u64>>,
    isl_tokens: Option<u64>,
}

/// Reads the prompt: the first form that is there wins. What is wrong in another form is told all the
/// same.
pub(super) fn read(object: &mut Object<'_>, wanted: Wanted) -> Result<Prompt, JsonError> {
    let media = object.get::<Vec<Option<BlockMedia>>>("block_mm_infos")?;
    let with_media = with_media(object)?;
    let ids = object.tokens("token_ids")?;
    let hashes = HashForm {
        block_hashes: object.hashes("block_hashes")?,
        sequence_hashes: object.hashes("sequence_hashes")?,
        isl_tokens: object.get("isl_tokens")?,
    };
    match (with_media, ids) {
        (Some(prompt), _) => Ok(prompt),
        (None, Some(ids)) => Ok(Prompt::Tokens {
            ids,
            media: hashes_of(media),
        }),
        (None, None) => hashes.prompt(object, wanted),
    }
}

fn with_media(object: &Object<'_>) -> Result<Option<Prompt>, JsonError> {
    let Some(mut info) = object.object("mm_routing_info", MEDIA_LISTS)? else {
        return Ok(None);
    };
    let media = info.get::<Vec<Option<BlockMedia>>>("block_mm_infos")?;
    let ids = info.tokens("routing_token_ids")?;
    Ok(ids.filter(|ids| !ids.is_empty()).map(|ids| Prompt::Tokens {
        ids,
        media: hashes_of(media),
    }))
}

impl HashForm {
    fn prompt(self, object: &Object<'_>, wanted: Wanted) -> Result<Prompt, JsonError> {
        let missing = |name| Err(object.bad(name, "is required without token_ids"));
        let block_hashes = match (self.block_hashes, wanted) {
            (Some(hashes), _) => hashes,
            (None, Wanted::BothHashes) => return missing("block_hashes"),
            (None, Wanted::SequenceHashes) => Vec::new(),
        };
        let Some(sequence_hashes) = self.sequence_hashes else {
            return missing("sequence_hashes");
        };
        let Some(isl_tokens) = self.isl_tokens else {
            return missing("isl_tokens");
        };
        if wanted == Wanted::BothHashes && block_hashes.len() != sequence_hashes.len() {
            let reason = format!(
                "length {} must match sequence_hashes length {}",
                block_hashes.len(),
                sequence_hashes.len()
            );
            return Err(object.bad("block_hashes", reason));
        }
        if isl_tokens == 0 && !sequence_hashes.is_empty() {
            return Err(object.bad("isl_tokens", "must be greater than 0"));
        }
        Ok(Prompt::Hashes {
            block_hashes: block_hashes.into_iter().map(BlockHash).collect(),
            sequence_hashes: sequence_hashes.into_iter().map(SequenceHash).collect(),
            isl_tokens,
        })
    }
}

/// The media of one block.
#[derive(Deserialize)]
struct BlockMedia {
    mm_objects: Vec<MediaObject>,
}

#[derive(Deserialize)]
struct MediaObject {
    mm_hash: u64,
}

fn hashes_of(media: Option<Vec<Option<BlockMedia>>>) -> Vec<Vec<u64>> {
    let blocks = media.unwrap_or_default().into_iter();
    blocks
        .map(|block| {
            let objects = block.map_or_else(Vec::new, |block| block.mm_objects);
            objects.into_iter().map(|object| object.mm_hash).collect()
        })
        .collect()
}
