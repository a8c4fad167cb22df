//! The routes of peers, and reservations that go from one replica to another over HTTP.

use serde_json::json;

use crate::rig::{Rig, asking, worker};

async fn synchronized() -> Rig {
    Rig::built(|builder| builder.replica_sync(0, Vec::new())).await
}

#[tokio::test]
async fn peers_come_and_go_and_are_listed_in_order() {
    let rig = synchronized().await;
    assert_eq!(rig.get("/replica_sync/peers").await.body, json!([]));
    let peer = |port: u16| json!({"endpoint": format!("tcp://127.0.0.1:{port}")});
    let (register, deregister) = (
        "/replica_sync/register_peer",
        "/replica_sync/deregister_peer",
    );
    let first = rig.post(register, peer(19_092)).await;
    assert_eq!((first.status, &first.body), (201, &json!({"status": "ok"})));
    let again = rig.post(register, peer(19_092)).await;
    assert_eq!((again.status, &again.body), (200, &json!({"status": "ok"})));
    assert_eq!(rig.post(register, peer(19_091)).await.status, 201);
    assert_eq!(
        rig.get("/replica_sync/peers").await.body,
        json!(["tcp://127.0.0.1:19091", "tcp://127.0.0.1:19092"])
    );
    assert_eq!(rig.post(deregister, peer(19_092)).await.status, 200);
    let unknown = rig.post(deregister, peer(1)).await;
    assert_eq!((unknown.status, unknown.code()), (404, "unknown_peer"));
    for path in [register, deregister] {
        let bad = rig.post(path, json!({"endpoint": "not an endpoint"})).await;
        assert_eq!((bad.status, bad.param()), (400, "endpoint"));
    }
    assert_eq!(
        rig.get("/replica_sync/peers").await.body,
        json!(["tcp://127.0.0.1:19091"])
    );
}

#[tokio::test]
async fn a_reservation_made_at_one_replica_is_ended_at_the_other() {
    let (a, b) = (synchronized().await, synchronized().await);
    for rig in [&a, &b] {
        rig.register(worker(1)).await;
    }
    for (rig, peer) in [(&a, &b), (&b, &a)] {
        let address = peer.service.replica_sync_address().unwrap();
        let endpoint = format!("tcp://127.0.0.1:{}", address.port());
        let body = json!({"endpoint": endpoint});
        let registered = rig.post("/replica_sync/register_peer", body).await;
        assert_eq!(registered.status, 201);
    }
    let body = asking(json!({"selection_id": "x"}));
    assert_eq!(
        a.post("/select_and_reserve", body.clone()).await.status,
        200
    );
    b.until_totals((1, 128)).await;
    let twice = b.post("/select_and_reserve", body).await;
    assert_eq!((twice.status, twice.code()), (409, "duplicate_reservation"));
    let completed = b.post("/reservations/x/prefill_complete", json!({})).await;
    assert_eq!(completed.status, 200);
    a.until_totals((1, 0)).await;
    let block = json!({"decay_fraction": 0.5});
    assert_eq!(
        b.post("/reservations/x/output_block", block).await.status,
        200
    );
    assert_eq!(b.delete("/reservations/x").await.status, 200);
    assert_eq!(b.delete("/reservations/x").await.status, 404);
    a.until_totals((0, 0)).await;
    assert_eq!(a.delete("/reservations/x").await.status, 404);
}
