//! The built picker as a process of its own: finds its ports, ends when dropped. Never tests anything.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use tokio::process::{Child, Command};

use crate::client;
use crate::eventually;

#[derive(Debug)]
pub(crate) struct Picker {
    pub(crate) ext_proc: SocketAddr,
    pub(crate) admin: SocketAddr,
    process: Child,
}

impl Picker {
    /// Starts the picker with these workers, numbered from 1.
    pub(crate) async fn start(workers: &[SocketAddr], folder: &Path) -> Self {
        let workers_file = folder.join("workers.yaml");
        std::fs::write(&workers_file, workers_yaml(workers)).expect("write the workers file");
        let log_path = folder.join("picker.log");
        let log = std::fs::File::create(&log_path).expect("create the picker's log");
        let process = Command::new(env!("CARGO_BIN_EXE_pointsman"))
            .env("POINTSMAN_WORKERS_FILE", &workers_file)
            .env("POINTSMAN_EXT_PROC_PORT", "auto")
            .env("POINTSMAN_HEALTH_PORT", "auto")
            .env("DYN_EPP_METRICS_PORT", "auto")
            .env("DYN_SECURE_SERVING", "false")
            .env("DYN_EPP_GRACEFUL_SHUTDOWN_PROPAGATION_SECS", "0")
            .env("POINTSMAN_LOG_FORMAT", "json")
            .stdout(log.try_clone().expect("clone the log's handle"))
            .stderr(log)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("start the picker");
        let (ext_proc, admin) = eventually("the picker logs its addresses", async || {
            addresses(&std::fs::read_to_string(&log_path).ok()?)
        })
        .await;
        Self {
            ext_proc,
            admin,
            process,
        }
    }

    /// Requests that are charged to any worker now.
    pub(crate) async fn active_requests(&self) -> u64 {
        let text = client::get_text(self.admin, "/loads").await;
        let partitions: Value = serde_json::from_str(&text).expect("loads are JSON");
        let rows = partitions
            .as_array()
            .expect("a list")
            .iter()
            .flat_map(|partition| partition["loads"].as_array().expect("a list of loads"));
        rows.map(|row| row["active_requests"].as_u64().expect("a count"))
            .sum()
    }

    pub(crate) async fn until_idle(&self) {
        eventually("the picker holds no load", async || {
            (self.active_requests().await == 0).then_some(())
        })
        .await;
    }

    /// Ends the picker as a crash would.
    pub(crate) async fn kill(&mut self) {
        self.process.kill().await.expect("kill the picker");
    }
}

fn workers_yaml(workers: &[SocketAddr]) -> String {
    let mut yaml = String::from("workers:\n");
    for (number, address) in (1..).zip(workers) {
        let _ = writeln!(
            yaml,
            "  - {{worker_id: {number}, model_name: m, block_size: 16, endpoint: 'http://{address}'}}"
        );
    }
    yaml
}

/// The addresses in the line that the picker logs when it serves.
fn addresses(log: &str) -> Option<(SocketAddr, SocketAddr)> {
    log.lines().find_map(|line| {
        let line: Value = serde_json::from_str(line).ok()?;
        let field = |name: &str| line.get(name)?.as_str()?.parse::<SocketAddr>().ok();
        let reachable = |address: SocketAddr| SocketAddr::from(([127, 0, 0, 1], address.port()));
        Some((reachable(field("ext_proc")?), reachable(field("admin")?)))
    })
}
