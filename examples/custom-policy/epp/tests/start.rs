//! The linked picker as a process: it finds its policy, starts, and stops when it is told to.
//!
//! It never sends a request; Pointsman's own tests do.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The guide's command, on ports that cannot clash and without a pause before it stops.
fn picker() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_acme-epp"));
    command
        .env_clear()
        .env("DYN_EPP_MODE", "standalone")
        .env(
            "DYN_ROUTER_POLICY_CONFIG",
            concat!(env!("CARGO_MANIFEST_DIR"), "/../worker-selection.yaml"),
        )
        .env("POINTSMAN_EXT_PROC_PORT", "auto")
        .env("POINTSMAN_HEALTH_PORT", "auto")
        .env("DYN_EPP_METRICS_PORT", "auto")
        .env("DYN_EPP_GRACEFUL_SHUTDOWN_PROPAGATION_SECS", "0");
    command
}

/// A started picker that does not outlive its test.
struct Running {
    child: Child,
    log: Receiver<String>,
}

impl Running {
    fn start() -> Self {
        let mut child = picker().stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, log) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, log }
    }

    /// The lines logged up to the one with `word`.
    fn log_until(&self, word: &str) -> Vec<String> {
        let mut seen = Vec::new();
        loop {
            match self.log.recv_timeout(Duration::from_secs(60)) {
                Ok(line) => seen.push(line),
                Err(error) => panic!("{error} before {word:?}: {seen:#?}"),
            }
            if seen.last().is_some_and(|line| line.contains(word)) {
                return seen;
            }
        }
    }

    fn terminate(&self) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status();
        assert!(sent.unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already where the test passed.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn it_would_run_the_policy_of_its_configuration() {
    let output = picker().arg("check").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("least-busy (type least-busy)"), "{text}");
}

#[test]
fn it_starts_warns_of_the_roles_it_ignores_and_stops_with_0() {
    let mut running = Running::start();
    let log = running.log_until("listening");
    for role in ["prefill", "decode", "encode"] {
        let setting = format!("worker_selection.{role}");
        let warned = log
            .iter()
            .filter(|line| line.contains("WARN") && line.contains(&setting));
        assert_eq!(warned.count(), 1, "{role}: {log:#?}");
    }
    running.terminate();
    running.log_until("stopped");
    assert!(running.child.wait().unwrap().success());
}
