//! What moves, as plain values. Descriptors are named by their place in the parcel.

use std::net::{IpAddr, SocketAddr};

use crate::codec::{DecodeError, Field, Reader, fields};
use crate::net::Home;
use crate::port::Proto;
use crate::tcp::Conn;
use crate::time::Time;
use crate::udp::{SendOptions, Session};
use crate::wire::MacAddr;

/// A descriptor's place in the parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fd(pub u32);

impl Field for Fd {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        u32::take(r).map(Fd)
    }
}

/// Everything.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The netd that gives it.
    pub origin: Origin,
    /// The process's own listeners.
    pub listeners: Listeners,
    /// The frontend, if one is connected.
    pub frontend: Option<Frontend>,
    /// The sockets to which every port is steered, and what keeps them steered.
    pub steering: Option<Steering>,
    /// The workers, by their queue pair.
    pub workers: Vec<Worker>,
    /// Counters by the name and, for drops, the label that they have in the metrics.
    pub counters: Vec<(String, u64)>,
}

impl Snapshot {
    /// How many flows there are.
    pub fn flows(&self) -> usize {
        self.workers.iter().map(|w| w.tcp.len() + w.udp.len() + w.echo.len()).sum()
    }
}

/// The netd that gives the state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Its version.
    pub version: String,
    /// How many netds had the state before it.
    pub generation: u32,
    /// How often it was handed over while netd ran, `netd_updates_total`.
    pub updates: u64,
    /// CLOCK_MONOTONIC when everything stood still, in microseconds.
    pub frozen_at: u64,
}
fields!(Origin { version, generation, updates, frozen_at });

/// The process's own listeners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listeners {
    /// Path and socket of the vhost-user listener.
    pub vhost_user: Option<(String, Fd)>,
    /// Path and socket of the control interface.
    pub control: Option<(String, Fd)>,
    /// Address and socket of the metrics.
    pub metrics: Option<(SocketAddr, Fd)>,
    /// Path and socket where the helper that repairs connections comes.
    pub repair: Option<(String, Fd)>,
}
fields!(Listeners { vhost_user, control, metrics, repair });

/// A frontend's connection and all that it has set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// The connection.
    pub connection: Fd,
    /// SET_OWNER came.
    pub owned: bool,
    /// SET_PROTOCOL_FEATURES.
    pub protocol_features: Option<u64>,
    /// SET_FEATURES, if it was not reset.
    pub features: Option<u64>,
    /// SET_STATUS.
    pub status: u64,
    /// Regions of memory.
    pub regions: Vec<Region>,
    /// The dirty log.
    pub log: Option<Log>,
    /// The channel for requests of the backend.
    pub channel: Option<Fd>,
    /// Rings by their index.
    pub rings: Vec<VhostRing>,
}
fields!(Frontend { connection, owned, protocol_features, features, status, regions, log, channel, rings });

/// A region of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Guest-physical address.
    pub guest: u64,
    /// Bytes.
    pub len: u64,
    /// The frontend's own address.
    pub user: u64,
    /// Where it begins in the file.
    pub offset: u64,
    /// The file.
    pub file: Fd,
}
fields!(Region { guest, len, user, offset, file });

/// The dirty log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// Where it begins in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The file.
    pub file: Fd,
}
fields!(Log { offset, len, file });

/// A ring as the frontend has set it up, and where it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VhostRing {
    /// SET_VRING_NUM.
    pub size: Option<u32>,
    /// SET_VRING_ADDR behind the index: flags, then descriptors, used, available, log, by the frontend's addresses.
    pub addresses: Option<Addresses>,
    /// The next entry of the available ring.
    pub position: u16,
    /// SET_VRING_ENABLE.
    pub enabled: Option<bool>,
    /// SET_VRING_KICK.
    pub kick: Option<Fd>,
    /// SET_VRING_CALL.
    pub call: Option<Fd>,
    /// SET_VRING_ERR.
    pub err: Option<Fd>,
}
fields!(VhostRing { size, addresses, position, enabled, kick, call, err });

/// Where a ring lies, by the frontend's addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Flags.
    pub flags: u32,
    /// Descriptor table.
    pub descriptors: u64,
    /// Used ring.
    pub used: u64,
    /// Available ring.
    pub available: u64,
    /// Address in the log.
    pub log: u64,
}
fields!(Addresses { flags, descriptors, used, available, log });

/// The steering of every port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steering {
    /// Path and socket where the sockets are lent.
    pub listener: Option<(String, Fd)>,
    /// The TCP socket.
    pub tcp: Option<Fd>,
    /// The UDP socket.
    pub udp: Option<Fd>,
    /// Link, socket map and closed-ports map.
    pub held: Vec<Fd>,
    /// The connection of the steering side.
    pub peer: Option<Fd>,
    /// `all` has listeners in place of the steering.
    pub listening: bool,
}
fields!(Steering { listener, tcp, udp, held, peer, listening });

/// A worker.
#[derive(Debug, Default)]
pub struct Worker {
    /// What it knows of the guest, and the clock.
    pub state: WorkerState,
    /// TCP connections.
    pub tcp: Vec<TcpFlow>,
    /// UDP flows.
    pub udp: Vec<UdpFlow>,
    /// Echo flows.
    pub echo: Vec<EchoFlow>,
    /// Ports.
    pub ports: Vec<ForwardedPort>,
    /// Sockets of ports that flows share and that are no listeners.
    pub outlets: Vec<Outlet>,
    /// Frames that wait for a receive buffer.
    pub waiting: Vec<Vec<u8>>,
}

impl Worker {
    /// Without end: what these workers had, and for more pairs than they were, what is known of the guest.
    pub(crate) fn for_each_pair(workers: Vec<Worker>) -> impl Iterator<Item = Worker> {
        let known = workers.first().map(|w| w.state.clone()).unwrap_or_default();
        workers
            .into_iter()
            .chain(std::iter::repeat_with(move || Worker { state: known.clone(), ..Worker::default() }))
    }
}

/// A worker's own variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerState {
    /// Its clock when everything stood still.
    pub now: Time,
    /// The clock when it was started first.
    pub started: Time,
    /// The guest's Ethernet address as frames are sent to it.
    pub guest_mac: Option<MacAddr>,
    /// The one from which the guest last sent.
    pub seen_mac: Option<MacAddr>,
    /// The guest has been heard from since its frontend came: another station is not learned.
    pub station_seen: bool,
    /// Source addresses of the guest.
    pub seen: Vec<IpAddr>,
    /// Name of the last datagram that was cut.
    pub fragment_id: u32,
    /// What the guest has configured.
    pub homes: Vec<Home>,
}
fields!(WorkerState { now, started, guest_mac, seen_mac, station_seen, seen, fragment_id, homes });
fields!(Home { guest, prefix_len, gateway });

/// A TCP connection.
#[derive(Debug)]
pub struct TcpFlow {
    /// The guest's end and the peer as the guest sees it.
    pub key: (SocketAddr, SocketAddr),
    /// The peer as the pod's socket has it.
    pub pod_peer: SocketAddr,
    /// The guest opened it.
    pub from_guest: bool,
    /// The socket; none once both directions have ended.
    pub socket: Option<Fd>,
    /// The kernel keeps the peek offset.
    pub kernel_offset: bool,
    /// The peer has closed.
    pub peer_closed: bool,
    /// The peer is near.
    pub near: bool,
    /// `tcpi_bytes_acked` when the connection opened.
    pub acked_base: u64,
    /// Payload bytes from the guest.
    pub bytes_to_pod: u64,
    /// Payload bytes to the guest.
    pub bytes_to_guest: u64,
    /// Last use.
    pub used: Time,
    /// The state machine.
    pub conn: Conn,
    /// TTL of the guest's packets, zero where it is not known, and their DSCP.
    pub ttl: u8,
    /// See `ttl`.
    pub dscp: u8,
}
fields!(TcpFlow {
    key,
    pod_peer,
    from_guest,
    socket,
    kernel_offset,
    peer_closed,
    near,
    acked_base,
    bytes_to_pod,
    bytes_to_guest,
    used,
    conn,
    ttl,
    dscp,
});

/// A UDP flow.
#[derive(Debug)]
pub struct UdpFlow {
    /// The guest's end and the peer as the guest sees it.
    pub key: (SocketAddr, SocketAddr),
    /// The peer as the pod's socket has it.
    pub pod_peer: SocketAddr,
    /// The address that the socket was bound to.
    pub local: Option<IpAddr>,
    /// The guest opened it.
    pub from_guest: bool,
    /// Its own socket.
    pub socket: Option<Fd>,
    /// Without one the place of the port that carries it.
    pub listener: Option<u32>,
    /// What the socket is set to.
    pub options: Option<SendOptions>,
    /// Payload bytes from the guest.
    pub bytes_to_pod: u64,
    /// Payload bytes to the guest.
    pub bytes_to_guest: u64,
    /// Its life.
    pub session: Session,
}
fields!(UdpFlow {
    key,
    pod_peer,
    local,
    from_guest,
    socket,
    listener,
    options,
    bytes_to_pod,
    bytes_to_guest,
    session,
});

/// An echo flow.
#[derive(Debug)]
pub struct EchoFlow {
    /// The guest's address and the identifier.
    pub guest: SocketAddr,
    /// The ping socket.
    pub socket: Fd,
    /// The TTL that the socket is set to.
    pub ttl: Option<u8>,
    /// Payload bytes from the guest.
    pub bytes_to_pod: u64,
    /// Payload bytes to the guest.
    pub bytes_to_guest: u64,
    /// Its life.
    pub session: Session,
}
fields!(EchoFlow { guest, socket, ttl, bytes_to_pod, bytes_to_guest, session });

/// A forwarded port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardedPort {
    /// Its place in the list, by which flows name it.
    pub place: u32,
    /// Protocol.
    pub proto: Proto,
    /// Port of the pod; zero: steered.
    pub pod: u16,
    /// Port of the guest.
    pub guest: u16,
    /// The listener; none: it could not be opened.
    pub socket: Option<Fd>,
    /// Why not.
    pub error: Option<String>,
}
fields!(ForwardedPort { place, proto, pod, guest, socket, error });

/// A socket of a port that flows share and that is no listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlet {
    /// By which flows name it, behind the places of all ports.
    pub place: u32,
    /// The socket.
    pub socket: Fd,
}
fields!(Outlet { place, socket });
