//! The query of the routes that list things of partitions; it lists nothing itself.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::Refusal;

/// Leaves only what is of this model or group.
#[derive(Debug, Deserialize, IntoParams)]
pub(super) struct Filter {
    model_name: Option<String>,
    routing_group: Option<String>,
}

impl Filter {
    pub(super) fn admits(&self, model_name: &str, routing_group: &str) -> bool {
        self.model_name.as_deref().is_none_or(|of| of == model_name)
            && self
                .routing_group
                .as_deref()
                .is_none_or(|of| of == routing_group)
    }
}

/// What a query that cannot be read is told.
pub(super) fn filter(query: Result<Query<Filter>, QueryRejection>) -> Result<Filter, Refusal> {
    let Query(filter) = query.map_err(|_| Refusal::bad_request("the query cannot be read"))?;
    Ok(filter)
}
