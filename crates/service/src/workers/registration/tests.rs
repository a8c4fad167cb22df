//! The JSON of registrations and records; it judges none.

use serde_json::{Value, json};

use super::*;

fn read(body: Value) -> WorkerRegistration {
    serde_json::from_value(body).unwrap()
}

#[test]
fn a_worker_needs_an_id_alone_and_unknown_fields_are_ignored() {
    assert_eq!(
        read(json!({"worker_id": 1, "later": {}})),
        WorkerRegistration::new(1)
    );
    assert!(serde_json::from_value::<WorkerRegistration>(json!({})).is_err());
}

#[test]
fn nulls_are_what_was_left_out() {
    let body = json!({
        "worker_id": 1, "model_name": null, "routing_group": null, "endpoint": null,
        "kv_events_endpoints": null, "taints": null, "block_size": null,
    });
    assert_eq!(read(body), WorkerRegistration::new(1));
}

#[test]
fn the_list_of_fields_is_the_list_of_fields() {
    let mut full = WorkerRegistration::new(1);
    let text = || Some("x".to_owned());
    let by_rank = || BTreeMap::from([(0, "x".to_owned())]);
    full.endpoint = text();
    full.kv_events_endpoint = text();
    full.kv_events_endpoints = by_rank();
    full.replay_endpoint = text();
    full.replay_endpoints = by_rank();
    full.block_size = Some(1);
    full.data_parallel_start_rank = Some(1);
    full.data_parallel_size = Some(1);
    full.max_num_batched_tokens = Some(1);
    full.total_kv_blocks = Some(1);
    full.stable_routing_id = text();
    full.is_eagle = Some(true);
    full.taints.insert("x".to_owned());
    full.topology_domains.insert("x".to_owned(), "y".to_owned());
    full.kv_transfer_domain = text();
    full.kv_transfer_enforcement = Some(KvTransferEnforcement::Required);
    full.kv_transfer_preferred_weight = Some(0.5);
    full.router_hint_worker_type = text();
    full.router_hint_source_control_endpoints = by_rank();
    full.kv_event_source_mode = text();
    let written = serde_json::to_value(&full).unwrap();
    let mut written_fields: Vec<_> = written.as_object().unwrap().keys().cloned().collect();
    written_fields.sort_unstable();
    let mut fields = FIELDS.to_vec();
    fields.sort_unstable();
    assert_eq!(written_fields, fields);
    assert_eq!(read(written), full);
}

#[test]
fn a_record_shows_its_registration_its_lifecycle_and_reasons_where_it_has_some() {
    let record = |reasons: &[&str]| WorkerRecord {
        warnings: vec![],
        registration: WorkerRegistration::new(1),
        lifecycle: Lifecycle::Incomplete,
        not_schedulable_reasons: reasons.iter().map(|&reason| reason.to_owned()).collect(),
        kv_events: BTreeMap::new(),
        cache_audit: BTreeMap::new(),
    };
    let shown = serde_json::to_value(record(&["endpoint is required"])).unwrap();
    assert_eq!(
        shown,
        json!({
            "worker_id": 1, "model_name": "default", "routing_group": "default",
            "lifecycle": "incomplete", "not_schedulable_reasons": ["endpoint is required"],
            "kv_events": {},
        })
    );
    let quiet = serde_json::to_value(record(&[])).unwrap();
    assert_eq!(quiet.get("not_schedulable_reasons"), None);
}
