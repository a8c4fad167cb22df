//! Serves the published selection service over HTTP, for a bench of another process to ask; it measures nothing.

use std::sync::Arc;

use dynamo_kv_router::services::selection::{
    RouterPluginRegistry, SelectionServiceBuilder, run_server,
};
use dynamo_kv_router::{KvRouterConfig, WorkerSelectionPolicy, WorkerType};

pub(crate) fn run(port: u16, threads: usize) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        // A host brings the default policy: the one that the crate has for reference.
        let registry =
            RouterPluginRegistry::default().with_default_factory(Arc::new(|config, role, _| {
                WorkerSelectionPolicy::reference(config.clone(), role.default_selector_label())
            }));
        let config = KvRouterConfig::default();
        let builder = SelectionServiceBuilder::new(config, WorkerType::Aggregated, registry);
        let service = builder.build().await.expect("the published service");
        run_server(port, service).await.expect("a server");
    });
}
