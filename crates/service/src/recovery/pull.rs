//! Reads JSON from a stream piece by piece, so that a text of any size and kind needs no more memory
//! than its longest name that is asked for.
//!
//! What has another shape than was asked for is skipped and told as absent; only what is no JSON, or
//! too long, or too deep, ends the reading. It knows no format.

use std::io::{self, Read};

const BUFFER_BYTES: usize = 64 << 10;
/// Longest string that is kept, and longest name of a field.
const MAX_STRING: usize = 4096;
const MAX_DEPTH: u32 = 64;

/// Why reading ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Bad {
    #[error("the text could not be read further")]
    Read(#[source] io::Error),
    #[error("not JSON at byte {at}: {what}")]
    Syntax { at: u64, what: &'static str },
    #[error("longer than {max} bytes")]
    TooLong { max: u64 },
    /// A limit of the reader, not of the text's form.
    #[error("more than {max} blocks")]
    TooMany { max: usize },
}

#[derive(Debug)]
pub(super) struct Pull<R> {
    source: R,
    buffer: Box<[u8]>,
    at: usize,
    end: usize,
    /// Bytes read before the buffer's.
    before: u64,
    max: u64,
    depth: u32,
}

impl<R: Read> Pull<R> {
    pub(super) fn new(source: R, max_bytes: u64) -> Self {
        Self {
            source,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            at: 0,
            end: 0,
            before: 0,
            max: max_bytes,
            depth: 0,
        }
    }

    /// The fields of an object, in order. `each` must read its value or skip it. False, and skipped,
    /// where the value is no object.
    pub(super) fn object(
        &mut self,
        mut each: impl FnMut(&mut Self, &str) -> Result<(), Bad>,
    ) -> Result<bool, Bad> {
        if self.peek()? != b'{' {
            self.skip()?;
            return Ok(false);
        }
        self.enter()?;
        let mut name = String::new();
        if self.peek()? == b'}' {
            return self.leave();
        }
        loop {
            if self.peek()? != b'"' {
                return Err(self.wrong("a field name is missing"));
            }
            self.read_string(Some(&mut name))?;
            if self.peek()? != b':' {
                return Err(self.wrong("`:` is missing"));
            }
            self.at += 1;
            each(self, &name)?;
            match self.peek()? {
                b',' => self.at += 1,
                b'}' => return self.leave(),
                _ => return Err(self.wrong("`,` or `}` is missing")),
            }
        }
    }

    /// The elements of a list; as [`object`](Self::object).
    pub(super) fn array(
        &mut self,
        mut each: impl FnMut(&mut Self) -> Result<(), Bad>,
    ) -> Result<bool, Bad> {
        if self.peek()? != b'[' {
            self.skip()?;
            return Ok(false);
        }
        self.enter()?;
        if self.peek()? == b']' {
            return self.leave();
        }
        loop {
            each(self)?;
            match self.peek()? {
                b',' => self.at += 1,
                b']' => return self.leave(),
                _ => return Err(self.wrong("`,` or `]` is missing")),
            }
        }
    }

    /// An integer from 0 to 2^64 - 1.
    pub(super) fn unsigned(&mut self) -> Result<Option<u64>, Bad> {
        if !self.peek()?.is_ascii_digit() {
            self.skip()?;
            return Ok(None);
        }
        let mut value = Some(0_u64);
        while let Some(byte @ b'0'..=b'9') = self.look()? {
            self.at += 1;
            let digit = u64::from(byte - b'0');
            value = value.and_then(|value| value.checked_mul(10)?.checked_add(digit));
        }
        if self.rest_of_number()? {
            return Ok(None);
        }
        Ok(value)
    }

    /// A string of up to [`MAX_STRING`] bytes.
    pub(super) fn string(&mut self) -> Result<Option<String>, Bad> {
        if self.peek()? != b'"' {
            self.skip()?;
            return Ok(None);
        }
        let mut text = String::new();
        self.read_string(Some(&mut text))?;
        Ok(Some(text))
    }

    /// What kind of value is next, by its first byte.
    pub(super) fn peek(&mut self) -> Result<u8, Bad> {
        loop {
            match self.look()? {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                Some(byte) => return Ok(byte),
                None => return Err(self.wrong("it ends too early")),
            }
        }
    }

    /// Any value.
    pub(super) fn skip(&mut self) -> Result<(), Bad> {
        match self.peek()? {
            b'{' => self.object(|pull, _| pull.skip()).map(drop),
            b'[' => self.array(Self::skip).map(drop),
            b'"' => self.read_string(None),
            b'-' | b'0'..=b'9' => {
                self.at += 1;
                while let Some(b'0'..=b'9') = self.look()? {
                    self.at += 1;
                }
                self.rest_of_number().map(drop)
            }
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => Err(self.wrong("a value is missing")),
        }
    }

    /// Nothing may follow but space.
    pub(super) fn finish(&mut self) -> Result<(), Bad> {
        while let Some(byte) = self.look()? {
            if !byte.is_ascii_whitespace() {
                return Err(self.wrong("more after its end"));
            }
            self.at += 1;
        }
        Ok(())
    }

    fn enter(&mut self) -> Result<(), Bad> {
        if self.depth >= MAX_DEPTH {
            return Err(self.wrong("it is too deep"));
        }
        self.depth += 1;
        self.at += 1;
        Ok(())
    }

    #[expect(clippy::unnecessary_wraps, reason = "what its callers end with")]
    fn leave(&mut self) -> Result<bool, Bad> {
        self.depth -= 1;
        self.at += 1;
        Ok(true)
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Bad> {
        for expected in word {
            if self.look()? != Some(*expected) {
                return Err(self.wrong("a value is broken"));
            }
            self.at += 1;
        }
        Ok(())
    }

    /// Fraction and exponent; whether there were any.
    fn rest_of_number(&mut self) -> Result<bool, Bad> {
        let mut any = false;
        while let Some(b'.' | b'e' | b'E' | b'+' | b'-' | b'0'..=b'9') = self.look()? {
            self.at += 1;
            any = true;
        }
        Ok(any)
    }

    /// A string, into `kept` where it is wanted.
    fn read_string(&mut self, kept: Option<&mut String>) -> Result<(), Bad> {
        self.at += 1;
        let keep = kept.is_some();
        let mut text = Vec::new();
        loop {
            let Some(byte) = self.look()? else {
                return Err(self.wrong("a string does not end"));
            };
            self.at += 1;
            match byte {
                b'"' => break,
                b'\\' => self.escape(keep.then_some(&mut text))?,
                0..0x20 => return Err(self.wrong("a string has a control character")),
                _ if keep => text.push(byte),
                _ => {}
            }
            if text.len() > MAX_STRING {
                return Err(self.wrong("a name is too long"));
            }
        }
        if let Some(kept) = kept {
            *kept = String::from_utf8(text).map_err(|_| self.wrong("a string is not UTF-8"))?;
        }
        Ok(())
    }

    fn escape(&mut self, text: Option<&mut Vec<u8>>) -> Result<(), Bad> {
        let Some(byte) = self.look()? else {
            return Err(self.wrong("a string does not end"));
        };
        self.at += 1;
        let plain = match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => self.unicode()?,
            _ => return Err(self.wrong("an escape is unknown")),
        };
        if let Some(text) = text {
            text.extend_from_slice(plain.encode_utf8(&mut [0; 4]).as_bytes());
        }
        Ok(())
    }

    fn unicode(&mut self) -> Result<char, Bad> {
        let first = self.hex()?;
        let code = if (0xD800..0xDC00).contains(&first) {
            self.word(b"\\u")?;
            let second = self.hex()?;
            if !(0xDC00..0xE000).contains(&second) {
                return Err(self.wrong("half a surrogate pair"));
            }
            0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00)
        } else {
            first
        };
        char::from_u32(code).ok_or_else(|| self.wrong("half a surrogate pair"))
    }

    fn hex(&mut self) -> Result<u32, Bad> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.look()?.and_then(|byte| char::from(byte).to_digit(16));
            let Some(digit) = digit else {
                return Err(self.wrong("an escape is broken"));
            };
            self.at += 1;
            code = code * 16 + digit;
        }
        Ok(code)
    }

    /// The next byte, left where it is; `None` at the end.
    fn look(&mut self) -> Result<Option<u8>, Bad> {
        if self.at == self.end && !self.fill()? {
            return Ok(None);
        }
        Ok(Some(self.buffer[self.at]))
    }

    fn fill(&mut self) -> Result<bool, Bad> {
        self.before = self.before.saturating_add(self.end as u64);
        (self.at, self.end) = (0, 0);
        if self.before > self.max {
            return Err(Bad::TooLong { max: self.max });
        }
        loop {
            match self.source.read(&mut self.buffer) {
                Ok(read) => {
                    self.end = read;
                    return Ok(read > 0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Bad::Read(error)),
            }
        }
    }

    fn wrong(&self, what: &'static str) -> Bad {
        Bad::Syntax {
            at: self.before.saturating_add(self.at as u64),
            what,
        }
    }
}

#[cfg(test)]
mod tests;
