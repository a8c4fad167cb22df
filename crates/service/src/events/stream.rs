//! The state of one numbered event stream: what to apply, what to ask for again, when to doubt or
//! forget.
//!
//! Sans-IO: frames, the outcome of replays and the time come in, actions go out. It opens no socket,
//! decodes no payload and knows no index. The rules:
//!
//! - A gap is filled by a replay from the missing number; live frames wait behind it, in order.
//! - A lost connection makes the rank *suspect*. A replay that shows the last frame unchanged ends
//!   that; one that shows another frame, or none, is a restart.
//! - A gap that no replay fills makes the rank suspect too: live frames go on at once, and a rebuild
//!   from number 0 is tried with back-off until one succeeds, where there is a replay endpoint.
//! - What is suspect counts until the time is up. What the engine names meanwhile is confirmed; the
//!   rest is dropped. New trouble meanwhile starts a second round and prolongs no first one.
//! - A number that was seen is a duplicate if its payload is the one kept for it, else a restart.
//! - A payload that cannot be decoded has still used its number, so it never looks like a gap.

mod action;

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::time::Instant;

use super::wire::Frame;

pub(super) use action::{Action, Actions, Limits, ReplayEnd};
pub(crate) use action::{ClearCause, Sight};

/// Frames whose digest is remembered, to tell a duplicate from a restart.
const REMEMBERED_FRAMES: usize = 1024;
/// Duplicates that are kept until it shows that they were none.
const ECHOED_FRAMES: usize = 64;
/// Numbers of other publishers that one replay may use.
const FOREIGN_FRAMES: usize = 16_384;
/// By how much longer than `retry_max` a rebuild is left alone that has failed for the suspect time:
/// one that breaks off has cleared what live frames said.
const LATE_PAUSES: u32 = 16;

#[derive(Debug)]
enum Phase {
    Live,
    Replaying(Replay),
    /// A replay failed; a rebuild is due, and is tried until one succeeds.
    Waiting {
        retry_at: Instant,
    },
}

#[derive(Debug)]
struct Replay {
    purpose: Purpose,
    /// It began with number 0, so it names all that the engine holds.
    is_whole: bool,
    /// Numbers that frames of other publishers used, in order.
    foreign: VecDeque<u64>,
    held: VecDeque<Frame>,
    held_bytes: usize,
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

/// A replay failed, and none has succeeded since.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    since: Instant,
    attempts: u32,
}

/// Blocks that may be stale.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    since: Instant,
    /// Frames are missing, so that no frame that is unchanged can end it.
    lost: bool,
    /// Something was applied since, which is not doubted.
    applied: bool,
    /// There was new trouble since: what was applied before it is to be doubted next, and whether
    /// frames are missing there.
    again: Option<bool>,
}

#[derive(Debug)]
pub(super) struct Stream {
    can_replay: bool,
    limits: Limits,
    phase: Phase,
    trouble: Option<Trouble>,
    doubt: Option<Doubt>,
    /// The number expected next; `None` before the first frame.
    next: Option<u64>,
    /// Numbers applied last, ascending, with their payload's digest.
    recent: VecDeque<(u64, u64)>,
    /// Something was applied since the last clear.
    dirty: bool,
    connected_before: bool,
    /// Duplicates from number 0 on: the beginning of another life, if what follows them is.
    echo: Vec<Frame>,
}

impl Stream {
    pub(super) fn new(can_replay: bool, limits: Limits) -> Self {
        Self {
            can_replay,
            limits,
            phase: Phase::Live,
            trouble: None,
            doubt: None,
            next: None,
            recent: VecDeque::new(),
            dirty: false,
            connected_before: false,
            echo: Vec::new(),
        }
    }

    /// A connection was made; frames that follow come from it.
    pub(super) fn connected(&mut self, now: Instant, actions: &mut Actions) {
        let first = !std::mem::replace(&mut self.connected_before, true);
        if first {
            return;
        }
        if self.doubt.is_none() {
            self.start_doubt(false, now, actions);
        }
        if self.trouble.is_some() {
            self.replay(Purpose::Rebuild, 0, actions);
            return;
        }
        let Some(next) = self.next.filter(|_| self.can_replay) else {
            return;
        };
        match self.recent.back() {
            Some(&(sequence, digest)) => {
                self.replay(Purpose::Verify { sequence, digest }, sequence, actions);
            }
            None => self.replay(Purpose::Fill, next, actions),
        }
    }

    /// The connection is gone, and with it what the engine says until there is a new one.
    pub(super) fn disconnected(&mut self, now: Instant, actions: &mut Actions) {
        self.start_doubt(false, now, actions);
    }

    /// The engine stayed unreachable for the whole suspect time.
    pub(super) fn unreachable(&mut self, actions: &mut Actions) {
        self.forget(ClearCause::Unreachable, actions);
    }

    pub(super) fn live(&mut self, frame: Frame, now: Instant, actions: &mut Actions) {
        match &mut self.phase {
            Phase::Replaying(replay) if !matches!(replay.purpose, Purpose::Rebuild) => {
                replay.held_bytes = replay.held_bytes.saturating_add(frame.payload.len());
                replay.held.push_back(frame);
            }
            _ => self.accept(frame, now, actions),
        }
    }

    /// Whether live frames should stay in the socket until the replay under way ends.
    pub(super) fn is_holding_full(&self) -> bool {
        match &self.phase {
            Phase::Replaying(replay) => {
                replay.held.len() >= self.limits.held_frames
                    || replay.held_bytes >= self.limits.held_bytes
            }
            Phase::Live | Phase::Waiting { .. } => false,
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
                    self.verified(actions);
                } else {
                    self.start_over(now, actions);
                }
                return;
            }
            Purpose::Verify { .. } => replay.purpose = Purpose::Fill,
            Purpose::Rebuild => {
                replay.purpose = Purpose::Fill;
                self.clear(ClearCause::Rebuild, actions);
                self.recent.clear();
                self.next = Some(frame.sequence);
            }
        }
        self.fill(frame, now, actions);
    }

    /// A replayed frame that belongs to another publisher, or to another rank of this one: if it has
    /// the number that is due, that number may be used by it.
    pub(super) fn replayed_foreign(&mut self, sequence: u64) {
        if let Phase::Replaying(replay) = &mut self.phase
            && matches!(replay.purpose, Purpose::Fill)
            && self.next == Some(sequence)
            && replay.foreign.len() < FOREIGN_FRAMES
        {
            replay.foreign.push_back(sequence);
            self.next = Some(sequence.saturating_add(1));
        }
    }

    pub(super) fn replay_ended(&mut self, end: ReplayEnd, now: Instant, actions: &mut Actions) {
        let Phase::Replaying(replay) = &self.phase else {
            return;
        };
        if let Some(first) = replay.foreign.front() {
            // What nobody but others used at the end is still to come.
            let own = self.recent.back().map_or(*first, |(number, _)| number + 1);
            self.next = Some(own.max(*first));
        }
        match (end, replay.purpose) {
            (ReplayEnd::Complete, Purpose::Verify { .. }) => self.start_over(now, actions),
            (ReplayEnd::Complete, Purpose::Fill) => {
                if replay.is_whole {
                    actions.push(Action::DropDoubted);
                }
                self.resume(now, actions);
            }
            (ReplayEnd::Complete, Purpose::Rebuild) => {
                // The engine answered and holds nothing: nothing of what we hold can be confirmed.
                self.clear(ClearCause::Rebuild, actions);
                self.resume(now, actions);
            }
            (ReplayEnd::Failed, Purpose::Rebuild) => {
                // Live frames went on without it: there is nothing new to doubt.
                self.phase = Phase::Live;
                self.wait_for_rebuild(now);
            }
            (ReplayEnd::Failed, _) => self.suspect(now, actions),
        }
    }

    /// What is held has turned out to be wrong. It is doubted and read again from number 0 or, where no replay can be
    /// asked for, forgotten. A replay under way is left to end first.
    pub(super) fn read_again(&mut self, now: Instant, actions: &mut Actions) {
        if matches!(self.phase, Phase::Replaying(_)) {
            return;
        }
        if self.can_replay {
            self.start_doubt(true, now, actions);
            // A connection that is lost meanwhile must not end the reading.
            self.trouble.get_or_insert(Trouble {
                since: now,
                attempts: 0,
            });
            self.replay(Purpose::Rebuild, 0, actions);
        } else {
            self.clear(ClearCause::Wrong, actions);
        }
    }

    /// When `woke` must be called, if at all.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let due = match self.phase {
            Phase::Replaying(_) => return None,
            Phase::Live => None,
            Phase::Waiting { retry_at } => Some(retry_at),
        };
        let up = self.doubt.map(|doubt| doubt.since + self.limits.suspect);
        [due, up].into_iter().flatten().min()
    }

    pub(super) fn woke(&mut self, now: Instant, actions: &mut Actions) {
        if matches!(self.phase, Phase::Replaying(_)) {
            return;
        }
        if let Some(doubt) = self.doubt.filter(|doubt| self.is_over(doubt.since, now)) {
            self.doubt = None;
            actions.push(Action::DropDoubted);
            if let Some(lost) = doubt.again {
                self.start_doubt(lost, now, actions);
            }
        }
        if let Phase::Waiting { retry_at } = self.phase
            && now >= retry_at
        {
            self.replay(Purpose::Rebuild, 0, actions);
        }
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.doubt.is_some()
    }

    fn accept(&mut self, frame: Frame, now: Instant, actions: &mut Actions) {
        let is_steady = matches!(self.phase, Phase::Live);
        match self.next {
            None if frame.sequence == 0 || !self.can_replay || !is_steady => {
                self.apply(frame, false, actions);
            }
            None => self.fill_before(frame, 0, now, actions),
            Some(next) if frame.sequence == next => self.apply(frame, false, actions),
            Some(next) if frame.sequence > next => {
                actions.push(Action::Saw(Sight::Gap));
                if is_steady && self.can_replay {
                    self.fill_before(frame, next, now, actions);
                } else {
                    self.start_doubt(true, now, actions);
                    self.hasten(now);
                    self.apply(frame, false, actions);
                }
            }
            Some(_) if self.digest_kept(frame.sequence) == Some(digest_of(&frame.payload)) => {
                actions.push(Action::Saw(Sight::Duplicate));
                self.hear_echo(frame);
            }
            Some(_) => {
                let mut echo = std::mem::take(&mut self.echo);
                let follows = |last: &Frame| last.sequence + 1 == frame.sequence;
                if !echo.last().is_some_and(follows) {
                    echo.clear();
                }
                self.forget(ClearCause::Restart, actions);
                for frame in echo.into_iter().chain([frame]) {
                    self.live(frame, now, actions);
                }
            }
        }
    }

    /// A restarted engine may begin with the very frames it began with before.
    fn hear_echo(&mut self, frame: Frame) {
        let expected = self.echo.last().map_or(0, |last| last.sequence + 1);
        if frame.sequence != expected || self.echo.len() == ECHOED_FRAMES {
            self.echo.clear();
        }
        if frame.sequence == 0 || !self.echo.is_empty() {
            self.echo.push(frame);
        }
    }

    fn fill_before(&mut self, frame: Frame, from: u64, now: Instant, actions: &mut Actions) {
        self.next = Some(from);
        self.replay(Purpose::Fill, from, actions);
        self.live(frame, now, actions);
    }

    /// A replayed frame in its place, or beyond it when the engine no longer has what is missing.
    fn fill(&mut self, frame: Frame, now: Instant, actions: &mut Actions) {
        if let Phase::Replaying(replay) = &mut self.phase {
            replay.is_whole |= frame.sequence == 0 && self.next == Some(0);
            if let Some(used) = replay
                .foreign
                .iter()
                .position(|used| *used == frame.sequence)
            {
                // Another publisher's frame had the same number; those before it are not ours.
                replay.foreign.drain(..=used);
                self.apply(frame, true, actions);
                return;
            }
        }
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
    fn start_over(&mut self, now: Instant, actions: &mut Actions) {
        let held = match std::mem::replace(&mut self.phase, Phase::Live) {
            Phase::Replaying(replay) => replay.held,
            Phase::Live | Phase::Waiting { .. } => VecDeque::new(),
        };
        self.clear(ClearCause::Restart, actions);
        self.trouble = None;
        self.recent.clear();
        self.next = Some(0);
        self.replay(Purpose::Fill, 0, actions);
        for frame in held {
            self.live(frame, now, actions);
        }
    }

    /// A replay is complete: go on with the frames that waited. Numbers that neither brought are lost.
    fn resume(&mut self, now: Instant, actions: &mut Actions) {
        let Phase::Replaying(replay) = std::mem::replace(&mut self.phase, Phase::Live) else {
            return;
        };
        self.trouble = None;
        if let (Some(first), Some(next)) = (replay.held.front(), self.next)
            && first.sequence > next
        {
            self.clear(ClearCause::Lost, actions);
            self.next = Some(first.sequence);
        }
        self.drain(replay.held, now, actions);
    }

    /// A replay failed: what is held may be stale, live frames go on.
    fn suspect(&mut self, now: Instant, actions: &mut Actions) {
        let Phase::Replaying(replay) = std::mem::replace(&mut self.phase, Phase::Live) else {
            return;
        };
        self.start_doubt(true, now, actions);
        self.wait_for_rebuild(now);
        self.drain(replay.held, now, actions);
    }

    fn wait_for_rebuild(&mut self, now: Instant) {
        let trouble = self.trouble.get_or_insert(Trouble {
            since: now,
            attempts: 0,
        });
        let attempts = trouble.attempts.min(16);
        trouble.attempts = trouble.attempts.saturating_add(1);
        let longest = if self.trouble_is_old(now) {
            self.limits.retry_max.saturating_mul(LATE_PAUSES)
        } else {
            self.limits.retry_max
        };
        let back_off = self.limits.retry_min.saturating_mul(1 << attempts);
        self.phase = Phase::Waiting {
            retry_at: now + back_off.min(longest),
        };
    }

    /// New trouble ends a long pause: the rebuild is what can tell of it in time.
    fn hasten(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Waiting { .. }) && self.trouble_is_old(now) {
            self.trouble = None;
            self.wait_for_rebuild(now);
        }
    }

    fn trouble_is_old(&self, now: Instant) -> bool {
        self.trouble
            .is_some_and(|trouble| self.is_over(trouble.since, now))
    }

    fn is_over(&self, since: Instant, now: Instant) -> bool {
        now >= since + self.limits.suspect
    }

    /// Frames that waited behind a replay. One that the replay went past is not taken for a restart,
    /// or an engine with a short memory would be asked for ever; one that contradicts the replay
    /// makes the rank suspect, because either may be the older.
    fn drain(&mut self, held: VecDeque<Frame>, now: Instant, actions: &mut Actions) {
        for frame in held {
            let is_past = self.next.is_some_and(|next| frame.sequence < next);
            if matches!(self.phase, Phase::Replaying(_)) || !is_past {
                self.live(frame, now, actions);
                continue;
            }
            actions.push(Action::Saw(Sight::Duplicate));
            let kept = self.digest_kept(frame.sequence);
            let contradicts = kept.is_some_and(|digest| digest != digest_of(&frame.payload));
            if contradicts && matches!(self.phase, Phase::Live) {
                self.start_doubt(true, now, actions);
                self.wait_for_rebuild(now);
            }
        }
    }

    fn replay(&mut self, purpose: Purpose, from: u64, actions: &mut Actions) {
        self.phase = Phase::Replaying(Replay {
            purpose,
            is_whole: false,
            foreign: VecDeque::new(),
            held: VecDeque::new(),
            held_bytes: 0,
        });
        actions.push(Action::Replay { from });
    }

    fn apply(&mut self, frame: Frame, replayed: bool, actions: &mut Actions) {
        // `u64::MAX` is the end marker and never a frame's number, so this does not overflow.
        let after = frame.sequence.saturating_add(1);
        self.next = Some(self.next.map_or(after, |next| next.max(after)));
        if self.recent.len() == REMEMBERED_FRAMES {
            self.recent.pop_front();
        }
        self.recent
            .push_back((frame.sequence, digest_of(&frame.payload)));
        self.dirty = true;
        self.echo.clear();
        if let Some(doubt) = &mut self.doubt {
            doubt.applied = true;
        }
        actions.push(Action::Apply { frame, replayed });
    }

    /// Something may have been missed: what is held may be stale from now on.
    fn start_doubt(&mut self, lost: bool, now: Instant, actions: &mut Actions) {
        if !self.dirty {
            return;
        }
        match &mut self.doubt {
            Some(doubt) if doubt.applied => {
                doubt.again = Some(lost || doubt.again == Some(true));
            }
            Some(doubt) => doubt.lost |= lost,
            None => {
                self.doubt = Some(Doubt {
                    since: now,
                    lost,
                    applied: false,
                    again: None,
                });
                actions.push(Action::Doubt);
            }
        }
    }

    /// The engine's history up to the last frame is the one we know.
    fn verified(&mut self, actions: &mut Actions) {
        let Some(doubt) = &mut self.doubt else { return };
        if doubt.again == Some(false) {
            doubt.again = None;
        }
        if !doubt.lost && doubt.again.is_none() {
            self.doubt = None;
            actions.push(Action::Trust);
        }
    }

    fn clear(&mut self, cause: ClearCause, actions: &mut Actions) {
        self.doubt = None;
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
        self.trouble = None;
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
