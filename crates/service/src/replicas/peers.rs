//! Which peers are followed: configured ones and those that came later, each with a task of its own.
//!
//! It reads nothing of what they say.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::mirror::LinkId;

/// Peers that are followed at once.
const MAX_PEERS: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Peers {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    peers: BTreeMap<String, Peer>,
    links: LinkId,
    closed: bool,
}

#[derive(Debug)]
struct Peer {
    link: LinkId,
    ask: Arc<Notify>,
    task: JoinHandle<()>,
}

/// Why a peer is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Known,
    Unavailable,
}

impl Peers {
    /// Follows a peer with the task that `start` makes.
    pub(super) fn add(
        &self,
        endpoint: &str,
        start: impl FnOnce(LinkId, Arc<Notify>) -> JoinHandle<()>,
    ) -> Result<(), Refused> {
        let mut state = self.lock();
        if state.closed {
            return Err(Refused::Unavailable);
        }
        if state.peers.contains_key(endpoint) {
            return Err(Refused::Known);
        }
        if state.peers.len() >= MAX_PEERS {
            return Err(Refused::Unavailable);
        }
        state.links += 1;
        let (link, ask) = (state.links, Arc::new(Notify::new()));
        let task = start(link, Arc::clone(&ask));
        let peer = Peer { link, ask, task };
        state.peers.insert(endpoint.to_owned(), peer);
        Ok(())
    }

    /// Follows a peer no more; its connection, or `None` where it was not followed.
    pub(super) fn remove(&self, endpoint: &str) -> Option<LinkId> {
        let peer = self.lock().peers.remove(endpoint)?;
        peer.task.abort();
        Some(peer.link)
    }

    /// Sorted.
    pub(super) fn endpoints(&self) -> Vec<String> {
        self.lock().peers.keys().cloned().collect()
    }

    /// Whoever reads that connection is to ask for a snapshot.
    pub(super) fn ask(&self, link: LinkId) {
        let state = self.lock();
        let peer = state.peers.values().find(|peer| peer.link == link);
        if let Some(peer) = peer {
            peer.ask.notify_one();
        }
    }

    /// Follows nobody any more.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        for peer in std::mem::take(&mut state.peers).into_values() {
            peer.task.abort();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.close();
    }
}
