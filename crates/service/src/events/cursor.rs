//! A cursor over `MessagePack` bytes that reads just what KV events need.
//!
//! It never allocates by a length that the bytes merely claim, never recurses, and never panics:
//! whatever the input, each step either consumes bytes or ends in an error.

use rmp::Marker;

/// Why bytes could not be read. `at` is an offset into the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CursorError {
    #[error("payload ends inside a value at byte {at}")]
    Truncated { at: usize },
    #[error("expected {wanted} at byte {at}")]
    Unexpected { wanted: &'static str, at: usize },
}

/// What comes next, without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Nil,
    Bool,
    Integer,
    Float,
    Text,
    Bytes,
    Array,
    Map,
    Extension,
}

#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

type Read<T> = Result<T, CursorError>;

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Goes back to a `position()` taken earlier.
    pub(super) fn rewind(&mut self, position: usize) {
        self.at = position.min(self.bytes.len());
    }

    /// A capacity that is safe to reserve for `claimed` values: each needs at least one byte.
    pub(super) fn capacity_for(&self, claimed: u32) -> usize {
        usize::try_from(claimed)
            .unwrap_or(usize::MAX)
            .min(self.bytes.len() - self.at)
    }

    pub(super) fn shape(&self) -> Read<Shape> {
        Ok(shape_of(self.peek()?))
    }

    /// The number of elements of the array that starts here.
    pub(super) fn array(&mut self) -> Read<u32> {
        let start = self.at;
        match self.marker()? {
            Marker::FixArray(count) => Ok(u32::from(count)),
            Marker::Array16 => Ok(u32::from(self.be_u16()?)),
            Marker::Array32 => self.be_u32(),
            _ => Err(unexpected("an array", start)),
        }
    }

    /// The number of pairs of the map that starts here.
    pub(super) fn map(&mut self) -> Read<u32> {
        let start = self.at;
        match self.marker()? {
            Marker::FixMap(count) => Ok(u32::from(count)),
            Marker::Map16 => Ok(u32::from(self.be_u16()?)),
            Marker::Map32 => self.be_u32(),
            _ => Err(unexpected("a map", start)),
        }
    }

    /// An integer of either sign as its 64 bits in two's complement.
    pub(super) fn integer_bits(&mut self) -> Read<u64> {
        let start = self.at;
        Ok(match self.marker()? {
            Marker::FixPos(value) => u64::from(value),
            Marker::FixNeg(value) => i64::from(value).cast_unsigned(),
            Marker::U8 => u64::from(self.array_of::<1>()?[0]),
            Marker::U16 => u64::from(self.be_u16()?),
            Marker::U32 => u64::from(self.be_u32()?),
            Marker::U64 | Marker::I64 => u64::from_be_bytes(self.array_of()?),
            Marker::I8 => i64::from(i8::from_be_bytes(self.array_of()?)).cast_unsigned(),
            Marker::I16 => i64::from(i16::from_be_bytes(self.array_of()?)).cast_unsigned(),
            Marker::I32 => i64::from(i32::from_be_bytes(self.array_of()?)).cast_unsigned(),
            _ => return Err(unexpected("an integer", start)),
        })
    }

    /// A token id, block size or rank: an integer from 0 to `u32::MAX`.
    pub(super) fn u32(&mut self) -> Read<u32> {
        // Most token ids arrive in one of these three forms.
        let start = self.at;
        match self.bytes.get(start) {
            Some(&small @ 0..=0x7f) => {
                self.at += 1;
                return Ok(u32::from(small));
            }
            Some(0xcd) => {
                self.at += 1;
                return Ok(u32::from(self.be_u16()?));
            }
            Some(0xce) => {
                self.at += 1;
                return self.be_u32();
            }
            _ => {}
        }
        u32::try_from(self.integer_bits()?)
            .map_err(|_| unexpected("an integer from 0 to 4294967295", start))
    }

    pub(super) fn text(&mut self) -> Read<&'a str> {
        let start = self.at;
        let length = match self.marker()? {
            Marker::FixStr(length) => u32::from(length),
            Marker::Str8 => u32::from(self.array_of::<1>()?[0]),
            Marker::Str16 => u32::from(self.be_u16()?),
            Marker::Str32 => self.be_u32()?,
            _ => return Err(unexpected("a string", start)),
        };
        std::str::from_utf8(self.take(length)?).map_err(|_| unexpected("utf-8 text", start))
    }

    pub(super) fn byte_string(&mut self) -> Read<&'a [u8]> {
        let start = self.at;
        let length = match self.marker()? {
            Marker::Bin8 => u32::from(self.array_of::<1>()?[0]),
            Marker::Bin16 => u32::from(self.be_u16()?),
            Marker::Bin32 => self.be_u32()?,
            _ => return Err(unexpected("a byte string", start)),
        };
        self.take(length)
    }

    /// Consumes a nil if one is next.
    pub(super) fn nil(&mut self) -> Read<bool> {
        let is_nil = self.peek()? == Marker::Null;
        if is_nil {
            self.at += 1;
        }
        Ok(is_nil)
    }

    /// Steps over one value with all that it holds, however deep, without recursion.
    pub(super) fn skip(&mut self) -> Read<()> {
        let mut pending: u64 = 1;
        while pending > 0 {
            pending = (pending - 1).saturating_add(self.skip_head()?);
        }
        Ok(())
    }

    /// Steps over a scalar, or over the head of a container; answers how many values it holds.
    fn skip_head(&mut self) -> Read<u64> {
        match self.marker()? {
            Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null | Marker::True | Marker::False => {
            }
            Marker::U8 | Marker::I8 => self.advance(1)?,
            Marker::U16 | Marker::I16 | Marker::FixExt1 => self.advance(2)?,
            Marker::U32 | Marker::I32 | Marker::F32 => self.advance(4)?,
            Marker::U64 | Marker::I64 | Marker::F64 => self.advance(8)?,
            Marker::FixStr(length) => self.advance(usize::from(length))?,
            Marker::Str8 | Marker::Bin8 => {
                let length = self.array_of::<1>()?[0];
                self.advance(usize::from(length))?;
            }
            Marker::Str16 | Marker::Bin16 => {
                let length = self.be_u16()?;
                self.advance(usize::from(length))?;
            }
            Marker::Str32 | Marker::Bin32 => {
                let length = self.be_u32()?;
                self.take(length)?;
            }
            Marker::FixExt2 => self.advance(3)?,
            Marker::FixExt4 => self.advance(5)?,
            Marker::FixExt8 => self.advance(9)?,
            Marker::FixExt16 => self.advance(17)?,
            Marker::Ext8 => {
                let length = self.array_of::<1>()?[0];
                self.advance(usize::from(length) + 1)?;
            }
            Marker::Ext16 => {
                let length = self.be_u16()?;
                self.advance(usize::from(length) + 1)?;
            }
            Marker::Ext32 => {
                let length = self.be_u32()?;
                self.advance(1)?;
                self.take(length)?;
            }
            Marker::FixArray(count) => return Ok(u64::from(count)),
            Marker::Array16 => return Ok(u64::from(self.be_u16()?)),
            Marker::Array32 => return Ok(u64::from(self.be_u32()?)),
            Marker::FixMap(count) => return Ok(2 * u64::from(count)),
            Marker::Map16 => return Ok(2 * u64::from(self.be_u16()?)),
            Marker::Map32 => return Ok(2 * u64::from(self.be_u32()?)),
            Marker::Reserved => return Err(unexpected("a value", self.at - 1)),
        }
        Ok(0)
    }

    fn peek(&self) -> Read<Marker> {
        self.bytes
            .get(self.at)
            .map(|&byte| Marker::from_u8(byte))
            .ok_or(CursorError::Truncated { at: self.at })
    }

    fn marker(&mut self) -> Read<Marker> {
        let marker = self.peek()?;
        self.at += 1;
        Ok(marker)
    }

    fn take(&mut self, length: u32) -> Read<&'a [u8]> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let rest = &self.bytes[self.at..];
        let taken = rest
            .get(..length)
            .ok_or(CursorError::Truncated { at: self.at })?;
        self.at += length;
        Ok(taken)
    }

    fn advance(&mut self, length: usize) -> Read<()> {
        if length > self.bytes.len() - self.at {
            return Err(CursorError::Truncated { at: self.at });
        }
        self.at += length;
        Ok(())
    }

    fn array_of<const N: usize>(&mut self) -> Read<[u8; N]> {
        let taken = self.bytes[self.at..]
            .first_chunk::<N>()
            .ok_or(CursorError::Truncated { at: self.at })?;
        self.at += N;
        Ok(*taken)
    }

    fn be_u16(&mut self) -> Read<u16> {
        Ok(u16::from_be_bytes(self.array_of()?))
    }

    fn be_u32(&mut self) -> Read<u32> {
        Ok(u32::from_be_bytes(self.array_of()?))
    }
}

fn shape_of(marker: Marker) -> Shape {
    match marker {
        Marker::Null => Shape::Nil,
        Marker::True | Marker::False => Shape::Bool,
        Marker::F32 | Marker::F64 => Shape::Float,
        Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => Shape::Text,
        Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => Shape::Bytes,
        Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => Shape::Array,
        Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => Shape::Map,
        Marker::FixPos(_)
        | Marker::FixNeg(_)
        | Marker::U8
        | Marker::U16
        | Marker::U32
        | Marker::U64
        | Marker::I8
        | Marker::I16
        | Marker::I32
        | Marker::I64 => Shape::Integer,
        _ => Shape::Extension,
    }
}

fn unexpected(wanted: &'static str, at: usize) -> CursorError {
    CursorError::Unexpected { wanted, at }
}
