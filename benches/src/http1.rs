//! A blocking HTTP/1.1 connection that sends ready-made requests and reads whole answers.
//! It decodes no answer's body and follows nothing: its own cost must stay small and the same for all.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest silence of a server before the connection counts as broken.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
    body_starts: usize,
}

/// How an answer's body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    bytes: usize,
    framing: Framing,
}

impl Connection {
    pub(crate) fn open(server: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&server, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream,
            received: Vec::with_capacity(8192),
            body_starts: 0,
        })
    }

    /// Sends one whole request and reads the answer to its end; returns its status.
    pub(crate) fn send(&mut self, request: &[u8]) -> io::Result<u16> {
        self.received.clear();
        self.stream.write_all(request)?;
        let head = loop {
            if let Some(head) = read_head(&self.received)? {
                break head;
            }
            self.receive()?;
        };
        while !is_whole(&self.received[head.bytes..], head.framing)? {
            self.receive()?;
        }
        self.body_starts = head.bytes;
        Ok(head.status)
    }

    /// The body of the last answer, as it came over the wire.
    pub(crate) fn body(&self) -> &[u8] {
        &self.received[self.body_starts..]
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut buffer = [0; 8192];
        match self.stream.read(&mut buffer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                self.received.extend_from_slice(&buffer[..read]);
                Ok(())
            }
        }
    }
}

/// One request, its body included.
pub(crate) fn post(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = "host: inference.example.com\r\nuser-agent: bench\r\naccept: application/json\r\n";
    format!("POST {path} HTTP/1.1\r\n{head}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// One without a body.
pub(crate) fn bare_post(path: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-length: 0\r\n\r\n").into_bytes()
}

pub(crate) fn delete(path: &str) -> Vec<u8> {
    format!("DELETE {path} HTTP/1.1\r\nhost: bench\r\n\r\n").into_bytes()
}

pub(crate) fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n").into_bytes()
}

/// `None` until the blank line has come.
fn read_head(received: &[u8]) -> io::Result<Option<Head>> {
    let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&received[..end]).map_err(io::Error::other)?;
    let mut lines = text.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let status = status.ok_or_else(|| io::Error::other("no status line"))?;
    let mut framing = Framing::Length(0);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            framing = Framing::Length(value.trim().parse().map_err(io::Error::other)?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            framing = Framing::Chunked;
        }
    }
    Ok(Some(Head {
        status,
        bytes: end + 4,
        framing,
    }))
}

fn is_whole(body: &[u8], framing: Framing) -> io::Result<bool> {
    match framing {
        Framing::Length(length) => Ok(body.len() >= length),
        Framing::Chunked => chunks_end(body),
    }
}

/// Walks the chunks from the start: answers here are small.
fn chunks_end(mut body: &[u8]) -> io::Result<bool> {
    loop {
        let Some(line) = body.windows(2).position(|two| two == b"\r\n") else {
            return Ok(false);
        };
        let size = std::str::from_utf8(&body[..line]).map_err(io::Error::other)?;
        let size = usize::from_str_radix(size.trim(), 16).map_err(io::Error::other)?;
        let chunk = line + 2 + size + 2;
        if body.len() < chunk {
            return Ok(false);
        }
        if size == 0 {
            return Ok(true);
        }
        body = &body[chunk..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_how_its_body_ends() {
        let head = |text: &[u8]| read_head(text).unwrap();
        assert_eq!(head(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n"), None);
        let length = head(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
        assert_eq!((length.status, length.framing), (200, Framing::Length(2)));
        let chunked = head(b"HTTP/1.1 503 no\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
        assert_eq!((chunked.status, chunked.framing), (503, Framing::Chunked));
    }

    #[test]
    fn a_chunked_body_ends_with_its_empty_chunk() {
        let whole = b"2\r\nok\r\n0\r\n\r\n";
        for cut in 0..whole.len() {
            assert!(!chunks_end(&whole[..cut]).unwrap(), "cut at {cut}");
        }
        assert!(chunks_end(whole).unwrap());
    }
}
