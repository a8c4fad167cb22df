//! Sends requests at a constant rate whatever the answers do, and takes each latency from the moment
//! its request was due. It never slows down for a slow server: what is late is counted as late.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::http1::{self, Connection};
use crate::prompts::{Prompts, Size};

/// How long after the last request was due the ones not yet sent are given up.
const GRACE: Duration = Duration::from_secs(3);

/// One constant rate for a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) server: SocketAddr,
    pub(super) per_second: u32,
    pub(super) lasting: Duration,
    pub(super) size: Size,
    /// The number of the first request; no two plans share one.
    pub(super) first_number: u64,
}

/// What came of a plan.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Of the requests answered with 200, sorted.
    pub(super) latencies: Vec<Duration>,
    pub(super) errors: usize,
    pub(super) achieved_per_second: f64,
}

impl Plan {
    pub(super) fn requests(&self) -> u64 {
        let requests = f64::from(self.per_second) * self.lasting.as_secs_f64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate times a short time"
        )]
        let requests = requests.round() as u64;
        requests.max(1)
    }

    /// Enough that a request due never waits for a free connection, short of a server that stalls.
    fn connections(&self) -> u32 {
        (self.per_second / 8).clamp(2, 64)
    }

    fn due(&self, request: u64) -> Duration {
        Duration::from_secs_f64(request as f64 / f64::from(self.per_second))
    }
}

/// Blocks until every request is answered or given up.
pub(super) fn run(plan: Plan, prompts: &Prompts) -> Outcome {
    let next = AtomicU64::new(0);
    let started = Instant::now() + Duration::from_millis(20);
    let outcomes = thread::scope(|scope| {
        let sender = || send_in_turn(plan, prompts, &next, started);
        let senders: Vec<_> = (0..plan.connections())
            .map(|_| scope.spawn(sender))
            .collect();
        senders
            .into_iter()
            .map(|sender| sender.join().unwrap_or_default())
            .collect::<Vec<_>>()
    });
    let took = started.elapsed().max(plan.due(plan.requests()));
    let mut total = Outcome::default();
    for outcome in outcomes {
        total.latencies.extend(outcome.latencies);
    }
    total.latencies.sort_unstable();
    total.errors = usize::try_from(plan.requests())
        .unwrap_or(usize::MAX)
        .saturating_sub(total.latencies.len());
    total.achieved_per_second = total.latencies.len() as f64 / took.as_secs_f64();
    total
}

fn send_in_turn(plan: Plan, prompts: &Prompts, next: &AtomicU64, started: Instant) -> Outcome {
    let mut connection = Connection::open(plan.server).ok(); // opened again below, where failing counts
    let mut outcome = Outcome::default();
    loop {
        let request = next.fetch_add(1, Ordering::Relaxed);
        if request >= plan.requests() || started.elapsed() > plan.lasting + GRACE {
            return outcome;
        }
        let body = prompts.body(plan.size, plan.first_number + request);
        let message = http1::post("/v1/chat/completions", &body);
        let due = started + plan.due(request);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if connection.is_none() {
            connection = Connection::open(plan.server).ok(); // the request fails below
        }
        match connection.as_mut().map(|open| open.send(&message)) {
            Some(Ok(200)) => outcome.latencies.push(due.elapsed()),
            Some(Ok(_)) => {}
            // A broken connection is not used again, and its request is one of the errors.
            Some(Err(_)) | None => connection = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;

    use super::*;

    fn answer(listener: TcpListener, status: &'static str) {
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                thread::spawn(move || {
                    loop {
                        let mut length = 0;
                        loop {
                            let mut line = String::new();
                            if stream.read_line(&mut line).unwrap() == 0 {
                                return;
                            }
                            if let Some(value) = line.strip_prefix("content-length: ") {
                                length = value.trim().parse().unwrap();
                            }
                            if line == "\r\n" {
                                break;
                            }
                        }
                        stream.read_exact(&mut vec![0; length]).unwrap();
                        write!(
                            stream.get_mut(),
                            "HTTP/1.1 {status} x\r\ncontent-length: 2\r\n\r\nok"
                        )
                        .unwrap();
                    }
                });
            }
        });
    }

    fn outcome(status: &'static str) -> Outcome {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        answer(listener, status);
        let lasting = Duration::from_millis(200);
        run(
            Plan {
                server,
                per_second: 100,
                lasting,
                size: Size::Small,
                first_number: 0,
            },
            &Prompts::new(1),
        )
    }

    #[test]
    fn every_request_due_is_sent_and_timed() {
        let outcome = outcome("200");
        assert_eq!((outcome.latencies.len(), outcome.errors), (20, 0));
        assert!(outcome.latencies.is_sorted());
    }

    #[test]
    fn an_answer_that_is_no_200_is_an_error_and_has_no_latency() {
        let outcome = outcome("503");
        assert_eq!((outcome.latencies.len(), outcome.errors), (0, 20));
    }
}
