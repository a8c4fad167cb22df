//! Counts what is believed of caches because it was routed there; partitions believe, this only adds up.

use pointsman_core::PredictionStats;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Over all partitions. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PredictionMetrics {
    blocks: Gauge,
    predicted: Counter,
    expired: Counter,
    evicted: Counter,
}

impl PredictionMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "predicted_blocks",
            "Blocks believed to be cached because they were routed there",
            self.blocks.clone(),
        );
        let counters = [
            (
                "blocks_predicted",
                "Blocks routed and believed in",
                &self.predicted,
            ),
            (
                "predicted_blocks_expired",
                "Such beliefs that ended with their time",
                &self.expired,
            ),
            (
                "predicted_blocks_evicted",
                "Such beliefs given up for want of room on their rank",
                &self.evicted,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
    }

    /// Takes over what the partitions have counted so far. One caller at a time: partitions live as long as the
    /// process, so their sums never shrink.
    pub(crate) fn measure(&self, partitions: impl Iterator<Item = PredictionStats>) {
        let mut blocks = 0_usize;
        let [mut predicted, mut expired, mut evicted] = [0_u64; 3];
        for stats in partitions {
            blocks = blocks.saturating_add(stats.blocks);
            predicted = predicted.saturating_add(stats.predicted);
            expired = expired.saturating_add(stats.expired);
            evicted = evicted.saturating_add(stats.evicted);
        }
        self.blocks.set(i64::try_from(blocks).unwrap_or(i64::MAX));
        for (counter, sum) in [
            (&self.predicted, predicted),
            (&self.expired, expired),
            (&self.evicted, evicted),
        ] {
            counter.inc_by(sum.saturating_sub(counter.get()));
        }
    }
}
