//! Dialling the exporter: TLS both ways, and a request that turns the connection into a stream.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode, header};
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use nix::sys::socket::{setsockopt, sockopt};
use podvirt_api::backup::Options;
use podvirt_api::export::SERVICE_PORT;
use podvirt_api::export::backup::TUNNEL_PATH;
use podvirt_api::validate::is_dns_subdomain;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Longest time for one attempt.
pub(super) const LONGEST: Duration = Duration::from_secs(10);
/// Seconds of silence after which the kernel asks whether the exporter lives, and between its questions.
const KEEPALIVE: u32 = 15;
/// Questions without an answer after which it does not.
const QUESTIONS: u32 = 4;

/// Why an exporter was not reached.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    /// No connection.
    #[error("no connection")]
    Connect(#[source] std::io::Error),
    /// No TLS, or a certificate of the wrong name or CA.
    #[error("TLS failed")]
    Tls(#[source] std::io::Error),
    /// It does not speak HTTP.
    #[error("HTTP failed")]
    Http(#[from] hyper::Error),
    /// The request cannot be made.
    #[error("the request cannot be made")]
    Request(#[from] http::Error),
    /// It does not take the stream.
    #[error("it answers {0}")]
    Refused(StatusCode),
}

/// What is wrong with an Export; what it says is not told, where it may be the key.
#[derive(Debug, thiserror::Error)]
pub(in crate::pod) enum TargetError {
    /// A field is empty.
    #[error("{0}: required")]
    Missing(&'static str),
    /// The exporter's address is something else.
    #[error("exportServerAddr: '{0}': a host's name without a port is allowed")]
    Address(String),
    /// The name in its certificate is something else.
    #[error("exportServerName: '{0}': a DNS name is allowed")]
    Name(String),
    /// A field has no certificates.
    #[error("{0}: certificates as PEM are allowed")]
    Certificates(&'static str),
    /// The key is none.
    #[error("backupKey: a private key as PEM is allowed")]
    Key,
    /// A CA is of no use.
    #[error("caCert: a certificate cannot be used")]
    Ca(#[source] rustls::Error),
    /// The certificate is not the key's.
    #[error("backupCert, backupKey: they do not fit")]
    Pair(#[source] rustls::Error),
    /// There is no version of TLS.
    #[error(transparent)]
    Tls(rustls::Error),
}

/// An exporter, and what the launcher shows it.
pub(in super::super) struct Target {
    host: String,
    port: u16,
    name: ServerName<'static>,
    tls: Arc<ClientConfig>,
}

// The key is in it.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("host", &self.host).field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Target {
    /// The exporter that an Export names.
    ///
    /// # Errors
    ///
    /// Something is missing, or of no use.
    pub(in super::super) fn new(options: &Options) -> Result<Self, TargetError> {
        let said = |value: &Option<String>, name: &'static str| {
            value.clone().filter(|value| !value.is_empty()).ok_or(TargetError::Missing(name))
        };
        let host = said(&options.export_server_addr, "exportServerAddr")?;
        if !is_dns_subdomain(&host) {
            return Err(TargetError::Address(host));
        }
        let name = said(&options.export_server_name, "exportServerName")?;
        let name = ServerName::try_from(name.clone()).map_err(|_| TargetError::Name(name))?;
        let ca = certificates(&said(&options.ca_cert, "caCert")?, "caCert")?;
        let chain = certificates(&said(&options.backup_cert, "backupCert")?, "backupCert")?;
        let key = options.backup_key.as_ref().ok_or(TargetError::Missing("backupKey"))?;
        let key = PrivateKeyDer::from_pem_slice(key.0.as_bytes()).map_err(|_| TargetError::Key)?;
        let mut roots = RootCertStore::empty();
        for certificate in ca {
            roots.add(certificate).map_err(TargetError::Ca)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TargetError::Tls)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key);
        let mut tls = tls.map_err(TargetError::Pair)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Target { host, port: SERVICE_PORT, name, tls: Arc::new(tls) })
    }

    /// The same, at another place.
    #[cfg(test)]
    pub(super) fn at(self, address: std::net::SocketAddr) -> Self {
        Target { host: address.ip().to_string(), port: address.port(), ..self }
    }

    /// Opens a stream.
    pub(super) async fn dial(&self) -> Result<TokioIo<Upgraded>, DialError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(DialError::Connect)?;
        guard(&stream).map_err(DialError::Connect)?;
        let tls = TlsConnector::from(Arc::clone(&self.tls)).connect(self.name.clone(), stream);
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(tls.await.map_err(DialError::Tls)?)).await?;
        let request = Request::get(TUNNEL_PATH)
            .header(header::HOST, &self.host)
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "nbd")
            .body(String::new())?;
        let asking = async {
            let answer = sender.send_request(request).await?;
            match answer.status() {
                StatusCode::SWITCHING_PROTOCOLS => Ok(TokioIo::new(hyper::upgrade::on(answer).await?)),
                other => Err(DialError::Refused(other)),
            }
        };
        // The connection lives as long as the question, and hands its stream over at the end.
        let (mut asking, connection) = (std::pin::pin!(asking), connection.with_upgrades());
        tokio::select! {
            biased;
            asked = asking.as_mut() => asked,
            _ = connection => asking.await,
        }
    }
}

/// Has the kernel notice that the exporter's node is gone.
fn guard(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = stream.as_fd();
    setsockopt(&socket, sockopt::KeepAlive, &true)?;
    setsockopt(&socket, sockopt::TcpKeepIdle, &KEEPALIVE)?;
    setsockopt(&socket, sockopt::TcpKeepInterval, &KEEPALIVE)?;
    Ok(setsockopt(&socket, sockopt::TcpKeepCount, &QUESTIONS)?)
}

/// The certificates of a field.
fn certificates(pem: &str, field: &'static str) -> Result<Vec<CertificateDer<'static>>, TargetError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let all = all.ok().filter(|all| !all.is_empty());
    all.ok_or(TargetError::Certificates(field))
}
