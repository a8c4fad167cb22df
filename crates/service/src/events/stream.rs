//! The state of one numbered event stream: what to apply, what to ask for again, when to forget.
//!
//! Sans-IO: frames, the outcome of replays and the time come in, actions go out. It opens no socket,
//! decodes no payload and knows no index. The rules:
//!
//! - A gap is filled by a replay from the missing number; live frames wait behind it, in order.
//! - Without a replay endpoint a gap, a restart or a new connection clears the rank.
//! - A replay that fails makes the rank *suspect*: live frames go on at once, a rebuild from number
//!   0 is tried with back-off, and what is still unconfirmed at the limit is cleared.
//! - A number that was seen is a duplicate if its payload is the one kept for it, else a restart.
//! - A payload that cannot be decoded has still used its number, so it never looks like a gap.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::time::{Duration, Instant};

use super::wire::Frame;

/// Frames whose digest is remembered, to tell a duplicate from a restart.
const REMEMBERED_FRAMES: usize = 1024;

#[derive(Clone, Debug)]
pub(super) struct Limits {
    /// How long blocks that may be stale are still believed.
    pub(super) suspect: Duration,
    pub(super) retry_min: Duration,
    pub(super) retry_max: Duration,
    /// Live frames, and their bytes, that wait behind a replay before the socket is left unread.
    pub(super) held_frames: usize,
    pub(super) held_bytes: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    Apply {
        frame: Frame,
        replayed: bool,
    },
    /// Forget all blocks of the ranks that this stream speaks for.
    Clear(ClearCause),
    /// Ask for everything from this number on; it replaces a replay under way.
    Replay {
        from: u64,
    },
    /// Stop the replay under way.
    StopReplay,
    /// A fact to count; nothing to do.
    Saw(Sight),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Sight {
    Gap,
    Duplicate,
}

/// Why a rank was cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClearCause {
    /// Frames were lost and cannot be had again.
    Lost,
    /// The engine counts from the beginning again.
    Restart,
    /// A new connection, and no way to learn what was missed.
    Reconnected,
    /// The engine could not be reached for too long.
    Unreachable,
    /// Suspect blocks were not confirmed in time.
    Unconfirmed,
    /// A complete replay is about to replace everything.
    Rebuild,
}

impl ClearCause {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Restart => "restart",
            Self::Reconnected => "reconnected",
            Self::Unreachable => "unreachable",
            Self::Unconfirmed => "unconfirmed",
            Self::Rebuild => "rebuild",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplayEnd {
    /// The engine sent its end marker.
    Complete,
    /// No answer in time, a broken connection, or nonsense.
    Failed,
}

#[derive(Debug)]
enum Phase {
    Live,
    Replaying(Replay),
    Suspect(Suspicion),
}

#[derive(Debug)]
struct Replay {
    purpose: Purpose,
    held: VecDeque<Frame>,
    held_bytes: usize,
    suspicion: Option<Suspicion>,
}

#[derive(Clone, Copy, Debug)]
enum Purpose {
    /// Everything from the expected number on.
    Fill,
    /// The last applied frame must come back unchanged; then as `Fill`.
    Verify { sequence: u64, digest: u64 },
    /// The first answer clears the rank; until then live frames are applied. Then as `Fill`.
    Rebuild,
}

#[derive(Clone, Copy, Debug)]
struct Suspicion {
    since: Instant,
    retry_at: Instant,
    attempts: u32,
    /// Blocks from before the trouble may be stale; otherwise only history is missing.
    stale: bool,
}

#[derive(Debug)]
pub(super) struct Stream {
    can_replay: bool,
    limits: Limits,
    phase: Phase,
    /// The number expected next; `None` before the first frame.
    next: Option<u64>,
    /// Numbers applied last, ascending, with their payload's digest.
    recent: VecDeque<(u64, u64)>,
    /// Something was applied since the last clear.
    dirty: bool,
    connected_before: bool,
}

pub(super) type Actions = Vec<Action>;

impl Stream {
    pub(super) fn new(can_replay: bool, limits: Limits) -> Self {
        Self {
            can_replay,
            limits,
            phase: Phase::Live,
            next: None,
            recent: VecDeque::new(),
            dirty: false,
            connected_before: false,
        }
    }

    /// A connection was made; frames that follow come from it.
    pub(super) fn connected(&mut self, actions: &mut Actions) {
        let first = !std::mem::replace(&mut self.connected_before, true);
        if first {
            return;
        }
        if !self.can_replay {
            self.forget(ClearCause::Reconnected, actions);
            return;
        }
        let Some(next) = self.next else { return };
        let suspicion = match std::mem::replace(&mut self.phase, Phase::Live) {
            Phase::Live => None,
            Phase::Replaying(replay) => replay.suspicion,
            Phase::Suspect(suspicion) => Some(suspicion),
        };
        match self.recent.back() {
            _ if suspicion.is_some() => self.replay(Purpose::Rebuild, 0, suspicion, actions),
            Some(&(sequence, digest)) => {
                self.replay(
                    Purpose::Verify { sequence, digest },
                    sequence,
                    None,
                    actions,
                );
            }
            None => self.replay(Purpose::Fill, next, None, actions),
        }
    }

    /// The engine stayed unreachable for the whole suspect time.
    pub(super) fn unreachable(&mut self, actions: &mut Actions) {
        self.forget(ClearCause::Unreachable, actions);
    }

    pub(super) fn live(&mut self, frame: Frame, actions: &mut Actions) {
        match &mut self.phase {
            Phase::Replaying(replay) if !matches!(replay.purpose, Purpose::Rebuild) => {
                replay.held_bytes = replay.held_bytes.saturating_add(frame.payload.len());
                replay.held.push_back(frame);
            }
            _ => self.accept(frame, actions),
        }
    }

    /// Whether live frames should stay in the socket until the replay under way ends.
    pub(super) fn is_holding_full(&self) -> bool {
        match &self.phase {
            Phase::Replaying(replay) => {
                replay.held.len() >= self.limits.held_frames
                    || replay.held_bytes >= self.limits.held_bytes
            }
            Phase::Live | Phase::Suspect(_) => false,
        }
    }

    pub(super) fn replayed(&mut self, frame: Frame, now: Instant, actions: &mut Actions) {
        let Phase::Replaying(replay) = &mut self.phase else {
            return;
        };
        match replay.purpose {
            Purpose::Fill => {}
            Purpose::Verify { sequence, .. } if frame.sequence < sequence => return,
            Purpose::Verify { sequence, digest } if frame.sequence == sequence => {
                if digest_of(&frame.payload) == digest {
                    replay.purpose = Purpose::Fill;
                } else {
                    self.start_over(actions);
                }
                return;
            }
            Purpose::Verify { .. } => replay.purpose = Purpose::Fill,
            Purpose::Rebuild => {
                replay.purpose = Purpose::Fill;
                replay.suspicion = None;
                self.clear(ClearCause::Rebuild, actions);
                self.recent.clear();
                self.next = Some(frame.sequence);
            }
        }
        self.fill(frame, now, actions);
    }

    pub(super) fn replay_ended(&mut self, end: ReplayEnd, now: Instant, actions: &mut Actions) {
        let Phase::Replaying(replay) = &self.phase else {
            return;
        };
        match (end, replay.purpose) {
            (ReplayEnd::Complete, Purpose::Verify { .. }) => self.start_over(actions),
            (ReplayEnd::Complete, Purpose::Fill) => self.resume(now, actions),
            (ReplayEnd::Complete, Purpose::Rebuild) => {
                // The engine answered and holds nothing: nothing of what we hold can be confirmed.
                self.clear(ClearCause::Rebuild, actions);
                self.resume(now, actions);
            }
            (ReplayEnd::Failed, _) => self.suspect(now, actions),
        }
    }

    /// When `woke` must be called, if at all.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Suspect(suspicion) => Some(
                suspicion
                    .retry_at
                    .min(suspicion.since + self.limits.suspect),
            ),
            Phase::Live | Phase::Replaying(_) => None,
        }
    }

    pub(super) fn woke(&mut self, now: Instant, actions: &mut Actions) {
        let Phase::Suspect(suspicion) = self.phase else {
            return;
        };
        if now >= suspicion.since + self.limits.suspect {
            self.phase = Phase::Live;
            if suspicion.stale {
                self.clear(ClearCause::Unconfirmed, actions);
            }
        } else if now >= suspicion.retry_at {
            self.replay(Purpose::Rebuild, 0, Some(suspicion), actions);
        }
    }

    pub(super) fn is_suspect(&self) -> bool {
        match &self.phase {
            Phase::Suspect(suspicion) => suspicion.stale,
            Phase::Replaying(replay) => replay.suspicion.is_some_and(|suspicion| suspicion.stale),
            Phase::Live => false,
        }
    }

    fn accept(&mut self, frame: Frame, actions: &mut Actions) {
        let is_steady = matches!(self.phase, Phase::Live);
        match self.next {
            None if frame.sequence == 0 || !self.can_replay || !is_steady => {
                self.apply(frame, false, actions);
            }
            None => self.fill_before(frame, 0, actions),
            Some(next) if frame.sequence == next => self.apply(frame, false, actions),
            Some(next) if frame.sequence > next => {
                actions.push(Action::Saw(Sight::Gap));
                if !is_steady {
                    // The rebuild that is due repairs this gap as well.
                    self.distrust();
                    self.apply(frame, false, actions);
                } else if self.can_replay {
                    self.fill_before(frame, next, actions);
                } else {
                    self.clear(ClearCause::Lost, actions);
                    self.apply(frame, false, actions);
                }
            }
            Some(_) if self.digest_kept(frame.sequence) == Some(digest_of(&frame.payload)) => {
                actions.push(Action::Saw(Sight::Duplicate));
            }
            Some(_) => {
                self.forget(ClearCause::Restart, actions);
                self.accept(frame, actions);
            }
        }
    }

    /// Something was missed while a rebuild is due: what is held may be stale from now on.
    fn distrust(&mut self) {
        let suspicion = match &mut self.phase {
            Phase::Suspect(suspicion) => Some(suspicion),
            Phase::Replaying(replay) => replay.suspicion.as_mut(),
            Phase::Live => None,
        };
        if let Some(suspicion) = suspicion {
            suspicion.stale |= self.dirty;
        }
    }

    fn fill_before(&mut self, frame: Frame, from: u64, actions: &mut Actions) {
        self.next = Some(from);
        self.replay(Purpose::Fill, from, None, actions);
        self.live(frame, actions);
    }

    /// A replayed frame in its place, or beyond it when the engine no longer has what is missing.
    fn fill(&mut self, frame: Frame, now: Instant, actions: &mut Actions) {
        match self.next {
            Some(next) if frame.sequence < next => {
                let kept = self.digest_kept(frame.sequence);
                if kept.is_some_and(|digest| digest != digest_of(&frame.payload)) {
                    // The engine restarted under this replay; a rebuild will find out the rest.
                    actions.push(Action::StopReplay);
                    self.suspect(now, actions);
                }
            }
            Some(next) if frame.sequence > next => {
                self.clear(ClearCause::Lost, actions);
                self.apply(frame, true, actions);
            }
            _ => self.apply(frame, true, actions),
        }
    }

    /// The engine's history is not the one we know: forget it and read the new one from 0.
    fn start_over(&mut self, actions: &mut Actions) {
        let held = match std::mem::replace(&mut self.phase, Phase::Live) {
            Phase::Replaying(replay) => replay.held,
            Phase::Live | Phase::Suspect(_) => VecDeque::new(),
        };
        self.clear(ClearCause::Restart, actions);
        self.recent.clear();
        self.next = Some(0);
        self.replay(Purpose::Fill, 0, None, actions);
        for frame in held {
            self.live(frame, actions);
        }
    }

    /// A replay is complete: go on with the frames that waited. Numbers that neither brought are lost.
    fn resume(&mut self, now: Instant, actions: &mut Actions) {
        let Phase::Replaying(replay) = std::mem::replace(&mut self.phase, Phase::Live) else {
            return;
        };
        if let (Some(first), Some(next)) = (replay.held.front(), self.next)
            && first.sequence > next
        {
            self.clear(ClearCause::Lost, actions);
            self.next = Some(first.sequence);
        }
        self.drain(replay.held, now, actions);
    }

    fn suspect(&mut self, now: Instant, actions: &mut Actions) {
        let Phase::Replaying(replay) = std::mem::replace(&mut self.phase, Phase::Live) else {
            return;
        };
        self.phase = Phase::Suspect(self.suspicion(replay.suspicion, now));
        self.drain(replay.held, now, actions);
    }

    /// A first suspicion, or one attempt more of an earlier one.
    fn suspicion(&self, earlier: Option<Suspicion>, now: Instant) -> Suspicion {
        let attempts = earlier
            .map_or(0, |earlier| earlier.attempts)
            .saturating_add(1);
        let back_off = self
            .limits
            .retry_min
            .saturating_mul(1 << attempts.saturating_sub(1).min(16))
            .min(self.limits.retry_max);
        Suspicion {
            since: earlier.map_or(now, |earlier| earlier.since),
            retry_at: now + back_off,
            attempts,
            stale: earlier.map_or(self.dirty, |earlier| earlier.stale),
        }
    }

    /// Frames that waited behind a replay. One that the replay went past is not taken for a restart,
    /// or an engine with a short memory would be asked for ever; one that contradicts the replay
    /// makes the rank suspect, because either may be the older.
    fn drain(&mut self, held: VecDeque<Frame>, now: Instant, actions: &mut Actions) {
        for frame in held {
            let is_past = self.next.is_some_and(|next| frame.sequence < next);
            if matches!(self.phase, Phase::Replaying(_)) || !is_past {
                self.live(frame, actions);
                continue;
            }
            actions.push(Action::Saw(Sight::Duplicate));
            let kept = self.digest_kept(frame.sequence);
            let contradicts = kept.is_some_and(|digest| digest != digest_of(&frame.payload));
            if contradicts && matches!(self.phase, Phase::Live) {
                self.phase = Phase::Suspect(self.suspicion(None, now));
            }
        }
    }

    fn replay(
        &mut self,
        purpose: Purpose,
        from: u64,
        suspicion: Option<Suspicion>,
        actions: &mut Actions,
    ) {
        self.phase = Phase::Replaying(Replay {
            purpose,
            held: VecDeque::new(),
            held_bytes: 0,
            suspicion,
        });
        actions.push(Action::Replay { from });
    }

    fn apply(&mut self, frame: Frame, replayed: bool, actions: &mut Actions) {
        // `u64::MAX` is the end marker and never a frame's number, so this does not overflow.
        self.next = Some(frame.sequence.saturating_add(1));
        if self.recent.len() == REMEMBERED_FRAMES {
            self.recent.pop_front();
        }
        self.recent
            .push_back((frame.sequence, digest_of(&frame.payload)));
        self.dirty = true;
        actions.push(Action::Apply { frame, replayed });
    }

    fn clear(&mut self, cause: ClearCause, actions: &mut Actions) {
        if std::mem::take(&mut self.dirty) {
            actions.push(Action::Clear(cause));
        }
    }

    /// Back to the state before the first frame.
    fn forget(&mut self, cause: ClearCause, actions: &mut Actions) {
        if matches!(self.phase, Phase::Replaying(_)) {
            actions.push(Action::StopReplay);
        }
        self.phase = Phase::Live;
        self.next = None;
        self.recent.clear();
        self.clear(cause, actions);
    }

    fn digest_kept(&self, sequence: u64) -> Option<u64> {
        let at = self
            .recent
            .binary_search_by_key(&sequence, |(number, _)| *number)
            .ok()?;
        Some(self.recent[at].1)
    }
}

fn digest_of(payload: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(payload);
    hasher.finish()
}

#[cfg(test)]
mod tests;
