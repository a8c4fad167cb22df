//! What templates take from Python: how values are written, JSON dumps, dates.
//!
//! Never escapes for HTML: prompts are not pages.

use std::{
    fmt::Write as _,
    time::{SystemTime, UNIX_EPOCH},
};

use minijinja::{
    Error, ErrorKind, Output, Value,
    value::{Kwargs, Rest, ValueKind},
};

const SECONDS_PER_DAY: u64 = 86_400;
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];

/// `str(value)`.
pub(super) fn write(out: &mut Output<'_>, value: &Value) -> Result<(), Error> {
    let written = match value.kind() {
        ValueKind::String => out.write_str(value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => {
            out.write_str(&float(f64::try_from(value.clone())?))
        }
        ValueKind::Invalid => return Err(Error::new(ErrorKind::WriteFailure, value.to_string())),
        _ => write!(out, "{value}"),
    };
    written.map_err(|_| Error::from(ErrorKind::WriteFailure))
}

/// Text counts, and so do lists and maps.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Bytes
    )
}

pub(super) fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || matches!(value.kind(), ValueKind::Iterable | ValueKind::Undefined)
}

/// `json.dumps` with the defaults that chat templates are written for.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the engine hands over what it parsed"
)]
pub(super) fn tojson(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let mut given = [const { None }; 4];
    for (slot, (name, position)) in given.iter_mut().zip(names.iter().zip(0..)) {
        let by_name: Option<Value> = kwargs.get(name)?;
        *slot = by_name.or_else(|| args.get(position).cloned());
        *slot = slot
            .take()
            .filter(|value| !value.is_none() && !value.is_undefined());
    }
    kwargs.assert_all_used()?;
    let [ensure_ascii, indent, separators, sort_keys] = given;
    let separator = |index: usize| -> Option<String> {
        let pair = separators.as_ref()?;
        Some(pair.get_item_by_index(index).ok()?.as_str()?.to_owned())
    };
    let indent = indent.map(|indent| match indent.as_usize() {
        Some(width) => " ".repeat(width.min(32)),
        None => indent.as_str().unwrap_or_default().to_owned(),
    });
    let between = if indent.is_some() { "," } else { ", " };
    let mut dump = Dump {
        out: String::new(),
        between: separator(0).unwrap_or_else(|| between.to_owned()),
        colon: separator(1).unwrap_or_else(|| ": ".to_owned()),
        ensure_ascii: ensure_ascii.is_some_and(|value| value.is_true()),
        sort_keys: sort_keys.is_some_and(|value| value.is_true()),
        indent,
        level: 0,
    };
    dump.value(value)?;
    Ok(Value::from(dump.out))
}

struct Dump {
    out: String,
    between: String,
    colon: String,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    level: usize,
}

impl Dump {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value)?,
            ValueKind::Map => self.map(value)?,
            kind => {
                let problem = format!("a value of kind {kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::BadSerialization, problem));
            }
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            let _ = write!(self.out, "{value}");
            return Ok(());
        }
        let number = f64::try_from(value.clone())?;
        match number.is_finite() {
            true => self.out.push_str(&float(number)),
            false if number.is_nan() => self.out.push_str("NaN"),
            false if number > 0.0 => self.out.push_str("Infinity"),
            false => self.out.push_str("-Infinity"),
        }
        Ok(())
    }

    fn list(&mut self, value: &Value) -> Result<(), Error> {
        let mut empty = true;
        self.out.push('[');
        for item in value.try_iter()? {
            self.open_item(&mut empty);
            self.value(&item)?;
        }
        self.close(empty, ']');
        Ok(())
    }

    fn map(&mut self, value: &Value) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        let mut empty = true;
        self.out.push('{');
        for key in keys {
            self.open_item(&mut empty);
            if let Some(text) = key.as_str() {
                self.text(text);
            } else {
                self.out.push('"');
                self.value(&key)?;
                self.out.push('"');
            }
            self.out.push_str(&self.colon);
            self.value(&value.get_item(&key)?)?;
        }
        self.close(empty, '}');
        Ok(())
    }

    fn open_item(&mut self, empty: &mut bool) {
        if *empty {
            self.level += 1;
        } else {
            self.out.push_str(&self.between);
        }
        *empty = false;
        self.new_line();
    }

    fn close(&mut self, empty: bool, bracket: char) {
        if !empty {
            self.level -= 1;
            self.new_line();
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..self.level {
                self.out.push_str(indent);
            }
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        let mut plain = 0;
        for (at, c) in text.char_indices() {
            let is_plain =
                !matches!(c, '"' | '\\' | '\0'..='\x1f') && (c <= '\x7e' || !self.ensure_ascii);
            if is_plain {
                continue;
            }
            self.out.push_str(&text[plain..at]);
            plain = at + c.len_utf8();
            self.escaped(c);
        }
        self.out.push_str(&text[plain..]);
        self.out.push('"');
    }

    fn escaped(&mut self, c: char) {
        match c {
            '"' => self.out.push_str("\\\""),
            '\\' => self.out.push_str("\\\\"),
            '\n' => self.out.push_str("\\n"),
            '\r' => self.out.push_str("\\r"),
            '\t' => self.out.push_str("\\t"),
            '\x08' => self.out.push_str("\\b"),
            '\x0c' => self.out.push_str("\\f"),
            '\x7f' => self.out.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(self.out, "\\u{unit:04x}");
                }
            }
        }
    }
}

/// `repr` of a float: shortest digits, an exponent from 1e16 up and below 1e-4.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{number:?}")
}

/// `datetime.now().strftime(format)`, in UTC as containers run.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the engine hands over what it parsed"
)]
pub(super) fn strftime_now(format: String) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    strftime(&format, since.map_or(0, |elapsed| elapsed.as_secs()))
}

fn strftime(format: &str, seconds: u64) -> String {
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let directive = chars.next();
        let text = match directive {
            Some('-') => written(chars.next(), seconds, Padding::None),
            _ => written(directive, seconds, Padding::Zero),
        };
        out.push_str(&text);
    }
    out
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Padding {
    None,
    Zero,
}

fn written(directive: Option<char>, seconds: u64, padding: Padding) -> String {
    let (days, second) = (seconds / SECONDS_PER_DAY, seconds % SECONDS_PER_DAY);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let month_name = MONTHS[usize::try_from(month - 1).unwrap_or(0)];
    let weekday = WEEKDAYS[usize::try_from(days % 7).unwrap_or(0)];
    let number = |value: u64| match padding {
        Padding::Zero => format!("{value:02}"),
        Padding::None => value.to_string(),
    };
    match directive {
        Some('Y') => year.to_string(),
        Some('y') => number(year % 100),
        Some('m') => number(month),
        Some('d') => number(day),
        Some('e') => format!("{day:2}"),
        Some('H') => number(hour),
        Some('I') => number((hour + 11) % 12 + 1),
        Some('M') => number(minute),
        Some('S') => number(second),
        Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
        Some('B') => month_name.to_owned(),
        Some('b' | 'h') => month_name[..3].to_owned(),
        Some('A') => weekday.to_owned(),
        Some('a') => weekday[..3].to_owned(),
        Some('F') => format!("{year}-{month:02}-{day:02}"),
        Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
        Some('%') | None => "%".to_owned(),
        Some(other) => format!("%{other}"),
    }
}

/// Year, month and day of a day counted from 1970-01-01 (Gregorian, any year).
fn date(days: u64) -> (u64, u64, u64) {
    // Years are counted from March, so that the leap day is a year's last.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year + carry, month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let check = |number, expected| assert_eq!(float(number), expected);
        check(1.0, "1.0");
        check(-0.0, "-0.0");
        check(0.1, "0.1");
        check(1e2, "100.0");
        check(1e16, "1e+16");
        check(123_456_789_012_345.6, "123456789012345.6");
        check(1.5e-7, "1.5e-07");
        check(0.0001, "0.0001");
        check(1e300, "1e+300");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let check = |seconds, expected| assert_eq!(strftime("%a %d %b %Y %T", seconds), expected);
        check(0, "Thu 01 Jan 1970 00:00:00");
        check(951_782_400, "Tue 29 Feb 2000 00:00:00");
        check(1_735_689_599, "Tue 31 Dec 2024 23:59:59");
        check(4_107_542_400, "Mon 01 Mar 2100 00:00:00");
        assert_eq!(
            strftime("%-d %B, %I %p %% %q", 1_735_689_599),
            "31 December, 11 PM % %q"
        );
    }
}
