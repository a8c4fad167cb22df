//! Mock workers and the lab: a real Envoy, Pointsman and KV events, with no GPU.
//! Never part of the product: nothing depends on this crate.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

pub mod lab;
pub mod mock;
