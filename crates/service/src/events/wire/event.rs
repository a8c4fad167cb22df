//! One event of a batch: an array with its tag first, or a map with the key `type`.
//!
//! It drops by name what cannot be part of a prefix (unknown media, other kinds of cache, other
//! owners) and counts it. It never decides by block size or group: those need the partition.

mod fields;

use pointsman_core::index::Tier;

use super::super::cursor::{Cursor, CursorError};
use super::super::skip::{SkipReason, Skips};
use super::extra_keys::{self, BlockKeys};
use super::{CacheKind, Event, Group, Removed, Spare, Stored};

use fields::{Fields, Tag};

/// The two ways to tell of a clear and of nothing else: without fields, nothing needs to be judged.
const BARE_CLEAR: &[u8] = b"\x91\xb0AllBlocksCleared";
const BARE_CLEAR_MAP: &[u8] = b"\x81\xa4type\xb0AllBlocksCleared";

/// Reads one event into `events` and stands behind it. `Err` only where the batch itself is broken.
#[inline]
pub(super) fn decode(
    cursor: &mut Cursor<'_>,
    spare: &mut Spare,
    skipped: &mut Skips,
    events: &mut Vec<Event>,
) -> Result<(), CursorError> {
    if cursor.literal(BARE_CLEAR) || cursor.literal(BARE_CLEAR_MAP) {
        // Unlike a push, this moves no whole event.
        events.extend(Some(Event::Cleared));
        return Ok(());
    }
    decode_fields(cursor, spare, skipped, events)
}

fn decode_fields(
    cursor: &mut Cursor<'_>,
    spare: &mut Spare,
    skipped: &mut Skips,
    events: &mut Vec<Event>,
) -> Result<(), CursorError> {
    let start = cursor.clone();
    let mut fields = Fields::default();
    let decoded = match fields.read_event(cursor, spare) {
        Ok(tag) => {
            if !matches!(tag, Tag::Unknown) {
                skipped.add_fields(fields.unknown);
            }
            assemble(tag, &mut fields, events)
        }
        Err(_misshapen) => {
            // The event is wrong, the batch may still be whole: only a broken one fails to skip.
            *cursor = start;
            cursor.skip()?;
            Err(SkipReason::Malformed)
        }
    };
    if let Err(reason) = decoded {
        skipped.add(reason);
        spare.keep_hashes(fields.hashes.unwrap_or_default());
        spare.keep_tokens(fields.tokens);
    }
    Ok(())
}

/// Makes an event of what was read; what stays in `fields` is of no more use.
#[inline]
fn assemble(tag: Tag, fields: &mut Fields<'_>, events: &mut Vec<Event>) -> Result<(), SkipReason> {
    if matches!(tag, Tag::Unknown) {
        return Err(SkipReason::UnknownEvent);
    }
    let tier = tier_of(fields.medium)?;
    if fields
        .locality
        .is_some_and(|name| !name.is_empty() && !name.eq_ignore_ascii_case("local"))
    {
        return Err(SkipReason::Locality);
    }
    if fields
        .ownership
        .is_some_and(|name| name.eq_ignore_ascii_case("kvcr"))
    {
        return Err(SkipReason::Ownership);
    }
    let group = Group {
        index: fields.group,
        kind: fields.kind.and_then(cache_kind),
    };
    if group.kind == Some(CacheKind::Other) && group.index.is_none() {
        return Err(SkipReason::CacheKind);
    }
    match tag {
        Tag::Stored => {
            let stored = assemble_stored(fields, tier, group)?;
            events.push(Event::Stored(stored));
        }
        Tag::Removed => {
            let engine_hashes = fields.hashes.take().ok_or(SkipReason::Malformed)?;
            let counts = fields.remaining.take();
            let remaining = counts.and_then(|list| copy_counts(list, engine_hashes.len()));
            events.extend(Some(Event::Removed(Removed {
                engine_hashes,
                remaining: remaining.unwrap_or_default(),
                tier,
                group,
            })));
        }
        Tag::Cleared | Tag::Unknown => events.extend(Some(Event::Cleared)),
    }
    Ok(())
}

fn assemble_stored(
    fields: &mut Fields<'_>,
    tier: Tier,
    group: Group,
) -> Result<Stored, SkipReason> {
    if fields.tokens.is_empty() && tier != Tier::Device {
        return placeholder(fields, tier, group);
    }
    let block_size = fields.block_size.ok_or(SkipReason::Malformed)?;
    if fields.has_lookahead {
        return Err(SkipReason::Lookahead);
    }
    if fields.unreadable_namespace {
        return Err(SkipReason::ExtraKeys);
    }
    let lora_name = fields.lora_name.filter(|name| !name.is_empty());
    if fields.has_lora_id && lora_name.is_none() {
        return Err(SkipReason::UnnamedAdapter);
    }
    let blocks = fields.hashes.as_ref().map(Vec::len);
    let keys = BlockKeys {
        lora_name,
        starts_sequence: fields.parent.is_none(),
        blocks: blocks.ok_or(SkipReason::Malformed)?,
    };
    let extra = extra_keys::read(&keys, fields.extra_keys.take(), fields.media_infos.take());
    let stated = fields
        .cache_salt
        .filter(|salt| !salt.is_empty())
        .map(extra_keys::strip_salt);
    let cache_salt = match (stated, extra.cache_salt) {
        (Some(stated), Some(keyed)) if stated != keyed => return Err(SkipReason::Namespace),
        (stated, keyed) => stated.or(keyed),
    };
    Ok(Stored {
        engine_hashes: fields.hashes.take().unwrap_or_default(),
        parent: fields.parent,
        tokens: std::mem::take(&mut fields.tokens),
        bigram: fields.bigram,
        block_size,
        lora_name: lora_name.map(Box::from),
        cache_salt: cache_salt.map(Box::from),
        media: extra.media,
        readable_blocks: extra.readable_blocks,
        tier,
        group,
    })
}

/// A store without tokens: what its blocks are is known from another tier, or not at all.
fn placeholder(fields: &mut Fields<'_>, tier: Tier, group: Group) -> Result<Stored, SkipReason> {
    let engine_hashes = fields.hashes.take().ok_or(SkipReason::Malformed)?;
    Ok(Stored {
        readable_blocks: engine_hashes.len(),
        engine_hashes,
        parent: fields.parent,
        tokens: Vec::new(),
        bigram: false,
        block_size: fields.block_size.unwrap_or(0),
        lora_name: None,
        cache_salt: None,
        media: Vec::new(),
        tier,
        group,
    })
}

/// One count or nil for each block; `None` for any other list, which says nothing then.
fn copy_counts(mut list: Cursor<'_>, blocks: usize) -> Option<Vec<Option<u32>>> {
    let count = list.array().ok()?;
    if usize::try_from(count) != Ok(blocks) {
        return None;
    }
    let one = |list: &mut Cursor<'_>| {
        if list.nil().ok()? {
            Some(None)
        } else {
            list.u32().ok().map(Some)
        }
    };
    (0..count).map(|_| one(&mut list)).collect()
}

#[inline]
fn tier_of(medium: Option<&str>) -> Result<Tier, SkipReason> {
    medium.map_or(Ok(Tier::Device), tier_named)
}

fn tier_named(name: &str) -> Result<Tier, SkipReason> {
    const TIERS: [(Tier, &[&str]); 4] = [
        (Tier::Device, &["", "GPU", "DEVICE"]),
        (Tier::Host, &["CPU", "CPU_PINNED", "CPU_TIER1"]),
        (Tier::Disk, &["CPU_TIER2", "DISK", "NVME", "STORAGE"]),
        (Tier::External, &["EXTERNAL", "NETWORK", "REMOTE", "SHARED"]),
    ];
    let is_one_of = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
    let known = TIERS.iter().find(|(_, names)| is_one_of(names));
    known
        .map(|(tier, _)| *tier)
        .ok_or(SkipReason::UnknownMedium)
}

fn cache_kind(name: &str) -> Option<CacheKind> {
    match name {
        "" => None,
        "full_attention" | "mla_attention" | "sink_full_attention" => {
            Some(CacheKind::FullAttention)
        }
        _ => Some(CacheKind::Other),
    }
}
