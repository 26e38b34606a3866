//! TLS both ways, for virt-api alone.
//!
//! Handshakes run beside each other and have a deadline: a client that says nothing keeps no other client out. A
//! certificate of our CA is not enough, since every daemon has one: it must carry virt-api's client name.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use podvirt_daemon::pki::{HANDLER_CLIENT_NAME, common_name};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

/// Time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Handshakes at a time.
const HANDSHAKES: usize = 64;
/// Silence after which the kernel asks whether the peer lives, and the time between its questions.
const KEEPALIVE: Duration = Duration::from_secs(30);

type Accepted = (TlsStream<TcpStream>, SocketAddr);

/// A listener whose connections are virt-api's.
#[derive(Debug)]
pub struct TlsListener {
    address: SocketAddr,
    accepted: mpsc::Receiver<Accepted>,
    task: AbortHandle,
}

impl TlsListener {
    /// Listens with `config`, which asks for a client's certificate.
    ///
    /// # Errors
    ///
    /// The address cannot be listened on.
    pub async fn bind(address: SocketAddr, config: Arc<ServerConfig>) -> io::Result<Self> {
        let listener = podvirt_daemon::net::listen(address).await?;
        let address = listener.local_addr()?;
        let (sender, accepted) = mpsc::channel(1);
        let task = tokio::spawn(accept(listener, TlsAcceptor::from(config), sender)).abort_handle();
        Ok(Self { address, accepted, task })
    }
}

impl Drop for TlsListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> Accepted {
        match self.accepted.recv().await {
            Some(accepted) => accepted,
            // The task ends with this listener only.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

async fn accept(mut listener: TcpListener, acceptor: TlsAcceptor, sender: mpsc::Sender<Accepted>) {
    let places = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        // Never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let (stream, peer) = Listener::accept(&mut listener).await;
        let (acceptor, sender) = (acceptor.clone(), sender.clone());
        tokio::spawn(async move {
            let greeted = tokio::time::timeout(HANDSHAKE, greet(stream, acceptor)).await;
            drop(place);
            match greeted {
                // A closed channel: the listener is gone.
                Ok(Ok(stream)) => drop(sender.send((stream, peer)).await),
                Ok(Err(error)) => tracing::warn!(%peer, %error, "a client was turned away"),
                Err(_) => tracing::warn!(%peer, "a client did not finish its handshake"),
            }
        });
    }
}

async fn greet(stream: TcpStream, acceptor: TlsAcceptor) -> io::Result<TlsStream<TcpStream>> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    let stream = acceptor.accept(stream).await?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let name = chain.first().and_then(common_name);
    if name.as_deref() == Some(HANDLER_CLIENT_NAME) {
        Ok(stream)
    } else {
        let name = name.unwrap_or_default();
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("the client's certificate is of {name:?}"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use podvirt_daemon::pki::{Identity, KeyPairPem, Purpose, make_ca, make_leaf, node_name};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::pki_types::ServerName;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn identity(ca: &KeyPairPem, name: &str, dns: &[String], purpose: Purpose) -> Identity {
        let leaf = make_leaf(ca, name, dns, purpose, Timestamp::now(), HOUR).unwrap();
        Identity::fixed(&leaf, &ca.certificate).unwrap()
    }

    /// Says hello as `client` and returns the answer.
    async fn call(address: SocketAddr, client: &Identity) -> io::Result<String> {
        let connector = TlsConnector::from(client.client_config(&node_name("n1")).unwrap());
        let name = ServerName::from(address.ip());
        let mut stream = connector.connect(name, TcpStream::connect(address).await?).await?;
        stream.write_all(b"hello").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn virt_api_is_served_and_no_other_client() {
        let ca = make_ca(Timestamp::now(), HOUR).unwrap();
        let server = identity(&ca, "virt-handler", &[node_name("n1")], Purpose::Node);
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut listener = TlsListener::bind(address, server.server_config(true).unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        // A client that says nothing keeps no other client out.
        let _silent = TcpStream::connect(address).await.unwrap();

        let stranger = identity(&ca, "kubevirt.io:system:client:other", &[], Purpose::Client);
        call(address, &stranger).await.unwrap_err();
        let own_ca = make_ca(Timestamp::now(), HOUR).unwrap();
        let leaf =
            make_leaf(&own_ca, HANDLER_CLIENT_NAME, &[], Purpose::Client, Timestamp::now(), HOUR).unwrap();
        call(address, &Identity::fixed(&leaf, &ca.certificate).unwrap()).await.unwrap_err();

        let api = identity(&ca, HANDLER_CLIENT_NAME, &[], Purpose::Client);
        let serve = async {
            let (mut stream, _) = Listener::accept(&mut listener).await;
            let mut said = [0; 5];
            stream.read_exact(&mut said).await.unwrap();
            stream.write_all(&said).await.unwrap();
            stream.shutdown().await.unwrap();
        };
        let (answer, ()) = tokio::join!(call(address, &api), serve);
        assert_eq!(answer.unwrap(), "hello");
    }
}
