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
        let mut stream = TcpStream::connect(self.address).unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Ends it with SIGTERM; its exit code and the rest of its log.
    fn terminate(mut self) -> (Option<i32>, String) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status().unwrap();
        assert!(sent.success());
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
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
