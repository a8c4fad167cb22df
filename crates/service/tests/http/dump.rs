//! The index, told to whoever asks: `GET /dump`.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::rig::{PATIENCE, Rig, worker};

#[tokio::test]
async fn each_partition_is_an_entry_with_its_names_beside_the_published_keys() {
    let rig = Rig::with_workers(1..=2).await;
    let mut other = worker(3);
    other["model_name"] = json!("hub:x");
    rig.register(other).await;
    let dump = rig.get("/dump").await;
    assert_eq!(dump.status, 200);
    assert_eq!(dump.headers["content-type"], "application/json");
    let entry = json!({
        "block_size": 16,
        "model_name": "hub:x",
        "routing_group": "default",
        "events": [],
        "watermarks": [],
    });
    assert_eq!(dump.body["hub:x:default"], entry);
    assert_eq!(dump.body["m:default"]["events"], json!([]));
}

#[tokio::test]
async fn a_service_without_workers_has_an_empty_dump() {
    let rig = Rig::new().await;
    assert_eq!(rig.get("/dump").await.text, "{}\n");
}

#[tokio::test]
async fn a_head_request_is_answered_without_the_dump() {
    let rig = Rig::with_workers(1..=1).await;
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    let request = "HEAD /dump HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n"),
        "{answer}"
    );
}

#[tokio::test]
async fn too_many_dumps_at_once_are_refused_and_others_go_on() {
    let rig = Rig::with_workers(1..=1).await;
    let service = &rig.service;
    // Nobody reads these; each has its turn until it is dropped or written.
    let mut refused = 0;
    let mut under_way = Vec::new();
    for _ in 0..8 {
        match service.dump() {
            Ok(dump) => under_way.push(dump),
            Err(error) => {
                assert_eq!(error.status_code(), 429);
                refused += 1;
            }
        }
    }
    assert!(refused >= 6, "{refused} refused");
    drop(under_way);
    let free = async { while rig.get("/dump").await.status != 200 {} };
    tokio::time::timeout(PATIENCE, free).await.unwrap();
}
