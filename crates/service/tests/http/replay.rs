//! Many replays of one selection at once.

use std::sync::Arc;

use serde_json::json;

use crate::rig::{Rig, asking};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_replays_at_once_one_books() {
    let rig = Arc::new(Rig::with_workers(1..=2).await);
    for round in 0..20 {
        let id = format!("x{round}");
        rig.post("/select", asking(json!({"selection_id": id})))
            .await;
        let replays: Vec<_> = (0..8)
            .map(|_| {
                let (rig, id) = (Arc::clone(&rig), id.clone());
                tokio::spawn(async move {
                    let replay = json!({"model_name": "m", "selection_id": id});
                    rig.post("/reservations", replay).await.status
                })
            })
            .collect();
        let mut booked = 0;
        for replay in replays {
            match replay.await.unwrap() {
                201 => booked += 1,
                404 | 409 => {}
                other => panic!("{other}"),
            }
        }
        assert_eq!(booked, 1);
    }
    assert_eq!(rig.totals().await.0, 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_selection_freed_while_others_replay_it_is_not_booked_again() {
    let rig = Arc::new(Rig::with_workers(1..=1).await);
    for round in 0..40 {
        let id = format!("x{round}");
        rig.post("/select", asking(json!({"selection_id": id})))
            .await;
        let tasks: Vec<_> = (0..6)
            .map(|_| {
                let (rig, id) = (Arc::clone(&rig), id.clone());
                tokio::spawn(async move {
                    let replay = json!({"model_name": "m", "selection_id": id});
                    let booked = rig.post("/reservations", replay).await.status == 201;
                    if booked {
                        let freed = rig.delete(&format!("/reservations/{id}")).await;
                        assert_eq!(freed.status, 200);
                    }
                    booked
                })
            })
            .collect();
        let mut booked = 0;
        for task in tasks {
            booked += u32::from(task.await.unwrap());
        }
        assert_eq!(booked, 1);
    }
    assert_eq!(rig.totals().await, (0, 0));
}
