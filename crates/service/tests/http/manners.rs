//! What clients get wrong, and how they are told.

use bytes::Bytes;
use hyper::Method;
use pointsman_service::http::Config;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::rig::{Answer, PATIENCE, Rig, asking, merged, worker};

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

/// A JSON error with this status and code, in the shape that all have.
fn check(answer: &Answer, status: u16, code: &str) {
    assert_eq!(
        (answer.status, answer.code()),
        (status, code),
        "{}",
        answer.text
    );
    let error = &answer.body["error"];
    assert!(error["message"].is_string() && error["type"].is_string());
    assert!(error.get("param").is_some());
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(answer.headers.contains_key("allow"), status == 405);
}

#[tokio::test]
async fn malformed_bodies_get_their_status_and_a_json_error() {
    let rig = Rig::with_workers(1..=1).await;
    let prompt = asking(json!({})).to_string();
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let gzip = [JSON[0], ("content-encoding", "gzip")];
    let trailing = format!("{prompt} x");
    for (headers, body, status, code) in [
        (JSON, "{\"model_name\":", 400, "invalid_json"),
        (JSON, "", 400, "invalid_json"),
        (JSON, &trailing, 400, "invalid_json"),
        (JSON, "[]", 400, "invalid_request"),
        (&form, "x=1", 415, "unsupported_content_type"),
        (&gzip, &prompt, 415, "unsupported_content_encoding"),
    ] {
        let body = body.to_owned();
        let answer = rig.send(Method::POST, "/select", headers, body).await;
        check(&answer, status, code);
    }
}

#[tokio::test]
async fn unknown_routes_and_wrong_methods_get_a_json_error() {
    let rig = Rig::new().await;
    for (method, path, status, code) in [
        (Method::GET, "/nope", 404, "route_not_found"),
        (Method::GET, "/select", 405, "method_not_allowed"),
        (Method::DELETE, "/loads", 405, "method_not_allowed"),
        (Method::PUT, "/workers/1", 405, "method_not_allowed"),
        (
            Method::GET,
            "/loads?model_name=a&model_name=b",
            400,
            "invalid_request",
        ),
    ] {
        check(&rig.send(method, path, &[], "").await, status, code);
    }
}

#[tokio::test]
async fn json_of_any_declared_kind_and_unknown_fields_are_taken() {
    let rig = Rig::with_workers(1..=1).await;
    let prompt = asking(json!({"nobody": {"knows": [1, "x", null]}})).to_string();
    for headers in [
        &[][..],
        &[("content-type", "application/json; charset=utf-8")],
        &[
            ("content-type", "application/vnd.x+json"),
            ("content-encoding", "identity"),
        ],
    ] {
        let answer = rig
            .send(Method::POST, "/select", headers, prompt.clone())
            .await;
        assert_eq!(answer.status, 200, "{headers:?}");
    }
}

#[tokio::test]
async fn a_body_is_taken_up_to_its_cap() {
    let config = Config {
        max_body_bytes: 10_000,
        ..Config::default()
    };
    let rig = Rig::with(|builder| builder, config).await;
    rig.register(worker(1)).await;
    let of_length = |length: usize| {
        let body = asking(json!({"pad": ""})).to_string();
        body.replace(
            "\"pad\":\"\"",
            &format!("\"pad\":\"{}\"", "x".repeat(length - body.len())),
        )
    };
    let fits = rig
        .send(Method::POST, "/select", JSON, of_length(10_000))
        .await;
    assert_eq!(fits.status, 200);
    let over = rig
        .send(Method::POST, "/select", JSON, of_length(10_001))
        .await;
    assert_eq!((over.status, over.code()), (413, "body_too_large"));
}

#[tokio::test]
async fn a_body_without_a_stated_length_is_capped_too() {
    let config = Config {
        max_body_bytes: 1_000,
        ..Config::default()
    };
    let rig = Rig::with(|builder| builder, config).await;
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    let head = "POST /select HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = format!("{:x}\r\n{}\r\n0\r\n\r\n", 2_000, "x".repeat(2_000));
    stream
        .write_all(format!("{head}{chunk}").as_bytes())
        .await
        .unwrap();
    let mut answer = [0; 12];
    let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut answer));
    read.await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
}

#[tokio::test]
async fn a_list_of_half_a_million_hashes_is_read() {
    let rig = Rig::with_workers(1..=1).await;
    let hashes: Vec<u64> = (0..300_000).collect();
    let body = json!({"model_name": "m", "block_hashes": hashes, "sequence_hashes": hashes, "isl_tokens": 4_800_000});
    let answer = rig.post("/select", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let body = json!({"model_name": "m", "block_hashes": (0..500_000).collect::<Vec<u64>>()});
    let answer = rig.post("/select", body).await;
    assert_eq!((answer.status, answer.param()), (400, "sequence_hashes"));
}

#[tokio::test]
async fn no_number_stops_a_partition_or_hides_anothers_load() {
    let rig = Rig::with_workers(1..=1).await;
    rig.register(merged(worker(2), json!({"model_name": "n"})))
        .await;
    let huge = |id: &str, isl: u64| json!({"model_name": "m", "selection_id": id, "block_hashes": [1], "sequence_hashes": [1], "isl_tokens": isl});
    for (id, isl) in [
        ("a", 1 << 63),
        ("b", 1 << 63),
        ("c", u64::MAX),
        ("d", u64::MAX),
    ] {
        let answer = rig.post("/select_and_reserve", huge(id, isl)).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    let loads = rig.get("/loads").await;
    assert_eq!(loads.status, 200);
    assert_eq!(
        loads.body[0]["loads"][0]["potential_prefill_tokens"],
        u64::MAX
    );
    assert_eq!(loads.body[1]["model_name"], "n");
    for path in ["/select", "/potential_loads", "/overlap_scores"] {
        assert_eq!(rig.post(path, asking(json!({}))).await.status, 200);
    }
    let other = rig
        .post("/select", asking(json!({"model_name": "n"})))
        .await;
    assert_eq!(other.body["worker_id"], 2);
    for id in ["a", "b", "c", "d"] {
        assert_eq!(rig.delete(&format!("/reservations/{id}")).await.status, 200);
    }
    assert_eq!(rig.totals().await, (0, 0));
}

#[tokio::test]
async fn numbers_out_of_range_are_refused_by_name() {
    let rig = Rig::with_workers(1..=1).await;
    for (field, value) in [
        ("isl_tokens", "-1"),
        ("isl_tokens", "18446744073709551616"),
        ("isl_tokens", "1.5"),
        ("strict_priority", "-1"),
        ("priority_jump", "1e999"),
        ("expected_output_tokens", "4294967296"),
        ("allowed_worker_ids", "[-1]"),
    ] {
        let mut body = asking(json!({}));
        body[field] = Value::Null;
        let body = body.to_string().replace(
            &format!("\"{field}\":null"),
            &format!("\"{field}\":{value}"),
        );
        let answer = rig
            .send(Method::POST, "/select", JSON, Bytes::from(body))
            .await;
        assert_eq!(
            (answer.status, answer.param()),
            (400, field),
            "{value}: {}",
            answer.text
        );
    }
}

#[tokio::test]
async fn callers_under_way_are_answered_when_the_server_stops() {
    let rig = Rig::with_workers(1..=1).await;
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    let body = asking(json!({})).to_string();
    let head = format!(
        "POST /select HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let (first, rest) = body.split_at(10);
    stream
        .write_all(format!("{head}{first}").as_bytes())
        .await
        .unwrap();
    // The head has arrived once another connection, made later, was answered.
    assert_eq!(rig.get("/health").await.status, 200);
    rig.stop.cancel();
    let refused = async {
        while TcpStream::connect(rig.address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, refused).await.unwrap();
    stream.write_all(rest.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer));
    read.await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    tokio::time::timeout(PATIENCE, rig.serving)
        .await
        .unwrap()
        .unwrap();
}
