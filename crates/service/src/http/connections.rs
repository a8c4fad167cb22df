//! Cuts connections on which nothing gets on: one look at all of them now and then, so that no request pays for a timer.
//!
//! It knows no protocol. On a connection something gets on while a request is being answered, or while bytes of an
//! answer leave; a client that only sends, or only holds on, is cut.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Looks in the time that a connection may stand still.
const LOOKS: u32 = 2;
/// However short that time is, looking must not keep a thread busy.
const LEAST_REST: Duration = Duration::from_millis(1);

/// The open connections of a server.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    by_number: BTreeMap<u64, Seen>,
    last_number: u64,
}

/// A connection as it was at the last look.
#[derive(Debug)]
struct Seen {
    progress: Arc<Progress>,
    writes: u64,
    /// Looks that found it as the one before did.
    still: u32,
}

/// One open connection; forgotten when dropped.
#[derive(Debug)]
pub(super) struct Connection {
    progress: Arc<Progress>,
    number: u64,
    all: Arc<Connections>,
}

/// What got on on a connection.
#[derive(Debug)]
pub(super) struct Progress {
    answering: AtomicUsize,
    writes: AtomicU64,
    end: CancellationToken,
}

/// A request that is being answered, until dropped.
#[derive(Debug)]
pub(super) struct Answering(Arc<Progress>);

impl Connections {
    /// A new connection, which ends with `stop` at the latest.
    pub(super) fn enter(self: &Arc<Self>, stop: &CancellationToken) -> Connection {
        let progress = Arc::new(Progress {
            answering: AtomicUsize::new(0),
            // That it came is the first.
            writes: AtomicU64::new(1),
            end: stop.child_token(),
        });
        let seen = Seen {
            progress: Arc::clone(&progress),
            writes: 0,
            still: 0,
        };
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.last_number += 1;
        let number = open.last_number;
        open.by_number.insert(number, seen);
        Connection {
            progress,
            number,
            all: Arc::clone(self),
        }
    }

    /// Cuts, for as long as it is polled, what stands still for `limit`, at the next look.
    pub(super) async fn watch(&self, limit: Duration) {
        loop {
            sleep((limit / LOOKS).max(LEAST_REST)).await;
            self.look();
        }
    }

    fn look(&self) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for seen in open.by_number.values_mut() {
            let writes = seen.progress.writes.load(Ordering::Relaxed);
            let answering = seen.progress.answering.load(Ordering::Relaxed) > 0;
            seen.still = if answering || writes != seen.writes {
                0
            } else {
                seen.still + 1
            };
            seen.writes = writes;
            if seen.still == LOOKS {
                seen.progress.end.cancel();
            }
        }
    }
}

impl Connection {
    pub(super) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Resolves when it must end: the server stops, or it was cut.
    pub(super) async fn ended(&self) {
        self.progress.end.cancelled().await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut open = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.by_number.remove(&self.number);
    }
}

impl Progress {
    pub(super) fn answer(self: &Arc<Self>) -> Answering {
        self.answering.fetch_add(1, Ordering::Relaxed);
        Answering(Arc::clone(self))
    }

    /// Bytes left.
    pub(super) fn wrote(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.answering.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(all: &Connections, connection: &Connection) -> usize {
        let is_cut = || connection.progress.end.is_cancelled();
        (0..10)
            .take_while(|_| !is_cut())
            .inspect(|_| all.look())
            .count()
    }

    #[test]
    fn what_stands_still_is_cut_and_nothing_else() {
        let (all, stop) = (Arc::new(Connections::default()), CancellationToken::new());
        let [still, answering, writing] = [0; 3].map(|_| all.enter(&stop));
        let _answer = answering.progress.answer();
        for _ in 0..5 {
            writing.progress.wrote();
            all.look();
        }
        let cut = [&still, &answering, &writing].map(|one| one.progress.end.is_cancelled());
        assert_eq!((cut, stop.is_cancelled()), ([true, false, false], false));
    }

    #[test]
    fn after_an_answer_a_connection_may_stand_still_as_long_as_a_new_one() {
        let (all, stop) = (Arc::new(Connections::default()), CancellationToken::new());
        let fresh = all.enter(&stop);
        let of_fresh = looks(&all, &fresh);
        let used = all.enter(&stop);
        all.look();
        drop(used.progress.answer());
        used.progress.wrote();
        assert_eq!((of_fresh, looks(&all, &used)), (3, 3));
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let (all, stop) = (Arc::new(Connections::default()), CancellationToken::new());
        let [one, other] = [0; 2].map(|_| all.enter(&stop));
        drop(one);
        assert_eq!(all.0.lock().unwrap().by_number.len(), 1);
        drop(other);
        assert!(all.0.lock().unwrap().by_number.is_empty());
    }
}
