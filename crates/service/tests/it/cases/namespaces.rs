//! Adapters, salts and media: the same tokens are other blocks with them.

use pointsman_core::Prompt;

use super::*;
use crate::pack::{ARRAYS, dialects, stored};
use crate::rig::tokens;

fn of_adapter(name: &str) -> SelectionRequest {
    SelectionRequest {
        lora_name: Some(name.to_owned()),
        ..asking(&tokens(1..13))
    }
}

fn of_tenant(salt: &str) -> SelectionRequest {
    SelectionRequest {
        cache_salt: Some(salt.to_owned()),
        ..asking(&tokens(1..13))
    }
}

fn with_media(media: Vec<Vec<u64>>) -> SelectionRequest {
    SelectionRequest {
        prompt: Prompt::Tokens {
            ids: tokens(1..13),
            media,
        },
        ..SelectionRequest::default()
    }
}

fn key(items: Vec<V>) -> V {
    V::List(items)
}

#[tokio::test]
async fn an_adapters_name_among_the_keys_is_no_media() {
    for dialect in dialects() {
        let mut stage = Stage::new().await;
        let keys = || key(vec![V::Text("ad-1")]);
        let store = Store {
            lora_id: V::Int(7),
            lora_name: V::Text("ad-1"),
            extra_keys: V::List(vec![keys(), keys(), keys()]),
            ..stored(&[101, 102, 103], None, &tokens(1..13))
        };
        stage.tell(vec![dialect.store(store)]).await;
        assert_eq!(
            stage.found(&of_adapter("ad-1"), 0).await[0],
            12,
            "{dialect:?}"
        );
        assert_eq!(stage.found(&of_adapter("ad-2"), 0).await[0], 0);
        assert_eq!(stage.gpu(&tokens(1..13)).await, 0);
        stage.end().await;
    }
}

#[tokio::test]
async fn an_adapter_without_a_name_is_left_out() {
    let mut stage = Stage::new().await;
    let store = Store {
        lora_id: V::Int(7),
        ..stored(&[101], None, &tokens(1..5))
    };
    stage.tell(vec![ARRAYS.store(store)]).await;
    assert_eq!(stage.gpu(&tokens(1..5)).await, 0);
    let skipped = "kv_events_skipped_total{reason=\"unnamed_adapter\"}";
    assert_eq!(stage.rig.metric(skipped), 1);
    stage.end().await;
}

#[tokio::test]
async fn a_salt_is_found_in_every_place_where_engines_put_it() {
    let in_keys = |salt| V::List(vec![key(vec![V::Text(salt)]), V::Nil, V::Nil]);
    let plain = || stored(&[101, 102, 103], None, &tokens(1..13));
    let stores = [
        Store {
            extra_keys: in_keys("tenant-a"),
            ..plain()
        },
        Store {
            extra_keys: in_keys("dynamo-cache-salt:tenant-a"),
            ..plain()
        },
        Store {
            lora_name: V::Map(vec![("cache_salt", V::Text("tenant-a"))]),
            ..plain()
        },
    ];
    for dialect in dialects() {
        for store in &stores {
            let mut stage = Stage::new().await;
            stage.tell(vec![dialect.store(store.clone())]).await;
            let child = stored(&[104], Some(103), &tokens(13..17));
            stage.tell(vec![dialect.store(child)]).await;
            let longer = SelectionRequest {
                cache_salt: Some("tenant-a".to_owned()),
                ..asking(&tokens(1..17))
            };
            assert_eq!(
                stage.found(&longer, 0).await[0],
                16,
                "{dialect:?} {store:?}"
            );
            assert_eq!(stage.found(&of_tenant("tenant-b"), 0).await[0], 0);
            assert_eq!(stage.gpu(&tokens(1..13)).await, 0);
            stage.end().await;
        }
    }
}

#[tokio::test]
async fn media_are_part_of_the_block_that_they_begin_in() {
    const DIGEST: &str = "0123456789abcdefffffffffffffffffffffffffffffffffffffffffffffffff";
    let alone = key(vec![V::Text(DIGEST)]);
    let placed = key(vec![V::List(vec![V::Text(DIGEST), V::Int(2)])]);
    for dialect in dialects() {
        for keys in [&alone, &placed] {
            let mut stage = Stage::new().await;
            let store = Store {
                extra_keys: V::List(vec![V::Nil, keys.clone(), V::Nil]),
                ..stored(&[101, 102, 103], None, &tokens(1..13))
            };
            stage.tell(vec![dialect.store(store)]).await;
            let right = with_media(vec![vec![], vec![0x0123_4567_89ab_cdef]]);
            assert_eq!(stage.found(&right, 0).await[0], 12, "{dialect:?} {keys:?}");
            let wrong = with_media(vec![vec![], vec![0x0123_4567_89ab_cdee]]);
            assert_eq!(stage.found(&wrong, 0).await[0], 4);
            assert_eq!(stage.gpu(&tokens(1..13)).await, 4);
            stage.end().await;
        }
    }
}

#[tokio::test]
async fn blocks_that_cannot_be_told_apart_are_left_out() {
    let odd = [
        V::Int(5),
        V::Float(0.5),
        V::Bin(vec![1, 2]),
        V::Map(vec![]),
        V::Text("text where no salt may be"),
    ];
    for item in odd {
        let mut stage = Stage::new().await;
        let keys = V::List(vec![V::Nil, key(vec![item.clone()]), V::Nil]);
        let store = Store {
            extra_keys: keys,
            ..stored(&[101, 102, 103], None, &tokens(1..13))
        };
        stage.tell(vec![ARRAYS.store(store)]).await;
        assert_eq!(stage.gpu(&tokens(1..13)).await, 4, "{item:?}");
        let skipped = "kv_events_skipped_total{reason=\"extra_keys\"}";
        assert_eq!(stage.rig.metric(skipped), 1);
        stage.end().await;
    }
}

#[tokio::test]
async fn blocks_hashed_with_tokens_to_come_are_left_out() {
    let mut stage = Stage::new().await;
    let event = V::Map(vec![
        ("type", V::Text("BlockStored")),
        ("block_hashes", V::List(vec![V::Int(101)])),
        ("token_ids", V::numbers(1..5)),
        ("block_size", V::Int(4)),
        ("lookahead_token_ids", V::numbers(5..7)),
    ]);
    stage.tell(vec![event]).await;
    assert_eq!(stage.gpu(&tokens(1..5)).await, 0);
    let skipped = "kv_events_skipped_total{reason=\"lookahead\"}";
    assert_eq!(stage.rig.metric(skipped), 1);
    stage.end().await;
}
