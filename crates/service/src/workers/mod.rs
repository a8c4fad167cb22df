//! The worker catalog: who is registered, who may serve, and where each is reached.
//!
//! One writer at a time changes it; readers see published snapshots. It opens no socket itself: the
//! subscribers that it starts do.

mod assessment;
mod catalog;
mod endpoints;
mod file;
mod leaving;
mod patch;
mod registration;

pub(crate) use assessment::{EventSource, Layout, Rules};
pub(crate) use catalog::{Catalog, PublishedWorker, Snapshot};
pub use endpoints::{EndpointTable, WorkerEndpoint};
pub use file::{Entry, WorkersFile, WorkersFileError};
pub use patch::{BadField, WorkerPatch};
pub use registration::{
    KvTransferEnforcement, Lifecycle, MAX_DATA_PARALLEL_SIZE, RankEvents, WorkerRecord,
    WorkerRegistration,
};
