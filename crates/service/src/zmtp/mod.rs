//! ZMTP 3.0, the protocol of `ZeroMQ` sockets, as far as it is spoken here: bytes (`codec`), and the
//! connections that we open (`connection`).
//!
//! It knows nothing of events or replicas, binds no socket and spawns no task.

mod codec;
mod connection;

pub(crate) use codec::pong;
pub(crate) use codec::{
    Decoder, Incoming, Role, ZmtpError, cancel, message, opening, ping, subscribe,
};
pub(crate) use connection::{Connection, ConnectionError, Received};
