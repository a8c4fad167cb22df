//! Any history, and a wire that loses, doubles and swaps: when it falls quiet, the mirror is equal
//! to a naive list of what the other replica holds.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

/// The naive list: ids that live at the owner, and whether their prefill is over.
type Model = BTreeMap<String, bool>;

fn act(world: &mut World, model: &mut Model, random: &mut StdRng, next: &mut u64) {
    let some = |model: &Model, random: &mut StdRng| {
        let count = model.len().max(1);
        model.keys().nth(random.random_range(0..count)).cloned()
    };
    match random.random_range(0..100) {
        0..40 => {
            *next += 1;
            let held_by = if random.random() {
                HeldBy::Id
            } else {
                HeldBy::Exchange
            };
            let id = format!("{next}-{held_by:?}");
            world.add(&id, held_by);
            model.insert(id, false);
        }
        40..60 => {
            if let Some(id) = some(model, random) {
                let seq = world.owner_number(&id);
                world.free(seq);
                model.remove(&id);
            }
        }
        60..75 => {
            if let Some(id) = some(model, random) {
                let seq = world.owner_number(&id);
                world.owner.complete_prefill(seq);
                model.insert(id, true);
            }
        }
        75..85 => call(world, random),
        85 if random.random_ratio(1, 4) => {
            world.restart();
            model.clear();
        }
        86 => world.subscribe(),
        87..90 => world.refuse = world.refuse.is_none().then_some(Dropped::UnknownWorker),
        _ => {
            world.pump(random.random());
            spoil(world, random);
            let some = random.random_range(0..=world.wire.len());
            for _ in 0..some {
                if let Some(heard) = world.wire.pop_front() {
                    world.hear(heard);
                }
            }
            world.pass(Duration::from_millis(random.random_range(0..1_500)));
        }
    }
}

/// A client's call at the mirror's side on what it sees; the owner may be deaf for it.
fn call(world: &mut World, random: &mut StdRng) {
    let seen = world.charged();
    if seen.is_empty() {
        return;
    }
    let id = &seen[random.random_range(0..seen.len())];
    world.deaf = random.random_ratio(1, 3);
    if random.random() {
        world.call_free(id);
    } else {
        world.call_prefill_complete(id);
    }
    world.deaf = false;
}

/// Takes into the list what the owner did because others said so.
fn obey(world: &mut World, model: &mut Model) {
    for (id, change) in std::mem::take(&mut world.obeyed) {
        match change {
            OwnChange::Free => assert!(model.remove(&id).is_some()),
            OwnChange::PrefillCompleted => assert_eq!(model.insert(id, true), Some(false)),
        }
    }
}

fn spoil(world: &mut World, random: &mut StdRng) {
    let mut spoiled = std::collections::VecDeque::new();
    for heard in std::mem::take(&mut world.wire) {
        match random.random_range(0..20) {
            0..2 => {}
            2 => spoiled.extend([heard.clone(), heard]),
            3 => spoiled.push_front(heard),
            _ => spoiled.push_back(heard),
        }
    }
    world.wire = spoiled;
}

fn run(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut world, mut model, mut next) = (World::new(), Model::new(), 0);
    for _ in 0..400 {
        act(&mut world, &mut model, &mut random, &mut next);
        obey(&mut world, &mut model);
    }
    world.refuse = None;
    // Quiet: a heartbeat each second, and nothing is lost. Asking anew may have backed off.
    for _ in 0..40 {
        world.pump(true);
        world.deliver();
        world.pass(SECOND);
        world.retry();
    }
    obey(&mut world, &mut model);
    let known = &world.mirror.origins[&world.router_id].entries;
    let known: Model = known
        .values()
        .map(|entry| (entry.record.id.to_string(), entry.prefill_completed))
        .collect();
    assert_eq!(known, model, "seed {seed}");
    let charged: BTreeSet<_> = world.charged().into_iter().collect();
    let ids: BTreeSet<_> = model.keys().cloned().collect();
    assert_eq!(charged, ids, "seed {seed}");
    assert_eq!(
        world.held(),
        charged.len() + world.taken.len(),
        "seed {seed}"
    );
    assert!(
        world
            .taken
            .iter()
            .all(|one| one.record.held_by == HeldBy::Id)
    );
    assert!(world.mirror.outstanding.is_empty(), "seed {seed}");
}

#[test]
fn any_history_over_a_bad_wire_ends_equal_to_a_naive_list() {
    for seed in 0..300 {
        println!("seed {seed}");
        run(seed);
    }
}
