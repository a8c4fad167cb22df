//! The words both sides agreed on: header and metadata names, body modes, the subset hint.
//!
//! It never touches a message; `message` reads and builds those.

use std::net::{IpAddr, SocketAddr};

pub(super) const DESTINATION: &str = "x-gateway-destination-endpoint";
pub(super) const SERVED: &str = "x-gateway-destination-endpoint-served";
pub(super) const SUBSET: &str = "x-gateway-destination-endpoint-subset";
pub(super) const REQUEST_ID: &str = "x-request-id";
/// Namespace of the dynamic metadata in both directions.
pub(super) const LB_NAMESPACE: &str = "envoy.lb";
pub(super) const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
/// Attribute that names the upstream where the data plane writes no served endpoint.
pub(super) const UPSTREAM_ADDRESS: &str = "upstream.address";

/// Routing headers that a client may set but a worker must never see.
pub(super) const REMOVED_HEADERS: [&str; 6] = [
    "x-gateway-inference-fairness-id",
    "x-gateway-inference-objective",
    "x-gateway-model-name-rewrite",
    SUBSET,
    SERVED,
    "x-prefiller-host-port",
];

/// Largest piece of a body in one reply; some gateways refuse messages of 64 KiB and more.
pub(super) const REPLY_CHUNK_BYTES: usize = 62_000;

/// Which endpoints the data plane allows for one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SubsetHint {
    /// No hint was sent: every endpoint may serve.
    #[default]
    Any,
    /// Only these; an empty list allows nobody.
    Only(Vec<AllowedEndpoint>),
}

/// One entry of a subset hint. Without a port it allows every port of that address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedEndpoint {
    pub ip: IpAddr,
    pub port: Option<u16>,
}

impl SubsetHint {
    /// Reads hint strings, each of which may be a comma list. What is no address allows nobody.
    pub fn only<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        Self::Only(
            texts
                .into_iter()
                .flat_map(|text| text.split(','))
                .filter_map(|entry| AllowedEndpoint::parse(entry.trim()))
                .collect(),
        )
    }

    pub fn allows(&self, endpoint: SocketAddr) -> bool {
        match self {
            Self::Any => true,
            Self::Only(entries) => entries.iter().any(|entry| entry.allows(endpoint)),
        }
    }

    pub fn is_any(&self) -> bool {
        matches!(self, Self::Any)
    }
}

impl AllowedEndpoint {
    fn parse(text: &str) -> Option<Self> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Some(Self {
                ip: address.ip().to_canonical(),
                port: Some(address.port()),
            });
        }
        let bare = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(text);
        let ip: IpAddr = bare.parse().ok()?; // not an address: it allows nobody
        Some(Self {
            ip: ip.to_canonical(),
            port: None,
        })
    }

    fn allows(self, endpoint: SocketAddr) -> bool {
        self.ip == endpoint.ip().to_canonical()
            && self.port.is_none_or(|port| port == endpoint.port())
    }
}

/// How the filter says it sends bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyMode {
    None,
    FullDuplexStreamed,
    /// A mode in which this server cannot answer correctly.
    Unsupported(&'static str),
}

/// The filter's announcement, sent with the first message of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BodyModes {
    pub(super) request: BodyMode,
    pub(super) response: BodyMode,
}

impl BodyModes {
    /// What cannot be served, as `(which, mode)`; a fault of the filter's configuration.
    pub(super) fn fault(self) -> Option<(&'static str, &'static str)> {
        match (self.request, self.response) {
            (BodyMode::Unsupported(mode), _) => Some(("request_body_mode", mode)),
            (BodyMode::None, _) => Some(("request_body_mode", "NONE")),
            (_, BodyMode::Unsupported(mode)) => Some(("response_body_mode", mode)),
            (BodyMode::FullDuplexStreamed, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(hint: &[&str], endpoint: &str, allowed: bool) {
        let subset = SubsetHint::only(hint.iter().copied());
        assert_eq!(
            subset.allows(endpoint.parse().unwrap()),
            allowed,
            "{hint:?} and {endpoint}"
        );
    }

    #[test]
    fn a_subset_entry_with_a_port_allows_that_port_only() {
        check(&["10.0.0.2:8000"], "10.0.0.2:8000", true);
        check(&["10.0.0.2:8000"], "10.0.0.2:8001", false);
    }

    #[test]
    fn a_bare_address_allows_every_port() {
        check(&["10.0.0.2"], "10.0.0.2:8001", true);
        check(&["fd00::1"], "[fd00::1]:8000", true);
        check(&["[fd00::1]"], "[fd00::1]:8000", true);
    }

    #[test]
    fn comma_lists_are_split_and_trimmed() {
        check(&["10.0.0.1:1 , 10.0.0.2:2"], "10.0.0.2:2", true);
        check(&["x", "10.0.0.1:1, [fd00::2]:9"], "[fd00::2]:9", true);
    }

    #[test]
    fn an_empty_or_unreadable_hint_allows_nobody() {
        check(&[], "10.0.0.2:8000", false);
        check(&[""], "10.0.0.2:8000", false);
        check(&["some.host:8000"], "10.0.0.2:8000", false);
    }

    #[test]
    fn only_full_duplex_request_bodies_are_served() {
        let modes = |request, response| BodyModes { request, response };
        let full = BodyMode::FullDuplexStreamed;
        assert_eq!(modes(full, full).fault(), None);
        assert_eq!(modes(full, BodyMode::None).fault(), None);
        assert_eq!(
            modes(BodyMode::Unsupported("BUFFERED"), full).fault(),
            Some(("request_body_mode", "BUFFERED"))
        );
        assert_eq!(
            modes(full, BodyMode::Unsupported("STREAMED")).fault(),
            Some(("response_body_mode", "STREAMED"))
        );
        assert_eq!(
            modes(BodyMode::None, full).fault(),
            Some(("request_body_mode", "NONE"))
        );
    }
}
