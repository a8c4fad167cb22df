//! The worker catalog, checked against a model that is too simple to be wrong.

use std::collections::BTreeMap;

use pointsman_core::PartitionId;
use pointsman_service::{SelectionServiceError, WorkerRecord, WorkerRegistration};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::rig::{Rig, worker};

/// Why the model thinks that a worker cannot serve.
fn is_schedulable(worker: &WorkerRegistration, pinned: Option<u32>) -> bool {
    worker.endpoint.is_some()
        && worker.data_parallel_size != Some(0)
        && worker.block_size != Some(0)
        && pinned.is_none_or(|pinned| worker.block_size.unwrap_or(pinned) == pinned)
}

/// The registered workers, and the block size that each partition pinned.
#[derive(Default)]
struct Model {
    workers: BTreeMap<u64, (WorkerRegistration, bool)>,
    pinned: BTreeMap<(String, String), u32>,
}

impl Model {
    fn put(&mut self, worker: WorkerRegistration) {
        let key = (worker.model_name.clone(), worker.routing_group.clone());
        let pinned = self.pinned.get(&key).copied();
        let schedulable = is_schedulable(&worker, pinned);
        if schedulable && pinned.is_none() {
            self.pinned.insert(key, worker.block_size.unwrap_or(16));
        }
        self.workers.insert(worker.worker_id, (worker, schedulable));
    }

    fn replace(&mut self, workers: Vec<WorkerRegistration>) {
        self.workers
            .retain(|id, _| workers.iter().any(|worker| worker.worker_id == *id));
        for worker in workers {
            let same = self
                .workers
                .get(&worker.worker_id)
                .is_some_and(|(known, _)| *known == worker);
            if !same {
                self.put(worker);
            }
        }
    }

    fn check(&self, rig: &Rig) {
        let records = rig.service.workers();
        assert_eq!(records.len(), self.workers.len());
        for record in &records {
            let (registration, schedulable) = &self.workers[&record.worker_id()];
            assert_eq!(&record.registration, registration);
            assert_eq!(record.is_schedulable(), *schedulable, "{record:?}");
            assert_eq!(record.not_schedulable_reasons.is_empty(), *schedulable);
        }
        let schedulable = self
            .workers
            .values()
            .filter(|(_, schedulable)| *schedulable);
        let endpoints = rig.service.endpoints();
        assert_eq!(endpoints.len(), schedulable.clone().count());
        assert_eq!(rig.service.state().borrow().schedulable, endpoints.len());
        let mut ranks: BTreeMap<PartitionId, Vec<(u64, u32)>> = BTreeMap::new();
        for (worker, _) in schedulable {
            let url = worker.endpoint.as_deref().unwrap();
            let found = endpoints.worker_at(url.strip_prefix("http://").unwrap());
            assert_eq!(found, Some(worker.worker_id));
            let id = PartitionId::new(worker.model_name.as_str(), worker.routing_group.as_str());
            let first = worker.first_rank();
            ranks.entry(id).or_default().extend(
                (first..first + worker.rank_count()).map(|dp_rank| (worker.worker_id, dp_rank)),
            );
        }
        for partition in rig.service.loads() {
            let found: Vec<_> = partition
                .loads
                .iter()
                .map(|load| (load.worker.worker_id, load.worker.dp_rank))
                .collect();
            assert_eq!(
                found,
                ranks.remove(&partition.id).unwrap_or_default(),
                "{}",
                partition.id
            );
        }
        assert!(ranks.is_empty());
    }
}

fn random_worker(random: &mut StdRng) -> WorkerRegistration {
    let mut worker = worker(random.random_range(0..6));
    worker.model_name = String::from(["m", "n"][random.random_range(0..2)]);
    worker.routing_group = String::from(["default", "g"][random.random_range(0..2)]);
    worker.block_size = [None, Some(0), Some(16), Some(16), Some(32)][random.random_range(0..5)];
    worker.data_parallel_size = [None, Some(0), Some(1), Some(3)][random.random_range(0..4)];
    worker.data_parallel_start_rank = [None, Some(2)][random.random_range(0..2)];
    if random.random_bool(0.1) {
        worker.endpoint = None;
    }
    worker
}

#[tokio::test]
async fn the_catalog_agrees_with_a_naive_model() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let rig = Rig::new().await;
        let mut model = Model::default();
        for _ in 0..60 {
            match random.random_range(0..10) {
                0..6 => {
                    let worker = random_worker(&mut random);
                    rig.service.register_worker(worker.clone()).unwrap();
                    model.put(worker);
                }
                6..9 => {
                    let worker_id = random.random_range(0..6);
                    let known = model.workers.remove(&worker_id).is_some();
                    assert_eq!(rig.service.remove_worker(worker_id).is_ok(), known);
                }
                _ => {
                    let mut wanted: Vec<_> = (0..random.random_range(0..5))
                        .map(|_| random_worker(&mut random))
                        .collect();
                    wanted.sort_by_key(|worker| worker.worker_id);
                    wanted.dedup_by_key(|worker| worker.worker_id);
                    rig.service.replace_workers(wanted.clone()).unwrap();
                    model.replace(wanted);
                }
            }
            model.check(&rig);
        }
    }
}

#[tokio::test]
async fn more_ranks_than_the_bound_are_refused_and_change_nothing() {
    let rig = Rig::new().await;
    rig.service.register_worker(worker(1)).unwrap();
    let mut wide = worker(1);
    wide.data_parallel_size = Some(4097);
    let refused = rig.service.register_worker(wide.clone()).unwrap_err();
    assert!(matches!(
        refused,
        SelectionServiceError::BadWorker { field, .. } if field == "data_parallel_size"
    ));
    assert!(rig.service.replace_workers(vec![worker(2), wide]).is_err());
    assert!(
        rig.service
            .replace_workers(vec![worker(2), worker(2)])
            .is_err()
    );
    let ids: Vec<_> = rig
        .service
        .workers()
        .iter()
        .map(WorkerRecord::worker_id)
        .collect();
    assert_eq!(ids, [1]);
}

#[tokio::test]
async fn a_replacement_with_an_incomplete_worker_takes_it_out_of_service() {
    let rig = Rig::new().await;
    rig.service.register_worker(worker(1)).unwrap();
    let mut gone = worker(1);
    gone.endpoint = None;
    let record = rig.service.register_worker(gone).unwrap();
    assert_eq!(record.not_schedulable_reasons, ["endpoint is required"]);
    assert!(!rig.service.has_schedulable_worker());
    assert!(
        rig.service
            .endpoints()
            .worker_at("127.0.0.1:18001")
            .is_none()
    );
}
