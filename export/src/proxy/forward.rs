//! One request, passed on over a connection of its own. Bodies go through as they come.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, Request, Uri, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use podvirt_api::export::SERVICE_PORT;
use podvirt_daemon::pki::{Certificate, provider};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Longest time until the exporter is reached, and until its answer begins.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Fields that are of one connection (RFC 9110, section 7.6.1).
const OF_A_CONNECTION: [header::HeaderName; 5] =
    [header::CONNECTION, header::TE, header::TRAILER, header::TRANSFER_ENCODING, header::UPGRADE];

/// Why a request was not passed on.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// It took too long.
    #[error("no answer within {} s", TIMEOUT.as_secs())]
    Slow(#[from] tokio::time::error::Elapsed),
    /// No connection, or no TLS.
    #[error("connect")]
    Connect(#[from] std::io::Error),
    /// The exporter speaks otherwise.
    #[error("HTTP")]
    Http(#[from] hyper::Error),
    /// A name or a path is none.
    #[error("{0} is no name of a server, or no path")]
    Name(String),
}

/// TLS for a client that trusts these CAs.
///
/// # Errors
///
/// None of them can be used.
pub fn trusting(bundle: &str) -> Result<Arc<ClientConfig>, anyhow::Error> {
    let mut roots = RootCertStore::empty();
    for certificate in Certificate::all_from_pem(bundle)? {
        roots.add(certificate.der)?;
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Passes a request on to `host`.
pub(super) async fn forward(
    tls: Arc<ClientConfig>,
    host: &str,
    path: &str,
    request: Request<Body>,
) -> Result<Response, Error> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| Error::Name(host.to_owned()))?;
    let uri: Uri = path.parse().map_err(|_| Error::Name(path.to_owned()))?;
    let (mut head, body) = request.into_parts();
    head.uri = uri;
    head.version = http::Version::HTTP_11;
    for field in OF_A_CONNECTION {
        head.headers.remove(field);
    }
    let value = HeaderValue::from_str(host).map_err(|_| Error::Name(host.to_owned()))?;
    head.headers.insert(header::HOST, value);
    let connected = async {
        let stream = TcpStream::connect((host, SERVICE_PORT)).await?;
        let stream = TlsConnector::from(tls).connect(name, stream).await?;
        Ok::<_, Error>(http1::handshake(TokioIo::new(stream)).await?)
    };
    let (mut sender, connection) = tokio::time::timeout(TIMEOUT, connected).await??;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the connection to an exporter has ended");
        }
    });
    let sent = sender.send_request(Request::from_parts(head, body));
    let mut response = tokio::time::timeout(TIMEOUT, sent).await??.map(Body::new);
    for field in OF_A_CONNECTION {
        response.headers_mut().remove(field);
    }
    Ok(response)
}
