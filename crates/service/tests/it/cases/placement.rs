//! Tiers and cache groups: a copy is where the engine says that it is.

use super::*;
use crate::pack::{ARRAYS, Dialect, Remove, dialects, removed, stored};
use crate::rig::tokens;

const TIERS: [(&str, [u64; 3]); 8] = [
    ("GPU", [12, 12, 12]),
    ("cpu", [0, 12, 12]),
    ("CPU_TIER1", [0, 12, 12]),
    ("CPU_TIER2", [0, 0, 12]),
    ("NVME", [0, 0, 12]),
    ("STORAGE", [0, 0, 12]),
    ("EXTERNAL", [0, 0, 12]),
    ("OBJ", [0, 0, 0]),
];

fn store_in(dialect: Dialect, medium: &'static str, names: &[u64], ids: &[u32]) -> V {
    dialect.store(Store {
        medium: V::Text(medium),
        ..stored(names, None, ids)
    })
}

fn remove_from(dialect: Dialect, medium: &'static str, names: &[u64]) -> V {
    dialect.remove(Remove {
        medium: V::Text(medium),
        ..removed(names)
    })
}

/// A store without tokens.
fn offloaded(dialect: Dialect, medium: &'static str, names: &[u64]) -> V {
    dialect.store(Store {
        tokens: V::List(vec![]),
        block_size: V::Int(0),
        medium: V::Text(medium),
        ..stored(names, None, &[])
    })
}

#[tokio::test]
async fn each_medium_is_stored_in_and_removed_from_its_own_tier() {
    for dialect in dialects() {
        for (medium, expected) in TIERS {
            let mut stage = Stage::new().await;
            let asked = asking(&tokens(1..13));
            let names = [101, 102, 103];
            stage
                .tell(vec![store_in(dialect, medium, &names, &tokens(1..13))])
                .await;
            assert_eq!(
                stage.found(&asked, 0).await,
                expected,
                "{dialect:?} {medium}"
            );
            let other = if medium == "GPU" { "CPU" } else { "GPU" };
            stage.tell(vec![remove_from(dialect, other, &names)]).await;
            assert_eq!(stage.found(&asked, 0).await, expected, "not from {other}");
            stage.tell(vec![remove_from(dialect, medium, &names)]).await;
            assert_eq!(
                stage.found(&asked, 0).await,
                [0, 0, 0],
                "{dialect:?} {medium}"
            );
            stage.end().await;
        }
    }
}

#[tokio::test]
async fn a_name_that_is_not_held_does_not_stop_a_removal() {
    for dialect in dialects() {
        let mut stage = Stage::new().await;
        let names = [101, 102, 103];
        let store = |medium| store_in(dialect, medium, &names, &tokens(1..13));
        stage.tell(vec![store("GPU"), store("CPU")]).await;
        let remove = |medium| remove_from(dialect, medium, &[999, 103, 102]);
        stage.tell(vec![remove("GPU"), remove("CPU")]).await;
        let found = stage.found(&asking(&tokens(1..13)), 0).await;
        assert_eq!(found, [4, 4, 4], "{dialect:?}");
        stage.end().await;
    }
}

#[tokio::test]
async fn a_placeholder_in_host_memory_outlives_the_device() {
    for dialect in dialects() {
        let mut stage = Stage::new().await;
        let names = [101, 102, 103];
        let asked = asking(&tokens(1..13));
        stage
            .tell(vec![store_in(dialect, "GPU", &names, &tokens(1..13))])
            .await;
        stage.tell(vec![offloaded(dialect, "CPU", &names)]).await;
        stage.tell(vec![remove_from(dialect, "GPU", &names)]).await;
        assert_eq!(stage.found(&asked, 0).await, [0, 12, 12], "{dialect:?}");
        stage
            .tell(vec![offloaded(dialect, "DISK", &names[..2])])
            .await;
        stage.tell(vec![remove_from(dialect, "CPU", &names)]).await;
        assert_eq!(stage.found(&asked, 0).await, [0, 0, 8], "{dialect:?}");
        stage.end().await;
    }
}

#[tokio::test]
async fn a_placeholder_of_nothing_known_is_nothing() {
    let mut stage = Stage::new().await;
    stage
        .tell(vec![
            offloaded(ARRAYS, "CPU", &[101]),
            offloaded(ARRAYS, "GPU", &[102]),
        ])
        .await;
    assert_eq!(stage.found(&asking(&tokens(1..5)), 0).await, [0, 0, 0]);
    let skipped = "kv_events_skipped_total{reason=\"unknown_block\"}";
    assert_eq!(stage.rig.metric(skipped), 1);
    stage.end().await;
}

fn in_group(dialect: Dialect, names: &[u64], group: u32, kind: &'static str) -> V {
    dialect.store(Store {
        group: group.into(),
        kind: V::Text(kind),
        ..stored(names, None, &tokens(1..13))
    })
}

fn remove_in_group(dialect: Dialect, names: &[u64], group: u32) -> V {
    dialect.remove(Remove {
        group: group.into(),
        ..removed(names)
    })
}

#[tokio::test]
async fn groups_that_are_no_attention_stay_out() {
    let kinds = [
        "mamba",
        "sliding_window",
        "chunked_local_attention",
        "tomorrow",
    ];
    for dialect in dialects() {
        for kind in kinds {
            let mut stage = Stage::new().await;
            stage
                .tell(vec![
                    in_group(dialect, &[101], 0, kind),
                    in_group(dialect, &[101, 102, 103], 3, "mla_attention"),
                ])
                .await;
            stage.tell(vec![remove_in_group(dialect, &[101], 0)]).await;
            assert_eq!(stage.gpu(&tokens(1..13)).await, 12, "{dialect:?} {kind}");
            stage.tell(vec![remove_in_group(dialect, &[101], 7)]).await;
            assert_eq!(
                stage.gpu(&tokens(1..13)).await,
                12,
                "a group nobody spoke of"
            );
            stage.tell(vec![remove_in_group(dialect, &[102], 3)]).await;
            assert_eq!(stage.gpu(&tokens(1..13)).await, 4, "{dialect:?} {kind}");
            stage.end().await;
        }
    }
}

#[tokio::test]
async fn one_block_in_two_groups_is_there_until_it_left_both() {
    for dialect in dialects() {
        let mut stage = Stage::new().await;
        let names = [101, 102, 103];
        stage
            .tell(vec![
                in_group(dialect, &names, 0, "full_attention"),
                in_group(dialect, &names, 1, "full_attention"),
            ])
            .await;
        stage.tell(vec![remove_in_group(dialect, &names, 0)]).await;
        assert_eq!(stage.gpu(&tokens(1..13)).await, 12, "{dialect:?}");
        stage.tell(vec![remove_in_group(dialect, &names, 1)]).await;
        assert_eq!(stage.gpu(&tokens(1..13)).await, 0, "{dialect:?}");
        stage.end().await;
    }
}
