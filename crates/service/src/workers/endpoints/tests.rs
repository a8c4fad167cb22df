//! How workers are found by their addresses; it dials none.

use super::*;

fn table(endpoints: &[(u64, &str)]) -> EndpointTable {
    let workers = endpoints.iter().map(|&(worker_id, authority)| {
        let endpoint = WorkerEndpoint {
            url: format!("http://{authority}"),
            authority: authority.to_owned(),
            address: authority.parse().ok(),
        };
        (worker_id, endpoint)
    });
    EndpointTable::new(workers.collect())
}

#[test]
fn workers_are_found_by_address_and_by_ip() {
    let table = table(&[
        (1, "10.0.0.7:8000"),
        (2, "10.0.0.7:8001"),
        (3, "[2001:db8::1]:8000"),
        (4, "named:8000"),
    ]);
    assert_eq!(table.len(), 4);
    assert_eq!(table.worker_at("10.0.0.7:8001"), Some(2));
    assert_eq!(table.worker_at(" [2001:DB8::1]:8000"), Some(3));
    assert_eq!(table.worker_at("2001:db8::1:8000"), Some(3));
    assert_eq!(table.worker_at("10.0.0.7"), None);
    assert_eq!(table.worker_at("named:8000"), None);
    assert_eq!(table.workers_at_ip("10.0.0.7"), [1, 2]);
    assert_eq!(table.workers_at_ip("[2001:db8::1]"), [3]);
    assert!(table.workers_at_ip("10.0.0.8").is_empty());
}

#[test]
fn of_two_workers_at_one_address_the_lower_id_answers() {
    let table = table(&[(9, "10.0.0.7:8000"), (5, "10.0.0.7:8000")]);
    assert_eq!(table.worker_at("10.0.0.7:8000"), Some(5));
    assert_eq!(table.workers_at_ip("10.0.0.7"), [5, 9]);
}
