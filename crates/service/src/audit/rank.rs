//! What one rank's reports say about its events: when its overlap is to be believed less, and when again in full.
//!
//! Sans-IO: comparisons and the time come in, steps go out. It knows no partition and asks for nothing.
//! The rules:
//!
//! - A report agrees if it lies between what the engine itself announced and all that it may hold, one
//!   block more or less. Below is *over*: the router promised more than the engine delivered.
//! - Only where something was announced can a promise be broken, so only those comparisons are judged:
//!   the youngest [`WINDOW`], none older than [`OLDEST`].
//! - From [`JUDGED_FROM`] on, a rank whose promises are broken in half of them, and that delivered less
//!   than half of the tokens, is quarantined. Its overlap then counts by the share that it delivered.
//! - What was decided before a quarantine, or while the cache is being read again (the settling time), says
//!   nothing about what is known then.
//! - [`AGREEMENTS`] in a row end a quarantine, or a time without one more broken promise: a minute,
//!   doubled for each quarantine since the rank was last trusted for [`FORGIVEN_AFTER`], up to an hour.
//! - A quarantined rank that breaks as many promises again is read again, no sooner than after that time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

pub(super) const WINDOW: usize = 16;
pub(super) const JUDGED_FROM: usize = 8;
pub(super) const OLDEST: Duration = Duration::from_mins(10);
pub(super) const AGREEMENTS: u32 = 8;
pub(super) const SHORTEST_QUARANTINE: Duration = Duration::from_mins(1);
pub(super) const LONGEST_QUARANTINE: Duration = Duration::from_hours(1);
pub(super) const FORGIVEN_AFTER: Duration = Duration::from_hours(1);

/// One report beside what was expected, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Comparison {
    pub(super) decided_at: Instant,
    pub(super) block_size: u64,
    /// What the engine itself had announced.
    pub(super) promised: u64,
    /// All that it may hold.
    pub(super) possible: u64,
    pub(super) reported: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Verdict {
    Agreed,
    Over,
    Under,
}

/// What became of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Counted(Verdict),
    /// The decision is older than what is now known of the rank.
    Stale,
}

/// What is to be done about a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step {
    /// Let its overlap count by the share that was delivered, and read its cache again.
    Quarantine(Evidence),
    /// Let its overlap count in full.
    Restore,
}

/// Why a rank is quarantined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Evidence {
    pub(super) comparisons: u32,
    pub(super) broken: u32,
    pub(super) promised: u64,
    pub(super) delivered: u64,
}

/// How often each verdict was reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) agreed: u64,
    pub(super) over: u64,
    pub(super) under: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Quarantine {
    pub(super) since: Instant,
    pub(super) evidence: Evidence,
    agreed_in_a_row: u32,
    /// No promise was broken since.
    quiet_since: Instant,
    again_from: Instant,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Trusted { since: Instant },
    Quarantined(Quarantine),
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    promised: u64,
    delivered: u64,
    broken: bool,
}

#[derive(Debug)]
pub(super) struct RankAudit {
    settling: Duration,
    phase: Phase,
    window: VecDeque<Sample>,
    counts: Counts,
    /// Decisions before it say nothing any more.
    counts_from: Option<Instant>,
    /// Quarantines since the rank was last trusted for long.
    rounds: u32,
}

impl Comparison {
    pub(super) fn verdict(&self) -> Verdict {
        if self.reported.saturating_add(self.block_size) < self.promised {
            Verdict::Over
        } else if self.reported > self.possible.saturating_add(self.block_size) {
            Verdict::Under
        } else {
            Verdict::Agreed
        }
    }
}

impl Evidence {
    /// How much of what was promised was delivered, from 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "a share; a rounded one will do")]
    pub(super) fn share(&self) -> f64 {
        if self.promised == 0 {
            return 1.0;
        }
        self.delivered as f64 / self.promised as f64
    }

    fn convicts(&self) -> bool {
        usize::try_from(self.comparisons).is_ok_and(|count| count >= JUDGED_FROM)
            && self.broken.saturating_mul(2) >= self.comparisons
            && self.delivered.saturating_mul(2) < self.promised
    }
}

impl RankAudit {
    pub(super) fn new(settling: Duration, now: Instant) -> Self {
        Self {
            settling,
            phase: Phase::Trusted { since: now },
            window: VecDeque::new(),
            counts: Counts::default(),
            counts_from: None,
            rounds: 0,
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn rounds(&self) -> u32 {
        self.rounds
    }

    pub(super) fn quarantine(&self) -> Option<&Quarantine> {
        match &self.phase {
            Phase::Trusted { .. } => None,
            Phase::Quarantined(quarantine) => Some(quarantine),
        }
    }

    /// Counts a comparison and judges nothing.
    pub(super) fn count(&mut self, comparison: &Comparison) -> Verdict {
        let verdict = comparison.verdict();
        let count = match verdict {
            Verdict::Agreed => &mut self.counts.agreed,
            Verdict::Over => &mut self.counts.over,
            Verdict::Under => &mut self.counts.under,
        };
        *count = count.saturating_add(1);
        verdict
    }

    /// Counts a comparison and judges the rank by it.
    pub(super) fn hear(&mut self, comparison: &Comparison, now: Instant) -> (Heard, Option<Step>) {
        let is_stale = |from: Instant| comparison.decided_at < from;
        if self.counts_from.is_some_and(is_stale) {
            return (Heard::Stale, None);
        }
        let verdict = self.count(comparison);
        let heard = Heard::Counted(verdict);
        if comparison.promised == 0 {
            return (heard, None);
        }
        let broken = verdict == Verdict::Over;
        self.remember(comparison, broken, now);
        let evidence = self.evidence();
        let step = match &mut self.phase {
            Phase::Trusted { .. } if evidence.convicts() => Some(self.convict(evidence, now)),
            Phase::Trusted { .. } => None,
            Phase::Quarantined(quarantine) => {
                if broken {
                    quarantine.agreed_in_a_row = 0;
                    quarantine.quiet_since = now;
                } else {
                    quarantine.agreed_in_a_row += 1;
                }
                if quarantine.agreed_in_a_row >= AGREEMENTS {
                    Some(self.restore(now))
                } else if evidence.convicts() && now >= quarantine.again_from {
                    Some(self.convict(evidence, now))
                } else {
                    None
                }
            }
        };
        (heard, step)
    }

    /// What time alone brings about.
    pub(super) fn pass(&mut self, now: Instant) -> Option<Step> {
        match &self.phase {
            Phase::Trusted { since } => {
                if now.saturating_duration_since(*since) >= FORGIVEN_AFTER {
                    self.rounds = 0;
                }
                None
            }
            Phase::Quarantined(quarantine) => {
                let quiet = now.saturating_duration_since(quarantine.quiet_since);
                (quiet >= self.length()).then(|| self.restore(now))
            }
        }
    }

    fn remember(&mut self, comparison: &Comparison, broken: bool, now: Instant) {
        let too_old = |sample: &Sample| now.saturating_duration_since(sample.at) > OLDEST;
        while self.window.len() >= WINDOW || self.window.front().is_some_and(too_old) {
            self.window.pop_front();
        }
        self.window.push_back(Sample {
            at: now,
            promised: comparison.promised,
            delivered: comparison.reported.min(comparison.promised),
            broken,
        });
    }

    fn evidence(&self) -> Evidence {
        let mut evidence = Evidence::default();
        for sample in &self.window {
            evidence.comparisons += 1;
            evidence.broken += u32::from(sample.broken);
            evidence.promised = evidence.promised.saturating_add(sample.promised);
            evidence.delivered = evidence.delivered.saturating_add(sample.delivered);
        }
        evidence
    }

    fn convict(&mut self, evidence: Evidence, now: Instant) -> Step {
        let since = match &self.phase {
            Phase::Trusted { .. } => now,
            Phase::Quarantined(quarantine) => quarantine.since,
        };
        self.rounds = self.rounds.saturating_add(1);
        self.window.clear();
        self.counts_from = Some(now + self.settling);
        self.phase = Phase::Quarantined(Quarantine {
            since,
            evidence,
            agreed_in_a_row: 0,
            quiet_since: now,
            again_from: now + self.length(),
        });
        Step::Quarantine(evidence)
    }

    fn restore(&mut self, now: Instant) -> Step {
        self.window.clear();
        self.counts_from = Some(now);
        self.phase = Phase::Trusted { since: now };
        Step::Restore
    }

    /// How long a quarantine lasts at least, unless agreement ends it.
    fn length(&self) -> Duration {
        let doublings = self.rounds.saturating_sub(1).min(16);
        SHORTEST_QUARANTINE
            .saturating_mul(1 << doublings)
            .min(LONGEST_QUARANTINE)
    }
}

#[cfg(test)]
mod tests;
