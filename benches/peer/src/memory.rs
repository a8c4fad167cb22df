//! Counts the live heap of both sides after the same events.

#[cfg(not(feature = "heap"))]
pub(crate) fn run(_workers: &[usize], _blocks: &[usize]) {
    println!("the heap is counted with --features heap");
}

#[cfg(feature = "heap")]
pub(crate) fn run(workers: &[usize], blocks: &[usize]) {
    use crate::index::print_who_knows_own_names;
    use crate::inputs::Shape;

    println!("bytes of live heap per (block, worker) entry: ours / peer");
    for same_names in [true, false] {
        if !same_names {
            print_who_knows_own_names();
        }
        let mut ratios = Vec::new();
        for workers in workers {
            for blocks in blocks {
                let shape = Shape {
                    workers: *workers,
                    blocks: *blocks,
                    system_owners: usize::MAX,
                    tail_owners: 1,
                    tail_entries: 600_000,
                    same_names,
                };
                ratios.push(row(shape, if same_names { 0.65 } else { 1.0 }));
            }
        }
        ratios.sort_by(f64::total_cmp);
        println!(
            "median ratio, same names {same_names}: {:.2}x",
            ratios[ratios.len() / 2]
        );
    }
    for (tail_owners, same_names) in [(8, true), (1, true), (8, false)] {
        row(
            Shape {
                workers: 64,
                blocks: 512,
                system_owners: usize::MAX,
                tail_owners,
                tail_entries: 9_000_000,
                same_names,
            },
            if same_names { 0.65 } else { 1.0 },
        );
    }
}

#[cfg(feature = "heap")]
fn row(shape: crate::inputs::Shape, limit: f64) -> f64 {
    use crate::index::{Ours, Peer, Published, Trees};
    use crate::inputs::{EVENT_BLOCKS, Inputs};
    use crate::report::verdict;

    let inputs = Inputs::new(shape);
    let stores = inputs.stores(EVENT_BLOCKS);
    let start = live();
    let mut ours = Ours::new(shape.workers);
    for events in stores.chunks(4_096) {
        ours.apply(Ours::events(events));
    }
    let our = live() - start;
    let start = live();
    let mut peer: Box<dyn Published> = if shape.same_names {
        Box::new(Peer::new())
    } else {
        Box::new(Trees::one_each(shape.workers))
    };
    for events in stores.chunks(4_096) {
        peer.apply(Peer::events(events));
    }
    let their = live() - start;
    drop((ours, peer));
    let entries = inputs.entries() as f64;
    println!(
        "{:>5} workers, {:>5} blocks, {} tail owners, {} entries, same names {}: {:>6.1} / {:>6.1}  {}",
        shape.workers,
        shape.blocks,
        shape.tail_owners,
        inputs.entries(),
        shape.same_names,
        our / entries,
        their / entries,
        verdict(our / their, limit)
    );
    our / their
}

#[cfg(feature = "heap")]
pub(crate) fn live() -> f64 {
    let stats = crate::HEAP.stats();
    (stats.bytes_allocated as f64) - (stats.bytes_deallocated as f64)
}
