//! Says when a cache that keeps failing is asked again; it asks nothing itself and reads no clock.
//!
//! After [`FAILURES_IN_A_ROW`] failures nothing is asked for a second. Then one question is let
//! through: an answer ends the pause, none doubles it, up to [`LONGEST_PAUSE`].

use std::time::{Duration, Instant};

const FAILURES_IN_A_ROW: u32 = 5;
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: u32,
    pause: Option<Pause>,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Instant,
    length: Duration,
    /// The one question is out.
    tried: bool,
}

impl Breaker {
    /// Whether a question may be asked now. The one that is let through after a pause begins another, so that it stays
    /// the only one even if its outcome is never told.
    pub(super) fn admits(&mut self, now: Instant) -> bool {
        match &mut self.pause {
            None => true,
            Some(pause) if now < pause.until => false,
            Some(pause) => {
                pause.until = now + pause.length;
                pause.tried = true;
                true
            }
        }
    }

    pub(super) fn answered(&mut self) {
        *self = Self::default();
    }

    pub(super) fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        let length = match self.pause {
            None if self.failures < FAILURES_IN_A_ROW => return,
            None => SHORTEST_PAUSE,
            // A question that was under way when the pause began: nothing new.
            Some(pause) if !pause.tried => return,
            Some(pause) => (pause.length * 2).min(LONGEST_PAUSE),
        };
        self.pause = Some(Pause {
            until: now + length,
            length,
            tried: false,
        });
    }

    pub(super) fn is_paused(&self) -> bool {
        self.pause.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A breaker that has just paused, and when.
    fn paused() -> (Breaker, Instant) {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        for _ in 0..FAILURES_IN_A_ROW {
            assert!(breaker.admits(now));
            breaker.failed(now);
        }
        (breaker, now)
    }

    #[test]
    fn failures_that_are_not_in_a_row_pause_nothing() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        for _ in 0..10 {
            for _ in 1..FAILURES_IN_A_ROW {
                breaker.failed(now);
            }
            breaker.answered();
        }
        assert!(breaker.admits(now) && !breaker.is_paused());
    }

    #[test]
    fn a_pause_lets_one_question_through_at_its_end() {
        let (mut breaker, start) = paused();
        assert!(!breaker.admits(start + Duration::from_millis(999)));
        let end = start + SHORTEST_PAUSE;
        assert!(breaker.admits(end));
        assert!(!breaker.admits(end));
        breaker.answered();
        assert!(breaker.admits(end) && breaker.admits(end));
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let (mut breaker, mut now) = paused();
        let mut lengths = Vec::new();
        for _ in 0..7 {
            let from = now;
            while !breaker.admits(now) {
                now += Duration::from_millis(500);
            }
            lengths.push((now - from).as_secs());
            breaker.failed(now);
        }
        assert_eq!(lengths, [1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn late_failures_do_not_lengthen_a_pause() {
        let (mut breaker, start) = paused();
        for _ in 0..100 {
            breaker.failed(start + Duration::from_millis(500));
        }
        assert!(breaker.admits(start + SHORTEST_PAUSE));
    }

    #[test]
    fn a_question_whose_outcome_is_lost_does_not_end_all_asking() {
        let (mut breaker, start) = paused();
        assert!(breaker.admits(start + SHORTEST_PAUSE));
        assert!(breaker.admits(start + SHORTEST_PAUSE * 2));
    }
}
