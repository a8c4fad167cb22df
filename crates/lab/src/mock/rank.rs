//! One rank at work: a task that drives an engine through time and publishes what it stored before it tells the client.
//! Never reads a request; it gets tokens and gives tokens.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::engine::{Engine, EngineConfig, Gauges, Job, Progress, Rejection, RequestId};
use super::latency::Latencies;
use super::publisher::Publisher;

const COMMAND_QUEUE: usize = 4_096;

enum Command {
    Submit {
        job: Job,
        progress: mpsc::Sender<Progress>,
        taken: oneshot::Sender<Result<(), Rejection>>,
    },
    ResetCache {
        done: oneshot::Sender<bool>,
    },
    LeaveCacheUnused(bool),
    Restart,
}

/// The door to one rank.
#[derive(Debug)]
pub(super) struct Rank {
    commands: mpsc::Sender<Command>,
    gauges: watch::Receiver<Gauges>,
    latencies: watch::Receiver<Latencies>,
    in_flight: Arc<AtomicUsize>,
    pub(super) publisher: Arc<Publisher>,
}

/// A request in the engine. Dropping it aborts the request and frees its blocks.
#[derive(Debug)]
pub(super) struct Running {
    progress: mpsc::Receiver<Progress>,
    in_flight: Arc<AtomicUsize>,
}

impl Rank {
    pub(super) fn start(
        config: EngineConfig,
        time_scale: f64,
        publisher: Publisher,
        stop: CancellationToken,
    ) -> Self {
        let (commands, queue) = mpsc::channel(COMMAND_QUEUE);
        let engine = Engine::new(config);
        let (gauges_out, gauges) = watch::channel(engine.gauges());
        let (latencies_out, latencies) = watch::channel(Latencies::default());
        let publisher = Arc::new(publisher);
        let driver = Driver {
            engine,
            clients: HashMap::new(),
            publisher: Arc::clone(&publisher),
            gauges: gauges_out,
            latencies: latencies_out,
            time_scale,
            clock: Instant::now(),
        };
        tokio::spawn(driver.run(queue, stop));
        Self {
            commands,
            gauges,
            latencies,
            in_flight: Arc::new(AtomicUsize::new(0)),
            publisher,
        }
    }

    pub(super) async fn submit(&self, job: Job) -> Result<Running, Rejection> {
        // Room for all that will ever be told: the engine never waits for a slow client.
        let (progress_in, progress) = mpsc::channel(job.answer.len() + 2);
        let (taken, answer) = oneshot::channel();
        let command = Command::Submit {
            job,
            progress: progress_in,
            taken,
        };
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let running = Running {
            progress,
            in_flight: Arc::clone(&self.in_flight),
        };
        let full = |_| Rejection::QueueFull;
        self.commands.try_send(command).map_err(full)?;
        answer.await.map_err(|_| Rejection::QueueFull)??;
        Ok(running)
    }

    /// Forgets the prefix cache; false while requests run.
    pub(super) async fn reset_cache(&self) -> bool {
        let (done, answer) = oneshot::channel();
        let sent = self.commands.send(Command::ResetCache { done }).await;
        sent.is_ok() && answer.await.unwrap_or(false)
    }

    /// From now on no request finds anything cached, or does again.
    pub(super) async fn leave_cache_unused(&self, unused: bool) {
        // A rank that is gone uses nothing.
        let _ = self.commands.send(Command::LeaveCacheUnused(unused)).await;
    }

    pub(super) async fn restart(&self) {
        // A rank that is gone needs no restart.
        let _ = self.commands.send(Command::Restart).await;
    }

    pub(super) fn gauges(&self) -> Gauges {
        self.gauges.borrow().clone()
    }

    pub(super) fn latencies(&self) -> Latencies {
        self.latencies.borrow().clone()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }
}

impl Running {
    /// What happened next; None when the engine dropped the request.
    pub(super) async fn next(&mut self) -> Option<Progress> {
        self.progress.recv().await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Client {
    progress: mpsc::Sender<Progress>,
    /// When the request came, or else its last token.
    since: Instant,
    answered: bool,
}

struct Driver {
    engine: Engine,
    clients: HashMap<RequestId, Client>,
    publisher: Arc<Publisher>,
    gauges: watch::Sender<Gauges>,
    latencies: watch::Sender<Latencies>,
    time_scale: f64,
    /// Simulated now. A timer wakes late by up to a millisecond; counting from here keeps that from adding up.
    clock: Instant,
}

impl Driver {
    async fn run(mut self, mut queue: mpsc::Receiver<Command>, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.serve(&mut queue) => {}
        }
    }

    async fn serve(&mut self, queue: &mut mpsc::Receiver<Command>) {
        loop {
            while let Ok(command) = queue.try_recv() {
                self.take(command);
            }
            self.abort_abandoned();
            if let Some(step) = self.engine.begin_step() {
                self.publish_gauges();
                self.tell(step.admitted);
                self.pass(step.duration).await;
                let outcome = self.engine.finish_step();
                // First the events, then the tokens: a client that saw its answer end finds all of it published.
                self.publisher.publish(&outcome.events);
                self.tell(outcome.progress);
                self.publish_gauges();
            } else {
                self.publish_gauges();
                let Some(command) = queue.recv().await else {
                    return;
                };
                self.clock = Instant::now();
                self.take(command);
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Submit {
                job,
                progress,
                taken,
            } => {
                let submitted = self.engine.submit(job);
                let client = Client {
                    progress,
                    since: Instant::now(),
                    answered: false,
                };
                let answer = submitted.map(|id| {
                    self.clients.insert(id, client);
                });
                // A client that left meanwhile is found by its closed channel.
                let _ = taken.send(answer);
            }
            Command::ResetCache { done } => {
                let _ = done.send(self.engine.reset_cache());
            }
            Command::LeaveCacheUnused(unused) => self.engine.leave_cache_unused(unused),
            Command::Restart => {
                self.engine.restart();
                self.clients.clear();
                self.publisher.restart();
            }
        }
    }

    fn abort_abandoned(&mut self) {
        let engine = &mut self.engine;
        self.clients.retain(|&id, client| {
            let gone = client.progress.is_closed();
            if gone {
                engine.abort(id);
            }
            !gone
        });
    }

    fn tell(&mut self, progress: Vec<(RequestId, Progress)>) {
        let now = Instant::now();
        for (id, news) in progress {
            if let Some(client) = self.clients.get_mut(&id) {
                if matches!(news, Progress::Token { .. }) {
                    let waited = now - std::mem::replace(&mut client.since, now);
                    let answered = std::mem::replace(&mut client.answered, true);
                    self.latencies.send_modify(|latencies| {
                        let histogram = if answered {
                            &mut latencies.inter_token
                        } else {
                            &mut latencies.first_token
                        };
                        histogram.observe(waited);
                    });
                }
                // A closed channel is an abort, seen at the next step.
                let _ = client.progress.try_send(news);
            }
            if news == (Progress::Token { last: true }) {
                self.clients.remove(&id);
            }
        }
    }

    async fn pass(&mut self, duration: Duration) {
        let scaled = duration.as_secs_f64() * self.time_scale;
        self.clock += Duration::try_from_secs_f64(scaled).unwrap_or_default();
        if self.clock > Instant::now() {
            sleep_until(self.clock).await;
        } else {
            tokio::task::yield_now().await;
        }
    }

    fn publish_gauges(&self) {
        self.gauges.send_replace(self.engine.gauges());
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::super::events::Form;
    use super::super::publisher::Ports;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_to_first_token_follows_the_formula() {
        let ports = Ports {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            events: 0,
            replay: 0,
            topic: String::new(),
        };
        let stop = CancellationToken::new();
        let publisher = Publisher::start(&ports, 0, Form::default(), stop.clone()).await;
        let config = EngineConfig {
            prefill_us_per_token: 1_000.0,
            prefill_overhead_us: 5_000.0,
            ..EngineConfig::default()
        };
        let rank = Rank::start(config, 10.0, publisher.unwrap(), stop);
        let job = Job {
            prompt: vec![7; 20],
            answer: vec![8, 9],
            salt: None,
            adapter: None,
        };
        let started = Instant::now();
        let mut running = rank.submit(job).await.unwrap();
        while !matches!(running.next().await, Some(Progress::Token { .. })) {}
        // 20 ms of prefill and 5 ms of overhead, ten times slower.
        assert_eq!(started.elapsed().as_millis(), 250);
        while running.next().await.is_some() {}
        let latencies = rank.latencies();
        assert!((latencies.first_token.sum() - 0.25).abs() < 0.005);
        assert_eq!(latencies.inter_token.count(), 1);
    }
}
