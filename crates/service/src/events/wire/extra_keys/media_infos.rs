//! The list of media by block that some engines send beside the extra keys.
//!
//! Each block has nil or `{mm_objects: [{mm_hash, ..}, ..]}`. A block whose entry is anything else
//! has no identity here, and neither have those after it.

use pointsman_core::hash;

use super::super::super::cursor::{Cursor, CursorError, Shape};
use super::ExtraKeys;

/// Reads the list into the blocks that are readable so far.
pub(super) fn read(mut list: Cursor<'_>, into: &mut ExtraKeys<'_>) {
    let entries = list.array().unwrap_or(0);
    let entries = usize::try_from(entries).unwrap_or(usize::MAX);
    let mut has_media = false;
    for block in 0..into.readable_blocks.min(entries) {
        let Ok(Some(items)) = entry(&mut list) else {
            into.readable_blocks = block;
            return;
        };
        if items.is_empty() {
            continue;
        }
        has_media = true;
        if into.media.len() <= block {
            into.media.resize_with(block + 1, Vec::new);
        }
        into.media[block] = items;
    }
    if has_media {
        // A list that ends early says nothing about the rest.
        into.readable_blocks = into.readable_blocks.min(entries);
    }
}

/// The media of one block; `None` for what is no entry.
fn entry(list: &mut Cursor<'_>) -> Result<Option<Vec<u64>>, CursorError> {
    if list.nil()? {
        return Ok(Some(Vec::new()));
    }
    let mut items = None;
    if list.shape()? != Shape::Map {
        return Ok(None);
    }
    for _ in 0..list.map()? {
        if list.shape()? == Shape::Text && list.text()? == "mm_objects" {
            items = objects(list)?;
        } else {
            list.skip()?;
        }
    }
    Ok(items)
}

fn objects(list: &mut Cursor<'_>) -> Result<Option<Vec<u64>>, CursorError> {
    if list.nil()? {
        return Ok(Some(Vec::new()));
    }
    let count = list.array()?;
    let mut items = Vec::with_capacity(list.capacity_for(count).min(64));
    for _ in 0..count {
        let mut item = None;
        for _ in 0..list.map()? {
            if list.shape()? == Shape::Text && list.text()? == "mm_hash" {
                item = match list.shape()? {
                    Shape::Text => hash::media_hash(list.text()?),
                    _ => Some(list.integer_bits()?),
                };
            } else {
                list.skip()?;
            }
        }
        match item {
            Some(item) => items.push(item),
            None => return Ok(None),
        }
    }
    Ok(Some(items))
}
