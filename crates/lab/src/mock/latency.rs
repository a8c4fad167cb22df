//! Times that an engine's clients waited, counted in the buckets that vLLM uses.
//! Never reads a clock: whoever measures gives seconds.

use std::time::Duration;

const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const INTER_TOKEN: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];

#[derive(Clone, Debug)]
pub(super) struct Histogram {
    bounds: &'static [f64],
    /// One per bound, and one for what is beyond the last.
    counts: Vec<u64>,
    sum: f64,
}

/// From a request's arrival to its first token, and from each token to the next.
#[derive(Clone, Debug)]
pub(super) struct Latencies {
    pub(super) first_token: Histogram,
    pub(super) inter_token: Histogram,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            first_token: Histogram::new(FIRST_TOKEN),
            inter_token: Histogram::new(INTER_TOKEN),
        }
    }
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len() + 1],
            sum: 0.0,
        }
    }

    pub(super) fn observe(&mut self, waited: Duration) {
        let seconds = waited.as_secs_f64();
        let bucket = self.bounds.partition_point(|bound| *bound < seconds);
        self.counts[bucket] += 1;
        self.sum += seconds;
    }

    /// Upper bounds as they are written, each with the number of times up to it; the last is `+Inf`.
    pub(super) fn cumulated(&self) -> Vec<(String, u64)> {
        let bounds = self.bounds.iter().map(|bound| format!("{bound:?}"));
        let mut total = 0;
        bounds
            .chain(["+Inf".to_owned()])
            .zip(&self.counts)
            .map(|(bound, count)| {
                total += count;
                (bound, total)
            })
            .collect()
    }

    pub(super) fn sum(&self) -> f64 {
        self.sum
    }

    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_in_every_bucket_from_its_own_bound_on() {
        let mut histogram = Histogram::new(&[0.5, 1.0]);
        for millis in [500, 501, 9_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let cumulated = histogram.cumulated();
        let expected = [("0.5", 1), ("1.0", 2), ("+Inf", 3)];
        assert_eq!(
            cumulated,
            expected.map(|(bound, count)| (bound.to_owned(), count))
        );
    }
}
