//! The table of the latency bench, and the reference figures that stand beside ours.
//! It never measures.

use std::time::Duration;

use super::load::Outcome;
use crate::prompts::Size;
use crate::stats::{median, percentile};

/// One way past the measured Envoy, under one load.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) outcome: Outcome,
    pub(super) envoy_us: f64,
    pub(super) picker_us: Option<f64>,
}

/// All repeats of one load, for Envoy alone, with the trivial picker, and with Pointsman.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) size: Size,
    pub(super) per_second: u32,
    pub(super) repeats: Vec<[Measured; 3]>,
}

pub(super) const WAYS: [&str; 3] = ["Envoy alone", "+ trivial", "+ Pointsman"];
const SHARES: [f64; 3] = [0.5, 0.95, 0.99];

/// Figures taken earlier on a machine of the same kind, in ms; those of absent ones were not taken.
struct Reference {
    size: Size,
    per_second: u32,
    trivial: [Option<f64>; 3],
    go: [Option<f64>; 3],
}

const REFERENCES: [Reference; 4] = [
    Reference {
        size: Size::Small,
        per_second: 50,
        trivial: [Some(0.70), Some(1.1), Some(1.4)],
        go: [Some(1.55), Some(1.9), Some(2.9)],
    },
    Reference {
        size: Size::Small,
        per_second: 500,
        trivial: [Some(0.42), Some(0.72), Some(1.7)],
        go: [Some(0.95), Some(1.7), Some(3.9)],
    },
    Reference {
        size: Size::Large,
        per_second: 50,
        trivial: [Some(1.1), None, Some(1.7)],
        go: [Some(4.1), None, Some(13.0)],
    },
    Reference {
        size: Size::Large,
        per_second: 500,
        trivial: [Some(0.75), None, Some(2.2)],
        go: [Some(703.0), None, Some(1180.0)],
    },
];

pub(super) fn print(rows: &[Row]) {
    println!(
        "\nlatency from the moment a request was due, ms; `+` rows are what the picker adds to Envoy alone"
    );
    println!("medians of the repeats, [lowest..highest] for the medians of latency and for CPU\n");
    println!(
        "{:<7} {:>5} {:<13} {:>21} {:>8} {:>8} {:>9} {:>6} {:>20} {:>20}",
        "prompt",
        "req/s",
        "way",
        "p50",
        "p95",
        "p99",
        "achieved",
        "errors",
        "Envoy CPU us/req",
        "picker CPU us/req"
    );
    for row in rows {
        for (way, name) in WAYS.into_iter().enumerate() {
            print_way(row, way, name);
        }
        print_references(row);
        println!();
    }
    print_ratios(rows);
    println!(
        "Reference figures were taken earlier on two cores of the same kind (CPU per request of the trivial"
    );
    println!(
        "picker and of a Go picker: 212 and 739 us at 1 KB and 500/s, 497 and 3,892 us at 100 KB and 200/s)."
    );
    println!(
        "With fewer than 100 requests a repeat the p99 is the largest, with fewer than 20 the p95 is too."
    );
}

fn print_way(row: &Row, way: usize, name: &str) {
    let [p50, p95, p99] = SHARES.map(|share| row.added(way, share));
    let lowest = p50.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = p50.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let middle = format!("{} [{lowest:.2}..{highest:.2}]", signed(way, median(p50)));
    let achieved = median(row.each(way, |one| one.outcome.achieved_per_second));
    let errors: usize = row
        .repeats
        .iter()
        .map(|repeat| repeat[way].outcome.errors)
        .sum();
    let envoy = range(&row.each(way, |one| one.envoy_us), 0);
    let picker = if way == 0 {
        "-".to_owned()
    } else {
        range(&row.each(way, |one| one.picker_us.unwrap_or(f64::NAN)), 0)
    };
    println!(
        "{:<7} {:>5} {name:<13} {:>21} {:>8} {:>8} {achieved:>9.1} {errors:>6} {envoy:>20} {picker:>20}",
        row.size.label(),
        row.per_second,
        middle,
        signed(way, median(p95)),
        signed(way, median(p99)),
    );
}

fn print_references(row: &Row) {
    let same = |reference: &&Reference| {
        reference.size == row.size && reference.per_second == row.per_second
    };
    let Some(reference) = REFERENCES.iter().find(same) else {
        return;
    };
    let figure =
        |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("+{value:.2}"));
    for (name, figures) in [
        ("ref. trivial", reference.trivial),
        ("ref. Go", reference.go),
    ] {
        let [p50, p95, p99] = figures.map(figure);
        println!("{:<7} {:>5} {name:<13} {p50:>21} {p95:>8} {p99:>8}", "", "");
    }
}

fn print_ratios(rows: &[Row]) {
    println!("what Pointsman adds over what the trivial picker adds (ratio of the medians):");
    for row in rows {
        let ratio = |share| median(row.added(2, share)) / median(row.added(1, share));
        println!(
            "  {:<7} {:>3} req/s  p50 {:>5.2}  p95 {:>5.2}  p99 {:>5.2}",
            row.size.label(),
            row.per_second,
            ratio(0.5),
            ratio(0.95),
            ratio(0.99)
        );
    }
    println!();
}

impl Row {
    /// Of each repeat, a percentile in ms; for the ways with a picker, less that of Envoy alone.
    fn added(&self, way: usize, share: f64) -> Vec<f64> {
        let of = |one: &Measured| milliseconds(percentile(&one.outcome.latencies, share));
        let added =
            |repeat: &[Measured; 3]| of(&repeat[way]) - if way == 0 { 0.0 } else { of(&repeat[0]) };
        self.repeats.iter().map(added).collect()
    }

    fn each(&self, way: usize, figure: impl Fn(&Measured) -> f64) -> Vec<f64> {
        self.repeats
            .iter()
            .map(|repeat| figure(&repeat[way]))
            .collect()
    }
}

/// What a picker adds bears its sign.
fn signed(way: usize, value: f64) -> String {
    if way == 0 {
        format!("{value:.2}")
    } else {
        format!("{value:+.2}")
    }
}

fn range(values: &[f64], digits: usize) -> String {
    let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!(
        "{:.digits$} [{lowest:.digits$}..{highest:.digits$}]",
        median(values.to_vec())
    )
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
