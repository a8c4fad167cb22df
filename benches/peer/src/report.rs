//! Prints figures beside their limits, reads the CPU clock, and finds quantiles.

use std::time::Duration;

use nix::time::ClockId;

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

/// The median of ratios that are sorted in place, their quartiles, and the verdict on the median.
pub(crate) fn verdict_of_many(ratios: &mut [f64], limit: f64) -> String {
    let [lower, median, upper] = [0.25, 0.5, 0.75].map(|share| quantile(ratios, share));
    let word = if median <= limit { "holds" } else { "MISSES" };
    format!("{median:6.2}x [{lower:.2}-{upper:.2}] (limit {limit:.2}x) {word}")
}

/// CPU seconds of all threads of this process.
pub(crate) fn cpu() -> f64 {
    seconds(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU seconds of this thread: what a side that starts none takes, whatever threads of the other still do.
pub(crate) fn own_cpu() -> f64 {
    seconds(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock.now();
    Duration::from(time.expect("the kernel counts CPU time")).as_secs_f64()
}
