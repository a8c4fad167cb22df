//! Reads a dump in the published format into what it says of each rank; it applies nothing.
//!
//! One entry that is an error, or of another shape, leaves the others as they are. Names and blocks
//! are counted against one bound, whatever the text.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::mem::take;

use pointsman_core::PartitionId;
use pointsman_core::hash::{BlockHash, EngineHash};
use pointsman_core::index::{KvEvent, StoredBlock, Tier};
use pointsman_plugin::WorkerWithDpRank;

use super::pull::{Bad, Pull};

/// What a rank costs beside its blocks, in blocks.
const RANK_COST: usize = 16;

/// How much of a dump is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) max_bytes: u64,
    /// Blocks, and runs of them, and ranks 16 times.
    pub(super) max_blocks: usize,
}

pub(crate) type Ranks = HashMap<(PartitionId, WorkerWithDpRank), RecoveredRank>;

/// What a dump says one rank holds.
#[derive(Debug, Default)]
pub(crate) struct RecoveredRank {
    /// As the dump states it; `None` where it does not.
    pub(super) block_size: Option<u32>,
    runs: Vec<Run>,
    blocks: Vec<StoredBlock>,
    /// Said to be removed. A block that the dump stores again is left out too: nothing wrong is
    /// believed by that.
    removed: HashSet<(Tier, EngineHash)>,
}

#[derive(Debug)]
struct Run {
    tier: Tier,
    parent: Option<EngineHash>,
    len: usize,
}

/// A dump, or as much of it as could be had.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) ranks: Ranks,
    /// Entries that were errors, or not to be understood.
    pub(super) bad_entries: usize,
    /// Events of another shape, and those that are not a worker's own.
    pub(super) skipped_events: usize,
    pub(super) blocks: usize,
}

/// One entry under way.
#[derive(Default)]
struct Entry {
    block_size: Option<u64>,
    model_name: Option<String>,
    routing_group: Option<String>,
    has_events: bool,
    ranks: HashMap<WorkerWithDpRank, RecoveredRank>,
}

/// One event under way; its fields may come in any order.
#[derive(Default)]
struct Event {
    worker_id: Option<u64>,
    dp_rank: Option<u64>,
    tier: Option<Tier>,
    is_foreign: bool,
    data: Option<Data>,
    parent: Option<EngineHash>,
    blocks: Vec<StoredBlock>,
    names: Vec<EngineHash>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Data {
    Stored,
    Removed,
    Cleared,
}

struct Reader<'a> {
    parsed: &'a mut Parsed,
    max_blocks: usize,
    left: usize,
}

/// Reads a dump. What was read before an error is in `parsed`.
pub(super) fn parse(source: impl Read, bounds: Bounds, parsed: &mut Parsed) -> Result<(), Bad> {
    let mut pull = Pull::new(source, bounds.max_bytes);
    let mut reader = Reader {
        parsed,
        max_blocks: bounds.max_blocks,
        left: bounds.max_blocks,
    };
    if pull.peek()? != b'{' {
        return Err(Bad::Syntax {
            at: 0,
            what: "a dump is an object",
        });
    }
    pull.object(|pull, key| {
        let mut entry = Entry::default();
        let read = reader.entry(pull, &mut entry);
        reader.keep(key, entry);
        read
    })?;
    pull.finish()
}

impl Reader<'_> {
    fn entry<R: Read>(&mut self, pull: &mut Pull<R>, entry: &mut Entry) -> Result<(), Bad> {
        pull.object(|pull, field| {
            match field {
                "block_size" => entry.block_size = pull.unsigned()?,
                "model_name" => entry.model_name = pull.string()?,
                "routing_group" => entry.routing_group = pull.string()?,
                "events" => {
                    entry.has_events = pull.array(|pull| self.event(pull, &mut entry.ranks))?;
                }
                _ => pull.skip()?,
            }
            Ok(())
        })
        .map(drop)
    }

    /// Takes over an entry, the last one perhaps in part.
    fn keep(&mut self, key: &str, entry: Entry) {
        let from_key = key.rsplit_once(':');
        let id = match (entry.model_name, entry.routing_group, from_key) {
            (Some(model_name), Some(routing_group), _) => {
                Some(PartitionId::new(model_name, routing_group))
            }
            (_, _, Some((model_name, routing_group))) => {
                Some(PartitionId::new(model_name, routing_group))
            }
            _ => None,
        };
        let Some(id) = id.filter(|_| entry.has_events || !entry.ranks.is_empty()) else {
            self.parsed.bad_entries += 1;
            return;
        };
        let block_size = entry.block_size.and_then(|size| u32::try_from(size).ok());
        for (worker, mut rank) in entry.ranks {
            rank.block_size = block_size;
            self.parsed.blocks += rank.blocks.len();
            self.parsed.ranks.insert((id.clone(), worker), rank);
        }
    }

    fn event<R: Read>(
        &mut self,
        pull: &mut Pull<R>,
        ranks: &mut HashMap<WorkerWithDpRank, RecoveredRank>,
    ) -> Result<(), Bad> {
        let mut event = Event::default();
        pull.object(|pull, field| {
            match field {
                "worker_id" => event.worker_id = pull.unsigned()?,
                "storage_tier" => {
                    let name = pull.string()?;
                    event.tier = name.as_deref().and_then(tier_of);
                    event.is_foreign |= event.tier.is_none();
                }
                // What belongs to a cache of its own says nothing of a worker's.
                "residency_domain" => {
                    let domain = pull.string()?;
                    event.is_foreign |= domain.is_some_and(|domain| domain != "worker");
                }
                "event" => {
                    pull.object(|pull, field| {
                        match field {
                            "dp_rank" => event.dp_rank = pull.unsigned()?,
                            "data" => self.data(pull, &mut event)?,
                            _ => pull.skip()?,
                        }
                        Ok(())
                    })?;
                }
                _ => pull.skip()?,
            }
            Ok(())
        })?;
        self.take(event, ranks)
    }

    fn data<R: Read>(&mut self, pull: &mut Pull<R>, event: &mut Event) -> Result<(), Bad> {
        if pull.peek()? == b'"' {
            let word = pull.string()?;
            event.data = (word.as_deref() == Some("cleared")).then_some(Data::Cleared);
            return Ok(());
        }
        pull.object(|pull, field| {
            match field {
                "stored" => {
                    event.data = Some(Data::Stored);
                    pull.object(|pull, field| {
                        match field {
                            "parent_hash" => event.parent = pull.unsigned()?.map(EngineHash),
                            "blocks" => {
                                pull.array(|pull| self.block(pull, event))?;
                            }
                            _ => pull.skip()?,
                        }
                        Ok(())
                    })?;
                }
                "removed" => {
                    event.data = Some(Data::Removed);
                    pull.object(|pull, field| match field {
                        "block_hashes" => pull.array(|pull| self.name(pull, event)).map(drop),
                        _ => pull.skip(),
                    })?;
                }
                _ => pull.skip()?,
            }
            Ok(())
        })
        .map(drop)
    }

    fn block<R: Read>(&mut self, pull: &mut Pull<R>, event: &mut Event) -> Result<(), Bad> {
        let (mut name, mut tokens) = (None, None);
        pull.object(|pull, field| {
            match field {
                "block_hash" => name = pull.unsigned()?,
                "tokens_hash" => tokens = pull.unsigned()?,
                _ => pull.skip()?,
            }
            Ok(())
        })?;
        self.spend(1)?;
        match (name, tokens) {
            (Some(name), Some(tokens)) => event.blocks.push(StoredBlock {
                engine_hash: EngineHash(name),
                block_hash: BlockHash(tokens),
            }),
            // What is behind it has no place.
            _ => event.is_foreign = true,
        }
        Ok(())
    }

    fn name<R: Read>(&mut self, pull: &mut Pull<R>, event: &mut Event) -> Result<(), Bad> {
        self.spend(1)?;
        event.names.extend(pull.unsigned()?.map(EngineHash));
        Ok(())
    }

    fn take(
        &mut self,
        event: Event,
        ranks: &mut HashMap<WorkerWithDpRank, RecoveredRank>,
    ) -> Result<(), Bad> {
        let dp_rank = u32::try_from(event.dp_rank.unwrap_or(0)).ok();
        let (Some(worker_id), Some(dp_rank), Some(data), false) =
            (event.worker_id, dp_rank, event.data, event.is_foreign)
        else {
            self.parsed.skipped_events += 1;
            return Ok(());
        };
        let worker = WorkerWithDpRank { worker_id, dp_rank };
        self.spend(1)?;
        if !ranks.contains_key(&worker) {
            self.spend(RANK_COST)?;
        }
        let rank = ranks.entry(worker).or_default();
        let tier = event.tier.unwrap_or_default();
        match data {
            Data::Stored => {
                rank.runs.push(Run {
                    tier,
                    parent: event.parent,
                    len: event.blocks.len(),
                });
                rank.blocks.extend(event.blocks);
            }
            Data::Removed => {
                let names = event.names.into_iter();
                rank.removed.extend(names.map(|name| (tier, name)));
            }
            Data::Cleared => *rank = RecoveredRank::default(),
        }
        Ok(())
    }

    fn spend(&mut self, blocks: usize) -> Result<(), Bad> {
        self.left = self.left.checked_sub(blocks).ok_or(Bad::TooMany {
            max: self.max_blocks,
        })?;
        Ok(())
    }
}

fn tier_of(name: &str) -> Option<Tier> {
    match name {
        "device" => Some(Tier::Device),
        "host_pinned" => Some(Tier::Host),
        "disk" => Some(Tier::Disk),
        "external" => Some(Tier::External),
        _ => None,
    }
}

impl RecoveredRank {
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// What is said to be stored, in the order in which it was told.
    pub(super) fn into_events(mut self) -> impl Iterator<Item = (Tier, KvEvent)> {
        let blocks = take(&mut self.blocks);
        let mut at = 0;
        let runs = take(&mut self.runs).into_iter();
        runs.map(move |run| {
            let stored = &blocks[at..at + run.len];
            at += run.len;
            let is_removed =
                |block: &StoredBlock| self.removed.contains(&(run.tier, block.engine_hash));
            // What is behind a removed block is found again if the engine stores that one again.
            let kept = stored.iter().take_while(|block| !is_removed(block));
            let event = KvEvent::Stored {
                parent: run.parent,
                blocks: kept.copied().collect(),
            };
            (run.tier, event)
        })
    }
}

#[cfg(test)]
mod tests;
