//! The block cache of one engine: reference counts, prefix sharing by chained hash, eviction of the least recently used.
//! Never knows a request, a clock or a socket.

use std::collections::HashMap;

use super::events::{Event, StoredRun};
use super::host_tier::HostTier;

/// Index of a physical block.
pub(super) type BlockId = u32;

const NONE: BlockId = BlockId::MAX;

#[derive(Debug)]
struct Block {
    hash: Option<u64>,
    users: u32,
    previous: BlockId,
    next: BlockId,
}

/// Physical blocks, what they hold and who uses them. A block without users keeps its content and waits in the
/// idle list, oldest first, until it is used again or its room is needed.
#[derive(Debug)]
pub(super) struct BlockCache {
    capacity: usize,
    blocks: Vec<Block>,
    /// One hash may be held by several blocks: a prompt that ends on a block boundary computes its last block anew.
    holders: HashMap<u64, Vec<BlockId>>,
    idle_head: BlockId,
    idle_tail: BlockId,
    idle: usize,
    host: HostTier,
    block_size: u32,
    events: Vec<Event>,
}

impl BlockCache {
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity.min(NONE as usize - 1);
        Self {
            capacity,
            blocks: Vec::new(),
            holders: HashMap::new(),
            idle_head: NONE,
            idle_tail: NONE,
            idle: 0,
            host: HostTier::default(),
            block_size: 0,
            events: Vec::new(),
        }
    }

    /// Puts evicted blocks of `block_size` tokens into a second tier of `capacity` blocks.
    pub(super) fn with_host_tier(mut self, capacity: usize, block_size: u32) -> Self {
        self.host = HostTier::new(capacity);
        self.block_size = block_size;
        self
    }

    /// Blocks that can be handed out: never used ones and idle ones.
    pub(super) fn available(&self) -> usize {
        self.capacity - self.blocks.len() + self.idle
    }

    pub(super) fn in_use(&self) -> usize {
        self.blocks.len() - self.idle
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Distinct hashes held.
    pub(super) fn held(&self) -> usize {
        self.holders.len()
    }

    /// The blocks that hold the longest known prefix of `hashes`.
    pub(super) fn prefix(&self, hashes: &[u64]) -> Vec<BlockId> {
        let holder = |hash| self.holders.get(hash).and_then(|ids| ids.first().copied());
        hashes.iter().map_while(holder).collect()
    }

    /// How many of `hashes`, from the first on, can be copied from the second tier.
    pub(super) fn host_prefix(&self, hashes: &[u64]) -> usize {
        self.host.prefix(hashes)
    }

    /// Notes that blocks are copied from the second tier, where they stay.
    pub(super) fn load_from_host(&mut self, hashes: &[u64]) {
        self.host.load(hashes);
    }

    /// How many of `ids` are idle, that is, would leave the idle list if used.
    pub(super) fn idle_among(&self, ids: &[BlockId]) -> usize {
        let idle = |id: &&BlockId| self.block(**id).users == 0;
        ids.iter().filter(idle).count()
    }

    /// One more user for each of `ids`.
    pub(super) fn share(&mut self, ids: &[BlockId]) {
        for &id in ids {
            if self.block(id).users == 0 {
                self.unlink(id);
            }
            self.block_mut(id).users += 1;
        }
    }

    /// Adds `count` empty blocks to `owned`, forgetting the oldest idle content where needed; false (and nothing
    /// done) when there is no room.
    pub(super) fn allocate(&mut self, count: usize, owned: &mut Vec<BlockId>) -> bool {
        if count > self.available() {
            return false;
        }
        for _ in 0..count {
            let id = self.take_one();
            self.block_mut(id).users = 1;
            owned.push(id);
        }
        true
    }

    /// Notes that `ids` now hold the run's blocks, and tells it as an event.
    pub(super) fn store(&mut self, ids: &[BlockId], run: StoredRun) {
        for (&id, &hash) in ids.iter().zip(&run.hashes) {
            self.block_mut(id).hash = Some(hash);
            self.holders.entry(hash).or_default().push(id);
        }
        self.events.push(Event::Stored(run));
    }

    /// One user less for each of `ids`. The last ones become the oldest, so that a prompt's tail goes first.
    pub(super) fn release(&mut self, ids: &[BlockId]) {
        for &id in ids.iter().rev() {
            let block = self.block_mut(id);
            block.users = block.users.saturating_sub(1);
            if block.users == 0 {
                self.link_newest(id);
            }
        }
    }

    /// Forgets all content; refused while a block is in use.
    pub(super) fn clear(&mut self) -> bool {
        if self.in_use() > 0 {
            return false;
        }
        self.forget();
        self.events.push(Event::Cleared);
        true
    }

    /// What a restarted process does: everything is gone, and nobody is told.
    pub(super) fn forget(&mut self) {
        self.blocks.clear();
        self.holders.clear();
        self.host.clear();
        self.events.clear();
        self.idle = 0;
        self.idle_head = NONE;
        self.idle_tail = NONE;
    }

    pub(super) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id as usize]
    }

    fn block_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id as usize]
    }

    /// A block never used, or else the oldest idle one, emptied.
    fn take_one(&mut self) -> BlockId {
        if self.blocks.len() < self.capacity {
            let id = BlockId::try_from(self.blocks.len()).unwrap_or(NONE);
            self.blocks.push(Block {
                hash: None,
                users: 0,
                previous: NONE,
                next: NONE,
            });
            return id;
        }
        let id = self.idle_head;
        self.unlink(id);
        if let Some(hash) = self.block_mut(id).hash.take() {
            self.evict(id, hash);
        }
        id
    }

    fn evict(&mut self, id: BlockId, hash: u64) {
        if let Some(ids) = self.holders.get_mut(&hash) {
            ids.retain(|&holder| holder != id);
            if ids.is_empty() {
                self.holders.remove(&hash);
            }
        }
        self.events.push(Event::Removed(vec![hash]));
        let offload = self.host.offload(hash);
        let removed = offload.removed.map(|oldest| vec![oldest]);
        self.events.extend(removed.map(Event::HostRemoved));
        if offload.stored {
            self.events.push(Event::HostStored {
                hashes: vec![hash],
                block_size: self.block_size,
            });
        }
    }

    fn link_newest(&mut self, id: BlockId) {
        let tail = self.idle_tail;
        let block = self.block_mut(id);
        block.previous = tail;
        block.next = NONE;
        if tail == NONE {
            self.idle_head = id;
        } else {
            self.block_mut(tail).next = id;
        }
        self.idle_tail = id;
        self.idle += 1;
    }

    fn unlink(&mut self, id: BlockId) {
        let Block { previous, next, .. } = *self.block(id);
        if previous == NONE {
            self.idle_head = next;
        } else {
            self.block_mut(previous).next = next;
        }
        if next == NONE {
            self.idle_tail = previous;
        } else {
            self.block_mut(next).previous = previous;
        }
        self.idle -= 1;
    }
}

/// Hash of one full block and all before it, by the engine's own function (no relation to the router's).
pub(super) fn chained_hash(parent: Option<u64>, salt: Option<&str>, tokens: &[u32]) -> u64 {
    let mut state = parent.unwrap_or(0x6d6f_636b_5f76_6c6d);
    for byte in salt.filter(|_| parent.is_none()).unwrap_or("").bytes() {
        state = mix(state ^ u64::from(byte).rotate_left(17));
    }
    for &token in tokens {
        state = mix(state ^ u64::from(token));
    }
    state
}

fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;
