//! Sockets and the threads behind them: one listener and one single-threaded runtime each.
//!
//! Threads share no queue: the kernel spreads connections over their listeners.

use std::{io, net::SocketAddr, thread, time::Duration};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::{net::TcpListener, runtime};
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::{
    FAREWELL, StartError,
    connection::{self, Doors, Host},
};

/// A socket that listens, not yet given to a runtime.
pub(super) type Listener = std::net::TcpListener;

const BACKLOG: i32 = 1_024;
/// Pause after a failed accept, such as one that found no file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(super) fn bind(address: SocketAddr) -> Result<Listener, StartError> {
    listen(address, false).map_err(|source| StartError::Listen { address, source })
}

/// `count` listeners on one port.
pub(super) fn bind_shared(address: SocketAddr, count: usize) -> Result<Vec<Listener>, StartError> {
    let failed = |source| StartError::Listen { address, source };
    let first = listen(address, true).map_err(failed)?;
    let bound = first.local_addr().map_err(failed)?;
    let mut listeners = vec![first];
    while listeners.len() < count {
        listeners.push(listen(bound, true).map_err(failed)?);
    }
    Ok(listeners)
}

pub(super) fn address(listener: &Listener, wanted: SocketAddr) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(|source| StartError::Listen {
        address: wanted,
        source,
    })
}

pub(super) fn spawn_thread(
    index: usize,
    listener: Listener,
    host: Host,
    doors: Doors<impl crate::ext_proc::Pick>,
) -> Result<thread::JoinHandle<()>, StartError> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(StartError::Thread)?;
    thread::Builder::new()
        .name(format!("exchanges-{index}"))
        .spawn(move || runtime.block_on(accept(listener, host, doors)))
        .map_err(StartError::Thread)
}

/// Serves connections until the host closes, and then until they have ended or are overdue.
pub(super) async fn accept(
    listener: Listener,
    host: Host,
    doors: Doors<impl crate::ext_proc::Pick>,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return warn!(%error, "a listener could not be served"),
    };
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = host.closing.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let Some(guest) = host.enter() else {
                    debug!("connection refused, there are too many");
                    continue;
                };
                connections.spawn(connection::serve(
                    stream,
                    guest,
                    host.clone(),
                    doors.clone(),
                ));
            }
            Err(error) => {
                warn!(%error, "accepting a connection failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(FAREWELL, connections.wait())
        .await
        .is_err()
    {
        debug!(
            left = connections.len(),
            "cutting connections that did not end in time"
        );
    }
}

fn listen(address: SocketAddr, shared: bool) -> io::Result<Listener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking(),
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    if shared {
        socket.set_reuse_port(true)?;
    }
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
