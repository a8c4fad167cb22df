//! Keeps the worker catalog equal to a file; never writes that file, and never polls it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::document::{self, DocumentError};

/// A file is read once it has been left alone for this long,
const QUIET: Duration = Duration::from_millis(50);
/// or once it has been changing for this long.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Why the workers file is of no use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileSourceError {
    #[error(transparent)]
    Unreadable(#[from] DocumentError),
    #[error("workers file {path}: {problem}", path = .path.display())]
    Refused { path: PathBuf, problem: String },
    #[error("cannot watch {path} for changes", path = .path.display())]
    Unwatchable {
        path: PathBuf,
        #[source]
        cause: notify::Error,
    },
}

/// Counts what became of changes to the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    reloads: Family<[(&'static str, &'static str); 1], Counter>,
}

impl Metrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "pointsman_workers_file_reloads",
            "Changes of the workers file, by what became of them",
            self.reloads.clone(),
        );
    }

    fn count(&self, result: &'static str) {
        self.reloads.get_or_create(&[("result", result)]).inc();
    }
}

/// A watched file whose text is handed to `apply`, at start and after each change.
pub(crate) struct FileSource<A> {
    path: PathBuf,
    apply: A,
    /// The text that `apply` took last.
    applied: String,
    watch: Watch,
    metrics: Metrics,
}

impl<A> std::fmt::Debug for FileSource<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSource")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl<A> FileSource<A>
where
    A: FnMut(&str) -> Result<usize, String>,
{
    /// Watches the file, reads it and applies it; a file that cannot be applied is an error here.
    /// `apply` answers how many workers the text lists, or why it refuses all of it.
    pub(crate) fn open(
        path: &Path,
        mut apply: A,
        metrics: Metrics,
    ) -> Result<Self, FileSourceError> {
        // Watched before it is read: no change falls in between.
        let watch = Watch::new(path)?;
        let applied = document::read(path)?;
        let workers = apply(&applied).map_err(|problem| FileSourceError::Refused {
            path: path.to_owned(),
            problem,
        })?;
        info!(path = %path.display(), workers, "workers file read");
        Ok(Self {
            path: path.to_owned(),
            apply,
            applied,
            watch,
            metrics,
        })
    }

    /// Applies each change until `stop`; a bad file leaves the last good one in force.
    pub(crate) async fn follow(mut self, stop: CancellationToken) {
        while stop
            .run_until_cancelled(self.watch.changed())
            .await
            .is_some()
        {
            self.watch.follow_link(&self.path);
            self.reload();
        }
    }

    fn reload(&mut self) {
        let path = self.path.display();
        let text = match document::read(&self.path) {
            Ok(text) if text == self.applied => return,
            Ok(text) => text,
            Err(error) => {
                self.metrics.count("refused");
                warn!(%error, "workers file not readable, keeping the workers of the last good one");
                return;
            }
        };
        match (self.apply)(&text) {
            Ok(workers) => {
                self.metrics.count("applied");
                info!(%path, workers, "workers file changed");
                self.applied = text;
            }
            Err(error) => {
                self.metrics.count("refused");
                warn!(%path, error, "workers file refused, keeping the workers of the last good one");
            }
        }
    }
}

/// Says when a file may have changed.
struct Watch {
    watcher: RecommendedWatcher,
    /// Holds at most one permit, however many events came.
    events: Arc<Notify>,
    directory: PathBuf,
    /// Directory of the file that `path` links to, where it is another one.
    linked: Option<PathBuf>,
}

impl Watch {
    fn new(path: &Path) -> Result<Self, FileSourceError> {
        // The directory, not the file: editors and ConfigMap updates put another file in its place.
        let directory = parent(path);
        let unwatchable = |cause| FileSourceError::Unwatchable {
            path: path.to_owned(),
            cause,
        };
        let events = Arc::new(Notify::new());
        let sender = Arc::clone(&events);
        let mut watcher =
            notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                // An error may hide a change, so it counts as one.
                if event.is_ok_and(|event| !may_change_content(event.kind)) {
                    return;
                }
                sender.notify_one();
            })
            .map_err(unwatchable)?;
        watcher
            .watch(&directory, RecursiveMode::NonRecursive)
            .map_err(unwatchable)?;
        let mut watch = Self {
            watcher,
            events,
            directory,
            linked: None,
        };
        watch.follow_link(path);
        Ok(watch)
    }

    /// Returns once something happened and the directory has come to rest.
    async fn changed(&mut self) {
        self.events.notified().await;
        let latest = Instant::now() + LONGEST_WAIT;
        let quiet = async { while timeout(QUIET, self.events.notified()).await.is_ok() {} };
        // Being late is fine: the file is read whatever state it is in.
        drop(timeout_at(latest, quiet).await);
    }

    /// Watches the directory of the file that `path` links to as well.
    fn follow_link(&mut self, path: &Path) {
        // A link to nothing: its own directory tells of the change that mends it.
        let Ok(target) = path.canonicalize() else {
            return;
        };
        let directory = parent(&target);
        if self.linked.as_ref() == Some(&directory) {
            return;
        }
        if let Some(left) = self.linked.take() {
            // It may be gone, and its watch with it.
            drop(self.watcher.unwatch(&left));
        }
        if self
            .directory
            .canonicalize()
            .is_ok_and(|own| own == directory)
        {
            return;
        }
        match self.watcher.watch(&directory, RecursiveMode::NonRecursive) {
            Ok(()) => self.linked = Some(directory),
            Err(error) => {
                warn!(%error, directory = %directory.display(), "cannot watch the linked directory");
            }
        }
    }
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Reading a file makes events too; taking those for changes would never end.
fn may_change_content(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}
