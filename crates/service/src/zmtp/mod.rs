//! ZMTP 3.0, the protocol of ZeroMQ sockets, as far as it is spoken here.
//!
//! It knows nothing of events or replicas, and spawns no task.

mod codec;

#[cfg(test)]
pub(crate) use codec::MAX_MESSAGE_BYTES;
pub(crate) use codec::{
    Decoder, Incoming, Role, ZmtpError, cancel, message, opening, ping, pong, subscribe,
};
