use super::super::record::HeldBy;
use super::*;

fn record(id: &str, blocks: u64) -> Arc<Record> {
    Arc::new(Record {
        partition: pointsman_core::PartitionId::new("m", "default"),
        block_size: 16,
        id: ReservationId::from(id),
        worker: WorkerWithDpRank::from_worker_id(1),
        hashes: (0..blocks)
            .map(pointsman_core::hash::SequenceHash)
            .collect(),
        prefill_tokens: 10,
        expected_output_tokens: None,
        lora_name: None,
        held_by: HeldBy::Id,
    })
}

fn add(owned: &mut Owned<()>, id: &str, blocks: u64) -> (u64, Queued) {
    let new = New {
        record: record(id, blocks),
        handle: (),
        silent: Duration::ZERO,
        from: None,
    };
    owned.add(new, Instant::now())
}

/// Every piece, one after the other.
fn pieces(owned: &Owned<()>) -> Vec<Piece> {
    let mut pieces = vec![owned.piece(0, Instant::now())];
    while let Some(piece) = pieces.last().filter(|piece| !piece.last) {
        pieces.push(owned.piece(piece.through, Instant::now()));
    }
    pieces
}

#[test]
fn a_change_is_told_once_and_in_order() {
    let mut owned = Owned::new(100);
    let (a, queued) = add(&mut owned, "a", 1);
    assert_eq!((a, queued), (1, Queued::Yes));
    assert_eq!(owned.complete_prefill(a), Queued::Yes);
    assert_eq!(owned.complete_prefill(a), Queued::Nothing);
    assert_eq!(owned.free(a), Queued::Yes);
    assert_eq!(owned.free(a), Queued::Nothing);
    assert_eq!(owned.complete_prefill(a), Queued::Nothing);
    let told: Vec<_> = owned
        .drain(10)
        .into_iter()
        .map(|event| (event.seq, event.change))
        .collect();
    assert_eq!(
        told,
        [
            (1, Change::Add),
            (2, Change::PrefillCompleted(Whose::Own)),
            (3, Change::Free(Whose::Own)),
        ]
    );
    let empty = Heartbeat {
        seq: 3,
        reservations: 0,
        digest: 0,
    };
    assert_eq!(owned.heartbeat(), empty);
}

#[test]
fn the_queue_has_a_bound_and_the_numbers_show_what_was_dropped() {
    let mut owned = Owned::new(2);
    for (id, queued) in [
        ("a", Queued::Yes),
        ("b", Queued::Yes),
        ("c", Queued::Dropped),
    ] {
        assert_eq!(add(&mut owned, id, 0).1, queued);
    }
    assert_eq!(owned.drain(10).len(), 2);
    assert_eq!(add(&mut owned, "d", 0), (4, Queued::Yes));
    assert_eq!(owned.heartbeat().reservations, 4);
}

#[test]
fn a_snapshot_comes_in_bounded_pieces_that_follow_on_each_other() {
    let mut owned = Owned::new(10_000);
    for id in 0..600 {
        add(&mut owned, &id.to_string(), 1);
    }
    let small = pieces(&owned);
    let counts: Vec<_> = small.iter().map(|piece| piece.reservations.len()).collect();
    assert_eq!(counts, [256, 256, 88]);
    assert!(
        small
            .windows(2)
            .all(|pair| pair[0].through == pair[1].after)
    );
    assert_eq!(small[2].through, 600);

    let mut owned = Owned::new(10_000);
    for id in 0..3 {
        add(&mut owned, &id.to_string(), PIECE_BLOCKS as u64);
    }
    assert_eq!(pieces(&owned).len(), 4, "one reservation each, and the end");
}

#[test]
fn a_load_that_moves_is_another_reservation_of_the_same_id() {
    let mut owned = Owned::new(100);
    let (a, _) = add(&mut owned, "a", 1);
    owned.complete_prefill(a);
    let there = WorkerWithDpRank::from_worker_id(2);
    let (moved, queued) = owned.moved(a, there, Instant::now());
    assert_eq!((moved, queued), (4, Queued::Yes));
    let events = owned.drain(10);
    assert_eq!(events[2].change, Change::Free(Whose::Own));
    assert_eq!(events[3].change, Change::Add);
    assert_eq!(
        (events[3].record.worker, events[3].record.prefill_tokens),
        (there, 0)
    );
    assert_eq!(owned.number_of("a", there), Some(4));
    assert_eq!(owned.moved(a, there, Instant::now()).1, Queued::Nothing);
}

#[test]
fn after_the_end_nothing_is_told() {
    let mut owned = Owned::new(100);
    let (a, _) = add(&mut owned, "a", 1);
    owned.drain(10);
    owned.close();
    assert_eq!(owned.free(a), Queued::Nothing);
    assert_eq!(owned.queued(), 0);
}

#[test]
fn what_was_taken_over_is_known_by_whom_it_was_taken_from() {
    let mut owned = Owned::new(100);
    add(&mut owned, "own", 1);
    assert!(owned.taken_from(5).is_empty());
    let new = New {
        record: record("taken", 1),
        handle: (),
        silent: Duration::from_secs(9),
        from: Some(5),
    };
    let (taken, _) = owned.add(new, Instant::now());
    assert_eq!(owned.taken_from(5), [ReservationId::from("taken")]);
    let piece = owned.piece(1, Instant::now());
    assert!(piece.reservations[0].silent >= Duration::from_secs(9));
    owned.free(taken);
    assert!(owned.taken_from(5).is_empty());
}

#[test]
fn an_id_of_which_something_is_heard_is_told_of_once_a_round() {
    let mut owned = Owned::<()>::new(100);
    owned.renew("a");
    owned.renew("a");
    owned.renew("b");
    assert_eq!(owned.take_renewed().len(), 2);
    assert!(owned.take_renewed().is_empty());
}
