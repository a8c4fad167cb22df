//! Prints figures beside their limits, reads the CPU clock, and finds quantiles.

use std::fs;
use std::time::Duration;

/// A quantile of figures that are sorted in place.
pub(crate) fn quantile(figures: &mut [f64], share: f64) -> f64 {
    figures.sort_by(f64::total_cmp);
    let last = figures.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a position in the slice"
    )]
    let at = (last as f64 * share).round() as usize;
    figures[at]
}

/// A ratio with its limit: `holds`, or `MISSES`.
pub(crate) fn verdict(ratio: f64, limit: f64) -> String {
    let word = if ratio <= limit { "holds" } else { "MISSES" };
    format!("{ratio:6.2}x (limit {limit:.2}x) {word}")
}

/// CPU time of all threads of this process that still live.
pub(crate) fn cpu() -> Duration {
    let mut nanoseconds = 0;
    for task in fs::read_dir("/proc/self/task").expect("procfs").flatten() {
        let stat = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let spent = stat
            .split_whitespace()
            .next()
            .and_then(|text| text.parse::<u64>().ok());
        nanoseconds += spent.unwrap_or(0);
    }
    Duration::from_nanos(nanoseconds)
}
