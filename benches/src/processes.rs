//! Starts the processes of a bench, waits until they answer, and ends them with itself.
//! It ends no process that it did not start.

use std::fs::{self, File};
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::http1::{self, Connection};

const START_DEADLINE: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(20);

/// A running child, ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// What the child prints goes to a log in `folder`.
    pub(crate) fn start(name: &'static str, command: &mut Command, folder: &Path) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        let child = command
            .spawn()
            .with_context(|| format!("starting {name}: {command:?}"))?;
        Ok(Self { name, child, log })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `path` of the process's HTTP port is answered with 200.
    pub(crate) fn wait_for_200(&mut self, port: u16, path: &str) -> Result<()> {
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        self.wait(|| {
            Connection::open(server)
                .and_then(|mut open| open.send(&http1::get(path)))
                .is_ok_and(|s| s == 200)
        })
    }

    /// Waits until the process accepts connections.
    pub(crate) fn wait_for_port(&mut self, port: u16) -> Result<()> {
        self.wait(|| Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).is_ok())
    }

    /// Waits until `ready`, as long as a start may take.
    pub(crate) fn wait(&mut self, ready: impl Fn() -> bool) -> Result<()> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "{} ended with {status}; it said:\n{}",
                    self.name,
                    self.last_words()
                );
            }
            if ready() {
                return Ok(());
            }
            if started.elapsed() > START_DEADLINE {
                bail!(
                    "{} is not ready after {START_DEADLINE:?}; it said:\n{}",
                    self.name,
                    self.last_words()
                );
            }
            thread::sleep(RETRY);
        }
    }

    fn last_words(&self) -> String {
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = said.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// The most memory the process ever had resident, in MiB.
    pub(crate) fn peak_mib(&self) -> Option<f64> {
        let mut status = String::new();
        File::open(format!("/proc/{}/status", self.pid()))
            .ok()?
            .read_to_string(&mut status)
            .ok()?;
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kib: f64 = peak.trim().trim_end_matches("kB").trim().parse().ok()?;
        Some(kib / 1024.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A folder for configuration and logs. It stays when something fails, to be looked into.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn create() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("pointsman-benches-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn remove(&self) -> Result<()> {
        fs::remove_dir_all(&self.0).with_context(|| format!("removing {}", self.0.display()))
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }
}

/// Below the range that the kernel takes ports from for whoever asks for any: none is taken before it is used.
const PORTS: std::ops::Range<u16> = 15_000..30_000;

/// Ports that are free now on the loopback address, all different.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    // Two benches at once begin at different places.
    let spread = usize::try_from(std::process::id())?.wrapping_mul(97) % PORTS.len();
    let candidates = PORTS.skip(spread).chain(PORTS.take(spread));
    let free = candidates.filter(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
    let ports: Vec<_> = free.take(N).collect();
    ports.try_into().ok().context("no port is free")
}
