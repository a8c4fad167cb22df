//! What later events of a rank need to know of earlier ones; it keeps no blocks.

use std::collections::{BTreeSet, HashMap};

use prometheus_client::metrics::gauge::Gauge;

use super::super::skip::SkipReason;
use super::super::wire::{CacheKind, Group};
use super::cuts::Cuts;
use super::namespaces::Namespaces;

/// Cache groups whose kind is remembered, per rank.
const MAX_GROUPS: usize = 256;

#[derive(Debug, Default)]
pub(super) struct RankMemory {
    pub(super) groups: Groups,
    pub(super) namespaces: Namespaces,
    pub(super) cuts: Cuts,
}

impl RankMemory {
    /// Forgets what was about blocks.
    pub(super) fn clear(&mut self) {
        self.namespaces.clear();
        self.cuts.clear();
    }
}

/// One stream's share of a gauge, for as long as it lives.
#[derive(Debug)]
pub(super) struct WaitingPieces {
    gauge: Gauge,
    counted: i64,
}

impl WaitingPieces {
    pub(super) fn in_gauge(gauge: &Gauge) -> Self {
        Self {
            gauge: gauge.clone(),
            counted: 0,
        }
    }

    pub(super) fn set(&mut self, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        if count != self.counted {
            self.gauge.inc_by(count - self.counted);
            self.counted = count;
        }
    }
}

impl Drop for WaitingPieces {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// The kinds of a rank's cache groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    kinds: HashMap<u32, CacheKind>,
    /// Groups that blocks were stored in by number.
    numbered: BTreeSet<u32>,
    /// Blocks were stored without a group.
    unnumbered: bool,
}

impl Groups {
    /// The group of a store, which is full attention by its own word or by what was said before.
    pub(super) fn of_store(&mut self, group: Group) -> Result<u32, SkipReason> {
        self.check(group)?;
        let Some(index) = group.index else {
            self.unnumbered = true;
            return Ok(0);
        };
        if self.numbered.len() < MAX_GROUPS {
            self.numbered.insert(index);
        }
        Ok(index)
    }

    /// The group of a removal, if it names one.
    pub(super) fn of_removal(&mut self, group: Group) -> Result<Option<u32>, SkipReason> {
        self.check(group)?;
        Ok(group.index)
    }

    /// The groups that a removal is about: one that names none means those that stores named, where
    /// all of them did.
    pub(super) fn removed_from(&self, index: Option<u32>) -> impl Iterator<Item = u32> {
        let everywhere = index.is_none() && !self.unnumbered && !self.numbered.is_empty();
        let one = (!everywhere).then_some(index.unwrap_or(0));
        let all = self.numbered.iter().copied().filter(move |_| everywhere);
        one.into_iter().chain(all)
    }

    fn check(&mut self, group: Group) -> Result<(), SkipReason> {
        let kind = match (group.index, group.kind) {
            (None, kind) => kind.unwrap_or(CacheKind::FullAttention),
            (Some(index), Some(kind)) => {
                if self.kinds.len() < MAX_GROUPS || self.kinds.contains_key(&index) {
                    self.kinds.insert(index, kind);
                }
                kind
            }
            (Some(index), None) => match self.kinds.get(&index) {
                Some(&kind) => kind,
                None if index == 0 => CacheKind::FullAttention,
                None => return Err(SkipReason::UnknownGroup),
            },
        };
        match kind {
            CacheKind::FullAttention => Ok(()),
            CacheKind::Other => Err(SkipReason::CacheKind),
        }
    }
}
