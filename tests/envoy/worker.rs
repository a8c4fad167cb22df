//! A worker that remembers what reached it and answers as the test says. Never runs a model.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::client::Body;

#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body: Bytes,
}

/// How the worker answers: at once, or piece by piece as the test sends them.
type Answers = Arc<Mutex<Option<mpsc::Receiver<Bytes>>>>;

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    answers: Answers,
    open: watch::Receiver<usize>,
    server: JoinHandle<()>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Worker {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("bind a worker");
        let address = listener.local_addr().expect("a bound address");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let answers = Answers::default();
        let (opened, open) = watch::channel(0);
        let server = tokio::spawn(serve(
            listener,
            Arc::clone(&seen),
            Arc::clone(&answers),
            opened,
        ));
        Self {
            address,
            seen,
            answers,
            open,
            server,
        }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("not poisoned").clone()
    }

    /// The next request is answered as a stream of events: one for each piece that is sent.
    pub(crate) fn stream_next(&self) -> mpsc::Sender<Bytes> {
        let (sender, receiver) = mpsc::channel(16);
        *self.answers.lock().expect("not poisoned") = Some(receiver);
        sender
    }

    /// Waits until Envoy has closed its connections to this worker.
    pub(crate) async fn left_alone(&self) {
        self.open
            .clone()
            .wait_for(|open| *open == 0)
            .await
            .expect("the worker runs");
    }
}

async fn serve(
    listener: TcpListener,
    seen: Arc<Mutex<Vec<Seen>>>,
    answers: Answers,
    opened: watch::Sender<usize>,
) {
    let opened = Arc::new(opened);
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let (seen, answers, opened) =
            (Arc::clone(&seen), Arc::clone(&answers), Arc::clone(&opened));
        opened.send_modify(|open| *open += 1);
        connections.spawn(async move {
            let service =
                service_fn(|request| answer(request, Arc::clone(&seen), Arc::clone(&answers)));
            // A connection that breaks off is what some tests are about.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(socket), service)
                .await;
            opened.send_modify(|open| *open -= 1);
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    seen: Arc<Mutex<Vec<Seen>>>,
    answers: Answers,
) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return Ok(Response::builder()
            .status(400)
            .body(crate::client::whole(""))
            .expect("a valid response"));
    };
    seen.lock().expect("not poisoned").push(Seen {
        method: head.method.to_string(),
        path: head.uri.path().to_owned(),
        body: body.to_bytes(),
    });
    let streamed = answers.lock().expect("not poisoned").take();
    let response = match streamed {
        Some(receiver) => {
            let frames = futures::stream::unfold(receiver, |mut receiver| async move {
                let piece = receiver.recv().await?;
                Some((Ok::<_, Infallible>(Frame::data(piece)), receiver))
            });
            Response::builder()
                .header("content-type", "text/event-stream")
                .body(BodyExt::boxed(StreamBody::new(frames)))
        }
        None => Response::builder()
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from_static(br#"{"object":"chat.completion"}"#)).boxed()),
    };
    Ok(response.expect("a valid response"))
}
