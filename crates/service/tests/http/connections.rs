//! A server's connections: which thread serves one, when one is cut, and that the end comes to all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use pointsman_service::http::{Server, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::rig::PATIENCE;

const CONNECTIONS: usize = 6;
const ASK: &[u8] = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n";
/// What ends an answer.
const LAST: char = '\n';

async fn who() -> String {
    format!("{:?}{LAST}", std::thread::current().id())
}

/// The body of one answer; the connection stays open.
async fn ask(stream: &mut TcpStream) -> String {
    stream.write_all(ASK).await.unwrap();
    let mut answer = String::new();
    let mut buffer = [0; 1024];
    while !answer
        .split_once("\r\n\r\n")
        .is_some_and(|(_, body)| body.ends_with(LAST))
    {
        let read = stream.read(&mut buffer).await.unwrap();
        assert_ne!(read, 0, "closed after {answer:?}");
        answer.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[tokio::test]
async fn connections_are_dealt_evenly_to_a_servers_own_threads_and_end_with_it() {
    let server = Server::bind(ServerConfig {
        threads: 2,
        ..ServerConfig::new(([127, 0, 0, 1], 0).into())
    });
    let server = server.await.unwrap();
    let (address, stop) = (server.address(), CancellationToken::new());
    let serving = tokio::spawn(server.serve(Router::new().route("/", get(who)), stop.clone()));
    let mut open = Vec::new();
    let mut by_thread = BTreeMap::<String, usize>::new();
    for _ in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let thread = ask(&mut stream).await;
        assert_eq!(
            ask(&mut stream).await,
            thread,
            "a connection stays with its thread"
        );
        *by_thread.entry(thread).or_default() += 1;
        open.push(stream);
    }
    assert_eq!(
        by_thread.values().collect::<Vec<_>>(),
        [&(CONNECTIONS / 2); 2]
    );
    assert!(!by_thread.contains_key(&who().await));
    stop.cancel();
    tokio::time::timeout(PATIENCE, serving)
        .await
        .unwrap()
        .unwrap();
    for mut stream in open {
        assert_eq!(stream.read(&mut [0; 16]).await.unwrap(), 0, "closed");
    }
}

#[tokio::test]
async fn a_client_that_sends_half_a_head_is_cut() {
    let server = Server::bind(ServerConfig {
        threads: 1,
        head_timeout: Duration::from_millis(20),
        ..ServerConfig::new(([127, 0, 0, 1], 0).into())
    });
    let server = server.await.unwrap();
    let (address, stop) = (server.address(), CancellationToken::new());
    let serving = tokio::spawn(server.serve(Router::new().route("/", get(who)), stop.clone()));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&ASK[..ASK.len() / 2]).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    assert!(
        matches!(read.unwrap(), Ok(0) | Err(_)),
        "answered {answer:?}"
    );
    stop.cancel();
    serving.await.unwrap();
}
