//! The example that embeds the service in a program of its own, run as its reader would.

use hyper::Method;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::rig::{Caller, totals_of};

#[path = "../../examples/embed.rs"]
#[allow(dead_code, reason = "its main is not called here")]
mod program;

#[tokio::test]
async fn the_example_places_requests_and_frees_their_load() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(async move {
        let ended = program::serve(listener, async move { drop(stopped.await) }).await;
        assert!(ended.is_ok());
    });
    let caller = Caller::of(address);
    let headers = [("content-type", "application/json")];
    let placed = caller
        .send(Method::POST, "/place", &headers, r#"{"tokens": [1, 2, 3]}"#)
        .await;
    assert_eq!(placed.status, 200, "{}", placed.text);
    let endpoint = placed.body["endpoint"].as_str().unwrap();
    assert!(endpoint.starts_with("http://127.0.0.1:800"), "{endpoint}");
    let loads = caller.send(Method::GET, "/selection/loads", &[], "").await;
    assert_eq!(loads.body[0]["loads"].as_array().unwrap().len(), 2);
    assert_eq!(totals_of(&loads.body), (0, 0));
    drop(caller);
    stop.send(()).unwrap();
    serving.await.unwrap();
}
