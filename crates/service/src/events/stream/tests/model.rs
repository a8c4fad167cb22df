//! A stream against an engine with seeded faults: loss, duplicates, restarts, replays that end early.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

/// An engine that stores and removes blocks, and remembers its last batches.
#[derive(Default)]
struct Engine {
    life: u64,
    next: u64,
    blocks: BTreeSet<u64>,
    buffer: BTreeMap<u64, Frame>,
}

impl Engine {
    fn step(&mut self, random: &mut StdRng, buffer_size: usize) -> Frame {
        let block = random.random_range(0..20_u64);
        let verb = if random.random_bool(0.6) {
            "store"
        } else {
            "remove"
        };
        if verb == "store" {
            self.blocks.insert(block);
        } else {
            self.blocks.remove(&block);
        }
        let payload = Bytes::from(format!("{verb} {block} {} {}", self.life, self.next));
        let frame = Frame {
            sequence: self.next,
            payload,
        };
        self.next += 1;
        self.buffer.insert(frame.sequence, frame.clone());
        if self.buffer.len() > buffer_size {
            self.buffer.pop_first();
        }
        frame
    }

    fn restart(&mut self) {
        *self = Self {
            life: self.life + 1,
            ..Self::default()
        };
    }
}

/// What the actions leave in the index.
#[derive(Default)]
struct Index {
    blocks: BTreeSet<u64>,
    doubted: BTreeSet<u64>,
    asked: Option<u64>,
}

impl Index {
    fn take(&mut self, actions: &mut Actions) {
        for action in actions.drain(..) {
            match action {
                Action::Apply { frame, .. } => {
                    let text = String::from_utf8(frame.payload.to_vec()).unwrap();
                    let mut words = text.split(' ');
                    let verb = words.next().unwrap();
                    let block = words.next().unwrap().parse().unwrap();
                    self.doubted.remove(&block);
                    if verb == "store" {
                        self.blocks.insert(block);
                    } else {
                        self.blocks.remove(&block);
                    }
                }
                Action::Clear(_) => {
                    self.blocks.clear();
                    self.doubted.clear();
                }
                Action::Doubt => self.doubted = self.blocks.clone(),
                Action::Trust => self.doubted.clear(),
                Action::DropDoubted => {
                    for block in std::mem::take(&mut self.doubted) {
                        self.blocks.remove(&block);
                    }
                }
                Action::Replay { from } => self.asked = Some(from),
                Action::StopReplay => self.asked = None,
                Action::Saw(_) => {}
            }
        }
    }
}

/// Answers the question that is open: in part, wholly or not at all.
fn answer(
    stream: &mut Stream,
    engine: &Engine,
    index: &mut Index,
    now: Instant,
    cut: Option<usize>,
) {
    let mut actions = Vec::new();
    let Some(from) = index.asked.take() else {
        return;
    };
    let wanted: Vec<Frame> = engine
        .buffer
        .range(from..)
        .map(|(_, frame)| frame.clone())
        .collect();
    let sent = cut.unwrap_or(wanted.len()).min(wanted.len());
    for frame in &wanted[..sent] {
        stream.replayed(frame.clone(), now, &mut actions);
        index.take(&mut actions);
        if index.asked.is_some() {
            return;
        }
    }
    let end = if cut.is_some() { FAILED } else { COMPLETE };
    stream.replay_ended(end, now, &mut actions);
    index.take(&mut actions);
}

fn run_faults(seed: u64, can_replay: bool) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut stream = Stream::new(can_replay, limits());
    let mut engine = Engine::default();
    let mut index = Index::default();
    let mut actions = Vec::new();
    let mut now = Instant::now();
    let buffer_size = if random.random_bool(0.5) {
        usize::MAX
    } else {
        8
    };
    stream.connected(now, &mut actions);
    for _ in 0..random.random_range(1..120) {
        now += Duration::from_millis(random.random_range(0..2_000));
        match random.random_range(0..100) {
            0..4 => {
                stream.disconnected(now, &mut actions);
                index.asked = None;
                engine.restart();
                stream.connected(now, &mut actions);
            }
            4..8 => {
                stream.disconnected(now, &mut actions);
                index.asked = None;
                stream.connected(now, &mut actions);
            }
            8..30 => {
                let cut = random.random_bool(0.3).then(|| random.random_range(0..6));
                answer(&mut stream, &engine, &mut index, now, cut);
            }
            30..40 => stream.woke(now, &mut actions),
            98.. => stream.read_again(now, &mut actions),
            event => {
                let frame = engine.step(&mut random, buffer_size);
                if event < 90 {
                    stream.live(frame.clone(), now, &mut actions);
                }
                if event < 50 {
                    stream.live(frame, now, &mut actions);
                }
            }
        }
        index.take(&mut actions);
    }
    let mut quiet = Quiet {
        stream,
        engine,
        index,
        now,
        buffer_size,
    };
    quiet.settle(&mut random, Duration::from_secs(5));
    let stale = quiet.index.blocks.difference(&quiet.engine.blocks);
    let stale: Vec<_> = stale.collect();
    assert!(
        stale.is_empty(),
        "seed {seed}: believed but not held: {stale:?}"
    );
    if can_replay && buffer_size == usize::MAX {
        quiet.settle(&mut random, Duration::from_secs(10));
        let Quiet { engine, index, .. } = quiet;
        assert_eq!(index.blocks, engine.blocks, "seed {seed}");
    }
}

/// Nothing is lost any more, questions are answered, timers fire.
struct Quiet {
    stream: Stream,
    engine: Engine,
    index: Index,
    now: Instant,
    buffer_size: usize,
}

impl Quiet {
    fn settle(&mut self, random: &mut StdRng, step: Duration) {
        let mut actions = Vec::new();
        for _ in 0..40 {
            self.now += step;
            let frame = self.engine.step(random, self.buffer_size);
            self.stream.live(frame, self.now, &mut actions);
            self.index.take(&mut actions);
            self.answer_all();
            self.stream.woke(self.now, &mut actions);
            self.index.take(&mut actions);
        }
        self.answer_all();
    }

    fn answer_all(&mut self) {
        while self.index.asked.is_some() {
            answer(
                &mut self.stream,
                &self.engine,
                &mut self.index,
                self.now,
                None,
            );
        }
    }
}

#[test]
fn after_any_faults_nothing_stale_is_believed_and_a_full_history_is_found_again() {
    println!("seeds 0..4000");
    for seed in 0..4_000 {
        run_faults(seed, seed % 4 != 0);
    }
}

#[test]
fn a_rebuild_that_fails_longer_than_the_suspect_time_still_finds_the_full_history() {
    for seed in [19_739, 25_805, 44_747, 48_265] {
        run_faults(seed, true);
    }
}
