use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// A decoder behind the handshake.
fn ready(role: Role) -> Decoder {
    let other = match role {
        Role::Publisher => Role::Subscriber,
        Role::Subscriber => Role::Publisher,
        Role::Dealer => panic!("a dealer has no other end here"),
    };
    let mut decoder = Decoder::new(role, MAX_MESSAGE_BYTES);
    let mut bytes = BytesMut::from(&opening(other)[..]);
    assert_eq!(decoder.next(&mut bytes), Ok(None));
    assert!(decoder.is_ready() && bytes.is_empty());
    decoder
}

fn all(decoder: &mut Decoder, bytes: &[u8]) -> Vec<Incoming> {
    let mut bytes = BytesMut::from(bytes);
    std::iter::from_fn(|| decoder.next(&mut bytes).unwrap()).collect()
}

#[test]
fn the_opening_is_a_greeting_and_ready() {
    let opening = opening(Role::Publisher);
    assert_eq!(opening.len(), 64 + 2 + 6 + 12 + 4 + 3);
    assert_eq!(&opening[..12], b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0");
    assert_eq!(
        &opening[64..],
        b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB"
    );
}

#[test]
fn a_message_is_the_same_however_its_bytes_are_cut() {
    let bytes = message(b"topic", &[7; 300]);
    let whole = all(&mut ready(Role::Subscriber), &bytes);
    assert_eq!(
        whole,
        [Incoming::Message(vec![
            Bytes::from("topic"),
            vec![7; 300].into()
        ])]
    );
    let mut decoder = ready(Role::Subscriber);
    let (mut held, mut found) = (BytesMut::new(), Vec::new());
    for byte in bytes {
        held.put_u8(byte);
        found.extend(decoder.next(&mut held).unwrap());
    }
    assert_eq!(found, whole);
}

#[test]
fn subscriptions_are_read_as_messages_and_as_commands() {
    let mut command = BytesMut::new();
    put_frame(&mut command, COMMAND, b"\x09SUBSCRIBEb");
    put_frame(&mut command, COMMAND, b"\x06CANCELb");
    let bytes = [subscribe(b"a"), cancel(b"a"), command.freeze()].concat();
    assert_eq!(
        all(&mut ready(Role::Publisher), &bytes),
        [
            Incoming::Subscribe("a".into()),
            Incoming::Cancel("a".into()),
            Incoming::Subscribe("b".into()),
            Incoming::Cancel("b".into()),
        ]
    );
}

#[test]
fn a_ping_is_answered_with_its_context() {
    let mut bytes = BytesMut::new();
    put_frame(&mut bytes, COMMAND, b"\x04PING\0\x96context");
    let found = all(&mut ready(Role::Subscriber), &bytes);
    assert_eq!(found, [Incoming::Ping("context".into())]);
    assert_eq!(&pong(b"context")[..], b"\x04\x0c\x04PONGcontext");
}

#[test]
fn a_claimed_length_allocates_nothing_and_is_read_past() {
    let mut bytes = BytesMut::from(&[LONG][..]);
    bytes.put_u64(u64::MAX);
    let mut decoder = ready(Role::Subscriber);
    assert_eq!(decoder.next(&mut bytes), Ok(None));
    assert!(bytes.capacity() < 4096);

    let mut bytes = BytesMut::from(&[LONG | MORE][..]);
    bytes.put_u64(MAX_MESSAGE_BYTES as u64 + 1);
    bytes.put_bytes(1, MAX_MESSAGE_BYTES + 1);
    bytes.put_slice(&[0, 1, 9]);
    bytes.put_slice(&message(b"t", b"p"));
    let mut decoder = ready(Role::Subscriber);
    assert_eq!(decoder.next(&mut bytes), Ok(Some(Incoming::Oversized)));
    let next = Incoming::Message(vec!["t".into(), "p".into()]);
    assert_eq!(decoder.next(&mut bytes), Ok(Some(next)));
}

#[test]
fn frames_without_end_are_not_kept() {
    let mut bytes = BytesMut::new();
    for _ in 0..1_000 {
        put_frame(&mut bytes, MORE, b"x");
    }
    put_frame(&mut bytes, 0, b"x");
    let found = all(&mut ready(Role::Subscriber), &bytes);
    assert_eq!(found, [Incoming::Oversized]);
}

#[test]
fn whoever_speaks_another_protocol_is_refused() {
    let mut http = BytesMut::from(&[b'G'; GREETING_BYTES][..]);
    let refused = Decoder::new(Role::Publisher, MAX_MESSAGE_BYTES).next(&mut http);
    assert_eq!(refused, Err(ZmtpError::Greeting));
    let mut publisher = BytesMut::from(&opening(Role::Publisher)[..]);
    let refused = Decoder::new(Role::Publisher, MAX_MESSAGE_BYTES).next(&mut publisher);
    assert_eq!(refused, Err(ZmtpError::SocketType));
    let mut curve = BytesMut::from(&opening(Role::Subscriber)[..]);
    curve[12..17].copy_from_slice(b"CURVE");
    let refused = Decoder::new(Role::Publisher, MAX_MESSAGE_BYTES).next(&mut curve);
    assert_eq!(refused, Err(ZmtpError::Greeting));
}

#[test]
fn no_bytes_make_it_panic_or_loop() {
    let seed = 0x5eed_0011;
    println!("seed {seed:#x}");
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..2_000 {
        let mut decoder = if random.random() {
            ready(Role::Publisher)
        } else {
            Decoder::new(Role::Subscriber, MAX_MESSAGE_BYTES)
        };
        let mut bytes = BytesMut::from(&opening(Role::Publisher)[..]);
        for _ in 0..random.random_range(0..60) {
            bytes.put_u8(random.random_range(0..12));
        }
        if !bytes.is_empty() && random.random() {
            let at = random.random_range(0..bytes.len());
            bytes[at] = random.random();
        }
        let mut steps = 0;
        while let Ok(Some(_)) = decoder.next(&mut bytes) {
            steps += 1;
            assert!(steps <= 200);
        }
    }
}

#[test]
fn a_dealer_talks_to_a_router_and_to_no_publisher() {
    let router = b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06ROUTER";
    let greeting = &opening(Role::Dealer)[..GREETING_BYTES];
    let mut bytes = BytesMut::from(&[greeting, router].concat()[..]);
    let mut decoder = Decoder::new(Role::Dealer, MAX_MESSAGE_BYTES);
    assert_eq!(decoder.next(&mut bytes), Ok(None));
    assert!(decoder.is_ready());
    bytes.put_slice(&message(b"", b"\x01question"));
    let found = decoder.next(&mut bytes);
    let frames = vec![Bytes::new(), "\x01question".into()];
    assert_eq!(found, Ok(Some(Incoming::Message(frames))));

    let mut publisher = BytesMut::from(&opening(Role::Publisher)[..]);
    let refused = Decoder::new(Role::Dealer, MAX_MESSAGE_BYTES).next(&mut publisher);
    assert_eq!(refused, Err(ZmtpError::SocketType));
}
