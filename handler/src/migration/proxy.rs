//! The way between two launchers: UNIX sockets in the pods, TLS between the nodes.
//!
//! At the target a TCP listener for each logical port; whoever connects shows the client certificate of virt-handlers'
//! migrations, and nothing else is read from it before. At the source a UNIX socket in the pod for each; what connects
//! must be one of the pod's processes, and the target must show virt-handler's server certificate. Both certificates are
//! the newest at every handshake ([`Identity`]); a connection that stands is not touched by their renewal.
//!
//! All of it is one migration's and ends with it: dropping an end closes its listeners and cuts its connections. Each
//! listener carries at most [`CONNECTIONS`] at a time; libvirt and launcher have one each, QEMU one for memory and one for
//! each disk.
//!
//! The bytes go through a thread of their own. The handler's one thread has other machines to look after.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use podvirt_api::names::pod;
use podvirt_daemon::net::listen;
use podvirt_daemon::pki::{HANDLER_SERVER_NAME, Identity, MIGRATION_CLIENT_NAME, common_name};
use podvirt_proto::migration::{port, socket_name, word};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::sockets::{Dir, PodVolumes};

/// Connections of a logical port at a time.
pub const CONNECTIONS: usize = 16;
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
    /// Listens on free TCP ports for the migration `uid`, which leads to `pod`.
    ///
    /// # Errors
    ///
    /// `uid` is none, or there are no ports.
    pub async fn open(pod: Pod, uid: &str, server: &Identity) -> io::Result<Self> {
        let config = server.server_config(true).map_err(io::Error::other)?;
        let acceptor = TlsAcceptor::from(config);
        let mut inbound = Self { ports: BTreeMap::new(), _tasks: Vec::new() };
        for logical in port::ALL {
            let name = name(uid, logical)?;
            let listener = listen(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))).await?;
            inbound.ports.insert(listener.local_addr()?.port(), logical);
            // Registered with the carriers' thread.
            let listener = listener.into_std()?;
            let (pod, acceptor) = (pod.clone(), acceptor.clone());
            let work = async move {
                let listener = TcpListener::from_std(listener)?;
                serve(
                    &listener,
                    async |listener| Ok(listener.accept().await?.0),
                    move |stream| {
                        let (pod, acceptor, name) = (pod.clone(), acceptor.clone(), name.clone());
                        async move { inbound_connection(stream, &acceptor, &pod, logical, &name).await }
                    },
                )
                .await
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
    // Before the directory: no socket is left that nobody serves.
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
    /// Listens in `pod` for the migration `uid`, which leads to the logical ports at these addresses.
    ///
    /// # Errors
    ///
    /// `uid` is none, or the pod's volume does not take the sockets.
    pub fn open(pod: &Pod, uid: &str, client: &Identity, to: &BTreeMap<u16, SocketAddr>) -> io::Result<Self> {
        let config = client.client_config(HANDLER_SERVER_NAME).map_err(io::Error::other)?;
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
                serve(
                    &listener,
                    async |listener| Ok(listener.accept().await?.0),
                    move |stream| {
                        let (pod, connector) = (pod.clone(), connector.clone());
                        async move { outbound_connection(stream, &connector, &pod, address).await }
                    },
                )
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
    // Whoever was first has it; the other thread, if there was one, waits for nothing.
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

/// Accepts until it is aborted, and its connections with it.
async fn serve<L, S, W>(
    listener: &L,
    accept: impl AsyncFn(&L) -> io::Result<S>,
    carry: impl Fn(S) -> W,
) -> io::Result<()>
where
    W: Future<Output = io::Result<()>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let place = Arc::clone(&places).acquire_owned().await.map_err(io::Error::other)?;
        let stream = tokio::select! {
            stream = accept(listener) => stream,
            Some(_) = connections.join_next() => continue,
        };
        match stream {
            Ok(stream) => {
                let carry = carry(stream);
                connections.spawn(async move {
                    if let Err(error) = carry.await {
                        tracing::info!(%error, "a connection of a migration has ended");
                    }
                    drop(place);
                });
            }
            // Of a client that went away, or no more descriptors.
            Err(error) => {
                tracing::warn!(%error, "a connection of a migration was not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn inbound_connection(
    stream: TcpStream,
    acceptor: &TlsAcceptor,
    pod: &Pod,
    logical: u16,
    name: &str,
) -> io::Result<()> {
    tune(&stream)?;
    let stream = in_time(acceptor.accept(stream)).await?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let shown = chain.first().and_then(common_name).unwrap_or_default();
    if shown != MIGRATION_CLIENT_NAME {
        let message = format!("the client's certificate is of {shown:?}, not of {MIGRATION_CLIENT_NAME:?}");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
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
