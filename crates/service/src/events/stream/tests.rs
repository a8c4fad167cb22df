//! The rules of a stream one by one; all of them against an engine with faults are in `model`. No socket, no clock.

mod model;

use std::time::Duration;

use bytes::Bytes;

use super::*;

fn limits() -> Limits {
    Limits {
        suspect: Duration::from_mins(1),
        retry_min: Duration::from_secs(1),
        retry_max: Duration::from_secs(30),
        held_frames: 4,
        held_bytes: 1 << 20,
    }
}

fn frame(sequence: u64) -> Frame {
    other(sequence, "first life")
}

/// The same number with another payload.
fn other(sequence: u64, life: &str) -> Frame {
    Frame {
        sequence,
        payload: Bytes::from(format!("{life} {sequence}")),
    }
}

/// A stream with its clock, and what its actions came to.
struct Rig {
    stream: Stream,
    now: Instant,
    actions: Actions,
}

impl Rig {
    fn new(can_replay: bool) -> Self {
        let stream = Stream::new(can_replay, limits());
        let mut rig = Self {
            stream,
            now: Instant::now(),
            actions: Vec::new(),
        };
        rig.stream.connected(rig.now, &mut rig.actions);
        rig
    }

    /// With frames 0, 1, .. applied.
    fn after(can_replay: bool, frames: u64) -> Self {
        let mut rig = Self::new(can_replay);
        for sequence in 0..frames {
            rig.stream.live(frame(sequence), rig.now, &mut rig.actions);
        }
        rig.actions.clear();
        rig
    }

    fn live(&mut self, frame: Frame) -> Vec<String> {
        self.stream.live(frame, self.now, &mut self.actions);
        self.told()
    }

    fn replayed(&mut self, frame: Frame) -> Vec<String> {
        self.stream.replayed(frame, self.now, &mut self.actions);
        self.told()
    }

    fn ended(&mut self, end: ReplayEnd) -> Vec<String> {
        self.stream.replay_ended(end, self.now, &mut self.actions);
        self.told()
    }

    fn connected(&mut self) -> Vec<String> {
        self.stream.connected(self.now, &mut self.actions);
        self.told()
    }

    /// The connection breaks and is made again.
    fn reconnected(&mut self) -> Vec<String> {
        self.stream.disconnected(self.now, &mut self.actions);
        self.connected()
    }

    fn read_again(&mut self) -> Vec<String> {
        self.stream.read_again(self.now, &mut self.actions);
        self.told()
    }

    fn woke_after(&mut self, wait: Duration) -> Vec<String> {
        self.now += wait;
        self.stream.woke(self.now, &mut self.actions);
        self.told()
    }

    /// To the next moment that it asks for: the seconds until then.
    fn next_wake(&mut self) -> (u64, Vec<String>) {
        let wait = self.stream.wake_at().unwrap() - self.now;
        (wait.as_secs(), self.woke_after(wait))
    }

    /// The actions so far in short: `+3` applied, `*3` applied from a replay.
    fn told(&mut self) -> Vec<String> {
        self.actions
            .drain(..)
            .map(|action| match action {
                Action::Apply {
                    frame,
                    replayed: false,
                } => format!("+{}", frame.sequence),
                Action::Apply {
                    frame,
                    replayed: true,
                } => format!("*{}", frame.sequence),
                Action::Clear(cause) => format!("clear {}", cause.as_str()),
                Action::Doubt => "doubt".to_owned(),
                Action::Trust => "trust".to_owned(),
                Action::DropDoubted => "drop".to_owned(),
                Action::Replay { from } => format!("replay {from}"),
                Action::StopReplay => "stop".to_owned(),
                Action::Saw(sight) => format!("{sight:?}").to_lowercase(),
            })
            .collect()
    }
}

const COMPLETE: ReplayEnd = ReplayEnd::Complete;
const FAILED: ReplayEnd = ReplayEnd::Failed;

#[test]
fn frames_in_order_are_applied() {
    let mut rig = Rig::new(true);
    assert_eq!(rig.live(frame(0)), ["+0"]);
    assert_eq!(rig.live(frame(1)), ["+1"]);
}

#[test]
fn a_gap_asks_for_what_is_missing_and_live_frames_wait_behind_it() {
    let mut rig = Rig::after(true, 1);
    assert_eq!(rig.live(frame(3)), ["gap", "replay 1"]);
    assert!(rig.live(frame(4)).is_empty());
    assert_eq!(rig.replayed(frame(1)), ["*1"]);
    assert_eq!(rig.replayed(frame(2)), ["*2"]);
    assert_eq!(rig.ended(COMPLETE), ["+3", "+4"]);
    assert_eq!(rig.live(frame(5)), ["+5"]);
}

#[test]
fn a_replay_that_goes_on_to_the_newest_makes_the_waiting_frames_duplicates() {
    let mut rig = Rig::after(true, 1);
    rig.live(frame(2));
    assert_eq!(rig.replayed(frame(1)), ["*1"]);
    assert_eq!(rig.replayed(frame(2)), ["*2"]);
    assert_eq!(rig.replayed(frame(3)), ["*3"]);
    assert_eq!(rig.ended(COMPLETE), ["duplicate"]);
    assert_eq!(rig.live(frame(3)), ["duplicate"]);
    assert_eq!(rig.live(frame(4)), ["+4"]);
}

#[test]
fn a_first_frame_above_zero_asks_for_the_history() {
    let mut rig = Rig::new(true);
    assert_eq!(rig.live(frame(2)), ["replay 0"]);
    assert_eq!(rig.replayed(frame(0)), ["*0"]);
    assert_eq!(rig.replayed(frame(1)), ["*1"]);
    assert_eq!(
        rig.ended(COMPLETE),
        ["drop", "+2"],
        "of what only peers said"
    );
}

#[test]
fn a_first_frame_above_zero_is_a_beginning_without_a_replay_endpoint() {
    let mut rig = Rig::new(false);
    assert_eq!(rig.live(frame(7)), ["+7"]);
    assert_eq!(rig.live(frame(8)), ["+8"]);
}

#[test]
fn without_a_replay_endpoint_a_gap_makes_the_rank_suspect() {
    let mut rig = Rig::after(false, 2);
    assert_eq!(rig.live(frame(3)), ["gap", "doubt", "+3"]);
    assert_eq!(rig.live(frame(4)), ["+4"]);
    assert!(rig.stream.is_suspect());
    assert!(rig.woke_after(Duration::from_secs(59)).is_empty());
    assert_eq!(rig.woke_after(Duration::from_secs(1)), ["drop"]);
    assert!(!rig.stream.is_suspect());
    assert_eq!(rig.stream.wake_at(), None);
}

#[test]
fn trouble_while_suspect_prolongs_no_doubt_and_is_doubted_after_it() {
    let mut rig = Rig::after(false, 2);
    rig.live(frame(3));
    rig.woke_after(Duration::from_secs(30));
    assert_eq!(rig.live(frame(5)), ["gap", "+5"]);
    assert_eq!(rig.woke_after(Duration::from_secs(30)), ["drop", "doubt"]);
    assert_eq!(rig.woke_after(Duration::from_mins(1)), ["drop"]);
    assert!(!rig.stream.is_suspect());
}

#[test]
fn history_that_the_engine_no_longer_has_clears_what_hung_on_it() {
    let mut rig = Rig::after(true, 2);
    rig.live(frame(9));
    assert_eq!(rig.replayed(frame(6)), ["clear lost", "*6"]);
    assert_eq!(rig.replayed(frame(7)), ["*7"]);
    assert_eq!(rig.replayed(frame(8)), ["*8"]);
    assert_eq!(rig.ended(COMPLETE), ["+9"]);
    let mut empty = Rig::after(true, 2);
    empty.live(frame(9));
    assert_eq!(empty.ended(COMPLETE), ["clear lost", "+9"]);
}

#[test]
fn an_engine_without_history_is_not_asked_again_and_again() {
    let mut rig = Rig::new(true);
    assert_eq!(rig.live(frame(5)), ["replay 0"]);
    assert_eq!(rig.ended(COMPLETE), ["+5"]);
    assert_eq!(rig.live(frame(6)), ["+6"]);
}

#[test]
fn a_number_seen_before_is_a_duplicate_or_a_restart_by_its_payload() {
    let mut rig = Rig::after(false, 3);
    assert_eq!(rig.live(frame(1)), ["duplicate"]);
    assert_eq!(rig.live(other(0, "second life")), ["clear restart", "+0"]);
    assert_eq!(rig.live(other(1, "second life")), ["+1"]);
}

#[test]
fn a_restarted_engine_may_begin_as_it_began_before() {
    let mut rig = Rig::after(false, 5);
    assert_eq!(rig.live(frame(0)), ["duplicate"]);
    assert_eq!(rig.live(frame(1)), ["duplicate"]);
    assert_eq!(
        rig.live(other(2, "second life")),
        ["clear restart", "+0", "+1", "+2"]
    );
    let mut duplicates = Rig::after(false, 5);
    duplicates.live(frame(0));
    duplicates.live(frame(3));
    let restart = duplicates.live(other(4, "second life"));
    assert_eq!(
        restart,
        ["clear restart", "+4"],
        "what came before is not known to be of it"
    );
}

#[test]
fn a_restart_seen_late_is_read_from_its_beginning() {
    let mut rig = Rig::after(true, 5);
    assert_eq!(
        rig.live(other(2, "second life")),
        ["clear restart", "replay 0"]
    );
    assert_eq!(rig.replayed(other(0, "second life")), ["*0"]);
    assert_eq!(rig.replayed(other(1, "second life")), ["*1"]);
    assert_eq!(rig.ended(COMPLETE), ["drop", "+2"]);
}

#[test]
fn a_number_too_old_to_be_remembered_is_a_restart() {
    let mut rig = Rig::after(false, 3 + REMEMBERED_FRAMES as u64);
    assert_eq!(rig.live(frame(0)), ["clear restart", "+0"]);
}

#[test]
fn a_replay_that_fails_lets_live_frames_go_on_and_is_tried_again_later() {
    let mut rig = Rig::after(true, 1);
    rig.live(frame(5));
    assert_eq!(rig.ended(FAILED), ["doubt", "gap", "+5"]);
    assert!(rig.stream.is_suspect());
    assert_eq!(rig.live(frame(6)), ["+6"]);
    assert!(rig.woke_after(Duration::from_millis(900)).is_empty());
    assert_eq!(rig.woke_after(Duration::from_millis(100)), ["replay 0"]);
    assert_eq!(
        rig.live(frame(7)),
        ["+7"],
        "live frames go on until the first answer"
    );
    assert_eq!(rig.replayed(frame(0)), ["clear rebuild", "*0"]);
    assert!(rig.live(frame(8)).is_empty());
    for sequence in 1..8 {
        assert_eq!(rig.replayed(frame(sequence)), [format!("*{sequence}")]);
    }
    assert_eq!(rig.ended(COMPLETE), ["drop", "+8"]);
    assert!(!rig.stream.is_suspect());
    assert_eq!(rig.stream.wake_at(), None);
}

#[test]
fn what_is_not_confirmed_in_time_is_forgotten() {
    let mut rig = Rig::after(true, 1);
    rig.live(frame(5));
    rig.ended(FAILED);
    let mut waits = Vec::new();
    let outcome = loop {
        let (wait, told) = rig.next_wake();
        if told != ["replay 0"] {
            break told;
        }
        waits.push(wait);
        assert_eq!(rig.ended(FAILED), [""; 0]);
    };
    assert_eq!(waits, [1, 2, 4, 8, 16]);
    // Frame 5 itself was followed by no gap, so what it said is not doubted.
    assert_eq!(outcome, ["drop"]);
    assert!(!rig.stream.is_suspect());
    assert_eq!(rig.live(frame(6)), ["+6"]);
}

#[test]
fn a_rebuild_that_fails_for_long_is_tried_ever_more_rarely_but_never_given_up() {
    let mut rig = Rig::new(true);
    rig.live(frame(5));
    assert_eq!(rig.ended(FAILED), ["gap", "+5"]);
    let mut waits = Vec::new();
    for _ in 0..11 {
        let (wait, told) = rig.next_wake();
        waits.push(wait);
        assert_eq!(told, ["replay 0"]);
        assert_eq!(rig.ended(FAILED), [""; 0]);
        assert!(!rig.stream.is_suspect(), "nothing new is missing");
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 30, 64, 128, 256, 480, 480]);
    assert_eq!(rig.next_wake().1, ["replay 0"]);
    assert_eq!(rig.replayed(frame(0)), ["clear rebuild", "*0"]);
    for sequence in 1..6 {
        rig.replayed(frame(sequence));
    }
    assert_eq!(rig.ended(COMPLETE), ["drop"]);
    assert_eq!(rig.stream.wake_at(), None);
}

#[test]
fn a_gap_ends_a_long_pause_before_the_next_rebuild() {
    let mut rig = Rig::new(true);
    rig.live(frame(5));
    rig.ended(FAILED);
    for _ in 0..9 {
        rig.next_wake();
        rig.ended(FAILED);
    }
    assert_eq!(rig.live(frame(7)), ["gap", "doubt", "+7"]);
    assert_eq!(rig.next_wake(), (1, vec!["replay 0".to_owned()]));
    rig.ended(FAILED);
    assert_eq!(rig.live(frame(9)), ["gap", "+9"]);
    assert_eq!(rig.next_wake().0, 2, "the pauses grow anew");
}

#[test]
fn a_rebuild_that_breaks_off_leaves_what_it_brought_in_doubt() {
    let mut rig = Rig::after(true, 1);
    rig.live(frame(5));
    rig.ended(FAILED);
    rig.next_wake();
    assert_eq!(rig.replayed(frame(0)), ["clear rebuild", "*0"]);
    assert_eq!(rig.ended(FAILED), ["doubt"]);
    assert_eq!(rig.next_wake(), (2, vec!["replay 0".to_owned()]));
}

#[test]
fn missing_history_alone_makes_nothing_suspect() {
    let mut rig = Rig::new(true);
    rig.live(frame(5));
    assert_eq!(rig.ended(FAILED), ["gap", "+5"]);
    assert!(!rig.stream.is_suspect());
    assert_eq!(rig.woke_after(Duration::from_mins(1)), ["replay 0"]);
    assert!(!rig.stream.is_suspect());
}

#[test]
fn a_gap_while_a_rebuild_is_due_makes_the_rank_suspect() {
    let mut rig = Rig::new(true);
    rig.live(frame(5));
    rig.ended(FAILED);
    assert_eq!(rig.live(frame(9)), ["gap", "doubt", "+9"]);
    assert!(rig.stream.is_suspect());
    assert_eq!(rig.woke_after(Duration::from_mins(1)), ["drop", "replay 0"]);
}

#[test]
fn a_waiting_frame_that_contradicts_its_replay_makes_the_rank_suspect() {
    let mut rig = Rig::after(true, 1);
    rig.live(other(2, "second life"));
    rig.replayed(frame(1));
    rig.replayed(frame(2));
    assert_eq!(rig.ended(COMPLETE), ["duplicate", "doubt"]);
    assert!(rig.stream.is_suspect());
    assert_eq!(rig.woke_after(Duration::from_secs(1)), ["replay 0"]);
}

#[test]
fn a_new_connection_makes_the_rank_suspect_where_nothing_can_be_asked() {
    let mut rig = Rig::after(false, 3);
    assert_eq!(rig.reconnected(), ["doubt"]);
    assert_eq!(rig.live(frame(3)), ["+3"]);
    assert_eq!(rig.woke_after(Duration::from_mins(1)), ["drop"]);
    let mut restarted = Rig::after(false, 3);
    restarted.reconnected();
    let first = restarted.live(other(0, "second life"));
    assert_eq!(first, ["clear restart", "+0"]);
    assert!(!restarted.stream.is_suspect());
}

#[test]
fn a_new_connection_goes_on_where_the_last_frame_is_unchanged() {
    let mut rig = Rig::after(true, 3);
    assert_eq!(rig.reconnected(), ["doubt", "replay 2"]);
    assert!(rig.live(frame(5)).is_empty());
    assert!(rig.stream.is_suspect());
    assert_eq!(rig.replayed(frame(2)), ["trust"]);
    assert!(!rig.stream.is_suspect());
    assert_eq!(rig.replayed(frame(3)), ["*3"]);
    assert_eq!(rig.replayed(frame(4)), ["*4"]);
    assert_eq!(rig.ended(COMPLETE), ["+5"]);
}

#[test]
fn a_new_connection_to_a_restarted_engine_starts_over() {
    let second = |sequence| other(sequence, "second life");
    let mut longer = Rig::after(true, 3);
    longer.connected();
    assert_eq!(longer.replayed(second(2)), ["clear restart", "replay 0"]);
    let mut shorter = Rig::after(true, 3);
    shorter.connected();
    assert_eq!(shorter.ended(COMPLETE), ["clear restart", "replay 0"]);
    for rig in [&mut longer, &mut shorter] {
        assert_eq!(rig.replayed(second(0)), ["*0"]);
        assert_eq!(rig.ended(COMPLETE), ["drop"]);
        assert_eq!(rig.live(second(1)), ["+1"]);
    }
}

#[test]
fn a_restart_under_a_replay_is_rebuilt() {
    let mut rig = Rig::after(true, 3);
    rig.live(frame(5));
    assert_eq!(
        rig.replayed(other(0, "second life")),
        ["stop", "doubt", "gap", "+5"]
    );
    assert!(rig.stream.is_suspect());
    assert_eq!(rig.woke_after(Duration::from_secs(1)), ["replay 0"]);
    assert_eq!(
        rig.replayed(other(0, "second life")),
        ["clear rebuild", "*0"]
    );
}

#[test]
fn an_engine_that_stays_away_is_forgotten() {
    let mut rig = Rig::after(true, 3);
    rig.live(frame(7));
    rig.stream.unreachable(&mut rig.actions);
    assert_eq!(rig.told(), ["stop", "clear unreachable"]);
    assert_eq!(rig.connected(), [""; 0]);
    assert_eq!(rig.live(frame(8)), ["replay 0"]);
}

#[test]
fn frames_that_wait_are_bounded_and_none_is_dropped() {
    let mut rig = Rig::after(true, 1);
    for sequence in 2..6 {
        assert!(!rig.stream.is_holding_full());
        rig.live(frame(sequence));
    }
    assert!(rig.stream.is_holding_full());
    rig.replayed(frame(1));
    assert_eq!(rig.ended(COMPLETE), ["+2", "+3", "+4", "+5"]);
    assert!(!rig.stream.is_holding_full());
}

#[test]
fn what_was_found_wrong_is_doubted_and_replaced_by_a_replay_from_the_first_number() {
    let mut rig = Rig::after(true, 3);
    assert_eq!(rig.read_again(), ["doubt", "replay 0"]);
    assert_eq!(rig.live(frame(3)), ["+3"], "until there is an answer");
    assert_eq!(rig.replayed(frame(0)), ["clear rebuild", "*0"]);
    assert_eq!(rig.replayed(frame(1)), ["*1"]);
    assert!(rig.live(frame(4)).is_empty());
    assert_eq!(rig.replayed(frame(2)), ["*2"]);
    assert_eq!(rig.replayed(frame(3)), ["*3"]);
    assert_eq!(rig.ended(COMPLETE), ["drop", "+4"]);
    assert!(!rig.stream.is_suspect());
}

#[test]
fn what_was_found_wrong_and_cannot_be_read_again_is_forgotten() {
    let mut rig = Rig::after(false, 3);
    assert_eq!(rig.read_again(), ["clear wrong"]);
    assert_eq!(rig.live(frame(3)), ["+3"]);
    assert_eq!(rig.live(frame(5)), ["gap", "doubt", "+5"]);
}

#[test]
fn a_replay_under_way_is_not_interrupted_to_read_again() {
    let mut rig = Rig::after(true, 1);
    rig.live(frame(2));
    assert!(rig.read_again().is_empty());
    assert_eq!(rig.replayed(frame(1)), ["*1"]);
    assert_eq!(rig.ended(COMPLETE), ["+2"]);
}

#[test]
fn a_reading_that_fails_is_tried_again() {
    let mut rig = Rig::after(true, 2);
    rig.read_again();
    assert!(rig.ended(FAILED).is_empty());
    assert!(rig.stream.is_suspect());
    assert_eq!(rig.woke_after(Duration::from_secs(1)), ["replay 0"]);
}

#[test]
fn a_reading_that_a_lost_connection_interrupts_before_the_first_frame_is_begun_again() {
    let mut rig = Rig::new(true);
    assert_eq!(rig.read_again(), ["replay 0"]);
    assert_eq!(rig.reconnected(), ["replay 0"]);
}
