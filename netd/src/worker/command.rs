//! The mailbox: how other threads reach the worker.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::sockets::SteeredSockets;
use crate::ctl::{FlowInfo, FlowQuery, PortInfo, PortRule, Status};
use crate::net::Link;
use crate::ring::Ring;
use crate::tap::Tap;

/// A request to the worker; those with a reply are answered within the turn.
pub(super) enum Command {
    StartRing { index: usize, ring: Box<Ring>, reply: SyncSender<()> },
    StopRing { index: usize, reply: SyncSender<Option<Ring>> },
    Features(u64),
    Connected(bool),
    Link(Arc<Link>),
    Status(SyncSender<Status>),
    Flows { query: Arc<FlowQuery>, from: usize, rows: usize, reply: SyncSender<FlowPage> },
    Ports(SyncSender<Vec<PortInfo>>),
    AddPorts(Vec<PortRule>, SyncSender<Vec<PortInfo>>),
    RemovePorts(Vec<PortRule>, SyncSender<Vec<PortInfo>>),
    Steer(SteeredSockets),
    Shutdown,
    Tap(Tap),
    Untap(u64),
}

/// A part of the flow table, small enough not to hold up traffic.
#[derive(Default)]
pub(super) struct FlowPage {
    pub(super) rows: Vec<FlowInfo>,
    /// Where the next part starts; none: this was the last.
    pub(super) next: Option<usize>,
}

/// The sending end.
#[derive(Clone, Debug)]
pub(super) struct Mailbox {
    queue: Sender<Command>,
    bell: Arc<EventFd>,
}

/// The worker's end.
pub(super) struct Inbox {
    queue: Receiver<Command>,
    bell: Arc<EventFd>,
}

/// Makes both ends.
pub(super) fn mailbox() -> io::Result<(Mailbox, Inbox)> {
    let (tx, rx) = channel();
    let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
    Ok((Mailbox { queue: tx, bell: bell.clone() }, Inbox { queue: rx, bell }))
}

impl Mailbox {
    /// Sends a command; false when the worker has ended.
    pub(super) fn send(&self, command: Command) -> bool {
        // The counter saturates only after 2^64 - 1 unread commands.
        self.queue.send(command).is_ok() && self.bell.write(1).is_ok()
    }

    /// Sends a command and waits for its answer; None when the worker has ended.
    pub(super) fn call<T>(&self, command: impl FnOnce(SyncSender<T>) -> Command) -> Option<T> {
        let (tx, rx) = sync_channel(1);
        if !self.send(command(tx)) {
            return None;
        }
        rx.recv().ok()
    }
}

impl Inbox {
    /// The descriptor that becomes readable when a command arrives.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The next command.
    pub(super) fn next(&self) -> Option<Command> {
        self.queue.try_recv().ok()
    }
}
