//! One function per admin page; they read the service and never change it.

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use pointsman_service::WorkerRecord;
use pointsman_service::http::LoadsAnswer;
use serde::Serialize;
use serde_json::json;

use super::Shown;
use crate::error::Refusal;

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const INDEX: &str = "<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<title>Pointsman</title>
<style>body { font: 16px/1.5 sans-serif; max-width: 40em; margin: 3em auto } li { margin: .3em 0 }</style>
<h1>Pointsman</h1>
<ul>
<li><a href=\"/ready\">/ready</a>: can a request be served now, and if not, why
<li><a href=\"/workers\">/workers</a>: the worker catalog; <code>?model_name=</code>, <code>?routing_group=</code>
<li><a href=\"/loads\">/loads</a>: what each worker is charged with
<li><a href=\"/events/applied\">/events/applied</a>: how far each worker's KV events are applied
<li><a href=\"/metrics\">/metrics</a>: for Prometheus
<li><a href=\"/health\">/health</a>: does the process answer
</ul>
";

pub(super) async fn index() -> Html<&'static str> {
    Html(INDEX)
}

pub(super) async fn metrics(State(shown): State<Shown>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &shown.registry) {
        Ok(()) => ([(header::CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot encode the metrics");
            refuse(&Refusal::fixed(
                500,
                "internal_error",
                "the metrics cannot be encoded",
            ))
        }
    }
}

pub(super) async fn health() -> Response {
    Json(json!({ "status": "ok" })).into_response()
}

#[derive(Serialize)]
struct Readiness {
    ready: bool,
    schedulable_workers: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<&'static str>,
    workers: Vec<WorkerRecord>,
}

pub(super) async fn ready(State(shown): State<Shown>) -> Response {
    let state = *shown.service.state().borrow();
    let causes = [
        (
            state.stopping || shown.stopping.is_cancelled(),
            "the picker is shutting down",
        ),
        (
            !state.source_read,
            "the worker source has not been read yet",
        ),
        (
            state.recovering,
            "the index is being taken over from a peer",
        ),
        (state.schedulable == 0, "no worker is schedulable"),
    ];
    let reasons: Vec<_> = causes
        .into_iter()
        .filter_map(|(holds, reason)| holds.then_some(reason))
        .collect();
    let status = if reasons.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let body = Readiness {
        ready: reasons.is_empty(),
        schedulable_workers: state.schedulable,
        reasons,
        workers: shown.service.workers(),
    };
    (status, Json(body)).into_response()
}

/// Which partitions a page is about; all where nothing is said.
#[derive(Default)]
struct Wanted {
    model_name: Option<String>,
    routing_group: Option<String>,
}

impl Wanted {
    /// Reads `model_name` and `routing_group`; other names mean nothing here.
    fn from_query(query: Option<&str>) -> Self {
        let mut wanted = Self::default();
        let pairs = query.unwrap_or_default().split('&');
        for (name, value) in pairs.filter_map(|pair| pair.split_once('=')) {
            match name {
                "model_name" => wanted.model_name = Some(decoded(value)),
                "routing_group" => wanted.routing_group = Some(decoded(value)),
                _ => {}
            }
        }
        wanted
    }

    fn holds(&self, model_name: &str, routing_group: &str) -> bool {
        let is =
            |wanted: &Option<String>, name| wanted.as_deref().is_none_or(|wanted| wanted == name);
        is(&self.model_name, model_name) && is(&self.routing_group, routing_group)
    }
}

/// A value of a query, without its escapes; a broken escape stands for itself.
fn decoded(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [byte, tail @ ..] = rest {
        rest = tail;
        let escaped = tail
            .get(..2)
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        match (byte, escaped) {
            (b'%', Some(code)) => {
                bytes.push(code);
                rest = &tail[2..];
            }
            (b'+', _) => bytes.push(b' '),
            _ => bytes.push(*byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(super) async fn workers(State(shown): State<Shown>, RawQuery(query): RawQuery) -> Response {
    let wanted = Wanted::from_query(query.as_deref());
    let records: Vec<WorkerRecord> = shown
        .service
        .workers()
        .into_iter()
        .filter(|record| {
            let worker = &record.registration;
            wanted.holds(&worker.model_name, &worker.routing_group)
        })
        .collect();
    Json(records).into_response()
}

pub(super) async fn loads(State(shown): State<Shown>, RawQuery(query): RawQuery) -> Response {
    let wanted = Wanted::from_query(query.as_deref());
    let partitions = shown.service.loads();
    let wanted: Vec<_> = partitions
        .iter()
        .filter(|partition| wanted.holds(&partition.id.model_name, &partition.id.routing_group))
        .map(LoadsAnswer::new)
        .collect();
    Json(wanted).into_response()
}

#[derive(Serialize)]
struct RankEvents {
    worker_id: u64,
    dp_rank: u32,
    /// Sequence number of the last batch applied; `null` before the first.
    last_seq: Option<u64>,
    batches: u64,
}

pub(super) async fn events_applied(State(shown): State<Shown>) -> Response {
    let rows: Vec<RankEvents> = shown
        .service
        .workers()
        .iter()
        .flat_map(|record| {
            let worker_id = record.worker_id();
            record
                .kv_events
                .iter()
                .map(move |(dp_rank, events)| RankEvents {
                    worker_id,
                    dp_rank: *dp_rank,
                    last_seq: events.last_sequence,
                    batches: events.applied_batches,
                })
        })
        .collect();
    Json(rows).into_response()
}

pub(super) async fn not_found() -> Response {
    refuse(&Refusal::fixed(404, "not_found", "route not found"))
}

pub(super) async fn method_not_allowed() -> Response {
    refuse(&Refusal::fixed(
        405,
        "method_not_allowed",
        "method not allowed",
    ))
}

fn refuse(refusal: &Refusal) -> Response {
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let json = [(header::CONTENT_TYPE, "application/json")];
    (status, json, refusal.json()).into_response()
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn escapes_of_a_query_are_undone_and_broken_ones_left() {
        let check = |value: &str, expected: &str| assert_eq!(decoded(value), expected, "{value}");
        check("meta-llama%2FLlama-3", "meta-llama/Llama-3");
        check("a+b%20c", "a b c");
        check("100%", "100%");
        check("%zz%4", "%zz%4");
        check("%C3%A9", "\u{e9}");
        check("", "");
    }
}
