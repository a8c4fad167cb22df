//! Many callers at once with random calls: nothing is left when all is freed.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::rig::{Rig, asking, worker};

async fn caller(rig: Arc<Rig>, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..150 {
        // Few ids, so that callers meet.
        let id = random.random_range(0..12).to_string();
        let path = format!("/reservations/{id}");
        let answer = match random.random_range(0..8) {
            0 => {
                rig.post("/select", asking(json!({"selection_id": id})))
                    .await
            }
            1 => {
                rig.post(
                    "/reservations",
                    json!({"model_name": "m", "selection_id": id}),
                )
                .await
            }
            2 => {
                rig.post("/select_and_reserve", asking(json!({"selection_id": id})))
                    .await
            }
            3 => {
                let worker_id = random.random_range(1..=3);
                let booking = json!({"model_name": "m", "selection_id": id, "worker_id": worker_id, "token_ids": [1, 2]});
                rig.post("/reservations", booking).await
            }
            4 => {
                rig.post(&format!("{path}/prefill_complete"), json!({}))
                    .await
            }
            5 => {
                rig.post(
                    &format!("{path}/output_block"),
                    json!({"decay_fraction": 0.5}),
                )
                .await
            }
            6 if random.random_bool(0.1) => {
                let worker_id = random.random_range(1..=3);
                rig.delete(&format!("/workers/{worker_id}")).await;
                rig.post("/workers", worker(worker_id)).await
            }
            _ => rig.delete(&path).await,
        };
        assert!(
            matches!(answer.status, 200 | 201 | 404 | 409 | 503),
            "{} {}",
            answer.status,
            answer.text
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_left_after_a_storm_of_callers() {
    let seed = 0x5eed_0007;
    println!("seed {seed:#x}");
    let rig = Arc::new(Rig::with_workers(1..=3).await);
    let callers: Vec<_> = (0..8)
        .map(|index| tokio::spawn(caller(Arc::clone(&rig), seed + index)))
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    for id in 0..12 {
        rig.delete(&format!("/reservations/{id}")).await;
    }
    for worker_id in 1..=3 {
        rig.register(worker(worker_id)).await;
    }
    let loads = rig.get("/loads").await;
    for rank in loads.body[0]["loads"].as_array().unwrap() {
        for field in [
            "active_requests",
            "potential_prefill_tokens",
            "potential_decode_blocks",
        ] {
            assert_eq!(rank[field], 0, "{rank}");
        }
    }
}
