//! The known choices of an error message, with the one that was probably meant.
//!
//! It never decides whether a value is right.

use std::fmt;

/// What could have been written instead. Displays as `did you mean X? known things: X, Y`, or `<none>` without choices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choices {
    title: &'static str,
    nearest: Option<String>,
    known: Vec<String>,
}

impl Choices {
    /// The `known` choices under `title`, and which of them is nearest to `given`.
    pub(crate) fn new<S: Into<String>>(
        title: &'static str,
        given: &str,
        known: impl IntoIterator<Item = S>,
    ) -> Self {
        let known: Vec<String> = known.into_iter().map(Into::into).collect();
        let nearest = nearest(given, &known).map(str::to_owned);
        Self {
            title,
            nearest,
            known,
        }
    }
}

impl fmt::Display for Choices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(nearest) = &self.nearest {
            write!(f, "did you mean {nearest}? ")?;
        }
        let known = if self.known.is_empty() {
            "<none>".to_owned()
        } else {
            self.known.join(", ")
        };
        write!(f, "{}: {known}", self.title)
    }
}

/// The one of `every` whose `name` is `text`; case and surrounding white space do not matter.
pub(crate) fn by_name<T: Copy, const N: usize>(
    text: &str,
    title: &'static str,
    every: [T; N],
    name: fn(T) -> &'static str,
) -> Result<T, Choices> {
    let word = text.trim().to_lowercase();
    let found = every.into_iter().find(|value| name(*value) == word);
    found.ok_or_else(|| Choices::new(title, &word, every.map(name)))
}

/// The choice that `given` was probably meant to be: at most a third of its characters away, and at least one allowed.
pub(crate) fn nearest<'a, S: AsRef<str>>(given: &str, known: &'a [S]) -> Option<&'a str> {
    let limit = (given.chars().count() / 3).max(1);
    known
        .iter()
        .map(|choice| (edit_distance(given, choice.as_ref()), choice.as_ref()))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, choice)| choice)
}

/// Insertions, deletions, replacements and swaps of neighbours that turn `left` into `right`, ignoring ASCII case.
fn edit_distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().map(|c| c.to_ascii_lowercase()).collect();
    let right: Vec<char> = right.chars().map(|c| c.to_ascii_lowercase()).collect();
    let mut before_last = vec![0; right.len() + 1];
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (i, l) in left.iter().enumerate() {
        let mut row = vec![i + 1; right.len() + 1];
        for (j, r) in right.iter().enumerate() {
            let replaced = last[j] + usize::from(l != r);
            row[j + 1] = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *l == right[j - 1] && left[i - 1] == *r {
                row[j + 1] = row[j + 1].min(before_last[j - 1] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_single_edits_and_swaps() {
        let table = [
            ("", "", 0),
            ("", "abc", 3),
            ("least-busy", "lest-busy", 1),
            ("least-busy", "Least-Busy", 0),
            ("plain", "plian", 1),
            ("kitten", "sitting", 3),
        ];
        for (left, right, distance) in table {
            assert_eq!(edit_distance(left, right), distance, "{left} -> {right}");
            assert_eq!(edit_distance(right, left), distance, "{right} -> {left}");
        }
    }

    #[test]
    fn a_far_word_has_no_nearest_choice() {
        assert_eq!(nearest("zzzzzz", &["plain", "least-busy"]), None);
        assert_eq!(nearest("plian", &["plain", "least-busy"]), Some("plain"));
    }

    #[test]
    fn no_choices_are_shown_as_none() {
        assert_eq!(
            Choices::new("linked types", "x", Vec::<String>::new()).to_string(),
            "linked types: <none>"
        );
    }
}
