//! Says which prompt blocks are active on which rank and by whose charges: chains of hashes kept as a tree of runs; it knows nothing of weights.
//!
//! A block is its hash and all hashes before it, so two charges share their common prefix and
//! nothing else. Sequence hashes that engines' companions compute name all that is before them
//! anyway; of hashes a client made up, one that repeats counts again behind another prefix.
//!
//! A run is the longest stretch of blocks held by the same charges: it is cut where a chain ends or
//! leaves it, and joined with its only continuation once nothing ends between them. A charge knows
//! the run its chain ends with, and holds that one and all before it. So holding and freeing a
//! prompt costs work per run, and no more than a comparison per block.

use hashbrown::HashMap;

use crate::hash::SequenceHash;
use crate::overlaps::Overlaps;
use crate::ranks::{RankSet, RankSlot};

/// Names a run as long as a charge holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RunId(usize);

/// What first runs continue; no run itself.
const ROOT: RunId = RunId(usize::MAX);

/// Which other charges hold a run on the same rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    None,
    /// The index of its charge.
    One(usize),
    Many,
}

/// The prompt blocks of all charges of a partition.
#[derive(Debug, Default)]
pub(super) struct Runs {
    places: Vec<Run>,
    free: Vec<RunId>,
    /// By the run before and the first hash.
    next: HashMap<(RunId, SequenceHash), RunId>,
}

#[derive(Debug)]
struct Run {
    before: RunId,
    /// Never empty while the run is in the tree.
    hashes: Box<[SequenceHash]>,
    /// Charges whose chain ends with this run.
    ends: usize,
    /// Runs that continue this one: how many, and their numbers combined by exclusive or, which is
    /// the number of the only one.
    nexts: usize,
    combined: usize,
    /// Ranks on which a charge holds the run, and the same by rank, ascending.
    ranks: RankSet,
    shares: Vec<Share>,
}

/// Who holds a run on one rank.
#[derive(Clone, Copy, Debug)]
struct Share {
    slot: RankSlot,
    holders: u64,
    /// The holders' indices combined by exclusive or: with one left, its index.
    combined: usize,
}

impl Runs {
    /// Makes room for one more charge of `chain`; returns the run it ends with, none if it is empty.
    /// Undone by [`leave`](Self::leave).
    pub(super) fn enter(&mut self, chain: &[SequenceHash]) -> Option<RunId> {
        let mut before = ROOT;
        let mut rest = chain;
        while let [first, ..] = rest {
            let Some(found) = self.next.get(&(before, *first)).copied() else {
                before = self.add(before, rest);
                break;
            };
            let hashes = &self.places[found.0].hashes;
            let common = common_prefix(hashes, rest);
            before = if common < hashes.len() {
                self.cut(found, common)
            } else {
                found
            };
            rest = &rest[common..];
        }
        if before == ROOT {
            return None;
        }
        self.places[before.0].ends += 1;
        Some(before)
    }

    /// Takes back one [`enter`](Self::enter), after [`release`](Self::release).
    pub(super) fn leave(&mut self, end: RunId) {
        let mut id = end;
        self.places[id.0].ends -= 1;
        // At most two turns: a run that stays was cut where another chain left it.
        while self.places[id.0].ends == 0 {
            match self.places[id.0].nexts {
                0 => {
                    let before = self.remove(id);
                    if before == ROOT {
                        return;
                    }
                    id = before;
                }
                1 => return self.join(id),
                _ => return,
            }
        }
    }

    /// Lets the charge `holder` hold the chain that ends with `end` on a rank; tells `each` the
    /// number of blocks of each run and who else holds it there.
    pub(super) fn hold(
        &mut self,
        end: RunId,
        slot: RankSlot,
        holder: usize,
        mut each: impl FnMut(u64, Others),
    ) {
        let mut id = end;
        while id != ROOT {
            let run = &mut self.places[id.0];
            match run.shares.binary_search_by_key(&slot, |share| share.slot) {
                Ok(at) => {
                    let share = &mut run.shares[at];
                    let others = share.others();
                    share.holders += 1;
                    share.combined ^= holder;
                    each(run.blocks(), others);
                }
                Err(at) => {
                    let share = Share {
                        slot,
                        holders: 1,
                        combined: holder,
                    };
                    run.shares.insert(at, share);
                    run.ranks.insert(slot);
                    each(run.blocks(), Others::None);
                }
            }
            id = run.before;
        }
    }

    /// Takes back a [`hold`](Self::hold); `each` is told who is left.
    pub(super) fn release(
        &mut self,
        end: RunId,
        slot: RankSlot,
        holder: usize,
        mut each: impl FnMut(u64, Others),
    ) {
        let mut id = end;
        while id != ROOT {
            let run = &mut self.places[id.0];
            id = run.before;
            let Ok(at) = run.shares.binary_search_by_key(&slot, |share| share.slot) else {
                debug_assert!(false, "a run that is not held on its rank");
                continue;
            };
            let share = &mut run.shares[at];
            share.holders -= 1;
            share.combined ^= holder;
            let others = share.others();
            if others == Others::None {
                run.shares.remove(at);
                run.ranks.remove(slot);
            }
            each(run.blocks(), others);
        }
    }

    /// How many leading blocks of `chain` each rank has active; `bound` is above all slots.
    pub(super) fn active_into(&self, chain: &[SequenceHash], bound: usize, active: &mut Overlaps) {
        active.begin(bound);
        let mut before = ROOT;
        let mut rest = chain;
        while let [first, ..] = rest
            && let Some(found) = self.next.get(&(before, *first)).copied()
        {
            let run = &self.places[found.0];
            let common = common_prefix(&run.hashes, rest);
            let blocks = u32::try_from(common).unwrap_or(u32::MAX);
            if !active.step(Some(&run.ranks), blocks) || common < run.hashes.len() {
                break;
            }
            before = found;
            rest = &rest[common..];
        }
        active.end_walk();
    }

    fn add(&mut self, before: RunId, hashes: &[SequenceHash]) -> RunId {
        self.insert(Run {
            before,
            hashes: hashes.into(),
            ends: 0,
            nexts: 0,
            combined: 0,
            ranks: RankSet::default(),
            shares: Vec::new(),
        })
    }

    /// Puts a run in its place behind `run.before`.
    fn insert(&mut self, run: Run) -> RunId {
        let (before, first) = (run.before, run.hashes[0]);
        let id = if let Some(id) = self.free.pop() {
            self.places[id.0] = run;
            id
        } else {
            self.places.push(run);
            RunId(self.places.len() - 1)
        };
        self.next.insert((before, first), id);
        if let Some(before) = self.places.get_mut(before.0) {
            before.nexts += 1;
            before.combined ^= id.0;
        }
        id
    }

    /// Takes a run that nothing ends with or continues out of the tree; returns the one before.
    fn remove(&mut self, id: RunId) -> RunId {
        let run = &mut self.places[id.0];
        let (before, first) = (run.before, run.hashes[0]);
        // What it held on the heap goes with it.
        run.hashes = Box::default();
        run.shares = Vec::new();
        run.ranks = RankSet::default();
        self.next.remove(&(before, first));
        if let Some(before) = self.places.get_mut(before.0) {
            before.nexts -= 1;
            before.combined ^= id.0;
        }
        self.free.push(id);
        before
    }

    /// Cuts a run in two after `blocks` of its blocks. It keeps the rear part, because the charges
    /// that end with it still do; returns the front.
    fn cut(&mut self, id: RunId, blocks: usize) -> RunId {
        let run = &mut self.places[id.0];
        let (front, rear) = run.hashes.split_at(blocks);
        let front = Run {
            before: run.before,
            hashes: front.into(),
            ends: 0,
            nexts: 0,
            combined: 0,
            ranks: run.ranks.clone(),
            shares: run.shares.clone(),
        };
        let first = rear[0];
        run.hashes = rear.into();
        let before = run.before;
        if let Some(before) = self.places.get_mut(before.0) {
            before.nexts -= 1;
            before.combined ^= id.0;
        }
        let front = self.insert(front);
        self.places[id.0].before = front;
        self.places[front.0].nexts = 1;
        self.places[front.0].combined = id.0;
        self.next.insert((front, first), id);
        front
    }

    /// Joins a run that nothing ends with and its only continuation, which lives on as both: the
    /// same charges hold them.
    fn join(&mut self, id: RunId) {
        let rear = RunId(self.places[id.0].combined);
        let hashes = [&*self.places[id.0].hashes, &*self.places[rear.0].hashes].concat();
        let (first, cut) = (hashes[0], self.places[rear.0].hashes[0]);
        self.next.remove(&(id, cut));
        let before = self.remove(id);
        let run = &mut self.places[rear.0];
        run.before = before;
        run.hashes = hashes.into();
        self.next.insert((before, first), rear);
        if let Some(before) = self.places.get_mut(before.0) {
            before.nexts += 1;
            before.combined ^= rear.0;
        }
    }
}

#[cfg(test)]
impl Runs {
    /// Runs in the tree, after checking that each is as long as it can be and held by someone.
    pub(super) fn checked_count(&self) -> usize {
        for id in self.next.values() {
            let run = &self.places[id.0];
            assert!(
                run.ends > 0 || run.nexts > 1,
                "a run that ends for no reason"
            );
            assert!(!run.shares.is_empty() && !run.ranks.is_empty());
            assert_eq!(run.ranks.len(), run.shares.len());
        }
        assert_eq!(self.next.len() + self.free.len(), self.places.len());
        self.next.len()
    }
}

impl Run {
    fn blocks(&self) -> u64 {
        u64::try_from(self.hashes.len()).unwrap_or(u64::MAX)
    }
}

impl Share {
    fn others(&self) -> Others {
        match self.holders {
            0 => Others::None,
            1 => Others::One(self.combined),
            _ => Others::Many,
        }
    }
}

fn common_prefix(one: &[SequenceHash], other: &[SequenceHash]) -> usize {
    one.iter()
        .zip(other)
        .take_while(|(one, other)| one == other)
        .count()
}
