//! The mirror against replicas that are simulated, over messages that are lost, doubled and swapped.

mod faults;
mod world;

use super::*;
use world::World;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_reservation_is_charged_when_it_is_told_and_freed_when_its_owner_frees_it() {
    let mut world = World::new();
    let a = world.add("a", HeldBy::Exchange);
    world.settle();
    assert_eq!(world.charged(), ["a"]);
    world.free(a);
    world.settle();
    assert_eq!(world.charged(), [""; 0]);
}

#[test]
fn whoever_joins_late_is_given_what_lives() {
    let mut world = World::new();
    let ids: Vec<_> = (0..700).map(|id| format!("{id:03}")).collect();
    for id in &ids {
        world.add(id, HeldBy::Id);
    }
    world.lose_all();
    world.subscribe();
    world.settle();
    assert_eq!(world.charged(), ids);
    assert_eq!(world.mirror.complete_peers(), 1);
}

#[test]
fn a_snapshot_with_a_piece_missing_is_not_taken_for_whole() {
    let mut world = World::new();
    for id in 0..700 {
        world.add(&id.to_string(), HeldBy::Id);
    }
    world.lose_all();
    world.pump(false);
    assert_eq!(world.wire.len(), 3);
    world.wire.remove(1);
    world.deliver();
    assert_eq!(world.mirror.complete_peers(), 0);
    world.pass(2 * SECOND);
    world.settle();
    assert_eq!(world.mirror.complete_peers(), 1);
    assert_eq!(world.charged().len(), 700);
}

#[test]
fn a_gap_is_seen_and_repaired() {
    let mut world = World::new();
    let a = world.add("a", HeldBy::Id);
    world.settle();
    world.free(a);
    world.add("b", HeldBy::Id);
    world.pump(false);
    world.wire.pop_front();
    world.deliver();
    assert_eq!(world.metrics.gaps.get(), 1);
    assert_eq!(world.charged(), ["a", "b"]);
    world.pass(2 * SECOND);
    world.settle();
    assert_eq!(world.charged(), ["b"]);
}

#[test]
fn the_loss_of_the_last_event_shows_in_the_next_heartbeat() {
    let mut world = World::new();
    world.settle();
    world.add("a", HeldBy::Id);
    world.lose_all();
    world.pass(2 * SECOND);
    world.settle();
    assert_eq!(world.charged(), ["a"]);
    assert_eq!(world.metrics.gaps.get(), 1);
}

#[test]
fn a_dead_replica_loses_its_exchanges_at_once_and_its_ids_are_taken_over() {
    let mut world = World::new();
    world.add("exchange", HeldBy::Exchange);
    world.add("id", HeldBy::Id);
    world.settle();
    world.pass(9 * SECOND);
    assert_eq!(world.charged(), ["exchange", "id"]);
    world.pass(SECOND);
    assert_eq!(world.charged(), [""; 0]);
    let taken: Vec<_> = world
        .taken
        .iter()
        .map(|one| one.record.id.as_str())
        .collect();
    assert_eq!(taken, ["id"]);
    assert_eq!(world.held(), 1, "what was taken over is held");
}

#[test]
fn what_a_client_frees_while_it_is_taken_over_is_known_to_be_freed() {
    let mut world = World::new();
    for id in ["freed", "stays"] {
        world.add(id, HeldBy::Id);
    }
    world.settle();
    let (now, mut out) = (world.now + 10 * SECOND, Vec::new());
    world.mirror.tick(now, &mut out);
    assert!(world.mirror.holds("freed") && world.call_free("freed"));
    // Another turn of the clock comes before the first one's actions are done.
    let mut later = Vec::new();
    world.mirror.tick(now, &mut later);
    assert!(
        later
            .iter()
            .all(|action| matches!(action, Action::Tell(..)))
    );
    for action in out {
        let Action::TakeOver(takeover) = action else {
            panic!("{action:?}");
        };
        let freed = takeover.record.id.as_str() == "freed";
        assert_eq!(world.mirror.left(takeover.key), freed);
    }
    assert!(!world.mirror.holds("freed") && !world.mirror.holds("stays"));
}

#[test]
fn a_replica_that_comes_back_on_its_socket_is_another_and_the_former_is_dead() {
    let mut world = World::new();
    world.add("exchange", HeldBy::Exchange);
    world.settle();
    world.restart();
    world.add("new", HeldBy::Exchange);
    world.settle();
    world.pass(Duration::ZERO);
    assert_eq!(world.charged(), ["new"]);
}

#[test]
fn a_call_on_anothers_reservation_takes_effect_here_and_is_told_until_its_owner_knows() {
    let mut world = World::new();
    world.add("a", HeldBy::Id);
    world.settle();
    world.deaf = true;
    assert!(world.call_free("a"));
    assert_eq!(world.charged(), [""; 0]);
    assert!(!world.call_free("a"), "it is freed once");
    assert_eq!(world.told, 1);
    world.pass(SECOND / 2);
    assert_eq!(world.told, 1);
    world.pass(SECOND / 2);
    assert_eq!(world.told, 2);
    world.deaf = false;
    world.pass(SECOND);
    world.settle();
    assert_eq!(world.told, 3);
    world.pass(10 * SECOND);
    assert_eq!(world.told, 3, "the owner knows");
}

#[test]
fn an_exchanges_reservation_is_its_own_affair() {
    let mut world = World::new();
    world.add("a", HeldBy::Exchange);
    world.settle();
    assert!(world.mirror.holds("a"));
    assert!(!world.call_free("a"));
    assert_eq!(world.charged(), ["a"]);
}

#[test]
fn what_cannot_be_charged_is_counted_once_and_tried_again_when_workers_change() {
    let mut world = World::new();
    world.refuse = Some(Dropped::UnknownWorker);
    world.add("a", HeldBy::Id);
    world.settle();
    world.retry();
    assert_eq!(world.charged(), [""; 0]);
    assert_eq!(world.metrics.dropped(Dropped::UnknownWorker), 1);
    world.refuse = None;
    world.retry();
    assert_eq!(world.charged(), ["a"]);
}

#[test]
fn no_more_is_kept_than_the_bound() {
    let mut world = World::new();
    for id in 0..=world::MAX_RESERVATIONS {
        world.add(&format!("{id:05}"), HeldBy::Id);
        world.settle();
    }
    assert_eq!(world.charged().len(), world::MAX_RESERVATIONS);
    assert!(world.metrics.dropped(Dropped::Full) >= 1);
}

#[test]
fn a_published_peers_reservation_ends_when_nothing_is_heard_of_it() {
    let mut world = World::new();
    world.published("a", What::Add);
    world.published("b", What::Add);
    assert_eq!(world.charged(), ["a", "b"]);
    world.pass(200 * SECOND);
    world.published("a", |record| What::PrefillCompleted(world::call(&record)));
    world.pass(100 * SECOND);
    assert_eq!(world.charged(), ["a"]);
    world.pass(200 * SECOND);
    assert_eq!(world.charged(), [""; 0]);
    assert!(world.mirror.origins.is_empty() && world.mirror.checks.is_empty());
}

#[test]
fn a_published_peer_frees_by_id_and_worker_whoever_made_it() {
    let mut world = World::new();
    world.add("a", HeldBy::Id);
    world.settle();
    world.published("a", |record| {
        let mut call = world::call(&record);
        call.worker.worker_id = 99;
        What::Free(call)
    });
    assert_eq!(world.charged(), ["a"], "another worker's");
    world.published("a", |record| What::Free(world::call(&record)));
    assert_eq!(world.charged(), [""; 0]);
}

#[test]
fn of_two_that_hold_an_id_one_is_charged_and_the_other_follows() {
    let mut world = World::new();
    world.add("a", HeldBy::Id);
    world.settle();
    world.published("a", What::Add);
    assert_eq!(world.charged(), ["a"]);
    assert_eq!(world.metrics.dropped(Dropped::Duplicate), 1);
    let first = world.owner_number("a");
    world.free(first);
    world.settle();
    assert_eq!(world.charged(), ["a"], "the published peer's");
}

#[test]
fn the_load_of_a_worker_goes_with_it_and_the_id_still_ends_once() {
    let mut world = World::new();
    world.add("a", HeldBy::Id);
    world.settle();
    let released = world
        .mirror
        .orphan(&BTreeSet::from([world::WORKER.worker_id]));
    assert_eq!(released.len(), 1);
    drop(released);
    assert_eq!(world.held(), 0);
    assert!(world.call_free("a") && !world.call_free("a"));
}

#[test]
fn own_messages_are_passed_over() {
    let mut world = World::new();
    world.restart_as(world::OWN);
    world.add("a", HeldBy::Id);
    world.settle();
    assert_eq!(world.charged(), [""; 0]);
    assert!(world.mirror.origins.is_empty());
}

#[test]
fn word_that_an_id_lives_renews_it_wherever_it_is_held() {
    let mut world = World::new();
    world.published("a", What::Add);
    world.pass(299 * SECOND);
    world.hear(Heard::Renewed(100, vec![ReservationId::from("a")]));
    world.pass(299 * SECOND);
    assert_eq!(world.charged(), ["a"]);
    world.pass(SECOND);
    assert_eq!(world.charged(), [""; 0]);
    assert_eq!(world.renewed, ["a"], "it may be our own");
}

#[test]
fn a_replica_that_was_thought_dead_tells_all_before_it_is_given_back_anything() {
    let mut world = World::new();
    world.add("a", HeldBy::Id);
    world.settle();
    assert_eq!(world.given_back, 1, "as every snapshot ends");
    world.pass(10 * SECOND);
    assert_eq!(world.taken.len(), 1);
    world.pump(true);
    world.deliver();
    assert_eq!(world.given_back, 1);
    world.pass(2 * SECOND);
    world.settle();
    assert_eq!(world.given_back, 2);
}
