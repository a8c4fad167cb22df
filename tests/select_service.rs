//! The subcommand `select-service` as a user meets it: its start, its warnings, a walk through its routes and its end.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

fn pointsman(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman"));
    command
        .args(arguments)
        .env_clear()
        .env("POINTSMAN_LOG_FORMAT", "json")
        .env("DYN_EPP_GRACEFUL_SHUTDOWN_PROPAGATION_SECS", "0")
        .envs(variables.iter().copied());
    command
}

fn file(name: &str, content: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, content).unwrap();
    path
}

fn with_subcommand<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&["select-service"], arguments].concat()
}

/// A start that must fail, and what it says.
fn refused(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let output = pointsman(&with_subcommand(arguments), variables)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A running service, killed with the test.
struct Running {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// Its log up to the line that says where it listens.
    said: String,
    address: SocketAddr,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Running {
    fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::spawn(&with_subcommand(arguments), variables, "http")
    }

    /// The picker, with the selection API on its admin port.
    fn start_picker(variables: &[(&str, &str)]) -> Self {
        let mut all = vec![
            ("POINTSMAN_HOST", "127.0.0.1"),
            ("POINTSMAN_EXT_PROC_PORT", "auto"),
            ("POINTSMAN_HEALTH_PORT", "auto"),
            ("DYN_EPP_METRICS_PORT", "auto"),
            ("POINTSMAN_ADMIN_API", "true"),
        ];
        all.extend(variables);
        Self::spawn(&[], &all, "admin")
    }

    fn spawn(arguments: &[&str], variables: &[(&str, &str)], address_in: &str) -> Self {
        let mut child = pointsman(arguments, variables)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        let address = loop {
            let before = said.len();
            assert_ne!(stderr.read_line(&mut said).unwrap(), 0, "{said}");
            let line = &said[before..];
            if line.contains("\"listening\"") {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                break line[address_in].as_str().unwrap().parse().unwrap();
            }
        };
        Self {
            child,
            stderr,
            said,
            address,
        }
    }

    fn get(&self, path: &str) -> String {
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        exchange(self.address, &head)
    }

    fn signal(&self) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status().unwrap();
        assert!(sent.success());
    }

    /// Ends it with SIGTERM; its exit code and the rest of its log.
    fn terminate(self) -> (Option<i32>, String) {
        self.signal();
        self.ended()
    }

    /// Waits for its end; its exit code and the rest of its log.
    fn ended(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

fn request(method: &str, path: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn walk(address: SocketAddr, token: Option<&str>) -> Output {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/http-api.sh");
    let mut command = Command::new(script);
    command.arg(format!("http://{address}"));
    if let Some(token) = token {
        command.env("TOKEN", token);
    }
    command.output().unwrap()
}

#[test]
fn the_walk_through_of_the_documentation_works_and_sigterm_ends_it_well() {
    let service = Running::start(&["--host", "127.0.0.1", "--port", "0"], &[]);
    assert!(!service.said.contains("asks nobody"), "{}", service.said);
    let output = walk(service.address, None);
    assert!(output.status.success(), "{output:?}");
    let metrics = service.get("/metrics");
    assert!(
        metrics.contains("pointsman_reservations_by_id 0"),
        "{metrics}"
    );
    let (code, log) = service.terminate();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("\"stopped\""), "{log}");
}

#[test]
fn after_sigterm_it_is_not_ready_and_callers_under_way_are_answered() {
    let wait = [("DYN_EPP_GRACEFUL_SHUTDOWN_PROPAGATION_SECS", "1")];
    let service = Running::start(&["--host", "127.0.0.1", "--port", "0"], &wait);
    let worker = r#"{"worker_id": 1, "endpoint": "http://127.0.0.1:1"}"#;
    let registered = exchange(service.address, &request("POST", "/workers", worker));
    assert!(registered.starts_with("HTTP/1.1 201"), "{registered}");
    assert!(service.get("/ready").starts_with("HTTP/1.1 200"));

    // Half of a request is sent before the signal, and the rest when it was heard.
    let whole = request("POST", "/select", r#"{"token_ids": [1, 2, 3]}"#);
    let (first, rest) = whole.split_at(whole.len() - 5);
    let mut under_way = TcpStream::connect(service.address).unwrap();
    under_way.write_all(first.as_bytes()).unwrap();
    service.signal();
    while service.get("/ready").starts_with("HTTP/1.1 200") {}
    assert!(service.get("/ready").starts_with("HTTP/1.1 503"));
    assert!(service.get("/health").starts_with("HTTP/1.1 200"));
    // The port closes when whoever sends requests has had time to hear of it.
    while TcpStream::connect(service.address).is_ok() {}
    under_way.write_all(rest.as_bytes()).unwrap();
    let mut answer = String::new();
    under_way.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("\"worker_id\":1"), "{answer}");
    let (code, log) = service.ended();
    assert_eq!(code, Some(0), "{log}");
}

#[test]
fn check_names_what_is_wrong_in_the_files_of_the_selection_service() {
    let bad_tokens = file("check-tokens", "admin let-me-do-anything\n");
    let no_pem = file("check-pem", "not a certificate\n");
    let no_pem = no_pem.to_str().unwrap();
    let variables = [
        ("POINTSMAN_SELECTION_TLS_CERTIFICATE", no_pem),
        ("POINTSMAN_SELECTION_TLS_KEY", no_pem),
        (
            "POINTSMAN_SELECTION_TOKENS_FILE",
            bad_tokens.to_str().unwrap(),
        ),
        ("POINTSMAN_INDEXER_PEERS", "https://b:8092"),
        ("POINTSMAN_INDEXER_PEERS_CA", "/nowhere/ca.pem"),
    ];
    let output = pointsman(&["check"], &variables).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    for part in [
        "check-pem",
        "check-tokens",
        "line 1",
        "/nowhere/ca.pem",
        "3 mistakes",
    ] {
        assert!(said.contains(part), "{part} is not in:\n{said}");
    }
    let good = [("POINTSMAN_INDEXER_PEERS", "http://b:8092, http://c:8092/x")];
    let output = pointsman(&["check"], &good).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_replica_starts_with_what_another_knows() {
    let first = Running::start(&["--host", "127.0.0.1", "--port", "0"], &[]);
    let worker = r#"{"worker_id": 1, "model_name": "a:b", "endpoint": "http://127.0.0.1:1"}"#;
    exchange(first.address, &request("POST", "/workers", worker));
    let url = format!("http://{}", first.address);
    let second = Running::start(
        &[
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--indexer-peers",
            &url,
        ],
        &[],
    );
    while second.get("/ready").contains("\"recovering\":true") {}
    let metrics = second.get("/metrics");
    assert!(
        metrics.contains("pointsman_recovery_peers_total{outcome=\"answered\"} 1"),
        "{metrics}"
    );
    // It learned of caches alone: workers are registered with each replica.
    assert!(second.get("/workers").ends_with("[]"));
}

#[test]
fn an_open_port_is_told_with_the_two_lines_that_close_it() {
    let service = Running::start(&["--port", "auto"], &[]);
    for part in [
        "asks nobody who they are",
        "POINTSMAN_SELECTION_TOKENS_FILE=",
        "POINTSMAN_HOST=127.0.0.1",
    ] {
        assert!(service.said.contains(part), "{}", service.said);
    }
    let refused = refused(&["--port", "auto", "--require-auth"], &[]);
    assert!(refused.contains("POINTSMAN_HOST=127.0.0.1"), "{refused}");
}

#[test]
fn tokens_of_a_file_are_asked_for() {
    let tokens = file("select-tokens", "write a-token-to-write\n");
    let variables = [("POINTSMAN_SELECTION_TOKENS_FILE", tokens.to_str().unwrap())];
    let service = Running::start(
        &["--host=127.0.0.1", "--port=0", "--require-auth"],
        &variables,
    );
    assert!(service.get("/health").starts_with("HTTP/1.1 200"));
    assert!(service.get("/workers").starts_with("HTTP/1.1 401"));
    let output = walk(service.address, Some("a-token-to-write"));
    assert!(output.status.success(), "{output:?}");
    assert!(!walk(service.address, None).status.success());
}

#[test]
fn every_mistake_is_told_at_once() {
    let said = refused(
        &[
            "--port",
            "x",
            "--threads",
            "0",
            "--selection-cache-ttl-secs=-1",
        ],
        &[
            ("POINTSMAN_SELECTION_TLS_CERTIFICATE", "/nowhere/a.pem"),
            ("POINTSMAN_SELECTION_TOKENS_FILE", "/nowhere/tokens"),
        ],
    );
    for part in [
        "POINTSMAN_SELECTION_PORT",
        "POINTSMAN_SELECTION_THREADS",
        "POINTSMAN_SELECTION_CACHE_TTL_SECS",
        "POINTSMAN_SELECTION_TLS_KEY",
        "/nowhere/tokens",
    ] {
        assert!(said.contains(part), "{part} is not in:\n{said}");
    }
}

#[test]
fn a_flag_wins_over_its_variable() {
    let wrong = [("POINTSMAN_SELECTION_PORT", "not-a-port")];
    let service = Running::start(&["--host", "127.0.0.1", "--port", "0"], &wrong);
    assert!(service.get("/health").starts_with("HTTP/1.1 200"));
}

#[test]
fn the_pickers_admin_port_serves_the_same_routes_to_look_at() {
    let picker = Running::start_picker(&[]);
    assert!(picker.get("/loads").starts_with("HTTP/1.1 200"));
    assert!(picker.get("/openapi.json").starts_with("HTTP/1.1 200"));
    assert!(picker.get("/metrics").contains("pointsman_workers"));
    assert!(picker.get("/").starts_with("HTTP/1.1 200"));
    let output = walk(picker.address, None);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.ends_with("\"code\":\"read_only\"}}\n"), "{said}");
}

#[test]
fn with_tokens_the_admin_port_serves_them_to_change() {
    let tokens = file("picker-tokens", "write a-token-to-write\n");
    let variables = [("POINTSMAN_SELECTION_TOKENS_FILE", tokens.to_str().unwrap())];
    let picker = Running::start_picker(&variables);
    let output = walk(picker.address, Some("a-token-to-write"));
    assert!(output.status.success(), "{output:?}");
    assert!(picker.get("/workers").starts_with("HTTP/1.1 401"));
}
