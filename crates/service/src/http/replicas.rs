//! The routes of the peers whose load is followed. Who they are lasts until the process ends.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::Api;
use super::answer::{DONE, Done};
use super::body::JsonBody;
use super::documents::PeerFields;
use super::error::{ErrorBody, Refusal, json};
use super::request::peer_endpoint;

/// Follows the load of another replica, until this one ends.
#[utoipa::path(post, path = "/replica_sync/register_peer", tag = "replicas", request_body = PeerFields,
    responses((status = 201, description = "It is followed from now on", body = Done),
        (status = 200, description = "It was followed already", body = Done),
        (status = 409, description = "Replica synchronization is disabled", body = ErrorBody),
        (status = 503, description = "Too many are followed, or the service is stopping", body = ErrorBody)))]
pub(super) async fn register_peer(
    State(api): State<Api>,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    let status = if api.service.register_peer(&peer_endpoint(&body)?)? {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok(json(status, &DONE))
}

/// Follows it no more. What it was heard to hold stays charged until its time is over.
#[utoipa::path(post, path = "/replica_sync/deregister_peer", tag = "replicas", request_body = PeerFields,
    responses((status = 200, description = "It is followed no more", body = Done),
        (status = 404, description = "It was not followed", body = ErrorBody),
        (status = 409, description = "Replica synchronization is disabled", body = ErrorBody)))]
pub(super) async fn deregister_peer(
    State(api): State<Api>,
    JsonBody(body): JsonBody,
) -> Result<Response, Refusal> {
    if api.service.deregister_peer(&peer_endpoint(&body)?)? {
        return Ok(json(StatusCode::OK, &DONE));
    }
    Err(Refusal::new(
        StatusCode::NOT_FOUND,
        "unknown_peer",
        "this peer is not followed",
    )
    .of("endpoint"))
}

/// The endpoints of all peers, sorted.
#[utoipa::path(get, path = "/replica_sync/peers", tag = "replicas",
    responses((status = 200, description = "None while synchronization is disabled", body = [String])))]
pub(super) async fn peers(State(api): State<Api>) -> Response {
    json(StatusCode::OK, &api.service.peers())
}
