//! Reads one text file that a setting names; never more of it than its bound.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Largest file that start-up or a reload reads whole.
const LIMIT_BYTES: u64 = 16 << 20;

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DocumentError {
    #[error("cannot read {path}: {cause}", path = .path.display())]
    Io {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("cannot read {path}: it is a directory, a file was expected", path = .path.display())]
    Directory { path: PathBuf },
    #[error("cannot read {path}: it is larger than {LIMIT_BYTES} bytes", path = .path.display())]
    TooLarge { path: PathBuf },
    #[error("cannot read {path}: it is not UTF-8 text", path = .path.display())]
    NotText { path: PathBuf },
}

/// The text of the file at `path`.
pub(crate) fn read(path: &Path) -> Result<String, DocumentError> {
    let io_error = |cause| DocumentError::Io {
        path: path.to_owned(),
        cause,
    };
    let file = File::open(path).map_err(io_error)?;
    if file.metadata().map_err(io_error)?.is_dir() {
        return Err(DocumentError::Directory {
            path: path.to_owned(),
        });
    }
    let mut bytes = Vec::new();
    file.take(LIMIT_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(io_error)?;
    if bytes.len() as u64 > LIMIT_BYTES {
        return Err(DocumentError::TooLarge {
            path: path.to_owned(),
        });
    }
    String::from_utf8(bytes).map_err(|_| DocumentError::NotText {
        path: path.to_owned(),
    })
}
