//! The endpoint picker: reads requests as Envoy streams them, asks the selection service, answers.
//!
//! It has no routing opinion of its own.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod admin;
mod config;
mod discovery;
pub mod error;
pub mod ext_proc;
pub mod picker;
pub mod request;
pub mod response;
mod runner;
pub mod serve;
pub mod telemetry;
pub mod tokenize;

pub use runner::run;
