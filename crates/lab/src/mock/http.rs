//! The HTTP side of a worker: vLLM's routes, and those that only a mock has.
//! Never schedules; a request goes to a rank and its progress comes back.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::answer::{Answer, Length, Script};
use super::engine::{Job, Progress, Rejection};
use super::fault::{FAULT_HEADER, FaultRequest, RequestFault};
use super::metrics::{self, Figures};
use super::openai::{self, Kind, Params, Writer};
use super::rank::Rank;
use super::worker::Core;

const LARGEST_BODY: usize = 32 << 20;
/// How long a request that hangs is kept.
const LONGEST_HANG: Duration = Duration::from_mins(10);

type Shared = State<Arc<Core>>;

/// An error answer: its status, and what the client is told.
#[derive(Debug)]
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = json_response(&openai::error(self.0, &self.1));
        *response.status_mut() = self.0;
        response
    }
}

pub(super) fn routes(core: Arc<Core>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(text))
        .route("/v1/chat/completions/render", post(render_chat))
        .route("/v1/completions/render", post(render_text))
        .route("/v1/models", get(models))
        .route("/health", get(|| async { StatusCode::OK }))
        .route("/metrics", get(metrics))
        .route("/tokenize", post(tokenize))
        .route("/reset_prefix_cache", post(reset))
        .layer(from_fn_with_state(Arc::clone(&core), while_starting))
        .route("/fault", get(faults).post(ask_fault))
        .route("/mock/state", get(state))
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .with_state(core)
}

/// A worker that is asked to start slowly answers nothing else until then.
async fn while_starting(State(core): Shared, request: Request, next: Next) -> Response {
    if core
        .starting_until()
        .is_some_and(|ready| Instant::now() < ready)
    {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "the model is loading").into_response();
    }
    next.run(request).await
}

async fn chat(State(core): Shared, headers: HeaderMap, body: Bytes) -> Result<Response, Refusal> {
    complete(&core, Kind::Chat, &headers, body).await
}

async fn text(State(core): Shared, headers: HeaderMap, body: Bytes) -> Result<Response, Refusal> {
    complete(&core, Kind::Text, &headers, body).await
}

async fn complete(
    core: &Core,
    kind: Kind,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    let fault = request_fault(core, headers)?;
    suffer(fault).await?;
    let (params, prompt) = read_prompt(core, kind, body).await?;
    let adapter = adapter(core, &params)?;
    let model = adapter.clone().unwrap_or_else(|| core.config.model.clone());
    let length = Length {
        shortest: core.config.answer_tokens.0,
        longest: core.config.answer_tokens.1,
        limit: params.max_tokens(),
        ignore_eos: params.ignore_eos,
    };
    let script = Script::write(&core.lexicon, core.config.seed, &prompt, length);
    let dp_rank = core
        .choose_rank(headers)
        .map_err(|unknown| refuse(StatusCode::BAD_REQUEST, &unknown))?;
    let prompt_tokens = prompt.len();
    let job = Job {
        prompt,
        answer: script.tokens.clone(),
        salt: params.cache_salt.clone(),
        adapter,
    };
    let mut running = core.ranks[dp_rank].submit(job).await.map_err(rejected)?;
    let Some(Progress::Admitted { cached_tokens }) = running.next().await else {
        return Err(refuse(
            StatusCode::SERVICE_UNAVAILABLE,
            "the engine was restarted",
        ));
    };
    let answer = Answer {
        running,
        script,
        writer: writer(core, kind, model),
        prompt_tokens,
        cached_tokens,
        reset_after: fault.reset_after,
        include_usage: params.include_usage(),
    };
    let mut response = if params.stream {
        let mut response = Response::new(answer.into_sse());
        set(
            &mut response,
            header::CONTENT_TYPE.as_str(),
            "text/event-stream; charset=utf-8",
        );
        response
    } else {
        unary(answer).await?
    };
    set(&mut response, "x-mock-worker", &core.name);
    set(
        &mut response,
        "x-mock-cached-tokens",
        &cached_tokens.to_string(),
    );
    set(&mut response, "x-mock-dp-rank", &dp_rank.to_string());
    Ok(response)
}

async fn render_chat(
    State(core): Shared,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    render(&core, Kind::Chat, &headers, body).await
}

async fn render_text(
    State(core): Shared,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    render(&core, Kind::Text, &headers, body).await
}

/// The tokens that the engine would compute for a completion request, under the same faults.
async fn render(
    core: &Core,
    kind: Kind,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    suffer(request_fault(core, headers)?).await?;
    let (_, tokens) = read_prompt(core, kind, body).await?;
    Ok(json_response(&json!({ "token_ids": tokens })))
}

/// What a completion request asks for, of a model that is served, and its prompt's tokens.
async fn read_prompt(core: &Core, kind: Kind, body: Bytes) -> Result<(Params, Vec<u32>), Refusal> {
    let params: Params = serde_json::from_slice(&body)
        .map_err(|error| refuse(StatusCode::BAD_REQUEST, &format!("the body: {error}")))?;
    adapter(core, &params)?;
    let tokens = core.tokens.of(kind.path(), body).await;
    let tokens = tokens.map_err(|error| refuse(StatusCode::BAD_REQUEST, &error.to_string()))?;
    Ok((params, tokens))
}

/// A unary answer. Where a cut was asked for, the head is sent and the body breaks off.
async fn unary(answer: Answer) -> Result<Response, Refusal> {
    let broken = answer.reset_after.is_some();
    let body = match answer.into_unary().await {
        Ok(body) if !broken => Body::from(body),
        Ok(body) => {
            let half = body.slice(..body.len() / 2);
            let cut = Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
            Body::from_stream(futures::stream::iter([Ok(half), cut]))
        }
        Err(_) => {
            return Err(refuse(
                StatusCode::SERVICE_UNAVAILABLE,
                "the engine was restarted",
            ));
        }
    };
    let mut response = Response::new(body);
    set(
        &mut response,
        header::CONTENT_TYPE.as_str(),
        "application/json",
    );
    Ok(response)
}

fn request_fault(core: &Core, headers: &HeaderMap) -> Result<RequestFault, Refusal> {
    let drawn = core.draw_fault();
    let Some(asked) = headers.get(FAULT_HEADER) else {
        return Ok(drawn);
    };
    let asked = asked.to_str().unwrap_or("");
    drawn
        .with_header(asked)
        .map_err(|error| refuse(StatusCode::BAD_REQUEST, &error.to_string()))
}

/// Lets a request suffer what comes before its answer.
async fn suffer(fault: RequestFault) -> Result<(), Refusal> {
    if fault.hang {
        sleep(LONGEST_HANG).await;
    }
    sleep(Duration::from_millis(fault.delay_ms)).await;
    match fault.status.map(StatusCode::from_u16) {
        Some(Ok(status)) => Err(refuse(status, "a fault was asked for")),
        _ => Ok(()),
    }
}

/// The adapter that the request names as its model; None for the model itself.
fn adapter(core: &Core, params: &Params) -> Result<Option<String>, Refusal> {
    match &params.model {
        Some(model) if *model != core.config.model => {
            if core.config.lora_adapters.contains(model) {
                return Ok(Some(model.clone()));
            }
            let message = format!("The model `{model}` does not exist.");
            Err(refuse(StatusCode::NOT_FOUND, &message))
        }
        _ => Ok(None),
    }
}

fn rejected(rejection: Rejection) -> Refusal {
    let status = match rejection {
        Rejection::QueueFull => StatusCode::SERVICE_UNAVAILABLE,
        Rejection::TooLong | Rejection::Empty => StatusCode::BAD_REQUEST,
    };
    refuse(status, &rejection.to_string())
}

fn writer(core: &Core, kind: Kind, model: String) -> Writer {
    Writer {
        kind,
        id: format!("{}-{}-{}", kind.id_prefix(), core.name, core.next_answer()),
        model,
        created: seconds_since_epoch(),
    }
}

async fn models(State(core): Shared) -> Response {
    let names = std::iter::once(&core.config.model).chain(&core.config.lora_adapters);
    let card = |name: &String| {
        json!({
            "id": name,
            "object": "model",
            "created": seconds_since_epoch(),
            "owned_by": "pointsman-lab",
            "max_model_len": core.longest_sequence(),
        })
    };
    let cards: Vec<Value> = names.map(card).collect();
    json_response(&json!({ "object": "list", "data": cards }))
}

async fn tokenize(State(core): Shared, body: Bytes) -> Result<Response, Refusal> {
    let bad = |message: String| refuse(StatusCode::BAD_REQUEST, &message);
    let request: Value =
        serde_json::from_slice(&body).map_err(|error| bad(format!("the body: {error}")))?;
    let kind = if request.get("messages").is_some() {
        Kind::Chat
    } else {
        Kind::Text
    };
    let tokens = core.tokens.of(kind.path(), body).await;
    let tokens = tokens.map_err(|error| bad(error.to_string()))?;
    Ok(json_response(&json!({
        "count": tokens.len(),
        "max_model_len": core.longest_sequence(),
        "tokens": tokens,
    })))
}

async fn reset(State(core): Shared) -> Result<StatusCode, Refusal> {
    let done = core.reset_caches().await;
    done.then_some(StatusCode::OK)
        .ok_or_else(|| refuse(StatusCode::SERVICE_UNAVAILABLE, "blocks are in use"))
}

async fn faults(State(core): Shared) -> Response {
    json_response(&json!({ "http": core.http_faults() }))
}

async fn ask_fault(State(core): Shared, body: Bytes) -> Result<Response, Refusal> {
    let request: FaultRequest = serde_json::from_slice(&body)
        .map_err(|error| refuse(StatusCode::BAD_REQUEST, &format!("the fault: {error}")))?;
    if let Some(problem) = request.http.problem() {
        return Err(refuse(StatusCode::BAD_REQUEST, problem));
    }
    core.ask_fault(&request).await;
    Ok(json_response(&json!({ "http": core.http_faults() })))
}

async fn state(State(core): Shared) -> Response {
    json_response(&core.state())
}

async fn metrics(State(core): Shared) -> Response {
    let delay = core.http_faults().metrics_delay_ms.unwrap_or(0);
    sleep(Duration::from_millis(delay)).await;
    let figures = |rank: &Rank| Figures {
        gauges: rank.gauges(),
        latencies: rank.latencies(),
    };
    let ranks: Vec<Figures> = core.ranks.iter().map(figures).collect();
    let text = metrics::body(&core.config, &ranks, seconds_since_epoch());
    let mut response = Response::new(Body::from(text));
    set(
        &mut response,
        header::CONTENT_TYPE.as_str(),
        "text/plain; version=0.0.4",
    );
    response
}

fn json_response(body: &Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    set(
        &mut response,
        header::CONTENT_TYPE.as_str(),
        "application/json",
    );
    response
}

fn refuse(status: StatusCode, message: &str) -> Refusal {
    Refusal(status, message.to_owned())
}

fn set(response: &mut Response, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

fn seconds_since_epoch() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    elapsed.map_or(0, |elapsed| elapsed.as_secs())
}
