//! The HTTPS listener: handshakes run beside each other, and each connection knows its peer.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use podvirt_daemon::pki::{Identity, TlsError, common_name};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::debug;

use crate::front_proxy::FrontProxy;

/// Longest time a client may take for the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Handshakes at a time; more clients wait in the kernel's queue.
const HANDSHAKES: usize = 128;
/// Pause after the kernel refused a connection, mostly for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

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

/// A listener whose connections have finished their handshake.
#[derive(Debug)]
pub struct TlsListener {
    address: SocketAddr,
    ready: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
}

impl TlsListener {
    /// Begins to accept. Accepting ends when the listener is dropped.
    ///
    /// # Errors
    ///
    /// The listener has no address.
    pub fn new(listener: TcpListener, config: Arc<rustls::ServerConfig>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (sender, ready) = mpsc::channel(HANDSHAKES);
        tokio::spawn(accept(listener, TlsAcceptor::from(config), sender));
        Ok(TlsListener { address, ready })
    }
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    sender: mpsc::Sender<(TlsStream<TcpStream>, SocketAddr)>,
) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        let Ok(permit) = Arc::clone(&handshakes).acquire_owned().await else { return };
        let accepted = tokio::select! {
            () = sender.closed() => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                debug!(%error, "accepting failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (acceptor, sender) = (acceptor.clone(), sender.clone());
        tokio::spawn(async move {
            // Small frames of a console should not wait for each other.
            let _ = stream.set_nodelay(true);
            match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    // An error means that the server has ended meanwhile.
                    let _ = sender.send((stream, peer)).await;
                }
                Ok(Err(error)) => debug!(%peer, %error, "TLS handshake failed"),
                Err(_) => debug!(%peer, "TLS handshake took too long"),
            }
            drop(permit);
        });
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.ready.recv().await {
            Some(connection) => connection,
            // The accepting task ends only with this listener.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.address)
    }
}

impl Connected<IncomingStream<'_, TlsListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TlsListener>) -> Self {
        let certificate = stream.io().get_ref().1.peer_certificates().and_then(|chain| chain.first());
        Peer {
            address: *stream.remote_addr(),
            has_certificate: certificate.is_some(),
            common_name: certificate.and_then(|der| common_name(der)),
        }
    }
}
