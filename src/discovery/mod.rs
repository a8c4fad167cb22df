//! Tells the service which workers exist; never chooses between them.

mod file;
#[cfg(test)]
mod tests;

pub(crate) use file::{FileSource, Metrics};
