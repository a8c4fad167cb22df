//! Believes for a while that a rank holds what was routed to it; it is fed by selections and reads no event and no clock.
//!
//! Beliefs end after a time to live, in steps of 100 ms, or when a rank has more of them than it
//! has room for: the oldest go first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use pointsman_plugin::WorkerWithDpRank;

use crate::hash::{EngineHash, SequenceHash};
use crate::index::{KvEvent, KvIndex};
use crate::overlaps::Overlaps;

/// Blocks a rank is taken to have room for where it does not say, unless a partition is told another.
pub(crate) const DEFAULT_CAPACITY: usize = 100_000;
/// Hashes that wait to expire, per block of capacity: chains that come again wait more than once.
const QUEUED_PER_BLOCK: usize = 4;
const TICK_MS: u128 = 100;

/// Counts of the predictions of one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PredictionStats {
    /// (Block, rank) pairs believed in now.
    pub blocks: usize,
    pub predicted: u64,
    pub expired: u64,
    /// Blocks given up before their time, for want of room.
    pub evicted: u64,
}

#[derive(Debug)]
pub(crate) struct Predictions {
    index: KvIndex,
    /// By slot.
    ranks: Vec<Beliefs>,
    ttl: Duration,
    /// Of ranks that do not say what they have room for.
    default_capacity: usize,
    /// When ticks began to count.
    origin: Option<Instant>,
    /// No belief ends before this tick.
    due: u64,
    counts: PredictionStats,
}

/// What one rank is believed to hold.
#[derive(Debug, Default)]
struct Beliefs {
    capacity: usize,
    /// The tick after which a block is believed in no more.
    until: HashMap<SequenceHash, u64>,
    chains: VecDeque<(u64, Arc<[SequenceHash]>)>,
    /// Hashes in `chains`.
    queued: usize,
}

impl Predictions {
    pub(crate) fn new(ttl: Duration, max_entries: usize, default_capacity: usize) -> Self {
        Self {
            index: KvIndex::new(max_entries),
            ranks: Vec::new(),
            ttl,
            default_capacity,
            origin: None,
            due: u64::MAX,
            counts: PredictionStats::default(),
        }
    }

    /// Ranks are to be added and removed exactly as in the index this is merged with, so that both
    /// give them the same slots.
    pub(crate) fn add_rank(&mut self, worker: WorkerWithDpRank, total_kv_blocks: Option<u64>) {
        let slot = self.index.add_rank(worker);
        if self.ranks.len() <= slot.index() {
            self.ranks.resize_with(slot.index() + 1, Beliefs::default);
        }
        let capacity = total_kv_blocks.and_then(|blocks| usize::try_from(blocks).ok());
        self.ranks[slot.index()].capacity = capacity.unwrap_or(self.default_capacity);
    }

    pub(crate) fn remove_rank(&mut self, worker: WorkerWithDpRank) {
        if let Some(slot) = self.index.slot(worker) {
            self.ranks[slot.index()] = Beliefs::default();
            self.index.remove_rank(worker);
        }
    }

    /// Believes from now on that `worker` holds `chain`.
    pub(crate) fn predict(
        &mut self,
        worker: WorkerWithDpRank,
        chain: &Arc<[SequenceHash]>,
        now: Instant,
    ) {
        let Some(slot) = self.index.slot(worker).filter(|_| !chain.is_empty()) else {
            return;
        };
        self.expire(now);
        let until = self.tick(now + self.ttl) + 1;
        let beliefs = &mut self.ranks[slot.index()];
        for hash in chain.iter() {
            beliefs.until.insert(*hash, until);
        }
        beliefs.queued += chain.len();
        beliefs.chains.push_back((until, Arc::clone(chain)));
        self.counts.predicted += length(chain.len());
        self.due = self.due.min(until);
        self.index.store_chain(worker, chain);
        loop {
            let beliefs = &self.ranks[slot.index()];
            let fits = beliefs.until.len() <= beliefs.capacity
                && beliefs.queued <= beliefs.capacity.saturating_mul(QUEUED_PER_BLOCK);
            if fits {
                return;
            }
            let Some(given_up) = self.drop_oldest(worker) else {
                return;
            };
            self.counts.evicted += length(given_up);
        }
    }

    /// Whether a belief has ended.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.due <= self.tick_of(now)
    }

    /// Ends all beliefs whose time is over.
    pub(crate) fn expire(&mut self, now: Instant) {
        let now = self.tick(now);
        if self.due > now {
            return;
        }
        let workers: Vec<_> = self.index.ranks().collect();
        let mut due = u64::MAX;
        for worker in workers {
            let Some(slot) = self.index.slot(worker) else {
                continue;
            };
            while let Some((until, _)) = self.ranks[slot.index()].chains.front() {
                if *until > now {
                    due = due.min(*until);
                    break;
                }
                let expired = self.drop_oldest(worker).unwrap_or(0);
                self.counts.expired += length(expired);
            }
        }
        self.due = due;
    }

    pub(crate) fn overlap_into(&self, chain: &[SequenceHash], overlaps: &mut Overlaps) {
        self.index.overlap_into(chain, overlaps);
    }

    pub(crate) fn stats(&self) -> PredictionStats {
        PredictionStats {
            blocks: self.index.stats().entries,
            ..self.counts
        }
    }

    /// Ends the beliefs that only the oldest chain of a rank upholds; how many that were.
    fn drop_oldest(&mut self, worker: WorkerWithDpRank) -> Option<usize> {
        let slot = self.index.slot(worker)?;
        let beliefs = &mut self.ranks[slot.index()];
        let (until, chain) = beliefs.chains.pop_front()?;
        beliefs.queued -= chain.len();
        let mut ended = Vec::new();
        // From the end, so that what is left is always a prefix.
        for hash in chain.iter().rev() {
            if let Entry::Occupied(entry) = beliefs.until.entry(*hash)
                && *entry.get() == until
            {
                entry.remove();
                ended.push(EngineHash(hash.0));
            }
        }
        let count = ended.len();
        let event = KvEvent::Removed {
            engine_hashes: ended,
        };
        self.index.apply(worker, &event);
        Some(count)
    }

    fn tick(&mut self, time: Instant) -> u64 {
        self.origin.get_or_insert(time);
        self.tick_of(time)
    }

    /// The tick a time is in; the first for all times before the origin.
    fn tick_of(&self, time: Instant) -> u64 {
        let origin = self.origin.unwrap_or(time);
        let ticks = time.saturating_duration_since(origin).as_millis() / TICK_MS;
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }
}

fn length(blocks: usize) -> u64 {
    u64::try_from(blocks).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::Rng;

    use super::*;
    use crate::testing::seeded;

    const WORKER: WorkerWithDpRank = WorkerWithDpRank::new(1, 0);
    const OTHER: WorkerWithDpRank = WorkerWithDpRank::new(2, 0);

    fn chain(hashes: &[u64]) -> Arc<[SequenceHash]> {
        hashes.iter().copied().map(SequenceHash).collect()
    }

    fn predictions(capacity: u64) -> Predictions {
        let mut predictions = Predictions::new(Duration::from_secs(2), 1_000, DEFAULT_CAPACITY);
        predictions.add_rank(WORKER, Some(capacity));
        predictions.add_rank(OTHER, None);
        predictions
    }

    fn blocks(predictions: &Predictions, worker: WorkerWithDpRank, hashes: &[u64]) -> u32 {
        let mut overlaps = Overlaps::default();
        predictions.overlap_into(&chain(hashes), &mut overlaps);
        overlaps.blocks(predictions.index.slot(worker).unwrap())
    }

    #[test]
    fn a_belief_ends_after_its_time() {
        let mut predictions = predictions(100);
        let start = Instant::now();
        predictions.predict(WORKER, &chain(&[1, 2, 3]), start);
        assert_eq!(blocks(&predictions, WORKER, &[1, 2, 3, 4]), 3);
        assert_eq!(blocks(&predictions, OTHER, &[1, 2, 3]), 0);
        assert!(!predictions.is_due(start + Duration::from_millis(1_999)));
        let later = start + Duration::from_millis(2_100);
        assert!(predictions.is_due(later));
        predictions.expire(later);
        assert_eq!(blocks(&predictions, WORKER, &[1, 2, 3]), 0);
        assert_eq!(predictions.stats().expired, 3);
    }

    #[test]
    fn a_prefix_that_came_again_outlives_the_rest() {
        let mut predictions = predictions(100);
        let start = Instant::now();
        predictions.predict(WORKER, &chain(&[1, 2, 3]), start);
        predictions.predict(WORKER, &chain(&[1, 2, 4]), start + Duration::from_secs(1));
        predictions.expire(start + Duration::from_millis(2_500));
        assert_eq!(blocks(&predictions, WORKER, &[1, 2, 3]), 2);
        assert_eq!(blocks(&predictions, WORKER, &[1, 2, 4]), 3);
        predictions.expire(start + Duration::from_millis(3_500));
        assert_eq!(predictions.stats().blocks, 0);
    }

    #[test]
    fn a_full_rank_gives_up_its_oldest_chain() {
        let mut predictions = predictions(4);
        let start = Instant::now();
        predictions.predict(WORKER, &chain(&[1, 2, 3]), start);
        predictions.predict(WORKER, &chain(&[7, 8]), start + Duration::from_secs(1));
        assert_eq!(blocks(&predictions, WORKER, &[1, 2, 3]), 0);
        assert_eq!(blocks(&predictions, WORKER, &[7, 8]), 2);
        assert_eq!(predictions.stats().evicted, 3);
    }

    #[test]
    fn predictions_agree_with_a_naive_model() {
        let mut random = seeded("predictions");
        let mut predictions = predictions(100_000);
        let mut model: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        let start = Instant::now();
        predictions.expire(start);
        let mut elapsed_ms = 0;
        for _ in 0..3_000 {
            elapsed_ms += random.random_range(0..60);
            let now = start + Duration::from_millis(elapsed_ms);
            let worker = if random.random_bool(0.5) {
                WORKER
            } else {
                OTHER
            };
            let depth = random.random_range(1..8);
            let branch: u64 = random.random_range(0..5);
            // A chain is known by its last hash: branches part after three blocks.
            let hashes: Vec<u64> = (0..depth)
                .map(|at| if at < 3 { at } else { branch * 100 + at })
                .collect();
            predictions.predict(worker, &chain(&hashes), now);
            for hash in &hashes {
                let until = (elapsed_ms + 2_000) / 100 + 1;
                model.insert((worker.worker_id, *hash), until);
            }
            model.retain(|_, until| *until > elapsed_ms / 100);
            let expected = hashes
                .iter()
                .take_while(|hash| model.contains_key(&(WORKER.worker_id, **hash)))
                .count();
            assert_eq!(blocks(&predictions, WORKER, &hashes) as usize, expected);
            assert_eq!(predictions.stats().blocks, model.len());
        }
    }
}
