//! Holds a run of consecutive blocks of one chain and, in spans of it, who holds them in which tier; it knows nothing of names or of other runs.
//!
//! Sequence hashes are chained, so two chains that agree at one block agree at all before it: how
//! far a prompt follows a run is found by probing, not by comparing block after block.

use prefetch_index::prefetch_index;

use super::StoredBlock;
use super::few::Few;
use super::forks::{Forks, Generation};
use super::holders::{Change, Holders};
use crate::hash::{BlockHash, SequenceHash};
use crate::ranks::RankSlot;

/// Most blocks of one strand; an offset fits a byte.
pub(super) const MAX_BLOCKS: usize = 256;
const MIN_GROWTH: usize = 4;
/// Spans that are looked through for a rank before it is noted a second time.
const SPANS_ASKED: usize = 4;
/// Leading blocks that nobody holds are kept up to this many.
const KEPT_HOLES: u16 = 8;

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) strand: u32,
    pub(super) offset: u8,
}

impl Place {
    /// No strand gets this number.
    pub(super) const NOWHERE: Self = Self {
        strand: u32::MAX,
        offset: 0,
    };

    /// The places before and behind in the strand, if there may be blocks.
    pub(super) fn neighbours(self) -> [Option<Self>; 2] {
        let at = |offset| Self { offset, ..self };
        [self.offset.checked_sub(1), self.offset.checked_add(1)].map(|offset| offset.map(at))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) sequence: SequenceHash,
    pub(super) tokens: BlockHash,
    /// The engine name that the name table has for it; 0 is none.
    pub(super) name: u64,
}

/// A run of consecutive blocks. Its first block is always one that a chain can enter by.
#[derive(Debug, Default)]
pub(super) struct Strand {
    /// The block before the first, as it was; it may be gone.
    pub(super) parent: Option<(Place, SequenceHash)>,
    /// When its strand counted this one.
    pub(super) counted: Generation,
    pub(super) forks: Forks,
    /// Blocks of the chain before offset 0.
    pub(super) depth: u32,
    /// Offset of the first block; what was before it was held by nobody.
    base: u16,
    blocks: Vec<Block>,
    /// Ascending; together they cover all blocks, and neighbours differ.
    spans: Few<Span>,
}

/// Blocks up to `end` that have the same holders.
#[derive(Debug)]
struct Span {
    end: u16,
    held: Holders,
}

/// How many blocks from some place on are known: under the names they have, or under others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Same {
    pub(super) named: u16,
    pub(super) otherwise: u16,
}

/// Blocks `from..to` of a strand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) from: u16,
    pub(super) to: u16,
}

impl Stretch {
    pub(super) fn contains(self, offset: u16) -> bool {
        self.from <= offset && offset < self.to
    }

    /// Takes in an offset right before or behind; false if it is neither.
    pub(super) fn grow(&mut self, offset: u16) -> bool {
        if offset == self.to {
            self.to += 1;
        } else if offset + 1 == self.from {
            self.from = offset;
        } else {
            return false;
        }
        true
    }
}

impl Strand {
    /// Makes an empty one of it, which may become another.
    pub(super) fn reset(&mut self) {
        let forks = std::mem::take(&mut self.forks);
        *self = Self {
            forks,
            ..Self::default()
        };
    }

    pub(super) fn first(&self) -> Option<Block> {
        self.blocks.first().copied()
    }

    pub(super) fn last(&self) -> Option<SequenceHash> {
        self.blocks.last().map(|block| block.sequence)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// One past the last offset.
    pub(super) fn end(&self) -> u16 {
        self.base + length(self.blocks.len())
    }

    pub(super) fn base(&self) -> u16 {
        self.base
    }

    pub(super) fn get(&self, offset: u16) -> Option<&Block> {
        self.blocks.get(usize::from(offset.checked_sub(self.base)?))
    }

    /// Asks for the memory of a block, and does not wait for it.
    pub(super) fn prefetch(&self, offset: u8) {
        let at = u16::from(offset).wrapping_sub(self.base);
        prefetch_index(&*self.blocks, usize::from(at));
    }

    pub(super) fn blocks_mut(&mut self, stretch: Stretch) -> &mut [Block] {
        let [from, to] = [stretch.from, stretch.to].map(|offset| usize::from(offset - self.base));
        &mut self.blocks[from..to]
    }

    pub(super) fn set_name(&mut self, offset: u8, name: u64) {
        let at = usize::from(u16::from(offset).wrapping_sub(self.base));
        if let Some(block) = self.blocks.get_mut(at) {
            block.name = name;
        }
    }

    pub(super) fn is_full(&self) -> bool {
        usize::from(self.end()) >= MAX_BLOCKS
    }

    /// Makes room for `more` blocks: what is known to come, or half as much again.
    pub(super) fn reserve(&mut self, more: usize) {
        let room = (MAX_BLOCKS - usize::from(self.end())).min(more);
        if self.blocks.capacity() - self.blocks.len() < room {
            let left = MAX_BLOCKS - usize::from(self.end());
            let grown = (self.blocks.len() / 2).max(room).max(MIN_GROWTH).min(left);
            self.blocks.reserve_exact(grown);
        }
    }

    /// Appends a block that nobody holds: the caller lets somebody hold it before all else.
    pub(super) fn push(&mut self, block: Block) -> u16 {
        let offset = self.end();
        self.blocks.push(block);
        offset
    }

    /// Appends blocks that nobody holds, as [`push`](Self::push) does.
    pub(super) fn extend(&mut self, blocks: &[Block]) {
        self.blocks.extend_from_slice(blocks);
    }

    /// How many leading hashes of `chain` are the strand's; the first is known to be.
    pub(super) fn matching(&self, chain: &[SequenceHash]) -> usize {
        let most = self.blocks.len().min(chain.len());
        if most == 0 || self.blocks[most - 1].sequence == chain[most - 1] {
            return most;
        }
        // `same` blocks agree, block `other` does not. Eight probes a round do not wait for each other.
        let (mut same, mut other) = (0, most - 1);
        while other - same > 8 {
            let step = (other - same) / 8;
            let agree = (1..8)
                .filter(|at| {
                    let probe = same + at * step;
                    self.blocks[probe].sequence == chain[probe]
                })
                .count();
            other = if agree == 7 {
                other
            } else {
                same + (agree + 1) * step
            };
            same += agree * step;
        }
        while same < other && self.blocks[same].sequence == chain[same] {
            same += 1;
        }
        same
    }

    /// One past the last offset that anybody ever held.
    pub(super) fn covered(&self) -> u16 {
        self.spans.last().map_or(self.base, |span| span.end)
    }

    /// Holders of stretches in order.
    pub(super) fn spans(&self) -> impl Iterator<Item = (Stretch, &Holders)> {
        let mut from = self.base;
        self.spans.iter().map(move |span| {
            let stretch = Stretch { from, to: span.end };
            from = span.end;
            (stretch, &span.held)
        })
    }

    pub(super) fn holders(&self, offset: u8) -> Option<&Holders> {
        Some(self.span(offset)?.1)
    }

    /// The blocks around an offset that have the same holders.
    pub(super) fn span(&self, offset: u8) -> Option<(Stretch, &Holders)> {
        let offset = u16::from(offset);
        if offset < self.base {
            return None;
        }
        let at = self.span_at(offset);
        let Span { end, held } = self.spans.get(at)?;
        let (from, to) = (self.start(at), *end);
        Some((Stretch { from, to }, held))
    }

    pub(super) fn holds_any(&self, slot: RankSlot) -> bool {
        self.spans
            .iter()
            .any(|span| span.held.tiers(slot).next().is_some())
    }

    /// Whether the rank holds something here; false may mean that it was not worth looking.
    pub(super) fn surely_holds(&self, slot: RankSlot) -> bool {
        let asked = self.spans.iter().take(SPANS_ASKED);
        asked.rev().any(|span| span.held.device.contains(slot))
    }

    /// How many of `incoming` are the strand's blocks from `offset` on, as far as the holders are
    /// the same and `slot` is not among them.
    pub(super) fn same(&self, offset: u8, incoming: &[Block], slot: RankSlot) -> Same {
        let Some(span) = self.spans.get(self.span_at(u16::from(offset))) else {
            return Same::default();
        };
        if span.held.tiers(slot).next().is_some() {
            return Same::default();
        }
        let from = usize::from(u16::from(offset) - self.base);
        let to = usize::from(span.end - self.base);
        let blocks = self.blocks[from..to].iter().zip(incoming);
        let same = blocks.clone().take_while(|(known, block)| {
            known.sequence == block.sequence && known.name == block.name && known.name != 0
        });
        let otherwise = blocks.take_while(|(known, block)| {
            known.sequence == block.sequence
                && known.name != block.name
                && known.name != 0
                && block.name != 0
        });
        Same {
            named: length(same.count()),
            otherwise: length(otherwise.count()),
        }
    }

    /// How many of `incoming` are the strand's blocks behind `parent`, names and all, as far as the
    /// holders are the same, and `slot` is not among them but holds `parent`.
    pub(super) fn same_behind(
        &self,
        parent: u8,
        incoming: &[StoredBlock],
        slot: RankSlot,
        is_free: impl Fn(u64) -> bool,
    ) -> u16 {
        let holds = |span: &Span| span.held.tiers(slot).next().is_some();
        let after = u16::from(parent) + 1;
        let at = self.span_at(u16::from(parent));
        // A run that the rank holds ends at the parent, or another holder is on one side alone.
        let [Some(before), Some(span)] = [self.spans.get(at), self.spans.get(at + 1)] else {
            return 0;
        };
        if before.end != after || !holds(before) || holds(span) {
            return 0;
        }
        let [from, to] = [after, span.end].map(|offset| usize::from(offset - self.base));
        let blocks = self.blocks[from..to].iter().zip(incoming);
        // Behind the same block the same tokens make the same sequence; 0 is not known.
        let same = blocks.take_while(|(known, block)| {
            let name = block.engine_hash.0;
            known.tokens == block.block_hash
                && known.tokens.0 != 0
                && known.name == name
                && name != 0
                && is_free(name)
        });
        length(same.count())
    }

    /// The first stretch from `from` to `to` that nobody holds.
    pub(super) fn hole(&self, from: u16, to: u16) -> Option<Stretch> {
        let at = self.span_at(from);
        let mut start = self.start(at).max(from);
        for span in &self.spans[at..] {
            if start >= to {
                return None;
            }
            if span.held.is_empty() {
                return Some(Stretch {
                    from: start,
                    to: span.end.min(to),
                });
            }
            start = span.end;
        }
        None
    }

    /// Makes one change to all blocks of `stretch`, appended ones included.
    pub(super) fn change(&mut self, stretch: Stretch, change: Change) {
        debug_assert!(self.base <= stretch.from && stretch.to <= self.end());
        let covered = self.covered();
        if stretch.to > covered {
            self.cover(stretch, change);
        }
        let Stretch { from, to } = stretch;
        let to = to.min(covered);
        if from >= to {
            return;
        }
        let at = self.span_at(from);
        let (start, end) = (self.start(at), self.spans[at].end);
        if to < end && start == from && at > 0 {
            let (before, rest) = self.spans.split_at_mut(at);
            if rest[0].held.equals_after(change, &before[at - 1].held) {
                before[at - 1].end = to;
                return;
            }
        }
        if start < from && to == end && at + 1 < self.spans.len() {
            let (before, after) = self.spans.split_at_mut(at + 1);
            if before[at].held.equals_after(change, &after[0].held) {
                before[at].end = from;
                return;
            }
        }
        let first = self.split(from);
        let last = self.split(to);
        for span in &mut self.spans[first..last] {
            span.held.apply(change);
        }
        self.merge(first, last);
    }

    /// Lets what was appended be held by who holds `stretch` from now on, and by nobody else.
    fn cover(&mut self, stretch: Stretch, change: Change) {
        let covered = self.covered();
        if stretch.from > covered {
            self.spans.push(Span {
                end: stretch.from,
                held: Holders::default(),
            });
        }
        match self.spans.last_mut() {
            Some(last) if last.held.is_only(change) => last.end = stretch.to,
            _ => {
                let mut held = Holders::default();
                held.apply(change);
                self.spans.push(Span {
                    end: stretch.to,
                    held,
                });
            }
        }
    }

    /// Whether the last block has the one holder that `sole` makes.
    pub(super) fn ends_with_only(&self, sole: Change) -> bool {
        self.spans
            .last()
            .is_some_and(|span| span.held.is_only(sole))
    }

    /// Lets what was appended be held by who holds the block before.
    pub(super) fn cover_all(&mut self) {
        let end = self.end();
        if let Some(last) = self.spans.last_mut() {
            last.end = end;
        }
    }

    /// Takes one rank out of all tiers of all blocks.
    pub(super) fn remove_rank(&mut self, slot: RankSlot) {
        for span in &mut *self.spans {
            let tiers: Vec<_> = span.held.tiers(slot).collect();
            for tier in tiers {
                span.held.apply(Change {
                    slot,
                    tier,
                    holds: false,
                });
            }
        }
        self.merge(0, self.spans.len());
    }

    /// Whether the strand ends with `stretch`, and nobody holds it once `change` is made.
    pub(super) fn ends_with(&self, stretch: Stretch, change: Change) -> bool {
        let Some(last) = self.spans.len().checked_sub(1) else {
            return false;
        };
        let before = Change {
            holds: true,
            ..change
        };
        !change.holds
            && self.start(last) <= stretch.from
            && self.spans[last].end == stretch.to
            && self.spans[last].held.is_only(before)
    }

    /// Drops the blocks from `end` on, all of the last span.
    pub(super) fn cut(&mut self, end: u16) {
        let last = self.spans.len() - 1;
        if self.start(last) < end {
            self.spans[last].end = end;
        } else {
            self.spans.remove(last);
        }
        self.blocks.truncate(usize::from(end - self.base));
    }

    /// Drops blocks at both ends that nobody holds; if the first block changed, the one before it.
    pub(super) fn trim(&mut self) -> Option<SequenceHash> {
        if self.spans.last().is_some_and(|span| span.held.is_empty()) {
            self.spans.remove(self.spans.len() - 1);
            let end = self.spans.last().map_or(self.base, |span| span.end);
            self.blocks.truncate(usize::from(end - self.base));
        }
        if self.blocks.capacity() > 2 * self.blocks.len() + 8 {
            self.blocks.shrink_to(self.blocks.len());
        }
        let holes = match self.spans.first() {
            Some(first) if first.held.is_empty() => first.end - self.base,
            _ => 0,
        };
        if self.blocks.is_empty() || holes <= KEPT_HOLES {
            return None;
        }
        self.spans.remove(0);
        let before = self.blocks.drain(..usize::from(holes)).next_back();
        self.blocks.shrink_to(self.blocks.len());
        self.base += holes;
        before.map(|block| block.sequence)
    }

    fn start(&self, span: usize) -> u16 {
        span.checked_sub(1)
            .map_or(self.base, |before| self.spans[before].end)
    }

    fn span_at(&self, offset: u16) -> usize {
        self.spans.partition_point(|span| span.end <= offset)
    }

    /// Makes a span begin at `offset`; returns which.
    fn split(&mut self, offset: u16) -> usize {
        let at = self.span_at(offset);
        if at == self.spans.len() || self.start(at) == offset {
            return at;
        }
        let held = self.spans[at].held.clone();
        self.spans.insert(at, Span { end: offset, held });
        at + 1
    }

    /// Joins equal neighbours from the one before `first` to `last`.
    fn merge(&mut self, first: usize, last: usize) {
        let mut at = (last + 1).min(self.spans.len());
        while at > first.max(1) {
            at -= 1;
            if self.spans[at - 1].held.equals(&self.spans[at].held) {
                self.spans[at - 1].end = self.spans[at].end;
                self.spans.remove(at);
            }
        }
    }
}

pub(super) fn length(blocks: usize) -> u16 {
    u16::try_from(blocks).unwrap_or(u16::MAX)
}
