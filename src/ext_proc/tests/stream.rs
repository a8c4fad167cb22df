//! The stream around an exchange, and exchanges that end anywhere.

use super::*;

#[tokio::test]
async fn a_pick_is_dropped_when_its_stream_ends() {
    let fake = Fake::that(Behaviour::Never);
    let server = server(Limits::default(), &fake);
    let messages = futures::stream::iter([Ok(said(">h")), Ok(said(">b:x!"))]);
    let mut replies = Replies::new(Arc::clone(&server.shared), messages);
    assert!(replies.next().await.is_none());
    assert_eq!(
        fake.picks.load(Ordering::SeqCst),
        0,
        "the end was already there"
    );
    assert_eq!(server.in_flight().count(), 0);
}

#[tokio::test]
async fn an_upload_that_stops_is_refused_after_its_patience() {
    let limits = Limits {
        body_idle: Duration::from_millis(5),
        ..Limits::default()
    };
    let server = server(limits, &Fake::default());
    let messages = futures::stream::iter([Ok(said(">h"))]).chain(futures::stream::pending());
    let mut replies = Replies::new(Arc::clone(&server.shared), messages);
    let reply = replies.next().await.unwrap().unwrap();
    assert_eq!(heard(&reply), "408 request_timeout");
    assert!(replies.next().await.is_none());
}

#[tokio::test]
async fn a_stream_that_says_nothing_is_closed_after_the_same_patience() {
    let limits = Limits {
        body_idle: Duration::from_millis(5),
        ..Limits::default()
    };
    let server = server(limits, &Fake::default());
    let mut replies = Replies::new(Arc::clone(&server.shared), futures::stream::pending());
    assert!(replies.next().await.is_none());
}

#[tokio::test]
async fn a_response_that_falls_silent_frees_its_load_and_stays_open() {
    let limits = Limits {
        response_silence: Duration::from_millis(5),
        ..Limits::default()
    };
    let fake = Fake::default();
    let server = server(limits, &fake);
    let messages = futures::stream::iter([Ok(said(">h!"))]).chain(futures::stream::pending());
    let mut replies = Replies::new(Arc::clone(&server.shared), messages);
    assert_eq!(heard(&replies.next().await.unwrap().unwrap()), ">h");
    assert_eq!(fake.held(), 1);
    let mut next = replies.next();
    while fake.held() > 0 {
        assert!(futures::poll!(&mut next).is_pending());
        tokio::task::yield_now().await;
    }
    assert!(futures::poll!(&mut next).is_pending());
    assert_eq!(server.in_flight().count(), 0);
}

#[tokio::test]
async fn a_closing_server_ends_a_stream_that_waits() {
    let server = server(Limits::default(), &Fake::default());
    let messages = futures::stream::iter([Ok(said(">h!"))]).chain(futures::stream::pending());
    let mut replies = Replies::new(Arc::clone(&server.shared), messages);
    replies.next().await.unwrap().unwrap();
    let ended = tokio::spawn(async move { replies.next().await.is_none() });
    server.closing().cancel();
    assert!(ended.await.unwrap());
}

#[tokio::test]
async fn a_pick_that_never_ends_is_refused_after_its_patience() {
    let limits = Limits {
        pick: Duration::from_millis(5),
        ..Limits::default()
    };
    let server = server(limits, &Fake::that(Behaviour::Never));
    let messages = futures::stream::iter([Ok(said(">h!"))]).chain(futures::stream::pending());
    let mut replies = Replies::new(Arc::clone(&server.shared), messages);
    let reply = replies.next().await.unwrap().unwrap();
    assert_eq!(heard(&reply), "503 routing_timeout");
}

#[tokio::test]
async fn a_message_too_large_to_take_is_refused_with_413() {
    let server = server(Limits::default(), &Fake::default());
    let broken = Err(tonic::Status::out_of_range(
        "decoded message length too large",
    ));
    let messages = futures::stream::iter([Ok(said(">h")), broken]);
    let mut replies = Replies::new(Arc::clone(&server.shared), messages);
    let reply = replies.next().await.unwrap().unwrap();
    assert_eq!(heard(&reply), "413 request_too_large");
}

/// Any exchange may be dropped, ended or told to be silent at any point; nothing may stay behind.
#[test]
fn random_cancellation_leaves_nothing_held() {
    let seed = RandomState::new().build_hasher().finish();
    println!("seed {seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let fake = Fake::that(Behaviour::Slow(3));
    let server = server(Limits::default(), &fake);
    let script = [">h", ">b:ab", ">b:cd!", "<h", "<b:x", "<b:y", "<b:z!"];
    let mut open: Vec<(Exchange<Fake>, usize)> = Vec::new();
    let mut finished = 0;
    while finished < 10_000 {
        if open.len() < 50 {
            open.push((Exchange::new(Arc::clone(&server.shared)), 0));
        }
        let index = rng.random_range(0..open.len());
        let (exchange, position) = &mut open[index];
        let mut cx = Context::from_waker(Waker::noop());
        exchange.poll_pick(&mut cx);
        while exchange.next_reply().is_some() {}
        match rng.random_range(0..12) {
            0 => exchange.on_end(),
            1 => exchange.on_silence(),
            2 => exchange.on_closing(),
            3 => *position = script.len(),
            _ if *position < script.len() => {
                exchange.on_message(said(script[*position]));
                *position += 1;
            }
            _ => {}
        }
        if *position == script.len() {
            open.swap_remove(index);
            finished += 1;
        }
    }
    drop(open);
    assert_eq!(fake.held(), 0);
    assert_eq!(server.in_flight().count(), 0);
    assert_eq!(server.shared.metrics.body_bytes.get(), 0);
    assert_eq!(server.shared.metrics.in_flight.get(), 0);
}
