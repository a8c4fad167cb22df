//! The published map between workers and the addresses that the data plane dials.
//!
//! A snapshot: it never changes after it was built, and lists schedulable workers only.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

/// Schedulable workers by id, by `ip:port` and by bare ip.
#[derive(Debug, Default)]
pub struct EndpointTable {
    workers: BTreeMap<u64, WorkerEndpoint>,
    by_address: HashMap<SocketAddr, u64>,
    by_ip: HashMap<IpAddr, Vec<u64>>,
}

/// Where one worker is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerEndpoint {
    /// As registered, for example `http://10.0.0.7:8000`.
    pub url: String,
    /// `host:port` of the URL, IPv6 in brackets.
    pub authority: String,
    /// The authority as an address; `None` where it names a host.
    pub address: Option<SocketAddr>,
}

impl EndpointTable {
    pub(crate) fn new(workers: BTreeMap<u64, WorkerEndpoint>) -> Self {
        let mut by_address = HashMap::new();
        let mut by_ip: HashMap<IpAddr, Vec<u64>> = HashMap::new();
        for (&worker_id, endpoint) in &workers {
            let Some(address) = endpoint.address else {
                continue;
            };
            // Two workers at one address: the lower id stands for both.
            by_address.entry(address).or_insert(worker_id);
            by_ip.entry(address.ip()).or_default().push(worker_id);
        }
        Self {
            workers,
            by_address,
            by_ip,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    pub fn len(&self) -> usize {
        self.workers.len()
    }

    /// By worker id, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &WorkerEndpoint)> {
        self.workers
            .iter()
            .map(|(&worker_id, endpoint)| (worker_id, endpoint))
    }

    pub fn endpoint(&self, worker_id: u64) -> Option<&WorkerEndpoint> {
        self.workers.get(&worker_id)
    }

    /// The worker at `ip:port`; IPv6 may come with or without brackets around the ip.
    pub fn worker_at(&self, endpoint: &str) -> Option<u64> {
        self.by_address.get(&parse_address(endpoint)?).copied()
    }

    /// Every worker at an ip, whatever its port.
    pub fn workers_at_ip(&self, ip: &str) -> &[u64] {
        let bare = ip.trim().trim_start_matches('[').trim_end_matches(']');
        let workers = bare
            .parse::<IpAddr>()
            .ok()
            .and_then(|ip| self.by_ip.get(&ip));
        workers.map_or(&[], Vec::as_slice)
    }
}

/// `1.2.3.4:80` or `[::1]:80`; `::1:80` is read as an ip and a port, as some senders write it.
fn parse_address(endpoint: &str) -> Option<SocketAddr> {
    let endpoint = endpoint.trim();
    endpoint.parse().ok().or_else(|| {
        let (ip, port) = endpoint.rsplit_once(':')?;
        Some(SocketAddr::new(ip.parse().ok()?, port.parse().ok()?))
    })
}

#[cfg(test)]
mod tests;
