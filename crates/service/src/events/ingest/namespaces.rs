//! The namespaces of a rank's salted and adapter blocks, by the engine's names: a child inherits what
//! its parent was stored under. It holds names alone, no tokens, and is bounded.

use std::collections::HashMap;
use std::sync::Arc;

use pointsman_core::hash::{EngineHash, HashSeed};
use pointsman_core::index::Tier;

use super::super::skip::SkipReason;
use super::super::wire::{Removed, Stored};

/// Salted or adapter blocks whose namespace is remembered, per rank. Beyond it such blocks are left
/// out, so their children find no parent: less is credited, never the wrong thing.
const MAX_NAMESPACED_BLOCKS: usize = 262_144;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Namespace {
    lora_name: Option<Box<str>>,
    cache_salt: Option<Box<str>>,
}

#[derive(Debug, Default)]
pub(super) struct Namespaces {
    blocks: HashMap<u64, Namespaced>,
}

#[derive(Debug)]
struct Namespaced {
    namespace: Arc<Namespace>,
    /// By tier.
    copies: [u32; 4],
}

impl Namespace {
    pub(super) fn seed(&self) -> HashSeed {
        HashSeed::new(self.lora_name.as_deref(), self.cache_salt.as_deref())
    }
}

impl Namespaces {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn clear(&mut self) {
        self.blocks = HashMap::new();
    }

    /// The namespace of a store: its parent's, which it may repeat but not contradict. Blocks that
    /// wait for their parent are in the one that they state.
    pub(super) fn of(
        &self,
        stored: &Stored,
        is_held: impl Fn(u64) -> bool,
    ) -> Result<Option<Arc<Namespace>>, SkipReason> {
        let is_plain = stored.lora_name.is_none() && stored.cache_salt.is_none();
        if is_plain && self.blocks.is_empty() {
            return Ok(None);
        }
        let own = || {
            Arc::new(Namespace {
                lora_name: stored.lora_name.clone(),
                cache_salt: stored.cache_salt.clone(),
            })
        };
        let Some(parent) = stored.parent else {
            return Ok((!is_plain).then(own));
        };
        let Some(known) = self.blocks.get(&parent) else {
            return match is_plain {
                true => Ok(None),
                false if is_held(parent) => Err(SkipReason::Namespace),
                false => Ok(Some(own())),
            };
        };
        let inherited = &known.namespace;
        let agrees = |own: &Option<Box<str>>, inherited: &Option<Box<str>>| {
            own.is_none() || own == inherited
        };
        if agrees(&stored.lora_name, &inherited.lora_name)
            && agrees(&stored.cache_salt, &inherited.cache_salt)
        {
            Ok(Some(Arc::clone(inherited)))
        } else {
            Err(SkipReason::Namespace)
        }
    }

    pub(super) fn remember(
        &mut self,
        names: &[u64],
        tier: Tier,
        namespace: &Arc<Namespace>,
    ) -> Result<(), SkipReason> {
        if self.blocks.len().saturating_add(names.len()) > MAX_NAMESPACED_BLOCKS {
            return Err(SkipReason::NamespacesFull);
        }
        for &name in names {
            let fresh = || Namespaced {
                namespace: Arc::clone(namespace),
                copies: [0; 4],
            };
            let known = self.blocks.entry(name).or_insert_with(fresh);
            if known.namespace != *namespace {
                // The engine gave the name to another block; its later meaning counts.
                *known = fresh();
            }
            let copies = &mut known.copies[place(tier)];
            *copies = copies.saturating_add(1);
        }
        Ok(())
    }

    /// Blocks that are remembered are now in another tier too.
    pub(super) fn copy(&mut self, names: &[u64], tier: Tier) {
        for name in names {
            if let Some(known) = self.blocks.get_mut(name) {
                let copies = &mut known.copies[place(tier)];
                *copies = copies.saturating_add(1);
            }
        }
    }

    /// The names now mean blocks without a namespace, whatever they meant before.
    pub(super) fn rename(&mut self, names: &[u64]) {
        if !self.blocks.is_empty() {
            for name in names {
                self.blocks.remove(name);
            }
        }
    }

    pub(super) fn forget(&mut self, removed: &Removed) {
        if self.blocks.is_empty() {
            return;
        }
        for (at, name) in removed.engine_hashes.iter().enumerate() {
            let Some(known) = self.blocks.get_mut(name) else {
                continue;
            };
            let copies = &mut known.copies[place(removed.tier)];
            let stated = removed.remaining.get(at).copied().flatten();
            *copies = stated.unwrap_or(copies.saturating_sub(1));
            if known.copies == [0; 4] {
                self.blocks.remove(name);
            }
        }
    }

    /// Forgets what nobody knows any more.
    pub(super) fn retain(&mut self, is_known: impl Fn(EngineHash) -> bool) {
        self.blocks.retain(|name, _| is_known(EngineHash(*name)));
    }
}

fn place(tier: Tier) -> usize {
    match tier {
        Tier::Device => 0,
        Tier::Host => 1,
        Tier::Disk => 2,
        Tier::External => 3,
    }
}
