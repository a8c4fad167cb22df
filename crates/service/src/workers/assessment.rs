//! Judges a registration: can this worker serve, and if not, why; and where its events come from.
//!
//! Pure: it looks at the registration, the rules and what the partition has pinned, and keeps nothing.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;

use super::endpoints::WorkerEndpoint;
use super::registration::WorkerRegistration;

/// What every worker of this service must satisfy.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) default_block_size: NonZeroU32,
    /// Endpoints must be `http://ip:port`: the data plane dials addresses, not names.
    pub(crate) require_ip_endpoints: bool,
    pub(crate) use_kv_events: bool,
    /// Admission by load is on, and needs to know what a worker can take.
    pub(crate) queueing: bool,
}

/// What a partition fixed when its first worker joined, for the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) block_size: NonZeroU32,
    pub(crate) eagle: bool,
}

/// Where one rank's events come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventSource {
    pub(crate) publisher: String,
    pub(crate) replay: Option<String>,
}

/// All that is needed to let a worker serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) endpoint: WorkerEndpoint,
    pub(crate) layout: Layout,
    pub(crate) sources: BTreeMap<u32, EventSource>,
}

/// Why a worker cannot serve. The messages are part of the published interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Reason {
    #[error("endpoint is required")]
    NoEndpoint,
    #[error("endpoint must be http://ip:port (IPv6 in brackets), found {found}")]
    EndpointNotIp { found: String },
    #[error("endpoint must be http://host:port, found {found}")]
    BadEndpoint { found: String },
    #[error("block_size must be greater than 0")]
    ZeroBlockSize,
    #[error("data_parallel_size must be greater than 0")]
    NoRanks,
    #[error("data_parallel_start_rank {first_rank} leaves no room for {rank_count} ranks")]
    RankOverflow { first_rank: u32, rank_count: u32 },
    #[error("max_num_batched_tokens is required while queueing is enabled")]
    NoBatchLimit,
    #[error("kv_events endpoint is required for dp_rank {dp_rank}")]
    NoEventsEndpoint { dp_rank: u32 },
    #[error("{field} must be tcp://host:port or ipc://path, found {found}")]
    BadSocket { field: &'static str, found: String },
    #[error("{field} {found} leaves no port for dp_rank {dp_rank}")]
    NoPort {
        field: &'static str,
        found: String,
        dp_rank: u32,
    },
    #[error("{field} names dp_rank {dp_rank}, which the worker does not have")]
    ForeignRank { field: &'static str, dp_rank: u32 },
    #[error("reconciliation failed: the partition has block_size {pinned}, the worker {found}")]
    OtherBlockSize {
        pinned: NonZeroU32,
        found: NonZeroU32,
    },
    #[error("reconciliation failed: the partition has is_eagle {pinned}, the worker {found}")]
    OtherEagle { pinned: bool, found: bool },
}

/// The plan for a worker that can serve, or every reason why it cannot.
pub(crate) fn assess(
    worker: &WorkerRegistration,
    rules: &Rules,
    pinned: Option<Layout>,
) -> Result<Plan, Vec<Reason>> {
    let mut reasons = Vec::new();
    let endpoint = keep(read_endpoint(worker, rules), &mut reasons);
    let layout = keep(read_layout(worker, rules, pinned), &mut reasons);
    if rules.queueing && worker.max_num_batched_tokens.is_none() {
        reasons.push(Reason::NoBatchLimit);
    }
    let mut sources = BTreeMap::new();
    if let Some(ranks) = keep(ranks_of(worker), &mut reasons)
        && rules.use_kv_events
    {
        sources = read_sources(worker, &ranks, &mut reasons);
    }
    match (endpoint, layout) {
        (Some(endpoint), Some(layout)) if reasons.is_empty() => Ok(Plan {
            endpoint,
            layout,
            sources,
        }),
        _ => Err(reasons),
    }
}

fn keep<T>(read: Result<T, Reason>, reasons: &mut Vec<Reason>) -> Option<T> {
    read.map_err(|reason| reasons.push(reason)).ok()
}

fn read_endpoint(worker: &WorkerRegistration, rules: &Rules) -> Result<WorkerEndpoint, Reason> {
    let url = worker
        .endpoint
        .as_deref()
        .map(str::trim)
        .filter(|url| !url.is_empty());
    let url = url.ok_or(Reason::NoEndpoint)?;
    let authority = url
        .strip_prefix("http://")
        .or_else(|| {
            url.strip_prefix("https://")
                .filter(|_| !rules.require_ip_endpoints)
        })
        .map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    let address = authority.and_then(|authority| authority.parse::<SocketAddr>().ok());
    if rules.require_ip_endpoints {
        let address = address.filter(|address| address.port() != 0);
        let address = address.ok_or_else(|| Reason::EndpointNotIp {
            found: url.to_owned(),
        })?;
        return Ok(WorkerEndpoint {
            url: url.to_owned(),
            authority: address.to_string(),
            address: Some(address),
        });
    }
    let authority = authority
        .filter(|authority| is_host_and_port(authority))
        .ok_or_else(|| Reason::BadEndpoint {
            found: url.to_owned(),
        })?;
    Ok(WorkerEndpoint {
        url: url.to_owned(),
        authority: authority.to_owned(),
        address,
    })
}

fn read_layout(
    worker: &WorkerRegistration,
    rules: &Rules,
    pinned: Option<Layout>,
) -> Result<Layout, Reason> {
    let block_size = match worker.block_size {
        Some(stated) => NonZeroU32::new(stated).ok_or(Reason::ZeroBlockSize)?,
        None => pinned.map_or(rules.default_block_size, |pinned| pinned.block_size),
    };
    let Some(pinned) = pinned else {
        return Ok(Layout {
            block_size,
            eagle: worker.is_eagle.unwrap_or(false),
        });
    };
    if block_size != pinned.block_size {
        return Err(Reason::OtherBlockSize {
            pinned: pinned.block_size,
            found: block_size,
        });
    }
    match worker.is_eagle {
        Some(found) if found != pinned.eagle => Err(Reason::OtherEagle {
            pinned: pinned.eagle,
            found,
        }),
        _ => Ok(pinned),
    }
}

fn ranks_of(worker: &WorkerRegistration) -> Result<std::ops::Range<u32>, Reason> {
    let (first_rank, rank_count) = (worker.first_rank(), worker.rank_count());
    if rank_count == 0 {
        return Err(Reason::NoRanks);
    }
    let end = first_rank.checked_add(rank_count);
    end.map(|end| first_rank..end).ok_or(Reason::RankOverflow {
        first_rank,
        rank_count,
    })
}

/// One source per rank, or none for any: then the worker is routed by load alone.
fn read_sources(
    worker: &WorkerRegistration,
    ranks: &std::ops::Range<u32>,
    reasons: &mut Vec<Reason>,
) -> BTreeMap<u32, EventSource> {
    let publishers = Sockets {
        base_field: "kv_events_endpoint",
        base: worker.kv_events_endpoint.as_deref(),
        map_field: "kv_events_endpoints",
        map: &worker.kv_events_endpoints,
    };
    let replays = Sockets {
        base_field: "replay_endpoint",
        base: worker.replay_endpoint.as_deref(),
        map_field: "replay_endpoints",
        map: &worker.replay_endpoints,
    };
    let mut sources = BTreeMap::new();
    let mut publisher_of = publishers.resolve(ranks, reasons);
    let mut replay_of = replays.resolve(ranks, reasons);
    if publisher_of.is_empty() {
        return sources;
    }
    for dp_rank in ranks.clone() {
        match publisher_of.remove(&dp_rank) {
            Some(publisher) => {
                let replay = replay_of.remove(&dp_rank);
                sources.insert(dp_rank, EventSource { publisher, replay });
            }
            // A socket that was named but is wrong has its own reason already.
            None if publishers.names(dp_rank) => {}
            None => reasons.push(Reason::NoEventsEndpoint { dp_rank }),
        }
    }
    sources
}

/// A base address and a map by rank that wins over it.
struct Sockets<'a> {
    base_field: &'static str,
    base: Option<&'a str>,
    map_field: &'static str,
    map: &'a BTreeMap<u32, String>,
}

impl Sockets<'_> {
    fn names(&self, dp_rank: u32) -> bool {
        self.base.is_some() || self.map.contains_key(&dp_rank)
    }

    fn resolve(
        &self,
        ranks: &std::ops::Range<u32>,
        reasons: &mut Vec<Reason>,
    ) -> BTreeMap<u32, String> {
        for &dp_rank in self.map.keys().filter(|dp_rank| !ranks.contains(dp_rank)) {
            reasons.push(Reason::ForeignRank {
                field: self.map_field,
                dp_rank,
            });
        }
        let mut resolved = BTreeMap::new();
        let mut base_is_bad = false;
        for dp_rank in ranks.clone() {
            let socket = match (self.map.get(&dp_rank), self.base) {
                (Some(own), _) => checked(self.map_field, own),
                (None, Some(base)) if ranks.len() == 1 => checked(self.base_field, base),
                (None, Some(base)) if !base_is_bad => self.offset(base, dp_rank),
                (None, _) => continue,
            };
            match socket {
                Ok(socket) => {
                    resolved.insert(dp_rank, socket);
                }
                Err(reason) => {
                    // One wrong base is one reason, not one for each of thousands of ranks.
                    base_is_bad = !self.map.contains_key(&dp_rank);
                    reasons.push(reason);
                }
            }
        }
        resolved
    }

    /// The base with the rank added to its port.
    fn offset(&self, base: &str, dp_rank: u32) -> Result<String, Reason> {
        let field = self.base_field;
        let bad = || Reason::BadSocket {
            field,
            found: base.to_owned(),
        };
        let base = base.trim();
        let rest = base.strip_prefix("tcp://").ok_or_else(bad)?;
        let (host, port) = rest.rsplit_once(':').ok_or_else(bad)?;
        checked(field, base)?;
        let port: u16 = port.parse().map_err(|_| bad())?;
        let shifted = u16::try_from(dp_rank)
            .ok()
            .and_then(|rank| port.checked_add(rank));
        let no_port = || Reason::NoPort {
            field,
            found: base.to_owned(),
            dp_rank,
        };
        Ok(format!("tcp://{host}:{}", shifted.ok_or_else(no_port)?))
    }
}

fn checked(field: &'static str, socket: &str) -> Result<String, Reason> {
    let socket = socket.trim();
    let is_good = match socket.split_once("://") {
        Some(("tcp", rest)) => is_host_and_port(rest) && !rest.starts_with('*'),
        Some(("ipc", path)) => !path.is_empty(),
        _ => false,
    };
    if is_good {
        Ok(socket.to_owned())
    } else {
        Err(Reason::BadSocket {
            field,
            found: socket.to_owned(),
        })
    }
}

fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    if !port.parse::<u16>().is_ok_and(|port| port != 0) {
        return false;
    }
    if host.starts_with('[') {
        return text.parse::<SocketAddr>().is_ok();
    }
    !host.is_empty()
        && host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}

#[cfg(test)]
mod tests;
