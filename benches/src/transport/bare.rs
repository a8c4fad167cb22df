//! The bare server that ours is measured against: its response stream is a map of the request stream,
//! and each message gets the next of the prebuilt replies. It never looks into a message.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
use envoy_types::pb::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

pub(super) const THREAD_NAME: &str = "bare-server";
// What our server sets, see `src/serve/connection.rs`: both must speak the same HTTP/2.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
const MAX_STREAMS: u32 = 1_024 + 256;
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Replies to the nth message of every stream with the nth reply.
#[derive(Debug)]
pub(super) struct Bare {
    pub(super) replies: Arc<[ProcessingResponse]>,
}

#[tonic::async_trait]
impl ExternalProcessor for Bare {
    type ProcessStream = BoxStream<'static, Result<ProcessingResponse, Status>>;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        let replies = Arc::clone(&self.replies);
        let mut sent = 0;
        let answered = request.into_inner().map(move |message| {
            message?;
            let reply = replies.get(sent).cloned();
            sent += 1;
            reply.ok_or_else(|| Status::internal("more messages than prebuilt replies"))
        });
        Ok(Response::new(answered.boxed()))
    }
}

/// One server on one current-thread runtime, with the HTTP/2 settings of ours; stops when dropped.
#[derive(Debug)]
pub(super) struct BareServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl BareServer {
    pub(super) fn start(replies: Arc<[ProcessingResponse]>) -> Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let run = move || {
            // When told to stop, the connections are dropped with the runtime: the client may be waiting on them.
            let served = runtime.block_on(async {
                tokio::select! {
                    served = serve(listener, replies) => served,
                    _ = stopped => Ok(()),
                }
            });
            if let Err(error) = served {
                eprintln!("the bare server stopped: {error:#}");
            }
        };
        let thread = thread::Builder::new()
            .name(THREAD_NAME.to_owned())
            .spawn(run)?;
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for BareServer {
    fn drop(&mut self) {
        // The server stops when the sender is gone.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed where it happened.
            drop(thread.join());
        }
    }
}

async fn serve(listener: std::net::TcpListener, replies: Arc<[ProcessingResponse]>) -> Result<()> {
    let incoming = TcpListenerStream::new(TcpListener::from_std(listener)?);
    Server::builder()
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(MAX_STREAMS)
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
        .add_service(ExternalProcessorServer::new(Bare { replies }))
        .serve_with_incoming(incoming)
        .await?;
    Ok(())
}
