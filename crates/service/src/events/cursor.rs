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

/// The shape that each first byte announces.
const SHAPES: [Shape; 256] = {
    let mut shapes = [Shape::Extension; 256];
    let mut byte = 0_u8;
    loop {
        shapes[byte as usize] = shape_of(byte);
        if byte == u8::MAX {
            break shapes;
        }
        byte += 1;
    }
};

#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
    /// Of the whole payload, to tell how far in an error is.
    length: usize,
}

type Read<T> = Result<T, CursorError>;

// Most batches are so small that a call or a check by value costs more than what it reads: the usual
// forms are told by their first byte and inlined.
impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            length: bytes.len(),
        }
    }

    #[inline]
    pub(super) fn position(&self) -> usize {
        self.length - self.rest.len()
    }

    /// A capacity that is safe to reserve for `claimed` values: each needs at least one byte.
    #[inline]
    pub(super) fn capacity_for(&self, claimed: u32) -> usize {
        usize::try_from(claimed)
            .unwrap_or(usize::MAX)
            .min(self.rest.len())
    }

    #[inline]
    pub(super) fn shape(&self) -> Read<Shape> {
        Ok(SHAPES[usize::from(self.peek()?)])
    }

    /// The number of elements of the array that starts here.
    #[inline]
    pub(super) fn array(&mut self) -> Read<u32> {
        if let [head @ 0x90..=0x9f, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(u32::from(head & 0x0f));
        }
        self.long_array()
    }

    fn long_array(&mut self) -> Read<u32> {
        let start = self.position();
        match self.marker()? {
            Marker::Array16 => Ok(u32::from(self.be_u16()?)),
            Marker::Array32 => self.be_u32(),
            _ => Err(unexpected("an array", start)),
        }
    }

    /// The number of pairs of the map that starts here.
    #[inline]
    pub(super) fn map(&mut self) -> Read<u32> {
        let start = self.position();
        match self.marker()? {
            Marker::FixMap(count) => Ok(u32::from(count)),
            Marker::Map16 => Ok(u32::from(self.be_u16()?)),
            Marker::Map32 => self.be_u32(),
            _ => Err(unexpected("a map", start)),
        }
    }

    /// An integer of either sign as its 64 bits in two's complement.
    #[inline]
    pub(super) fn integer_bits(&mut self) -> Read<u64> {
        // Every hash that fills its 64 bits.
        if let Some(([0xcf | 0xd3, bits @ ..], rest)) = self.rest.split_first_chunk::<9>() {
            self.rest = rest;
            return Ok(u64::from_be_bytes(*bits));
        }
        self.narrow_integer_bits()
    }

    fn narrow_integer_bits(&mut self) -> Read<u64> {
        let start = self.position();
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
    #[inline]
    pub(super) fn u32(&mut self) -> Read<u32> {
        // Most token ids arrive in one of these three forms.
        let (value, rest) = match *self.rest {
            [small @ 0..=0x7f, ref rest @ ..] => (u32::from(small), rest),
            [0xcd, a, b, ref rest @ ..] => (u32::from(u16::from_be_bytes([a, b])), rest),
            [0xce, a, b, c, d, ref rest @ ..] => (u32::from_be_bytes([a, b, c, d]), rest),
            _ => return self.other_u32(),
        };
        self.rest = rest;
        Ok(value)
    }

    fn other_u32(&mut self) -> Read<u32> {
        let start = self.position();
        u32::try_from(self.integer_bits()?)
            .map_err(|_| unexpected("an integer from 0 to 4294967295", start))
    }

    pub(super) fn text(&mut self) -> Read<&'a str> {
        let start = self.position();
        as_utf8(self.text_bytes()?, start)
    }

    /// A string that nobody has checked to be UTF-8: enough to compare it with a known name.
    #[inline]
    pub(super) fn text_bytes(&mut self) -> Read<&'a [u8]> {
        if let [head @ 0xa0..=0xbf, rest @ ..] = self.rest
            && let Some((text, rest)) = rest.split_at_checked(usize::from(head & 0x1f))
        {
            self.rest = rest;
            return Ok(text);
        }
        self.long_text_bytes()
    }

    fn long_text_bytes(&mut self) -> Read<&'a [u8]> {
        let start = self.position();
        let length = match self.marker()? {
            Marker::FixStr(length) => u32::from(length),
            Marker::Str8 => u32::from(self.array_of::<1>()?[0]),
            Marker::Str16 => u32::from(self.be_u16()?),
            Marker::Str32 => self.be_u32()?,
            _ => return Err(unexpected("a string", start)),
        };
        self.take(length)
    }

    pub(super) fn byte_string(&mut self) -> Read<&'a [u8]> {
        let start = self.position();
        let length = match self.marker()? {
            Marker::Bin8 => u32::from(self.array_of::<1>()?[0]),
            Marker::Bin16 => u32::from(self.be_u16()?),
            Marker::Bin32 => self.be_u32()?,
            _ => return Err(unexpected("a byte string", start)),
        };
        self.take(length)
    }

    /// Consumes exactly these bytes if they are next.
    #[inline]
    pub(super) fn literal(&mut self, bytes: &[u8]) -> bool {
        let Some(rest) = self.rest.strip_prefix(bytes) else {
            return false;
        };
        self.rest = rest;
        true
    }

    /// Consumes a nil if one is next.
    #[inline]
    pub(super) fn nil(&mut self) -> Read<bool> {
        if let [0xc0, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(true);
        }
        self.peek().map(|_| false)
    }

    /// Steps over one value with all that it holds, however deep, without recursion.
    #[inline]
    pub(super) fn skip(&mut self) -> Read<()> {
        // What a batch says of its time.
        if let Some(([0xcb, ..], rest)) = self.rest.split_first_chunk::<9>() {
            self.rest = rest;
            return Ok(());
        }
        self.skip_any()
    }

    fn skip_any(&mut self) -> Read<()> {
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
            Marker::Reserved => return Err(unexpected("a value", self.position() - 1)),
        }
        Ok(0)
    }

    #[inline]
    fn peek(&self) -> Read<u8> {
        self.rest.first().copied().ok_or(self.truncated())
    }

    #[inline]
    fn marker(&mut self) -> Read<Marker> {
        let [byte] = self.array_of()?;
        Ok(Marker::from_u8(byte))
    }

    #[inline]
    fn take(&mut self, length: u32) -> Read<&'a [u8]> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let split = self.rest.split_at_checked(length);
        let (taken, rest) = split.ok_or(self.truncated())?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn advance(&mut self, length: usize) -> Read<()> {
        self.rest = self.rest.get(length..).ok_or(self.truncated())?;
        Ok(())
    }

    #[inline]
    fn array_of<const N: usize>(&mut self) -> Read<[u8; N]> {
        let split = self.rest.split_first_chunk::<N>();
        let (taken, rest) = split.ok_or(self.truncated())?;
        self.rest = rest;
        Ok(*taken)
    }

    #[inline]
    fn truncated(&self) -> CursorError {
        CursorError::Truncated {
            at: self.position(),
        }
    }

    fn be_u16(&mut self) -> Read<u16> {
        Ok(u16::from_be_bytes(self.array_of()?))
    }

    fn be_u32(&mut self) -> Read<u32> {
        Ok(u32::from_be_bytes(self.array_of()?))
    }
}

const fn shape_of(byte: u8) -> Shape {
    match byte {
        0x00..=0x7f | 0xcc..=0xd3 | 0xe0..=0xff => Shape::Integer,
        0x80..=0x8f | 0xde..=0xdf => Shape::Map,
        0x90..=0x9f | 0xdc..=0xdd => Shape::Array,
        0xa0..=0xbf | 0xd9..=0xdb => Shape::Text,
        0xc0 => Shape::Nil,
        0xc2..=0xc3 => Shape::Bool,
        0xc4..=0xc6 => Shape::Bytes,
        0xca..=0xcb => Shape::Float,
        0xc1 | 0xc7..=0xc9 | 0xd4..=0xd8 => Shape::Extension,
    }
}

/// Bytes of a string that starts at `at`, as text.
pub(super) fn as_utf8(bytes: &[u8], at: usize) -> Read<&str> {
    std::str::from_utf8(bytes).map_err(|_| unexpected("utf-8 text", at))
}

#[cold]
fn unexpected(wanted: &'static str, at: usize) -> CursorError {
    CursorError::Unexpected { wanted, at }
}
