//! A fake engine: publishes numbered event batches and answers replays from its buffer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::task::AbortHandle;
use zeromq::{RouterSocket, Socket, SocketRecv, SocketSend, XPubSocket, ZmqMessage};

/// How the engine answers a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Empty frame, number, payload.
    Bare,
    /// Empty frame, topic, number, payload.
    WithTopic,
    Never,
}

type Buffer = Arc<Mutex<BTreeMap<u64, Vec<Bytes>>>>;
type Questions = Arc<Mutex<Vec<u64>>>;

pub(crate) struct Engine {
    publisher: XPubSocket,
    pub(crate) publisher_at: String,
    pub(crate) replay_at: String,
    answer: Answer,
    router: AbortHandle,
    buffer: Buffer,
    questions: Questions,
    next: u64,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.router.abort();
    }
}

impl Engine {
    pub(crate) async fn start(answer: Answer) -> Self {
        let mut publisher = XPubSocket::new();
        let publisher_at = publisher
            .bind("tcp://127.0.0.1:0")
            .await
            .unwrap()
            .to_string();
        let mut router = RouterSocket::new();
        let replay_at = router.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        Self::serving((publisher, publisher_at), (router, replay_at), answer)
    }

    /// Waits until somebody subscribes to everything.
    pub(crate) async fn subscribed(&mut self) {
        let message = self.publisher.recv().await.unwrap();
        assert_eq!(message.get(0).unwrap().as_ref(), [1]);
    }

    /// Sends the next batch.
    pub(crate) async fn publish(&mut self, payload: Bytes) {
        let sequence = self.lose(payload.clone());
        self.send(sequence, payload).await;
    }

    /// Uses a number and remembers the batch, but does not send it.
    pub(crate) fn lose(&mut self, payload: Bytes) -> u64 {
        let sequence = self.next;
        self.next += 1;
        let mut buffer = self.buffer.lock().unwrap();
        buffer.entry(sequence).or_default().insert(0, payload);
        drop(buffer);
        sequence
    }

    /// Answers replays with this as well, as if it were another publisher's that counts alike.
    pub(crate) fn answer_also(&mut self, sequence: u64, payload: Bytes) {
        let mut buffer = self.buffer.lock().unwrap();
        buffer.entry(sequence).or_default().push(payload);
    }

    /// Forgets batches below this number.
    pub(crate) fn forget_below(&mut self, sequence: u64) {
        let mut buffer = self.buffer.lock().unwrap();
        *buffer = buffer.split_off(&sequence);
    }

    /// Counts from 0 again with nothing remembered, on the same sockets.
    pub(crate) fn begin_anew(&mut self) {
        self.buffer.lock().unwrap().clear();
        self.next = 0;
    }

    /// How many numbers were used.
    pub(crate) fn published(&self) -> u64 {
        self.next
    }

    /// Sends a batch under any number; the buffer does not know of it.
    pub(crate) async fn send(&mut self, sequence: u64, payload: Bytes) {
        let number = Bytes::copy_from_slice(&sequence.to_be_bytes());
        self.send_frames(vec![Bytes::from_static(b"kv@engine"), number, payload])
            .await;
    }

    pub(crate) async fn send_frames(&mut self, frames: Vec<Bytes>) {
        self.publisher
            .send(ZmqMessage::try_from(frames).unwrap())
            .await
            .unwrap();
    }

    /// The numbers from which replays were asked for.
    pub(crate) fn questions(&self) -> Vec<u64> {
        self.questions.lock().unwrap().clone()
    }

    /// Ends, and begins anew at the same addresses with nothing remembered.
    pub(crate) async fn restart(self) -> Self {
        let (publisher_at, replay_at) = (self.publisher_at.clone(), self.replay_at.clone());
        let answer = self.answer;
        drop(self);
        let mut publisher = XPubSocket::new();
        bind_again(&mut publisher, &publisher_at).await;
        let mut router = RouterSocket::new();
        bind_again(&mut router, &replay_at).await;
        Self::serving((publisher, publisher_at), (router, replay_at), answer)
    }

    /// An engine with an empty buffer, behind sockets that are bound already.
    fn serving(
        (publisher, publisher_at): (XPubSocket, String),
        (router, replay_at): (RouterSocket, String),
        answer: Answer,
    ) -> Self {
        let buffer = Buffer::default();
        let questions = Questions::default();
        let serving = tokio::spawn(serve_replays(
            router,
            answer,
            Arc::clone(&buffer),
            Arc::clone(&questions),
        ));
        let router = serving.abort_handle();
        Self {
            publisher,
            publisher_at,
            replay_at,
            answer,
            router,
            buffer,
            questions,
            next: 0,
        }
    }
}

/// The old socket closes in its own time.
async fn bind_again(socket: &mut impl Socket, address: &str) {
    while socket.bind(address).await.is_err() {
        tokio::task::yield_now().await;
    }
}

async fn serve_replays(
    mut router: RouterSocket,
    answer: Answer,
    buffer: Buffer,
    questions: Questions,
) {
    loop {
        let question = router.recv().await.unwrap().into_vec();
        let [peer, empty, from] = <[Bytes; 3]>::try_from(question).unwrap();
        assert!(empty.is_empty());
        let from = u64::from_be_bytes(from.as_ref().try_into().unwrap());
        questions.lock().unwrap().push(from);
        if answer == Answer::Never {
            continue;
        }
        let wanted: Vec<_> = {
            let buffer = buffer.lock().unwrap();
            buffer
                .range(from..)
                .flat_map(|(&number, payloads)| {
                    payloads.iter().map(move |one| (number, one.clone()))
                })
                .collect()
        };
        let end = (u64::MAX, Bytes::new());
        for (number, payload) in wanted.into_iter().chain([end]) {
            let mut frames = vec![peer.clone(), Bytes::new()];
            if answer == Answer::WithTopic {
                frames.push(Bytes::from_static(b"kv@engine"));
            }
            frames.push(Bytes::copy_from_slice(&number.to_be_bytes()));
            frames.push(payload);
            router
                .send(ZmqMessage::try_from(frames).unwrap())
                .await
                .unwrap();
        }
    }
}

/// A batch with one store of blocks of 4 tokens.
pub(crate) fn store(hashes: &[u32], parent: Option<u32>, tokens: &[u32]) -> Bytes {
    batch(None, |out| store_event(out, hashes, parent, tokens))
}

/// The same with the rank it is for, and no parent.
pub(crate) fn store_of_rank(dp_rank: u32, hashes: &[u32], tokens: &[u32]) -> Bytes {
    batch(Some(dp_rank), |out| store_event(out, hashes, None, tokens))
}

fn store_event(out: &mut Vec<u8>, hashes: &[u32], parent: Option<u32>, tokens: &[u32]) {
    rmp::encode::write_array_len(out, 7).unwrap();
    rmp::encode::write_str(out, "BlockStored").unwrap();
    numbers(out, hashes);
    match parent {
        Some(parent) => drop(rmp::encode::write_uint(out, u64::from(parent)).unwrap()),
        None => rmp::encode::write_nil(out).unwrap(),
    }
    numbers(out, tokens);
    rmp::encode::write_uint(out, 4).unwrap();
    rmp::encode::write_nil(out).unwrap();
    rmp::encode::write_str(out, "GPU").unwrap();
}

/// A batch with one removal.
pub(crate) fn remove(hashes: &[u32]) -> Bytes {
    batch(None, |out| {
        rmp::encode::write_array_len(out, 3).unwrap();
        rmp::encode::write_str(out, "BlockRemoved").unwrap();
        numbers(out, hashes);
        rmp::encode::write_str(out, "GPU").unwrap();
    })
}

fn batch(dp_rank: Option<u32>, event: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut out = Vec::new();
    rmp::encode::write_array_len(&mut out, 3).unwrap();
    rmp::encode::write_f64(&mut out, 1.5).unwrap();
    rmp::encode::write_array_len(&mut out, 1).unwrap();
    event(&mut out);
    match dp_rank {
        Some(dp_rank) => drop(rmp::encode::write_uint(&mut out, u64::from(dp_rank)).unwrap()),
        None => rmp::encode::write_nil(&mut out).unwrap(),
    }
    Bytes::from(out)
}

fn numbers(out: &mut Vec<u8>, values: &[u32]) {
    rmp::encode::write_array_len(out, u32::try_from(values.len()).unwrap()).unwrap();
    for &value in values {
        rmp::encode::write_uint(out, u64::from(value)).unwrap();
    }
}
