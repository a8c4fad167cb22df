//! The API's own description, made from the routes and bodies themselves.
//!
//! What every route may answer beside its own is added here, by one rule each.

use std::sync::LazyLock;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use serde_json::{Value, json};
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Ref, ResponseBuilder};
use utoipa::{Modify, OpenApi};

use super::error::ErrorBody;
use super::{inspection, replicas, reservations, selection, workers};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Pointsman selection service",
        description = "Chooses the engine replica that serves a request by what it holds in its KV cache and what it is charged with, and keeps the books of that load. It forwards no request.",
        version = "1"
    ),
    paths(
        workers::register,
        workers::list,
        workers::patch,
        workers::remove,
        selection::select,
        selection::select_and_reserve,
        reservations::reserve,
        reservations::prefill_complete,
        reservations::output_block,
        reservations::free,
        inspection::health,
        inspection::ready,
        inspection::loads,
        inspection::potential_loads,
        inspection::overlap_scores,
        inspection::dump,
        replicas::register_peer,
        replicas::deregister_peer,
        replicas::peers,
    ),
    components(schemas(ErrorBody)),
    modifiers(&Common)
)]
struct Document;

/// The document as it is served: pretty, so that changes to it can be read.
pub fn openapi_json() -> String {
    let mut document = serde_json::to_value(Document::openapi()).unwrap_or_default();
    bound_integers(&mut document);
    for name in ["PromptFields", "SelectFields"] {
        document["components"]["schemas"][name]["anyOf"] = json!([
            { "required": ["token_ids"] },
            { "required": ["mm_routing_info"] },
            { "required": ["block_hashes", "sequence_hashes", "isl_tokens"] },
        ]);
    }
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    text
}

pub(super) async fn document() -> Response {
    static TEXT: LazyLock<String> = LazyLock::new(openapi_json);
    let mut response = Response::new(Body::from(TEXT.as_str()));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// Says how large integers may be, which their types know and the generator does not.
fn bound_integers(value: &mut Value) {
    match value {
        Value::Object(schema) => {
            let (format, minimum, maximum) = match schema.get("format").and_then(Value::as_str) {
                Some("u-int32") => ("uint32", json!(0), json!(u32::MAX)),
                Some("u-int64") => ("uint64", json!(0), json!(u64::MAX)),
                // Hashes: their bits count.
                Some("int64") => ("int64", json!(i64::MIN), json!(u64::MAX)),
                _ => {
                    schema.values_mut().for_each(bound_integers);
                    return;
                }
            };
            schema.insert("format".to_owned(), json!(format));
            schema.entry("minimum").or_insert(minimum);
            schema.entry("maximum").or_insert(maximum);
        }
        Value::Array(list) => list.iter_mut().for_each(bound_integers),
        _ => {}
    }
}

/// Adds what routes have in common.
struct Common;

impl Modify for Common {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let components = openapi.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(bearer));
        for (path, item) in &mut openapi.paths.paths {
            for operation in operations(item) {
                extend(path, operation);
            }
        }
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [
        &mut item.get,
        &mut item.post,
        &mut item.patch,
        &mut item.delete,
    ]
    .into_iter()
    .filter_map(Option::as_mut)
}

fn extend(path: &str, operation: &mut Operation) {
    let mut refusals = Vec::new();
    if path != "/health" && path != "/ready" {
        refusals.push(("401", "A token is required"));
        refusals.push(("403", "The token's right does not reach so far"));
        let none: [&str; 0] = [];
        let optional = SecurityRequirement::default();
        operation.security = Some(vec![optional, SecurityRequirement::new("token", none)]);
    }
    let has_body = operation.request_body.is_some();
    let has_parameters = operation.parameters.is_some();
    if has_body || has_parameters {
        refusals.push(("400", "Malformed; `param` names the field"));
    }
    if has_body || path.ends_with("/prefill_complete") {
        refusals.push(("408", "The body did not arrive in time"));
        refusals.push(("413", "The body is too long"));
        refusals.push(("415", "The body is not JSON by its type, or compressed"));
    }
    if path.contains('{') {
        refusals.push(("404", "Unknown id"));
    }
    if path.starts_with("/workers") && has_body {
        refusals.push(("503", "The service is stopping"));
    }
    if path.starts_with("/workers/") && !has_body {
        refusals.push(("503", "The service is stopping"));
    }
    for (status, description) in refusals {
        let body = ContentBuilder::new()
            .schema(Some(Ref::from_schema_name("ErrorBody")))
            .build();
        let response = ResponseBuilder::new()
            .description(description)
            .content("application/json", body)
            .build();
        let responses = &mut operation.responses.responses;
        responses
            .entry(status.to_owned())
            .or_insert_with(|| response.into());
    }
}
