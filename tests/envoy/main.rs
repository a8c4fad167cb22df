//! The built picker behind a real Envoy, in both ways Envoy can reach a worker. Never mocks Envoy.
//!
//! Needs `POINTSMAN_ENVOY`; `./test envoy` fetches it and sets it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod client;
mod envoy;
mod picker;
mod worker;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use client::{Version, pieces, request, send, whole, with_trailers};
use envoy::{DataPlane, Envoy, FailureMode, Setup};
use picker::Picker;
use worker::Worker;

const CHAT: &str = "/v1/chat/completions";
const PLANES: [DataPlane; 2] = [DataPlane::OriginalDst, DataPlane::OverrideHost];

/// Asks until the answer is there; the deadline is only for a test that has already failed.
pub(crate) async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let answer = tokio::time::timeout(Duration::from_mins(1), asking).await;
    answer.unwrap_or_else(|_| panic!("waited a minute in vain: {what}"))
}

/// Everything a test needs, started in the order in which it depends on each other.
struct World {
    envoy: Envoy,
    picker: Picker,
    workers: Vec<Worker>,
    _folder: Folder,
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What a failed removal leaves behind is a few kilobytes in the system's temporary folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl World {
    async fn start(plane: DataPlane, failure_mode: FailureMode) -> Self {
        let folder = std::env::temp_dir().join(format!("pointsman-envoy-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&folder).unwrap();
        let workers = vec![Worker::start().await, Worker::start().await];
        let addresses: Vec<SocketAddr> = workers.iter().map(|worker| worker.address).collect();
        let picker = Picker::start(&addresses, &folder).await;
        let setup = Setup {
            plane,
            failure_mode,
            picker: picker.ext_proc,
            workers: addresses,
        };
        let envoy = Envoy::start(&setup, &folder).await;
        let world = Self {
            envoy,
            picker,
            workers,
            _folder: Folder(folder),
        };
        world.picker_is_healthy(1).await;
        world
    }

    async fn picker_is_healthy(&self, hosts: u64) {
        eventually("Envoy's health check of the picker agrees", async || {
            (self.envoy.stat("cluster.picker.membership_healthy").await == hosts).then_some(())
        })
        .await;
    }

    /// What the workers saw, in all.
    fn seen(&self) -> Vec<worker::Seen> {
        self.workers.iter().flat_map(Worker::seen).collect()
    }

    async fn post(&self, version: Version, body: client::Body) -> client::Reply {
        send(
            self.envoy.address,
            version,
            request("POST", self.envoy.address, CHAT, body),
        )
        .await
    }
}

fn chat(content: &str) -> Bytes {
    // Odd spacing and an escape: a body that is written again would not come out the same.
    Bytes::from(format!(
        "{{ \"model\" : \"m\",\n \"seed\":12345678901234567890, \"messages\":[{{\"role\":\"user\",\"content\":\"caf\\u00e9 {content}\"}}] }}"
    ))
}

async fn reaches_a_worker_unchanged(
    version: Version,
    content: &str,
    body: impl Fn(Bytes) -> client::Body,
) {
    for plane in PLANES {
        let world = World::start(plane, FailureMode::Closed).await;
        let sent = chat(content);
        let reply = world.post(version, body(sent.clone())).await;
        assert_eq!(reply.status, 200, "{plane:?}");
        let seen = world.seen();
        assert_eq!(seen.len(), 1, "{plane:?}: one request, one worker");
        assert!(
            seen[0].body == sent,
            "{plane:?}: the body is the same, byte for byte"
        );
        reply.text().await;
        world.picker.until_idle().await;
    }
}

#[tokio::test]
async fn a_small_body_reaches_a_worker_unchanged_over_http1() {
    reaches_a_worker_unchanged(Version::Http1, "hello", whole).await;
}

#[tokio::test]
async fn a_small_body_reaches_a_worker_unchanged_over_http2() {
    reaches_a_worker_unchanged(Version::Http2, "hello", whole).await;
}

#[tokio::test]
async fn five_megabytes_reach_a_worker_unchanged_over_http1() {
    reaches_a_worker_unchanged(Version::Http1, &"x".repeat(5 << 20), whole).await;
}

#[tokio::test]
async fn five_megabytes_reach_a_worker_unchanged_over_http2() {
    reaches_a_worker_unchanged(Version::Http2, &"x".repeat(5 << 20), whole).await;
}

#[tokio::test]
async fn a_chunked_body_reaches_a_worker_unchanged() {
    let split = |body: Bytes| pieces(vec![body.slice(..9), body.slice(9..40), body.slice(40..)]);
    reaches_a_worker_unchanged(Version::Http1, "in three pieces", split).await;
}

#[tokio::test]
async fn a_body_that_ends_by_trailers_reaches_a_worker_unchanged() {
    reaches_a_worker_unchanged(Version::Http2, "and trailers", with_trailers).await;
    reaches_a_worker_unchanged(Version::Http1, "and trailers", with_trailers).await;
}

#[tokio::test]
async fn a_request_without_a_body_reaches_a_worker() {
    for plane in PLANES {
        let world = World::start(plane, FailureMode::Closed).await;
        let get = request("GET", world.envoy.address, "/v1/models", whole(""));
        let reply = send(world.envoy.address, Version::Http1, get).await;
        assert_eq!(reply.status, 200, "{plane:?}");
        let seen = world.seen();
        assert_eq!(
            (seen[0].method.as_str(), seen[0].path.as_str()),
            ("GET", "/v1/models")
        );
    }
}

#[tokio::test]
async fn a_stream_is_passed_on_piece_by_piece() {
    for plane in PLANES {
        let world = World::start(plane, FailureMode::Closed).await;
        let answers: Vec<_> = world.workers.iter().map(Worker::stream_next).collect();
        let mut reply = world.post(Version::Http1, whole(chat("stream"))).await;
        let chosen = usize::from(world.workers[0].seen().is_empty());
        for number in 0..3 {
            // The next piece is sent only when the last one has arrived: nothing is held back.
            let event = Bytes::from(format!(
                "data: {{\"choices\":[{{\"delta\":{number}}}]}}\n\n"
            ));
            answers[chosen].send(event.clone()).await.unwrap();
            assert_eq!(reply.next().await.unwrap(), event, "{plane:?}");
            assert_eq!(
                world.picker.active_requests().await,
                1,
                "{plane:?}: charged while it streams"
            );
        }
        drop(answers);
        assert_eq!(reply.next().await, None, "{plane:?}");
        world.picker.until_idle().await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_mid_stream_frees_the_load() {
    for plane in PLANES {
        let world = World::start(plane, FailureMode::Closed).await;
        let answers: Vec<_> = world.workers.iter().map(Worker::stream_next).collect();
        let mut reply = world.post(Version::Http1, whole(chat("leave"))).await;
        let chosen = usize::from(world.workers[0].seen().is_empty());
        answers[chosen]
            .send(Bytes::from_static(b"data: {}\n\n"))
            .await
            .unwrap();
        reply.next().await.unwrap();
        drop(reply);
        world.picker.until_idle().await;
        world.workers[chosen].left_alone().await;
    }
}

#[tokio::test]
async fn a_worker_that_is_down_is_a_503_and_leaves_no_load() {
    for plane in PLANES {
        let mut world = World::start(plane, FailureMode::Closed).await;
        world.workers.clear();
        let reply = world.post(Version::Http1, whole(chat("down"))).await;
        assert_eq!(reply.status, 503, "{plane:?}");
        reply.text().await;
        world.picker.until_idle().await;
    }
}

#[tokio::test]
async fn the_clients_own_destination_is_not_followed() {
    for plane in PLANES {
        let world = World::start(plane, FailureMode::Closed).await;
        let elsewhere = Worker::start().await;
        let mut post = request("POST", world.envoy.address, CHAT, whole(chat("steal")));
        post.headers_mut().insert(
            "x-gateway-destination-endpoint",
            elsewhere.address.to_string().parse().unwrap(),
        );
        let reply = send(world.envoy.address, Version::Http1, post).await;
        assert_eq!(reply.status, 200, "{plane:?}");
        assert!(elsewhere.seen().is_empty(), "{plane:?}");
        assert_eq!(world.seen().len(), 1, "{plane:?}");
    }
}

#[tokio::test]
async fn a_broken_body_is_answered_400_and_reaches_no_worker() {
    for plane in PLANES {
        let world = World::start(plane, FailureMode::Open).await;
        let reply = world.post(Version::Http1, whole("{\"model\":")).await;
        assert_eq!(reply.status, 400, "{plane:?}");
        assert_eq!(reply.headers["content-type"], "application/json");
        let error: serde_json::Value = serde_json::from_str(&reply.text().await).unwrap();
        assert!(error["error"]["message"].is_string(), "{plane:?}: {error}");
        assert!(world.seen().is_empty(), "{plane:?}");
    }
}

#[tokio::test]
async fn a_dead_picker_that_fails_open_leaves_the_choice_to_envoy() {
    let mut world = World::start(DataPlane::OverrideHost, FailureMode::Open).await;
    world.picker.kill().await;
    world.picker_is_healthy(0).await;
    let reply = world.post(Version::Http1, whole(chat("open"))).await;
    assert_eq!(reply.status, 200);
    assert_eq!(world.seen().len(), 1);
}

#[tokio::test]
async fn a_dead_picker_that_fails_open_cannot_be_used_to_dial_anywhere() {
    let mut world = World::start(DataPlane::OriginalDst, FailureMode::Open).await;
    let elsewhere = Worker::start().await;
    world.picker.kill().await;
    world.picker_is_healthy(0).await;
    let mut post = request("POST", world.envoy.address, CHAT, whole(chat("dial")));
    post.headers_mut().insert(
        "x-gateway-destination-endpoint",
        elsewhere.address.to_string().parse().unwrap(),
    );
    let reply = send(world.envoy.address, Version::Http1, post).await;
    assert_eq!(reply.status, 503);
    assert!(elsewhere.seen().is_empty());
}

#[tokio::test]
async fn a_dead_picker_that_fails_closed_is_a_server_error() {
    for plane in PLANES {
        let mut world = World::start(plane, FailureMode::Closed).await;
        world.picker.kill().await;
        world.picker_is_healthy(0).await;
        let reply = world.post(Version::Http1, whole(chat("closed"))).await;
        assert!(reply.status >= 500, "{plane:?}: {}", reply.status);
        assert!(world.seen().is_empty(), "{plane:?}");
    }
}
