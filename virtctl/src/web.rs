//! Servers beside the API server: those that hand images out and take them.

use std::sync::Arc;

use anyhow::Context as _;
use hyper::body::Body;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

/// A connection.
pub(crate) trait Both: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Both for T {}

/// By what a server's certificate is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trust<'a> {
    /// By what the system trusts.
    System,
    /// By these certificates, PEM.
    Certificates(&'a str),
    /// It is not.
    Any,
}

/// An address without the brackets of IPv6.
pub(crate) fn bare(host: &str) -> String {
    host.trim_start_matches('[').trim_end_matches(']').to_owned()
}

/// Begins TLS with the server of this name.
///
/// # Errors
/// When the certificates cannot be read, or the server's is not trusted.
pub(crate) async fn secured(
    stream: impl Both + 'static,
    host: &str,
    trust: Trust<'_>,
) -> anyhow::Result<Box<dyn Both>> {
    let name =
        ServerName::try_from(host.to_owned()).with_context(|| format!("{host:?} is no host's name"))?;
    let tls = TlsConnector::from(Arc::new(tls(trust)?));
    Ok(Box::new(tls.connect(name, stream).await.context("TLS")?))
}

/// Begins HTTP.
///
/// # Errors
/// When the connection has ended.
pub(crate) async fn spoken<B>(stream: Box<dyn Both>) -> anyhow::Result<SendRequest<B>>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::info!(%error, "the connection has ended");
        }
    });
    Ok(sender)
}

fn tls(trust: Trust<'_>) -> anyhow::Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    match trust {
        Trust::System => Ok(builder.with_platform_verifier()?.with_no_client_auth()),
        Trust::Any => {
            let trust = Arc::new(AnyServer(provider));
            Ok(builder.dangerous().with_custom_certificate_verifier(trust).with_no_client_auth())
        }
        Trust::Certificates(certificates) => {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(certificates.as_bytes()) {
                roots.add(certificate.context("the link's certificate cannot be read")?)?;
            }
            Ok(builder.with_root_certificates(roots).with_no_client_auth())
        }
    }
}

/// Takes any certificate: what `--insecure` asks for.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _server: &CertificateDer<'_>,
        _between: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
