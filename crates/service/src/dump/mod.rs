//! Tells the whole index to whoever wants to start with it, in the published format of `/dump`.
//!
//! It never holds more than a part of one rank's blocks, and no lock while it writes or waits: a part is
//! copied, written, and forgotten before the next, so that events wait for one part at most. It reads no dump.

mod copy;
mod write;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use pointsman_core::index::RankDump;
use pointsman_core::{Partition, PartitionId};
use pointsman_plugin::WorkerWithDpRank;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_blocking;
use tracing::warn;

use crate::error::SelectionServiceError;
use crate::events::RankProgress;
use crate::service::SelectionService;
use crate::workers::Snapshot;

use copy::RankCopy;
use write::{Outlet, write};

/// Dumps under way at once; one more is refused.
pub(crate) const MAX_DUMPS: usize = 2;
/// Pieces that are written ahead of their reader.
const PIECES_AHEAD: usize = 2;
/// A reader that takes no piece for this long has lost interest.
const READER_PATIENCE: Duration = Duration::from_secs(30);

/// A partition to be told, and the ranks that may hold blocks of it.
#[derive(Clone, Debug)]
struct Entry {
    id: PartitionId,
    partition: Arc<Partition>,
    ranks: Vec<Rank>,
}

#[derive(Clone, Debug)]
struct Rank {
    worker: WorkerWithDpRank,
    /// Of its event stream, where there is one.
    progress: Option<Arc<RankProgress>>,
}

/// The text of a dump, piece by piece. It ends with an error where the rest could not be had, so
/// that a part is never taken for the whole.
#[derive(Debug)]
pub struct Dump {
    pieces: mpsc::Receiver<Piece>,
    ended: bool,
}

#[derive(Debug)]
enum Piece {
    More(Bytes),
    Last(Bytes),
}

/// A dump stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the dump stopped before its end")]
pub struct DumpCutShort;

/// Why a rank could not be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the blocks of worker {} rank {} cannot be read", .0.worker_id, .0.dp_rank)]
struct RankUnreadable(WorkerWithDpRank);

impl SelectionService {
    /// Everything that is known of every rank's cache, as JSON in the published format; see
    /// [`SelectionServiceBuilder::indexer_peers`](crate::SelectionServiceBuilder::indexer_peers) for the other end. Must be called within a tokio runtime.
    pub fn dump(&self) -> Result<Dump, SelectionServiceError> {
        let turns = Arc::clone(&self.shared().dumps);
        let turn = turns
            .try_acquire_owned()
            .map_err(|_| SelectionServiceError::TooManyDumps { limit: MAX_DUMPS })?;
        let entries = entries(&self.snapshot());
        let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
        tokio::spawn(async move {
            let mut outlet = Outlet::new(sender, READER_PATIENCE);
            if write(entries, copy_part, &mut outlet).await.is_err() {
                tracing::debug!("the reader of a dump went away");
            }
            drop(turn);
        });
        Ok(Dump {
            pieces,
            ended: false,
        })
    }
}

pub(crate) fn turns() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_DUMPS))
}

/// Copies away from the threads that serve.
async fn copy_part(partition: Arc<Partition>, dump: RankDump) -> Result<RankCopy, RankUnreadable> {
    let worker = dump.worker();
    let copied = spawn_blocking(move || RankCopy::next(&partition, dump)).await;
    copied.map_err(|error| {
        warn!(worker_id = worker.worker_id, dp_rank = worker.dp_rank, %error, "cannot copy a rank for a dump");
        RankUnreadable(worker)
    })
}

fn entries(snapshot: &Snapshot) -> Vec<Entry> {
    let partitions = snapshot.partitions.iter();
    let mut entries: Vec<_> = partitions
        .map(|(id, partition)| Entry {
            id: id.clone(),
            partition: Arc::clone(partition),
            ranks: Vec::new(),
        })
        .collect();
    for (&worker_id, worker) in &snapshot.workers {
        let place = entries.binary_search_by(|entry| entry.id.cmp(&worker.partition_id()));
        if let Ok(place) = place {
            entries[place]
                .ranks
                .extend(worker.ranks().map(|dp_rank| Rank {
                    worker: WorkerWithDpRank { worker_id, dp_rank },
                    progress: worker.progress.get(&dp_rank).cloned(),
                }));
        }
    }
    entries
}

impl Stream for Dump {
    type Item = Result<Bytes, DumpCutShort>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let dump = self.get_mut();
        if dump.ended {
            return Poll::Ready(None);
        }
        let piece = ready!(dump.pieces.poll_recv(context));
        Poll::Ready(Some(match piece {
            Some(Piece::More(bytes)) => Ok(bytes),
            Some(Piece::Last(bytes)) => {
                dump.ended = true;
                Ok(bytes)
            }
            None => {
                dump.ended = true;
                Err(DumpCutShort)
            }
        }))
    }
}
