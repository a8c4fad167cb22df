//! A program that runs beside the lab: started with a log file, waited for until it is ready, stopped in order.
//! Never left behind: it is killed when its handle is dropped.

use std::fs::File;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::client::Client;
use super::error::LabError;

const READY_DEADLINE: Duration = Duration::from_mins(1);
const STOP_DEADLINE: Duration = Duration::from_secs(10);
/// Lines of a log that are shown when its program fails.
const TAIL_LINES: usize = 15;

#[derive(Debug)]
pub(super) struct Program {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts the command with its output in `log`. It is a process group of its own, so that a Ctrl-C in the
    /// terminal reaches the lab alone, which then stops its programs in order.
    pub(super) fn start(
        name: &'static str,
        mut command: Command,
        log: PathBuf,
    ) -> Result<Self, LabError> {
        let file =
            File::create(&log).map_err(LabError::io(format!("creating {}", log.display())))?;
        let copy = file
            .try_clone()
            .map_err(LabError::io("sharing a log file"))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(copy)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(LabError::io(format!("starting {name}")))?;
        Ok(Self { name, child, log })
    }

    /// Waits until `url` answers 200.
    pub(super) async fn ready(&mut self, client: &Client, url: &str) -> Result<(), LabError> {
        let started = Instant::now();
        while started.elapsed() < READY_DEADLINE {
            self.still_runs()?;
            if client.get(url).await.is_ok() {
                return Ok(());
            }
            sleep(Duration::from_millis(50)).await;
        }
        Err(LabError::NotReady {
            name: self.name,
            waited: READY_DEADLINE,
            log: self.log.clone(),
            tail: self.tail(),
        })
    }

    pub(super) fn still_runs(&mut self) -> Result<(), LabError> {
        let status = self.child.try_wait();
        match status.map_err(LabError::io(format!("looking after {}", self.name)))? {
            Some(status) => Err(self.ended(status)),
            None => Ok(()),
        }
    }

    /// Waits for the program to end, which it never should.
    pub(super) async fn unexpected_end(&mut self) -> LabError {
        match self.child.wait().await {
            Ok(status) => self.ended(status),
            Err(source) => LabError::io(format!("looking after {}", self.name))(source),
        }
    }

    /// Asks the program to end, waits, and kills it if it does not.
    pub(super) async fn stop(&mut self) {
        let pid = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()));
        let Some(pid) = pid else {
            return;
        };
        // It may have ended just now; then there is nothing to stop.
        let _ = kill_process(pid, Signal::TERM);
        if timeout(STOP_DEADLINE, self.child.wait()).await.is_err() {
            eprintln!(
                "{} did not stop in {STOP_DEADLINE:?}, killing it",
                self.name
            );
            let _ = self.child.kill().await;
        }
    }

    fn ended(&self, status: ExitStatus) -> LabError {
        LabError::Ended {
            name: self.name,
            status,
            log: self.log.clone(),
            tail: self.tail(),
        }
    }

    fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }
}
