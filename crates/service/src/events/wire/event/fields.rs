//! The fields of one event as they come: by place in an array, by name in a map.
//!
//! It reads each into the form it has on the wire and judges none.

use super::super::super::cursor::{Cursor, CursorError, Shape, as_utf8};
use super::super::Spare;

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
    Remaining,
}

/// Fields of maps that change nothing here.
const WITHOUT_EFFECT: [&[u8]; 2] = [b"kv_cache_spec_sliding_window", b"session_id"];
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

#[derive(Clone, Copy)]
pub(super) enum Tag {
    Stored,
    Removed,
    Cleared,
    Unknown,
}

impl Tag {
    #[inline]
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, CursorError> {
        let at = cursor.position();
        Ok(match cursor.text_bytes()? {
            name if name == b"BlockStored" => Self::Stored,
            name if name == b"BlockRemoved" => Self::Removed,
            name if name == b"AllBlocksCleared" => Self::Cleared,
            other => {
                as_utf8(other, at)?;
                Self::Unknown
            }
        })
    }
}

impl Field {
    #[inline]
    fn of(name: &[u8]) -> Option<Self> {
        Some(match name {
            _ if name == b"block_hashes" => Self::Hashes,
            _ if name == b"parent_block_hash" => Self::Parent,
            _ if name == b"token_ids" => Self::Tokens,
            _ if name == b"block_size" => Self::BlockSize,
            _ if name == b"lora_id" => Self::LoraId,
            _ if name == b"medium" => Self::Medium,
            _ if name == b"lora_name" => Self::LoraName,
            _ if name == b"cache_salt" => Self::CacheSalt,
            _ if name == b"extra_keys" => Self::ExtraKeys,
            _ if name == b"block_mm_infos" => Self::MediaInfos,
            _ if name == b"group_idx" => Self::Group,
            _ if name == b"kv_cache_spec_kind" => Self::Kind,
            _ if name == b"locality" => Self::Locality,
            _ if name == b"ownership" => Self::Ownership,
            _ if name == b"lookahead_token_ids" => Self::Lookahead,
            _ if name == b"remaining_copy_counts" => Self::Remaining,
            _ => return None,
        })
    }
}

#[derive(Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts of one event, each read on its own"
)]
pub(super) struct Fields<'a> {
    pub(super) hashes: Option<Vec<u64>>,
    pub(super) parent: Option<u64>,
    pub(super) tokens: Vec<u32>,
    pub(super) bigram: bool,
    pub(super) block_size: Option<u32>,
    pub(super) has_lora_id: bool,
    pub(super) medium: Option<&'a str>,
    pub(super) lora_name: Option<&'a str>,
    pub(super) cache_salt: Option<&'a str>,
    pub(super) extra_keys: Option<Cursor<'a>>,
    pub(super) media_infos: Option<Cursor<'a>>,
    pub(super) unreadable_namespace: bool,
    pub(super) group: Option<u32>,
    pub(super) kind: Option<&'a str>,
    pub(super) locality: Option<&'a str>,
    pub(super) ownership: Option<&'a str>,
    pub(super) has_lookahead: bool,
    pub(super) remaining: Option<Cursor<'a>>,
    /// Fields that we have no name for.
    pub(super) unknown: u32,
}

fn skip_many(cursor: &mut Cursor<'_>, count: u32) -> Result<(), CursorError> {
    (0..count).try_for_each(|_| cursor.skip())
}

/// One element of an array's tail, whose meaning depends on the others.
#[derive(Clone, Default)]
enum TailValue<'a> {
    #[default]
    Nil,
    Number(u64),
    Text(&'a str),
    List(Cursor<'a>),
    Other,
}

impl<'a> Fields<'a> {
    /// Reads one event, array or map; its tag.
    #[inline]
    pub(super) fn read_event(
        &mut self,
        cursor: &mut Cursor<'a>,
        spare: &mut Spare,
    ) -> Result<Tag, CursorError> {
        if cursor.shape()? == Shape::Map {
            return self.read_map(cursor, spare);
        }
        let count = cursor.array()?;
        if count == 0 {
            return Ok(Tag::Unknown);
        }
        let tag = Tag::read(cursor)?;
        let left = count - 1;
        match tag {
            Tag::Stored => self.read_stored(cursor, spare, left)?,
            Tag::Removed => self.read_removed(cursor, spare, left)?,
            Tag::Cleared if left > 0 => {
                self.ownership = optional_text(cursor)?;
                skip_many(cursor, left - 1)?;
                self.unknown = left - 1;
            }
            Tag::Cleared | Tag::Unknown => skip_many(cursor, left)?,
        }
        Ok(tag)
    }

    fn read_stored(
        &mut self,
        cursor: &mut Cursor<'a>,
        spare: &mut Spare,
        mut left: u32,
    ) -> Result<(), CursorError> {
        for &field in STORED {
            if left == 0 {
                return Ok(());
            }
            left -= 1;
            self.read(field, cursor, spare)?;
        }
        self.read_tail(cursor, left)
    }

    /// Hashes and medium, then the tail.
    #[inline]
    fn read_removed(
        &mut self,
        cursor: &mut Cursor<'a>,
        spare: &mut Spare,
        left: u32,
    ) -> Result<(), CursorError> {
        if left > 0 {
            self.read_hashes(cursor, spare)?;
        }
        if left > 1 {
            self.medium = medium(cursor)?;
        }
        if left > 2 {
            self.read_tail(cursor, left - 2)?;
        }
        Ok(())
    }

    fn read_map(&mut self, cursor: &mut Cursor<'a>, spare: &mut Spare) -> Result<Tag, CursorError> {
        let mut tag = Tag::Unknown;
        for _ in 0..cursor.map()? {
            if cursor.shape()? != Shape::Text {
                skip_many(cursor, 2)?;
                self.unknown = self.unknown.saturating_add(1);
                continue;
            }
            let at = cursor.position();
            let name = cursor.text_bytes()?;
            if name == b"type" {
                tag = Tag::read(cursor)?;
            } else if let Some(field) = Field::of(name) {
                self.read(field, cursor, spare)?;
            } else {
                as_utf8(name, at)?;
                let is_known = WITHOUT_EFFECT.contains(&name);
                self.unknown = self.unknown.saturating_add(u32::from(!is_known));
                cursor.skip()?;
            }
        }
        Ok(tag)
    }

    fn read(
        &mut self,
        field: Field,
        cursor: &mut Cursor<'a>,
        spare: &mut Spare,
    ) -> Result<(), CursorError> {
        match field {
            Field::Hashes => self.read_hashes(cursor, spare)?,
            Field::Parent => {
                self.parent = if cursor.nil()? {
                    None
                } else {
                    Some(hash(cursor)?)
                };
            }
            Field::Tokens => self.read_tokens(cursor, spare)?,
            Field::BlockSize => {
                self.block_size = if cursor.nil()? {
                    None
                } else {
                    Some(cursor.u32()?)
                };
            }
            Field::LoraId => self.has_lora_id = is_set(cursor)?,
            Field::Medium => self.medium = medium(cursor)?,
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
            Field::Remaining => self.remaining = optional_value(cursor)?,
        }
        Ok(())
    }

    #[inline]
    fn read_hashes(
        &mut self,
        cursor: &mut Cursor<'a>,
        spare: &mut Spare,
    ) -> Result<(), CursorError> {
        let count = cursor.array()?;
        let hashes = self.hashes.insert(spare.hashes.pop().unwrap_or_default());
        hashes.reserve(cursor.capacity_for(count));
        for _ in 0..count {
            hashes.push(hash(cursor)?);
        }
        Ok(())
    }

    /// Single ids, or pairs of neighbours: the first of each, then the second of the last.
    fn read_tokens(
        &mut self,
        cursor: &mut Cursor<'a>,
        spare: &mut Spare,
    ) -> Result<(), CursorError> {
        if cursor.nil()? {
            return Ok(());
        }
        let count = cursor.array()?;
        self.tokens = spare.tokens.pop().unwrap_or_default();
        self.tokens.reserve(cursor.capacity_for(count));
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
    /// have fitting types; otherwise each is told by its type, as older engines send them. A list
    /// is what it can only be in either: media of a store, copies left of a removal.
    fn read_tail(&mut self, cursor: &mut Cursor<'a>, left: u32) -> Result<(), CursorError> {
        const FIXED: usize = 5;
        let mut values: [TailValue<'a>; FIXED] = Default::default();
        let mut found = 0;
        let mut list = None;
        for _ in 0..left {
            let value = tail_value(cursor)?;
            if let TailValue::List(cursor) = &value {
                list = list.or_else(|| Some(cursor.clone()));
            }
            match values.get_mut(found) {
                Some(slot) => {
                    *slot = value;
                    found += 1;
                }
                None if matches!(value, TailValue::Nil | TailValue::List(_)) => {}
                None => self.unknown = self.unknown.saturating_add(1),
            }
        }
        self.media_infos.clone_from(&list);
        self.remaining = list;
        let values = &values[..found];
        let number =
            |at: usize| matches!(values.get(at), Some(TailValue::Nil | TailValue::Number(_)));
        let text = |at: usize| matches!(values.get(at), Some(TailValue::Nil | TailValue::Text(_)));
        if number(0) && text(1) && number(2) && text(3) && (found == 4 || text(4)) {
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

/// An integer of either sign, or a byte string folded to its last eight bytes.
#[inline]
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

/// The name of a medium, unless it is the one that none means too.
fn medium<'a>(cursor: &mut Cursor<'a>) -> Result<Option<&'a str>, CursorError> {
    if cursor.nil()? {
        return Ok(None);
    }
    let at = cursor.position();
    match cursor.text_bytes()? {
        b"GPU" => Ok(None),
        other => as_utf8(other, at).map(Some),
    }
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
