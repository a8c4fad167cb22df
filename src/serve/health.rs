//! gRPC health, check and watch, for the names that gateways and probes ask for.
//!
//! It measures nothing: it tells what the service and the server say of themselves.

use std::pin::Pin;

use futures::{Stream, StreamExt as _, future, stream};
use pointsman_service::ServiceState;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_server,
};

#[derive(Clone, Debug)]
pub(super) struct Health {
    state: watch::Receiver<ServiceState>,
    serving: watch::Receiver<bool>,
    closing: CancellationToken,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// The process answers.
    Liveness,
    /// Requests can be routed, or refused for a reason.
    Readiness,
}

impl Meaning {
    fn of(service: &str) -> Option<Self> {
        match service {
            "liveness" => Some(Self::Liveness),
            ""
            | "readiness"
            | "inference-extension"
            | "envoy.service.ext_proc.v3.ExternalProcessor" => Some(Self::Readiness),
            _ => None,
        }
    }
}

impl Health {
    pub(super) fn new(
        state: watch::Receiver<ServiceState>,
        serving: watch::Receiver<bool>,
        closing: CancellationToken,
    ) -> Self {
        Self {
            state,
            serving,
            closing,
        }
    }

    fn status(&self, meaning: Meaning) -> ServingStatus {
        match meaning {
            Meaning::Liveness => ServingStatus::Serving,
            Meaning::Readiness if self.is_ready() => ServingStatus::Serving,
            Meaning::Readiness => ServingStatus::NotServing,
        }
    }

    fn is_ready(&self) -> bool {
        let is_settled = {
            let state = self.state.borrow();
            state.source_read && !state.recovering && !state.stopping
        };
        is_settled && *self.serving.borrow()
    }

    /// Now, and at each change.
    fn statuses(&self, meaning: Option<Meaning>) -> impl Stream<Item = ServingStatus> + use<> {
        let state = WatchStream::new(self.state.clone()).map(|_| ());
        let serving = WatchStream::new(self.serving.clone()).map(|_| ());
        let health = self.clone();
        let mut last = None;
        stream::select(state, serving)
            .map(move |()| meaning.map_or(ServingStatus::ServiceUnknown, |of| health.status(of)))
            .filter(move |status| future::ready(last.replace(*status) != Some(*status)))
            .take_until(self.closing.clone().cancelled_owned())
    }
}

#[tonic::async_trait]
impl health_server::Health for Health {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let meaning = Meaning::of(&request.get_ref().service)
            .ok_or_else(|| Status::not_found("unknown service"))?;
        Ok(Response::new(response(self.status(meaning))))
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let meaning = Meaning::of(&request.get_ref().service);
        let statuses = self.statuses(meaning).map(|status| Ok(response(status)));
        Ok(Response::new(Box::pin(statuses)))
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}
