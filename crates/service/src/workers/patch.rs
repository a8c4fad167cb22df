//! A change to some fields of a registration, as `PATCH /workers/{id}` sends it.
//!
//! It applies what it names and nothing else; `null` clears. Whether the result can serve is judged
//! where every registration is.

use serde_json::{Map, Value};

use super::registration::WorkerRegistration;

/// Fields by name. Unknown ones are ignored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerPatch(Map<String, Value>);

/// A field that cannot have the value it was given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct BadField {
    pub field: String,
    pub reason: String,
}

impl WorkerPatch {
    pub fn new(fields: Map<String, Value>) -> Self {
        Self(fields)
    }

    /// The registration with the named fields changed.
    pub fn apply(&self, registration: &WorkerRegistration) -> Result<WorkerRegistration, BadField> {
        let mut fields = match serde_json::to_value(registration) {
            Ok(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        fields.extend(self.0.clone());
        let changed = WorkerRegistration::from_fields(fields)?;
        if changed.worker_id != registration.worker_id {
            return Err(BadField {
                field: "worker_id".to_owned(),
                reason: format!("a worker keeps its id, which is {}", registration.worker_id),
            });
        }
        Ok(changed)
    }
}

impl WorkerRegistration {
    /// Reads a registration; the error names the field that is wrong.
    pub fn from_fields(mut fields: Map<String, Value>) -> Result<Self, BadField> {
        fields.retain(|_, value| !value.is_null());
        let whole = serde_json::from_value(Value::Object(fields.clone()));
        whole.map_err(|error| culprit(fields, &error))
    }
}

/// Finds the field by reading each alone, beside an id.
fn culprit(fields: Map<String, Value>, whole: &serde_json::Error) -> BadField {
    if !fields.contains_key("worker_id") {
        return BadField {
            field: "worker_id".to_owned(),
            reason: "a worker id is required".to_owned(),
        };
    }
    for (field, value) in fields {
        let mut alone = Map::new();
        alone.insert("worker_id".to_owned(), Value::from(0));
        alone.insert(field.clone(), value);
        if let Err(error) = serde_json::from_value::<WorkerRegistration>(Value::Object(alone)) {
            let reason = error.to_string();
            return BadField { field, reason };
        }
    }
    BadField {
        field: "worker_id".to_owned(),
        reason: whole.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patch(fields: Value) -> Result<WorkerRegistration, BadField> {
        let registration = WorkerRegistration {
            endpoint: Some("http://10.0.0.7:8000".to_owned()),
            block_size: Some(16),
            total_kv_blocks: Some(u64::MAX),
            ..WorkerRegistration::new(u64::MAX)
        };
        let Value::Object(fields) = fields else {
            panic!("a patch is an object");
        };
        WorkerPatch::new(fields).apply(&registration)
    }

    #[test]
    fn what_is_named_changes_and_the_rest_stays() {
        let changed = patch(json!({"block_size": 32, "nobody_knows_this": 1})).unwrap();
        assert_eq!(changed.block_size, Some(32));
        assert_eq!(changed.endpoint.as_deref(), Some("http://10.0.0.7:8000"));
        assert_eq!(changed.worker_id, u64::MAX);
        assert_eq!(changed.total_kv_blocks, Some(u64::MAX));
    }

    #[test]
    fn null_clears() {
        let changed = patch(json!({"endpoint": null, "total_kv_blocks": null})).unwrap();
        assert_eq!((changed.endpoint, changed.total_kv_blocks), (None, None));
        let changed = patch(json!({"model_name": "m"})).unwrap();
        assert_eq!(changed.model_name, "m");
        let changed = patch(json!({"model_name": null})).unwrap();
        assert_eq!(changed.model_name, "default");
    }

    #[test]
    fn a_wrong_field_is_named() {
        let field = |fields| patch(fields).unwrap_err().field;
        assert_eq!(field(json!({"block_size": "16"})), "block_size");
        assert_eq!(field(json!({"taints": 7, "block_size": 8})), "taints");
        assert_eq!(
            field(json!({"kv_events_endpoints": {"x": "y"}})),
            "kv_events_endpoints"
        );
        assert_eq!(field(json!({"worker_id": 4})), "worker_id");
        assert_eq!(field(json!({"worker_id": null})), "worker_id");
    }
}
