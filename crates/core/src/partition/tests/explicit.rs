//! Load charged without a selection, and what is told about a prompt without choosing.

use super::*;
use crate::load::Charge;

fn hashes(range: std::ops::Range<u64>) -> Arc<[SequenceHash]> {
    range.map(SequenceHash).collect()
}

fn reserve(
    partition: &Partition,
    worker: WorkerWithDpRank,
    id: &str,
) -> Result<Reservation, SelectError> {
    let charge = Charge {
        sequence_hashes: hashes(20..28),
        private_blocks: 0,
        prefill_tokens: 30,
    };
    partition.reserve(worker, charge, ReservationId::from(id))
}

#[test]
fn a_charge_lands_on_the_rank_that_the_caller_named() {
    let partition = partition();
    let held = reserve(&partition, rank(2, 1), "a").unwrap();
    let load = partition.loads()[3];
    assert_eq!(load.worker, rank(2, 1));
    assert_eq!(
        (
            load.active_prefill_tokens,
            load.decode_blocks,
            load.active_requests
        ),
        (30, 8, 1)
    );
    drop(held);
    assert_eq!(partition.loads()[3].active_requests, 0);
}

#[test]
fn a_rank_that_is_not_there_and_an_id_that_is_held_are_refused() {
    let partition = partition();
    let gone = reserve(&partition, rank(2, 2), "a");
    assert!(matches!(gone, Err(SelectError::WorkerGone)));
    let _held = reserve(&partition, rank(1, 0), "a").unwrap();
    let twice = reserve(&partition, rank(2, 0), "a");
    assert!(matches!(
        twice,
        Err(SelectError::DuplicateReservation { .. })
    ));
}

#[test]
fn a_selection_charged_later_costs_what_it_would_have_cost_at_once() {
    let partition = partition();
    let request = tokens(0..18);
    let selection = partition.select(&request, Instant::now()).unwrap();
    let _later = partition
        .reserve(
            selection.worker,
            selection.charge(),
            ReservationId::from("later"),
        )
        .unwrap();
    let load = partition
        .loads()
        .into_iter()
        .find(|load| load.worker == selection.worker)
        .unwrap();
    assert_eq!((load.active_prefill_tokens, load.decode_blocks), (18, 4));
    assert_eq!(partition.charge_of(&request), selection.charge());
}

#[test]
fn potential_loads_add_the_uncached_part_and_charge_nothing() {
    let partition = partition();
    store(&partition, rank(1, 1), 0..8);
    let _held = reserve(&partition, rank(2, 0), "a").unwrap();
    let before = partition.loads();
    let potential = partition.potential_loads(&tokens(0..18)).unwrap();
    let seen: Vec<_> = potential
        .iter()
        .map(|load| (load.worker, load.prefill_tokens, load.decode_blocks))
        .collect();
    assert_eq!(
        seen,
        [
            (rank(1, 0), 18, 4),
            (rank(1, 1), 10, 4),
            (rank(2, 0), 48, 12),
            (rank(2, 1), 18, 4)
        ]
    );
    assert_eq!(partition.loads(), before);
}

#[test]
fn overlaps_name_every_rank_and_sums_saturate() {
    let partition = partition();
    store(&partition, rank(1, 1), 0..8);
    let overlap = partition.overlaps(&tokens(0..18)).unwrap();
    assert_eq!((overlap.block_size, overlap.blocks), (4, 4));
    let blocks: Vec<_> = overlap
        .ranks
        .iter()
        .map(|rank| rank.device_blocks)
        .collect();
    assert_eq!(blocks, [0, 2, 0, 0]);
    let charge = |id: &str| {
        let charge = Charge {
            prefill_tokens: u64::MAX,
            private_blocks: u64::MAX,
            ..Charge::default()
        };
        partition
            .reserve(rank(1, 0), charge, ReservationId::from(id))
            .unwrap()
    };
    let held = [charge("x"), charge("y")];
    let potential = partition.potential_loads(&tokens(0..18)).unwrap();
    assert_eq!(
        (potential[0].prefill_tokens, potential[0].decode_blocks),
        (u64::MAX, u64::MAX)
    );
    drop(held);
    let potential = partition.potential_loads(&tokens(0..18)).unwrap();
    assert_eq!(potential[0].prefill_tokens, 18);
}

#[test]
fn a_handle_reaches_a_charge_while_it_is_held_and_nothing_after() {
    let partition = partition();
    let held = reserve(&partition, rank(1, 0), "a").unwrap();
    let handle = held.handle();
    handle.prefill_complete();
    handle.output_block(None);
    let load = partition.loads()[0];
    assert_eq!((load.active_prefill_tokens, load.decode_blocks), (0, 9));
    drop(held);
    let _other = reserve(&partition, rank(1, 0), "b").unwrap();
    handle.prefill_complete();
    handle.output_block(None);
    let load = partition.loads()[0];
    assert_eq!((load.active_prefill_tokens, load.decode_blocks), (30, 8));
}

#[test]
fn a_charge_that_somebody_else_released_is_not_freed_again_by_its_reservation() {
    let partition = partition();
    let held = reserve(&partition, rank(1, 0), "a").unwrap();
    held.handle().release();
    assert_eq!(partition.loads()[0].active_requests, 0);
    let again = reserve(&partition, rank(1, 0), "a").unwrap();
    drop(held);
    assert_eq!(partition.loads()[0].active_requests, 1);
    drop(again);
    assert_eq!(partition.loads()[0].active_requests, 0);
}
