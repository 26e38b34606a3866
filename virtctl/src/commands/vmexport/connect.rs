//! The way to an exporter, and what it is asked.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use http::header::{self, HeaderMap};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use podvirt_api::export::{PORT, TOKEN_HEADER, pod_name};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Duration, timeout};
use tokio_rustls::TlsConnector;

use crate::api::Cluster;

/// Longest time until the server is reached, and until its answer begins.
const PATIENCE: Duration = Duration::from_secs(60);
/// Largest manifest.
const MAX_TEXT: usize = 16 << 20;

/// What leads to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The host in the link.
    Named,
    /// Another address of the same server.
    Address(String, u16),
    /// The pod of an export, by way of the API server.
    Pod { namespace: String, export: String },
}

impl Reach {
    /// `host` or `host:port`.
    pub(super) fn address(text: &str) -> anyhow::Result<Self> {
        let uri: Uri =
            format!("https://{text}").parse().with_context(|| format!("--service-url: {text:?}"))?;
        let host = uri
            .host()
            .filter(|host| !host.is_empty())
            .with_context(|| format!("--service-url: {text:?} has no host"))?;
        Ok(Reach::Address(bare(host), uri.port_u16().unwrap_or(443)))
    }
}

/// An address without the brackets of IPv6.
fn bare(host: &str) -> String {
    host.trim_start_matches('[').trim_end_matches(']').to_owned()
}

/// A server, and how it is spoken to.
pub(super) struct Server<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) reach: Reach,
    /// Certificates by which it is checked.
    pub(super) cert: &'a str,
    pub(super) token: &'a str,
    pub(super) insecure: bool,
}

/// Letters and digits that cannot be guessed.
pub(super) fn random(length: usize) -> anyhow::Result<String> {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bytes = vec![0; length];
    if ring::default_provider().secure_random.fill(&mut bytes).is_err() {
        bail!("the system gives no random numbers");
    }
    Ok(bytes.iter().map(|byte| char::from(LETTERS[usize::from(byte % 32)])).collect())
}

trait Both: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Both for T {}

impl Server<'_> {
    /// Asks for what is at a link. Only the head of the answer has to be there in time.
    pub(super) async fn get(&self, url: &str, fields: HeaderMap) -> anyhow::Result<Response<Incoming>> {
        let uri: Uri = url.parse().with_context(|| format!("the link {url:?} makes no sense"))?;
        let host = bare(uri.host().context("the link names no host")?);
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let asked = async {
            let stream = self.connect(&host, uri.port_u16().unwrap_or(443)).await?;
            let name = ServerName::try_from(host.clone()).context("the link's host is no name")?;
            let tls = TlsConnector::from(Arc::new(self.tls()?));
            let stream = tls.connect(name, stream).await.context("TLS")?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::info!(%error, "the connection has ended");
                }
            });
            let mut request = Request::get(path).header(header::HOST, &host).header(TOKEN_HEADER, self.token);
            for (name, value) in &fields {
                request = request.header(name, value);
            }
            Ok(sender.send_request(request.body(Empty::<Bytes>::new())?).await?)
        };
        timeout(PATIENCE, asked)
            .await
            .with_context(|| format!("no answer within {} s", PATIENCE.as_secs()))?
    }

    /// A text, or why there is none.
    pub(super) async fn text(
        &self,
        url: &str,
        accept: &'static str,
    ) -> anyhow::Result<Result<Bytes, String>> {
        let fields = HeaderMap::from_iter([(header::ACCEPT, header::HeaderValue::from_static(accept))]);
        let answer = match self.get(url, fields).await {
            Ok(answer) => answer,
            Err(error) => return Ok(Err(format!("{error:#}"))),
        };
        if answer.status() != StatusCode::OK {
            return Ok(Err(format!("Bad status: {}", answer.status())));
        }
        match Limited::new(answer.into_body(), MAX_TEXT).collect().await {
            Ok(body) => Ok(Ok(body.to_bytes())),
            Err(error) => Ok(Err(format!("the answer broke off: {error}"))),
        }
    }

    async fn connect(&self, host: &str, port: u16) -> anyhow::Result<Box<dyn Both>> {
        let (host, port) = match &self.reach {
            Reach::Pod { namespace, export } => {
                let stream = self.cluster.pod_port(namespace, &pod_name(export), PORT).await;
                return Ok(Box::new(
                    stream.map_err(|error| error.explain_plain("forward a port of the exporter pod"))?,
                ));
            }
            Reach::Address(host, port) => (host.as_str(), *port),
            Reach::Named => (host, port),
        };
        let stream = TcpStream::connect((host, port)).await;
        Ok(Box::new(stream.with_context(|| format!("connect to {host}:{port}"))?))
    }

    fn tls(&self) -> anyhow::Result<ClientConfig> {
        let provider = Arc::new(ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        if self.insecure {
            let trust = Arc::new(AnyServer(provider));
            return Ok(builder.dangerous().with_custom_certificate_verifier(trust).with_no_client_auth());
        }
        if self.cert.trim().is_empty() {
            // The link does not say: what the system trusts.
            return Ok(builder.with_platform_verifier()?.with_no_client_auth());
        }
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(self.cert.as_bytes()) {
            roots.add(certificate.context("the link's certificate cannot be read")?)?;
        }
        Ok(builder.with_root_certificates(roots).with_no_client_auth())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_have_a_port() {
        let of = |text: &str| Reach::address(text).unwrap();
        assert_eq!(of("node:30443"), Reach::Address("node".into(), 30443));
        assert_eq!(of("node"), Reach::Address("node".into(), 443));
        assert_eq!(of("[fd00::1]:1"), Reach::Address("fd00::1".into(), 1));
        assert!(Reach::address("a b").is_err());
        let (one, other) = (random(20).unwrap(), random(20).unwrap());
        assert!(one.len() == 20 && one != other);
    }
}
