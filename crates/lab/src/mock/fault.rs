//! Faults a worker can be asked for: by `POST /fault` for all that follows, by the header `x-mock-fault` for one request.
//! Never decides when a fault is due; the rooms that suffer it ask here.

use serde::{Deserialize, Serialize};

/// Header that asks for a fault of one request: `status=503`, `reset-after=2`, `hang`, `delay-ms=500`.
pub const FAULT_HEADER: &str = "x-mock-fault";

/// Body of `POST /fault`. What is left out stays as it is; `clear` first puts everything back to normal.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultRequest {
    /// Forget all faults asked for before.
    pub clear: bool,
    /// Faults of the next batches of events, of every rank.
    pub events: EventFaults,
    /// Faults of answers.
    pub http: HttpFaults,
    /// Faults of the prefix cache, of every rank.
    pub cache: CacheFaults,
    /// Restart the engines at once: requests are cut, the cache is empty, sequence numbers begin at 0 again.
    pub restart: bool,
}

/// How many of the next batches suffer what. A batch suffers one fault, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct EventFaults {
    /// Numbers skipped before the next batch: neither sent nor kept for replay.
    pub gap: u64,
    /// Batches kept for replay and not sent.
    pub drop: u64,
    /// Batches sent twice.
    pub duplicate: u64,
    /// Batches sent after the one that follows them.
    pub reorder: u64,
    /// Time each batch is held back before it is sent, from now on.
    pub delay_ms: Option<u64>,
    /// Topic of batches from now on, in place of the configured one: that of another model, say.
    pub topic: Option<String>,
}

/// What is wrong with the prefix cache from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct CacheFaults {
    /// Every prompt is computed whole. Blocks are kept and announced as ever, so that events promise what no request
    /// gets.
    pub unused: Option<bool>,
}

/// Faults of the answers to completion and render requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpFaults {
    /// Share of requests answered with `error_status`, 0 to 1.
    pub error_rate: Option<f64>,
    /// 503 when not given.
    pub error_status: Option<u16>,
    /// Share of answers cut in the middle, 0 to 1.
    pub reset_rate: Option<f64>,
    /// Pieces sent before the cut; 1 when not given.
    pub reset_after: Option<usize>,
    /// Share of requests that are never answered, 0 to 1.
    pub hang_rate: Option<f64>,
    /// Time before each answer begins.
    pub delay_ms: Option<u64>,
    /// Time before each answer of `/metrics`: beyond a scraper's deadline, it has stalled. Nothing else waits.
    pub metrics_delay_ms: Option<u64>,
    /// For this long from now, everything but `/fault` and `/mock/state` answers 503, as while a model loads; `/health`
    /// as well.
    pub slow_start_ms: Option<u64>,
}

/// What one request suffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestFault {
    pub(super) status: Option<u16>,
    pub(super) reset_after: Option<usize>,
    pub(super) hang: bool,
    pub(super) delay_ms: u64,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{FAULT_HEADER}: `{0}` is none of status=N (400 to 599), reset-after=N, hang, delay-ms=N (to 600000)"
)]
pub(super) struct BadFault(String);

/// Longest delay that can be asked for.
pub(super) const LONGEST_DELAY_MS: u64 = 600_000;

impl HttpFaults {
    /// Takes over what `other` states.
    pub(super) fn update(&mut self, other: Self) {
        self.error_rate = other.error_rate.or(self.error_rate);
        self.error_status = other.error_status.or(self.error_status);
        self.reset_rate = other.reset_rate.or(self.reset_rate);
        self.reset_after = other.reset_after.or(self.reset_after);
        self.hang_rate = other.hang_rate.or(self.hang_rate);
        self.delay_ms = other.delay_ms.or(self.delay_ms);
        self.metrics_delay_ms = other.metrics_delay_ms.or(self.metrics_delay_ms);
        self.slow_start_ms = other.slow_start_ms.or(self.slow_start_ms);
    }

    /// Why the values make no sense, if they do not.
    pub(super) fn problem(&self) -> Option<&'static str> {
        let rates = [self.error_rate, self.reset_rate, self.hang_rate];
        let share = |rate: &f64| (0.0..=1.0).contains(rate);
        if !rates.iter().flatten().all(share) {
            return Some("http: a rate must be from 0 to 1");
        }
        if self
            .error_status
            .is_some_and(|status| !(400..600).contains(&status))
        {
            return Some("http.error_status must be from 400 to 599");
        }
        let delays = [self.delay_ms, self.metrics_delay_ms, self.slow_start_ms];
        let long = |delay: &u64| *delay > LONGEST_DELAY_MS;
        delays
            .iter()
            .flatten()
            .any(long)
            .then_some("http: a delay must be at most 600000 ms")
    }

    /// Draws what one request suffers; `chance` gives a number in 0..1 at each call.
    pub(super) fn draw(&self, mut chance: impl FnMut() -> f64) -> RequestFault {
        let mut happens = |rate: Option<f64>| rate.is_some_and(|rate| chance() < rate);
        let status = happens(self.error_rate).then(|| self.error_status.unwrap_or(503));
        let reset_after = happens(self.reset_rate).then(|| self.reset_after.unwrap_or(1));
        RequestFault {
            status,
            reset_after,
            hang: happens(self.hang_rate),
            delay_ms: self.delay_ms.unwrap_or(0),
        }
    }
}

impl RequestFault {
    /// Adds what the header of one request asks for; several are separated by commas.
    pub(super) fn with_header(mut self, header: &str) -> Result<Self, BadFault> {
        for part in header.split(',').map(str::trim) {
            let bad = || BadFault(part.to_owned());
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let number = value.parse::<u64>().map_err(|_| bad());
            match name {
                "hang" if value.is_empty() => self.hang = true,
                "status" => {
                    let status = u16::try_from(number?).map_err(|_| bad())?;
                    self.status = (400..600).contains(&status).then_some(status);
                    self.status.ok_or_else(bad)?;
                }
                "reset-after" => {
                    self.reset_after = Some(usize::try_from(number?).map_err(|_| bad())?);
                }
                "delay-ms" => {
                    self.delay_ms = number?;
                    if self.delay_ms > LONGEST_DELAY_MS {
                        return Err(bad());
                    }
                }
                _ => return Err(bad()),
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_may_ask_for_several_faults() {
        let asked = RequestFault::default().with_header("delay-ms=5, reset-after=2");
        let expected = RequestFault {
            reset_after: Some(2),
            delay_ms: 5,
            ..RequestFault::default()
        };
        assert_eq!(asked, Ok(expected));
    }

    #[test]
    fn a_header_that_is_not_understood_is_refused() {
        for header in [
            "",
            "hung",
            "status=200",
            "status=x",
            "hang=1",
            "delay-ms=999999999",
        ] {
            assert!(
                RequestFault::default().with_header(header).is_err(),
                "{header}"
            );
        }
    }

    #[test]
    fn a_rate_of_one_hits_every_request_and_of_none_no_request() {
        let faults = HttpFaults {
            error_rate: Some(1.0),
            ..HttpFaults::default()
        };
        let drawn = faults.draw(|| 0.999);
        assert_eq!(
            (drawn.status, drawn.reset_after, drawn.hang),
            (Some(503), None, false)
        );
    }

    #[test]
    fn what_a_later_request_leaves_out_stays() {
        let mut faults = HttpFaults {
            delay_ms: Some(3),
            ..HttpFaults::default()
        };
        faults.update(HttpFaults {
            hang_rate: Some(0.5),
            ..HttpFaults::default()
        });
        assert_eq!((faults.delay_ms, faults.hang_rate), (Some(3), Some(0.5)));
    }
}
