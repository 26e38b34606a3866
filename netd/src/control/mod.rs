//! What one netd tells of itself, and which changes it takes while it runs.
//!
//! [`Control`] is the contract between the datapath and everything that shows or steers it (the gRPC server,
//! Prometheus, the command line). The workers implement it by their mailboxes; calls may block for one turn of
//! a worker's loop where nothing else is said, and must not be made from a worker's thread.

mod query;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

pub use query::{FlowQuery, QueryError};
use tokio::sync::watch;

use crate::counters::Counters;
use crate::net::Link;
use crate::port::PortRule;
use crate::tap::Tap;
use crate::wire::MacAddr;

/// A forwarded port and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// The rule.
    pub rule: PortRule,
    /// None: the pod has the port. Otherwise why it has not, e.g. `address already in use`.
    pub error: Option<String>,
    /// Connections to it are refused, as the guest does not listen.
    pub shut: bool,
}

/// What carries a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKind {
    /// A TCP connection.
    Tcp,
    /// A UDP flow.
    Udp,
    /// An ICMP or ICMPv6 echo flow.
    Echo,
}

/// One row of the flow table, like a line of `ss`.
#[derive(Clone, Debug)]
pub struct FlowInfo {
    /// Kind.
    pub kind: FlowKind,
    /// State name; for TCP the RFC 9293 name of the guest-facing side.
    pub state: &'static str,
    /// Whether the guest opened it.
    pub from_guest: bool,
    /// The guest's end.
    pub guest: SocketAddr,
    /// The peer as the guest sees it.
    pub guest_peer: SocketAddr,
    /// The peer as the pod's socket has it.
    pub pod_peer: SocketAddr,
    /// Payload bytes carried from the guest.
    pub bytes_to_pod: u64,
    /// Payload bytes carried to the guest.
    pub bytes_to_guest: u64,
    /// Segments sent to the guest again.
    pub retransmits: u32,
    /// Time since anything was carried.
    pub idle: Duration,
    /// What is known of a TCP connection besides.
    pub tcp: Option<TcpInfo>,
}

/// The guest's side of a TCP connection, and the pod's where it was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpInfo {
    /// Smoothed round trip between netd and the guest; none before the first sample.
    pub guest_rtt: Option<Duration>,
    /// Bytes that the guest was sent and has not acknowledged.
    pub in_flight: u32,
    /// Bytes that the guest is ready to receive.
    pub guest_window: u32,
    /// Bytes that the guest may send, as it was told.
    pub pod_window: u32,
    /// What the kernel tells of the pod's socket.
    pub socket: Option<SocketInfo>,
}

/// What the kernel tells of a TCP socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct SocketInfo {
    /// Smoothed round trip to the peer.
    pub rtt: Duration,
    /// Segments sent to the peer again.
    pub retransmits: u32,
    /// Bytes of the guest that wait to be sent or acknowledged.
    pub send_queue: u64,
    /// Bytes for the guest that were received and not acknowledged by it.
    pub receive_queue: u64,
}

/// What one netd is doing.
#[derive(Clone, Debug)]
pub struct Status {
    /// Time since start.
    pub uptime: Duration,
    /// Whether a vhost-user frontend is connected.
    pub frontend_connected: bool,
    /// Virtio features that the driver acknowledged, as the bit mask of the virtio specification.
    pub features: u64,
    /// Rings that run, by their index.
    pub running_rings: Vec<u32>,
    /// The link's present snapshot.
    pub link: Arc<Link>,
    /// The guest's Ethernet address, configured or learned.
    pub guest_mac: Option<MacAddr>,
    /// Addresses that the guest was seen to use.
    pub guest_seen: Vec<IpAddr>,
    /// Flows now in the table: TCP, UDP, echo.
    pub flows: [u32; 3],
    /// Open listeners.
    pub listeners: u32,
    /// Whether TCP listeners leave clients without an answer, as the guest does not run.
    pub silent: bool,
    /// TCP connections by state; states without any are left out.
    pub tcp_states: Vec<(&'static str, u32)>,
}

/// New flows that were refused because the flow table had no place for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedFlows {
    /// How many flows there may be.
    pub limit: u32,
    /// How many were refused since start, as far as the log has them.
    pub count: u64,
}

/// The calls that the datapath answers.
pub trait Control: Send + Sync + 'static {
    /// The present status; None when the worker has ended.
    fn status(&self) -> Option<Status>;
    /// The flows that `query` asks for.
    fn flows(&self, query: FlowQuery) -> Vec<FlowInfo>;
    /// Every forwarded port, taken ones included.
    fn ports(&self) -> Vec<PortInfo>;
    /// Opens further ports and tells for each what became of it.
    fn add_ports(&self, rules: Vec<PortRule>) -> Vec<PortInfo>;
    /// Closes listeners; flows that they accepted go on. Answers those that were open.
    fn remove_ports(&self, rules: Vec<PortRule>) -> Vec<PortInfo>;
    /// Replaces the link's snapshot.
    fn set_link(&self, link: Arc<Link>);
    /// The counters. Does not block.
    fn counters(&self) -> Arc<Counters>;
    /// The flows that the full flow table has refused, as they are logged. Does not block.
    fn refused(&self) -> watch::Receiver<RefusedFlows>;
    /// Shows every frame to `tap` from now on; false when the worker has ended.
    fn tap(&self, tap: Tap) -> bool;
    /// Forgets the tap of this number. Does not block.
    fn untap(&self, id: u64);
}
