//! The endpoint picker with the catalog linked in: the guide's program.
//!
//! It never holds anything that the guide does not.

use dynamo_ext_proc::run;
use dynamo_kv_router::plugins::RouterPluginRegistry;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut registry = RouterPluginRegistry::default();
    acme_routing_catalog::register(&mut registry)?;
    run(Some(registry)).await
}
