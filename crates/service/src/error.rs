//! What can go wrong at the service's door, one variant per cause that a caller can act on.

use pointsman_core::{PartitionId, SelectError};
use pointsman_plugin::{ConfigMistake, WorkerSelectionPolicyRegistryError};

use crate::recovery::PeersError;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SelectionServiceError {
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error(transparent)]
    UnknownModel(#[from] UnknownModel),
    /// Workers are registered, but none ever served this model and group.
    #[error("no worker serves {partition}")]
    UnknownPartition { partition: PartitionId },
    #[error("worker {worker_id} is not registered")]
    UnknownWorker { worker_id: u64 },
    /// The worker source has not been read yet.
    #[error("the workers are not known yet")]
    NotReady,
    #[error("the service is shutting down")]
    ShuttingDown,
    #[error("worker {worker_id}: {field}: {reason}")]
    BadWorker {
        worker_id: u64,
        field: String,
        reason: String,
    },
    #[error("worker {worker_id} is registered but cannot serve")]
    WorkerNotSchedulable { worker_id: u64 },
    #[error("no reservation {id}")]
    UnknownReservation { id: String },
    /// Never made here, expired, evicted, or reserved already.
    #[error("no pending selection {id} in {partition}")]
    NoPendingSelection { partition: PartitionId, id: String },
    #[error("{limit} reservations are held by id already")]
    TooManyReservations { limit: usize },
    #[error("{limit} dumps of the index are under way already")]
    TooManyDumps { limit: usize },
    /// Replicas tell each other nothing here.
    #[error("replica synchronization is disabled")]
    SyncDisabled,
    #[error("peer endpoint {endpoint:?} is not tcp://host:port")]
    BadPeer { endpoint: String },
    /// Too many are followed already, or the service is stopping.
    #[error("no peer can be added now")]
    PeersUnavailable,
    #[error("cannot listen for replicas on port {port}")]
    ReplicaPort { port: u16, source: std::io::Error },
    #[error("{setting} is {value}, expected {expected}")]
    BadSetting {
        setting: &'static str,
        value: String,
        expected: &'static str,
    },
    #[error("the peers whose index is to be taken over cannot be asked")]
    IndexerPeers(#[from] PeersError),
    #[error("the router configuration is invalid: {}", list(.mistakes))]
    BadConfig { mistakes: Vec<ConfigMistake> },
    #[error("the worker-selection policy cannot be built")]
    Policy(#[from] WorkerSelectionPolicyRegistryError),
    /// The service must be built inside the runtime that its tasks are to run on.
    #[error("no tokio runtime is running here")]
    NoRuntime,
}

/// A request names a model that no worker serves.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no worker serves the model {}", .model.as_deref().unwrap_or("(none given)"))]
pub struct UnknownModel {
    pub model: Option<String>,
}

fn list(mistakes: &[ConfigMistake]) -> String {
    mistakes
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

impl SelectionServiceError {
    /// The name under which a selection that ended so is counted.
    pub(crate) fn outcome(&self) -> &'static str {
        match self {
            Self::Select(error) => match error {
                SelectError::NoWorkers => "no_workers",
                SelectError::NoneEligible => "none_eligible",
                SelectError::PinnedNotAllowed { .. } => "pinned_not_allowed",
                SelectError::PinnedOverloaded { .. } => "pinned_overloaded",
                SelectError::AllOverloaded => "all_overloaded",
                SelectError::AllFiltered { .. } => "all_filtered",
                SelectError::Policy(_) => "policy_failed",
                SelectError::PolicyPanicked => "policy_panicked",
                SelectError::BadRequest(_) => "bad_request",
                SelectError::DuplicateReservation { .. } => "duplicate_reservation",
                SelectError::WorkerGone => "worker_gone",
                _ => "other",
            },
            Self::UnknownPartition { .. } => "unknown_partition",
            Self::NotReady => "not_ready",
            Self::ShuttingDown => "shutting_down",
            _ => "other",
        }
    }
}
