//! Writes the published format: an object with one entry for each partition, each a list of events.
//!
//! It asks for ranks one by one and hands on finished pieces; it reads no index. What the published
//! format does not have stands in keys of its own within an entry, which others ignore.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pointsman_core::Partition;
use pointsman_core::hash::EngineHash;
use pointsman_core::index::{RankDump, StoredBlock, Tier};
use pointsman_plugin::WorkerWithDpRank;
use serde_json::json;
use tokio::sync::mpsc;

use super::copy::{BELOW_DEVICE, DEVICE, RankCopy, Rest, Run};
use super::{Entry, Piece, Rank, RankUnreadable};

/// A piece is sent when it is this long.
const PIECE_BYTES: usize = 64 << 10;
/// Blocks of one event: a longer run is told in several, so that no reader needs a large buffer.
const EVENT_BLOCKS: usize = 1024;

/// The reader went away, or took nothing for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReaderGone;

/// Where the text goes.
#[derive(Debug)]
pub(super) struct Outlet {
    text: Vec<u8>,
    pieces: mpsc::Sender<Piece>,
    patience: Duration,
}

/// The events of one entry.
struct Events<'a> {
    outlet: &'a mut Outlet,
    written: u64,
}

/// Writes all of it. `copy` reads the next part of one rank.
pub(super) async fn write<F>(
    entries: Vec<Entry>,
    copy: impl Fn(Arc<Partition>, RankDump) -> F,
    outlet: &mut Outlet,
) -> Result<(), ReaderGone>
where
    F: Future<Output = Result<RankCopy, RankUnreadable>>,
{
    outlet.put("{");
    for (index, entry) in entries.into_iter().enumerate() {
        if index > 0 {
            outlet.put(",");
        }
        outlet.json(&entry.id.to_string());
        outlet.put(":");
        write_entry(&entry, &copy, outlet).await?;
    }
    outlet.put("}\n");
    outlet.end().await
}

/// How the events of an entry were told.
#[derive(Debug, Default)]
struct Told {
    left_out: usize,
    failed: Option<RankUnreadable>,
}

/// One whose first rank fails is an error and no more; one that fails later says so after what could
/// be told. Either way the next entry is not touched by it.
async fn write_entry<F>(
    entry: &Entry,
    copy: &impl Fn(Arc<Partition>, RankDump) -> F,
    outlet: &mut Outlet,
) -> Result<(), ReaderGone>
where
    F: Future<Output = Result<RankCopy, RankUnreadable>>,
{
    // Numbers first: what is copied later is at least as new.
    let watermarks: Vec<_> = entry.ranks.iter().filter_map(Rank::watermark).collect();
    let read = |dump| copy(Arc::clone(&entry.partition), dump);
    let first = match entry.ranks.first() {
        Some(rank) => Some(read(RankDump::new(rank.worker, DEVICE)).await),
        None => None,
    };
    if let Some(Err(error)) = first {
        outlet.json(&json!({ "error": error.to_string() }));
        return Ok(());
    }
    outlet.json(&json!({
        "block_size": entry.partition.layout().block_size,
        "model_name": entry.id.model_name,
        "routing_group": entry.id.routing_group,
    }));
    // The object goes on.
    outlet.text.pop();
    outlet.put(",\"events\":[");
    let told = write_events(&entry.ranks, first, &read, outlet).await?;
    outlet.put("],\"watermarks\":");
    outlet.json(&watermarks);
    if told.left_out > 0 {
        outlet.put(",\"blocks_left_out\":");
        outlet.json(&told.left_out);
    }
    if let Some(error) = told.failed {
        outlet.put(",\"error\":");
        outlet.json(&error.to_string());
    }
    outlet.put("}");
    Ok(())
}

/// The device of every rank, then the tiers below of those that have any. `first` is what was read
/// of the first rank's device.
async fn write_events<F>(
    ranks: &[Rank],
    mut first: Option<Result<RankCopy, RankUnreadable>>,
    read: &impl Fn(RankDump) -> F,
    outlet: &mut Outlet,
) -> Result<Told, ReaderGone>
where
    F: Future<Output = Result<RankCopy, RankUnreadable>>,
{
    let mut events = Events { outlet, written: 0 };
    let mut told = Told::default();
    let mut below = Vec::new();
    for rank in ranks {
        let part = match first.take() {
            Some(part) => part,
            None => read(RankDump::new(rank.worker, DEVICE)).await,
        };
        if events.tell_all(rank.worker, part, read, &mut told).await? == Others::Held {
            below.push(rank.worker);
        }
    }
    for worker in below {
        let part = read(RankDump::new(worker, BELOW_DEVICE)).await;
        events.tell_all(worker, part, read, &mut told).await?;
    }
    Ok(told)
}

/// Whether a rank holds something in tiers that were not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    Held,
    None,
}

impl Rank {
    /// The event applied last.
    fn watermark(&self) -> Option<serde_json::Value> {
        let events = self.progress.as_ref()?.report();
        let mut watermark = json!({
            "worker_id": self.worker.worker_id,
            "dp_rank": self.worker.dp_rank,
            "last_sequence": events.last_sequence?,
        });
        if events.recut_events > 0 {
            watermark["recut"] = json!(true);
        }
        Some(watermark)
    }
}

impl Events<'_> {
    /// Tells this part of a rank, and then the others. One that cannot be read ends it.
    async fn tell_all<F>(
        &mut self,
        worker: WorkerWithDpRank,
        mut part: Result<RankCopy, RankUnreadable>,
        read: &impl Fn(RankDump) -> F,
        told: &mut Told,
    ) -> Result<Others, ReaderGone>
    where
        F: Future<Output = Result<RankCopy, RankUnreadable>>,
    {
        loop {
            let copied = match part {
                Ok(copied) => copied,
                Err(error) => {
                    told.failed = Some(error);
                    return Ok(Others::None);
                }
            };
            self.tell(worker, &copied).await?;
            match copied.rest {
                Rest::More(dump) => part = read(*dump).await,
                Rest::Done {
                    has_others,
                    left_out,
                } => {
                    told.left_out += left_out;
                    return Ok(if has_others {
                        Others::Held
                    } else {
                        Others::None
                    });
                }
            }
        }
    }

    async fn tell(
        &mut self,
        worker: WorkerWithDpRank,
        copied: &RankCopy,
    ) -> Result<(), ReaderGone> {
        for run in copied.runs() {
            let mut parent = run.parent;
            for blocks in run.blocks.chunks(EVENT_BLOCKS) {
                if self.written > 0 {
                    self.outlet.put(",");
                }
                let part = Run {
                    parent,
                    blocks,
                    ..run
                };
                self.outlet.event(self.written, worker, part);
                self.written += 1;
                parent = blocks.last().map(|block| block.engine_hash);
                self.outlet.send_full().await?;
            }
        }
        Ok(())
    }
}

impl Outlet {
    pub(super) fn new(pieces: mpsc::Sender<Piece>, patience: Duration) -> Self {
        Self {
            text: Vec::new(),
            pieces,
            patience,
        }
    }

    fn put(&mut self, text: &str) {
        self.text.extend_from_slice(text.as_bytes());
    }

    fn json(&mut self, value: &impl serde::Serialize) {
        // Writing to memory does not fail, and nothing written here fails to be JSON.
        drop(serde_json::to_writer(&mut self.text, value));
    }

    fn event(&mut self, id: u64, worker: WorkerWithDpRank, run: Run<'_>) {
        let WorkerWithDpRank { worker_id, dp_rank } = worker;
        let tier = tier_name(run.tier);
        // As in `json`.
        drop(write!(
            self.text,
            r#"{{"worker_id":{worker_id},"storage_tier":"{tier}","event":{{"event_id":{id},"dp_rank":{dp_rank},"data":{{"stored":{{"parent_hash":"#,
        ));
        match run.parent {
            Some(EngineHash(parent)) => drop(write!(self.text, "{parent}")),
            None => self.put("null"),
        }
        self.put(r#","start_position":null,"blocks":["#);
        for (index, block) in run.blocks.iter().enumerate() {
            if index > 0 {
                self.put(",");
            }
            self.block(*block);
        }
        self.put("]}}}}");
    }

    fn block(&mut self, block: StoredBlock) {
        let (name, tokens) = (block.engine_hash.0, block.block_hash.0);
        // As in `json`. Media is in the hash of the tokens; the list it came from is not kept.
        drop(write!(
            self.text,
            r#"{{"block_hash":{name},"tokens_hash":{tokens},"mm_extra_info":null}}"#
        ));
    }

    async fn send_full(&mut self) -> Result<(), ReaderGone> {
        if self.text.len() < PIECE_BYTES {
            return Ok(());
        }
        let text = std::mem::take(&mut self.text);
        self.send(Piece::More(Bytes::from(text))).await
    }

    async fn end(&mut self) -> Result<(), ReaderGone> {
        let text = std::mem::take(&mut self.text);
        self.send(Piece::Last(Bytes::from(text))).await
    }

    async fn send(&self, piece: Piece) -> Result<(), ReaderGone> {
        let sent = self.pieces.send_timeout(piece, self.patience).await;
        sent.map_err(|_| ReaderGone)
    }
}

fn tier_name(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "device",
        Tier::Host => "host_pinned",
        Tier::Disk => "disk",
        Tier::External => "external",
    }
}

#[cfg(test)]
mod tests;
