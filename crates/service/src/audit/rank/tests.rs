//! The rules one by one, and all of them against a model that keeps everything.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

const BLOCK: u64 = 16;
const SETTLING: Duration = Duration::from_secs(10);

/// A clock and a rank.
struct Scene {
    now: Instant,
    rank: RankAudit,
}

impl Scene {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            now,
            rank: RankAudit::new(SETTLING, now),
        }
    }

    fn later(&mut self, time: Duration) -> &mut Self {
        self.now += time;
        self
    }

    /// Decided now, and reported at once.
    fn report(&mut self, promised_blocks: u64, reported_blocks: u64) -> Option<Step> {
        let comparison = compared(self.now, promised_blocks, reported_blocks);
        self.rank.hear(&comparison, self.now).1
    }

    /// Quarantined, and settled again.
    fn quarantined() -> Self {
        let mut scene = Self::new();
        for _ in 1..JUDGED_FROM {
            assert_eq!(scene.report(10, 0), None);
        }
        assert!(matches!(scene.report(10, 0), Some(Step::Quarantine(_))));
        scene.later(SETTLING);
        scene
    }
}

fn compared(decided_at: Instant, promised_blocks: u64, reported_blocks: u64) -> Comparison {
    Comparison {
        decided_at,
        block_size: BLOCK,
        promised: promised_blocks * BLOCK,
        possible: promised_blocks * BLOCK,
        reported: reported_blocks * BLOCK,
    }
}

#[test]
fn a_report_may_be_a_block_off_either_way() {
    let now = Instant::now();
    let check = |promised, possible, reported, expected| {
        let comparison = Comparison {
            decided_at: now,
            block_size: BLOCK,
            promised,
            possible,
            reported,
        };
        assert_eq!(comparison.verdict(), expected, "{comparison:?}");
    };
    check(64, 64, 64, Verdict::Agreed);
    check(64, 64, 48, Verdict::Agreed);
    check(64, 64, 47, Verdict::Over);
    check(64, 64, 80, Verdict::Agreed);
    check(64, 64, 81, Verdict::Under);
    check(32, 128, 100, Verdict::Agreed);
    check(0, 0, 0, Verdict::Agreed);
    check(u64::MAX, u64::MAX, u64::MAX, Verdict::Agreed);
    check(u64::MAX, u64::MAX, 0, Verdict::Over);
}

#[test]
fn a_rank_that_delivers_nothing_is_quarantined_at_the_eighth_report() {
    let mut scene = Scene::new();
    let steps: Vec<_> = (0..8).map(|_| scene.report(10, 0).is_some()).collect();
    assert_eq!(
        steps,
        [false, false, false, false, false, false, false, true]
    );
    let evidence = scene.rank.quarantine().unwrap().evidence;
    assert_eq!((evidence.comparisons, evidence.broken), (8, 8));
    assert!(evidence.share().abs() < f64::EPSILON);
}

#[test]
fn a_good_record_is_forgotten_after_a_window_of_broken_promises() {
    let mut scene = Scene::new();
    for _ in 0..100 {
        assert_eq!(scene.report(50, 50), None);
    }
    let broken = (1..100).find(|_| scene.report(2, 0).is_some());
    assert_eq!(broken, Some(WINDOW));
}

#[test]
fn a_rank_that_delivers_half_is_trusted() {
    let mut scene = Scene::new();
    for _ in 0..100 {
        assert_eq!(scene.report(10, 5), None);
    }
    assert_eq!(scene.rank.counts().over, 100);
}

#[test]
fn a_rank_that_keeps_most_promises_is_trusted() {
    let mut scene = Scene::new();
    for turn in 0..100 {
        let delivered = if turn % 3 == 0 { 0 } else { 10 };
        assert_eq!(scene.report(10, delivered), None);
    }
}

#[test]
fn reports_without_a_promise_convict_nobody() {
    let mut scene = Scene::new();
    for _ in 0..100 {
        assert_eq!(scene.report(0, 9), None);
    }
    assert_eq!(scene.rank.counts().under, 100);
}

#[test]
fn broken_promises_far_apart_convict_nobody() {
    let mut scene = Scene::new();
    for _ in 0..50 {
        assert_eq!(scene.report(10, 0), None);
        scene.later(OLDEST / 4);
    }
}

#[test]
fn what_was_decided_before_the_index_was_read_again_says_nothing() {
    let mut scene = Scene::quarantined();
    let before = scene.now.checked_sub(Duration::from_secs(1)).unwrap();
    let comparison = compared(before, 10, 0);
    let heard = scene.rank.hear(&comparison, scene.now);
    assert_eq!(heard, (Heard::Stale, None));
    assert_eq!(scene.rank.counts().over, 8);
}

#[test]
fn agreement_in_a_row_restores_a_rank() {
    let mut scene = Scene::quarantined();
    for _ in 1..AGREEMENTS {
        assert_eq!(scene.report(10, 10), None);
    }
    assert_eq!(scene.report(10, 0), None, "begins anew");
    for _ in 1..AGREEMENTS {
        assert_eq!(scene.report(10, 9), None);
    }
    assert_eq!(scene.report(10, 10), Some(Step::Restore));
    assert!(scene.rank.quarantine().is_none());
}

#[test]
fn a_quarantine_without_a_broken_promise_ends_by_itself() {
    let mut scene = Scene::new();
    for _ in 0..8 {
        scene.report(10, 0);
    }
    let nearly = SHORTEST_QUARANTINE.checked_sub(Duration::from_millis(1));
    scene.later(nearly.unwrap());
    assert_eq!(scene.rank.pass(scene.now), None);
    scene.later(Duration::from_millis(1));
    assert_eq!(scene.rank.pass(scene.now), Some(Step::Restore));
}

#[test]
fn a_rank_that_goes_on_is_read_again_and_waits_longer() {
    let mut scene = Scene::quarantined();
    let start = scene.now;
    let mut again = Vec::new();
    while again.len() < 9 {
        scene.later(Duration::from_secs(1));
        assert_eq!(scene.rank.pass(scene.now), None);
        if scene.report(10, 1).is_some() {
            again.push((scene.now - start).as_secs());
        }
    }
    let waits: Vec<_> = again.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(waits, [120, 240, 480, 960, 1_920, 3_600, 3_600, 3_600]);
}

#[test]
fn a_rank_that_behaved_for_an_hour_is_forgiven() {
    let mut scene = Scene::quarantined();
    for _ in 0..AGREEMENTS {
        scene.report(10, 10);
    }
    assert_eq!(scene.rank.rounds(), 1);
    scene.later(FORGIVEN_AFTER);
    assert_eq!(scene.rank.pass(scene.now), None);
    assert_eq!(scene.rank.rounds(), 0);
}

/// The rules as they are written, over a list of all that was heard.
struct Model {
    samples: Vec<(Instant, u64, u64)>,
    judged_from: Option<Instant>,
    quarantined_at: Option<Instant>,
    again_from: Instant,
    trusted_since: Instant,
    rounds: u32,
}

impl Model {
    fn new(now: Instant) -> Self {
        Self {
            samples: Vec::new(),
            judged_from: None,
            quarantined_at: None,
            again_from: now,
            trusted_since: now,
            rounds: 0,
        }
    }

    fn length(&self) -> Duration {
        let minutes = 2_u64.pow(self.rounds.saturating_sub(1).min(10));
        Duration::from_mins(minutes.min(60))
    }

    fn is_broken(&(_, promised, reported): &(Instant, u64, u64)) -> bool {
        reported + 1 < promised
    }

    fn hear(
        &mut self,
        decided_at: Instant,
        promised: u64,
        reported: u64,
        now: Instant,
    ) -> Option<bool> {
        if self.judged_from.is_some_and(|from| decided_at < from) || promised == 0 {
            return None;
        }
        self.samples.push((now, promised, reported));
        if self.quarantined_at.is_some() {
            let agreed = self
                .samples
                .iter()
                .rev()
                .take_while(|sample| !Self::is_broken(sample));
            if agreed.count() >= 8 {
                return Some(self.restore(now));
            }
        }
        let young = self
            .samples
            .iter()
            .filter(|sample| now - sample.0 <= Duration::from_mins(10));
        let young: Vec<_> = young.collect();
        let judged = &young[young.len().saturating_sub(16)..];
        let broken = judged
            .iter()
            .filter(|sample| Self::is_broken(sample))
            .count();
        let promised: u64 = judged.iter().map(|sample| sample.1).sum();
        let delivered: u64 = judged.iter().map(|sample| sample.2.min(sample.1)).sum();
        let convicts = judged.len() >= 8 && broken * 2 >= judged.len() && delivered * 2 < promised;
        if !convicts || (self.quarantined_at.is_some() && now < self.again_from) {
            return None;
        }
        self.rounds += 1;
        self.samples.clear();
        self.judged_from = Some(now + Duration::from_secs(10));
        self.again_from = now + self.length();
        self.quarantined_at = Some(now);
        Some(true)
    }

    fn pass(&mut self, now: Instant) -> Option<bool> {
        let Some(at) = self.quarantined_at else {
            if now - self.trusted_since >= Duration::from_hours(1) {
                self.rounds = 0;
            }
            return None;
        };
        let broken = self
            .samples
            .iter()
            .rev()
            .find(|sample| Self::is_broken(sample));
        let quiet_since = broken.map_or(at, |sample| sample.0);
        (now - quiet_since >= self.length()).then(|| self.restore(now))
    }

    fn restore(&mut self, now: Instant) -> bool {
        self.samples.clear();
        self.judged_from = Some(now);
        self.trusted_since = now;
        self.quarantined_at = None;
        false
    }
}

#[test]
fn random_reports_agree_with_a_model_that_keeps_everything() {
    let mut steps = [0, 0];
    for seed in 0..60 {
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let mut scene = Scene::new();
        let mut model = Model::new(scene.now);
        // Lies come and go in spells.
        let mut lies = false;
        for _ in 0..2_000 {
            if random.random_bool(0.02) {
                lies = !lies;
            }
            let pause = match random.random_range(0..100) {
                0 => random.random_range(0..5_000_000),
                1..10 => random.random_range(0..60_000),
                _ => random.random_range(0..3_000),
            };
            scene.later(Duration::from_millis(pause));
            if random.random_bool(0.2) {
                let step = scene.rank.pass(scene.now);
                assert_eq!(step.map(is_quarantine), model.pass(scene.now));
                continue;
            }
            let promised = random.random_range(0..12);
            let reported = if lies && random.random_bool(0.9) {
                promised / random.random_range(3..9)
            } else {
                promised
            };
            let age = Duration::from_millis(random.random_range(0..20_000));
            let decided_at = scene.now.checked_sub(age).unwrap_or(scene.now);
            let comparison = compared(decided_at, promised, reported);
            let (_, step) = scene.rank.hear(&comparison, scene.now);
            let expected = model.hear(decided_at, promised, reported, scene.now);
            assert_eq!(step.map(is_quarantine), expected);
            if let Some(quarantined) = expected {
                steps[usize::from(quarantined)] += 1;
            }
            assert!(scene.rank.window.len() <= WINDOW);
        }
    }
    assert!(steps.iter().all(|count| *count > 50), "{steps:?}");
}

fn is_quarantine(step: Step) -> bool {
    matches!(step, Step::Quarantine(_))
}
