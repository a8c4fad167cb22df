//! A cache that the engines share: it is asked before a decision, and its failures fail nothing.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::post;
use pointsman_plugin::{KvRouterConfig, RouterPluginRegistry, WorkerType};
use pointsman_service::{SelectionServiceBuilder, SharedCacheConfig};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::rig::{PATIENCE, Rig, asking, merged, worker};

/// A shared cache that says what a test lets it say.
struct Cache {
    url: String,
    says: Arc<Says>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Says {
    answer: Mutex<Option<(u16, String)>>,
    questions: Mutex<Vec<Value>>,
}

impl Cache {
    async fn start(status: u16, body: &Value) -> Self {
        let says = Arc::new(Says::default());
        *says.answer.lock().unwrap() = Some((status, body.to_string()));
        let router = Router::new()
            .route("/query", post(answer))
            .with_state(Arc::clone(&says));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/query", listener.local_addr().unwrap());
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            url,
            says,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// `None`: it is silent from now on.
    fn say(&self, answer: Option<(u16, Value)>) {
        let answer = answer.map(|(status, body)| (status, body.to_string()));
        *self.says.answer.lock().unwrap() = answer;
    }

    fn questions(&self) -> Vec<Value> {
        self.says.questions.lock().unwrap().clone()
    }
}

async fn answer(State(says): State<Arc<Says>>, body: String) -> impl IntoResponse {
    let question = serde_json::from_str(&body).unwrap();
    says.questions.lock().unwrap().push(question);
    let answer = says.answer.lock().unwrap().clone();
    match answer {
        Some((status, text)) => (StatusCode::from_u16(status).unwrap(), text),
        None => std::future::pending().await,
    }
}

/// Two workers and a shared cache that is given this long to answer.
async fn rig(url: &str, deadline: Duration) -> Rig {
    let mut config = SharedCacheConfig::new(url).unwrap();
    config.deadline = deadline;
    let rig =
        Rig::built(|builder: SelectionServiceBuilder| builder.shared_cache(Some(config))).await;
    for worker_id in [1, 2] {
        rig.register(worker(worker_id)).await;
    }
    rig
}

async fn scores(rig: &Rig) -> Value {
    let answer = rig.post("/overlap_scores", asking(json!({}))).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.body
}

async fn error_of(rig: &Rig) -> String {
    let scores = scores(rig).await;
    let cache = &scores["shared_cache"];
    assert_eq!(cache["enabled"], true);
    assert_eq!(cache["total_hit_blocks"], 0);
    assert_eq!(cache["ranges"], json!([]));
    cache["error"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn the_blocks_of_a_prompt_are_asked_for_and_found() {
    let cache = Cache::start(200, &json!({"ranges": [[4, 6], [0, 2]]})).await;
    let rig = rig(&cache.url, PATIENCE).await;
    let scores = scores(&rig).await;
    let expected = json!({
        "enabled": true, "total_hit_blocks": 4, "ranges": [[0, 2], [4, 6]], "error": null,
    });
    assert_eq!(scores["shared_cache"], expected);
    for row in scores["workers"].as_array().unwrap() {
        assert_eq!(row["shared_beyond_device_blocks"], 4);
    }
    let question = json!({"block_hashes": [11, 12, 13, 14, 15, 16, 17, 18]});
    assert_eq!(cache.questions(), [question]);
}

#[tokio::test]
async fn token_prompts_are_asked_for_by_the_hashes_of_their_blocks() {
    let cache = Cache::start(200, &json!({"ranges": []})).await;
    let rig = rig(&cache.url, PATIENCE).await;
    let tokens: Vec<u32> = (1..=40).collect();
    let body = json!({"model_name": "m", "token_ids": tokens, "selection_id": "a"});
    let answer = rig.post("/select_and_reserve", body.clone()).await;
    assert_eq!(
        (answer.status, &answer.body["isl_tokens"]),
        (200, &json!(40))
    );
    rig.post("/select", body.clone()).await;
    rig.post("/select", merged(body, json!({"cache_salt": "tenant"})))
        .await;
    let [first, same, salted] = &cache.questions()[..] else {
        panic!("{:?}", cache.questions());
    };
    assert_eq!(first["block_hashes"].as_array().unwrap().len(), 2);
    assert_eq!(first, same);
    assert_ne!(first, salted);
}

#[tokio::test]
async fn a_prompt_without_blocks_is_not_asked_for() {
    let cache = Cache::start(200, &json!({"ranges": []})).await;
    let rig = rig(&cache.url, PATIENCE).await;
    let body = json!({"model_name": "m", "token_ids": [1, 2, 3]});
    assert_eq!(rig.post("/select", body).await.status, 200);
    assert!(cache.questions().is_empty());
}

#[tokio::test]
async fn whatever_goes_wrong_the_request_is_placed_and_the_reason_shown() {
    let cache = Cache::start(200, &json!({"ranges": 7})).await;
    let rig = rig(&cache.url, Duration::from_millis(100)).await;
    let select = async || rig.post("/select", asking(json!({}))).await.status;
    let malformed = "the answer of the shared cache was not understood";
    assert_eq!(error_of(&rig).await, malformed);
    let huge = "x".repeat(200_000);
    cache.say(Some((200, json!({"ranges": [], "more": huge}))));
    assert_eq!(error_of(&rig).await, malformed);
    cache.say(Some((503, json!({"ranges": [[0, 8]]}))));
    assert_eq!(
        error_of(&rig).await,
        "the shared cache answered with status 503"
    );
    assert_eq!(select().await, 200);
    cache.say(None);
    assert_eq!(error_of(&rig).await, "no answer within the deadline");
    assert_eq!(select().await, 200);
}

#[tokio::test]
async fn a_cache_that_is_not_there_is_soon_not_asked_any_more() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/query", listener.local_addr().unwrap());
    drop(listener);
    let rig = rig(&url, PATIENCE).await;
    let mut errors = Vec::new();
    for _ in 0..7 {
        errors.push(error_of(&rig).await);
    }
    let (gone, paused) = (
        "the shared cache was not reached",
        "not asked: the shared cache failed several times in a row",
    );
    assert_eq!(errors, [gone, gone, gone, gone, gone, paused, paused]);
}

#[tokio::test]
async fn a_cache_that_recovers_is_asked_again() {
    let cache = Cache::start(500, &json!({})).await;
    let rig = rig(&cache.url, PATIENCE).await;
    for _ in 0..5 {
        error_of(&rig).await;
    }
    cache.say(Some((200, json!({"ranges": [[0, 3]]}))));
    let found = async {
        while scores(&rig).await["shared_cache"]["total_hit_blocks"] != 3 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.unwrap();
    assert_eq!(cache.questions().len(), 6);
}

#[tokio::test]
async fn without_a_shared_cache_the_scores_say_so() {
    let rig = Rig::with_workers(1..=1).await;
    let expected = json!({"enabled": false, "total_hit_blocks": 0, "ranges": [], "error": null});
    assert_eq!(scores(&rig).await["shared_cache"], expected);
}

/// Worker 1 has half of the prompt on its device and three blocks of other prompts to compute: the picked worker.
async fn picked_with(cache: Option<SharedCacheConfig>) -> Value {
    let router = KvRouterConfig {
        use_kv_events: false,
        router_track_active_blocks: false,
        ..KvRouterConfig::default()
    };
    let registry = RouterPluginRegistry::default();
    let builder = SelectionServiceBuilder::new(router, WorkerType::Aggregated, registry);
    let rig = Rig::built(|_| builder.shared_cache(cache)).await;
    for worker_id in [1, 2] {
        rig.register(worker(worker_id)).await;
    }
    let prompt = |tokens: std::ops::Range<u32>, more| {
        let tokens: Vec<u32> = tokens.collect();
        merged(json!({"model_name": "m", "token_ids": tokens}), more)
    };
    let on_first = |id: &str| json!({"selection_id": id, "worker_id": 1});
    let half = rig
        .post("/reservations", prompt(1..65, on_first("half")))
        .await;
    assert_eq!(half.status, 201);
    rig.delete("/reservations/half").await;
    let busy = rig
        .post("/reservations", prompt(901..949, on_first("busy")))
        .await;
    assert_eq!(busy.status, 201);
    let answer = rig.post("/select", prompt(1..129, json!({}))).await;
    answer.body["worker_id"].clone()
}

#[tokio::test]
async fn a_shared_block_is_worth_half_of_one_on_a_device() {
    assert_eq!(picked_with(None).await, 1);
    let cache = Cache::start(200, &json!({"ranges": [[0, 8]]})).await;
    let mut config = SharedCacheConfig::new(&cache.url).unwrap();
    config.deadline = PATIENCE;
    assert_eq!(picked_with(Some(config)).await, 2);
}
