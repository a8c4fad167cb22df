//! The certificate and TLS settings of the `ext_proc` port.
//!
//! It verifies no client: who may connect is the network's decision.

use std::sync::Arc;

use rustls::{ServerConfig, pki_types::PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use super::StartError;

pub(super) fn self_signed() -> Result<TlsAcceptor, StartError> {
    let names = vec!["pointsman".to_owned(), "localhost".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).map_err(StartError::Certificate)?;
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(StartError::Tls)?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .map_err(StartError::Tls)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
