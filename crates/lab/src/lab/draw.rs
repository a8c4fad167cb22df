//! The lab in the terminal: steps, progress, who served what, figures side by side.
//! Never computes a figure.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _, stdout};

use super::play::Turn;
use super::verdict::Figures;

const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Background colours of workers, readable with black text.
const COLOURS: [u8; 6] = [114, 215, 75, 182, 222, 80];

/// One line that counts up while requests are answered; silent where the output is no terminal.
#[derive(Debug)]
pub(super) struct Progress {
    label: &'static str,
    total: usize,
    shown: bool,
}

impl Progress {
    pub(super) fn new(label: &'static str, total: usize) -> Self {
        Self {
            label,
            total,
            shown: stdout().is_terminal(),
        }
    }

    pub(super) fn show(&self, done: usize) {
        if self.shown {
            print!("\r    {}: {done} of {}\x1b[K", self.label, self.total);
            // A terminal that went away takes no more progress.
            let _ = stdout().flush();
        }
    }

    pub(super) fn end(&self) {
        if self.shown {
            print!("\r\x1b[K");
            let _ = stdout().flush();
        }
    }
}

/// Says what is being done.
pub(super) fn step(text: &str) {
    if stdout().is_terminal() {
        println!("\x1b[1;36m==>\x1b[0m {text}");
    } else {
        println!("==> {text}");
    }
}

/// A row for each conversation, a cell for each turn: who served it, and how much of its prompt was cached.
pub(super) fn table(title: &str, turns: &[Turn], systems: &[Option<u64>]) -> String {
    paint(title, turns, systems, stdout().is_terminal())
}

fn paint(title: &str, turns: &[Turn], systems: &[Option<u64>], coloured: bool) -> String {
    let mut text = format!("\n  {title}\n");
    let columns = turns.iter().map(|turn| turn.number + 1).max().unwrap_or(0);
    text.push_str("    conversation     ");
    for column in 1..=columns {
        // Writing to a String cannot fail.
        let _ = write!(text, "turn {column:<5}");
    }
    text.truncate(text.trim_end_matches(' ').len());
    text.push('\n');
    for (number, system) in systems.iter().enumerate() {
        let system = system.map_or(String::new(), |which| format!("(system {which})"));
        let _ = write!(text, "    {:>3} {system:<12} ", number + 1);
        for column in 0..columns {
            let here = |turn: &&Turn| turn.conversation == number && turn.number == column;
            text.push_str(
                &turns
                    .iter()
                    .find(here)
                    .map_or(" ".repeat(10), |turn| cell(turn, coloured)),
            );
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    text
}

fn cell(turn: &Turn, coloured: bool) -> String {
    let percent = percent(turn.cached_tokens, turn.prompt_tokens);
    let bar = BARS[usize::try_from(percent * 8 / 100).unwrap_or(0).min(8)];
    let number = turn.worker.trim_start_matches("worker-");
    let colour = number.parse::<usize>().unwrap_or(0) % COLOURS.len();
    if coloured {
        format!(
            "\x1b[30;48;5;{}m {number:>2} \x1b[0m{bar}{percent:>3}% ",
            COLOURS[colour]
        )
    } else {
        format!("#{number:<2} {bar}{percent:>3}% ")
    }
}

/// The figures of two runs side by side.
pub(super) fn comparison(pointsman: &Figures, round_robin: &Figures) -> String {
    let mut text = format!("\n    {:<40}{:>12}{:>14}\n", "", "Pointsman", "round robin");
    let mut row = |label: &str, figure: &dyn Fn(&Figures) -> String| {
        let (ours, theirs) = (figure(pointsman), figure(round_robin));
        let _ = writeln!(text, "    {label:<40}{ours:>12}{theirs:>14}");
    };
    row("stayed on the worker of the turn before", &|run| {
        rate(run.stayed, run.later_turns)
    });
    row("prompt tokens served from cache", &|run| {
        format!("{}%", percent(run.cached_tokens, run.prompt_tokens))
    });
    row("time to first token, p50", &|run| {
        milliseconds(run.first_token_p50)
    });
    row("time to first token, p99", &|run| {
        milliseconds(run.first_token_p99)
    });
    text
}

/// A share as a percentage with one digit, and the counts.
pub(super) fn rate(part: usize, whole: usize) -> String {
    let tenths = part * 1_000 / whole.max(1);
    format!("{}.{}%", tenths / 10, tenths % 10)
}

fn percent(part: u64, whole: u64) -> u64 {
    part * 100 / whole.max(1)
}

fn milliseconds(duration: std::time::Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_table_without_colours_names_workers_and_cached_shares() {
        let turn = |number, worker: &str, cached_tokens| Turn {
            conversation: 0,
            number,
            worker: worker.to_owned(),
            prompt_tokens: 200,
            cached_tokens,
            predicted_tokens: None,
            first_token: Duration::ZERO,
        };
        let turns = [turn(0, "worker-2", 0), turn(1, "worker-2", 150)];
        let drawn = paint("Title", &turns, &[Some(1)], false);
        let expected = "
  Title
    conversation     turn 1    turn 2
      1 (system 1)   #2     0% #2  ▆ 75%
";
        assert_eq!(drawn, expected);
    }

    #[test]
    fn a_rate_has_one_digit() {
        assert_eq!(rate(199, 200), "99.5%");
        assert_eq!(rate(0, 0), "0.0%");
    }
}
