//! Times events, decoded ones with names and block hashes: CPU of all threads of a side.

use crate::index::{Ours, Peer, Published, Trees, compare, print_who_knows_own_names};
use crate::inputs::{EVENT_BLOCKS, Event, Inputs, Kind, Shape};
use crate::report::{cpu, own_cpu, quantile, verdict_of_many};

/// CPU seconds of one turn of each side.
struct Pair {
    ours: f64,
    peer: f64,
}

pub(crate) fn run(workers: &[usize], blocks: &[usize]) {
    println!(
        "events, million blocks per second of CPU: ours / peer, medians; ratios of pairs of turns: median [quartiles]"
    );
    for workers in workers {
        for blocks in blocks {
            row(*workers, *blocks, true, Peer::new);
        }
    }
    print_who_knows_own_names();
    for workers in workers {
        for blocks in blocks {
            row(*workers, *blocks, false, || Trees::one_each(*workers));
        }
    }
}

fn row<P: Published>(workers: usize, blocks: usize, same_names: bool, new: impl Fn() -> P) {
    let inputs = Inputs::new(Shape {
        workers,
        blocks,
        system_owners: usize::MAX,
        tail_owners: 1,
        tail_entries: 600_000,
        same_names,
    });
    let (names, limit) = if same_names {
        ("same names", [0.5, 0.2])
    } else {
        ("own names", [1.0, 1.0])
    };
    // What is short is taken more often.
    let kinds = [("bulk", EVENT_BLOCKS, 25), ("one by one", 1, 9)];
    for ((kind, size, repeats), limit) in kinds.into_iter().zip(limit) {
        let (stores, removals) = (inputs.stores(size), inputs.removals(size));
        let mut figures: [Vec<Pair>; 2] = Default::default();
        for repeat in 0..repeats {
            let mut ours = Ours::new(workers);
            let mut peer = new();
            let ours_first = repeat % 2 == 0;
            figures[0].push(pair(&mut ours, &mut peer, &stores, ours_first));
            if repeat == 0 {
                let prompts = inputs.prompts(Kind::Hit, 16);
                compare(&ours, &peer, &inputs, &prompts, true);
            }
            figures[1].push(pair(&mut ours, &mut peer, &removals, ours_first));
        }
        for (what, figures, events, limit) in [
            ("stored", &figures[0], &stores, limit),
            ("removed", &figures[1], &removals, 1.0),
        ] {
            let blocks_moved: usize = events.iter().map(Event::len).sum();
            let rate = |side: fn(&Pair) -> f64| {
                let mut times: Vec<f64> = figures.iter().map(side).collect();
                blocks_moved as f64 / quantile(&mut times, 0.5) / 1e6
            };
            let mut ratios: Vec<f64> = figures.iter().map(|pair| pair.ours / pair.peer).collect();
            println!(
                "{workers:>5} workers, {blocks:>5} blocks, {names}, {kind} {what}: {:>6.2} / {:>6.2}  time {}",
                rate(|pair| pair.ours),
                rate(|pair| pair.peer),
                verdict_of_many(&mut ratios, limit)
            );
        }
    }
}

/// CPU seconds that both sides need for the same events, one right after the other.
fn pair(ours: &mut Ours, peer: &mut impl Published, events: &[Event], ours_first: bool) -> Pair {
    let (of_ours, of_peer) = (Ours::events(events), Peer::events(events));
    if ours_first {
        let ours = seconds(own_cpu, || ours.apply(of_ours));
        let peer = seconds(cpu, || peer.apply(of_peer));
        Pair { ours, peer }
    } else {
        let peer = seconds(cpu, || peer.apply(of_peer));
        let ours = seconds(own_cpu, || ours.apply(of_ours));
        Pair { ours, peer }
    }
}

/// Seconds of `clock` that `work` takes, with the end of the events that it is given.
fn seconds(clock: fn() -> f64, work: impl FnOnce()) -> f64 {
    let start = clock();
    work();
    clock() - start
}

impl Event {
    fn len(&self) -> usize {
        self.blocks.len() + self.removed.len()
    }
}
