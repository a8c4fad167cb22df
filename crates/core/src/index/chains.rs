//! Holds every distinct block once, strand by strand, with the ways into them: by sequence hash at the head of a strand, by name anywhere; it does not know whose names they are.

use hashbrown::HashMap;

use super::StoredBlock;
use super::forks::Generation;
use super::holders::{Change, Holders};
use super::names::Names;
use super::strand::{Block, MAX_BLOCKS, Place, Strand, Stretch};
use crate::hash::{SequenceHash, chain};
use crate::ranks::RankSlot;
use crate::tier::Tier;

#[derive(Debug, Default)]
pub(super) struct Chains {
    strands: Vec<Strand>,
    free: Vec<u32>,
    /// Strands by the hash of their first block.
    heads: HashMap<SequenceHash, u32>,
    names: Names,
    /// Blocks that somebody holds.
    blocks: usize,
    /// Strands whose block before the first is gone, or may be.
    lost: usize,
}

/// What a new block follows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Behind {
    /// None at a root, and where the block before is gone.
    pub(super) place: Option<Place>,
    /// None at a root alone.
    pub(super) sequence: Option<SequenceHash>,
    /// Blocks of the chain before the new one.
    pub(super) depth: u32,
}

/// What a place continues to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    There(Place),
    /// A new block belongs at the end of this strand.
    Append(u32),
    /// A new block begins a strand.
    Head,
}

impl Chains {
    pub(super) fn strand(&self, id: u32) -> &Strand {
        &self.strands[index(id)]
    }

    pub(super) fn strands(&self) -> usize {
        self.strands.len() - self.free.len()
    }

    /// Blocks that somebody holds.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    pub(super) fn block(&self, place: Place) -> Option<&Block> {
        self.strands
            .get(index(place.strand))?
            .get(u16::from(place.offset))
    }

    pub(super) fn holders(&self, place: Place) -> Option<&Holders> {
        self.strands.get(index(place.strand))?.holders(place.offset)
    }

    /// The block the table has under a name.
    pub(super) fn named(&self, name: u64) -> Option<Place> {
        self.names
            .get(name, |place| is_named(&self.strands, place, name))
    }

    /// The block before or behind `place`, if the table has it under a name.
    pub(super) fn beside(&self, place: Place, name: u64) -> Option<Place> {
        let is = |place: &Place| name != 0 && is_named(&self.strands, *place, name);
        place.neighbours().into_iter().flatten().find(is)
    }

    /// Where the block of `sequence` is, or belongs, behind `previous`.
    pub(super) fn next(&mut self, previous: Option<Place>, sequence: SequenceHash) -> Next {
        let mut append = None;
        if let Some(place) = previous {
            let strand = &self.strands[index(place.strand)];
            let after = u16::from(place.offset) + 1;
            match strand.get(after) {
                Some(block) if block.sequence == sequence => {
                    return Next::There(at(place.strand, after));
                }
                None if !strand.is_full() => append = Some(place.strand),
                _ => {}
            }
        }
        if let Some(&id) = self.heads.get(&sequence) {
            let parent = previous.and_then(|place| Some((place, self.block(place)?.sequence)));
            if parent.is_some() {
                self.set_parent(id, parent);
            }
            return Next::There(at(id, self.strand(id).base()));
        }
        append.map_or(Next::Head, Next::Append)
    }

    /// Adds a block where [`next`](Self::next) said; nobody holds it yet. `more` are known to follow.
    pub(super) fn add(&mut self, behind: Behind, next: Next, block: Block, more: usize) -> Place {
        let block = Block { name: 0, ..block };
        match next {
            Next::There(place) => place,
            Next::Append(id) => {
                let strand = &mut self.strands[index(id)];
                strand.reserve(more);
                at(id, strand.push(block))
            }
            Next::Head => {
                let id = self.free.pop().unwrap_or_else(|| {
                    self.strands.push(Strand::default());
                    u32::try_from(self.strands.len() - 1).unwrap_or(u32::MAX)
                });
                let parent = behind
                    .sequence
                    .map(|sequence| (behind.place.unwrap_or(Place::NOWHERE), sequence));
                self.set_parent(id, parent);
                let strand = &mut self.strands[index(id)];
                strand.depth = behind.depth;
                strand.reserve(more);
                let place = at(id, strand.push(block));
                self.heads.insert(block.sequence, id);
                place
            }
        }
    }

    /// Appends blocks behind the last one of a strand, which has just come, names and all, as far as
    /// both the blocks and the names are new and there is room; how many. Nobody holds them yet.
    pub(super) fn append(&mut self, id: u32, blocks: &[Block]) -> u16 {
        let before = self.strand(id).end();
        let room = MAX_BLOCKS - usize::from(before);
        let blocks = &blocks[..room.min(blocks.len())];
        let mut end = before;
        let strands = &self.strands;
        // Those of this call are not in the strand yet.
        let is_named = |place: Place, name| match u16::from(place.offset).checked_sub(before) {
            Some(behind) if place.strand == id => blocks
                .get(usize::from(behind))
                .is_some_and(|block| block.name == name),
            _ => is_named(strands, place, name),
        };
        for block in blocks {
            // Behind a new block only a strand begins that has lost the one before.
            let begins = self.lost > 0 && self.heads.contains_key(&block.sequence);
            if block.name == 0 || begins {
                break;
            }
            let is = |place| is_named(place, block.name);
            if !self.names.insert(block.name, at(id, end), is) {
                break;
            }
            end += 1;
        }
        let count = end - before;
        self.strands[index(id)].extend(&blocks[..usize::from(count)]);
        count
    }

    /// Says what is before a strand: a block, one that is gone, or nothing at all.
    fn set_parent(&mut self, id: u32, parent: Option<(Place, SequenceHash)>) {
        self.detach(id);
        let Some((place, _)) = parent else { return };
        let mut counted = Generation::default();
        match self.strands.get_mut(index(place.strand)) {
            Some(before) => counted = before.forks.add(place.offset),
            None => self.lost += 1,
        }
        let strand = &mut self.strands[index(id)];
        (strand.parent, strand.counted) = (parent, counted);
    }

    /// Lets nothing be before a strand.
    fn detach(&mut self, id: u32) {
        let strand = &mut self.strands[index(id)];
        let counted = strand.counted;
        if let Some((place, _)) = strand.parent.take() {
            let before = self.strands.get_mut(index(place.strand));
            let was_lost = before.is_none_or(|before| !before.forks.remove(counted));
            self.lost -= usize::from(was_lost);
        }
    }

    /// Lets a rank that holds `parent` hold blocks behind it in the strand, as far as others hold
    /// them under these names, and no others; or, at the end of what it holds alone, one new block. How many.
    pub(super) fn put_straight(
        &mut self,
        parent: Place,
        change: Change,
        blocks: &[StoredBlock],
        is_free: impl Fn(u64) -> bool,
    ) -> u16 {
        let strand = &mut self.strands[index(parent.strand)];
        let from = u16::from(parent.offset) + 1;
        if from == strand.end() {
            return match blocks {
                [block] if strand.ends_with_only(change) => {
                    u16::from(self.extend(parent, block, is_free))
                }
                _ => 0,
            };
        }
        let count = strand.same_behind(parent.offset, blocks, change.slot, is_free);
        if count > 0 {
            let to = from + count;
            strand.change(Stretch { from, to }, change);
        }
        count
    }

    /// Appends a block behind the last one of a strand, held by whoever holds that one; false if there
    /// is no room, or it or its name is not new.
    fn extend(&mut self, last: Place, block: &StoredBlock, is_free: impl Fn(u64) -> bool) -> bool {
        let strand = &self.strands[index(last.strand)];
        let name = block.engine_hash.0;
        if strand.is_full() || name == 0 || !is_free(name) {
            return false;
        }
        let sequence = chain(strand.last(), block.block_hash);
        let may_begin = self.lost > 0 || strand.forks.may_be_behind(last.offset);
        if may_begin && self.heads.contains_key(&sequence) {
            return false;
        }
        let strands = &self.strands;
        let is = |place| is_named(strands, place, name);
        let place = at(last.strand, u16::from(last.offset) + 1);
        if !self.names.insert(name, place, is) {
            return false;
        }
        let strand = &mut self.strands[index(last.strand)];
        strand.reserve(1);
        strand.push(Block {
            sequence,
            tokens: block.block_hash,
            name,
        });
        strand.cover_all();
        self.blocks += 1;
        true
    }

    /// Gives a block a name in the table, if that is free.
    pub(super) fn name(&mut self, place: Place, name: u64) -> bool {
        let strands = &self.strands;
        let is = |place| is_named(strands, place, name);
        let is_free = self.names.insert(name, place, is);
        if is_free {
            self.strands[index(place.strand)].set_name(place.offset, name);
        }
        is_free
    }

    /// Asks for the memory that naming blocks, or asking for their names, will touch, and does not wait for it.
    pub(super) fn prefetch(&self, names: impl Iterator<Item = u64>) {
        names.for_each(|name| self.names.prefetch(name));
    }

    /// Asks for the memory of the blocks that the table has under these names, and waits for the names alone.
    pub(super) fn prefetch_blocks(&self, names: impl Iterator<Item = u64>) {
        for place in names.filter_map(|name| self.names.guess(name)) {
            if let Some(strand) = self.strands.get(index(place.strand)) {
                strand.prefetch(place.offset);
            }
        }
    }

    /// Makes a change; blocks that nobody holds any more are forgotten.
    pub(super) fn change(&mut self, id: u32, stretch: Stretch, change: Change) {
        if change.holds {
            self.hold(id, stretch, change);
            return;
        }
        let strand = &mut self.strands[index(id)];
        if strand.ends_with(stretch, change) {
            self.unname(id, stretch);
            self.trim(id, Some(stretch.from));
            return;
        }
        strand.change(stretch, change);
        if self.unname_holes(id, stretch) {
            self.trim(id, None);
        }
    }

    fn hold(&mut self, id: u32, stretch: Stretch, change: Change) {
        let strand = &mut self.strands[index(id)];
        let mut held = 0;
        let known = (stretch.from < strand.covered()).then(|| strand.spans());
        for (span, holders) in known.into_iter().flatten() {
            let (from, to) = (span.from.max(stretch.from), span.to.min(stretch.to));
            if from < to && !holders.is_empty() {
                held += usize::from(to - from);
            }
        }
        strand.change(stretch, change);
        self.blocks += usize::from(stretch.to - stretch.from) - held;
    }

    /// Takes a rank out of a strand altogether; how much it held there below the device tier.
    pub(super) fn remove_rank(&mut self, id: u32, slot: RankSlot) -> usize {
        let strand = &mut self.strands[index(id)];
        let mut held = Vec::new();
        let mut below = 0;
        for (stretch, holders) in strand.spans() {
            if !holders.is_empty() {
                held.push(stretch);
            }
            let tiers = holders.tiers(slot).filter(|tier| *tier != Tier::Device);
            below += usize::from(stretch.to - stretch.from) * tiers.count();
        }
        strand.remove_rank(slot);
        for stretch in held {
            self.unname_holes(id, stretch);
        }
        self.trim(id, None);
        below
    }

    /// Takes the names of what nobody in `stretch` holds any more; all of it was held before.
    fn unname_holes(&mut self, id: u32, stretch: Stretch) -> bool {
        let Stretch { mut from, to } = stretch;
        let mut any = false;
        while let Some(hole) = self.strands[index(id)].hole(from, to) {
            any = true;
            from = hole.to;
            self.unname(id, hole);
        }
        any
    }

    fn unname(&mut self, id: u32, hole: Stretch) {
        self.blocks -= usize::from(hole.to - hole.from);
        for (offset, block) in (hole.from..).zip(self.strands[index(id)].blocks_mut(hole)) {
            if block.name != 0 {
                self.names.remove(block.name, at(id, offset));
                block.name = 0;
            }
        }
    }

    /// Drops blocks that nobody holds at both ends of a strand, and all from `end` on.
    fn trim(&mut self, id: u32, end: Option<u16>) {
        let strand = &mut self.strands[index(id)];
        let Some(first) = strand.first() else { return };
        if let Some(end) = end {
            strand.cut(end);
        }
        let before = strand.trim();
        // Blocks at the front went, or all, or some at the end.
        let end = match before {
            None if !strand.is_empty() => strand.end(),
            _ => 0,
        };
        self.lost += usize::try_from(strand.forks.lose_from(end)).unwrap_or(usize::MAX);
        if end > 0 {
            return;
        }
        self.heads.remove(&first.sequence);
        if let Some(first) = strand.first() {
            self.heads.insert(first.sequence, id);
            self.set_parent(id, before.map(|sequence| (Place::NOWHERE, sequence)));
        } else {
            self.detach(id);
            self.strands[index(id)].reset();
            self.free.push(id);
        }
    }

    /// Follows a chain; `step` is given the holders of so many blocks each time, and says whether
    /// to go on.
    pub(super) fn walk(&self, chain: &[SequenceHash], mut step: impl FnMut(&Holders, u32) -> bool) {
        let mut rest = chain;
        while let Some(first) = rest.first() {
            let Some(&id) = self.heads.get(first) else {
                return;
            };
            let strand = &self.strands[index(id)];
            let matching = strand.matching(rest);
            let most = u32::try_from(matching).unwrap_or(u32::MAX);
            let base = u32::from(strand.base());
            for (stretch, holders) in strand.spans() {
                let from = u32::from(stretch.from) - base;
                let to = (u32::from(stretch.to) - base).min(most);
                if from >= to {
                    break;
                }
                if !step(holders, to - from) {
                    return;
                }
            }
            rest = &rest[matching..];
        }
    }
}

fn is_named(strands: &[Strand], place: Place, name: u64) -> bool {
    let strand = strands.get(index(place.strand));
    let block = strand.and_then(|strand| strand.get(u16::from(place.offset)));
    block.is_some_and(|block| block.name == name)
}

pub(super) fn at(strand: u32, offset: u16) -> Place {
    Place {
        strand,
        // Offsets end at 255: a strand has at most 256 blocks.
        offset: u8::try_from(offset).unwrap_or(u8::MAX),
    }
}

fn index(id: u32) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

#[cfg(test)]
impl Chains {
    /// Compares what is known of the blocks before strands with what a look at all of them says.
    pub(super) fn check_parents(&self) {
        let mut forks: HashMap<u32, Vec<u8>> = HashMap::new();
        let (mut lost, mut surely_lost) = (0, 0);
        for id in self.heads.values() {
            let strand = self.strand(*id);
            let Some((place, sequence)) = strand.parent else {
                continue;
            };
            let before = self.strands.get(index(place.strand));
            if before.is_some_and(|before| before.forks.counts(strand.counted)) {
                forks.entry(place.strand).or_default().push(place.offset);
            } else {
                lost += 1;
            }
            let found = self.strands.iter().find_map(|strand| {
                let mut offsets = strand.base()..strand.end();
                let is = |offset: &u16| {
                    strand.get(*offset).map(|block| block.sequence) == Some(sequence)
                };
                Some((strand, offsets.find(is)?))
            });
            match found {
                Some((strand, offset)) => {
                    assert!(self.lost > 0 || strand.forks.may_be_behind(at(0, offset).offset));
                }
                None => surely_lost += 1,
            }
        }
        assert_eq!(self.lost, lost);
        assert!(lost >= surely_lost, "{surely_lost} of {lost}");
        for (id, strand) in (0..).zip(&self.strands) {
            let offsets = forks.remove(&id).unwrap_or_default();
            assert!(strand.forks.covers(&offsets), "strand {id}: {offsets:?}");
        }
    }
}
