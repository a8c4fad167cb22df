//! The block sizes that a rank uses, by tier and group, and the blocks that have to be cut again; it
//! decides for no event whether its size can be reconciled.

mod waiting;

use std::num::NonZeroU32;

use pointsman_core::hash::{EngineHash, HashLayout};
use pointsman_core::index::{KvEvent, Placement};
use pointsman_core::recut::{EngineStore, Recut, RecutError};

use super::super::skip::SkipReason;
use waiting::Waiting;

/// Foreign block sizes by tier and group, per rank.
const MAX_RECUTS: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Cuts {
    recuts: Vec<Cut>,
    /// Removals of small blocks may have been missed.
    doubted: bool,
}

#[derive(Debug)]
struct Cut {
    at: Placement,
    size: NonZeroU32,
    recut: Recut,
    waiting: Waiting,
}

/// What a store means in blocks of the partition's size.
#[derive(Debug, Default)]
pub(super) struct Recast {
    pub(super) events: Vec<KvEvent>,
    /// All of it waits for its parent.
    pub(super) waits: bool,
    /// Other stores that were given up.
    pub(super) skipped: Vec<SkipReason>,
}

impl Cut {
    fn knows(&self, name: EngineHash) -> bool {
        self.recut.knows(name) || self.waiting.has(name)
    }

    /// Joins what waited for blocks that are known now. What was removed meanwhile goes when all of
    /// it has found its place.
    fn release(&mut self, names: &[EngineHash], recast: &mut Recast) {
        if self.waiting.is_empty() {
            return;
        }
        let mut open = names.to_vec();
        let mut gone = Vec::new();
        while let Some(name) = open.pop() {
            for orphan in self.waiting.children(name) {
                match self.recut.stored(&orphan.store()) {
                    Ok(events) => {
                        recast.events.extend(events);
                        open.extend(orphan.names);
                        gone.extend(orphan.removed);
                    }
                    Err(error) => recast.skipped.push(reason(&error)),
                }
            }
        }
        if !gone.is_empty() {
            recast.events.extend(self.recut.removed(&gone));
        }
    }

    fn removed(&mut self, names: &[EngineHash]) -> Vec<KvEvent> {
        if self.waiting.is_empty() {
            return self.recut.removed(names);
        }
        let mut events = Vec::new();
        for name in names {
            if self.recut.holds(*name) {
                events.extend(self.recut.removed(&[*name]));
            } else {
                self.waiting.remove(*name);
            }
        }
        events
    }

    fn remaining(&mut self, copies: &[(EngineHash, u32)]) -> Vec<KvEvent> {
        if !self.waiting.is_empty() {
            for (name, left) in copies {
                // Of those that are held and those that wait, the count is of the held ones first.
                let left = if self.recut.holds(*name) { 0 } else { *left };
                self.waiting
                    .leave(*name, usize::try_from(left).unwrap_or(usize::MAX));
            }
        }
        self.recut.remaining(copies)
    }
}

impl Cuts {
    /// What a store of blocks of this size means there; `is_held` tells of the partition's blocks.
    pub(super) fn stored(
        &mut self,
        at: Placement,
        size: NonZeroU32,
        layout: HashLayout,
        store: &EngineStore<'_>,
        is_held: impl Fn(EngineHash) -> bool,
    ) -> Result<Recast, SkipReason> {
        let cut = self.cut(at, size, layout)?;
        let mut recast = Recast::default();
        match cut.recut.stored(store) {
            Ok(events) => recast.events = events,
            Err(RecutError::UnknownParent) => {
                recast.waits = true;
                let given_up = cut.waiting.push(store);
                recast.skipped = vec![SkipReason::UnknownParent; given_up];
                return Ok(recast);
            }
            Err(error) => return Err(reason(&error)),
        }
        if size > layout.block_size {
            hang_on_plain(&mut recast.events, store.parent, is_held);
        } else {
            cut.release(store.engine_hashes, &mut recast);
        }
        Ok(recast)
    }

    /// What cuts blocks of this size there.
    fn cut(
        &mut self,
        at: Placement,
        size: NonZeroU32,
        layout: HashLayout,
    ) -> Result<&mut Cut, SkipReason> {
        let known = self.recuts.iter();
        let mut known = known.map(|cut| (cut.at, cut.size));
        let position = match known.position(|known| known == (at, size)) {
            Some(position) => position,
            None if self.recuts.len() == MAX_RECUTS => return Err(SkipReason::RecutFull),
            None => {
                let recut = Recut::new(size, layout).map_err(|error| reason(&error))?;
                self.recuts.push(Cut {
                    at,
                    size,
                    recut,
                    waiting: Waiting::default(),
                });
                self.recuts.len() - 1
            }
        };
        Ok(&mut self.recuts[position])
    }

    /// What it means that blocks were removed there.
    pub(super) fn removed(
        &mut self,
        at: Placement,
        names: &mut Vec<EngineHash>,
        mut apply: impl FnMut(&KvEvent),
    ) {
        if names.is_empty() {
            return;
        }
        if self.recuts.iter().all(|cut| cut.at != at) {
            let engine_hashes = std::mem::take(names);
            let event = KvEvent::Removed { engine_hashes };
            apply(&event);
            if let KvEvent::Removed { engine_hashes } = event {
                *names = engine_hashes;
            }
            return;
        }
        let rest = self.plain_names(at, names.iter(), |name| **name);
        for cut in self.recuts.iter_mut().filter(|cut| cut.at == at) {
            cut.removed(names).iter().for_each(&mut apply);
        }
        if !rest.is_empty() {
            let engine_hashes = rest.into_iter().copied().collect();
            apply(&KvEvent::Removed { engine_hashes });
        }
    }

    /// What it means that so many copies of blocks are left there.
    pub(super) fn remaining(
        &mut self,
        at: Placement,
        copies: &[(EngineHash, u32)],
        mut apply: impl FnMut(&KvEvent),
    ) {
        let rest = self.plain_names(at, copies.iter(), |(name, _)| *name);
        for cut in self.recuts.iter_mut().filter(|cut| cut.at == at) {
            cut.remaining(copies).iter().for_each(&mut apply);
        }
        if !rest.is_empty() {
            let copies = rest.into_iter().copied().collect();
            apply(&KvEvent::Remaining { copies });
        }
    }

    /// What it means that blocks which are held in some tier are now held there too. Their size is
    /// the one they have elsewhere.
    pub(super) fn linked(
        &mut self,
        at: Placement,
        names: &[EngineHash],
        layout: HashLayout,
    ) -> Vec<KvEvent> {
        let mut events = Vec::new();
        let mut sizes = Vec::new();
        for cut in self.recuts.iter().filter(|cut| cut.at.group == at.group) {
            if !sizes.contains(&cut.size)
                && let Some(event) = cut.recut.linked(names)
            {
                sizes.push(cut.size);
                events.push(event);
            }
        }
        for size in sizes {
            // Removals from there will be of the same names.
            if self.cut(at, size, layout).is_err() {
                return Vec::new();
            }
        }
        let is_joined = |name: &EngineHash| self.recuts.iter().any(|cut| cut.knows(*name));
        let plain = names.iter().filter(|name| !is_joined(name)).copied();
        events.push(KvEvent::Linked {
            engine_hashes: plain.collect(),
        });
        events
    }

    /// Whether small blocks are being joined to the partition's.
    pub(super) fn joins(&self) -> bool {
        let mut cuts = self.recuts.iter();
        cuts.any(|cut| cut.recut.pieces() > 0 || !cut.waiting.is_empty())
    }

    /// Small blocks that wait for their parent.
    pub(super) fn waiting(&self) -> usize {
        self.recuts.iter().map(|cut| cut.waiting.blocks()).sum()
    }

    /// Doubts the small blocks: which of them are still held is not known.
    pub(super) fn doubt(&mut self) {
        self.doubted = self.joins();
    }

    pub(super) fn trust(&mut self) {
        self.doubted = false;
    }

    pub(super) fn are_doubted(&self) -> bool {
        self.doubted
    }

    #[cfg(test)]
    pub(super) fn pieces(&self) -> usize {
        self.recuts.iter().map(|cut| cut.recut.pieces()).sum()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Those that may be names of blocks of the partition's size.
    fn plain_names<'a, T>(
        &self,
        at: Placement,
        names: impl Iterator<Item = &'a T>,
        name_of: impl Fn(&&'a T) -> EngineHash,
    ) -> Vec<&'a T> {
        let is_joined = |name: EngineHash| {
            let mut here = self.recuts.iter().filter(|cut| cut.at == at);
            here.any(|cut| cut.knows(name))
        };
        names.filter(|name| !is_joined(name_of(name))).collect()
    }
}

/// Puts cut blocks behind their parent where it is known under the engine's own name alone: a tier
/// with larger blocks may continue a chain that another tier holds in the partition's.
fn hang_on_plain(
    events: &mut [KvEvent],
    parent: Option<EngineHash>,
    is_held: impl Fn(EngineHash) -> bool,
) {
    for event in events {
        if let KvEvent::Stored {
            parent: Some(cut), ..
        } = event
            && let Some(plain) = parent.filter(|plain| *plain != *cut)
            && !is_held(*cut)
            && is_held(plain)
        {
            *cut = plain;
        }
    }
}

fn reason(error: &RecutError) -> SkipReason {
    match error {
        RecutError::BlockSize { .. } => SkipReason::BlockSize,
        RecutError::Bigrams => SkipReason::TokenForm,
        RecutError::TokenCount { .. } => SkipReason::TokenCount,
        RecutError::UnknownParent => SkipReason::UnknownParent,
        _ => SkipReason::RecutFull,
    }
}
