//! The mailbox: how other threads reach the worker.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use podvirt_proto::hold;
use socket2::Socket;

use super::flows::Flow;
use super::sockets::SteeredSockets;
use crate::ctl::{FlowInfo, FlowQuery, PortInfo, PortRule, Status};
use crate::flow::Key;
use crate::migrate::{self, Pack};
use crate::net::{Link, MacAddr};
use crate::ring::Ring;
use crate::shared;
use crate::tap::Tap;

/// A request to the worker; those with a reply are answered within the turn.
pub(super) enum Command {
    StartRing {
        index: usize,
        ring: Box<Ring>,
        reply: SyncSender<()>,
    },
    StopRing {
        index: usize,
        reply: SyncSender<Option<Ring>>,
    },
    Features(u64),
    Connected(bool),
    Link(Arc<Link>),
    Status(SyncSender<Status>),
    Flows {
        query: Arc<FlowQuery>,
        from: usize,
        rows: usize,
        reply: SyncSender<FlowPage>,
    },
    Ports(SyncSender<Vec<PortInfo>>),
    AddPorts(Vec<PortRule>, SyncSender<Vec<PortInfo>>),
    RemovePorts(Vec<PortRule>, SyncSender<Vec<PortInfo>>),
    Steer(SteeredSockets),
    Shutdown,
    /// A connection that worker 0 has accepted and this one is to have.
    Accepted {
        rule: PortRule,
        socket: Socket,
        from: SocketAddr,
    },
    /// A datagram that another worker has received.
    Datagram(Box<PassedDatagram>),
    /// Frames that other workers' rings have carried, and how many bytes they are in the backlog.
    Frames {
        frames: Vec<PassedFrame>,
        bytes: usize,
    },
    /// `pair` has carried `passed` frames of a flow and would have it: answered by `Adopt` or `Refused`.
    Request {
        key: Key,
        pair: usize,
        passed: u32,
    },
    Refused(Key),
    /// Flows that are this worker's from now on.
    Adopt(Vec<(Key, Flow)>),
    /// The guest's Ethernet address, as another worker has learned it.
    GuestMac(MacAddr),
    /// A pair has begun to receive.
    PairsChanged,
    Tap(Tap),
    Untap(u64),
    /// Stand still until `Thaw`; answered when it does.
    Freeze(SyncSender<()>),
    /// Give the state and lend the sockets; only while it stands still.
    Pack(Pack, SyncSender<(Pack, Result<migrate::Worker, hold::Error>)>),
    Thaw,
}

/// A frame on its way from one worker to another.
pub(super) struct PassedFrame {
    /// The frame as it stood in the transmit ring, virtio header included.
    pub(super) bytes: Vec<u8>,
    /// How often it was passed.
    pub(super) hops: u8,
}

/// A datagram of the pod on its way from one worker to another.
pub(super) struct PassedDatagram {
    /// The rule that it came by, or the pod's port if that is to be looked up.
    pub(super) rule: Result<PortRule, u16>,
    /// The pod's address that it was sent to.
    pub(super) local: Option<IpAddr>,
    pub(super) from: SocketAddr,
    pub(super) ttl: Option<u8>,
    pub(super) payload: Vec<u8>,
}

/// A part of the flow table, small enough not to hold up traffic.
#[derive(Default)]
pub(super) struct FlowPage {
    pub(super) rows: Vec<FlowInfo>,
    /// Where the next part starts; none: this was the last.
    pub(super) next: Option<usize>,
}

/// The sending end.
pub(super) type Mailbox = shared::Mailbox<Command>;

/// The worker's end.
pub(super) type Inbox = shared::Inbox<Command>;

impl Mailbox {
    /// Sends a command and waits for its answer; None when the worker has ended.
    pub(super) fn call<T>(&self, command: impl FnOnce(SyncSender<T>) -> Command) -> Option<T> {
        let (tx, rx) = sync_channel(1);
        if !self.send(command(tx)) {
            return None;
        }
        rx.recv().ok()
    }
}
