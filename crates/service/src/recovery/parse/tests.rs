use serde_json::{Value, json};

use super::*;

const WIDE: Bounds = Bounds {
    max_bytes: u64::MAX,
    max_blocks: 1_000_000,
};

fn read(dump: &Value) -> Parsed {
    let text = dump.to_string();
    let mut parsed = Parsed::default();
    parse(text.as_bytes(), WIDE, &mut parsed).unwrap();
    parsed
}

fn stored(worker_id: u64, parent: Option<u64>, names: &[u64]) -> Value {
    let blocks: Vec<_> = names
        .iter()
        .map(|name| json!({"block_hash": name, "tokens_hash": name + 1000, "mm_extra_info": null}))
        .collect();
    json!({
        "worker_id": worker_id,
        "storage_tier": "device",
        "event": {"event_id": 0, "data": {"stored": {
            "parent_hash": parent, "start_position": null, "blocks": blocks,
        }}, "dp_rank": 0},
    })
}

fn rank(parsed: &mut Parsed, model: &str, worker_id: u64) -> Vec<(Tier, Option<u64>, Vec<u64>)> {
    let key = (
        PartitionId::new(model, "default"),
        WorkerWithDpRank::new(worker_id, 0),
    );
    let rank = parsed.ranks.remove(&key).unwrap_or_default();
    let events = rank.into_events().map(|(tier, event)| match event {
        KvEvent::Stored { parent, blocks } => {
            let names = blocks.iter().map(|block| block.engine_hash.0);
            (tier, parent.map(|parent| parent.0), names.collect())
        }
        other => panic!("{other:?}"),
    });
    events.collect()
}

#[test]
fn a_published_dump_is_read() {
    let mut parsed = read(&json!({"m:default": {"block_size": 4, "events": [
        stored(7, None, &[1, 2]),
        stored(7, Some(2), &[3]),
    ]}}));
    assert_eq!(parsed.blocks, 3);
    let runs = rank(&mut parsed, "m", 7);
    let expected = [
        (Tier::Device, None, vec![1, 2]),
        (Tier::Device, Some(2), vec![3]),
    ];
    assert_eq!(runs, expected);
}

#[test]
fn fields_may_come_in_any_order_and_be_unknown() {
    let text = r#"{"m:default": {"x": [1, {"y": null}], "events": [{"event": {"data": {"stored": {"blocks": [
        {"tokens_hash": 1001, "z": {}, "block_hash": 1}], "parent_hash": null}}, "dp_rank": 0},
        "storage_tier": "host_pinned", "worker_id": 7}], "block_size": 4}}"#;
    let mut parsed = Parsed::default();
    parse(text.as_bytes(), WIDE, &mut parsed).unwrap();
    assert_eq!(rank(&mut parsed, "m", 7), [(Tier::Host, None, vec![1])]);
}

#[test]
fn a_model_name_may_have_colons() {
    let events = json!([stored(7, None, &[1])]);
    let mut by_key = read(&json!({"hub:a/b:v2:default": {"block_size": 4, "events": events}}));
    assert_eq!(rank(&mut by_key, "hub:a/b:v2", 7).len(), 1);
    let mut by_fields = read(&json!({"a:b:c": {
        "block_size": 4, "model_name": "a", "routing_group": "b:c", "events": events,
    }}));
    let key = (PartitionId::new("a", "b:c"), WorkerWithDpRank::new(7, 0));
    assert!(by_fields.ranks.remove(&key).is_some());
}

#[test]
fn an_entry_that_is_wrong_leaves_the_others() {
    let mut parsed = read(&json!({
        "bad:default": {"error": "offline"},
        "worse:default": [1, 2],
        "nowhere": {"block_size": 4, "events": [stored(7, None, &[1])]},
        "m:default": {"block_size": "four", "events": [
            17,
            {"worker_id": -1, "event": {"data": "cleared"}},
            {"worker_id": 7, "event": {"data": {"stored": {"blocks": [{"block_hash": 5}]}}}},
            {"worker_id": 7, "storage_tier": "tape", "event": {"data": {"stored": {"blocks": []}}}},
            stored(7, None, &[1]),
        ]},
    }));
    assert_eq!((parsed.bad_entries, parsed.skipped_events), (3, 4));
    assert_eq!(rank(&mut parsed, "m", 7), [(Tier::Device, None, vec![1])]);
}

#[test]
fn what_a_cache_owner_holds_is_not_a_workers() {
    let mut event = stored(7, None, &[1]);
    event["residency_domain"] = json!("cache_owner");
    let mut own = stored(8, None, &[1]);
    own["residency_domain"] = json!("worker");
    let mut parsed = read(&json!({"m:default": {"block_size": 4, "events": [event, own]}}));
    assert!(rank(&mut parsed, "m", 7).is_empty());
    assert_eq!(rank(&mut parsed, "m", 8).len(), 1);
}

#[test]
fn removed_and_cleared_blocks_are_not_believed() {
    let event =
        |data: Value| json!({"worker_id": 7, "event": {"event_id": 0, "dp_rank": 0, "data": data}});
    let mut parsed = read(&json!({"m:default": {"block_size": 4, "events": [
        stored(7, None, &[90]),
        event(json!("cleared")),
        stored(7, None, &[1, 2, 3]),
        event(json!({"removed": {"block_hashes": [2]}})),
    ]}}));
    assert_eq!(rank(&mut parsed, "m", 7), [(Tier::Device, None, vec![1])]);
}

#[test]
fn beyond_the_bound_of_blocks_reading_stops_and_what_was_read_stays() {
    let names: Vec<u64> = (0..100).collect();
    let text = json!({"m:default": {"block_size": 4, "events": [
        stored(7, None, &names), stored(7, Some(99), &names),
    ]}})
    .to_string();
    let bounds = Bounds {
        max_bytes: u64::MAX,
        max_blocks: 150,
    };
    let mut parsed = Parsed::default();
    let read = parse(text.as_bytes(), bounds, &mut parsed);
    assert!(matches!(read, Err(Bad::TooMany { max: 150 })));
    assert_eq!(parsed.blocks, 100);
    // Ranks cost too, even without blocks.
    let events: Vec<_> = (0..100)
        .map(|worker_id| stored(worker_id, None, &[]))
        .collect();
    let text = json!({"m:default": {"block_size": 4, "events": events}}).to_string();
    let mut parsed = Parsed::default();
    assert!(parse(text.as_bytes(), bounds, &mut parsed).is_err());
    assert!(parsed.ranks.len() < 10);
}

#[test]
fn what_is_no_dump_is_an_error() {
    for text in [
        "",
        "<html>",
        "[]",
        "null",
        "{\"m:default\":",
        "{} {}",
        "{\"a\":{}]",
    ] {
        let mut parsed = Parsed::default();
        let read = parse(text.as_bytes(), WIDE, &mut parsed);
        assert!(matches!(read, Err(Bad::Syntax { .. })), "{text}");
    }
    let mut parsed = Parsed::default();
    parse("{}\n".as_bytes(), WIDE, &mut parsed).unwrap();
}
