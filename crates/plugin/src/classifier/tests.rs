//! The classifier contract as its implementors use it.

use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use super::*;

pub(crate) fn request(input_tokens: usize, cached_tokens: usize) -> ClassifyRequest {
    ClassifyRequest::new(ClassifyInput {
        request_id: Some("r1".to_owned()),
        policy_class: None,
        input_tokens,
        cached_tokens,
        progress: RequestProgress::new(input_tokens).0,
        ingress_at: Instant::now(),
        due_at: None,
        session_context: None,
        pinned_worker: None,
        affinity_target: None,
    })
}

/// The output of a future that never waits.
fn now<T>(mut future: Pin<Box<dyn Future<Output = T> + Send + '_>>) -> T {
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future waits"),
    }
}

struct PassThrough;
impl RequestClassifier for PassThrough {}

#[test]
fn a_classifier_without_methods_passes_requests_through() {
    let mut classifier = PassThrough;
    let request = now(classifier.classify(request(10, 0))).unwrap();
    assert_eq!(
        (request.request_id(), request.input_tokens()),
        (Some("r1"), 10)
    );
    now(classifier.on_event(ClassifyEvent::Aborted {
        request_id: "r1".to_owned(),
        worker: None,
        error: None,
    }));
}

/// Implemented the way users do, under the attribute.
struct Listener(Arc<Mutex<Vec<String>>>);

#[async_trait::async_trait]
impl RequestClassifier for Listener {
    fn classify(&mut self, mut request: ClassifyRequest) -> ClassifyFuture {
        Box::pin(async move {
            request.set_policy_class("batch");
            request.set_worker_selection_target(WorkerWithDpRank::new(4, 1));
            Ok(request)
        })
    }

    async fn on_event(&mut self, event: ClassifyEvent) {
        if let ClassifyEvent::Sent { request_id, worker } = event {
            self.0
                .lock()
                .unwrap()
                .push(format!("{request_id} to {worker}"));
        }
    }
}

#[test]
fn a_classifier_written_with_async_trait_is_one() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let mut classifier: Box<dyn RequestClassifier> = Box::new(Listener(Arc::clone(&heard)));
    let request = now(classifier.classify(request(1, 0))).unwrap();
    assert_eq!(request.policy_class(), Some("batch"));
    let target = WorkerAffinityTarget {
        worker_id: 4,
        dp_rank: Some(1),
    };
    assert_eq!(request.worker_selection_target(), Some(target));
    now(classifier.on_event(ClassifyEvent::Sent {
        request_id: "r1".to_owned(),
        worker: WorkerWithDpRank::new(4, 1),
    }));
    assert_eq!(*heard.lock().unwrap(), ["r1 to 4:1"]);
}

struct Refuser;
impl RequestClassifier for Refuser {
    fn classify(&mut self, _request: ClassifyRequest) -> ClassifyFuture {
        Box::pin(async { Err("closed for today".into()) })
    }
}

#[test]
fn a_classifier_may_refuse_with_any_error() {
    assert_eq!(
        now(Refuser.classify(request(1, 0)))
            .unwrap_err()
            .to_string(),
        "closed for today"
    );
}

#[test]
fn the_cost_of_admission_is_what_is_left_to_prefill_and_at_least_one() {
    for (input, cached, cost) in [(100, 36, 64), (100, 100, 1), (10, 20, 1), (0, 0, 1)] {
        assert_eq!(
            request(input, cached).scheduling_cost_tokens(),
            cost,
            "{input} - {cached}"
        );
    }
    let mut set = request(100, 0);
    set.set_scheduling_cost_tokens(7);
    assert_eq!(set.scheduling_cost_tokens(), 7);
}

#[test]
fn a_target_can_be_cleared() {
    let mut request = request(1, 0);
    request.set_worker_selection_target(WorkerWithDpRank::new(1, 0));
    request.clear_worker_selection_target();
    assert_eq!(request.worker_selection_target(), None);
}

#[test]
fn progress_is_shared_by_clones_and_never_falls() {
    let (progress, updater) = RequestProgress::new(10);
    let clone = progress.clone();
    updater.observe(25);
    updater.observe(15);
    assert_eq!(
        (progress.context_tokens(), clone.context_tokens()),
        (25, 25)
    );
}

#[test]
fn a_context_asks_for_the_workers_each_time() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let context = RequestClassifierContext::new(16, move || {
        let id = counted.fetch_add(1, Ordering::Relaxed) as u64;
        vec![RequestClassifierWorker::new(
            WorkerWithDpRank::from_worker_id(id),
            Some(100),
        )]
    });
    assert_eq!(context.block_size(), 16);
    assert_eq!(context.workers()[0].worker().worker_id, 0);
    assert_eq!(context.clone().workers()[0].worker().worker_id, 1);
}
