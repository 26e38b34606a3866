//! TLS of the HTTPS server, and what it tells about the other end.

use std::net::SocketAddr;
use std::sync::Arc;

use podvirt_daemon::pki::{Identity, TlsError, common_name};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::front_proxy::FrontProxy;

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Whether it showed a client certificate; one that was shown is of the front proxy's CA.
    pub has_certificate: bool,
    /// Common name of that certificate.
    pub common_name: Option<String>,
}

impl Default for Peer {
    fn default() -> Self {
        Peer { address: SocketAddr::from(([0, 0, 0, 0], 0)), has_certificate: false, common_name: None }
    }
}

/// TLS for virt-api: its own certificate, optional client certificates of the front proxy, HTTP/2 and HTTP/1.1.
///
/// # Errors
///
/// rustls refuses.
pub fn server_config(identity: &Identity, proxy: &FrontProxy) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    let config = identity.server_config_with(proxy.clients())?;
    let mut config = Arc::unwrap_or_clone(config);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

impl Peer {
    /// The other end of a connection whose handshake is done.
    pub fn of(stream: &TlsStream<TcpStream>, address: SocketAddr) -> Self {
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        Peer {
            address,
            has_certificate: certificate.is_some(),
            common_name: certificate.and_then(|der| common_name(der)),
        }
    }
}
