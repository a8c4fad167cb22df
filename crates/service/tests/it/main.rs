//! The service as a whole, over real sockets, against fake engines. Nothing leaves the machine.

#![allow(clippy::unwrap_used, clippy::panic)]

mod audit;
mod cases;
mod catalog;
mod draining;
mod engine;
mod events;
mod pack;
mod recorded;
mod recording;
mod recovery;
mod replicas;
mod rig;
mod selection;
