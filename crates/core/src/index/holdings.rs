//! What is particular to one rank: names that only it uses, copies beyond the first, and what it holds unconfirmed; where blocks are is not its business.
//!
//! A rank that holds a block under the name the table has for it, with one copy per tier in its
//! home group, needs nothing here: its bit in the strand says it all. If it only calls the block
//! otherwise, that name is an *alias*, and all else is as before. Any other name is *own*, and once a
//! rank has one own name for a block, all its names for that block are.

use hashbrown::{HashMap, HashSet};

use super::aliases::Aliases;
use super::strand::{Block, Place, Stretch};
use crate::hash::EngineHash;
use crate::tier::{Placement, Tier};

#[derive(Debug, Default)]
pub(super) struct Holdings {
    /// The group that copies are of where nothing else is said: the first that the rank named.
    pub(super) home: u32,
    /// Names of blocks the rank holds.
    pub(super) names: usize,
    /// Of blocks that the rank holds and that are not owned.
    aliases: Aliases,
    own: HashMap<EngineHash, OwnName>,
    /// Blocks that have own names.
    owned: HashSet<Place>,
    /// All names of blocks that have several.
    several: HashMap<Place, Vec<EngineHash>>,
    /// Copies of own names that are not one per tier in the home group.
    copies: HashMap<EngineHash, Vec<Copies>>,
    /// By strand and tier: offsets of blocks that nobody has confirmed.
    doubt: HashMap<(u32, Tier), Offsets>,
    strands: StrandList,
}

#[derive(Clone, Copy, Debug)]
struct OwnName {
    strand: u32,
    offset: u8,
    /// Bits of the tiers with one copy in the home group; unused where `copies` has the name.
    tiers: u8,
    counted: bool,
}

#[derive(Clone, Copy, Debug)]
struct Copies {
    at: Placement,
    count: u32,
}

/// Strands that the rank may hold something of; each at least once, gone ones now and then dropped.
#[derive(Debug, Default)]
struct StrandList {
    ids: Vec<u32>,
    compacted: usize,
}

/// A set of offsets in a strand.
#[derive(Clone, Copy, Debug, Default)]
struct Offsets([u64; 4]);

impl OwnName {
    fn place(self) -> Place {
        Place {
            strand: self.strand,
            offset: self.offset,
        }
    }
}

fn bit(tier: Tier) -> u8 {
    1 << tier.index()
}

impl Holdings {
    /// Whether the rank needs nothing but bits for a copy there.
    pub(super) fn is_plain(&self, at: Placement, name: EngineHash, place: Place) -> bool {
        at.group == self.home
            && (self.own.is_empty()
                || !(self.own.contains_key(&name) || self.owned.contains(&place)))
    }

    /// Whether a block that is new to the rank, as its name is, needs nothing but a bit and perhaps
    /// an alias: there are no doubts, and the group is the home one.
    pub(super) fn is_simple(&mut self, group: u32) -> bool {
        self.settle_home(group);
        group == self.home && self.doubt.is_empty()
    }

    /// How many of the blocks have names that are neither aliases nor own ones, up to the first.
    pub(super) fn unknown(&self, blocks: &[Block]) -> usize {
        if self.has_no_names() {
            return blocks.len();
        }
        let unknown = |block: &&Block| self.meant(EngineHash(block.name)).is_none();
        blocks.iter().take_while(unknown).count()
    }

    /// The first group that is named becomes the home.
    pub(super) fn settle_home(&mut self, group: u32) {
        if self.names == 0 {
            self.home = group;
        }
    }

    /// Where an own name of the rank is.
    pub(super) fn own(&self, name: EngineHash) -> Option<Place> {
        if self.own.is_empty() {
            return None;
        }
        self.own.get(&name).map(|own| own.place())
    }

    /// Whether the rank has no name of its own for a block.
    #[inline]
    pub(super) fn calls_as_all(&self, place: Place) -> bool {
        self.has_no_names() || !self.is_owned(place) && self.alias(place).is_none()
    }

    /// Where an own name or an alias of the rank is.
    #[inline]
    pub(super) fn meant(&self, name: EngineHash) -> Option<Place> {
        if self.has_no_names() {
            return None;
        }
        self.own(name).or_else(|| self.aliases.find(name))
    }

    /// Whether the rank has neither own names nor aliases.
    #[inline]
    fn has_no_names(&self) -> bool {
        self.own.is_empty() && self.aliases.is_empty()
    }

    pub(super) fn has_aliases_in(&self, strand: u32) -> bool {
        self.aliases.has_row(strand)
    }

    /// Whether all that the rank holds is one copy a tier under one name each, and not in doubt.
    pub(super) fn is_clear(&self) -> bool {
        self.own.is_empty() && self.doubt.is_empty()
    }

    /// The block before or behind `place`, if this is its alias.
    pub(super) fn alias_beside(&self, place: Place, name: EngineHash) -> Option<Place> {
        self.aliases.beside(place, name)
    }

    pub(super) fn find_alias(&self, name: EngineHash) -> Option<Place> {
        self.aliases.find(name)
    }

    /// What the rank calls a block that is not owned, if not what the table says.
    pub(super) fn alias(&self, place: Place) -> Option<EngineHash> {
        self.aliases.of(place)
    }

    /// Gives consecutive blocks aliases, as far as they have none and the names are free; how many.
    pub(super) fn add_aliases(
        &mut self,
        place: Place,
        names: impl ExactSizeIterator<Item = u64>,
    ) -> u16 {
        self.aliases.insert(place, names.map(EngineHash))
    }

    pub(super) fn drop_alias(&mut self, place: Place) -> Option<EngineHash> {
        if self.aliases.is_empty() {
            return None;
        }
        self.aliases.remove(place)
    }

    /// Asks for the memory that asking for names will touch, and does not wait for it.
    pub(super) fn prefetch(&self, names: impl Iterator<Item = u64>) {
        if !self.aliases.is_empty() {
            names.for_each(|name| self.aliases.prefetch(EngineHash(name)));
        }
    }

    /// Whether the names of the block are all own.
    pub(super) fn is_owned(&self, place: Place) -> bool {
        !self.owned.is_empty() && self.owned.contains(&place)
    }

    /// The own names of a block; `hint` is likely the only one.
    pub(super) fn own_names(&self, place: Place, hint: Option<EngineHash>) -> Vec<EngineHash> {
        if let Some(names) = self.several.get(&place) {
            return names.clone();
        }
        if let Some(hint) = hint
            && self.own(hint) == Some(place)
        {
            return vec![hint];
        }
        let found = self.own.iter().find(|(_, own)| own.place() == place);
        found.map(|(name, _)| *name).into_iter().collect()
    }

    /// Own names with their blocks, for whoever asks for many.
    pub(super) fn own_by_place(&self) -> impl Iterator<Item = (Place, EngineHash)> {
        self.own.iter().map(|(name, own)| (own.place(), *name))
    }

    /// The same with the aliases.
    pub(super) fn names_by_place(&self) -> HashMap<Place, EngineHash> {
        self.own_by_place().chain(self.aliases.iter()).collect()
    }

    /// Makes `name` an own one of a block, without copies yet.
    pub(super) fn add_own(
        &mut self,
        name: EngineHash,
        place: Place,
        tiers: impl Iterator<Item = Tier>,
    ) {
        let own = OwnName {
            strand: place.strand,
            offset: place.offset,
            tiers: tiers.fold(0, |tiers, tier| tiers | bit(tier)),
            counted: false,
        };
        if !self.owned.insert(place) {
            let known = self.own_names(place, None);
            let names = self.several.entry(place).or_insert(known);
            names.push(name);
        }
        self.own.insert(name, own);
    }

    /// One copy more under an own name.
    pub(super) fn add_copy(&mut self, name: EngineHash, at: Placement) {
        let home = self.home;
        let Some(own) = self.own.get_mut(&name) else {
            return;
        };
        if !own.counted && at.group == home && own.tiers & bit(at.tier) == 0 {
            own.tiers |= bit(at.tier);
            return;
        }
        let copies = self.counted(name);
        match copies.iter_mut().find(|copies| copies.at == at) {
            Some(copies) => copies.count = copies.count.saturating_add(1),
            None => copies.push(Copies { at, count: 1 }),
        }
    }

    /// One copy less under an own name; false if there was none.
    pub(super) fn remove_copy(&mut self, name: EngineHash, at: Placement) -> bool {
        let count = self.copy_count(name, at);
        if count == 0 {
            return false;
        }
        match self.own.get_mut(&name) {
            Some(own) if !own.counted => {
                own.tiers &= !bit(at.tier);
                true
            }
            _ => self.set_copies(name, at, count - 1),
        }
    }

    /// Sets how many copies there are under an own name; false if there were none.
    pub(super) fn set_copies(&mut self, name: EngineHash, at: Placement, count: u32) -> bool {
        if self.copy_count(name, at) == 0 {
            return false;
        }
        let copies = self.counted(name);
        if let Some(copies) = copies.iter_mut().find(|copies| copies.at == at) {
            copies.count = count;
        }
        copies.retain(|copies| copies.count > 0);
        true
    }

    pub(super) fn copy_count(&self, name: EngineHash, at: Placement) -> u32 {
        match self.own.get(&name) {
            Some(own) if own.counted => self
                .copies
                .get(&name)
                .and_then(|copies| copies.iter().find(|copies| copies.at == at))
                .map_or(0, |copies| copies.count),
            Some(own) => u32::from(at.group == self.home && own.tiers & bit(at.tier) != 0),
            None => 0,
        }
    }

    /// Whether an own name has a copy in a tier.
    pub(super) fn has_copy_in(&self, name: EngineHash, tier: Tier) -> bool {
        match self.own.get(&name) {
            Some(own) if own.counted => self
                .copies
                .get(&name)
                .is_some_and(|copies| copies.iter().any(|copies| copies.at.tier == tier)),
            Some(own) => own.tiers & bit(tier) != 0,
            None => false,
        }
    }

    /// Drops all copies of an own name in a tier.
    pub(super) fn drop_copies_in(&mut self, name: EngineHash, tier: Tier) {
        if let Some(own) = self.own.get_mut(&name) {
            own.tiers &= !bit(tier);
        }
        if let Some(copies) = self.copies.get_mut(&name) {
            copies.retain(|copies| copies.at.tier != tier);
        }
    }

    /// Forgets an own name that has no copy left; true if it was forgotten.
    pub(super) fn drop_if_empty(&mut self, name: EngineHash) -> bool {
        if Tier::ALL
            .into_iter()
            .any(|tier| self.has_copy_in(name, tier))
        {
            return false;
        }
        self.copies.remove(&name);
        let Some(own) = self.own.remove(&name) else {
            return false;
        };
        let place = own.place();
        match self.several.get_mut(&place) {
            None => {
                self.owned.remove(&place);
            }
            Some(names) => {
                names.retain(|known| *known != name);
                if names.len() < 2 {
                    self.several.remove(&place);
                }
            }
        }
        true
    }

    /// The counts of an own name, written out.
    fn counted(&mut self, name: EngineHash) -> &mut Vec<Copies> {
        let home = self.home;
        let copies = self.copies.entry(name).or_default();
        if let Some(own) = self.own.get_mut(&name)
            && !own.counted
        {
            own.counted = true;
            let tiers = Tier::ALL
                .into_iter()
                .filter(|tier| own.tiers & bit(*tier) != 0);
            copies.extend(tiers.map(|tier| Copies {
                at: Placement { tier, group: home },
                count: 1,
            }));
            own.tiers = 0;
        }
        copies
    }

    /// Remembers that the rank holds something of a strand.
    pub(super) fn note_strand(&mut self, id: u32, holds: impl Fn(u32) -> bool) {
        let list = &mut self.strands;
        if list.ids.last() == Some(&id) {
            return;
        }
        list.ids.push(id);
        if list.ids.len() > 2 * list.compacted + 64 {
            list.ids.sort_unstable();
            list.ids.dedup();
            list.ids.retain(|other| *other == id || holds(*other));
            list.compacted = list.ids.len();
        }
    }

    /// Strands that the rank may hold something of, in no order and some several times.
    pub(super) fn listed_strands(&self) -> Vec<u32> {
        self.strands.ids.clone()
    }

    /// The same, ascending, once each.
    pub(super) fn strands(&self) -> Vec<u32> {
        let mut ids = self.listed_strands();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Nothing is doubted.
    pub(super) fn is_sure(&self) -> bool {
        self.doubt.is_empty()
    }

    pub(super) fn is_doubtful(&self, place: Place, tier: Tier) -> bool {
        !self.doubt.is_empty()
            && self
                .doubt
                .get(&(place.strand, tier))
                .is_some_and(|offsets| offsets.contains(place.offset))
    }

    pub(super) fn doubt(&mut self, id: u32, tier: Tier, stretch: Stretch) {
        let offsets = self.doubt.entry((id, tier)).or_default();
        for offset in stretch.from..stretch.to {
            offsets.insert(offset.to_le_bytes()[0]);
        }
    }

    pub(super) fn trust(&mut self, place: Place, tier: Tier) {
        if self.doubt.is_empty() {
            return;
        }
        if let Some(offsets) = self.doubt.get_mut(&(place.strand, tier)) {
            offsets.remove(place.offset);
            if offsets.0 == [0; 4] {
                self.doubt.remove(&(place.strand, tier));
            }
        }
    }

    /// Nothing is doubted any more; how much was.
    pub(super) fn trust_all(&mut self) -> usize {
        let doubtful = self.doubtful();
        self.doubt = HashMap::new();
        doubtful
    }

    /// Everything doubted, which it is no longer.
    pub(super) fn take_doubt(&mut self) -> Vec<(Place, Tier)> {
        let mut all = Vec::with_capacity(self.doubtful());
        for ((strand, tier), offsets) in std::mem::take(&mut self.doubt) {
            let held = (0..=u8::MAX).filter(|offset| offsets.contains(*offset));
            all.extend(held.map(|offset| (Place { strand, offset }, tier)));
        }
        all
    }

    pub(super) fn doubtful(&self) -> usize {
        self.doubt.values().map(Offsets::len).sum()
    }
}

impl Offsets {
    fn contains(&self, offset: u8) -> bool {
        self.0[usize::from(offset >> 6)] & (1 << (offset & 63)) != 0
    }

    fn insert(&mut self, offset: u8) {
        self.0[usize::from(offset >> 6)] |= 1 << (offset & 63);
    }

    fn remove(&mut self, offset: u8) {
        self.0[usize::from(offset >> 6)] &= !(1 << (offset & 63));
    }

    fn len(&self) -> usize {
        self.0
            .iter()
            .map(|word| usize::try_from(word.count_ones()).unwrap_or(0))
            .sum()
    }
}
