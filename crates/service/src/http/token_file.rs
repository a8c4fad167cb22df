//! The file that tokens are read from, and read again when it changes; who may do what is decided
//! in `access`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::access::{Access, Tokens, TokensError};

/// How often the file is looked at.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

/// Why a file of tokens is of no use.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    #[error("cannot read the tokens file {file}")]
    Read {
        file: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("tokens file {file}: {problem}")]
    Refused { file: PathBuf, problem: TokensError },
}

/// A tokens file and what it held last.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    text: String,
    tokens: Arc<ArcSwap<Tokens>>,
}

impl TokenFile {
    pub fn open(path: &Path) -> Result<Self, TokenFileError> {
        let text = std::fs::read_to_string(path).map_err(|source| TokenFileError::Read {
            file: path.to_owned(),
            source,
        })?;
        let tokens = Tokens::parse(&text).map_err(|problem| TokenFileError::Refused {
            file: path.to_owned(),
            problem,
        })?;
        Ok(Self {
            path: path.to_owned(),
            text,
            tokens: Arc::new(ArcSwap::from_pointee(tokens)),
        })
    }

    /// Access for whoever has a token of the file.
    pub fn access(&self) -> Access {
        Access::Tokens(Arc::clone(&self.tokens))
    }

    /// Reads the file anew when it changes, until `stop`. What cannot be used changes nothing, so
    /// nobody is let in or locked out by a half-written file.
    pub async fn follow(mut self, stop: CancellationToken) {
        while stop
            .run_until_cancelled(sleep(RELOAD_INTERVAL))
            .await
            .is_some()
        {
            self.look().await;
        }
    }

    async fn look(&mut self) {
        let path = self.path.display();
        let text = match tokio::fs::read_to_string(&self.path).await {
            Ok(text) if text != self.text => text,
            Ok(_) => return,
            Err(error) => return warn!(%path, %error, "tokens file not readable, the tokens stay"),
        };
        match Tokens::parse(&text) {
            Ok(tokens) => {
                self.tokens.store(Arc::new(tokens));
                info!(%path, "tokens read anew");
            }
            Err(error) => warn!(%path, %error, "tokens file refused, the tokens stay"),
        }
        self.text = text;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(access: &Access, token: &str) -> bool {
        let Access::Tokens(tokens) = access else {
            panic!("tokens are asked for");
        };
        tokens.load().admits(token.as_bytes())
    }

    #[tokio::test]
    async fn new_tokens_replace_the_old_ones_and_a_bad_file_changes_nothing() {
        let directory = std::env::temp_dir().join(format!("tokens-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("tokens");
        std::fs::write(&path, "write first-0123456789\n").unwrap();
        let mut file = TokenFile::open(&path).unwrap();
        let access = file.access();
        assert!(right(&access, "first-0123456789"));
        std::fs::write(&path, "write second-0123456789\n").unwrap();
        file.look().await;
        assert!(!right(&access, "first-0123456789"));
        assert!(right(&access, "second-0123456789"));
        std::fs::write(&path, "nonsense").unwrap();
        file.look().await;
        assert!(right(&access, "second-0123456789"));
        std::fs::remove_dir_all(&directory).unwrap();
        file.look().await;
        assert!(right(&access, "second-0123456789"));
        assert!(TokenFile::open(&path).is_err());
    }
}
