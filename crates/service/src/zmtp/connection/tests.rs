use bytes::BufMut;
use futures::FutureExt;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::net::{TcpListener, UnixListener};

use super::super::codec::{message, ping};
use super::*;

const MAX_MESSAGE_BYTES: usize = 1 << 20;
const PIPE_BYTES: usize = 4 << 20;

/// A connection behind its handshake, and its other end.
async fn connected(role: Role) -> (Connection, DuplexStream) {
    let (ours, mut theirs) = duplex(PIPE_BYTES);
    let other = match role {
        Role::Dealer => Role::Dealer,
        Role::Publisher | Role::Subscriber => Role::Publisher,
    };
    theirs.write_all(&opening(other)).await.unwrap();
    let shaken = Connection::shake_hands(Box::new(ours), role, MAX_MESSAGE_BYTES);
    let connection = shaken.await.unwrap();
    let mut heard = vec![0; opening(role).len()];
    theirs.read_exact(&mut heard).await.unwrap();
    assert_eq!(heard, opening(role));
    (connection, theirs)
}

fn of(frames: &[&[u8]]) -> Received {
    let frames = frames.iter().map(|frame| Bytes::copy_from_slice(frame));
    Received::Message(frames.collect())
}

fn long_frame(flags: u8, claimed: u64) -> Vec<u8> {
    let mut bytes = vec![flags | 2];
    bytes.put_u64(claimed);
    bytes
}

/// Messages with short and long frames, and commands before, within and behind them.
fn speech() -> (Vec<u8>, Vec<Received>) {
    let long = [7; 300];
    let command = b"\x04\x07\x05OTHER?";
    let mut bytes = message(b"", b"first").to_vec();
    bytes.extend_from_slice(&command[..]);
    bytes.extend_from_slice(b"\x01\x05topic");
    bytes.extend_from_slice(b"\x04\x0a\x04PING\0\0abc");
    bytes.extend_from_slice(b"\x01\x01n");
    bytes.extend_from_slice(&command[..]);
    bytes.extend(long_frame(0, long.len() as u64));
    bytes.extend_from_slice(&long);
    bytes.extend_from_slice(b"\0\0");
    let messages = vec![
        of(&[b"", b"first"]),
        of(&[b"topic", b"n", &long]),
        of(&[b""]),
    ];
    (bytes, messages)
}

/// All that has come, by readers that give up as soon as they would have to wait.
fn impatiently(connection: &mut Connection) -> Vec<Received> {
    std::iter::from_fn(|| connection.next().now_or_never())
        .map(Result::unwrap)
        .collect()
}

#[tokio::test]
async fn a_message_cut_anywhere_survives_a_reader_that_gave_up() {
    let (bytes, messages) = speech();
    for cut in 0..=bytes.len() {
        // The runtime lets a task that never waits read only so often.
        tokio::task::yield_now().await;
        let (mut connection, mut theirs) = connected(Role::Subscriber).await;
        theirs.write_all(&bytes[..cut]).await.unwrap();
        let mut heard = impatiently(&mut connection);
        theirs.write_all(&bytes[cut..]).await.unwrap();
        heard.extend(impatiently(&mut connection));
        assert_eq!(heard, messages, "cut at {cut}");
    }
}

#[tokio::test]
async fn messages_in_random_pieces_are_those_that_were_sent() {
    let seed = 0x5eed_0021;
    println!("seed {seed:#x}");
    let mut random = StdRng::seed_from_u64(seed);
    let (mut connection, mut theirs) = connected(Role::Dealer).await;
    let (mut bytes, mut sent) = (Vec::new(), Vec::new());
    for _ in 0..400 {
        let (first, last) = (random.random_range(0..400), random.random_range(0..40_000));
        let (first, last) = (vec![1; first], vec![random.random(); last]);
        bytes.extend_from_slice(&message(&first, &last));
        sent.push(of(&[&first, &last]));
    }
    let (mut rest, mut heard) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let size = 1 << random.random_range(0..18);
        let (piece, more) = rest.split_at(rest.len().min(size));
        theirs.write_all(piece).await.unwrap();
        heard.extend(impatiently(&mut connection));
        rest = more;
    }
    while heard.len() < sent.len() {
        heard.push(connection.next().await.unwrap());
    }
    assert!(heard == sent);
}

#[tokio::test]
async fn a_ping_is_answered_with_its_context_while_it_is_read() {
    let (mut connection, mut theirs) = connected(Role::Subscriber).await;
    theirs.write_all(b"\x04\x0a\x04PING\0\0abc").await.unwrap();
    assert!(connection.next().now_or_never().is_none());
    let mut heard = [0; 10];
    theirs.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"\x04\x08\x04PONGabc");
}

#[tokio::test]
async fn whoever_pings_and_reads_no_answer_is_not_kept() {
    let (ours, mut theirs) = duplex(256);
    let sending = async {
        theirs.write_all(&opening(Role::Publisher)).await?;
        loop {
            theirs.write_all(&ping()).await?;
        }
    };
    let reading = async {
        let role = Role::Subscriber;
        let shaken = Connection::shake_hands(Box::new(ours), role, MAX_MESSAGE_BYTES);
        shaken.await?.next().await
    };
    let (_, read): (std::io::Result<()>, _) = tokio::join!(sending, reading);
    assert!(matches!(read, Err(ConnectionError::Unread)));
}

#[tokio::test]
async fn what_came_before_the_end_is_read_before_the_end() {
    let (mut connection, mut theirs) = connected(Role::Subscriber).await;
    theirs.write_all(&message(b"t", b"p")).await.unwrap();
    drop(theirs);
    assert_eq!(connection.next().await.unwrap(), of(&[b"t", b"p"]));
    assert!(matches!(
        connection.next().await,
        Err(ConnectionError::Closed)
    ));
}

#[tokio::test]
async fn the_buffer_grows_with_what_came_and_not_with_what_was_claimed() {
    for claimed in [MAX_MESSAGE_BYTES as u64, u64::MAX] {
        let (mut connection, mut theirs) = connected(Role::Subscriber).await;
        theirs.write_all(&long_frame(0, claimed)).await.unwrap();
        let mut sent = 9;
        for _ in 0..30 {
            theirs.write_all(&[0; 10_000]).await.unwrap();
            sent += 10_000;
            assert!(connection.next().now_or_never().is_none());
            assert!(connection.bytes.capacity() <= 2 * sent + MAX_ROOM);
        }
    }
}

#[tokio::test]
async fn a_large_buffer_is_not_kept_for_small_messages() {
    let (mut connection, mut theirs) = connected(Role::Subscriber).await;
    let large = vec![0; MAX_MESSAGE_BYTES];
    theirs.write_all(&message(b"", &large)).await.unwrap();
    assert_eq!(connection.next().await.unwrap(), of(&[b"", &large]));
    for _ in 0..20 * MAX_ROOM / 1_000 {
        let small = message(b"", &large[..1_000]);
        theirs.write_all(&small).await.unwrap();
        connection.next().await.unwrap();
    }
    assert!(connection.bytes.capacity() <= MAX_ROOM);
}

/// They are slices of what was read; each with a buffer to itself would hold many times its size.
#[tokio::test]
async fn messages_that_come_one_by_one_share_their_buffers() {
    let (mut connection, mut theirs) = connected(Role::Subscriber).await;
    let (mut held, mut buffers, mut end) = (Vec::new(), 0, 0);
    for _ in 0..1_000 {
        theirs.write_all(&message(b"", &[0; 100])).await.unwrap();
        let Received::Message(frames) = connection.next().await.unwrap() else {
            panic!("it is not large");
        };
        let start = frames[1].as_ptr().addr();
        buffers += usize::from(start.wrapping_sub(end) > 16);
        end = start + frames[1].len();
        held.push(frames);
    }
    assert!(buffers <= 1 + held.len() * 104 / (MIN_ROOM - LEAST_ROOM));
}

#[tokio::test]
async fn the_rest_of_what_was_sent_is_written_later() {
    let (ours, mut theirs) = duplex(100);
    theirs.write_all(&opening(Role::Publisher)).await.unwrap();
    let role = Role::Subscriber;
    let shaken = Connection::shake_hands(Box::new(ours), role, MAX_MESSAGE_BYTES);
    let mut connection = shaken.await.unwrap();
    let words = [5; 300];
    assert!(connection.send(&words).now_or_never().is_none());
    let mut heard = vec![0; opening(role).len() + words.len()];
    let mut reading = std::pin::pin!(theirs.read_exact(&mut heard));
    while (&mut reading).now_or_never().is_none() {
        assert!(connection.fill().now_or_never().is_none());
    }
    assert!(heard.ends_with(&words));
}

/// Answers one subscriber with one message.
async fn publish_once(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let bytes = [&opening(Role::Publisher)[..], &message(b"t", b"p")].concat();
    stream.write_all(&bytes).await.unwrap();
    // Until the other end has gone.
    let _ended = stream.read_to_end(&mut Vec::new()).await;
}

async fn hears_at(endpoint: &str, publishing: impl Future<Output = ()>) {
    let hearing = async {
        let opened = Connection::open(endpoint, Role::Subscriber, MAX_MESSAGE_BYTES);
        opened.await.unwrap().next().await.unwrap()
    };
    let (heard, ()) = tokio::join!(hearing, publishing);
    assert_eq!(heard, of(&[b"t", b"p"]), "{endpoint}");
}

#[tokio::test]
async fn a_name_and_addresses_of_both_kinds_are_dialled() {
    for (address, host) in [
        ("127.0.0.1:0", "localhost"),
        ("127.0.0.1:0", "127.0.0.1"),
        ("[::1]:0", "[::1]"),
    ] {
        let listener = match TcpListener::bind(address).await {
            Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => continue,
            bound => bound.unwrap(),
        };
        let port = listener.local_addr().unwrap().port();
        hears_at(&format!("tcp://{host}:{port}"), async {
            publish_once(listener.accept().await.unwrap().0).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_socket_of_this_machine_is_dialled() {
    let path = std::env::temp_dir().join(format!("zmtp-{}", uuid::Uuid::new_v4()));
    let listener = UnixListener::bind(&path).unwrap();
    hears_at(&format!("ipc://{}", path.display()), async {
        publish_once(listener.accept().await.unwrap().0).await;
    })
    .await;
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn a_tcp_connection_is_probed_while_it_is_silent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let stream = dial_tcp(&address).await.unwrap();
    let socket = SockRef::from(&stream);
    assert!(socket.keepalive().unwrap());
    assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_AFTER);
}

#[tokio::test]
async fn other_schemes_are_refused() {
    for endpoint in ["127.0.0.1:1", "inproc://a", "udp://127.0.0.1:1", ""] {
        let opened = Connection::open(endpoint, Role::Dealer, MAX_MESSAGE_BYTES).await;
        assert!(matches!(opened, Err(ConnectionError::Endpoint)));
    }
}
