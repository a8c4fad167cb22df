//! Times events, decoded ones with names and block hashes: CPU of all threads of a side.

use crate::index::{Ours, Peer, Published, Trees, compare, print_who_knows_own_names};
use crate::inputs::{EVENT_BLOCKS, Event, Inputs, Kind, Shape};
use crate::report::{cpu, verdict};

pub(crate) fn run(workers: &[usize], blocks: &[usize]) {
    println!("events, million blocks per second of CPU: ours / peer");
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
    let names = if same_names {
        "same names"
    } else {
        "own names"
    };
    for (kind, size, limit) in [("bulk", EVENT_BLOCKS, 0.5), ("one by one", 1, 0.2)] {
        let (stores, removals) = (inputs.stores(size), inputs.removals(size));
        let limit = if same_names { limit } else { 1.0 };
        let mut figures = [Vec::new(), Vec::new()];
        for repeat in 0..3 {
            let mut ours = Ours::new(workers);
            let mut peer = new();
            let sides = [
                seconds(
                    || ours.apply(Ours::events(&stores)),
                    || drop(Ours::events(&stores)),
                ),
                seconds(
                    || peer.apply(Peer::events(&stores)),
                    || drop(Peer::events(&stores)),
                ),
            ];
            if repeat == 0 {
                let prompts = inputs.prompts(Kind::Hit, 16);
                compare(&ours, &peer, &inputs, &prompts, true);
            }
            figures[0].push(sides);
            figures[1].push([
                seconds(
                    || ours.apply(Ours::events(&removals)),
                    || drop(Ours::events(&removals)),
                ),
                seconds(
                    || peer.apply(Peer::events(&removals)),
                    || drop(Peer::events(&removals)),
                ),
            ]);
        }
        for (what, figures, events) in [
            ("stored", &figures[0], &stores),
            ("removed", &figures[1], &removals),
        ] {
            let blocks_moved: usize = events.iter().map(Event::len).sum();
            let [our, their] = [0, 1].map(|side| {
                let mut times: Vec<f64> = figures.iter().map(|sides| sides[side]).collect();
                times.sort_by(f64::total_cmp);
                times[times.len() / 2]
            });
            let rate = |seconds: f64| blocks_moved as f64 / seconds / 1e6;
            println!(
                "{workers:>5} workers, {blocks:>5} blocks, {names}, {kind} {what}: {:>6.2} / {:>6.2}  time {}",
                rate(our),
                rate(their),
                verdict(our / their, if what == "stored" { limit } else { 1.0 })
            );
        }
    }
}

/// CPU seconds of `work`, less those of making its input.
fn seconds(work: impl FnOnce(), input: impl FnOnce()) -> f64 {
    let start = cpu();
    input();
    let made = cpu();
    work();
    let done = cpu();
    ((done - made) - (made - start)).max(1e-6)
}

impl Event {
    fn len(&self) -> usize {
        self.blocks.len() + self.removed.len()
    }
}
