//! Says what a payload of KV events holds, for tools and benches, by the decoder that the subscribers use; it applies nothing.

use super::wire::{Batch, BatchError, Event};

/// Reads payloads one after the other, in buffers that it keeps.
#[derive(Debug, Default)]
pub struct PayloadReader {
    batch: Batch,
}

/// What one payload tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PayloadContents {
    /// The data-parallel rank that it names.
    pub dp_rank: Option<u32>,
    pub stored_blocks: usize,
    pub removed_blocks: usize,
    /// Events that clear a whole cache.
    pub clears: usize,
}

/// The payload is no batch of KV events.
#[derive(Debug, thiserror::Error)]
#[error("reading a payload of kv events")]
pub struct UnreadablePayload(#[source] BatchError);

impl PayloadReader {
    /// Decodes a `MessagePack` payload as an engine publishes it.
    pub fn read(&mut self, payload: &[u8]) -> Result<PayloadContents, UnreadablePayload> {
        self.batch.decode(payload).map_err(UnreadablePayload)?;
        let mut contents = PayloadContents {
            dp_rank: self.batch.dp_rank,
            ..PayloadContents::default()
        };
        for event in &self.batch.events {
            match event {
                Event::Stored(stored) => contents.stored_blocks += stored.engine_hashes.len(),
                Event::Removed(removed) => contents.removed_blocks += removed.engine_hashes.len(),
                Event::Cleared => contents.clears += 1,
            }
        }
        Ok(contents)
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{V, batch, batch_of_rank, cleared, removed, stored};
    use super::*;

    #[test]
    fn a_payload_is_summed_up() {
        let store = V::List(stored(&[1, 2], None, &[1, 2, 3, 4], 2));
        let payload = batch_of_rank(3, vec![store, removed(&[1]), cleared()]);
        let contents = PayloadReader::default().read(&payload).unwrap();
        let expected = PayloadContents {
            dp_rank: Some(3),
            stored_blocks: 2,
            removed_blocks: 1,
            clears: 1,
        };
        assert_eq!(contents, expected);
    }

    #[test]
    fn nothing_of_a_payload_is_left_in_the_next() {
        let mut reader = PayloadReader::default();
        reader.read(&batch(vec![removed(&[1, 2])])).unwrap();
        assert!(reader.read(b"\xff").is_err());
        let contents = reader.read(&batch(vec![cleared()])).unwrap();
        assert_eq!((contents.removed_blocks, contents.clears), (0, 1));
    }
}
