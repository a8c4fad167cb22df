//! Selection as a service: worker catalog, KV-event subscribers, selection and reservation.
//!
//! It owns every task, socket and clock of the decision; it knows nothing of Envoy, chat bodies or
//! Kubernetes, and leaves the choice itself to `pointsman-core`.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod builder;
mod error;
mod events;
mod metrics;
mod service;
mod workers;

pub use builder::SelectionServiceBuilder;
pub use error::{SelectionServiceError, UnknownModel};
pub use events::EventsConfig;
pub use metrics::SelectionMetrics;
pub use service::{
    EventsApplied, MAX_RESERVATION_ID_BYTES, PartitionLoads, Reserved, Selected, SelectionService,
    ServiceState,
};
pub use workers::{
    EndpointTable, Entry, KvTransferEnforcement, Lifecycle, MAX_DATA_PARALLEL_SIZE, RankEvents,
    WorkerEndpoint, WorkerRecord, WorkerRegistration, WorkersFile, WorkersFileError,
};
