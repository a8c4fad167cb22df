use std::num::NonZeroU32;

use pointsman_core::hash::BlockHash;
use pointsman_core::{PartitionConfig, PartitionId};
use pointsman_plugin::{KvRouterConfig, RouterPluginRegistry, WorkerType};
use serde_json::Value;

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

fn entry(model: &str, ranks: &[u64]) -> Entry {
    let config = KvRouterConfig::default();
    let resolved = RouterPluginRegistry::default()
        .resolve_for_worker_type(&config, WorkerType::Aggregated)
        .unwrap();
    let block_size = NonZeroU32::new(16).unwrap();
    let config = PartitionConfig::new(config, WorkerType::Aggregated, resolved.factory, block_size);
    let id = PartitionId::new(model, "default");
    Entry {
        id: id.clone(),
        partition: Arc::new(Partition::new(id, config)),
        ranks: ranks
            .iter()
            .map(|&worker_id| Rank {
                worker: WorkerWithDpRank::new(worker_id, 0),
                progress: None,
            })
            .collect(),
    }
}

fn blocks(names: std::ops::Range<u64>) -> Vec<StoredBlock> {
    let block = |name| StoredBlock {
        engine_hash: EngineHash(name),
        block_hash: BlockHash(name + 1000),
    };
    names.map(block).collect()
}

/// Device blocks named after the worker, one block of host memory behind them; worker 13 fails.
async fn copy(_: Arc<Partition>, dump: RankDump) -> Result<RankCopy, RankUnreadable> {
    let worker = dump.worker();
    let name = worker.worker_id * 10;
    let mut copy = RankCopy::default();
    if worker.worker_id == 13 {
        return Err(RankUnreadable(worker));
    }
    if dump.tiers() == DEVICE {
        copy.add(Tier::Device, None, &blocks(name..name + 2));
        copy.rest = Rest::Done {
            has_others: true,
            left_out: 0,
        };
    } else {
        let parent = Some(EngineHash(name + 1));
        copy.add(Tier::Host, parent, &blocks(name + 2..name + 3));
    }
    Ok(copy)
}

async fn written(entries: Vec<Entry>) -> Value {
    let (sender, mut pieces) = mpsc::channel(64);
    let mut outlet = Outlet::new(sender, PATIENCE);
    write(entries, copy, &mut outlet).await.unwrap();
    drop(outlet);
    let mut text = Vec::new();
    while let Some(Piece::More(bytes) | Piece::Last(bytes)) = pieces.recv().await {
        text.extend_from_slice(&bytes);
    }
    serde_json::from_slice(&text).unwrap()
}

#[tokio::test]
async fn events_have_the_published_shape_and_the_device_comes_first() {
    let dump = written(vec![entry("a:b", &[1, 2])]).await;
    let entry = &dump["a:b:default"];
    assert_eq!(entry["block_size"], 16);
    assert_eq!(entry["model_name"], "a:b");
    assert_eq!(entry["routing_group"], "default");
    let first = json!({
        "worker_id": 1,
        "storage_tier": "device",
        "event": {"event_id": 0, "dp_rank": 0, "data": {"stored": {
            "parent_hash": null,
            "start_position": null,
            "blocks": [
                {"block_hash": 10, "tokens_hash": 1010, "mm_extra_info": null},
                {"block_hash": 11, "tokens_hash": 1011, "mm_extra_info": null},
            ],
        }}},
    });
    assert_eq!(entry["events"][0], first);
    let told: Vec<_> = entry["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(tier)
        .collect();
    let expected = [
        (1, "device"),
        (2, "device"),
        (1, "host_pinned"),
        (2, "host_pinned"),
    ];
    assert_eq!(told, expected);
    assert_eq!(
        entry["events"][2]["event"]["data"]["stored"]["parent_hash"],
        11
    );
}

fn tier(event: &Value) -> (u64, &str) {
    let worker_id = event["worker_id"].as_u64().unwrap();
    (worker_id, event["storage_tier"].as_str().unwrap())
}

#[tokio::test]
async fn a_partition_that_cannot_be_read_is_an_error_and_the_others_are_told() {
    let dump = written(vec![entry("bad", &[13]), entry("good", &[1])]).await;
    let bad = dump["bad:default"].as_object().unwrap();
    assert_eq!(bad.keys().collect::<Vec<_>>(), ["error"]);
    assert_eq!(dump["good:default"]["events"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_rank_that_cannot_be_read_is_told_after_the_events_of_the_others() {
    let dump = written(vec![entry("m", &[1, 13, 2])]).await;
    let entry = &dump["m:default"];
    assert_eq!(entry["events"].as_array().unwrap().len(), 4);
    assert!(entry["error"].as_str().unwrap().contains("worker 13"));
}

#[tokio::test]
async fn a_partition_without_workers_has_no_events() {
    let dump = written(vec![entry("m", &[])]).await;
    assert_eq!(dump["m:default"]["events"], json!([]));
    assert_eq!(dump["m:default"]["watermarks"], json!([]));
}

#[tokio::test]
async fn a_long_run_is_told_in_events_that_follow_each_other() {
    let long = |_, _| async {
        let mut copy = RankCopy::default();
        copy.add(Tier::Device, None, &blocks(0..2500));
        Ok(copy)
    };
    let (sender, mut pieces) = mpsc::channel(64);
    let mut outlet = Outlet::new(sender, PATIENCE);
    write(vec![entry("m", &[1])], long, &mut outlet)
        .await
        .unwrap();
    drop(outlet);
    let (mut text, mut count) = (Vec::new(), 0);
    while let Some(Piece::More(bytes) | Piece::Last(bytes)) = pieces.recv().await {
        text.extend_from_slice(&bytes);
        count += 1;
    }
    assert!(count > 1, "{count} pieces");
    let dump: Value = serde_json::from_slice(&text).unwrap();
    let events = dump["m:default"]["events"].as_array().unwrap();
    let stored = |event: &Value| event["event"]["data"]["stored"].clone();
    let parents: Vec<_> = events
        .iter()
        .map(|event| stored(event)["parent_hash"].clone())
        .collect();
    assert_eq!(parents, [Value::Null, json!(1023), json!(2047)]);
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_given_up() {
    let (sender, pieces) = mpsc::channel(1);
    let mut outlet = Outlet::new(sender, Duration::from_millis(1));
    outlet.put("x");
    outlet
        .send(Piece::More(Bytes::from_static(b"y")))
        .await
        .unwrap();
    assert_eq!(outlet.end().await, Err(ReaderGone));
    drop(pieces);
}
