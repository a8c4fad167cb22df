//! Names, parents, copies and sizes of blocks.

use super::*;
use crate::pack::{ARRAYS, dialects, removed, stored};
use crate::rig::tokens;

#[tokio::test]
async fn a_name_is_64_bits_however_it_is_written() {
    let names = [(1 << 63) + 1, u64::MAX - 1, (-7_i64).cast_unsigned()];
    for writer in dialects() {
        for remover in dialects() {
            let mut stage = Stage::new().await;
            let prompt = tokens(1..13);
            stage
                .tell(vec![writer.store(stored(&names, None, &prompt))])
                .await;
            assert_eq!(stage.gpu(&prompt).await, 12, "{writer:?}");
            stage.tell(vec![remover.remove(removed(&names[2..]))]).await;
            assert_eq!(stage.gpu(&prompt).await, 8, "{writer:?} {remover:?}");
            stage.end().await;
        }
    }
}

#[tokio::test]
async fn a_block_whose_parent_is_unknown_waits_and_is_never_a_first_block() {
    for dialect in dialects() {
        let mut stage = Stage::new().await;
        let prompt = tokens(1..17);
        let store =
            |name, parent, at: usize| dialect.store(stored(&[name], parent, &prompt[at..at + 4]));
        stage.tell(vec![store(104, Some(103), 12)]).await;
        stage.tell(vec![store(103, Some(102), 8)]).await;
        assert_eq!(stage.gpu(&prompt[8..12]).await, 0);
        assert_eq!(stage.gpu(&prompt[12..]).await, 0);
        stage
            .tell(vec![store(101, None, 0), store(102, Some(101), 4)])
            .await;
        assert_eq!(stage.gpu(&prompt).await, 16, "{dialect:?}");
        stage.end().await;
    }
}

#[tokio::test]
async fn a_block_removed_while_it_waited_stays_away() {
    let mut stage = Stage::new().await;
    let prompt = tokens(1..9);
    stage
        .tell(vec![ARRAYS.store(stored(&[102], Some(101), &prompt[4..]))])
        .await;
    stage.tell(vec![ARRAYS.remove(removed(&[102]))]).await;
    stage
        .tell(vec![ARRAYS.store(stored(&[101], None, &prompt[..4]))])
        .await;
    assert_eq!(stage.gpu(&prompt).await, 4);
    stage.end().await;
}

#[tokio::test]
async fn an_evicted_parent_hides_its_children_until_it_is_stored_again() {
    for dialect in dialects() {
        for evicted in 0..3 {
            let mut stage = Stage::new().await;
            let prompt = tokens(1..13);
            let names = [101, 102, 103];
            stage
                .tell(vec![dialect.store(stored(&names, None, &prompt))])
                .await;
            stage
                .tell(vec![dialect.remove(removed(&names[evicted..=evicted]))])
                .await;
            assert_eq!(stage.gpu(&prompt).await, 4 * evicted as u64);
            let parent = evicted.checked_sub(1).map(|parent| names[parent]);
            let again = stored(
                &names[evicted..=evicted],
                parent,
                &prompt[4 * evicted..][..4],
            );
            stage.tell(vec![dialect.store(again)]).await;
            assert_eq!(stage.gpu(&prompt).await, 12, "{dialect:?}, block {evicted}");
            stage.end().await;
        }
    }
}

#[tokio::test]
async fn blocks_of_one_event_follow_each_other() {
    let mut stage = Stage::new().await;
    let prompt = tokens(1..13);
    stage
        .tell(vec![ARRAYS.store(stored(&[101], None, &prompt[..4]))])
        .await;
    stage
        .tell(vec![ARRAYS.store(stored(
            &[102, 103],
            Some(101),
            &prompt[4..],
        ))])
        .await;
    assert_eq!(stage.gpu(&prompt).await, 12);
    let skipping: Vec<u32> = (1..5).chain(9..13).collect();
    assert_eq!(stage.gpu(&skipping).await, 4);
    stage.end().await;
}

#[tokio::test]
async fn two_copies_take_two_removals() {
    for dialect in dialects() {
        let mut stage = Stage::new().await;
        let prompt = tokens(1..5);
        let store = || dialect.store(stored(&[101], None, &prompt));
        let remove = || dialect.remove(removed(&[101]));
        stage.tell(vec![store()]).await;
        stage.tell(vec![store()]).await;
        stage.tell(vec![remove()]).await;
        assert_eq!(stage.gpu(&prompt).await, 4, "one is left: {dialect:?}");
        stage.tell(vec![remove()]).await;
        assert_eq!(stage.gpu(&prompt).await, 0);
        stage.tell(vec![remove(), store()]).await;
        assert_eq!(stage.gpu(&prompt).await, 4);
        stage.end().await;
    }
}

#[tokio::test]
async fn copies_that_the_engine_counts_are_its_own_affair() {
    for dialect in dialects() {
        let mut stage = Stage::new().await;
        let prompt = tokens(1..9);
        let store = || dialect.store(stored(&[101, 102], None, &prompt));
        let remove = |name, left: i64| {
            dialect.remove(crate::pack::Remove {
                left: V::List(vec![V::Int(left)]),
                ..removed(&[name])
            })
        };
        stage.tell(vec![store(), store(), store()]).await;
        stage.tell(vec![remove(102, 1)]).await;
        assert_eq!(stage.gpu(&prompt).await, 8, "{dialect:?}");
        stage.tell(vec![remove(102, 0)]).await;
        assert_eq!(
            stage.gpu(&prompt).await,
            4,
            "only the last removal was announced"
        );
        stage.end().await;
    }
}

#[tokio::test]
async fn a_multiple_or_divisor_of_the_block_size_is_cut_again() {
    let sized = |names: &[u64], parent, ids: &[u32], size| {
        ARRAYS.store(Store {
            block_size: V::Int(size),
            ..stored(names, parent, ids)
        })
    };
    let mut stage = Stage::new().await;
    let (long, short) = (tokens(1..17), tokens(51..59));
    stage.tell(vec![sized(&[101], None, &long[..8], 8)]).await;
    stage
        .tell(vec![sized(&[102], Some(101), &long[8..], 8)])
        .await;
    stage
        .tell(vec![sized(&[1, 2, 3, 4], None, &short, 2)])
        .await;
    assert_eq!((stage.gpu(&long).await, stage.gpu(&short).await), (16, 8));
    stage.tell(vec![ARRAYS.remove(removed(&[102, 3]))]).await;
    assert_eq!((stage.gpu(&long).await, stage.gpu(&short).await), (8, 4));
    let record = stage.rig.service.worker(1).unwrap();
    assert_eq!(record.kv_events[&0].recut_events, 3);
    assert_eq!(record.kv_events[&0].mismatched_block_size, Some(2));
    stage.end().await;
}

#[tokio::test]
async fn a_size_that_fits_nothing_is_shown_and_routed_by_load() {
    let mut stage = Stage::new().await;
    let odd = ARRAYS.store(Store {
        block_size: V::Int(6),
        ..stored(&[101], None, &tokens(1..7))
    });
    stage.tell(vec![odd]).await;
    assert_eq!(stage.gpu(&tokens(1..7)).await, 0);
    let record = stage.rig.service.worker(1).unwrap();
    assert!(record.is_schedulable());
    assert!(
        record.warnings[0].contains("block_size 6"),
        "{:?}",
        record.warnings
    );
    let skipped = "kv_events_skipped_total{reason=\"block_size\"}";
    assert_eq!(stage.rig.metric(skipped), 1);
    stage.end().await;
}
