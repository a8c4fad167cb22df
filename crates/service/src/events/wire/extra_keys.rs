//! The extra keys of stored blocks: what, besides tokens, makes a block what it is.
//!
//! It reads cache salts and media ids. A block whose keys it cannot read has no identity here: that
//! block and those after it are left out, never guessed.

mod media_infos;

use pointsman_core::hash;

use super::super::cursor::{Cursor, CursorError, Shape};

const SALT_PREFIX: &str = "dynamo-cache-salt:";

/// What the event says about the blocks whose keys are read.
pub(super) struct BlockKeys<'a> {
    pub(super) lora_name: Option<&'a str>,
    /// The event's first block begins a prompt: only there may a bare string be the salt.
    pub(super) starts_sequence: bool,
    pub(super) blocks: usize,
}

#[derive(Default)]
pub(super) struct ExtraKeys<'a> {
    pub(super) cache_salt: Option<&'a str>,
    pub(super) media: Vec<Vec<u64>>,
    pub(super) readable_blocks: usize,
}

pub(super) fn strip_salt(salt: &str) -> &str {
    salt.strip_prefix(SALT_PREFIX).unwrap_or(salt)
}

/// Reads the keys block by block and stops before the first that cannot be read. Media that are told
/// in a list of their own win over those among the keys, which say the same.
pub(super) fn read<'a>(
    blocks: &BlockKeys<'_>,
    extra_keys: Option<Cursor<'a>>,
    media_infos: Option<Cursor<'_>>,
) -> ExtraKeys<'a> {
    let mut read = ExtraKeys {
        readable_blocks: blocks.blocks,
        ..ExtraKeys::default()
    };
    if let Some(mut keys) = extra_keys {
        let count = keys
            .array()
            .ok()
            .and_then(|count| usize::try_from(count).ok());
        if count != Some(0) {
            let limit = blocks.blocks.min(count.unwrap_or(0));
            let keyed = (0..limit)
                .take_while(|&block| read_block(blocks, block, &mut keys, &mut read).is_some())
                .count();
            // Blocks beyond a list that is too short are as unreadable as a list that is none.
            read.readable_blocks = keyed;
        }
    }
    if let Some(infos) = media_infos {
        media_infos::read(infos, &mut read);
    }
    read.media.truncate(read.readable_blocks);
    read
}

/// `None` where the block's keys cannot be read.
fn read_block<'a>(
    blocks: &BlockKeys<'_>,
    block: usize,
    keys: &mut Cursor<'a>,
    read: &mut ExtraKeys<'a>,
) -> Option<()> {
    if keys.nil().ok()? {
        return Some(());
    }
    let mut lora_seen = false;
    for _ in 0..keys.array().ok()? {
        match read_item(keys).ok().flatten()? {
            Item::Media(media) => add_media(read, block, media),
            Item::Text(text) if !lora_seen && blocks.lora_name == Some(text) => lora_seen = true,
            Item::Text(text) => {
                let prefixed = text.strip_prefix(SALT_PREFIX);
                let salt = match prefixed {
                    Some(salt) => salt,
                    None if block == 0 && blocks.starts_sequence => text,
                    None => return None,
                };
                match read.cache_salt {
                    Some(known) if known != salt => return None,
                    _ => read.cache_salt = Some(salt),
                }
            }
        }
    }
    Some(())
}

enum Item<'a> {
    Text(&'a str),
    Media(u64),
}

/// A media id alone or with its offset, or a text; `None` for anything else.
fn read_item<'a>(keys: &mut Cursor<'a>) -> Result<Option<Item<'a>>, CursorError> {
    match keys.shape()? {
        Shape::Text => {
            let text = keys.text()?;
            let is_digest = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            let media = if is_digest {
                hash::media_hash(text)
            } else {
                None
            };
            Ok(Some(media.map_or(Item::Text(text), Item::Media)))
        }
        Shape::Array => {
            if keys.array()? != 2 || keys.shape()? != Shape::Text {
                return Ok(None);
            }
            let media = hash::media_hash(keys.text()?);
            if keys.shape()? != Shape::Integer {
                return Ok(None);
            }
            keys.skip()?;
            Ok(media.map(Item::Media))
        }
        _ => Ok(None),
    }
}

fn add_media(read: &mut ExtraKeys<'_>, block: usize, media: u64) {
    if read.media.len() <= block {
        read.media.resize_with(block + 1, Vec::new);
    }
    read.media[block].push(media);
}
