//! The lab's HTTP client: plain pages, and completions whose stream is timed and read.
//! Never retries: a failed request is a result.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::time::timeout;

use super::error::LabError;

const DEADLINE: Duration = Duration::from_mins(1);
const LARGEST_ANSWER: usize = 16 << 20;

#[derive(Clone, Debug)]
pub(super) struct Client(legacy::Client<HttpConnector, Full<Bytes>>);

/// A completion as the client saw it.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) worker: String,
    pub(super) text: String,
    pub(super) prompt_tokens: u64,
    /// What the worker says was cached.
    pub(super) cached_tokens: u64,
    /// What Pointsman said would be cached; None where nobody predicts.
    pub(super) predicted_tokens: Option<u64>,
    pub(super) first_token: Duration,
}

impl Client {
    pub(super) fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self(legacy::Client::builder(TokioExecutor::new()).build(connector))
    }

    /// The body of a page that answers 200.
    pub(super) async fn get(&self, url: &str) -> Result<Bytes, LabError> {
        let failed = |problem: String| LabError::Request {
            request: format!("GET {url}"),
            problem,
        };
        let request = Request::get(url).body(Full::default());
        let request = request.map_err(|error| failed(error.to_string()))?;
        let exchange = async {
            let response = self
                .0
                .request(request)
                .await
                .map_err(|error| failed(chain(&error)))?;
            let status = response.status();
            let body = response.into_body().collect().await;
            let body = body.map_err(|error| failed(chain(&error)))?.to_bytes();
            (status == StatusCode::OK)
                .then_some(body)
                .ok_or_else(|| failed(format!("answered {status}")))
        };
        timeout(DEADLINE, exchange)
            .await
            .unwrap_or_else(|_| Err(failed(format!("no answer within {DEADLINE:?}"))))
    }

    /// Sends a streamed chat completion and reads it to its end.
    pub(super) async fn chat(&self, base: &str, body: &Value) -> Result<Reply, LabError> {
        let url = format!("{base}/v1/chat/completions");
        let failed = |problem: String| LabError::Request {
            request: format!("POST {url}"),
            problem,
        };
        let request = Request::post(&url)
            .header("content-type", "application/json")
            .body(Full::from(body.to_string()));
        let request = request.map_err(|error| failed(error.to_string()))?;
        let exchange = async {
            let sent = Instant::now();
            let response = self
                .0
                .request(request)
                .await
                .map_err(|error| failed(chain(&error)))?;
            let (head, body) = response.into_parts();
            let (text, first_token) = read(Response::new(body), sent).await.map_err(failed)?;
            if head.status != StatusCode::OK {
                return Err(failed(format!("answered {}: {}", head.status, text.trim())));
            }
            reply(&head.headers, &text, first_token).map_err(failed)
        };
        timeout(DEADLINE, exchange)
            .await
            .unwrap_or_else(|_| Err(failed(format!("no answer within {DEADLINE:?}"))))
    }
}

/// The whole body, and the time until its first piece.
async fn read(response: Response<Incoming>, sent: Instant) -> Result<(String, Duration), String> {
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    let mut first = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| chain(&error))?;
        let Some(piece) = frame.data_ref().filter(|piece| !piece.is_empty()) else {
            continue;
        };
        first.get_or_insert_with(|| sent.elapsed());
        bytes.extend_from_slice(piece);
        if bytes.len() > LARGEST_ANSWER {
            return Err("the answer is too large".to_owned());
        }
    }
    let text = String::from_utf8(bytes).map_err(|error| error.to_string())?;
    Ok((text, first.unwrap_or_else(|| sent.elapsed())))
}

fn reply(headers: &HeaderMap, text: &str, first_token: Duration) -> Result<Reply, String> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let number = |name: &str| header(name).and_then(|value| value.parse::<u64>().ok());
    let worker = header("x-mock-worker").ok_or("no x-mock-worker header in the answer")?;
    let told = number("x-mock-cached-tokens").ok_or("no x-mock-cached-tokens in the answer")?;
    let mut reply = Reply {
        worker: worker.to_owned(),
        text: String::new(),
        prompt_tokens: 0,
        cached_tokens: told,
        predicted_tokens: number("x-pointsman-predicted-cached-tokens"),
        first_token,
    };
    let mut done = false;
    for data in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
        if data == "[DONE]" {
            done = true;
            continue;
        }
        let chunk: Value = serde_json::from_str(data).map_err(|error| error.to_string())?;
        let content = chunk.pointer("/choices/0/delta/content");
        reply
            .text
            .push_str(content.and_then(Value::as_str).unwrap_or(""));
        if let Some(usage) = chunk.get("usage").filter(|usage| !usage.is_null()) {
            let count = |path| usage.pointer(path).and_then(Value::as_u64).unwrap_or(0);
            reply.prompt_tokens = count("/prompt_tokens");
            let cached = count("/prompt_tokens_details/cached_tokens");
            if cached != told {
                return Err(format!(
                    "the header tells {told} cached tokens, the usage {cached}"
                ));
            }
        }
    }
    done.then_some(reply)
        .ok_or_else(|| "the stream ended without [DONE]".to_owned())
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = concat!(
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"Two\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\" words\"}}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":40,",
        "\"prompt_tokens_details\":{\"cached_tokens\":32}}}\n\n",
        "data: [DONE]\n\n",
    );

    fn read_reply(cached: &str, text: &str) -> Result<Reply, String> {
        let mut headers = HeaderMap::new();
        headers.insert("x-mock-worker", "worker-1".parse().unwrap());
        headers.insert("x-mock-cached-tokens", cached.parse().unwrap());
        headers.insert("x-pointsman-predicted-cached-tokens", "16".parse().unwrap());
        reply(&headers, text, Duration::ZERO)
    }

    #[test]
    fn a_stream_is_read_into_text_usage_and_prediction() {
        let reply = read_reply("32", STREAM).unwrap();
        assert_eq!(reply.text, "Two words");
        assert_eq!((reply.prompt_tokens, reply.cached_tokens), (40, 32));
        assert_eq!(reply.predicted_tokens, Some(16));
    }

    #[test]
    fn a_header_that_contradicts_the_usage_is_an_error() {
        assert!(
            read_reply("16", STREAM)
                .unwrap_err()
                .contains("the usage 32")
        );
    }

    #[test]
    fn a_stream_that_breaks_off_is_an_error() {
        let cut = STREAM.strip_suffix("data: [DONE]\n\n").unwrap();
        assert!(read_reply("32", cut).unwrap_err().contains("[DONE]"));
    }
}
