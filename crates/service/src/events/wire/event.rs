//! One event of a batch: an array with its tag first, or a map with the key `type`.
//!
//! It drops by name what cannot be part of a device prefix (other media, other kinds of cache,
//! other owners) and counts it. It never decides by block size or group: those need the partition.

use super::super::cursor::{Cursor, CursorError, Shape};
use super::super::skip::{SkipReason, Skips};
use super::extra_keys::{self, BlockKeys};
use super::{CacheKind, Event, Group, Removed, Stored};

/// What an event may carry, under the names of its map form.
#[derive(Clone, Copy)]
enum Field {
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    CacheSalt,
    ExtraKeys,
    MediaInfos,
    Group,
    Kind,
    Locality,
    Ownership,
    Lookahead,
}

/// The array form of a store, up to its tail.
const STORED: &[Field] = &[
    Field::Hashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraName,
    Field::ExtraKeys,
];
/// The array form of a removal, up to its tail.
const REMOVED: &[Field] = &[Field::Hashes, Field::Medium];

#[derive(Clone, Copy)]
enum Tag {
    Stored,
    Removed,
    Cleared,
    Unknown,
}

impl Tag {
    fn of(name: &str) -> Self {
        match name {
            "BlockStored" => Self::Stored,
            "BlockRemoved" => Self::Removed,
            "AllBlocksCleared" => Self::Cleared,
            _ => Self::Unknown,
        }
    }
}

#[derive(Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts of one event, each read on its own"
)]
struct Fields<'a> {
    hashes: Option<Vec<u64>>,
    parent: Option<u64>,
    tokens: Vec<u32>,
    bigram: bool,
    block_size: Option<u32>,
    has_lora_id: bool,
    medium: Option<&'a str>,
    lora_name: Option<&'a str>,
    cache_salt: Option<&'a str>,
    extra_keys: Option<Cursor<'a>>,
    media_infos: Option<Cursor<'a>>,
    unreadable_namespace: bool,
    group: Option<u32>,
    kind: Option<&'a str>,
    locality: Option<&'a str>,
    ownership: Option<&'a str>,
    has_lookahead: bool,
}

/// Reads one event and stands behind it. `Err` only where the batch itself is broken.
pub(super) fn decode(
    cursor: &mut Cursor<'_>,
    skipped: &mut Skips,
) -> Result<Option<Event>, CursorError> {
    let start = cursor.position();
    let decoded = match read_fields(cursor) {
        Ok((tag, fields)) => assemble(tag, fields),
        Err(_misshapen) => {
            // The event is wrong, the batch may still be whole: only a broken one fails to skip.
            cursor.rewind(start);
            cursor.skip()?;
            Err(SkipReason::Malformed)
        }
    };
    Ok(decoded.map_err(|reason| skipped.add(reason)).ok())
}

fn read_fields<'a>(cursor: &mut Cursor<'a>) -> Result<(Tag, Fields<'a>), CursorError> {
    let mut fields = Fields::default();
    if cursor.shape()? == Shape::Map {
        let tag = fields.read_map(cursor)?;
        return Ok((tag, fields));
    }
    let count = cursor.array()?;
    if count == 0 {
        return Ok((Tag::Unknown, fields));
    }
    let tag = Tag::of(cursor.text()?);
    let mut left = count - 1;
    let order = match tag {
        Tag::Stored => STORED,
        Tag::Removed => REMOVED,
        Tag::Cleared | Tag::Unknown => &[],
    };
    for &field in order {
        if left == 0 {
            return Ok((tag, fields));
        }
        left -= 1;
        fields.read(field, cursor)?;
    }
    match tag {
        Tag::Unknown => skip_many(cursor, left)?,
        Tag::Cleared if left > 0 => {
            fields.ownership = optional_text(cursor)?;
            skip_many(cursor, left - 1)?;
        }
        _ => fields.read_tail(cursor, left)?,
    }
    Ok((tag, fields))
}

fn skip_many(cursor: &mut Cursor<'_>, count: u32) -> Result<(), CursorError> {
    (0..count).try_for_each(|_| cursor.skip())
}

/// One element of an array's tail, whose meaning depends on the others.
#[derive(Clone)]
enum TailValue<'a> {
    Nil,
    Number(u64),
    Text(&'a str),
    List(Cursor<'a>),
    Other,
}

impl<'a> Fields<'a> {
    fn read_map(&mut self, cursor: &mut Cursor<'a>) -> Result<Tag, CursorError> {
        let mut tag = Tag::Unknown;
        for _ in 0..cursor.map()? {
            if cursor.shape()? != Shape::Text {
                skip_many(cursor, 2)?;
                continue;
            }
            let field = match cursor.text()? {
                "type" => {
                    tag = Tag::of(cursor.text()?);
                    continue;
                }
                "block_hashes" => Field::Hashes,
                "parent_block_hash" => Field::Parent,
                "token_ids" => Field::Tokens,
                "block_size" => Field::BlockSize,
                "lora_id" => Field::LoraId,
                "medium" => Field::Medium,
                "lora_name" => Field::LoraName,
                "cache_salt" => Field::CacheSalt,
                "extra_keys" => Field::ExtraKeys,
                "block_mm_infos" => Field::MediaInfos,
                "group_idx" => Field::Group,
                "kv_cache_spec_kind" => Field::Kind,
                "locality" => Field::Locality,
                "ownership" => Field::Ownership,
                "lookahead_token_ids" => Field::Lookahead,
                _ => {
                    cursor.skip()?;
                    continue;
                }
            };
            self.read(field, cursor)?;
        }
        Ok(tag)
    }

    fn read(&mut self, field: Field, cursor: &mut Cursor<'a>) -> Result<(), CursorError> {
        match field {
            Field::Hashes => self.hashes = Some(hashes(cursor)?),
            Field::Parent => {
                self.parent = if cursor.nil()? {
                    None
                } else {
                    Some(hash(cursor)?)
                };
            }
            Field::Tokens => self.read_tokens(cursor)?,
            Field::BlockSize => {
                self.block_size = if cursor.nil()? {
                    None
                } else {
                    Some(cursor.u32()?)
                };
            }
            Field::LoraId => self.has_lora_id = is_set(cursor)?,
            Field::Medium => self.medium = optional_text(cursor)?,
            Field::LoraName => self.read_lora_name(cursor)?,
            Field::CacheSalt => self.cache_salt = optional_text(cursor)?,
            Field::ExtraKeys => self.extra_keys = optional_value(cursor)?,
            Field::MediaInfos => self.media_infos = optional_value(cursor)?,
            Field::Group => {
                self.group = if cursor.nil()? {
                    None
                } else {
                    Some(cursor.u32()?)
                };
            }
            Field::Kind => self.kind = optional_text(cursor)?,
            Field::Locality => self.locality = optional_text(cursor)?,
            Field::Ownership => self.ownership = optional_text(cursor)?,
            Field::Lookahead => self.has_lookahead = is_set(cursor)?,
        }
        Ok(())
    }

    /// Single ids, or pairs of neighbours: the first of each, then the second of the last.
    fn read_tokens(&mut self, cursor: &mut Cursor<'a>) -> Result<(), CursorError> {
        if cursor.nil()? {
            return Ok(());
        }
        let count = cursor.array()?;
        self.tokens = Vec::with_capacity(cursor.capacity_for(count));
        if count == 0 || cursor.shape()? != Shape::Array {
            for _ in 0..count {
                self.tokens.push(cursor.u32()?);
            }
            return Ok(());
        }
        self.bigram = true;
        let mut last = 0;
        for _ in 0..count {
            let at = cursor.position();
            if cursor.array()? != 2 {
                return Err(CursorError::Unexpected {
                    wanted: "a pair of token ids",
                    at,
                });
            }
            self.tokens.push(cursor.u32()?);
            last = cursor.u32()?;
        }
        self.tokens.push(last);
        Ok(())
    }

    /// An adapter's name; one dialect puts a map of metadata here instead.
    fn read_lora_name(&mut self, cursor: &mut Cursor<'a>) -> Result<(), CursorError> {
        match cursor.shape()? {
            Shape::Nil | Shape::Text => self.lora_name = optional_text(cursor)?,
            Shape::Map => {
                for _ in 0..cursor.map()? {
                    let is_salt = cursor.shape()? == Shape::Text && cursor.text()? == "cache_salt";
                    if is_salt {
                        self.cache_salt = optional_text(cursor)?;
                    } else {
                        cursor.skip()?;
                    }
                }
            }
            _ => {
                cursor.skip()?;
                self.unreadable_namespace = true;
            }
        }
        Ok(())
    }

    /// Group, kind, window, locality and ownership in that order, where at least four elements
    /// have fitting types; otherwise each is told by its type, as older engines send them.
    fn read_tail(&mut self, cursor: &mut Cursor<'a>, left: u32) -> Result<(), CursorError> {
        const FIXED: u32 = 5;
        let mut values: Vec<TailValue<'a>> = Vec::with_capacity(5);
        for _ in 0..left.min(FIXED) {
            values.push(tail_value(cursor)?);
        }
        skip_many(cursor, left.saturating_sub(FIXED))?;
        let number =
            |at: usize| matches!(values.get(at), Some(TailValue::Nil | TailValue::Number(_)));
        let text = |at: usize| matches!(values.get(at), Some(TailValue::Nil | TailValue::Text(_)));
        if number(0) && text(1) && number(2) && text(3) && (values.len() == 4 || text(4)) {
            self.group = as_group(&values[0]);
            self.kind = as_text(&values[1]);
            self.locality = as_text(&values[3]);
            self.ownership = values.get(4).and_then(as_text);
            return Ok(());
        }
        self.group = values
            .iter()
            .find(|v| matches!(v, TailValue::Number(_)))
            .and_then(as_group);
        self.kind = values.iter().find_map(as_text);
        self.media_infos = values.iter().find_map(|value| match value {
            TailValue::List(list) => Some(list.clone()),
            _ => None,
        });
        Ok(())
    }
}

fn tail_value<'a>(cursor: &mut Cursor<'a>) -> Result<TailValue<'a>, CursorError> {
    Ok(match cursor.shape()? {
        Shape::Nil => {
            cursor.skip()?;
            TailValue::Nil
        }
        Shape::Integer => TailValue::Number(cursor.integer_bits()?),
        Shape::Text => TailValue::Text(cursor.text()?),
        Shape::Array => {
            let list = cursor.clone();
            cursor.skip()?;
            TailValue::List(list)
        }
        _ => {
            cursor.skip()?;
            TailValue::Other
        }
    })
}

fn as_group(value: &TailValue<'_>) -> Option<u32> {
    match value {
        // A group that no engine numbers so stays an unknown group, which is never indexed.
        TailValue::Number(number) => Some(u32::try_from(*number).unwrap_or(u32::MAX)),
        _ => None,
    }
}

fn as_text<'a>(value: &TailValue<'a>) -> Option<&'a str> {
    match value {
        TailValue::Text(text) => Some(text),
        _ => None,
    }
}

fn assemble(tag: Tag, fields: Fields<'_>) -> Result<Event, SkipReason> {
    if matches!(tag, Tag::Unknown) {
        return Err(SkipReason::UnknownEvent);
    }
    check_medium(fields.medium)?;
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
        Tag::Stored => assemble_stored(fields, group).map(Event::Stored),
        Tag::Removed => {
            let engine_hashes = fields.hashes.ok_or(SkipReason::Malformed)?;
            Ok(Event::Removed(Removed {
                engine_hashes,
                group,
            }))
        }
        Tag::Cleared | Tag::Unknown => Ok(Event::Cleared),
    }
}

fn assemble_stored(fields: Fields<'_>, group: Group) -> Result<Stored, SkipReason> {
    let engine_hashes = fields.hashes.ok_or(SkipReason::Malformed)?;
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
    let keys = BlockKeys {
        lora_name,
        starts_sequence: fields.parent.is_none(),
        blocks: engine_hashes.len(),
    };
    let extra = extra_keys::read(&keys, fields.extra_keys, fields.media_infos);
    let stated = fields
        .cache_salt
        .filter(|salt| !salt.is_empty())
        .map(extra_keys::strip_salt);
    let cache_salt = match (stated, extra.cache_salt) {
        (Some(stated), Some(keyed)) if stated != keyed => return Err(SkipReason::Namespace),
        (stated, keyed) => stated.or(keyed),
    };
    Ok(Stored {
        engine_hashes,
        parent: fields.parent,
        tokens: fields.tokens,
        bigram: fields.bigram,
        block_size,
        lora_name: lora_name.map(Box::from),
        cache_salt: cache_salt.map(Box::from),
        media: extra.media,
        readable_blocks: extra.readable_blocks,
        group,
    })
}

fn check_medium(medium: Option<&str>) -> Result<(), SkipReason> {
    const DEVICE: [&str; 3] = ["", "GPU", "DEVICE"];
    const OTHER: [&str; 11] = [
        "CPU",
        "CPU_PINNED",
        "CPU_TIER1",
        "CPU_TIER2",
        "DISK",
        "NVME",
        "STORAGE",
        "EXTERNAL",
        "NETWORK",
        "REMOTE",
        "SHARED",
    ];
    let Some(name) = medium else { return Ok(()) };
    let is_one_of = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
    if is_one_of(&DEVICE) {
        Ok(())
    } else if is_one_of(&OTHER) {
        Err(SkipReason::OtherMedium)
    } else {
        Err(SkipReason::UnknownMedium)
    }
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

fn hashes(cursor: &mut Cursor<'_>) -> Result<Vec<u64>, CursorError> {
    let count = cursor.array()?;
    let mut hashes = Vec::with_capacity(cursor.capacity_for(count));
    for _ in 0..count {
        hashes.push(hash(cursor)?);
    }
    Ok(hashes)
}

/// An integer of either sign, or a byte string folded to its last eight bytes.
fn hash(cursor: &mut Cursor<'_>) -> Result<u64, CursorError> {
    if cursor.shape()? != Shape::Bytes {
        return cursor.integer_bits();
    }
    let digest = cursor.byte_string()?;
    let tail = &digest[digest.len().saturating_sub(8)..];
    Ok(tail
        .iter()
        .fold(0, |folded, &byte| (folded << 8) | u64::from(byte)))
}

fn optional_text<'a>(cursor: &mut Cursor<'a>) -> Result<Option<&'a str>, CursorError> {
    if cursor.nil()? {
        return Ok(None);
    }
    cursor.text().map(Some)
}

/// Steps over a value and keeps a cursor to it, unless it is nil.
fn optional_value<'a>(cursor: &mut Cursor<'a>) -> Result<Option<Cursor<'a>>, CursorError> {
    if cursor.nil()? {
        return Ok(None);
    }
    let value = cursor.clone();
    cursor.skip()?;
    Ok(Some(value))
}

/// Whether a value says something: not nil, zero or an empty list.
fn is_set(cursor: &mut Cursor<'_>) -> Result<bool, CursorError> {
    match cursor.shape()? {
        Shape::Nil => {
            cursor.skip()?;
            Ok(false)
        }
        Shape::Integer => Ok(cursor.integer_bits()? != 0),
        Shape::Array => {
            let mut probe = cursor.clone();
            cursor.skip()?;
            Ok(probe.array()? > 0)
        }
        _ => {
            cursor.skip()?;
            Ok(true)
        }
    }
}
