//! Plays conversations against a gateway with so many requests in flight, and notes who served each turn.
//! Never judges: `verdict` does.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Deserialize;
use tokio::time::sleep;

use super::client::Client;
use super::conversation::Conversation;
use super::draw::Progress;
use super::error::LabError;
use super::stage::Stage;
use crate::mock::Worker;

const APPLY_DEADLINE: Duration = Duration::from_secs(20);

/// One answered turn.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) conversation: usize,
    /// From 0, within its conversation.
    pub(super) number: usize,
    pub(super) worker: String,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) predicted_tokens: Option<u64>,
    pub(super) first_token: Duration,
}

/// How to play.
#[derive(Debug)]
pub(super) struct Pace<'a> {
    pub(super) in_flight: usize,
    /// Wait after each turn until Pointsman applied all events so far.
    pub(super) settle: Option<Settle<'a>>,
    pub(super) seed: u64,
}

/// Waits until Pointsman applied the last event of every worker.
#[derive(Clone, Debug)]
pub(super) struct Settle<'a> {
    pub(super) client: Client,
    /// Pointsman's page of applied events.
    pub(super) url: String,
    pub(super) workers: &'a [Worker],
}

#[derive(Debug, Deserialize)]
struct Applied {
    worker_id: u64,
    dp_rank: u32,
    last_seq: Option<u64>,
}

struct Pool {
    conversations: Vec<Conversation>,
    turns: Vec<Turn>,
    random: SmallRng,
}

/// Plays all turns of all conversations, the next turn each time of a conversation chosen at random.
pub(super) async fn play(
    client: &Client,
    base: &str,
    model: &str,
    conversations: Vec<Conversation>,
    pace: &Pace<'_>,
    progress: &Progress,
) -> Result<Vec<Turn>, LabError> {
    let pool = Mutex::new(Pool {
        conversations,
        turns: Vec::new(),
        random: SmallRng::seed_from_u64(pace.seed),
    });
    let play_on = |_| async {
        while let Some(mut conversation) = take(&pool) {
            let reply = client.chat(base, &conversation.ask(model)).await?;
            if let Some(settle) = &pace.settle {
                settle.wait().await?;
            }
            let turn = Turn {
                conversation: conversation.number,
                number: conversation.turn,
                worker: reply.worker,
                prompt_tokens: reply.prompt_tokens,
                cached_tokens: reply.cached_tokens,
                predicted_tokens: reply.predicted_tokens,
                first_token: reply.first_token,
            };
            let more = conversation.hear(&reply.text);
            let mut pool = lock(&pool);
            pool.turns.push(turn);
            progress.show(pool.turns.len());
            if more {
                pool.conversations.push(conversation);
            }
        }
        Ok::<(), LabError>(())
    };
    let played = try_join_all((0..pace.in_flight.max(1)).map(play_on)).await;
    progress.end();
    played?;
    let pool = pool.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(pool.turns)
}

fn take(pool: &Mutex<Pool>) -> Option<Conversation> {
    let mut pool = lock(pool);
    let count = pool.conversations.len();
    if count == 0 {
        return None;
    }
    let chosen = pool.random.random_range(0..count);
    Some(pool.conversations.swap_remove(chosen))
}

fn lock(pool: &Mutex<Pool>) -> MutexGuard<'_, Pool> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many ranks Pointsman has cleared because their engine began anew.
#[derive(Debug)]
pub(super) struct Restarts<'a> {
    client: &'a Client,
    url: String,
    before: u64,
}

impl<'a> Restarts<'a> {
    pub(super) async fn of(stage: &'a Stage) -> Result<Self, LabError> {
        let mut restarts = Self {
            client: &stage.client,
            url: format!("http://{}/metrics", stage.addresses.admin),
            before: 0,
        };
        restarts.before = restarts.count().await?;
        Ok(restarts)
    }

    pub(super) async fn wait_for_more(&self, more: u64) -> Result<(), LabError> {
        let started = Instant::now();
        loop {
            let seen = self.count().await?.saturating_sub(self.before);
            if seen >= more {
                return Ok(());
            }
            if started.elapsed() > APPLY_DEADLINE {
                return Err(LabError::Request {
                    request: format!("GET {}", self.url),
                    problem: format!("{seen} of {more} restarts were seen in {APPLY_DEADLINE:?}"),
                });
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn count(&self) -> Result<u64, LabError> {
        const METRIC: &str = "pointsman_kv_rank_clears_total{cause=\"restart\"} ";
        let page = self.client.get(&self.url).await?;
        let page = String::from_utf8_lossy(&page);
        let value = page.lines().find_map(|line| line.strip_prefix(METRIC));
        Ok(value.and_then(|value| value.parse().ok()).unwrap_or(0))
    }
}

impl Settle<'_> {
    pub(super) async fn wait(&self) -> Result<(), LabError> {
        let started = Instant::now();
        loop {
            let Some(behind) = self.behind().await? else {
                return Ok(());
            };
            if started.elapsed() > APPLY_DEADLINE {
                return Err(behind);
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// The first rank whose last event is not applied, as the error that it is if it stays so.
    async fn behind(&self) -> Result<Option<LabError>, LabError> {
        let page = self.client.get(&self.url).await?;
        let applied: Vec<Applied> =
            serde_json::from_slice(&page).map_err(|error| LabError::Request {
                request: format!("GET {}", self.url),
                problem: error.to_string(),
            })?;
        let applied: HashMap<(u64, u32), Option<u64>> = applied
            .into_iter()
            .map(|row| ((row.worker_id, row.dp_rank), row.last_seq))
            .collect();
        for worker in self.workers {
            for dp_rank in 0..worker.ranks() {
                let Some(sequence) = worker.last_sequence(dp_rank) else {
                    continue;
                };
                let at = applied.get(&(worker.id(), dp_rank)).copied().flatten();
                if at.is_none_or(|at| at < sequence) {
                    return Ok(Some(LabError::NotApplied {
                        worker_id: worker.id(),
                        sequence,
                        applied: at.map_or("none".to_owned(), |at| at.to_string()),
                        waited: APPLY_DEADLINE,
                    }));
                }
            }
        }
        Ok(None)
    }
}
