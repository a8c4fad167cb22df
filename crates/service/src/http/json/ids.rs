//! Reads lists of ids out of JSON text, eight digits at a time; it reads nothing else.

use super::ListOf;

const ZEROS: u64 = 0x3030_3030_3030_3030;
/// Brings bytes from 10 on to their highest bit, and none up to 9.
const BEYOND_NINE: u64 = 0x7676_7676_7676_7676;
const HIGHEST_BITS: u64 = 0x8080_8080_8080_8080;
/// In so many bytes commas are looked for at once.
const MASKED: usize = 64;
/// Those and what is read with the last element that ends in them.
const WINDOW: usize = MASKED + 8;
/// A sign, twenty digits, and what is read with them.
const LONG_WINDOW: usize = 32;
const POWERS: [u64; 9] = [
    1,
    10,
    100,
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    100_000_000,
];

/// An integer that a list may hold.
pub(super) trait Id: Sized {
    /// Bytes of text that most of them take at least.
    const MOST_TAKE: usize;
    /// Most of them have at most seven digits.
    const ARE_SHORT: bool;

    /// `None` where it does not fit.
    fn from_parts(negative: bool, magnitude: u64) -> Option<Self>;
}

impl Id for u32 {
    const MOST_TAKE: usize = 6;
    const ARE_SHORT: bool = true;

    fn from_parts(negative: bool, magnitude: u64) -> Option<Self> {
        if negative {
            return None;
        }
        Self::try_from(magnitude).ok()
    }
}

/// A hash, signed or unsigned: its bits count.
impl Id for u64 {
    const MOST_TAKE: usize = 16;
    const ARE_SHORT: bool = false;

    fn from_parts(negative: bool, magnitude: u64) -> Option<Self> {
        // Half of all hashes are negative, in no order: nothing here branches on it.
        let sign = u64::from(negative);
        let most = (u64::MAX >> sign) + sign;
        (magnitude <= most).then(|| (magnitude ^ sign.wrapping_neg()).wrapping_add(sign))
    }
}

/// What is no list of these ids; in a list, how many ids came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoList(Option<usize>);

/// The list that begins at `at`, and where its text ends.
pub(super) fn read<T: Id>(text: &[u8], at: usize) -> Result<(Vec<T>, usize), NoList> {
    if text.get(at) != Some(&b'[') {
        return Err(NoList(None));
    }
    let mut at = skip_space(text, at + 1);
    if text.get(at) == Some(&b']') {
        return Ok((Vec::new(), at + 1));
    }
    let mut list = Vec::with_capacity((text.len() - at).min(1 << 16) / T::MOST_TAKE + 1);
    loop {
        at = if T::ARE_SHORT {
            short_ids(text, at, &mut list)
        } else {
            long_ids(text, at, &mut list)
        };
        at = skip_space(text, at);
        let bad = NoList(Some(list.len()));
        let (id, end) = integer(text, at).ok_or(bad)?;
        list.push(id);
        at = skip_space(text, end);
        match text.get(at) {
            Some(b',') => at = skip_space(text, at + 1),
            Some(b']') => {
                // A body of many short lists must not hold what long ones would need.
                if list.len() < list.capacity() / 2 {
                    list.shrink_to_fit();
                }
                return Ok((list, at + 1));
            }
            _ => return Err(bad),
        }
    }
}

/// What is wrong with the text of a value that should be a list.
pub(super) fn complaint(text: &str, of: ListOf) -> String {
    let text = text.as_bytes();
    let (found, wanted) = match of {
        ListOf::Tokens => (
            read::<u32>(text, 0).err(),
            "an integer from 0 to 4294967295",
        ),
        ListOf::Hashes => (read::<u64>(text, 0).err(), "a 64-bit integer"),
    };
    match found {
        Some(NoList(Some(position))) => {
            format!("has an element that is not {wanted}: number {position}, counted from 0")
        }
        _ => format!("must be a list, each element {wanted}"),
    }
}

pub(super) fn skip_space(text: &[u8], mut at: usize) -> usize {
    while matches!(text.get(at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
        at += 1;
    }
    at
}

/// Reads ids of at most seven digits for as long as each has a comma right behind it and at most one
/// space before, as token ids do; where the next element begins. All else is left to whoever reads
/// that.
///
/// The commas are found for many ids at once, so that no id waits for the end of the one before.
fn short_ids<T: Id>(text: &[u8], mut at: usize, list: &mut Vec<T>) -> usize {
    while let Some(window) = text.get(at..).and_then(<[u8]>::first_chunk::<WINDOW>) {
        let mut commas = commas(window);
        let mut start = 0;
        while commas != 0 {
            let comma = commas.trailing_zeros() as usize;
            commas &= commas - 1;
            let Some(id) = short_id(window, start, comma).and_then(|id| T::from_parts(false, id))
            else {
                return at + start;
            };
            list.push(id);
            start = comma + 1;
        }
        if start == 0 {
            break;
        }
        at += start;
    }
    at
}

/// Reads ids of 17 to 20 digits, as most hashes are, for as long as each has a comma right behind it; where the next
/// element begins. All else is left to whoever reads that.
fn long_ids<T: Id>(text: &[u8], mut at: usize, list: &mut Vec<T>) -> usize {
    while let Some(window) = text.get(at..).and_then(<[u8]>::first_chunk::<LONG_WINDOW>) {
        let sign = usize::from(window[0] == b'-');
        let Some((magnitude, count)) = window.get(sign..).and_then(long_magnitude) else {
            return at;
        };
        let comma = sign + count;
        let id = T::from_parts(sign == 1, magnitude);
        let (Some(id), Some(b',')) = (id, window.get(comma)) else {
            return at;
        };
        list.push(id);
        at += comma + 1;
        at += usize::from(text.get(at) == Some(&b' '));
    }
    at
}

/// The number between `start` and `end`; `None` where that is not one to seven digits, with no
/// needless zero and at most one space before them.
fn short_id(window: &[u8; WINDOW], start: usize, end: usize) -> Option<u64> {
    let word = window.get(start..).and_then(<[u8]>::first_chunk::<8>)?;
    let mut word = u64::from_le_bytes(*word);
    let mut count = end.checked_sub(start)?;
    if word & 0xFF == u64::from(b' ') && count <= 8 {
        word >>= 8;
        count = count.checked_sub(1)?;
    }
    let is_padded = word & 0xFF == u64::from(b'0') && count > 1;
    if count == 0 || count > 7 || is_padded {
        return None;
    }
    let digits = first(values(word), count);
    (no_digits(digits) == 0).then(|| joined(digits))
}

/// A bit for every comma of the first [`MASKED`] bytes.
fn commas(window: &[u8; WINDOW]) -> u64 {
    let mut found = [0; MASKED];
    for (found, byte) in found.iter_mut().zip(window) {
        *found = u8::from(*byte == b',');
    }
    let (words, _) = found.as_chunks::<8>();
    words.iter().rev().fold(0, |commas, word| {
        // The product brings the eight bits together in its highest byte.
        let bits = u64::from_le_bytes(*word).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        (commas << 8) | bits
    })
}

/// The integer that begins at `at`, and where it ends.
fn integer<T: Id>(text: &[u8], at: usize) -> Option<(T, usize)> {
    let negative = text.get(at) == Some(&b'-');
    let start = at + usize::from(negative);
    let (magnitude, end) = match text.get(start..).and_then(long_magnitude) {
        Some((magnitude, count)) => (magnitude, start + count),
        None => magnitude(text, start)?,
    };
    Some((T::from_parts(negative, magnitude)?, end))
}

/// The number that `text` begins with, where it has 17 to 20 digits, as most hashes have, and how many those are.
#[inline]
fn long_magnitude(text: &[u8]) -> Option<(u64, usize)> {
    let (words, _) = text.first_chunk::<24>()?.as_chunks::<8>();
    let [high, low, rest] =
        [words[0], words[1], words[2]].map(|word| values(u64::from_le_bytes(word)));
    let count = count_digits(rest);
    if no_digits(high) | no_digits(low) != 0
        || high.trailing_zeros() >= 8
        || !(1..=4).contains(&count)
    {
        return None;
    }
    let magnitude = joined(high) * POWERS[8] + joined(low);
    let magnitude = magnitude.checked_mul(POWERS[count])?;
    let magnitude = magnitude.checked_add(joined(first(rest, count)))?;
    Some((magnitude, 16 + count))
}

/// The digits that begin at `start`, and where they end.
fn magnitude(text: &[u8], start: usize) -> Option<(u64, usize)> {
    let (mut magnitude, mut count) = digits(text, start);
    if count == 0 || (count > 1 && text[start] == b'0') {
        return None;
    }
    let mut end = start + count;
    while count == 8 {
        let (more, next) = digits(text, end);
        magnitude = magnitude.checked_mul(POWERS[next])?.checked_add(more)?;
        count = next;
        end += next;
    }
    Some((magnitude, end))
}

/// The value of the digits at `at`, at most eight, and how many there are.
fn digits(text: &[u8], at: usize) -> (u64, usize) {
    let Some(word) = text.get(at..).and_then(<[u8]>::first_chunk::<8>) else {
        return last_digits(text, at);
    };
    let values = values(u64::from_le_bytes(*word));
    match count_digits(values) {
        0 => (0, 0),
        count => (joined(first(values, count)), count),
    }
}

/// What the digits in a word of text are worth, each in its byte; of other text, no digit up to the first of it.
fn values(word: u64) -> u64 {
    word.wrapping_sub(ZEROS)
}

/// A bit in each byte that is not 0 to 9; those behind the first of them say nothing.
fn no_digits(values: u64) -> u64 {
    (values | values.wrapping_add(BEYOND_NINE)) & HIGHEST_BITS
}

/// How many of the bytes, from the first on, are 0 to 9.
fn count_digits(values: u64) -> usize {
    (no_digits(values).trailing_zeros() / 8) as usize
}

/// The first `count` bytes, one to eight, with zeros before them.
fn first(values: u64, count: usize) -> u64 {
    values << (64 - 8 * count)
}

/// The number that eight digits make; they are joined two by two.
fn joined(digits: u64) -> u64 {
    let pairs = (digits.wrapping_mul(2561) >> 8) & 0x00FF_00FF_00FF_00FF;
    let fours = (pairs.wrapping_mul(6_553_601) >> 16) & 0x0000_FFFF_0000_FFFF;
    fours.wrapping_mul(42_949_672_960_001) >> 32
}

/// The same near the end of the text.
fn last_digits(text: &[u8], at: usize) -> (u64, usize) {
    let rest = text.get(at..).unwrap_or_default();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit());
    digits.take(8).fold((0, 0), |(value, count), byte| {
        (value * 10 + u64::from(byte - b'0'), count + 1)
    })
}
