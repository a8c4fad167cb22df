//! Who may call what: tokens read from a file, each with a right; it keeps no sessions.
//!
//! Reading is every `GET`, and the two questions that are `POST`; everything else is writing. Life
//! signs are open to all.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::Refusal;

/// Shortest token that is taken, in bytes: less can be guessed.
const MIN_TOKEN_BYTES: usize = 16;

/// What a caller may do. Writing includes reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    Read,
    Write,
}

/// Who is let in.
#[derive(Clone, Debug, Default)]
pub enum Access {
    /// Everyone, to everything.
    #[default]
    Open,
    /// Everyone, to look.
    ReadOnly,
    /// Whoever has a token. What is stored here last counts from the next request on.
    Tokens(Arc<ArcSwap<Tokens>>),
}

/// The tokens of a file.
#[derive(Default)]
pub struct Tokens(Vec<(Vec<u8>, Right)>);

/// Why a file of tokens was refused. No token is told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokensError {
    #[error("line {line}: expected `read <token>` or `write <token>`")]
    Shape { line: usize },
    #[error("line {line}: a token must have at least {MIN_TOKEN_BYTES} bytes")]
    TooShort { line: usize },
    #[error("line {line}: a token must be printable ASCII without spaces")]
    BadToken { line: usize },
    #[error("there is no token in it")]
    Empty,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Tokens({})", self.0.len())
    }
}

impl Tokens {
    /// One token a line, its right before it; empty lines and those with `#` first are left out.
    pub fn parse(text: &str) -> Result<Self, TokensError> {
        let mut tokens = Vec::new();
        for (index, text) in text.lines().enumerate() {
            let line = index + 1;
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let (right, token) = text
                .split_once(char::is_whitespace)
                .ok_or(TokensError::Shape { line })?;
            let right = match right {
                "read" => Right::Read,
                "write" => Right::Write,
                _ => return Err(TokensError::Shape { line }),
            };
            let token = token.trim();
            if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(TokensError::BadToken { line });
            }
            if token.len() < MIN_TOKEN_BYTES {
                return Err(TokensError::TooShort { line });
            }
            tokens.push((token.as_bytes().to_vec(), right));
        }
        if tokens.is_empty() {
            return Err(TokensError::Empty);
        }
        Ok(Self(tokens))
    }

    #[cfg(test)]
    pub(super) fn admits(&self, token: &[u8]) -> bool {
        self.right(token).is_some()
    }

    /// The right of a token. Every known token is compared whole, so that time tells nothing.
    fn right(&self, token: &[u8]) -> Option<Right> {
        let mut right = None;
        for (known, of) in &self.0 {
            if is_same(known, token) {
                right = right.max(Some(*of));
            }
        }
        right
    }
}

fn is_same(known: &[u8], token: &[u8]) -> bool {
    if known.len() != token.len() {
        return false;
    }
    let pairs = known.iter().zip(token);
    let difference = pairs.fold(0, |sum, (known, given)| sum | (known ^ given));
    std::hint::black_box(difference) == 0
}

/// Lets a request through if it may pass.
pub(super) async fn guard(State(access): State<Access>, request: Request, next: Next) -> Response {
    match check(
        &access,
        request.method(),
        request.uri().path(),
        request.headers(),
    ) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

fn check(access: &Access, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(needed) = needed(method, path) else {
        return Ok(());
    };
    let has = match access {
        Access::Open => Some(Right::Write),
        Access::ReadOnly => Some(Right::Read),
        Access::Tokens(tokens) => bearer(headers).and_then(|token| tokens.load().right(token)),
    };
    match has {
        Some(right) if right >= needed => Ok(()),
        Some(_) => Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "read_only",
            "this caller may only read",
        )),
        None => Err(Refusal::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "a valid bearer token is required",
        )),
    }
}

fn needed(method: &Method, path: &str) -> Option<Right> {
    let reads = *method == Method::GET || *method == Method::HEAD;
    match path {
        "/health" | "/ready" if reads => None,
        "/potential_loads" | "/overlap_scores" => Some(Right::Read),
        _ if reads => Some(Right::Read),
        _ => Some(Right::Write),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# two callers\nread reader-0123456789\n\nwrite  writer-0123456789\r\n";

    fn status(access: &Access, method: &Method, path: &str, token: Option<&str>) -> u16 {
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            headers.insert(header::AUTHORIZATION, token.parse().unwrap());
        }
        check(access, method, path, &headers).map_or_else(|no| no.status.as_u16(), |()| 200)
    }

    #[test]
    fn each_right_opens_its_routes() {
        let tokens = Tokens::parse(FILE).unwrap();
        let access = Access::Tokens(Arc::new(ArcSwap::from_pointee(tokens)));
        let (get, post) = (&Method::GET, &Method::POST);
        let reader = Some("Bearer reader-0123456789");
        let writer = Some("bearer writer-0123456789");
        for (method, path, none, read, write) in [
            (get, "/health", 200, 200, 200),
            (get, "/ready", 200, 200, 200),
            (get, "/workers", 401, 200, 200),
            (get, "/openapi.json", 401, 200, 200),
            (get, "/nowhere", 401, 200, 200),
            (post, "/potential_loads", 401, 200, 200),
            (post, "/overlap_scores", 401, 200, 200),
            (post, "/select", 401, 403, 200),
            (post, "/workers", 401, 403, 200),
            (post, "/health", 401, 403, 200),
            (&Method::DELETE, "/reservations/x", 401, 403, 200),
        ] {
            let found = [None, reader, writer].map(|token| status(&access, method, path, token));
            assert_eq!(found, [none, read, write], "{method} {path}");
        }
    }

    #[test]
    fn what_is_no_token_of_the_file_opens_nothing() {
        let tokens = Tokens::parse(FILE).unwrap();
        let access = Access::Tokens(Arc::new(ArcSwap::from_pointee(tokens)));
        for token in [
            "Bearer",
            "Bearer ",
            "Basic reader-0123456789",
            "Bearer reader-012345678",
            "Bearer reader-01234567890",
            "reader-0123456789",
        ] {
            assert_eq!(status(&access, &Method::GET, "/workers", Some(token)), 401);
        }
    }

    #[test]
    fn a_bad_file_is_refused_by_its_line_and_tells_no_token() {
        let error = |text: &str| Tokens::parse(text).unwrap_err().to_string();
        assert!(error("read 0123456789abcdef\nadmin 0123456789abcdef").starts_with("line 2"));
        assert!(error("0123456789abcdef").starts_with("line 1"));
        let short = error("read secret");
        assert!(short.starts_with("line 1") && !short.contains("secret"));
        assert!(error("read 0123456789 abcdef").starts_with("line 1"));
        assert_eq!(error("# nobody\n"), "there is no token in it");
    }

    #[test]
    fn read_only_lets_everyone_look_and_nobody_change() {
        let access = Access::ReadOnly;
        assert_eq!(status(&access, &Method::GET, "/loads", None), 200);
        assert_eq!(status(&access, &Method::POST, "/overlap_scores", None), 200);
        assert_eq!(status(&access, &Method::POST, "/select", None), 403);
    }
}
