//! The server's TLS.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use podvirt_daemon::pki::{self, CertificateError, KeyPairPem, TrustedClients, provider};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::SingleCertAndKey;

use super::Config;

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file of the certificate's cannot be read.
    #[error("read {0}")]
    Read(PathBuf, #[source] std::io::Error),
    /// The server's certificate is of no use.
    #[error("the certificate cannot be used")]
    Certificate(#[from] CertificateError),
    /// The CA certificates of the backup are of no use.
    #[error("the CA certificates of the backup cannot be used")]
    Backup(#[source] pki::TlsError),
    /// rustls has refused the configuration.
    #[error("TLS cannot be configured")]
    Config(#[from] rustls::Error),
}

/// TLS with the certificate that the configuration names. Clients with the token show no certificate of theirs; where a backup is served,
/// its machine shows one.
///
/// # Errors
///
/// A certificate cannot be read or used.
pub fn config(config: &Config) -> Result<Arc<ServerConfig>, TlsError> {
    let read =
        |path: &Path| std::fs::read_to_string(path).map_err(|error| TlsError::Read(path.to_owned(), error));
    let pair = KeyPairPem { certificate: read(&config.certificate)?, key: read(&config.key)? };
    let clients: Arc<dyn ClientCertVerifier> = match &config.backup {
        Some(backup) => TrustedClients::optional(&backup.ca).map_err(TlsError::Backup)?,
        None => WebPkiClientVerifier::no_client_auth(),
    };
    let mut tls = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(pair.certified_key()?)));
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(tls))
}
