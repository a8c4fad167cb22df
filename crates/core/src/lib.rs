//! Decides which worker serves a request and keeps the books of the load that causes; it opens no
//! socket, spawns no task and reads no clock.
//!
//! [`Partition`] is the door: it owns the KV index, the policy and the load of one model and
//! routing group. Everything else here is what it is made of.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

pub mod hash;
pub mod index;
pub mod partition;
pub mod record;
pub mod recut;
pub mod selection;

mod eligibility;
mod load;
mod overlaps;
mod policy;
mod predictions;
mod ranks;
mod reservation;
#[cfg(test)]
mod testing;
mod tier;

pub use load::Charge;
pub use partition::{
    Partition, PartitionConfig, PartitionId, PartitionStats, PotentialLoad, PromptOverlap,
    RankOverlap, WorkerEntry,
};
pub use predictions::PredictionStats;
pub use ranks::RankSlot;
pub use reservation::{ChargeHandle, Reservation, ReservationId};
pub use selection::{
    CacheForecast, Charged, Prompt, RankLoad, Reserved, RoutingConstraints, SelectError, Selection,
    SelectionRequest,
};
