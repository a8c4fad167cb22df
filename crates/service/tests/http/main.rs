//! The HTTP API over real sockets. Nothing leaves the machine.

#![allow(clippy::unwrap_used, clippy::panic)]

mod approximate;
mod catalog;
mod dump;
mod inspection;
mod lifecycle;
mod manners;
mod pending;
mod replay;
mod rig;
mod security;
mod selecting;
mod shared_cache;
mod storm;
