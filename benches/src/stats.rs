//! The few statistics the tables need: medians, percentiles and the spread of repetitions.
//! It never drops an outlier.

use std::fmt;
use std::time::Duration;

/// The median of repeated measurements, with the quartiles around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) lower: f64,
    pub(crate) median: f64,
    pub(crate) upper: f64,
}

impl Spread {
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self {
            lower: at(&values, 0.25),
            median: at(&values, 0.5),
            upper: at(&values, 0.75),
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(2);
        let Self {
            lower,
            median,
            upper,
        } = self;
        write!(f, "{median:.digits$} [{lower:.digits$}-{upper:.digits$}]")
    }
}

/// The median; not a number for no values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    at(&values, 0.5)
}

/// The smallest value that at least `share` of the sorted values do not exceed.
pub(crate) fn percentile(sorted: &[Duration], share: f64) -> Duration {
    let rank = index(sorted.len() as f64 * share).max(1) - 1;
    sorted
        .get(rank.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

/// Linear interpolation between the closest ranks of sorted values.
fn at(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let place = last as f64 * share;
    let below = index(place.floor());
    let above = (below + 1).min(last);
    let part = place - place.floor();
    sorted[below] * (1.0 - part) + sorted[above] * part
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rank is small and not negative"
)]
fn index(rank: f64) -> usize {
    rank.ceil() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_lies_between_the_middle_two() {
        assert!((median(vec![4.0, 1.0, 3.0, 2.0]) - 2.5).abs() < 1e-9);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn a_percentile_is_one_of_the_values_and_p99_of_few_is_the_largest() {
        let sorted: Vec<_> = (1..=10).map(Duration::from_millis).collect();
        assert_eq!(percentile(&sorted, 0.5), Duration::from_millis(5));
        assert_eq!(percentile(&sorted, 0.99), Duration::from_millis(10));
        assert_eq!(percentile(&[], 0.5), Duration::ZERO);
    }

    #[test]
    fn quartiles_stand_around_the_median() {
        let spread = Spread::of(vec![1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(format!("{spread:.1}"), "3.0 [2.0-4.0]");
    }
}
