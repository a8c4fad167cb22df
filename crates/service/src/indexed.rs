//! What the KV indexes hold and have refused, summed over the partitions, for metrics; it changes nothing.

use pointsman_core::index::IndexStats;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Clones share the figures.
#[derive(Clone, Debug, Default)]
pub(crate) struct IndexMetrics {
    gauges: [Gauge; 6],
    counters: [Counter; 9],
}

/// In the order of what [`sizes`] and [`sums`] answer.
const GAUGES: [(&str, &str); 6] = [
    (
        "kv_index_entries",
        "Blocks that ranks hold, each counted once for each rank",
    ),
    ("kv_index_max_entries", "Most of those that there may be"),
    (
        "kv_index_blocks",
        "Distinct blocks that are held by any rank",
    ),
    (
        "kv_index_runs",
        "Runs of blocks that are kept together in the index",
    ),
    (
        "kv_index_waiting_blocks",
        "Blocks whose parent has not been stored yet",
    ),
    (
        "kv_index_unconfirmed_blocks",
        "Blocks that are believed without the word of their engine",
    ),
];
const COUNTERS: [(&str, &str); 9] = [
    ("kv_index_blocks_stored", "Blocks stored"),
    (
        "kv_index_blocks_stored_again",
        "Further copies of blocks stored",
    ),
    ("kv_index_blocks_removed", "Copies of blocks removed"),
    (
        "kv_index_unknown_removals",
        "Removals of blocks that the rank did not hold",
    ),
    (
        "kv_index_blocks_refused",
        "Blocks left out because the index is full",
    ),
    (
        "kv_index_blocks_renamed",
        "Engine names that came to mean another block",
    ),
    (
        "kv_index_unknown_parents",
        "Stores that had to wait for their parent",
    ),
    (
        "kv_index_waiting_forgotten",
        "Stores that were given up waiting for want of room",
    ),
    (
        "kv_index_unconfirmed_dropped",
        "Blocks dropped because nothing confirmed them in time",
    ),
];

fn sizes(stats: &IndexStats) -> [usize; 6] {
    [
        stats.entries,
        stats.max_entries,
        stats.blocks,
        stats.strands,
        stats.waiting_blocks,
        stats.unconfirmed,
    ]
}

fn sums(stats: &IndexStats) -> [u64; 9] {
    [
        stats.stored,
        stats.duplicate_stores,
        stats.removed,
        stats.unknown_removals,
        stats.refused,
        stats.renamed,
        stats.unknown_parents,
        stats.waiting_forgotten,
        stats.unconfirmed_dropped,
    ]
}

impl IndexMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        for ((name, help), gauge) in GAUGES.into_iter().zip(&self.gauges) {
            registry.register(name, help, gauge.clone());
        }
        for ((name, help), counter) in COUNTERS.into_iter().zip(&self.counters) {
            registry.register(name, help, counter.clone());
        }
    }

    /// Takes over what the partitions hold and have counted so far. One caller at a time: partitions
    /// live as long as the process, so their sums never shrink.
    pub(crate) fn measure(&self, partitions: impl Iterator<Item = IndexStats>) {
        let mut sizes_now = [0_usize; 6];
        let mut sums_now = [0_u64; 9];
        for stats in partitions {
            for (sum, one) in sizes_now.iter_mut().zip(sizes(&stats)) {
                *sum = sum.saturating_add(one);
            }
            for (sum, one) in sums_now.iter_mut().zip(sums(&stats)) {
                *sum = sum.saturating_add(one);
            }
        }
        for (gauge, size) in self.gauges.iter().zip(sizes_now) {
            gauge.set(i64::try_from(size).unwrap_or(i64::MAX));
        }
        for (counter, sum) in self.counters.iter().zip(sums_now) {
            counter.inc_by(sum.saturating_sub(counter.get()));
        }
    }
}

#[cfg(test)]
mod tests {
    use pointsman_core::hash::{BlockHash, EngineHash};
    use pointsman_core::index::{KvEvent, KvIndex, Placement, StoredBlock};
    use pointsman_plugin::WorkerWithDpRank;

    use super::*;

    #[test]
    fn a_full_index_shows_what_it_refused() {
        let worker = WorkerWithDpRank::new(1, 0);
        let mut index = KvIndex::new(1);
        index.add_rank(worker);
        let block = |at| StoredBlock {
            engine_hash: EngineHash(at),
            block_hash: BlockHash(at),
        };
        let event = KvEvent::Stored {
            parent: None,
            blocks: vec![block(1), block(2), block(3)],
        };
        index.apply_at(worker, Placement::default(), &event);
        let mut registry = Registry::default();
        let metrics = IndexMetrics::default();
        metrics.register(&mut registry);
        for _ in 0..2 {
            metrics.measure([index.stats()].into_iter());
        }
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "kv_index_entries 1",
            "kv_index_max_entries 1",
            "kv_index_blocks_stored_total 1",
            "kv_index_blocks_refused_total 2",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
