//! Prompts seen before, so that only what is new in a prompt is encoded.
//!
//! Never guesses: a prefix counts as known only if it is equal byte for byte, and only up to a
//! point where the tokens before it cannot depend on the text behind it. Memory is bounded.

use std::{
    collections::HashMap,
    mem,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

/// Prefixes are found by the hash of each multiple of this length.
const STEP: usize = 1024;

/// No prompt takes more than this share of the memory.
const SHARE: usize = 8;

/// What a prompt costs beside its text and ids, and what each of its steps does.
const ENTRY_BYTES: usize = 160;
const STEP_BYTES: usize = 48;

#[derive(Debug)]
pub(super) struct Memo {
    max_bytes: usize,
    /// What all prompts take that are reachable.
    live: Arc<AtomicUsize>,
    maps: Mutex<Maps>,
}

/// Two generations instead of an order of use: what is used moves to the young one, and when
/// that has grown large, what stayed in the old one goes.
#[derive(Debug, Default)]
struct Maps {
    young: HashMap<u64, Arc<Entry>>,
    old: HashMap<u64, Arc<Entry>>,
    /// `live` when the young generation began.
    bytes_before: usize,
}

#[derive(Debug)]
struct Entry {
    text: Arc<str>,
    ids: Box<[u32]>,
    cuts: Box<[Cut]>,
    /// Gives its size back when the last reference goes.
    _weight: Weight,
}

#[derive(Debug)]
struct Weight {
    bytes: usize,
    live: Arc<AtomicUsize>,
}

/// The first `ids` ids are those of the first `bytes` bytes, whatever follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) bytes: usize,
    pub(super) ids: usize,
}

/// The known prefix of a prompt.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    entry: Option<Arc<Entry>>,
    cut: Option<Cut>,
    earlier_cuts: usize,
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.live.fetch_sub(self.bytes, Relaxed);
    }
}

impl Known {
    pub(super) fn bytes(&self) -> usize {
        self.cut.map_or(0, |cut| cut.bytes)
    }

    pub(super) fn ids(&self) -> &[u32] {
        match (&self.entry, self.cut) {
            (Some(entry), Some(cut)) => &entry.ids[..cut.ids],
            _ => &[],
        }
    }

    /// All cuts up to the end of the known prefix.
    pub(super) fn cuts(&self) -> &[Cut] {
        match &self.entry {
            Some(entry) => &entry.cuts[..self.earlier_cuts],
            None => &[],
        }
    }
}

impl Memo {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            live: Arc::default(),
            maps: Mutex::default(),
        }
    }

    pub(super) fn known(&self, text: &str) -> Known {
        let hashes = step_hashes(text.as_bytes());
        let found = {
            let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
            hashes.iter().rev().find_map(|hash| maps.get(*hash))
        };
        found.map_or_else(Known::default, |entry| known_prefix(text, entry))
    }

    pub(super) fn remember(&self, text: &Arc<str>, ids: &[u32], cuts: &[Cut]) {
        let hashes = step_hashes(text.as_bytes());
        let bytes = text.len() + size_of_val(ids) + size_of_val(cuts);
        let bytes = bytes + ENTRY_BYTES + hashes.len() * STEP_BYTES;
        if hashes.is_empty() || bytes > self.max_bytes / SHARE {
            return;
        }
        let live = Arc::clone(&self.live);
        live.fetch_add(bytes, Relaxed);
        let entry = Arc::new(Entry {
            text: Arc::clone(text),
            ids: ids.into(),
            cuts: cuts.into(),
            _weight: Weight { bytes, live },
        });
        // Freed after unlocking: it can be much.
        let mut dropped = Vec::with_capacity(hashes.len());
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        for hash in hashes {
            dropped.extend(maps.old.remove(&hash));
            dropped.extend(maps.young.insert(hash, Arc::clone(&entry)));
        }
        let expired = maps.turn(self.live.load(Relaxed), self.max_bytes);
        drop(maps);
        drop((dropped, expired));
    }

    #[cfg(test)]
    pub(super) fn live_bytes(&self) -> usize {
        self.live.load(Relaxed)
    }
}

impl Maps {
    fn get(&mut self, hash: u64) -> Option<Arc<Entry>> {
        if let Some(entry) = self.young.get(&hash) {
            return Some(Arc::clone(entry));
        }
        let entry = self.old.get(&hash).map(Arc::clone)?;
        for hash in step_hashes(entry.text.as_bytes()) {
            if let Some(kept) = self.old.remove(&hash) {
                self.young.entry(hash).or_insert(kept);
            }
        }
        Some(entry)
    }

    /// Begins a new generation when the young one has its half of the memory; gives what the
    /// caller has to drop.
    fn turn(&mut self, live: usize, max_bytes: usize) -> HashMap<u64, Arc<Entry>> {
        let limit = max_bytes.min(self.bytes_before + max_bytes / 2);
        if live <= limit {
            return HashMap::new();
        }
        self.bytes_before = live.saturating_sub(self.bytes_before);
        mem::replace(&mut self.old, mem::take(&mut self.young))
    }
}

fn known_prefix(text: &str, entry: Arc<Entry>) -> Known {
    let common = common_bytes(text.as_bytes(), entry.text.as_bytes());
    let earlier_cuts = entry.cuts.partition_point(|cut| cut.bytes <= common);
    let whole = common == text.len() && common == entry.text.len();
    let cut = if whole {
        Some(Cut {
            bytes: common,
            ids: entry.ids.len(),
        })
    } else {
        entry.cuts[..earlier_cuts].last().copied()
    };
    Known {
        entry: Some(entry),
        cut,
        earlier_cuts,
    }
}

fn common_bytes(left: &[u8], right: &[u8]) -> usize {
    let blocks = left.chunks_exact(STEP).zip(right.chunks_exact(STEP));
    let equal = blocks.take_while(|(left, right)| left == right).count() * STEP;
    let rest = left[equal..].iter().zip(&right[equal..]);
    equal + rest.take_while(|(left, right)| left == right).count()
}

/// The hash of each prefix whose length is a multiple of [`STEP`]. It only has to spread: what
/// it finds is compared, and the map puts its own keyed hash on top.
fn step_hashes(text: &[u8]) -> Vec<u64> {
    let mut state = 0;
    let steps = text.chunks_exact(STEP).map(|step| {
        state = step_hash(state, step);
        state
    });
    steps.collect()
}

fn step_hash(seed: u64, step: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut lanes = [seed, !seed, seed.rotate_left(17), seed ^ FACTOR];
    for block in step.chunks_exact(32) {
        for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(8)) {
            let word = word.try_into().map_or(0, u64::from_le_bytes);
            *lane = (*lane ^ word).wrapping_mul(FACTOR).rotate_left(29);
        }
    }
    lanes.into_iter().fold(seed, |hash, lane| {
        let mixed = (hash ^ lane).wrapping_mul(FACTOR);
        mixed ^ (mixed >> 32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(seed: u64, length: usize) -> Arc<str> {
        let mut state = seed;
        let letters = (0..length).map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            char::from(b'a' + u8::try_from(state >> 60).unwrap())
        });
        letters.collect::<String>().into()
    }

    /// One id a byte, a cut every 100 bytes.
    fn remember(memo: &Memo, text: &Arc<str>) {
        let ids: Vec<u32> = text.bytes().map(u32::from).collect();
        let cuts = (1..=text.len() / 100).map(|n| Cut {
            bytes: n * 100,
            ids: n * 100,
        });
        memo.remember(text, &ids, &cuts.collect::<Vec<_>>());
    }

    #[test]
    fn the_longest_known_prefix_ends_at_the_last_cut_before_the_difference() {
        let memo = Memo::new(1 << 20);
        let first = text(1, 5_000);
        remember(&memo, &first);
        let second = format!("{}{}", &first[..3_333], text(2, 500));
        let known = memo.known(&second);
        assert_eq!(known.bytes(), 3_300);
        assert_eq!(known.ids().len(), 3_300);
        assert_eq!(known.cuts().len(), 33);
    }

    #[test]
    fn a_text_seen_before_is_known_to_its_end() {
        let memo = Memo::new(1 << 20);
        let first = text(3, 5_050);
        remember(&memo, &first);
        assert_eq!(memo.known(&first).bytes(), 5_050);
        let longer = format!("{first}x");
        assert_eq!(memo.known(&longer).bytes(), 5_000);
    }

    #[test]
    fn a_strange_text_is_not_known() {
        let memo = Memo::new(1 << 20);
        remember(&memo, &text(4, 5_000));
        assert_eq!(memo.known(&text(5, 5_000)).bytes(), 0);
    }

    #[test]
    fn memory_stays_within_the_bound_and_what_is_used_stays() {
        let memo = Memo::new(1 << 20);
        let kept = text(6, 4_000);
        remember(&memo, &kept);
        for seed in 100..1_000 {
            remember(&memo, &text(seed, 4_000));
            assert!(memo.live_bytes() <= 1 << 20, "{}", memo.live_bytes());
            assert_eq!(memo.known(&kept).bytes(), 4_000, "after {seed}");
        }
    }

    #[test]
    fn a_grown_conversation_replaces_its_earlier_turns() {
        let memo = Memo::new(1 << 20);
        let whole = text(7, 40_960);
        for turn in 1..=40 {
            remember(&memo, &whole[..turn * 1_024].into());
        }
        assert!(memo.live_bytes() < 40_960 * 7, "{}", memo.live_bytes());
        drop(memo.known(&whole));
        let live = Arc::clone(&memo.live);
        drop(memo);
        assert_eq!(live.load(Relaxed), 0);
    }

    #[test]
    fn a_text_too_large_for_the_memory_is_not_kept() {
        let memo = Memo::new(100_000);
        remember(&memo, &text(8, 20_000));
        assert_eq!(memo.live_bytes(), 0);
    }
}
