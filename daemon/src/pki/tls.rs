//! rustls' hooks: the key that is shown and the CAs that are trusted are looked up at every handshake.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use super::certificate::{CertificateError, certificates};

/// Why trust could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The CA certificates cannot be read.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// A CA certificate is of no use as a root.
    #[error("a CA certificate cannot be trusted")]
    Root(#[source] rustls::Error),
    /// No verifier can be made of the roots.
    #[error("no verifier can be made of the CA certificates: {0}")]
    Verifier(String),
    /// rustls refused the configuration.
    #[error("TLS cannot be configured")]
    Config(#[source] rustls::Error),
    /// The name of the server is neither a DNS name nor an address.
    #[error("'{0}' is no server name; a DNS name or an address is allowed")]
    ServerName(String),
}

/// The one provider of cryptography: ring.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn roots(pem: &str) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate).map_err(TlsError::Root)?;
    }
    Ok(Arc::new(roots))
}

/// The key a daemon shows, as server and as client.
#[derive(Debug)]
pub(super) struct CurrentKey(pub(super) ArcSwap<CertifiedKey>);

impl ResolvesServerCert for CurrentKey {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl ResolvesClientCert for CurrentKey {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Verifier of clients' certificates whose CAs can change while it is in use.
///
/// A client that shows a certificate no CA of the set signed is refused in the handshake. Whether a client
/// may show none is decided once, by the constructor.
#[derive(Debug)]
pub struct TrustedClients {
    // ArcSwap wants a sized type, hence the second Arc.
    inner: ArcSwap<Arc<dyn ClientCertVerifier>>,
    required: bool,
}

impl TrustedClients {
    /// Trusts the CAs in `pem`; a client without a certificate is refused.
    ///
    /// # Errors
    ///
    /// `pem` holds no usable CA certificate.
    pub fn required(pem: &str) -> Result<Arc<Self>, TlsError> {
        Self::new(pem, true)
    }

    /// Trusts the CAs in `pem`; a client may come without a certificate and is anonymous then.
    ///
    /// # Errors
    ///
    /// `pem` holds no usable CA certificate.
    pub fn optional(pem: &str) -> Result<Arc<Self>, TlsError> {
        Self::new(pem, false)
    }

    fn new(pem: &str, required: bool) -> Result<Arc<Self>, TlsError> {
        Ok(Arc::new(TrustedClients { inner: ArcSwap::from_pointee(Self::verifier(pem)?), required }))
    }

    fn verifier(pem: &str) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        WebPkiClientVerifier::builder_with_provider(roots(pem)?, provider())
            .build()
            .map_err(|e| TlsError::Verifier(e.to_string()))
    }

    /// Trusts the CAs in `pem` from the next handshake on; the old set stays when they cannot be used.
    ///
    /// # Errors
    ///
    /// `pem` holds no usable CA certificate.
    pub fn replace(&self, pem: &str) -> Result<(), TlsError> {
        self.inner.store(Arc::new(Self::verifier(pem)?));
        Ok(())
    }
}

impl ClientCertVerifier for TrustedClients {
    fn client_auth_mandatory(&self) -> bool {
        self.required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // The set changes; a client with one certificate needs no hint.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.inner.load().verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.load().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.load().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.load().supported_verify_schemes()
    }
}

/// Verifier of servers' certificates whose CAs can change while it is in use.
#[derive(Debug)]
pub(super) struct TrustedServers(ArcSwap<WebPkiServerVerifier>);

impl TrustedServers {
    pub(super) fn new(pem: &str) -> Result<Self, TlsError> {
        Ok(TrustedServers(ArcSwap::new(Self::verifier(pem)?)))
    }

    fn verifier(pem: &str) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
        WebPkiServerVerifier::builder_with_provider(roots(pem)?, provider())
            .build()
            .map_err(|e| TlsError::Verifier(e.to_string()))
    }

    pub(super) fn replace(&self, pem: &str) -> Result<(), TlsError> {
        self.0.store(Self::verifier(pem)?);
        Ok(())
    }
}

/// [`TrustedServers`] for servers that are called by address and show one known name.
#[derive(Debug)]
pub(super) struct NamedServer {
    pub(super) trusted: Arc<TrustedServers>,
    pub(super) name: ServerName<'static>,
}

impl ServerCertVerifier for NamedServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _called_as: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.trusted.0.load().verify_server_cert(end_entity, intermediates, &self.name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trusted.0.load().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trusted.0.load().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trusted.0.load().supported_verify_schemes()
    }
}
