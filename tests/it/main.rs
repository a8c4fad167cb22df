//! The whole endpoint picker in process, or where its start matters as one, over real gRPC, with nobody behind the endpoints.
//!
//! Nothing here listens on a fixed port, sleeps, or leaves the machine.
#![allow(clippy::unwrap_used, clippy::panic)]

mod caches;
mod client;
mod closing;
mod crowds;
mod house;
mod modes;
mod recovery;
mod refusals;
mod requests;
mod responses;
mod subsets;
