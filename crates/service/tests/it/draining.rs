//! A worker that goes while it is being chosen, shown as draining until the choice is made.

use std::sync::{Arc, Mutex, mpsc};

use pointsman_plugin::plugins::RouterPluginRegistry;
use pointsman_plugin::{
    KvRouterConfig, WorkerInputView, WorkerPicker, WorkerSelectionContext, WorkerSelectionPolicy,
    WorkerSelectionPolicyError, WorkerSelectionPolicyFactory, WorkerType,
};
use pointsman_service::{Lifecycle, SelectionService, SelectionServiceBuilder, WorkerPatch};

use crate::rig::{asking, partition, tokens, worker};

/// Tells that it is asked, and picks the first worker when it may.
struct Waiting {
    asked: mpsc::Sender<()>,
    may: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl WorkerPicker for Waiting {
    fn pick(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        _: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        // The test may be over.
        let _ = self.asked.send(());
        let _ = self.may.lock().unwrap().recv();
        Ok(0)
    }
}

/// A service whose policy waits, and both ends of the wait.
async fn waiting() -> (SelectionService, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (asked, was_asked) = mpsc::channel();
    let (let_go, may) = mpsc::channel();
    let may = Arc::new(Mutex::new(may));
    let factory: WorkerSelectionPolicyFactory = Arc::new(move |config: &KvRouterConfig, _, _| {
        let picker = Waiting {
            asked: asked.clone(),
            may: Arc::clone(&may),
        };
        WorkerSelectionPolicy::new(config.clone(), "waiting", Vec::new(), Box::new(picker))
    });
    let registry = RouterPluginRegistry::default().with_default_factory(factory);
    let config = KvRouterConfig::default();
    let builder = SelectionServiceBuilder::new(config, WorkerType::Aggregated, registry);
    (builder.build().await.unwrap(), was_asked, let_go)
}

fn lifecycle(service: &SelectionService) -> Option<Lifecycle> {
    service.worker(1).map(|record| record.lifecycle)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_worker_is_draining_until_the_selections_under_way_have_ended() {
    let (service, was_asked, let_go) = waiting().await;
    service.register_worker(worker(1)).unwrap();
    let selecting = {
        let service = service.clone();
        tokio::spawn(async move { service.select(&partition(), asking(&tokens(0..8))).await })
    };
    was_asked.recv().unwrap();
    let answered = service.remove_worker(1).unwrap();
    assert_eq!(answered.lifecycle, Lifecycle::Unschedulable);
    assert_eq!(lifecycle(&service), Some(Lifecycle::Draining));
    assert_eq!(service.workers().len(), 1);
    assert!(!service.has_schedulable_worker());
    assert!(service.remove_worker(1).is_err());
    let_go.send(()).unwrap();
    let error = selecting.await.unwrap().unwrap_err();
    assert_eq!(error.status_code(), 503, "{error}");
    assert_eq!(lifecycle(&service), None);
    assert!(service.workers().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_moves_or_cannot_serve_any_more_is_draining_first() {
    for patch in [r#"{"model_name": "other"}"#, r#"{"endpoint": null}"#] {
        let (service, was_asked, let_go) = waiting().await;
        service.register_worker(worker(1)).unwrap();
        let selecting = {
            let service = service.clone();
            tokio::spawn(async move { service.select(&partition(), asking(&tokens(0..8))).await })
        };
        was_asked.recv().unwrap();
        let patch = WorkerPatch::new(serde_json::from_str(patch).unwrap());
        let record = service.patch_worker(1, &patch).unwrap();
        assert_eq!(record.lifecycle, Lifecycle::Draining);
        let_go.send(()).unwrap();
        // The first choice is void; where there is another worker table it is asked for again.
        drop(let_go);
        drop(selecting.await.unwrap());
        assert_ne!(lifecycle(&service), Some(Lifecycle::Draining));
        assert_eq!(service.workers().len(), 1);
    }
}

#[tokio::test]
async fn nobody_drains_where_nobody_selects() {
    let (service, _asked, _let_go) = waiting().await;
    service.register_worker(worker(1)).unwrap();
    service.remove_worker(1).unwrap();
    assert!(service.workers().is_empty());
    service.register_worker(worker(1)).unwrap();
    assert_eq!(lifecycle(&service), Some(Lifecycle::Schedulable));
}
