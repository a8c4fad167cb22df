//! Compares the cached tokens that engines report with what was predicted, rank by rank, and believes
//! less of a rank that keeps disagreeing until its cache was read again.
//!
//! It keeps a window of comparisons per registered rank and nothing per request: a prediction travels
//! with its selection. It chooses no worker and fails no request.

mod door;
mod metrics;
mod rank;
mod record;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pointsman_core::{Partition, Selection};
use pointsman_plugin::WorkerWithDpRank;
use tracing::{info, warn};

pub(crate) use metrics::AuditMetrics;
pub use record::{RankAudit, RankQuarantine};

use metrics::Outcome;
use rank::{Comparison, Heard, Step, Verdict};

/// A selection that is reserved later than this is compared with nothing.
const FRESH: Duration = Duration::from_secs(10);

/// What is done about engines that report other cached tokens than were predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuditMode {
    /// Nothing is compared.
    Off,
    /// Comparisons are counted.
    Count,
    /// A rank that keeps delivering less than its events promise is believed less.
    #[default]
    Quarantine,
}

/// How reports of cached tokens are audited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    pub mode: AuditMode,
    /// How long after a quarantine began decisions are not judged: the rank's cache is being read again.
    pub settling: Duration,
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self {
            mode: AuditMode::default(),
            settling: Duration::from_secs(10),
        }
    }
}

/// What was predicted of one request, to be compared with what its engine reports.
#[derive(Clone, Debug)]
pub struct CachePrediction {
    partition: Arc<Partition>,
    worker: WorkerWithDpRank,
    decided_at: Instant,
    block_size: u64,
    isl_tokens: u64,
    confirmed_tokens: u64,
    possible_tokens: u64,
}

/// What an engine reports of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheReport {
    pub cached_tokens: u64,
    /// The prompt's length as the engine counted it, where it says. If it is another than was selected for, the report
    /// is about another prompt.
    pub prompt_tokens: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Audit {
    config: AuditConfig,
    metrics: AuditMetrics,
    ranks: Mutex<HashMap<WorkerWithDpRank, Audited>>,
}

#[derive(Debug)]
struct Audited {
    partition: Arc<Partition>,
    rank: rank::RankAudit,
}

/// How much of a rank's overlap is to count from now on, and whether that is news.
#[derive(Debug)]
pub(crate) struct Due {
    partition: Arc<Partition>,
    worker: WorkerWithDpRank,
    share: f64,
    news: Option<Step>,
}

impl CachePrediction {
    pub(crate) fn new(
        partition: Arc<Partition>,
        selection: &Selection,
        decided_at: Instant,
    ) -> Self {
        let block_size = u64::from(selection.block_size);
        let tokens = |blocks: u64| blocks.saturating_mul(block_size);
        Self {
            partition,
            worker: selection.worker,
            decided_at,
            block_size,
            isl_tokens: selection.isl_tokens,
            confirmed_tokens: tokens(selection.forecast.confirmed_blocks),
            possible_tokens: tokens(selection.forecast.possible_blocks),
        }
    }

    pub(crate) fn partition(&self) -> &Arc<Partition> {
        &self.partition
    }

    pub(crate) fn worker(&self) -> WorkerWithDpRank {
        self.worker
    }

    /// Whether the request went to its engine soon enough for the promise to hold: what is cached changes.
    pub(crate) fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.decided_at) <= FRESH
    }

    fn compared(&self, reported: u64) -> Comparison {
        Comparison {
            decided_at: self.decided_at,
            block_size: self.block_size,
            promised: self.confirmed_tokens,
            possible: self.possible_tokens,
            reported,
        }
    }

    fn is_of_this_prompt(&self, report: CacheReport) -> bool {
        let same = report
            .prompt_tokens
            .is_none_or(|tokens| tokens == self.isl_tokens);
        same && report.cached_tokens <= self.isl_tokens
    }
}

impl Audit {
    pub(crate) fn new(config: AuditConfig, metrics: AuditMetrics) -> Self {
        Self {
            config,
            metrics,
            ranks: Mutex::default(),
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.config.mode != AuditMode::Off
    }

    /// Compares a report with its prediction. `doubted` says whether what the rank holds is in doubt anyway; it is
    /// asked only where that matters.
    pub(crate) fn hear(
        &self,
        prediction: &CachePrediction,
        report: CacheReport,
        doubted: impl FnOnce() -> bool,
        now: Instant,
    ) -> Option<Due> {
        if !prediction.is_of_this_prompt(report) {
            self.metrics.count(Outcome::OtherPrompt);
            return None;
        }
        let comparison = prediction.compared(report.cached_tokens);
        if comparison.verdict() == Verdict::Over && doubted() {
            self.metrics.count(Outcome::Doubted);
            return None;
        }
        let (heard, step) = self.judge(prediction, &comparison, now);
        self.metrics.count(match heard {
            Heard::Counted(Verdict::Agreed) => Outcome::Agreed,
            Heard::Counted(Verdict::Over) => Outcome::Over,
            Heard::Counted(Verdict::Under) => Outcome::Under,
            Heard::Stale => Outcome::Stale,
        });
        if heard != Heard::Stale {
            self.metrics.add_tokens(&comparison);
        }
        Some(Due::news(&prediction.partition, prediction.worker, step?))
    }

    fn judge(
        &self,
        prediction: &CachePrediction,
        comparison: &Comparison,
        now: Instant,
    ) -> (Heard, Option<Step>) {
        let begin = || Audited {
            partition: Arc::clone(&prediction.partition),
            rank: rank::RankAudit::new(self.config.settling, now),
        };
        let mut ranks = self.lock();
        let audited = ranks.entry(prediction.worker).or_insert_with(begin);
        if !Arc::ptr_eq(&audited.partition, &prediction.partition) {
            // The worker serves another model now; what it did before is no record of that.
            *audited = begin();
        }
        match self.config.mode {
            AuditMode::Quarantine => audited.rank.hear(comparison, now),
            AuditMode::Off | AuditMode::Count => {
                (Heard::Counted(audited.rank.count(comparison)), None)
            }
        }
    }

    /// What time alone brings about, and what is to count of the ranks that are quarantined. Ranks that
    /// `is_registered` does not know are forgotten.
    pub(crate) fn pass(
        &self,
        now: Instant,
        is_registered: impl Fn(WorkerWithDpRank, &Partition) -> bool,
    ) -> Vec<Due> {
        let mut due = Vec::new();
        let mut gone = Vec::new();
        let mut ranks = self.lock();
        ranks.retain(|worker, audited| {
            let Audited { partition, rank } = audited;
            if !is_registered(*worker, partition) {
                gone.push(*worker);
                return false;
            }
            if let Some(step) = rank.pass(now) {
                due.push(Due::news(partition, *worker, step));
            } else if let Some(quarantine) = rank.quarantine() {
                due.push(Due {
                    partition: Arc::clone(partition),
                    worker: *worker,
                    share: quarantine.evidence.share(),
                    news: None,
                });
            }
            true
        });
        drop(ranks);
        for worker in gone {
            self.metrics.set_share(worker, None);
        }
        due
    }

    /// Lets go of all that is known of these workers.
    pub(crate) fn forget(&self, worker_ids: &BTreeSet<u64>) {
        let mut gone = Vec::new();
        self.lock().retain(|worker, _| {
            let stays = !worker_ids.contains(&worker.worker_id);
            if !stays {
                gone.push(*worker);
            }
            stays
        });
        for worker in gone {
            self.metrics.set_share(worker, None);
        }
    }

    /// Lets count what is due, tells it, and has the rank's cache read again where it was found wrong.
    pub(crate) fn carry_out(&self, due: &Due, read_again: impl FnOnce()) {
        let WorkerWithDpRank { worker_id, dp_rank } = due.worker;
        // A rank that left its partition for a while came back undiscounted.
        let counts = due.partition.discount_of(due.worker);
        if (counts - due.share).abs() > f64::EPSILON {
            due.partition.discount_rank(due.worker, due.share);
        }
        match due.news {
            None => {}
            Some(Step::Quarantine(evidence)) => {
                self.metrics.quarantines.inc();
                self.metrics.set_share(due.worker, Some(due.share));
                warn!(
                    worker_id,
                    dp_rank,
                    reason = %evidence,
                    "rank quarantined, its cache is read again"
                );
                read_again();
            }
            Some(Step::Restore) => {
                self.metrics.restorations.inc();
                self.metrics.set_share(due.worker, None);
                info!(worker_id, dp_rank, "rank trusted again");
            }
        }
    }

    /// What is known of a worker's ranks, by rank; those nothing was reported of are left out.
    pub(crate) fn of_worker(
        &self,
        worker_id: u64,
        ranks: Range<u32>,
        now: Instant,
    ) -> BTreeMap<u32, RankAudit> {
        let audited = self.lock();
        if audited.is_empty() {
            return BTreeMap::new();
        }
        ranks
            .filter_map(|dp_rank| {
                let worker = WorkerWithDpRank { worker_id, dp_rank };
                let audited = audited.get(&worker)?;
                Some((dp_rank, RankAudit::of(&audited.rank, now)))
            })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<WorkerWithDpRank, Audited>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Due {
    fn news(partition: &Arc<Partition>, worker: WorkerWithDpRank, step: Step) -> Self {
        Self {
            partition: Arc::clone(partition),
            worker,
            share: match step {
                Step::Quarantine(evidence) => evidence.share(),
                Step::Restore => 1.0,
            },
            news: Some(step),
        }
    }

    pub(crate) fn worker(&self) -> WorkerWithDpRank {
        self.worker
    }
}

#[cfg(test)]
mod tests;
