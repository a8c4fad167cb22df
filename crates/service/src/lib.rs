//! Selection as a service: worker catalog, KV-event subscribers, selection and reservation.
//!
//! It owns every task, socket and clock of the decision; it knows nothing of Envoy, chat bodies or
//! Kubernetes, and leaves the choice itself to `pointsman-core`.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

pub mod http;

mod audit;
mod builder;
mod by_id;
mod dump;
mod error;
mod events;
mod indexed;
mod inspection;
mod membership;
mod metrics;
mod pending;
mod predictions;
mod recovery;
mod replicas;
mod reservation;
mod reservations;
mod service;
mod shared_cache;
mod workers;
mod zmtp;

pub use audit::{AuditConfig, AuditMode, CachePrediction, CacheReport, RankAudit, RankQuarantine};
pub use builder::SelectionServiceBuilder;
pub use by_id::{Booked, ExplicitReservation, ReservedById};
pub use dump::{Dump, DumpCutShort};
pub use error::{SelectionServiceError, UnknownModel};
pub use events::{EventsConfig, PayloadContents, PayloadReader, UnreadablePayload};
pub use inspection::OverlapScores;
pub use metrics::SelectionMetrics;
pub use pending::PendingConfig;
pub use recovery::{PeerTls, PeersError, RecoveryConfig};
pub use replicas::check_endpoint as check_peer_endpoint;
pub use reservation::Reservation;
pub use reservations::ReservationsConfig;
pub use service::{
    EventsApplied, MAX_RESERVATION_ID_BYTES, PartitionLoads, Reserved, Selected, SelectionService,
    ServiceState,
};
pub use shared_cache::{BadSharedCacheUrl, SharedCacheConfig, SharedCacheError, SharedCacheHits};
pub use workers::{
    BadField, EndpointTable, Entry, KvTransferEnforcement, Lifecycle, MAX_DATA_PARALLEL_SIZE,
    RankEvents, WorkerEndpoint, WorkerPatch, WorkerRecord, WorkerRegistration, WorkersFile,
    WorkersFileError,
};

/// The service as a value of its own, see [`SelectionService::new_local`].
pub type SelectionCore = SelectionService;
