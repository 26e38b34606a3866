//! The way between two launchers: UNIX sockets in the pods, TLS between the nodes.
//!
//! At the target a TCP listener for each logical port; a client must show the certificate of the node from which the
//! machine comes, and nothing else is read from it before. At the source a UNIX socket in the pod for each; what connects
//! must be one of the pod's processes, and the server must show the certificate of the node to which the machine goes. So
//! another node, with a certificate of its own, is at neither end. Both certificates are the newest at every handshake
//! ([`Identity`]); a connection that stands is not touched by their renewal.
//!
//! All of it is one migration's and ends with it: dropping an end closes its listeners and cuts its connections. Each
//! listener carries at most [`CONNECTIONS`] at a time; libvirt and launcher have one each, QEMU one for memory and one for
//! each disk. What has not finished its handshake takes no such place: [`HANDSHAKES`] may be under way, each for
//! [`GREETING`], and one more cuts the oldest off, so that clients without a certificate keep no node out.
//!
//! The bytes go through a thread of their own. The handler's one thread has other machines to look after.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use podvirt_api::names::pod;
use podvirt_daemon::net::listen;
use podvirt_daemon::pki::{Identity, is_node, node_name};
use podvirt_proto::migration::{port, socket_name, word};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::sockets::{Dir, PodVolumes};

/// Connections of a logical port at a time.
pub const CONNECTIONS: usize = 16;
/// Handshakes of a logical port at a time.
pub const HANDSHAKES: usize = 32;
/// Time to connect, and for a handshake.
const GREETING: Duration = Duration::from_secs(10);
/// Silence after which the kernel asks whether the other node lives, and the time between its questions.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// How long sent bytes may stay without an answer.
const UNANSWERED: Duration = Duration::from_secs(20);
/// Bytes that are carried at a time, each way.
const BUFFER: usize = 256 << 10;
/// libvirt's socket in its volume.
const LIBVIRT: (&str, &str) = ("x/libvirt", "libvirt-sock");

/// A launcher pod.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Pods' volumes.
    pub volumes: PodVolumes,
    /// Its UID.
    pub uid: String,
}

/// A task that ends with what it belongs to.
#[derive(Debug)]
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The target's end.
#[derive(Debug)]
pub struct Inbound {
    ports: BTreeMap<u16, u16>,
    _tasks: Vec<Task>,
}

impl Inbound {
    /// Listens on free TCP ports for the migration `uid`, which leads to `pod` and comes from the node `source`. Shows
    /// `identity`.
    ///
    /// # Errors
    ///
    /// `uid` is none, or there are no ports.
    pub async fn open(pod: Pod, uid: &str, identity: &Identity, source: &str) -> io::Result<Self> {
        let config = identity.server_config(true).map_err(io::Error::other)?;
        let acceptor = TlsAcceptor::from(config);
        let mut inbound = Self { ports: BTreeMap::new(), _tasks: Vec::new() };
        for logical in port::ALL {
            let name = name(uid, logical)?;
            let listener = listen(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))).await?;
            inbound.ports.insert(listener.local_addr()?.port(), logical);
            // Registered with the carriers' thread.
            let listener = listener.into_std()?;
            let (pod, greeter) = (pod.clone(), Greeter { acceptor: acceptor.clone(), source: source.into() });
            let work = async move {
                let listener = TcpListener::from_std(listener)?;
                greet_and_serve(&listener, &greeter, move |stream| {
                    let (pod, name) = (pod.clone(), name.clone());
                    async move { inbound_connection(stream, &pod, logical, &name).await }
                })
                .await;
                Ok(())
            };
            inbound._tasks.push(start(logical, work)?);
        }
        Ok(inbound)
    }

    /// Logical port by TCP port.
    pub fn ports(&self) -> &BTreeMap<u16, u16> {
        &self.ports
    }
}

/// The source's end. Dropping it removes its sockets.
#[derive(Debug)]
pub struct Outbound {
    // Before the directory: no socket is left without a server.
    _tasks: Vec<Task>,
    directory: Dir,
    names: Vec<String>,
}

impl Drop for Outbound {
    fn drop(&mut self) {
        for name in &self.names {
            self.directory.remove(name);
        }
    }
}

impl Outbound {
    /// Listens in `pod` for the migration `uid`, which leads to the logical ports at these addresses of the node
    /// `target`. Shows `identity`.
    ///
    /// # Errors
    ///
    /// `uid` is none, or the pod's volume does not take the sockets.
    pub fn open(
        pod: &Pod,
        uid: &str,
        identity: &Identity,
        target: &str,
        to: &BTreeMap<u16, SocketAddr>,
    ) -> io::Result<Self> {
        let config = identity.client_config(&node_name(target)).map_err(io::Error::other)?;
        let connector = TlsConnector::from(config);
        let directory = pod.volumes.dir(&pod.uid, pod::volume::PUBLIC, "")?;
        let mut outbound = Self { _tasks: Vec::new(), directory, names: Vec::new() };
        for (&logical, &address) in to {
            let name = name(uid, logical)?;
            let listener = outbound.directory.listen(&name, pod.volumes.owner())?;
            outbound.names.push(name);
            let listener = listener.into_std()?;
            let (pod, connector) = (pod.clone(), connector.clone());
            let work = async move {
                let listener = UnixListener::from_std(listener)?;
                serve(&listener, move |stream| {
                    let (pod, connector) = (pod.clone(), connector.clone());
                    async move { outbound_connection(stream, &connector, &pod, address).await }
                })
                .await
            };
            outbound._tasks.push(start(logical, work)?);
        }
        Ok(outbound)
    }
}

/// Removes what an [`Outbound`] of a process that is gone has left in the pod.
pub fn sweep(pod: &Pod, uid: &str) {
    // The pod may be gone as well, with everything in it.
    let Ok(directory) = pod.volumes.dir(&pod.uid, pod::volume::PUBLIC, "") else { return };
    for name in port::ALL.iter().filter_map(|logical| socket_name(uid, *logical)) {
        directory.remove(&name);
    }
}

fn name(uid: &str, logical: u16) -> io::Result<String> {
    socket_name(uid, logical).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("'{uid}' is no UID of a migration"))
    })
}

/// The thread that carries bytes; it lives as long as the process.
fn carriers() -> io::Result<&'static Handle> {
    static HANDLE: OnceLock<Handle> = OnceLock::new();
    if let Some(handle) = HANDLE.get() {
        return Ok(handle);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("migration".into())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    // The thread that was first has it; the other thread, if there was one, waits for nothing.
    Ok(HANDLE.get_or_init(|| handle))
}

fn start(logical: u16, work: impl Future<Output = io::Result<()>> + Send + 'static) -> io::Result<Task> {
    let work = async move {
        if let Err(error) = work.await {
            tracing::error!(logical, %error, "a migration's listener has ended");
        }
    };
    Ok(Task(carriers()?.spawn(work).abort_handle()))
}

/// Accepts from the pod until it is aborted, and its connections with it.
async fn serve<W>(listener: &UnixListener, carry: impl Fn(UnixStream) -> W) -> io::Result<()>
where
    W: Future<Output = io::Result<()>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let place = Arc::clone(&places).acquire_owned().await.map_err(io::Error::other)?;
        let stream = tokio::select! {
            stream = listener.accept() => stream,
            Some(_) = connections.join_next() => continue,
        };
        match stream {
            Ok((stream, _)) => {
                let carry = carry(stream);
                connections.spawn(carried(carry, place));
            }
            Err(error) => not_accepted(&error).await,
        }
    }
}

/// Lets the handler of one node in.
#[derive(Clone)]
struct Greeter {
    acceptor: TlsAcceptor,
    /// The node.
    source: Arc<str>,
}

impl Greeter {
    async fn greet(self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        tune(&stream)?;
        let stream = in_time(self.acceptor.accept(stream)).await?;
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        if chain.first().is_some_and(|shown| is_node(shown, &self.source)) {
            return Ok(stream);
        }
        let message = format!("the client's certificate is not that of node {}", self.source);
        Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
    }
}

/// Accepts until it is aborted, and its connections with it.
async fn greet_and_serve<W>(
    listener: &TcpListener,
    greeter: &Greeter,
    carry: impl Fn(TlsStream<TcpStream>) -> W,
) where
    W: Future<Output = io::Result<()>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let (mut greetings, mut connections) = (JoinSet::new(), JoinSet::new());
    let mut by_age = VecDeque::<AbortHandle>::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    by_age.retain(|greeting| !greeting.is_finished());
                    if by_age.len() >= HANDSHAKES && let Some(oldest) = by_age.pop_front() {
                        tracing::info!("too many clients of a migration say nothing; the oldest is cut off");
                        oldest.abort();
                    }
                    by_age.push_back(greetings.spawn(greeter.clone().greet(stream)));
                }
                Err(error) => not_accepted(&error).await,
            },
            Some(greeted) = greetings.join_next() => match greeted {
                Ok(Ok(stream)) => match Arc::clone(&places).try_acquire_owned() {
                    Ok(place) => {
                        let carry = carry(stream);
                        connections.spawn(carried(carry, place));
                    }
                    Err(_) => tracing::warn!("a migration has more than {CONNECTIONS} connections to a port; one is cut"),
                },
                Ok(Err(error)) => tracing::info!(%error, "a client of a migration was turned away"),
                // Cut off as the oldest.
                Err(_) => {}
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Carries, and has its place until the end.
async fn carried(carry: impl Future<Output = io::Result<()>>, place: OwnedSemaphorePermit) {
    if let Err(error) = carry.await {
        tracing::info!(%error, "a connection of a migration has ended");
    }
    drop(place);
}

/// Of a client that went away, or no more descriptors.
async fn not_accepted(error: &io::Error) {
    tracing::warn!(%error, "a connection of a migration was not accepted");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

async fn inbound_connection(
    stream: TlsStream<TcpStream>,
    pod: &Pod,
    logical: u16,
    name: &str,
) -> io::Result<()> {
    let (volume, sub, name) = match logical {
        port::LIBVIRT => (pod::volume::LIBVIRT_RUNTIME, LIBVIRT.0, LIBVIRT.1),
        port::WORD => (pod::volume::PUBLIC, "", word::SOCKET),
        _ => (pod::volume::PUBLIC, "", name),
    };
    let inside = pod.volumes.dir(&pod.uid, volume, sub)?.connect(name).await?;
    pod.volumes.peer(&inside, &pod.uid)?;
    carry(stream, inside).await
}

async fn outbound_connection(
    inside: UnixStream,
    connector: &TlsConnector,
    pod: &Pod,
    address: SocketAddr,
) -> io::Result<()> {
    pod.volumes.peer(&inside, &pod.uid)?;
    let stream = in_time(TcpStream::connect(address)).await?;
    tune(&stream)?;
    // The name that is checked is in the configuration.
    let stream = in_time(connector.connect(ServerName::from(address.ip()), stream)).await?;
    carry(stream, inside).await
}

async fn in_time<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(GREETING, work).await.unwrap_or_else(|_| {
        let message = format!("the other node did not answer within {} s", GREETING.as_secs());
        Err(io::Error::new(io::ErrorKind::TimedOut, message))
    })
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(UNANSWERED))
}

/// Carries bytes both ways until both ends are done.
async fn carry<S>(mut outside: S, mut inside: UnixStream) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (came, went) = copy_bidirectional_with_sizes(&mut outside, &mut inside, BUFFER, BUFFER).await?;
    tracing::debug!(came, went, "a connection of a migration is done");
    Ok(())
}

/// The addresses of logical ports, from what the API has of them.
///
/// # Errors
///
/// The address or a port is none.
pub fn addresses(open: &super::Open) -> io::Result<BTreeMap<u16, SocketAddr>> {
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    let address = open.address.parse().map_err(|_| {
        invalid(format!("migrationState.targetNodeAddress: '{}' is no IP address", open.address))
    })?;
    open.ports
        .iter()
        .map(|(tcp, logical)| {
            let known = u16::try_from(*logical).ok().filter(|logical| port::ALL.contains(logical));
            match (tcp.parse::<u16>(), known) {
                (Ok(tcp), Some(logical)) => Ok((logical, SocketAddr::new(address, tcp))),
                _ => Err(invalid(format!(
                    "migrationState.targetDirectMigrationNodePorts: '{tcp}': {logical} is none; \
                     TCP ports and {:?} are allowed",
                    port::ALL
                ))),
            }
        })
        .collect()
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
