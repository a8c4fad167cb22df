//! What goes into a stream's state and what comes out of it; plain values.

use std::time::Duration;

use super::super::wire::Frame;

#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// How long blocks that may be stale are still believed.
    pub(crate) suspect: Duration,
    pub(crate) retry_min: Duration,
    pub(crate) retry_max: Duration,
    /// Live frames, and their bytes, that wait behind a replay before the socket is left unread.
    pub(crate) held_frames: usize,
    pub(crate) held_bytes: usize,
}

/// What is to be done with the ranks that this stream speaks for.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum Action {
    Apply {
        frame: Frame,
        replayed: bool,
    },
    /// Forget all blocks.
    Clear(ClearCause),
    /// Doubt all blocks: they count until they are confirmed or dropped.
    Doubt,
    /// Nothing is doubted any more.
    Trust,
    /// Forget the blocks that are doubted.
    DropDoubted,
    /// Ask for everything from this number on; it replaces a replay under way.
    Replay {
        from: u64,
    },
    /// Stop the replay under way.
    StopReplay,
    /// A fact to count; nothing to do.
    Saw(Sight),
}

pub(in super::super) type Actions = Vec<Action>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Sight {
    Gap,
    Duplicate,
}

/// Why a rank was cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClearCause {
    /// The engine no longer has frames that were lost.
    Lost,
    /// The engine counts from the beginning again.
    Restart,
    /// The engine could not be reached for too long.
    Unreachable,
    /// A complete replay is about to replace everything.
    Rebuild,
    /// The task of the stream failed and begins anew.
    Failure,
    /// What was held was found wrong, and cannot be read again.
    Wrong,
}

impl ClearCause {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Restart => "restart",
            Self::Unreachable => "unreachable",
            Self::Rebuild => "rebuild",
            Self::Failure => "failure",
            Self::Wrong => "wrong",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum ReplayEnd {
    /// The engine sent its end marker.
    Complete,
    /// No answer in time, a broken connection, or nonsense.
    Failed,
}
