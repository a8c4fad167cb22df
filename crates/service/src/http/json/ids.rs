//! Reads lists of ids out of JSON text, eight digits at a time; it reads nothing else.

use super::ListOf;

const ZEROS: u64 = 0x3030_3030_3030_3030;
const UPPER_HALVES: u64 = 0xF0F0_F0F0_F0F0_F0F0;
/// Carries everything after `9` out of the digits' half.
const PAST_NINE: u64 = 0x0606_0606_0606_0606;
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
    /// `None` where it does not fit.
    fn from_parts(negative: bool, magnitude: u64) -> Option<Self>;
}

impl Id for u32 {
    fn from_parts(negative: bool, magnitude: u64) -> Option<Self> {
        if negative {
            return None;
        }
        Self::try_from(magnitude).ok()
    }
}

/// A hash, signed or unsigned: its bits count.
impl Id for u64 {
    fn from_parts(negative: bool, magnitude: u64) -> Option<Self> {
        match negative {
            false => Some(magnitude),
            true if magnitude <= 1 << 63 => Some(magnitude.wrapping_neg()),
            true => None,
        }
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
    let mut list = Vec::with_capacity((text.len() - at).min(1 << 16) / 8);
    loop {
        at = skip_space(text, short_ids(text, at, &mut list));
        let bad = NoList(Some(list.len()));
        let (id, end) = integer(text, at).ok_or(bad)?;
        list.push(id);
        at = skip_space(text, end);
        match text.get(at) {
            Some(b',') => at = skip_space(text, at + 1),
            Some(b']') => return Ok((list, at + 1)),
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

/// Reads ids of at most seven digits for as long as each has a comma right behind it, as token ids
/// do; where the next element begins. All else is left to whoever reads that.
fn short_ids<T: Id>(text: &[u8], mut at: usize, list: &mut Vec<T>) -> usize {
    while let Some(word) = text.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*word);
        let count = count_digits(word);
        if count == 0 || count == 8 {
            break;
        }
        let behind = word >> (8 * count);
        let is_padded = count > 1 && word & 0xFF == u64::from(b'0');
        if behind & 0xFF != u64::from(b',') || is_padded {
            break;
        }
        let Some(id) = T::from_parts(false, value_of(word, count)) else {
            break;
        };
        list.push(id);
        let has_space = (behind >> 8) & 0xFF == u64::from(b' ');
        at += count + 1 + usize::from(has_space);
    }
    at
}

/// The integer that begins at `at`, and where it ends.
fn integer<T: Id>(text: &[u8], at: usize) -> Option<(T, usize)> {
    let negative = text.get(at) == Some(&b'-');
    let start = at + usize::from(negative);
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
    Some((T::from_parts(negative, magnitude)?, end))
}

/// The value of the digits at `at`, at most eight, and how many there are.
fn digits(text: &[u8], at: usize) -> (u64, usize) {
    let Some(word) = text.get(at..).and_then(<[u8]>::first_chunk::<8>) else {
        return last_digits(text, at);
    };
    let word = u64::from_le_bytes(*word);
    match count_digits(word) {
        0 => (0, 0),
        count => (value_of(word, count), count),
    }
}

/// How many of the bytes, from the first on, are digits.
fn count_digits(word: u64) -> usize {
    let others =
        ((word & UPPER_HALVES) ^ ZEROS) | ((word.wrapping_add(PAST_NINE) & UPPER_HALVES) ^ ZEROS);
    (others.trailing_zeros() / 8) as usize
}

/// The value of the first `count` bytes, which are digits; one to eight of them.
fn value_of(word: u64, count: usize) -> u64 {
    // Moved to the upper end they have zeros before them; then they are joined two by two.
    let ones = (word << (64 - 8 * count)) & 0x0F0F_0F0F_0F0F_0F0F;
    let pairs = (ones.wrapping_mul(2561) >> 8) & 0x00FF_00FF_00FF_00FF;
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
