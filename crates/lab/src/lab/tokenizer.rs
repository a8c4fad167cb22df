//! The real tokenizer as the mock's door to tokens: a mock worker sees the tokens that a worker with this model would.
//! Never shares anything with the Pointsman under test, which runs in a process of its own.

use std::path::Path;

use bytes::Bytes;
use pointsman::request::{self, Head};
use pointsman::tokenize::{TokenizeConfig, Tokenizer};
use tokio::task::spawn_blocking;

use super::error::LabError;
use crate::mock::{PromptError, PromptTokens};

/// Loads the tokenizer of a folder; takes a second or so.
pub async fn door(folder: &Path) -> Result<PromptTokens, LabError> {
    let folder = folder.to_owned();
    let load = move || Tokenizer::load(&folder, TokenizeConfig::default());
    let loaded = spawn_blocking(load).await;
    let tokenizer = loaded
        .map_err(|error| LabError::io("loading the tokenizer")(error.into()))?
        .map_err(LabError::Tokenizer)?;
    Ok(PromptTokens::new(move |path, body| {
        let tokenizer = tokenizer.clone();
        async move {
            let work = spawn_blocking(move || token_ids(&tokenizer, path, &body));
            work.await
                .unwrap_or_else(|error| Err(PromptError(error.to_string())))
        }
    }))
}

fn token_ids(tokenizer: &Tokenizer, path: &str, body: &Bytes) -> Result<Vec<u32>, PromptError> {
    let head = Head::new([(":method", "POST"), (":path", path)]);
    let request = request::parse(&head, body).map_err(|error| PromptError(error.to_string()))?;
    tokenizer
        .token_ids(&request)
        .map_err(|error| PromptError(error.to_string()))
}
