//! The selection service as the settings want it, for both programs that run one; it starts and serves nothing.

use pointsman_plugin::plugins::RouterPluginRegistry;
use pointsman_plugin::plugins::worker_selection::WorkerType;
use pointsman_service::{PeerTls, RecoveryConfig, SelectionServiceBuilder};
use prometheus_client::registry::Registry;

use super::plan::chain;
use crate::config::{Selection, Settings, document};

/// With the index of a peer at its start and the load of replicas, where that is asked for.
pub(super) fn builder(
    settings: &Settings,
    registry: RouterPluginRegistry,
    recovery: RecoveryConfig,
    metrics: &mut Registry,
) -> SelectionServiceBuilder {
    let selection = &settings.selection;
    let builder =
        SelectionServiceBuilder::new(settings.router.clone(), WorkerType::Aggregated, registry)
            .default_block_size(settings.block_size)
            .predicted_blocks_per_rank(settings.predicted_blocks_per_rank)
            .max_index_entries(settings.max_index_entries)
            .shared_cache(settings.shared_cache.config())
            .events(settings.events.clone())
            .cache_audit(settings.cache_audit)
            .selection_cache(selection.pending)
            .reservations(selection.reservations)
            .indexer_peers(selection.recovery.peers.clone())
            .recovery(recovery)
            .metrics(metrics.sub_registry_with_prefix("pointsman"));
    match &selection.replica_sync {
        Some(sync) => builder.replica_sync(sync.port, sync.peers.clone()),
        None => builder,
    }
}

/// How peers are asked for their index. They are shown this service's own certificate.
pub(super) fn recovery(selection: &Selection) -> Result<RecoveryConfig, String> {
    let settings = &selection.recovery;
    let token = settings.token_file.as_deref().map(|file| {
        let read = document::read(file);
        read.map(|text| text.trim().to_owned())
            .map_err(|error| format!("POINTSMAN_INDEXER_PEERS_TOKEN_FILE: {}", chain(&error)))
    });
    let own = selection.tls_certificate.as_deref();
    let own = own.zip(selection.tls_key.as_deref());
    let tls = settings.ca.as_deref().map(|ca| {
        PeerTls::read(ca, own)
            .map_err(|error| format!("POINTSMAN_INDEXER_PEERS_CA: {}", chain(&error)))
    });
    let config = RecoveryConfig {
        token: token.transpose()?,
        tls: tls.transpose()?,
        max_time: settings.max_time,
        max_bytes: settings.max_bytes,
        max_blocks: settings.max_blocks,
        ..RecoveryConfig::default()
    };
    let checked = config.check(&settings.peers);
    checked.map_err(|error| format!("POINTSMAN_INDEXER_PEERS: {}", chain(&error)))?;
    Ok(config)
}
