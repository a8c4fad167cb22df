//! The binary as a user meets it: its command line, its start and its end; never what it routes.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

/// The binary with the given variables and no others.
fn pointsman(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman"));
    command
        .args(arguments)
        .env_clear()
        .envs(variables.iter().copied());
    command
}

fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    pointsman(arguments, variables).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A file of its own for one test.
fn file(name: &str, content: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, content).unwrap();
    path
}

/// Starts with these variables, expects a failure, and returns what it said.
fn refused(variables: &[(&str, &str)]) -> String {
    let output = run(&[], variables);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    text(&output.stderr)
}

fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

#[test]
fn help_teaches_with_examples() {
    let output = run(&["--help"], &[]);
    assert!(output.status.success());
    let parts = ["check", "settings", "POINTSMAN_WORKERS_FILE", "Examples"];
    assert_contains(&text(&output.stdout), &parts);
}

#[test]
fn the_version_is_that_of_the_package() {
    let output = run(&["--version"], &[]);
    assert!(output.status.success());
    assert_contains(&text(&output.stdout), &[env!("CARGO_PKG_VERSION")]);
}

#[test]
fn an_unknown_subcommand_is_a_usage_error() {
    let output = run(&["chekc"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert_contains(&text(&output.stderr), &["chekc", "check"]);
}

#[test]
fn settings_lists_the_table() {
    let output = run(&["settings"], &[]);
    assert!(output.status.success());
    assert_contains(
        &text(&output.stdout),
        &["DYN_EPP_MODE", "server.health_port"],
    );
}

#[test]
fn every_mistake_stops_the_start_and_is_readable() {
    let said = refused(&[
        ("DYN_EPP_MODE", "dynamo"),
        ("POINTSMAN_EXT_PROC_PORT", "90o2"),
        ("POINTSMAN_HEATLH_PORT", "9003"),
        ("RUST_BACKTRACE", "1"),
    ]);
    let parts = [
        "there is no runtime mode",
        "90o2",
        "did you mean POINTSMAN_HEALTH_PORT?",
        "`check` looks again",
    ];
    assert_contains(&said, &parts);
    assert!(
        !said.contains("backtrace") && !said.contains("SettingError"),
        "{said}"
    );
}

#[test]
fn a_bad_policy_file_stops_the_start_and_names_what_is_wrong() {
    let yaml = "
worker_selection:
  aggregated: lb
  instances:
    - name: lb
      type: dynamo-default-cost-fm
";
    let path = file("bad-policy.yaml", yaml);
    let said = refused(&[("DYN_ROUTER_POLICY_CONFIG", path.to_str().unwrap())]);
    assert_contains(&said, &["dynamo-default-cost-fm"]);
}

#[test]
fn a_bad_workers_file_stops_the_start_and_names_the_entry() {
    let path = file(
        "bad-workers.yaml",
        "workers:\n  - {worker_id: 7}\n  - {worker_id: 7}\n",
    );
    let path = path.to_str().unwrap();
    let said = refused(&[("POINTSMAN_WORKERS_FILE", path)]);
    assert_contains(&said, &[path, "entry 2", "worker_id 7"]);
}

#[test]
fn check_reports_mistakes_of_settings_and_files_at_once_and_exits_2() {
    let workers = file(
        "check-workers.yaml",
        "workers:\n  - {worker_id: 7, colour: red}\n",
    );
    let output = run(
        &["check"],
        &[
            ("DYN_EPP_MODE", "dynamo"),
            ("POINTSMAN_WORKERS_FILE", workers.to_str().unwrap()),
            ("POINTSMAN_TOKENIZER_DIR", "/does/not/exist"),
        ],
    );
    assert_eq!(output.status.code(), Some(2));
    let parts = ["there is no runtime mode", "colour", "/does/not/exist"];
    assert_contains(&text(&output.stderr), &parts);
}

#[test]
fn check_says_what_would_run_and_starts_nothing() {
    let workers = file("good-workers.yaml", "workers:\n  - {worker_id: 7}\n");
    let variables = [("POINTSMAN_WORKERS_FILE", workers.to_str().unwrap())];
    let output = run(&["check"], &variables);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_contains(&text(&output.stdout), &["1 worker", "built-in", "9002"]);
}

/// A picker that runs on ports of its own.
struct Running {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// Its log up to the line that says where it listens.
    said: String,
    admin: SocketAddr,
}

impl Running {
    /// Returns once it says where it listens.
    fn start(variables: &[(&str, &str)]) -> Self {
        let mut all = vec![
            ("POINTSMAN_HOST", "127.0.0.1"),
            ("POINTSMAN_EXT_PROC_PORT", "auto"),
            ("POINTSMAN_HEALTH_PORT", "auto"),
            ("DYN_EPP_METRICS_PORT", "auto"),
            ("DYN_EPP_GRACEFUL_SHUTDOWN_PROPAGATION_SECS", "0"),
            ("POINTSMAN_LOG_FORMAT", "json"),
        ];
        all.extend(variables);
        let mut child = pointsman(&[], &all).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let (said, listening) = line_with(&mut stderr, "\"listening\"");
        let admin = listening["admin"].as_str().unwrap().parse().unwrap();
        Self {
            child,
            stderr,
            said,
            admin,
        }
    }

    /// Status line and body of one admin page.
    fn get(&self, path: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.lines().next().unwrap().to_owned(), body.to_owned())
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args([name, &id]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already, unless the test failed.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The first log event that holds `part`, after what was said before it; a log that ends without one fails the test.
fn line_with(stderr: &mut impl BufRead, part: &str) -> (String, serde_json::Value) {
    let mut said = String::new();
    loop {
        let mut line = String::new();
        assert!(
            stderr.read_line(&mut line).unwrap() > 0,
            "no {part} in:\n{said}"
        );
        if line.contains(part) {
            return (said, serde_json::from_str(&line).unwrap());
        }
        said.push_str(&line);
    }
}

#[test]
fn with_nothing_configured_it_is_alive_not_ready_and_ends_on_sigterm() {
    let mut running = Running::start(&[]);
    let (status, body) = running.get("/ready");
    assert_eq!(status, "HTTP/1.1 503 Service Unavailable");
    assert_contains(&body, &["no worker is schedulable"]);
    assert_eq!(running.get("/health").0, "HTTP/1.1 200 OK");
    running.signal("-TERM");
    assert_eq!(running.child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_tokenizer_library_gets_no_threads_of_its_own() {
    let picker = Running::start(&[]);
    let environment = fs::read(format!("/proc/{}/environ", picker.child.id())).unwrap();
    let environment = text(&environment);
    assert_contains(
        &environment,
        &["FASTOKENS_BPE_THREADS=1", "FASTOKENS_SPIN_US=0"],
    );
}

#[test]
fn the_guides_command_starts() {
    let path = file("guide-policy.yaml", "");
    let mut running = Running::start(&[
        ("DYN_EPP_MODE", "standalone"),
        ("DYN_ROUTER_POLICY_CONFIG", path.to_str().unwrap()),
    ]);
    running.signal("-INT");
    assert_eq!(running.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut running = Running::start(&[("DYN_EPP_GRACEFUL_SHUTDOWN_PROPAGATION_SECS", "86400")]);
    running.signal("-TERM");
    line_with(&mut running.stderr, "\"stopping\"");
    running.signal("-TERM");
    assert_eq!(running.child.wait().unwrap().code(), Some(1));
}

#[test]
fn a_worker_that_the_file_gains_makes_it_ready() {
    let workers = file("growing-workers.yaml", "workers: []\n");
    let mut running = Running::start(&[("POINTSMAN_WORKERS_FILE", workers.to_str().unwrap())]);
    assert!(running.get("/ready").0.contains("503"));
    let entry = "{worker_id: 7, endpoint: 'http://127.0.0.1:8000', block_size: 16}";
    fs::write(&workers, format!("workers:\n  - {entry}\n")).unwrap();
    line_with(&mut running.stderr, "workers file changed");
    let (status, body) = running.get("/ready");
    assert_eq!(status, "HTTP/1.1 200 OK", "{body}");
    assert_contains(
        &running.get("/workers").1,
        &["\"worker_id\":7", "schedulable"],
    );
    assert_contains(&running.get("/loads").1, &["\"routing_group\":\"default\""]);
    assert_contains(
        &running.get("/metrics").1,
        &["pointsman_workers_file_reloads_total", "# EOF"],
    );
}

#[test]
fn published_names_without_effect_are_named_in_one_warning() {
    let variables = [("POD_NAMESPACE", "default"), ("POD_IP", "10.0.0.1")];
    let running = Running::start(&variables);
    assert_eq!(
        running.said.matches("POD_NAMESPACE, POD_IP").count(),
        1,
        "{}",
        running.said
    );
    let output = run(&["check"], &variables);
    assert_contains(&text(&output.stdout), &["POD_NAMESPACE, POD_IP"]);
}

#[test]
fn a_selection_of_another_role_is_ignored_with_one_warning() {
    let yaml = "
worker_selection:
  prefill: pf
  instances:
    - name: pf
      type: not-linked-here
";
    let path = file("prefill-policy.yaml", yaml);
    let running = Running::start(&[("DYN_ROUTER_POLICY_CONFIG", path.to_str().unwrap())]);
    assert_eq!(
        running.said.matches("is ignored").count(),
        1,
        "{}",
        running.said
    );
    assert_contains(&running.said, &["worker_selection.prefill"]);
}

#[test]
fn a_port_that_is_taken_stops_the_start_and_names_its_setting() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let said = refused(&[
        ("POINTSMAN_HOST", "127.0.0.1"),
        ("POINTSMAN_EXT_PROC_PORT", "auto"),
        ("POINTSMAN_HEALTH_PORT", "auto"),
        ("DYN_EPP_METRICS_PORT", &port),
    ]);
    assert_contains(&said, &["DYN_EPP_METRICS_PORT", &port, "in use"]);
}
