//! What a partition is told about the caches of its ranks, by their engines, by others and by its own selections; it decides nothing by it.

use std::sync::Arc;
use std::time::Instant;

use pointsman_plugin::WorkerWithDpRank;

use super::Partition;
use crate::hash::{EngineHash, SequenceHash};
use crate::index::{Applied, DumpedRun, KvEvent, Placement, RankDump};
use crate::overlaps::Overlaps;
use crate::selection::SelectionRequest;

impl Partition {
    /// Takes over what a rank's engine says about the cache on its device.
    pub fn apply_event(&self, worker: WorkerWithDpRank, event: &KvEvent) -> Applied {
        self.apply_event_at(worker, Placement::default(), event)
    }

    /// Says which blocks the next events of a rank are about, those to come and those that are there, so that they are
    /// applied faster; nothing changes.
    pub fn expect_events(
        &self,
        worker: WorkerWithDpRank,
        to_come: impl IntoIterator<Item = EngineHash, IntoIter: Clone>,
        there: impl IntoIterator<Item = EngineHash, IntoIter: Clone>,
    ) {
        self.read_index().kv.expect(worker, to_come, there);
    }

    /// Takes over what a rank's engine says about one tier and group of its cache. Blocks that are
    /// stored behind doubted ones end the doubt about those.
    pub fn apply_event_at(
        &self,
        worker: WorkerWithDpRank,
        at: Placement,
        event: &KvEvent,
    ) -> Applied {
        let mut indexed = self.write_index();
        indexed.kv.confirm_parents(worker, at, event);
        indexed.kv.apply_at(worker, at, event)
    }

    /// Takes over what a peer's dump says a rank holds: doubted until its engine says so.
    pub fn apply_unconfirmed(
        &self,
        worker: WorkerWithDpRank,
        at: Placement,
        event: &KvEvent,
    ) -> Applied {
        self.write_index().kv.apply_unconfirmed(worker, at, event)
    }

    /// Forgets what a rank holds, as after a restart of its engine.
    pub fn clear_rank(&self, worker: WorkerWithDpRank) -> Applied {
        self.apply_event(worker, &KvEvent::Cleared)
    }

    /// Doubts all that a rank holds, as when its stream was lost. It counts as before; the engine's
    /// word about a block ends the doubt about it.
    pub fn doubt_rank(&self, worker: WorkerWithDpRank) {
        self.write_index().kv.doubt(worker);
    }

    /// Ends all doubt about what a rank holds; how many blocks were doubted.
    pub fn trust_rank(&self, worker: WorkerWithDpRank) -> usize {
        self.write_index().kv.trust(worker)
    }

    /// Forgets what is still doubted of a rank; how many blocks that were.
    pub fn drop_doubted(&self, worker: WorkerWithDpRank) -> usize {
        self.write_index().kv.drop_doubted(worker)
    }

    /// Whether a rank holds a block under its engine's name for it, in whatever tier.
    pub fn holds_name(&self, worker: WorkerWithDpRank, name: EngineHash) -> bool {
        self.read_index().kv.holds_name(worker, name)
    }

    /// Whether a block of that name waits for its parent to be stored.
    pub fn awaits(&self, worker: WorkerWithDpRank, name: EngineHash) -> bool {
        self.read_index().kv.awaits(worker, name)
    }

    /// How many blocks of a rank are doubted.
    pub fn doubted(&self, worker: WorkerWithDpRank) -> usize {
        self.read_index().kv.doubted(worker)
    }

    /// Lets only a share of a rank's overlap count from now on: 0 none, 1 all of it again. What a
    /// selection says was found is not changed by it, only what policies see and load is charged.
    pub fn discount_rank(&self, worker: WorkerWithDpRank, share: f64) {
        let mut indexed = self.write_index();
        let discounts = Arc::make_mut(&mut indexed.discounts);
        if share >= 1.0 {
            discounts.remove(&worker);
        } else if indexed.table.row_of(worker).is_some() {
            let share = if share > 0.0 { share } else { 0.0 };
            Arc::make_mut(&mut indexed.discounts).insert(worker, share);
        }
    }

    /// How much of a rank's overlap counts.
    pub fn discount_of(&self, worker: WorkerWithDpRank) -> f64 {
        let indexed = self.read_index();
        indexed.discounts.get(&worker).copied().unwrap_or(1.0)
    }

    /// Visits the next part of what a rank holds, about `max_blocks` blocks, in the order in which it
    /// can be told to others: tier by tier, parents before children. True as long as there may be
    /// more. Events wait for a part, so whoever takes the next one does something else before.
    pub fn dump_part(
        &self,
        dump: &mut RankDump,
        max_blocks: usize,
        visit: impl FnMut(DumpedRun<'_>),
    ) -> bool {
        dump.arrange();
        self.read_index().kv.dump_part(dump, max_blocks, visit);
        !dump.is_done()
    }

    /// Whether what is routed is believed in for a while.
    pub fn predicts(&self) -> bool {
        self.read_index().predictions.is_some()
    }

    /// Believes from `now` on that `worker` holds the prompt of `request`. Selections that reserve
    /// do this themselves.
    pub fn predict(&self, request: &SelectionRequest, worker: WorkerWithDpRank, now: Instant) {
        if self.predicts() {
            let hashed = self.hash(request);
            self.predict_chain(worker, &hashed.lookup, now);
        }
    }

    /// The same for a prompt that was selected for before, see
    /// [`Selection::looked_up`](crate::Selection::looked_up).
    pub fn predict_chain(
        &self,
        worker: WorkerWithDpRank,
        chain: &Arc<[SequenceHash]>,
        now: Instant,
    ) {
        if let Some(predictions) = &mut self.write_index().predictions {
            predictions.predict(worker, chain, now);
        }
    }

    /// Leading blocks of `chain` that the rank's engine itself says it holds on its device.
    pub(super) fn confirmed_blocks(
        &self,
        worker: WorkerWithDpRank,
        chain: &[SequenceHash],
        overlaps: &mut Overlaps,
    ) -> u32 {
        let indexed = self.read_index();
        indexed.kv.overlap_into(chain, overlaps);
        let slot = indexed.kv.slot(worker);
        slot.map_or(0, |slot| overlaps.blocks(slot))
    }

    /// Ends predictions whose time is over; waits for no writer unless there are some. Selections do it too; this is
    /// for the times when there are none.
    pub fn expire_predictions(&self, now: Instant) {
        let is_due = {
            let indexed = self.read_index();
            let predictions = indexed.predictions.as_ref();
            predictions.is_some_and(|predictions| predictions.is_due(now))
        };
        if is_due && let Some(predictions) = &mut self.write_index().predictions {
            predictions.expire(now);
        }
    }
}
