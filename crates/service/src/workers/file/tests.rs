//! What a workers file may say; it reads no disk.

use super::*;

fn error(text: &str) -> String {
    WorkersFile::from_yaml(text).unwrap_err().to_string()
}

#[test]
fn entries_are_read_as_posted_workers() {
    let workers = WorkersFile::from_yaml(
        "
workers:
  - worker_id: 18446744073709551615
    model_name: m
    endpoint: http://127.0.0.1:8001
    block_size: 16
    data_parallel_size: 2
    kv_events_endpoints: {0: 'tcp://127.0.0.1:5557', 1: 'tcp://127.0.0.1:5558'}
    taints: [slow]
  - worker_id: 2
",
    )
    .unwrap();
    assert_eq!(workers.len(), 2);
    assert_eq!(workers[0].worker_id, u64::MAX);
    assert_eq!(workers[0].kv_events_endpoints[&1], "tcp://127.0.0.1:5558");
    assert!(workers[0].taints.contains("slow"));
    assert_eq!(workers[1], WorkerRegistration::new(2));
}

#[test]
fn an_entry_may_be_a_posted_body_as_it_is() {
    let body = r#"{"worker_id": 1, "kv_events_endpoints": {"0": "tcp://127.0.0.1:5557"}, "replay_endpoints": null}"#;
    let workers = WorkersFile::from_yaml(&format!("workers: [{body}]")).unwrap();
    assert_eq!(workers[0].kv_events_endpoints[&0], "tcp://127.0.0.1:5557");
    let posted: WorkerRegistration = serde_json::from_str(body).unwrap();
    assert_eq!(workers[0], posted);
}

#[test]
fn a_rank_that_is_none_is_named() {
    for rank in ["-1", "one", "4294967296"] {
        let text = format!("workers: [{{worker_id: 1, kv_events_endpoints: {{{rank}: x}}}}]");
        let error = WorkersFile::from_yaml(&text).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("data-parallel rank"), "{rank}: {cause}");
    }
}

#[test]
fn no_workers_are_no_mistake() {
    for text in ["", "workers:", "workers: []"] {
        assert!(WorkersFile::from_yaml(text).unwrap().is_empty(), "{text:?}");
    }
}

#[test]
fn a_mistake_refuses_the_file_and_names_the_entry() {
    let one = "workers:\n  - worker_id: 1\n";
    assert!(
        error(&format!("{one}  - worker_id: 5\n    modle_name: m\n")).starts_with(
            "entry 2 of the workers file (worker_id 5) has the unknown key `modle_name`"
        )
    );
    assert_eq!(
        error(&format!("{one}  - worker_id: 1\n")),
        "entry 2 of the workers file (worker_id 1) has the same worker_id as an earlier entry"
    );
    assert_eq!(
        error(&format!("{one}  - 7\n")),
        "entry 2 of the workers file must be a map"
    );
    assert_eq!(
        error("workers:\n  - worker_id: -1\n"),
        "entry 1 of the workers file is not a worker"
    );
    assert_eq!(
        error("workers:\n  - model_name: m\n"),
        "entry 1 of the workers file is not a worker"
    );
    assert_eq!(
        error(&format!(
            "{one}  - worker_id: 2\n    data_parallel_size: 5000\n"
        )),
        "entry 2 of the workers file (worker_id 2): data_parallel_size is 5000, expected at most 4096"
    );
}

#[test]
fn any_other_shape_is_refused() {
    assert_eq!(error("workers: [\n"), "the workers file is not valid yaml");
    assert!(error("[]").ends_with("found something else"));
    assert!(error("{}").ends_with("found an empty map"));
    assert!(error("workers: {}").ends_with("found `workers` that is no list"));
    assert!(error("workers: []\nmore: 1").ends_with("found the key `more`"));
}
