//! Stores blocks: what is as usual many at a time, what is odd one by one; it removes only what a new meaning of a name replaces.

use pointsman_plugin::WorkerWithDpRank;

use super::apply::{Run, Source, Word, count};
use super::chains::{self, Next};
use super::holders::Change;
use super::strand::{Block, Place, Stretch, length};
use super::waiting::Orphan;
use super::{Applied, KvIndex, Placement, StoredBlock, Tier};
use crate::hash::{BlockHash, EngineHash, SequenceHash, chain};
use crate::ranks::RankSlot;

/// What became of one stored block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    New,
    Duplicate,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    stored: usize,
    duplicates: usize,
    refused: usize,
}

/// The end of the chain so far.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    /// None at the root, and where the last block is gone.
    place: Option<Place>,
    sequence: Option<SequenceHash>,
    depth: u32,
}

impl KvIndex {
    /// Stores blocks by sequence hash, each under that as its name.
    pub(crate) fn store_chain(&mut self, worker: WorkerWithDpRank, chain: &[SequenceHash]) {
        let Some(slot) = self.ranks.get(worker) else {
            return;
        };
        let source = Source {
            slot,
            at: Placement::default(),
            word: Word::Guess,
        };
        let blocks: Vec<_> = chain
            .iter()
            .map(|hash| Block {
                sequence: *hash,
                tokens: BlockHash(0),
                name: hash.0,
            })
            .collect();
        self.put(source, Cursor::default(), &blocks);
    }

    pub(super) fn store(
        &mut self,
        source: Source,
        parent: Option<EngineHash>,
        blocks: &[StoredBlock],
    ) -> Applied {
        let mut cursor = Cursor::default();
        let mut straight = 0;
        if let Some(parent) = parent {
            let known = self.meaning(source.slot, parent);
            straight = known.map_or(0, |place| self.put_straight(source, place, blocks));
            let is_held = |place: &Place| straight > 0 || self.is_held_by(source.slot, *place);
            let Some(place) = known.filter(is_held) else {
                self.counts.unknown_parents += 1;
                self.waiting.push(Orphan {
                    source,
                    parent,
                    blocks: blocks.to_vec(),
                    removed: Vec::new(),
                });
                return Applied::UnknownParent;
            };
            if straight < blocks.len() {
                let last = u16::from(place.offset) + length(straight);
                cursor = self.cursor(chains::at(place.strand, last));
            }
        }
        let mut tally = Tally::default();
        if straight < blocks.len() {
            tally = self.put_blocks(source, cursor, &blocks[straight..]);
        }
        tally.stored += straight;
        if !self.waiting.is_empty() {
            self.wake(source.slot, blocks);
        }
        self.counts.stored += count(tally.stored);
        self.counts.duplicate_stores += count(tally.duplicates);
        self.counts.refused += count(tally.refused);
        Applied::Stored {
            blocks: tally.stored,
            duplicates: tally.duplicates,
            refused: tally.refused,
        }
    }

    /// Stores what waited for any of `blocks`, and what waited for that.
    fn wake(&mut self, slot: RankSlot, blocks: &[StoredBlock]) {
        let mut names: Vec<_> = blocks.iter().map(|block| block.engine_hash).collect();
        let mut removals = Vec::new();
        while let Some(name) = names.pop() {
            for orphan in self.waiting.children(slot, name) {
                let Some(place) = self.resolve(slot, orphan.parent) else {
                    continue;
                };
                self.counts.parents_found += 1;
                let tally = self.put_blocks(orphan.source, self.cursor(place), &orphan.blocks);
                self.counts.stored += count(tally.stored);
                self.counts.duplicate_stores += count(tally.duplicates);
                self.counts.refused += count(tally.refused);
                names.extend(orphan.blocks.iter().map(|block| block.engine_hash));
                removals.extend(orphan.removed);
            }
        }
        // What waited behind a removed block hung on its name, so removals come last.
        for (at, name) in removals {
            self.remove(slot, at, &[name]);
        }
    }

    fn cursor(&self, place: Place) -> Cursor {
        Cursor {
            place: Some(place),
            sequence: self.chains.block(place).map(|block| block.sequence),
            depth: self.chains.strand(place.strand).depth + u32::from(place.offset) + 1,
        }
    }

    /// Stores blocks behind one that `parent` is if the rank holds it, as far as they need no more
    /// than the rank's bit, and be they new, their names in the table; how many. So output comes.
    fn put_straight(&mut self, source: Source, parent: Place, blocks: &[StoredBlock]) -> usize {
        let Source { slot, at, word } = source;
        let rank = &mut self.held[slot.index()];
        if word == Word::Hearsay || !rank.is_simple(at.group) {
            return 0;
        }
        let room = self.counts.max_entries - self.counts.entries.min(self.counts.max_entries);
        let blocks = &blocks[..room.min(blocks.len())];
        let is_free = |name| rank.meant(EngineHash(name)).is_none();
        let change = Change {
            slot,
            tier: at.tier,
            holds: true,
        };
        let count = usize::from(self.chains.put_straight(parent, change, blocks, is_free));
        rank.names += count;
        self.counts.entries += count;
        if at.tier != Tier::Device {
            self.below_device += count;
        }
        count
    }

    /// Chains `blocks` behind `cursor` and stores them.
    fn put_blocks(&mut self, source: Source, cursor: Cursor, blocks: &[StoredBlock]) -> Tally {
        let mut incoming = std::mem::take(&mut self.incoming);
        incoming.clear();
        let mut previous = cursor.sequence;
        let names = blocks.iter().map(|block| block.engine_hash.0);
        self.held[source.slot.index()].prefetch(names);
        incoming.extend(blocks.iter().map(|block| {
            let name = block.engine_hash.0;
            self.chains.prefetch(std::iter::once(name));
            let sequence = chain(previous, block.block_hash);
            previous = Some(sequence);
            Block {
                sequence,
                tokens: block.block_hash,
                name,
            }
        }));
        let tally = self.put(source, cursor, &incoming);
        self.incoming = incoming;
        tally
    }

    /// Stores blocks in a row. What is as usual goes many at a time, the rest one by one.
    fn put(&mut self, source: Source, mut cursor: Cursor, incoming: &[Block]) -> Tally {
        let mut tally = Tally::default();
        let mut run = None;
        let mut done = 0;
        while let Some(block) = incoming.get(done) {
            let next = self.chains.next(cursor.place, block.sequence);
            let (place, count) = match next {
                Next::There(place) => match self.take_known(source, place, &incoming[done..]) {
                    0 => match self.put_one(source, &mut cursor, block, &mut run, &mut tally) {
                        Some(place) => (place, 0),
                        None => break,
                    },
                    count => {
                        self.extend(source, place, count, &mut run);
                        (
                            chains::at(place.strand, u16::from(place.offset) + count - 1),
                            count,
                        )
                    }
                },
                _ if self.is_usual(source, block) => {
                    self.put_new(source, cursor, next, &incoming[done..], &mut run)
                }
                _ => match self.put_one(source, &mut cursor, block, &mut run, &mut tally) {
                    Some(place) => (place, 0),
                    None => break,
                },
            };
            self.count_names(source.slot, usize::from(count), 0);
            tally.stored += usize::from(count);
            // One that went alone has been counted.
            let count = usize::from(count.max(1));
            done += count;
            cursor = Cursor {
                place: Some(place),
                sequence: incoming.get(done - 1).map(|block| block.sequence),
                depth: cursor.depth + u32::try_from(count).unwrap_or(u32::MAX),
            };
        }
        self.hold(source, &mut run);
        tally.refused = incoming.len() - done;
        tally
    }

    /// Stores a new block, and with it those behind it that are new too and as usual; the place of
    /// the last, and how many.
    fn put_new(
        &mut self,
        source: Source,
        cursor: Cursor,
        next: Next,
        incoming: &[Block],
        run: &mut Option<Run>,
    ) -> (Place, u16) {
        let first = incoming[0];
        let place = self
            .chains
            .add(cursor.behind(), next, first, incoming.len());
        self.extend(source, place, 1, run);
        if !self.chains.name(place, first.name) {
            self.hold(source, run);
            self.name_otherwise(source.slot, EngineHash(first.name), place);
            return (place, 1);
        }
        let room = self.counts.max_entries - self.counts.entries;
        let more = &incoming[1..incoming.len().min(room)];
        let unknown = self.held[source.slot.index()].unknown(more);
        let count = self.chains.append(place.strand, &more[..unknown]);
        let at = |offset| chains::at(place.strand, u16::from(place.offset) + offset);
        if count > 0 {
            self.extend(source, at(1), count, run);
        }
        (at(count), count + 1)
    }

    /// How many of the blocks are known from `place` on, with the same holders, and new to the rank,
    /// all under the names of the table or all under others, which become aliases; 0 if there is
    /// more to it.
    fn take_known(&mut self, source: Source, place: Place, incoming: &[Block]) -> u16 {
        let rank = &mut self.held[source.slot.index()];
        if !rank.is_simple(source.at.group) {
            return 0;
        }
        let room = self.counts.max_entries - self.counts.entries.min(self.counts.max_entries);
        let incoming = &incoming[..incoming.len().min(room)];
        let strand = self.chains.strand(place.strand);
        let same = strand.same(place.offset, incoming, source.slot);
        if same.named > 0 {
            let unknown = rank.unknown(&incoming[..usize::from(same.named)]);
            return u16::try_from(unknown).unwrap_or(0);
        }
        let is_free = |block: &&Block| {
            rank.own(EngineHash(block.name)).is_none() && self.chains.named(block.name).is_none()
        };
        let others = &incoming[..usize::from(same.otherwise)];
        let free = others.iter().take_while(is_free).count();
        if free == 0 {
            return 0;
        }
        rank.add_aliases(place, others[..free].iter().map(|block| block.name))
    }

    /// Whether a new block needs no more than its name in the table and a bit for the rank.
    fn is_usual(&mut self, source: Source, block: &Block) -> bool {
        block.name != 0 && self.counts.entries < self.counts.max_entries && {
            let rank = &mut self.held[source.slot.index()];
            rank.is_simple(source.at.group) && rank.unknown(std::slice::from_ref(block)) > 0
        }
    }

    /// Gives a new block that the rank holds a name that means something else already.
    fn name_otherwise(&mut self, slot: RankSlot, name: EngineHash, place: Place) {
        if let Some(before) = self.resolve(slot, name) {
            self.counts.renamed += 1;
            self.release(slot, name, before);
        }
        if !self.chains.name(place, name.0) {
            let added = self.held[slot.index()].add_aliases(place, [name.0].into_iter());
            debug_assert_eq!(added, 1, "the name is not known, and the block is new");
        }
    }

    /// Stores one block, whatever it is to the rank; its place, or `None` if there is no room.
    fn put_one(
        &mut self,
        source: Source,
        cursor: &mut Cursor,
        block: &Block,
        run: &mut Option<Run>,
        tally: &mut Tally,
    ) -> Option<Place> {
        let name = EngineHash(block.name);
        let mut next = self.chains.next(cursor.place, block.sequence);
        if self.vacate(source, name, next, run) {
            // What the name meant before is gone, and the end of the chain may be with it.
            let last = cursor.place.and_then(|place| self.chains.block(place));
            if last.map(|last| last.sequence) != cursor.sequence {
                cursor.place = None;
            }
            next = self.chains.next(cursor.place, block.sequence);
        }
        if self.counts.entries >= self.counts.max_entries && !self.is_held(source, next) {
            return None;
        }
        let place = self.chains.add(cursor.behind(), next, *block, 1);
        match self.take(source, name, place, run) {
            Taken::New => tally.stored += 1,
            Taken::Duplicate => tally.duplicates += 1,
        }
        Some(place)
    }

    fn is_held(&self, source: Source, next: Next) -> bool {
        let Next::There(place) = next else {
            return false;
        };
        self.chains
            .holders(place)
            .is_some_and(|holders| holders.tiers(source.slot).next().is_some())
    }

    /// Lets `name` mean nothing to the rank unless it means the block that `next` is; true if it did.
    fn vacate(
        &mut self,
        source: Source,
        name: EngineHash,
        next: Next,
        run: &mut Option<Run>,
    ) -> bool {
        let here = match next {
            Next::There(place) => Some(place),
            _ => None,
        };
        let held = &self.held[source.slot.index()];
        let named_here = here.is_some_and(|place| {
            name.0 != 0
                && self
                    .chains
                    .block(place)
                    .is_some_and(|block| block.name == name.0)
        });
        let before = match held.meant(name) {
            Some(place) => Some(place),
            None if named_here => None,
            None => {
                // A block of this very event may be meant, which has no holder yet.
                let place = self.chains.named(name.0);
                if place.is_some_and(|place| run.is_some_and(|run| run.contains(place))) {
                    self.hold(source, run);
                }
                place.filter(|place| self.is_implied(source.slot, *place))
            }
        };
        let Some(before) = before.filter(|place| Some(*place) != here) else {
            return false;
        };
        self.hold(source, run);
        self.counts.renamed += 1;
        self.release(source.slot, name, before);
        true
    }

    /// One copy more of the block at `place`, which may be new and held by nobody.
    fn take(
        &mut self,
        source: Source,
        name: EngineHash,
        place: Place,
        run: &mut Option<Run>,
    ) -> Taken {
        let Source { slot, at, word } = source;
        let holders = self.chains.holders(place);
        let held_here = holders.is_some_and(|holders| holders.contains(at.tier, slot));
        let held_any =
            held_here || holders.is_some_and(|holders| holders.tiers(slot).next().is_some());
        let rank = &mut self.held[slot.index()];
        rank.settle_home(at.group);
        if held_here && word != Word::Engine {
            return Taken::Duplicate;
        }
        if held_here && rank.is_doubtful(place, at.tier) {
            self.confirm_block(source, name, place);
            return Taken::New;
        }
        if rank.is_plain(at, name, place) && self.is_called(slot, name, place, held_any) {
            if !held_here {
                self.extend(source, place, 1, run);
                self.count_names(slot, usize::from(!held_any), 0);
                return Taken::New;
            }
            self.make_own(slot, place);
            self.held[slot.index()].add_copy(name, at);
            return Taken::Duplicate;
        }
        if held_any {
            self.make_own(slot, place);
        }
        let rank = &mut self.held[slot.index()];
        let duplicate = rank.own(name) == Some(place) && rank.has_copy_in(name, at.tier);
        if rank.own(name).is_none() {
            rank.add_own(name, place, std::iter::empty());
            self.count_names(slot, 1, 0);
        }
        self.held[slot.index()].add_copy(name, at);
        if !held_here {
            self.extend(source, place, 1, run);
        }
        if duplicate {
            Taken::Duplicate
        } else {
            Taken::New
        }
    }

    /// Whether `name` is what the rank calls the block; one that it does not hold gets it, if the
    /// name is free.
    fn is_called(&mut self, slot: RankSlot, name: EngineHash, place: Place, held: bool) -> bool {
        if held {
            return self.plain_name(slot, place) == Some(name);
        }
        let names = [name.0].into_iter();
        self.has_table_name(place, name) || self.held[slot.index()].add_aliases(place, names) == 1
    }

    /// Whether the table has `name` for the block; it gets it if both are free.
    fn has_table_name(&mut self, place: Place, name: EngineHash) -> bool {
        let current = self.chains.block(place).map_or(0, |block| block.name);
        if name.0 == 0 || current != 0 {
            return current == name.0 && current != 0;
        }
        self.chains.name(place, name.0)
    }

    /// The rank itself says what was only believed: that is all it holds of the block in that tier.
    pub(super) fn confirm_block(&mut self, source: Source, name: EngineHash, place: Place) {
        let Source { slot, at, .. } = source;
        let plain_name = self.plain_name(slot, place);
        let rank = &mut self.held[slot.index()];
        rank.trust(place, at.tier);
        if rank.is_plain(at, name, place) && plain_name == Some(name) {
            return;
        }
        self.make_own(slot, place);
        let rank = &mut self.held[slot.index()];
        let names = rank.own_names(place, Some(name));
        for known in &names {
            rank.drop_copies_in(*known, at.tier);
        }
        let mut added = 0;
        if rank.own(name).is_none() {
            rank.add_own(name, place, std::iter::empty());
            added = 1;
        }
        rank.add_copy(name, at);
        let dropped = names
            .iter()
            .filter(|known| rank.drop_if_empty(**known))
            .count();
        self.count_names(slot, added, dropped);
    }

    /// Adds blocks to the run of those that get their holder together.
    fn extend(&mut self, source: Source, place: Place, count: u16, run: &mut Option<Run>) {
        if source.at.tier != Tier::Device {
            self.below_device += usize::from(count);
        }
        let offset = u16::from(place.offset);
        if let Some(run) = run
            && run.strand == place.strand
            && run.stretch.to == offset
        {
            run.stretch.to += count;
            return;
        }
        self.hold(source, run);
        *run = Some(Run {
            strand: place.strand,
            stretch: Stretch {
                from: offset,
                to: offset + count,
            },
        });
    }

    /// Lets the rank hold what is in the run.
    fn hold(&mut self, source: Source, run: &mut Option<Run>) {
        let Some(Run { strand, stretch }) = run.take() else {
            return;
        };
        let change = Change {
            slot: source.slot,
            tier: source.at.tier,
            holds: true,
        };
        let is_known = self.chains.strand(strand).surely_holds(source.slot);
        self.chains.change(strand, stretch, change);
        let chains = &self.chains;
        let rank = &mut self.held[source.slot.index()];
        if !is_known {
            rank.note_strand(strand, |id| chains.strand(id).holds_any(source.slot));
        }
        if source.word == Word::Hearsay {
            rank.doubt(strand, source.at.tier, stretch);
        }
    }

    pub(super) fn link(&mut self, source: Source, names: &[EngineHash]) -> Applied {
        let (mut linked, mut duplicates) = (0, 0);
        for name in names {
            let Some(place) = self.resolve(source.slot, *name) else {
                self.counts.unknown_links += 1;
                continue;
            };
            let mut run = None;
            match self.take(source, *name, place, &mut run) {
                Taken::New => linked += 1,
                Taken::Duplicate => duplicates += 1,
            }
            self.hold(source, &mut run);
        }
        self.counts.stored += count(linked);
        self.counts.duplicate_stores += count(duplicates);
        Applied::Stored {
            blocks: linked,
            duplicates,
            refused: 0,
        }
    }
}

impl Cursor {
    fn behind(self) -> chains::Behind {
        chains::Behind {
            place: self.place,
            sequence: self.sequence,
            depth: self.depth,
        }
    }
}
