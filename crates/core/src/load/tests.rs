//! What the books must show, first fact by fact, then against naive ones.

use std::collections::{BTreeMap, BTreeSet};

use rand::Rng;

use super::*;
use crate::testing::seeded;

const WORKER: WorkerWithDpRank = WorkerWithDpRank::new(1, 0);
const OTHER: WorkerWithDpRank = WorkerWithDpRank::new(2, 0);

fn book(ranks: &[WorkerWithDpRank]) -> LoadBook {
    let mut book = LoadBook::default();
    book.set_ranks(ranks.iter().copied());
    book
}

fn charge(hashes: &[u64], private_blocks: u64, prefill_tokens: u64) -> Charge {
    Charge {
        sequence_hashes: hashes.iter().copied().map(SequenceHash).collect(),
        private_blocks,
        prefill_tokens,
    }
}

fn reserve(book: &mut LoadBook, worker: WorkerWithDpRank, id: &str, charge: Charge) -> ChargeKey {
    book.reserve(worker, &id.into(), charge).unwrap()
}

fn load(book: &LoadBook, worker: WorkerWithDpRank) -> (u64, u64, u64) {
    let slot = book.ranks.get(worker).unwrap();
    let load = book.load(worker, slot).unwrap();
    (load.prefill_tokens, load.blocks, load.requests)
}

#[test]
fn shared_blocks_count_once() {
    let mut book = book(&[WORKER]);
    let first = reserve(&mut book, WORKER, "a", charge(&[1, 2, 3], 0, 48));
    let second = reserve(&mut book, WORKER, "b", charge(&[1, 2, 4], 0, 16));
    assert_eq!(load(&book, WORKER), (64, 4, 2));
    book.release(first);
    assert_eq!(load(&book, WORKER), (16, 3, 1));
    book.release(second);
    assert_eq!(load(&book, WORKER), (0, 0, 0));
    assert_eq!(book.prompts.checked_count(), 0);
}

#[test]
fn a_hash_behind_another_prefix_is_another_block() {
    let mut book = book(&[WORKER]);
    let other = reserve(&mut book, WORKER, "a", charge(&[5], 0, 0));
    let key = reserve(&mut book, WORKER, "b", charge(&[6, 5, 6], 0, 0));
    assert_eq!(load(&book, WORKER), (0, 4, 2));
    book.release(other);
    assert_eq!(load(&book, WORKER), (0, 3, 1));
    book.release(key);
    assert_eq!(load(&book, WORKER), (0, 0, 0));
}

#[test]
fn runs_are_cut_and_joined_as_prompts_come_and_go() {
    let mut book = book(&[WORKER, OTHER]);
    let runs = |book: &LoadBook| book.prompts.checked_count();
    let long = reserve(&mut book, WORKER, "long", charge(&[1, 2, 3, 4], 0, 0));
    assert_eq!(runs(&book), 1);
    let part = reserve(&mut book, OTHER, "part", charge(&[1, 2], 0, 0));
    assert_eq!(runs(&book), 2);
    let fork = reserve(&mut book, WORKER, "fork", charge(&[1, 7], 0, 0));
    assert_eq!(runs(&book), 4);
    book.release(fork);
    assert_eq!(runs(&book), 2);
    book.release(part);
    assert_eq!(runs(&book), 1);
    assert_eq!(load(&book, WORKER), (0, 4, 1));
    book.release(long);
    assert_eq!(runs(&book), 0);
}

#[test]
fn freeing_twice_frees_once() {
    let mut book = book(&[WORKER]);
    let first = reserve(&mut book, WORKER, "a", charge(&[1], 0, 16));
    book.release(first);
    // The next one gets the same place.
    reserve(&mut book, WORKER, "a", charge(&[1], 0, 16));
    book.release(first);
    book.complete_prefill(first);
    book.add_output_block(first, None);
    assert!(!book.move_to(first, WORKER));
    assert_eq!(load(&book, WORKER), (16, 1, 1));
}

#[test]
fn prefill_completes_once() {
    let mut book = book(&[WORKER]);
    let key = reserve(&mut book, WORKER, "a", charge(&[], 0, 100));
    reserve(&mut book, WORKER, "b", charge(&[], 0, 7));
    book.complete_prefill(key);
    book.complete_prefill(key);
    assert_eq!(load(&book, WORKER), (7, 0, 2));
    book.release(key);
    assert_eq!(load(&book, WORKER), (7, 0, 1));
}

#[test]
fn an_id_is_held_once_whichever_the_rank() {
    let mut book = book(&[WORKER, OTHER]);
    let key = reserve(&mut book, WORKER, "a", charge(&[], 0, 0));
    let again = book.reserve(OTHER, &"a".into(), charge(&[], 0, 9));
    assert_eq!(again, Err(ChargeError::Duplicate));
    assert_eq!(load(&book, OTHER), (0, 0, 0));
    book.release(key);
    reserve(&mut book, OTHER, "a", charge(&[], 0, 9));
}

#[test]
fn decay_weighs_what_is_the_requests_alone() {
    let mut book = book(&[WORKER]);
    let key = reserve(&mut book, WORKER, "a", charge(&[1, 2, 3], 0, 0));
    let other = reserve(&mut book, WORKER, "b", charge(&[1], 0, 0));
    book.add_output_block(key, Some(0.5));
    // Block 1 is shared; 2, 3 and the output weigh half.
    assert_eq!(load(&book, WORKER).1, 3);
    book.release(other);
    assert_eq!(load(&book, WORKER).1, 2);
    book.add_output_block(key, Some(0.0));
    assert_eq!(load(&book, WORKER).1, 0);
    book.add_output_block(key, Some(f64::NAN));
    assert_eq!(load(&book, WORKER).1, 0);
    book.add_output_block(key, Some(7.0));
    assert_eq!(load(&book, WORKER).1, 7);
}

#[test]
fn no_size_overflows_and_all_of_it_is_freed() {
    let mut book = book(&[WORKER]);
    let huge = || charge(&[], u64::MAX, u64::MAX);
    let keys: Vec<_> = (0..5)
        .map(|id| reserve(&mut book, WORKER, &format!("{id}"), huge()))
        .collect();
    assert_eq!(load(&book, WORKER), (u64::MAX, u64::MAX, 5));
    for key in keys {
        book.add_output_block(key, None);
        book.release(key);
    }
    assert_eq!(load(&book, WORKER), (0, 0, 0));
}

#[test]
fn a_charge_moves_whole() {
    let mut book = book(&[WORKER, OTHER]);
    let key = reserve(&mut book, WORKER, "a", charge(&[1, 2], 1, 32));
    reserve(&mut book, OTHER, "b", charge(&[1], 0, 0));
    assert!(book.move_to(key, OTHER));
    assert_eq!(load(&book, WORKER), (0, 0, 0));
    assert_eq!(load(&book, OTHER), (32, 3, 2));
    assert!(!book.move_to(key, WorkerWithDpRank::new(9, 9)));
    assert!(book.move_to(key, OTHER));
    assert_eq!(load(&book, OTHER), (32, 3, 2));
    assert!(book.move_to(key, WORKER));
    assert_eq!(load(&book, WORKER), (32, 3, 1));
}

#[test]
fn a_rank_that_returns_is_still_charged_with_what_runs_on_it() {
    let mut book = book(&[WORKER]);
    let key = reserve(&mut book, WORKER, "a", charge(&[1], 0, 16));
    book.set_ranks(std::iter::empty());
    assert!(book.loads().is_empty());
    let refused = book.reserve(WORKER, &"b".into(), charge(&[], 0, 0));
    assert_eq!(refused, Err(ChargeError::Gone));
    book.set_ranks([WORKER].into_iter());
    assert_eq!(load(&book, WORKER), (16, 1, 1));
    book.set_ranks(std::iter::empty());
    book.release(key);
    assert_eq!(book.ranks.len(), 0);
    book.set_ranks([WORKER].into_iter());
    assert_eq!(load(&book, WORKER), (0, 0, 0));
}

#[test]
fn a_stale_slot_reads_nothing() {
    let mut book = LoadBook::default();
    let slot = book.set_ranks([WORKER].into_iter())[0];
    assert!(book.load(WORKER, slot).is_some());
    book.set_ranks([OTHER].into_iter());
    assert_eq!(book.load(WORKER, slot), None);
    let third = WorkerWithDpRank::new(3, 0);
    assert_eq!(book.set_ranks([third].into_iter()), [slot]);
    assert_eq!(book.load(WORKER, slot), None);
}

/// One charge as a naive bookkeeper writes it down.
struct Entry {
    key: ChargeKey,
    worker: WorkerWithDpRank,
    /// Each block as its hash and all before it.
    blocks: BTreeSet<Vec<u64>>,
    private_blocks: u64,
    prefill_tokens: u64,
    weight: f64,
}

fn expected(entries: &BTreeMap<String, Entry>, worker: WorkerWithDpRank) -> (u64, u64, u64) {
    let here: Vec<_> = entries.values().filter(|e| e.worker == worker).collect();
    let blocks: BTreeSet<&Vec<u64>> = here.iter().flat_map(|e| e.blocks.iter()).collect();
    let shared: f64 = blocks
        .iter()
        .map(|block| {
            let holders: Vec<_> = here.iter().filter(|e| e.blocks.contains(*block)).collect();
            if holders.len() == 1 {
                holders[0].weight
            } else {
                1.0
            }
        })
        .sum();
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let private: f64 = here
        .iter()
        .map(|e| e.private_blocks as f64 * e.weight)
        .sum();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a small sum of weights"
    )]
    let weight = (shared + private).round() as u64;
    let prefill_tokens = here.iter().map(|e| e.prefill_tokens).sum();
    (prefill_tokens, weight, here.len() as u64)
}

fn expected_active(
    entries: &BTreeMap<String, Entry>,
    worker: WorkerWithDpRank,
    asked: &[u64],
) -> u32 {
    let holds = |end: &u32| {
        let block = &asked[..usize::try_from(*end).unwrap()];
        let here = |e: &Entry| e.worker == worker && e.blocks.contains(block);
        entries.values().any(here)
    };
    let most = u32::try_from(asked.len()).unwrap();
    (1..=most).take_while(holds).last().unwrap_or(0)
}

/// Few different hashes, so that prompts share prefixes, end within each other and part.
fn prompt(random: &mut impl Rng) -> Vec<u64> {
    let blocks = random.random_range(0..12);
    (0..blocks)
        .map(|_| u64::from(random.random_bool(0.2)))
        .collect()
}

fn check_loads(
    book: &LoadBook,
    entries: &BTreeMap<String, Entry>,
    present: &BTreeSet<WorkerWithDpRank>,
    step: u64,
) {
    let loads = book.loads();
    assert_eq!(loads.len(), present.len(), "step {step}");
    let leaving = book.leaving();
    let left: BTreeSet<_> = entries.values().map(|entry| entry.worker).collect();
    assert_eq!(
        leaving.len(),
        left.difference(present).count(),
        "step {step}"
    );
    for load in loads.into_iter().chain(leaving) {
        let RankLoad {
            active_prefill_tokens,
            decode_blocks,
            active_requests,
            worker,
        } = load;
        let books = (active_prefill_tokens, decode_blocks, active_requests);
        assert_eq!(books, expected(entries, worker), "step {step}");
    }
}

#[test]
fn the_books_agree_with_naive_ones() {
    let mut random = seeded("books");
    let workers: Vec<_> = (0..5).map(|id| WorkerWithDpRank::new(id, 0)).collect();
    let mut present: BTreeSet<WorkerWithDpRank> = workers.iter().copied().collect();
    let mut book = book(&workers);
    let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
    let mut active = Overlaps::default();
    for step in 0..20_000_u64 {
        let worker = workers[random.random_range(0..workers.len())];
        let ids: Vec<String> = entries.keys().cloned().collect();
        let chosen = (!ids.is_empty()).then(|| ids[random.random_range(0..ids.len())].clone());
        match (random.random_range(0..100), chosen) {
            (95..100, _) => {
                let stays = |_: &WorkerWithDpRank| random.random_bool(0.8);
                present = workers.iter().copied().filter(stays).collect();
                book.set_ranks(present.iter().copied());
            }
            (0..30, _) | (_, None) => {
                let hashes = prompt(&mut random);
                let (private_blocks, prefill_tokens) =
                    (random.random_range(0..3), random.random_range(0..100));
                let id = format!("{}", random.random_range(0..40));
                let outcome = book.reserve(
                    worker,
                    &id.as_str().into(),
                    charge(&hashes, private_blocks, prefill_tokens),
                );
                assert_eq!(
                    outcome.is_ok(),
                    present.contains(&worker) && !entries.contains_key(&id)
                );
                if let Ok(key) = outcome {
                    let prefixes = (1..=hashes.len()).map(|end| hashes[..end].to_vec());
                    let entry = Entry {
                        key,
                        worker,
                        blocks: prefixes.collect(),
                        private_blocks,
                        prefill_tokens,
                        weight: 1.0,
                    };
                    entries.insert(id, entry);
                }
            }
            (30..60, Some(id)) => book.release(entries.remove(&id).unwrap().key),
            (60..70, Some(id)) => {
                let entry = entries.get_mut(&id).unwrap();
                entry.prefill_tokens = 0;
                book.complete_prefill(entry.key);
            }
            (70..85, Some(id)) => {
                let entry = entries.get_mut(&id).unwrap();
                // Fractions that are exact in both bookkeepings.
                let weight = random
                    .random_bool(0.5)
                    .then(|| f64::from(random.random_range(0..=256_u32)) / 256.0);
                entry.private_blocks += 1;
                entry.weight = weight.unwrap_or(entry.weight);
                book.add_output_block(entry.key, weight);
            }
            (_, Some(id)) => {
                let entry = entries.get_mut(&id).unwrap();
                let moved = book.move_to(entry.key, worker);
                assert_eq!(moved, present.contains(&worker));
                if moved {
                    entry.worker = worker;
                }
            }
        }
        check_loads(&book, &entries, &present, step);
        assert_eq!(book.held(), entries.len());
        book.prompts.checked_count();
        let asked = prompt(&mut random);
        let hashes: Vec<_> = asked.iter().copied().map(SequenceHash).collect();
        book.active_into(&hashes, &mut active);
        for worker in &workers {
            let slot = book.ranks.get(*worker);
            let blocks = slot.map_or(0, |slot| active.blocks(slot));
            let expected = expected_active(&entries, *worker, &asked);
            assert_eq!(blocks, expected, "step {step}");
        }
    }
    for entry in entries.into_values() {
        book.release(entry.key);
    }
    assert_eq!(book.prompts.checked_count(), 0);
    assert!(book.ids.is_empty());
    for book in &book.books {
        assert_eq!((book.weight, book.prefill_tokens, book.requests), (0, 0, 0));
    }
}

#[test]
fn active_leading_blocks_are_found_for_all_ranks_at_once() {
    let mut book = LoadBook::default();
    let slots = book.set_ranks([WORKER, OTHER].into_iter());
    reserve(&mut book, WORKER, "a", charge(&[1, 2, 3], 0, 0));
    reserve(&mut book, OTHER, "b", charge(&[1], 0, 0));
    let mut active = Overlaps::default();
    let prompt: Vec<_> = [1, 2, 9].map(SequenceHash).to_vec();
    book.active_into(&prompt, &mut active);
    assert_eq!(
        slots
            .iter()
            .map(|slot| active.blocks(*slot))
            .collect::<Vec<_>>(),
        [2, 1]
    );
}
