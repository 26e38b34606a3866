//! The mailbox: how other threads reach the worker.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use podvirt_proto::hold;
use socket2::Socket;

use super::flows::Flow;
use crate::control::{FlowInfo, FlowQuery, PortInfo, Status};
use crate::flow::Key;
use crate::net::Link;
use crate::port::PortRule;
use crate::ring::{Ring, Thread};
use crate::shared;
use crate::sockets::SteeredSockets;
use crate::state::{self, Descriptors, InheritError, Pack};
use crate::tap::Tap;
use crate::time::Clock;
use crate::wire::MacAddr;

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
    /// Worker 0 has closed the listeners of these UDP ports of the pod.
    PartFromPorts(Arc<HashSet<u16>>, SyncSender<()>),
    Steer(SteeredSockets),
    Shutdown,
    /// Another worker's ring has carried an answer to a question of worker 0's.
    Answer {
        port: u16,
        ack: u32,
        listens: bool,
    },
    /// The guest has refused a connection to this port of its.
    ClientRefused(u16),
    /// A connection that worker 0 has accepted and this worker is to have.
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
    /// The guest leaves, and has no rings any more: read the datagrams that have come for it.
    Keep(SyncSender<()>),
    /// Stand still until `Thaw`; answered when it does.
    Freeze(SyncSender<()>),
    /// Give the state and lend the sockets; only while it stands still.
    Pack(Pack, SyncSender<(Pack, Result<state::Worker, hold::Error>)>),
    Thaw,
    /// Take over what a worker of another machine had, whose clock this is; only while this
    /// worker stands still. Answered by the connections that end here.
    Load(
        Box<state::Worker>,
        Clock,
        Descriptors,
        SyncSender<(Descriptors, Result<Vec<state::Endpoints>, InheritError>)>,
    ),
    /// Answer the TCP listeners, for the helper to silence.
    Listeners(SyncSender<Vec<OwnedFd>>),
    /// Accept every connection that waits at a listener; while the worker stands still as well.
    AcceptWaiting(SyncSender<()>),
    /// These connections' sockets are being repaired.
    Park(Arc<HashSet<state::Endpoints>>, SyncSender<()>),
    /// These are so no longer; whether it succeeded.
    Unpark(Arc<Vec<(state::Endpoints, bool)>>),
    /// End all flows: connections by a RST to the peer, except these, whose sockets stay as they are.
    Abandon(Arc<HashSet<state::Endpoints>>, SyncSender<()>),
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
    pub(super) class: u8,
    pub(super) payload: Vec<u8>,
}

/// A part of the flow table, small enough not to hold up traffic.
#[derive(Default)]
pub(super) struct FlowPage {
    pub(super) rows: Vec<FlowInfo>,
    /// Where the next part starts; none: this was the last.
    pub(super) next: Option<usize>,
}

/// How long an answer is waited for before the worker is looked after.
const TIMEOUT: Duration = Duration::from_millis(100);

/// The sending end.
#[derive(Clone, Debug)]
pub(super) struct Mailbox {
    queue: shared::Mailbox<Command>,
    thread: Arc<OnceLock<Thread>>,
}

/// The worker's end.
pub(super) type Inbox = shared::Inbox<Command>;

/// Makes both ends.
///
/// # Errors
/// As eventfd(2).
pub(super) fn mailbox() -> io::Result<(Mailbox, Inbox)> {
    let (queue, inbox) = shared::mailbox()?;
    Ok((Mailbox { queue, thread: Arc::default() }, inbox))
}

impl Mailbox {
    /// The calling thread is the worker's.
    pub(super) fn is_mine(&self) {
        // A worker has one thread.
        let _ = self.thread.set(Thread::current());
    }

    /// Sends a command; false when the worker has ended.
    pub(super) fn send(&self, command: Command) -> bool {
        self.queue.send(command)
    }

    /// Sends a command and waits for its answer; None when the worker has ended. A worker that does not answer soon may
    /// be waiting in a system call, where a hostile frontend can bring it (`ring::bell`): it is got out of it.
    pub(super) fn call<T>(&self, command: impl FnOnce(SyncSender<T>) -> Command) -> Option<T> {
        let (tx, rx) = sync_channel(1);
        if !self.send(command(tx)) {
            return None;
        }
        loop {
            match rx.recv_timeout(TIMEOUT) {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(thread) = self.thread.get() {
                        thread.interrupt();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;
    use nix::sys::eventfd::EventFd;

    use super::*;

    #[test]
    fn a_worker_that_waits_in_a_system_call_is_got_out_of_it_by_who_asks_it_something() {
        let (mailbox, inbox) = mailbox().unwrap();
        let worker = std::thread::spawn({
            let mailbox = mailbox.clone();
            move || {
                mailbox.is_mine();
                let Some(Command::Freeze(reply)) = inbox.wait() else { panic!("another command") };
                let full = EventFd::new().unwrap();
                full.write(u64::MAX - 1).unwrap();
                let written = full.write(1);
                reply.send(()).unwrap();
                written
            }
        });
        assert!(mailbox.call(Command::Freeze).is_some());
        assert_eq!(worker.join().unwrap(), Err(Errno::EINTR));
        assert!(mailbox.call(Command::Freeze).is_none(), "it has ended");
    }
}
