//! Cuts an engine's blocks again where its block size is a multiple or a divisor of the partition's, so that one index serves both; it reads no wire and keeps no index.
//!
//! A larger engine block becomes several of ours, named after it and their place in it: nothing is
//! remembered. Of smaller ones several make one of ours, named like the last of them; it is held
//! while all of them are, so their tokens are kept for as long as the engine keeps the blocks.

use std::num::NonZeroU32;

use hashbrown::HashMap;
use xxhash_rust::xxh3::xxh3_64;

use crate::hash::{EngineHash, HashLayout, HashSeed, prompt_hashes};
use crate::index::{KvEvent, StoredBlock};

/// Small blocks of one rank that are remembered; beyond it new ones are refused.
pub const MAX_PIECES: usize = 262_144;

/// Why blocks could not be cut again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecutError {
    #[error("an engine block size of {engine} is no multiple or divisor of {partition}")]
    BlockSize { engine: u32, partition: u32 },
    #[error("blocks that are bigrams cannot be joined")]
    Bigrams,
    #[error("the tokens are not those of {blocks} blocks")]
    TokenCount { blocks: usize },
    #[error("the rank has {MAX_PIECES} small blocks already")]
    Full,
    #[error("the parent is no block of the rank, so the place within our block is not known")]
    UnknownParent,
}

/// What an engine stored, with the tokens of its blocks in a row.
#[derive(Clone, Copy, Debug)]
pub struct EngineStore<'a> {
    pub parent: Option<EngineHash>,
    pub engine_hashes: &'a [EngineHash],
    pub tokens: &'a [u32],
    pub seed: HashSeed,
}

/// One rank's blocks on their way from the engine's size to the partition's.
#[derive(Debug)]
pub struct Recut {
    layout: HashLayout,
    engine_tokens: usize,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Engine blocks are this many of ours.
    Split(u32),
    /// This many engine blocks are one of ours.
    Join(u32, HashMap<EngineHash, Piece>),
}

/// A small block.
#[derive(Debug)]
struct Piece {
    parent: Option<EngineHash>,
    /// Position within our block.
    position: u32,
    tokens: Box<[u32]>,
    seed: HashSeed,
    copies: u32,
    /// Pieces that follow it within our block, held or not.
    children: Vec<EngineHash>,
}

impl Recut {
    /// Fails if the sizes are not to be reconciled.
    pub fn new(engine_block_size: NonZeroU32, layout: HashLayout) -> Result<Self, RecutError> {
        let (engine, partition) = (engine_block_size.get(), layout.block_size.get());
        let kind = if engine.is_multiple_of(partition) {
            Kind::Split(engine / partition)
        } else if !partition.is_multiple_of(engine) {
            return Err(RecutError::BlockSize { engine, partition });
        } else if layout.eagle {
            return Err(RecutError::Bigrams);
        } else {
            Kind::Join(partition / engine, HashMap::new())
        };
        Ok(Self {
            layout,
            engine_tokens: usize::try_from(engine).unwrap_or(usize::MAX),
            kind,
        })
    }

    /// What a store means in blocks of the partition's size, in order.
    pub fn stored(&mut self, store: &EngineStore<'_>) -> Result<Vec<KvEvent>, RecutError> {
        let blocks = store.engine_hashes.len();
        let overhang = usize::from(self.layout.eagle);
        if self
            .engine_tokens
            .checked_mul(blocks)
            .and_then(|tokens| tokens.checked_add(overhang))
            != Some(store.tokens.len())
        {
            return Err(RecutError::TokenCount { blocks });
        }
        match &mut self.kind {
            Kind::Split(parts) => Ok(vec![split(*parts, self.layout, store)]),
            Kind::Join(parts, pieces) => {
                join(*parts, self.layout, pieces, self.engine_tokens, store)
            }
        }
    }

    /// What a removal means in blocks of the partition's size.
    pub fn removed(&mut self, engine_hashes: &[EngineHash]) -> Vec<KvEvent> {
        let engine_hashes = match &mut self.kind {
            Kind::Split(parts) => {
                let parts = *parts;
                let names = engine_hashes.iter();
                names
                    .flat_map(|name| (0..parts).map(|part| part_name(*name, part)))
                    .collect()
            }
            Kind::Join(parts, pieces) => {
                let names = engine_hashes.iter();
                names
                    .flat_map(|name| part_from(*parts, pieces, *name))
                    .collect()
            }
        };
        vec![KvEvent::Removed { engine_hashes }]
    }

    /// What is left of engine blocks, in blocks of the partition's size.
    pub fn remaining(&mut self, copies: &[(EngineHash, u32)]) -> Vec<KvEvent> {
        match &mut self.kind {
            Kind::Split(parts) => {
                let parts = *parts;
                let of_parts = copies.iter().flat_map(|(name, left)| {
                    (0..parts).map(move |part| (part_name(*name, part), *left))
                });
                vec![KvEvent::Remaining {
                    copies: of_parts.collect(),
                }]
            }
            Kind::Join(parts, pieces) => {
                let parts = *parts;
                let mut engine_hashes = Vec::new();
                for (name, left) in copies {
                    match pieces.get_mut(name) {
                        Some(piece) if *left > 0 && piece.copies > 0 => piece.copies = *left,
                        Some(piece) if piece.copies > 0 => {
                            engine_hashes.extend(forget(parts, pieces, *name));
                        }
                        _ => {}
                    }
                }
                vec![KvEvent::Removed { engine_hashes }]
            }
        }
    }

    /// What it means that engine blocks which are held elsewhere are held in another tier too;
    /// nothing where small blocks are joined, as their tokens are not told again.
    pub fn linked(&self, engine_hashes: &[EngineHash]) -> Option<KvEvent> {
        let Kind::Split(parts) = self.kind else {
            return None;
        };
        let names = engine_hashes.iter();
        Some(KvEvent::Linked {
            engine_hashes: names
                .flat_map(|name| (0..parts).map(|part| part_name(*name, part)))
                .collect(),
        })
    }

    /// Whether a name is that of a small block that is remembered.
    pub fn knows(&self, name: EngineHash) -> bool {
        match &self.kind {
            Kind::Split(_) => false,
            Kind::Join(_, pieces) => pieces.contains_key(&name),
        }
    }

    /// Whether a small block of this name is held, not only remembered for others.
    pub fn holds(&self, name: EngineHash) -> bool {
        match &self.kind {
            Kind::Split(_) => false,
            Kind::Join(_, pieces) => pieces.get(&name).is_some_and(|piece| piece.copies > 0),
        }
    }

    /// Small blocks that are remembered.
    pub fn pieces(&self) -> usize {
        match &self.kind {
            Kind::Split(_) => 0,
            Kind::Join(_, pieces) => pieces.len(),
        }
    }

    /// Forgets all small blocks.
    pub fn clear(&mut self) {
        if let Kind::Join(_, pieces) = &mut self.kind {
            *pieces = HashMap::new();
        }
    }
}

/// The name of one part of a larger engine block; it follows from the block's, so that removals and
/// children need no memory of it.
fn part_name(name: EngineHash, part: u32) -> EngineHash {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&name.0.to_le_bytes());
    bytes[8..].copy_from_slice(&part.to_le_bytes());
    EngineHash(xxh3_64(&bytes))
}

fn split(parts: u32, layout: HashLayout, store: &EngineStore<'_>) -> KvEvent {
    let hashes = prompt_hashes(store.tokens, layout, store.seed, &[]);
    let names = store
        .engine_hashes
        .iter()
        .flat_map(|name| (0..parts).map(|part| part_name(*name, part)));
    KvEvent::Stored {
        parent: store.parent.map(|parent| part_name(parent, parts - 1)),
        blocks: names
            .zip(hashes.block_hashes)
            .map(|(engine_hash, block_hash)| StoredBlock {
                engine_hash,
                block_hash,
            })
            .collect(),
    }
}

fn join(
    parts: u32,
    layout: HashLayout,
    pieces: &mut HashMap<EngineHash, Piece>,
    engine_tokens: usize,
    store: &EngineStore<'_>,
) -> Result<Vec<KvEvent>, RecutError> {
    let mut events = Vec::new();
    let mut parent = store.parent;
    for (name, tokens) in store
        .engine_hashes
        .iter()
        .zip(store.tokens.chunks(engine_tokens))
    {
        let position = match parent {
            None => 0,
            Some(parent) => match pieces.get(&parent) {
                Some(piece) => (piece.position + 1) % parts,
                None => return Err(RecutError::UnknownParent),
            },
        };
        if let Some(piece) = pieces.get_mut(name)
            && (piece.parent, &*piece.tokens, piece.seed) == (parent, tokens, store.seed)
        {
            piece.copies = piece.copies.saturating_add(1);
            if piece.copies == 1 {
                completed(parts, layout, pieces, *name, &mut events);
            }
            parent = Some(*name);
            continue;
        }
        if pieces.contains_key(name) {
            let lost = forget(parts, pieces, *name);
            if !lost.is_empty() {
                events.push(KvEvent::Removed {
                    engine_hashes: lost,
                });
            }
        }
        if pieces.len() >= MAX_PIECES {
            return Err(RecutError::Full);
        }
        if position > 0
            && let Some(before) = parent.and_then(|parent| pieces.get_mut(&parent))
        {
            before.children.push(*name);
        }
        let piece = Piece {
            parent,
            position,
            tokens: tokens.into(),
            seed: store.seed,
            copies: 1,
            children: Vec::new(),
        };
        pieces.insert(*name, piece);
        completed(parts, layout, pieces, *name, &mut events);
        parent = Some(*name);
    }
    Ok(events)
}

/// Stores our blocks that are whole again, or at last, with the piece `name`.
fn completed(
    parts: u32,
    layout: HashLayout,
    pieces: &HashMap<EngineHash, Piece>,
    name: EngineHash,
    events: &mut Vec<KvEvent>,
) {
    for last in last_pieces(parts, pieces, name) {
        let Some((parent, tokens, seed)) = whole(pieces, last) else {
            continue;
        };
        let hashes = prompt_hashes(&tokens, layout, seed, &[]);
        let blocks = hashes
            .block_hashes
            .into_iter()
            .map(|block_hash| StoredBlock {
                engine_hash: last,
                block_hash,
            });
        events.push(KvEvent::Stored {
            parent,
            blocks: blocks.collect(),
        });
    }
}

/// The last pieces of our blocks that `name` is part of, whether they are held or not.
fn last_pieces(
    parts: u32,
    pieces: &HashMap<EngineHash, Piece>,
    name: EngineHash,
) -> Vec<EngineHash> {
    let mut open = vec![name];
    let mut last = Vec::new();
    while let Some(name) = open.pop() {
        let Some(piece) = pieces.get(&name) else {
            continue;
        };
        if piece.position + 1 == parts {
            last.push(name);
        } else {
            open.extend(&piece.children);
        }
    }
    last
}

/// Parent, tokens and seed of our block that ends with `last`, if all its pieces are held.
fn whole(
    pieces: &HashMap<EngineHash, Piece>,
    last: EngineHash,
) -> Option<(Option<EngineHash>, Vec<u32>, HashSeed)> {
    let mut chain = Vec::new();
    let mut name = last;
    loop {
        let piece = pieces.get(&name).filter(|piece| piece.copies > 0)?;
        chain.push(piece);
        if piece.position == 0 {
            let tokens = chain
                .iter()
                .rev()
                .flat_map(|piece| piece.tokens.iter().copied());
            return Some((piece.parent, tokens.collect(), piece.seed));
        }
        name = piece.parent?;
    }
}

/// Takes one copy of a piece; the last pieces of our blocks that go with it.
fn part_from(
    parts: u32,
    pieces: &mut HashMap<EngineHash, Piece>,
    name: EngineHash,
) -> Vec<EngineHash> {
    match pieces.get_mut(&name) {
        Some(piece) if piece.copies > 1 => {
            piece.copies -= 1;
            Vec::new()
        }
        Some(piece) if piece.copies == 1 => forget(parts, pieces, name),
        _ => Vec::new(),
    }
}

/// Takes a piece; it stays, unheld, while others within our block hang on it.
fn forget(
    parts: u32,
    pieces: &mut HashMap<EngineHash, Piece>,
    name: EngineHash,
) -> Vec<EngineHash> {
    let lost = last_pieces(parts, pieces, name);
    let lost = lost
        .into_iter()
        .filter(|last| whole(pieces, *last).is_some())
        .collect();
    if let Some(piece) = pieces.get_mut(&name) {
        piece.copies = 0;
    }
    let mut unheld = Some(name);
    while let Some(name) = unheld.take() {
        let is_over = |piece: &Piece| piece.copies == 0 && piece.children.is_empty();
        if !pieces.get(&name).is_some_and(is_over) {
            break;
        }
        let Some(piece) = pieces.remove(&name) else {
            break;
        };
        if piece.position > 0
            && let Some(parent) = piece.parent
            && let Some(before) = pieces.get_mut(&parent)
        {
            before.children.retain(|child| *child != name);
            unheld = Some(parent);
        }
    }
    lost
}

#[cfg(test)]
mod tests;
