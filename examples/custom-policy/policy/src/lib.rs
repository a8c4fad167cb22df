//! The policies of one team, one module each.
//!
//! It never registers anything on its own: its catalog calls [`register`].

// The guide breaks a line that rustfmt would join.
#[rustfmt::skip]
mod least_busy;

pub use least_busy::register;
