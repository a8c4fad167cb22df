//! Keeps the books of what is charged to each worker rank now; it admits nobody and reads no index.
//!
//! Prompt blocks count once per rank, however many requests share them ([`runs`] says what sharing
//! is); output blocks and blocks that may not be shared count per request. A request that decays weighs less on the blocks that
//! are its alone. Sums are wider than anything that can be added to them, so what was charged is
//! taken off exactly, whatever sizes clients claim; only what is read out is clamped.
//!
//! A rank that left keeps its books, unseen by decisions, until the last request on it ends: if it
//! returns meanwhile, its load is still true.

mod runs;

use std::sync::Arc;

use hashbrown::HashMap;
use pointsman_plugin::WorkerWithDpRank;

use crate::hash::SequenceHash;
use crate::overlaps::Overlaps;
use crate::ranks::{RankSlot, RankTable};
use crate::selection::RankLoad;

use runs::{Others, RunId, Runs};

/// Weights are counted in this fraction of a block, so that sums are exact.
const BLOCK: u32 = 1 << 16;

/// Names a charge for as long as it is held; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChargeKey {
    index: usize,
    generation: u64,
}

/// What one request costs the rank that serves it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Charge {
    /// Blocks shared with other requests of the same hashes.
    pub sequence_hashes: Arc<[SequenceHash]>,
    /// Blocks that nobody shares.
    pub private_blocks: u64,
    /// Prompt tokens left to compute; 0 where prefill is not tracked.
    pub prefill_tokens: u64,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ChargeError {
    #[error("the id is held")]
    Duplicate,
    #[error("the rank left")]
    Gone,
}

/// What is charged to one rank, clamped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) prefill_tokens: u64,
    pub(crate) blocks: u64,
    pub(crate) requests: u64,
}

/// The books of one partition.
#[derive(Debug, Default)]
pub(crate) struct LoadBook {
    ranks: RankTable,
    /// By slot.
    books: Vec<RankBook>,
    /// The prompt blocks of all charges, and which ranks have them active.
    prompts: Runs,
    held: Vec<Held>,
    free: Vec<usize>,
    ids: HashMap<Arc<str>, usize>,
    generation: u64,
}

#[derive(Debug, Default)]
struct RankBook {
    /// Whether the rank may be charged; false once it left.
    present: bool,
    /// In [`BLOCK`] parts.
    weight: u128,
    prefill_tokens: u128,
    requests: u64,
}

/// One charge. Its place is reused, so whoever names it must know the generation.
#[derive(Debug, Default)]
struct Held {
    generation: u64,
    id: Option<Arc<str>>,
    slot: Option<RankSlot>,
    /// The run its prompt ends with, if it has blocks to share.
    prompt: Option<RunId>,
    private_blocks: u64,
    prefill_tokens: u64,
    /// How many of its prompt's blocks are held by no one else on the rank.
    alone: u64,
    /// Weight of `alone` and private blocks, in [`BLOCK`] parts.
    weight: u32,
}

impl LoadBook {
    /// Replaces the ranks that may be charged; returns their slots in the same order.
    pub(crate) fn set_ranks(
        &mut self,
        ranks: impl Iterator<Item = WorkerWithDpRank>,
    ) -> Vec<RankSlot> {
        for book in &mut self.books {
            book.present = false;
        }
        let slots = ranks
            .map(|worker| {
                let slot = self.ranks.insert(worker);
                if self.books.len() < self.ranks.bound() {
                    self.books
                        .resize_with(self.ranks.bound(), RankBook::default);
                }
                self.books[slot.index()].present = true;
                slot
            })
            .collect();
        let idle: Vec<_> = self
            .ranks
            .workers()
            .filter(|(_, slot)| self.books[slot.index()].is_over())
            .map(|(worker, _)| worker)
            .collect();
        for worker in idle {
            self.ranks.remove(worker);
        }
        slots
    }

    /// What is charged to `worker`, if it still has `slot` and may be charged.
    pub(crate) fn load(&self, worker: WorkerWithDpRank, slot: RankSlot) -> Option<Load> {
        let book = self.books.get(slot.index())?;
        (book.present && self.ranks.is(slot, worker)).then(|| book.load())
    }

    /// How many leading blocks of a chain each rank has active, by slot.
    pub(crate) fn active_into(&self, hashes: &[SequenceHash], active: &mut Overlaps) {
        self.prompts.active_into(hashes, self.ranks.bound(), active);
    }

    /// The load of all present ranks, in order.
    pub(crate) fn loads(&self) -> Vec<RankLoad> {
        self.loads_where(|book| book.present)
    }

    /// The load of the ranks that left and still have requests, in order.
    pub(crate) fn leaving(&self) -> Vec<RankLoad> {
        self.loads_where(|book| !book.present && book.requests > 0)
    }

    fn loads_where(&self, is_wanted: impl Fn(&RankBook) -> bool) -> Vec<RankLoad> {
        let mut loads: Vec<_> = self
            .ranks
            .workers()
            .map(|(worker, slot)| (worker, &self.books[slot.index()]))
            .filter(|(_, book)| is_wanted(book))
            .map(|(worker, book)| {
                let load = book.load();
                RankLoad {
                    worker,
                    active_prefill_tokens: load.prefill_tokens,
                    decode_blocks: load.blocks,
                    active_requests: load.requests,
                }
            })
            .collect();
        loads.sort_unstable_by_key(|load| load.worker);
        loads
    }

    pub(crate) fn holds(&self, id: &str) -> bool {
        self.ids.contains_key(id)
    }

    /// Live charges, those of ranks that left included.
    pub(crate) fn held(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn reserve(
        &mut self,
        worker: WorkerWithDpRank,
        id: &Arc<str>,
        charge: Charge,
    ) -> Result<ChargeKey, ChargeError> {
        if self.ids.contains_key(id) {
            return Err(ChargeError::Duplicate);
        }
        let slot = self.present(worker).ok_or(ChargeError::Gone)?;
        let index = self.free.pop().unwrap_or_else(|| {
            self.held.push(Held::default());
            self.held.len() - 1
        });
        // At one a nanosecond this lasts for centuries.
        self.generation += 1;
        let Charge {
            sequence_hashes,
            private_blocks,
            prefill_tokens,
        } = charge;
        self.held[index] = Held {
            generation: self.generation,
            id: Some(Arc::clone(id)),
            slot: None,
            prompt: self.prompts.enter(&sequence_hashes),
            private_blocks,
            prefill_tokens,
            alone: 0,
            weight: BLOCK,
        };
        self.ids.insert(Arc::clone(id), index);
        self.attach(index, slot);
        Ok(ChargeKey {
            index,
            generation: self.generation,
        })
    }

    /// Frees the charge; a second time nothing happens.
    pub(crate) fn release(&mut self, key: ChargeKey) {
        if self.of(key).is_none() {
            return;
        }
        self.detach(key.index);
        let held = std::mem::take(&mut self.held[key.index]);
        if let Some(prompt) = held.prompt {
            self.prompts.leave(prompt);
        }
        if let Some(id) = held.id {
            self.ids.remove(&id);
        }
        self.free.push(key.index);
    }

    /// The prompt is computed: its tokens are no longer charged.
    pub(crate) fn complete_prefill(&mut self, key: ChargeKey) {
        let Some(held) = self.of(key) else { return };
        let tokens = std::mem::take(&mut held.prefill_tokens);
        if let Some(slot) = held.slot {
            let book = &mut self.books[slot.index()];
            book.prefill_tokens = less(book.prefill_tokens, u128::from(tokens));
        }
    }

    /// One more block of output; `weight` is what the blocks of this request alone count from now on.
    pub(crate) fn add_output_block(&mut self, key: ChargeKey, weight: Option<f64>) {
        let Some(held) = self.of(key) else { return };
        let before = held.own_weight();
        held.private_blocks = held.private_blocks.saturating_add(1);
        if let Some(weight) = weight.and_then(parts) {
            held.weight = weight;
        }
        let after = held.own_weight();
        if let Some(slot) = held.slot {
            let book = &mut self.books[slot.index()];
            book.weight = less(book.weight + after, before);
        }
    }

    /// Charges another rank instead; false, and nothing changed, if that one may not be charged.
    pub(crate) fn move_to(&mut self, key: ChargeKey, worker: WorkerWithDpRank) -> bool {
        let Some(slot) = self.present(worker) else {
            return false;
        };
        let Some(held) = self.of(key) else {
            return false;
        };
        if held.slot != Some(slot) {
            self.detach(key.index);
            self.attach(key.index, slot);
        }
        true
    }

    fn present(&self, worker: WorkerWithDpRank) -> Option<RankSlot> {
        let slot = self.ranks.get(worker)?;
        self.books[slot.index()].present.then_some(slot)
    }

    fn of(&mut self, key: ChargeKey) -> Option<&mut Held> {
        let held = self.held.get_mut(key.index)?;
        (held.generation == key.generation).then_some(held)
    }

    fn attach(&mut self, index: usize, slot: RankSlot) {
        let book = &mut self.books[slot.index()];
        let mut alone = 0;
        if let Some(prompt) = self.held[index].prompt {
            let held = &mut self.held;
            self.prompts
                .hold(prompt, slot, index, |blocks, others| match others {
                    Others::None => alone += blocks,
                    Others::One(owner) => {
                        let owner = &mut held[owner];
                        owner.alone -= blocks;
                        book.weight += owner.saved_weight(blocks);
                    }
                    Others::Many => {}
                });
        }
        let held = &mut self.held[index];
        held.slot = Some(slot);
        held.alone = alone;
        book.weight += held.own_weight();
        book.prefill_tokens += u128::from(held.prefill_tokens);
        book.requests += 1;
    }

    fn detach(&mut self, index: usize) {
        let held = &mut self.held[index];
        let Some(slot) = held.slot.take() else { return };
        let book = &mut self.books[slot.index()];
        book.weight = less(book.weight, held.own_weight());
        book.prefill_tokens = less(book.prefill_tokens, u128::from(held.prefill_tokens));
        book.requests -= 1;
        held.alone = 0;
        if let Some(prompt) = held.prompt {
            let held = &mut self.held;
            self.prompts.release(prompt, slot, index, |blocks, others| {
                if let Others::One(owner) = others {
                    let owner = &mut held[owner];
                    owner.alone += blocks;
                    book.weight = less(book.weight, owner.saved_weight(blocks));
                }
            });
        }
        if book.is_over()
            && let Some(worker) = self.ranks.worker(slot)
        {
            self.ranks.remove(worker);
        }
    }
}

impl RankBook {
    fn load(&self) -> Load {
        let block = u128::from(BLOCK);
        Load {
            prefill_tokens: clamp(self.prefill_tokens),
            blocks: clamp((self.weight + block / 2) / block),
            requests: self.requests,
        }
    }

    fn is_over(&self) -> bool {
        !self.present && self.requests == 0
    }
}

impl Held {
    /// What the blocks that are this request's alone weigh on its rank.
    fn own_weight(&self) -> u128 {
        (u128::from(self.alone) + u128::from(self.private_blocks)) * u128::from(self.weight)
    }

    /// What that many blocks weigh less while they are this request's alone.
    fn saved_weight(&self, blocks: u64) -> u128 {
        u128::from(blocks) * u128::from(BLOCK - self.weight)
    }
}

/// Subtracts what was added before. The books balance exactly (`tests` compare them with naive
/// ones), so the clamp is never met; it keeps a mistake from becoming a huge load.
fn less(from: u128, amount: u128) -> u128 {
    debug_assert!(from >= amount, "the books of a rank do not balance");
    from.saturating_sub(amount)
}

fn clamp(sum: u128) -> u64 {
    u64::try_from(sum).unwrap_or(u64::MAX)
}

/// A fraction from 0 to 1 in [`BLOCK`] parts; `None` for what is no number.
fn parts(fraction: f64) -> Option<u32> {
    if fraction.is_nan() {
        return None;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to 0..=BLOCK before the cast"
    )]
    let parts = (fraction.clamp(0.0, 1.0) * f64::from(BLOCK)).round() as u32;
    Some(parts)
}

#[cfg(test)]
mod tests;
