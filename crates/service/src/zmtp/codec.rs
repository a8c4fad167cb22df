//! ZMTP 3.0 with the NULL mechanism, as bytes: greetings, handshake, frames, subscriptions, pings.
//!
//! It opens no socket. Whatever a stranger sends, it allocates no more than it was sent, keeps no
//! more of it than it was made for, and never panics; a message over that is read past.

use bytes::{Buf, BufMut, Bytes, BytesMut};

const GREETING_BYTES: usize = 64;
/// Longest command of a handshake or of a living connection.
const MAX_COMMAND_BYTES: u64 = 4096;
const MAX_FRAMES: usize = 8;

const MORE: u8 = 0x01;
const LONG: u8 = 0x02;
const COMMAND: u8 = 0x04;

/// Which end of a connection we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Publisher,
    Subscriber,
    Dealer,
}

impl Role {
    fn socket_type(self) -> &'static [u8] {
        match self {
            Self::Publisher => b"PUB",
            Self::Subscriber => b"SUB",
            Self::Dealer => b"DEALER",
        }
    }

    /// Whom it talks to.
    fn fits(self, other: &[u8]) -> bool {
        let others: &[&[u8]] = match self {
            Self::Publisher => &[b"SUB", b"XSUB"],
            Self::Subscriber => &[b"PUB", b"XPUB"],
            Self::Dealer => &[b"ROUTER", b"DEALER", b"REP"],
        };
        others.contains(&other)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ZmtpError {
    #[error("not a ZMTP 3 greeting without security")]
    Greeting,
    #[error("the other end speaks out of turn in the handshake")]
    Handshake,
    #[error("the other end is a socket of the wrong type")]
    SocketType,
    #[error("a command over {MAX_COMMAND_BYTES} bytes")]
    CommandSize,
}

/// What a connection brought, once its handshake is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Incoming {
    Message(Vec<Bytes>),
    /// A message that was too large, or had too many frames, was read past.
    Oversized,
    Subscribe(Bytes),
    Cancel(Bytes),
    /// To be answered with [`pong`] and this context.
    Ping(Bytes),
    /// Anything that asks for nothing.
    Other,
}

/// Reads what one end of a connection is sent.
#[derive(Debug)]
pub(crate) struct Decoder {
    role: Role,
    state: State,
    frames: Vec<Bytes>,
    message_bytes: usize,
    max_message_bytes: usize,
    /// The rest of the message under way is not wanted.
    discarding: bool,
    /// Whether the other end answers pings.
    pub(crate) answers_pings: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Greeting,
    Ready,
    Frames,
    /// Bytes of a frame that is read past, and whether another follows.
    Skip {
        left: u64,
        more: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct Header {
    flags: u8,
    head_bytes: usize,
    body_bytes: u64,
}

impl Decoder {
    /// A message longer than this, over all its frames, is not kept.
    pub(crate) fn new(role: Role, max_message_bytes: usize) -> Self {
        Self {
            role,
            state: State::Greeting,
            frames: Vec::new(),
            message_bytes: 0,
            max_message_bytes,
            discarding: false,
            answers_pings: false,
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        !matches!(self.state, State::Greeting | State::Ready)
    }

    /// Takes from `bytes` what is whole. `None` where more bytes are needed, and once when the
    /// handshake ends: whoever waits for that asks [`is_ready`](Self::is_ready).
    pub(crate) fn next(&mut self, bytes: &mut BytesMut) -> Result<Option<Incoming>, ZmtpError> {
        loop {
            match self.state {
                State::Greeting => {
                    if bytes.len() < GREETING_BYTES {
                        return Ok(None);
                    }
                    self.greeted(&bytes.split_to(GREETING_BYTES))?;
                }
                State::Ready => {
                    let Some(header) = header(bytes) else {
                        return Ok(None);
                    };
                    if header.flags & COMMAND == 0 {
                        return Err(ZmtpError::Handshake);
                    }
                    let Some(body) = body(bytes, header, MAX_COMMAND_BYTES)? else {
                        return Ok(None);
                    };
                    self.made_ready(&body)?;
                    return Ok(None);
                }
                State::Skip { left, more } => {
                    let here = left.min(bytes.len() as u64);
                    bytes.advance(usize::try_from(here).unwrap_or(usize::MAX));
                    if here < left {
                        let left = left - here;
                        self.state = State::Skip { left, more };
                        return Ok(None);
                    }
                    self.state = State::Frames;
                    if !more {
                        self.discarding = false;
                        return Ok(Some(Incoming::Oversized));
                    }
                }
                State::Frames => {
                    let Some(header) = header(bytes) else {
                        return Ok(None);
                    };
                    match self.frame(bytes, header)? {
                        Frame::Needs => return Ok(None),
                        Frame::Taken => {}
                        Frame::Done(incoming) => return Ok(Some(incoming)),
                    }
                }
            }
        }
    }

    fn greeted(&mut self, greeting: &[u8]) -> Result<(), ZmtpError> {
        let signature = greeting[0] == 0xff && greeting[9] & 1 == 1;
        let mechanism = greeting[12..32].starts_with(b"NULL\0");
        if !signature || greeting[10] < 3 || !mechanism {
            return Err(ZmtpError::Greeting);
        }
        self.answers_pings = greeting[10] > 3 || greeting[11] >= 1;
        self.state = State::Ready;
        Ok(())
    }

    fn made_ready(&mut self, body: &[u8]) -> Result<(), ZmtpError> {
        let properties = body
            .strip_prefix(b"\x05READY")
            .ok_or(ZmtpError::Handshake)?;
        let kind = property(properties, b"socket-type").ok_or(ZmtpError::Handshake)?;
        if !self.role.fits(kind) {
            return Err(ZmtpError::SocketType);
        }
        self.state = State::Frames;
        Ok(())
    }

    fn frame(&mut self, bytes: &mut BytesMut, header: Header) -> Result<Frame, ZmtpError> {
        if header.flags & COMMAND != 0 {
            let body = body(bytes, header, MAX_COMMAND_BYTES)?;
            return Ok(body.map_or(Frame::Needs, |body| Frame::Done(command(&body))));
        }
        let more = header.flags & MORE != 0;
        let room = (self.max_message_bytes - self.message_bytes) as u64;
        if self.discarding || header.body_bytes > room || self.frames.len() >= MAX_FRAMES {
            bytes.advance(header.head_bytes);
            self.discarding = true;
            self.frames.clear();
            self.message_bytes = 0;
            let left = header.body_bytes;
            self.state = State::Skip { left, more };
            return Ok(Frame::Taken);
        }
        let Some(body) = body(bytes, header, room)? else {
            return Ok(Frame::Needs);
        };
        self.message_bytes += body.len();
        self.frames.push(body);
        if more {
            return Ok(Frame::Taken);
        }
        self.message_bytes = 0;
        let frames = std::mem::take(&mut self.frames);
        Ok(Frame::Done(self.sorted(frames)))
    }

    /// Before 3.1, subscriptions are messages.
    fn sorted(&self, mut frames: Vec<Bytes>) -> Incoming {
        if self.role != Role::Publisher {
            return Incoming::Message(frames);
        }
        match (frames.len(), frames.pop()) {
            (1, Some(mut only)) if !only.is_empty() => match only.get_u8() {
                1 => Incoming::Subscribe(only),
                0 => Incoming::Cancel(only),
                _ => Incoming::Other,
            },
            _ => Incoming::Other,
        }
    }
}

enum Frame {
    Needs,
    Taken,
    Done(Incoming),
}

fn header(bytes: &[u8]) -> Option<Header> {
    let flags = *bytes.first()?;
    if flags & LONG == 0 {
        return Some(Header {
            flags,
            head_bytes: 2,
            body_bytes: u64::from(*bytes.get(1)?),
        });
    }
    let length = bytes.get(1..9)?.try_into().ok()?;
    Some(Header {
        flags,
        head_bytes: 9,
        body_bytes: u64::from_be_bytes(length),
    })
}

/// The body of a frame if all of it is there.
fn body(bytes: &mut BytesMut, header: Header, limit: u64) -> Result<Option<Bytes>, ZmtpError> {
    if header.body_bytes > limit {
        return Err(ZmtpError::CommandSize);
    }
    // Both limits fit an address.
    let body_bytes = usize::try_from(header.body_bytes).unwrap_or(usize::MAX);
    if bytes.len() - header.head_bytes < body_bytes {
        return Ok(None);
    }
    bytes.advance(header.head_bytes);
    Ok(Some(bytes.split_to(body_bytes).freeze()))
}

fn command(body: &Bytes) -> Incoming {
    let rest = |prefix: &[u8]| body.starts_with(prefix).then(|| body.slice(prefix.len()..));
    if let Some(topic) = rest(b"\x09SUBSCRIBE") {
        Incoming::Subscribe(topic)
    } else if let Some(topic) = rest(b"\x06CANCEL") {
        Incoming::Cancel(topic)
    } else if let Some(ping) = rest(b"\x04PING") {
        // Two bytes of time to live, then at most 16 of context.
        Incoming::Ping(ping.slice(ping.len().min(2)..ping.len().min(18)))
    } else {
        Incoming::Other
    }
}

/// A property of a READY command; names are compared without case.
fn property<'a>(mut bytes: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    loop {
        let (length, rest) = bytes.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(*length))?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (value, rest) = rest.split_at_checked(length)?;
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        bytes = rest;
    }
}

/// The first words of a connection: greeting and READY, which may be sent at once.
pub(crate) fn opening(role: Role) -> Bytes {
    let mut bytes = BytesMut::with_capacity(GREETING_BYTES + 64);
    bytes.put_slice(&[0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0]);
    bytes.put_slice(b"NULL");
    bytes.put_bytes(0, GREETING_BYTES - 16);
    let kind = role.socket_type();
    let mut ready = BytesMut::new();
    ready.put_slice(b"\x05READY\x0bSocket-Type");
    ready.put_u32(u32::try_from(kind.len()).unwrap_or(u32::MAX));
    ready.put_slice(kind);
    put_frame(&mut bytes, COMMAND, &ready);
    bytes.freeze()
}

/// A message of two frames.
pub(crate) fn message(first: &[u8], last: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(first.len() + last.len() + 11);
    put_frame(&mut bytes, MORE, first);
    put_frame(&mut bytes, 0, last);
    bytes.freeze()
}

pub(crate) fn subscribe(topic: &[u8]) -> Bytes {
    subscription(1, topic)
}

pub(crate) fn cancel(topic: &[u8]) -> Bytes {
    subscription(0, topic)
}

/// Asks for an answer; a connection over which nothing comes back is dead.
pub(crate) fn ping() -> Bytes {
    let mut bytes = BytesMut::new();
    put_frame(&mut bytes, COMMAND, b"\x04PING\0\0");
    bytes.freeze()
}

pub(crate) fn pong(context: &[u8]) -> Bytes {
    let mut bytes = BytesMut::new();
    put_frame(&mut bytes, COMMAND, &[b"\x04PONG", context].concat());
    bytes.freeze()
}

fn subscription(first: u8, topic: &[u8]) -> Bytes {
    let mut bytes = BytesMut::new();
    put_frame(&mut bytes, 0, &[&[first], topic].concat());
    bytes.freeze()
}

fn put_frame(bytes: &mut BytesMut, flags: u8, body: &[u8]) {
    if let Ok(short) = u8::try_from(body.len()) {
        bytes.put_slice(&[flags, short]);
    } else {
        bytes.put_u8(flags | LONG);
        bytes.put_u64(body.len() as u64);
    }
    bytes.put_slice(body);
}

#[cfg(test)]
mod tests;
