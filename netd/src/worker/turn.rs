//! The worker's variables and the turn of its loop.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::carriers::{Carriers, OutletId};
use super::command::{Command, Inbox};
use super::flows::{Flow, Flows};
use super::gather::Gathers;
use super::held::HoldBudget;
use super::inbound::{Inbound, Origin};
use super::inquiry::Inquiry;
use super::listen::Listeners;
use super::outbound::Outbound;
use super::pace::{NAP, Owed, Pace, Pause};
use super::peers::Peers;
use super::port::Port;
use crate::counters::{Counters, Reason};
use crate::flow::{FlowId, Key};
use crate::frag::{self, Reassembler};
use crate::guest::Services;
use crate::icmp::ErrorLimiter;
use crate::limits::{Limits, Timeouts};
use crate::net::{Home, Link};
use crate::ring::{Iovs, Ring};
use crate::sockets::PeekOffset;
use crate::sys::{ReceiveBatch, Waiter};
use crate::time::{Clock, Time};

/// Index of the ring that the guest receives by.
pub(super) const RX: usize = 0;
/// Index of the ring that the guest transmits by.
pub(super) const TX: usize = 1;

/// What an epoll event speaks of, in the top byte of its token.
pub(super) mod tag {
    pub(in crate::worker) const BELL: u64 = 1;
    pub(in crate::worker) const RX_KICK: u64 = 2;
    pub(in crate::worker) const TX_KICK: u64 = 3;
    pub(in crate::worker) const LISTENER: u64 = 4;
    pub(in crate::worker) const FLOW: u64 = 5;
    pub(in crate::worker) const OUTLET: u64 = 6;
}
/// Where the tag stands in a token.
pub(super) const TAG_SHIFT: u32 = 56;

/// Events taken from epoll at once.
const EVENTS: usize = 256;
/// Commands of the mailbox carried out in one turn: other workers can fill it as fast as they receive.
const COMMANDS_PER_TURN: usize = 64;
/// ICMP errors to the guest: RFC 1812 4.3.2.8 asks for a limit; these are Linux's icmp_msgs_per_sec and burst.
const ERRORS_PER_SECOND: u32 = 1000;
/// See [`ERRORS_PER_SECOND`].
const ERRORS_BURST: u32 = 50;
/// Workers there can be, a power of two: fragments have 16-bit names in IPv4, and each worker its part of them.
const MAX_PAIRS: u32 = crate::limits::MAX_QUEUE_PAIRS as u32;
/// How soon a listener is tried again that ran out of descriptors.
const LISTENER_RETRY: Duration = Duration::from_millis(100);

/// Names of datagrams that are cut for the guest.
pub(super) struct FragmentIds(u32);

impl FragmentIds {
    /// The last name, for a successor.
    pub(super) fn last(&self) -> u32 {
        self.0
    }

    /// Goes on behind the names of a predecessor.
    pub(super) fn restore(&mut self, last: u32) {
        self.0 = last / MAX_PAIRS * MAX_PAIRS + self.0 % MAX_PAIRS;
    }

    /// A name that no other worker uses.
    pub(super) fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(MAX_PAIRS);
        self.0
    }
}

/// What a worker is made of.
pub(super) struct Parts {
    pub(super) limits: Limits,
    pub(super) timeouts: Timeouts,
    pub(super) link: Arc<Link>,
    pub(super) asks: bool,
    pub(super) counters: Arc<Counters>,
    pub(super) peek: PeekOffset,
    pub(super) peers: Peers,
    pub(super) carriers: Arc<Carriers>,
}

/// The worker. See the [module](super) for its theory.
pub(super) struct Worker {
    pub(super) clock: Clock,
    pub(super) now: Time,
    pub(super) epoll: Arc<Epoll>,
    inbox: Inbox,
    pub(super) counters: Arc<Counters>,
    pub(super) timeouts: Timeouts,
    pub(super) port: Port,
    /// The link as the pod has it; the port has it as the guest does.
    pub(super) own: Arc<Link>,
    /// What the guest had configured when it came from elsewhere.
    pub(super) homes: Vec<Home>,
    pub(super) tx: Option<Ring>,
    /// The driver has taken the transmit ring out of use.
    pub(super) discards: bool,
    pub(super) features: u64,
    pub(super) connected: bool,
    /// The present frontend has shown the guest's Ethernet address.
    pub(super) station_seen: bool,
    pub(super) flows: Flows,
    pub(super) peers: Peers,
    pub(super) peek: PeekOffset,
    pub(super) listeners: Listeners,
    /// The guest is asked on which ports it listens.
    pub(super) asks: bool,
    pub(super) inquiry: Inquiry,
    pub(super) carriers: Arc<Carriers>,
    /// Outlets that wait in a queue of what has something for the guest.
    pub(super) outlets_queued: HashSet<OutletId>,
    /// Until when nobody is accepted.
    pub(super) listeners_retry: Option<Time>,
    pub(super) services: Services,
    pub(super) fragments: Reassembler,
    pub(super) fragment_ids: FragmentIds,
    pub(super) errors: ErrorLimiter,
    /// Flows, UDP listeners and outlets that have, or may have, something for the guest.
    pub(super) ready: VecDeque<Origin>,
    /// With several pairs the UDP listeners and outlets, which do not wait for the guest's buffers; see [`Worker::serve_heard`].
    pub(super) heard: VecDeque<Origin>,
    /// Connections in TIME-WAIT by who opened them, the oldest first.
    pub(super) over: [VecDeque<FlowId>; 2],
    /// Flows that this batch of the transmit ring has touched.
    pub(super) touched: Vec<FlowId>,
    pub(super) gathers: Gathers,
    /// Slices of the chains popped from the transmit ring since the last flush.
    pub(super) slices: Iovs,
    pub(super) none: Iovs,
    pub(super) heads: Vec<u16>,
    /// Chains of this batch that held nothing but acknowledgements.
    pub(super) bare: usize,
    /// The transmit ring's interrupt.
    pub(super) owed: Owed,
    pub(super) hold_budget: HoldBudget,
    /// Bytes taken from the transmit ring in this turn.
    pub(super) sent: usize,
    pub(super) inbound: Inbound,
    /// In place of `inbound` for UDP listeners, where there are other pairs.
    pub(super) arrivals: Inbound,
    pub(super) outbound: Outbound,
    pub(super) echoes: ReceiveBatch,
    /// The log has a refused ping socket.
    pub(super) ping_refused: bool,
    pub(super) frames: Vec<Vec<u8>>,
    pub(super) running: bool,
    /// The mailbox may hold commands.
    rung: bool,
    /// See [`super::freeze`].
    pub(super) frozen: bool,
    /// Its state has been given: nothing may change it any more until it is thawed.
    pub(super) packed: bool,
    /// When the clock was started that this one goes on.
    pub(super) started: Time,
}

impl Worker {
    pub(super) fn new(parts: Parts, inbox: Inbox) -> io::Result<Self> {
        let Parts { limits, timeouts, link, asks, counters, peek, peers, carriers } = parts;
        let clock = peers.shared.clock;
        let now = clock.now();
        // A datagram's fragments come by one ring: each worker has its part of the bounds.
        let workers = peers.count();
        let epoll = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
        if peers.index == 0 {
            carriers.heard_by(epoll.clone());
        }
        epoll.add(
            inbox.bell(),
            EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, tag::BELL << TAG_SHIFT),
        )?;
        Ok(Worker {
            clock,
            now,
            epoll,
            inbox,
            port: Port::new(link.clone(), counters.clone()),
            own: link,
            homes: Vec::new(),
            tx: None,
            discards: false,
            features: 0,
            connected: false,
            station_seen: false,
            flows: Flows::new(limits.flows, peers.shared.clone(), peers.index),
            peek,
            listeners: Listeners::default(),
            asks,
            inquiry: Inquiry::default(),
            carriers,
            outlets_queued: HashSet::new(),
            listeners_retry: None,
            services: Services::new(),
            fragments: Reassembler::new(frag::Limits {
                max_datagrams: limits.fragment_datagrams.div_ceil(workers),
                max_bytes: limits.fragment_bytes.div_ceil(workers),
            }),
            fragment_ids: FragmentIds(peers.index as u32),
            peers,
            errors: ErrorLimiter::new(ERRORS_PER_SECOND, ERRORS_BURST),
            ready: VecDeque::new(),
            heard: VecDeque::new(),
            over: [VecDeque::new(), VecDeque::new()],
            touched: Vec::new(),
            gathers: Gathers::default(),
            slices: Iovs::new(),
            none: Iovs::new(),
            heads: Vec::new(),
            bare: 0,
            owed: Owed::default(),
            hold_budget: HoldBudget::default(),
            sent: 0,
            inbound: Inbound::default(),
            arrivals: Inbound::default(),
            outbound: Outbound::default(),
            echoes: ReceiveBatch::default(),
            ping_refused: false,
            frames: Vec::new(),
            running: true,
            rung: false,
            frozen: false,
            packed: false,
            started: now,
            counters,
            timeouts,
        })
    }

    /// Goes by another clock. No flow is here: what else waits for a moment begins anew.
    pub(super) fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
        self.now = clock.now();
        self.over.iter_mut().for_each(VecDeque::clear);
        self.listeners_retry = None;
        self.peers.move_at = None;
        self.services = Services::new();
        self.errors = ErrorLimiter::new(ERRORS_PER_SECOND, ERRORS_BURST);
        self.forget_answers();
        self.owed = Owed::default();
    }

    /// Waits for the next command of the mailbox.
    pub(super) fn next_command(&self) -> Option<Command> {
        self.inbox.wait()
    }

    /// Turns until a shutdown is asked for.
    pub(super) fn run(&mut self) {
        let mut events = vec![EpollEvent::empty(); EVENTS];
        let mut waiter = Waiter::new();
        let mut pace = Pace::default();
        let mut pause = Pause::Look;
        if self.frozen {
            self.stand_still();
        }
        while self.running {
            let waited = match pause {
                Pause::None => Ok(0),
                Pause::Look => waiter.wait(&self.epoll, &mut events, Some(Duration::ZERO)),
                Pause::Nap => waiter.wait(&self.epoll, &mut events, Some(NAP)),
                Pause::Sleep => {
                    let timeout = self.timeout();
                    waiter.wait(&self.epoll, &mut events, timeout)
                }
            };
            let n = match waited {
                Ok(n) => n,
                Err(error) => {
                    tracing::error!(%error, "epoll_wait");
                    return;
                }
            };
            self.now = self.clock.now();
            self.counters.wakeups.add(1);
            for event in events.iter().take(n) {
                self.on_event(*event);
            }
            self.read_mail();
            self.on_deadlines();
            let mut more = self.transmit();
            self.flush_outboxes();
            more |= self.watch_some();
            more |= self.accept_some();
            more |= self.serve_heard();
            more |= self.serve_ready();
            self.port.flush_queue();
            self.port.publish();
            self.plan_move();
            more |= self.rung;
            let moved = std::mem::take(&mut self.sent) + std::mem::take(&mut self.port.moved);
            pause = pace.after(self.now, moved, more, waiter.is_fine());
            match pause {
                Pause::Sleep if self.rest() => pause = Pause::Look,
                Pause::Nap if self.rest_rx() => pause = Pause::Look,
                _ => {}
            }
        }
    }

    /// Before sleeping: kicks are asked for; true when there is more to do at once.
    fn rest(&mut self) -> bool {
        let tx = self.tx.as_mut().is_some_and(Ring::request_kicks);
        self.rest_rx() || tx
    }

    /// The same for the receive ring, if something waits for more buffers than it has.
    fn rest_rx(&mut self) -> bool {
        let more = self.port.starved && self.port.rx.as_mut().is_some_and(Ring::request_more);
        if more {
            self.port.feed();
        }
        more
    }

    fn timeout(&self) -> Option<Duration> {
        let next = [
            self.flows.next_deadline(),
            self.services.poll_at(),
            self.fragments.poll_at(),
            self.listeners_retry,
            self.inquiry.poll_at(),
            self.peers.move_at,
            self.owed.due_at(),
        ];
        // Up to the next millisecond: deadlines that lie close together are one wake-up.
        let round = |d: Duration| Duration::from_millis(d.as_micros().div_ceil(1000) as u64);
        next.into_iter().flatten().min().map(|at| round(at.since(self.clock.now())))
    }

    fn on_event(&mut self, event: EpollEvent) {
        let token = event.data();
        match token >> TAG_SHIFT {
            tag::BELL => {
                self.rung = true;
            }
            tag::RX_KICK => {
                self.counters.guest_kicks.add(1);
                self.port.feed();
            }
            tag::TX_KICK => self.counters.guest_kicks.add(1),
            tag::LISTENER => self.on_listener(token as u32),
            tag::OUTLET => self.make_heard_ready(Origin::Outlet(OutletId::from_bits(token as u32))),
            tag::FLOW => self.on_flow_event(FlowId::from_token(token), event.events()),
            _ => {}
        }
    }

    /// Carries out commands of the mailbox. The bell rings once for all that are there: what is left is remembered.
    fn read_mail(&mut self) {
        for _ in 0..COMMANDS_PER_TURN {
            if !self.rung || !self.running {
                return;
            }
            match self.inbox.next() {
                Some(command) => self.on_command(command),
                None => self.rung = false,
            }
        }
    }

    fn on_flow_event(&mut self, id: FlowId, events: EpollFlags) {
        match self.flows.get_mut(id) {
            Some(Flow::Tcp(_)) => self.on_stream_event(id, events),
            Some(Flow::Udp(_) | Flow::Echo(_)) => {
                if events.contains(EpollFlags::EPOLLERR) {
                    self.on_datagram_errors(id);
                }
                self.make_ready(id);
            }
            None => {}
        }
    }

    fn on_deadlines(&mut self) {
        while let Some(id) = self.flows.due(self.now) {
            match self.flows.get_mut(id) {
                Some(Flow::Tcp(_)) => self.on_stream_deadline(id),
                Some(Flow::Udp(f)) => {
                    let at = f.life.expires();
                    self.expire(id, at);
                }
                Some(Flow::Echo(f)) => {
                    let at = f.life.expires();
                    self.expire(id, at);
                }
                None => {}
            }
        }
        if self.services.poll_at().is_some_and(|at| at <= self.now) {
            let link = self.port.link.clone();
            self.services.poll(self.now, &link, &mut self.frames);
            self.send_frames();
        }
        if self.fragments.poll_at().is_some_and(|at| at <= self.now) {
            self.expire_fragments();
        }
        if self.peers.move_at.is_some_and(|at| at <= self.now) {
            self.move_flows();
        }
        if self.owed.is_due(self.now) {
            self.pay();
        }
        if self.listeners_retry.is_some_and(|at| at <= self.now) {
            self.listeners_retry = None;
        }
        if self.inquiry.poll_at().is_some_and(|at| at <= self.now) {
            self.ask_guest();
        }
    }

    /// Descriptors ran out at a listener: nobody can be accepted for a while.
    pub(super) fn retry_listeners(&mut self) {
        self.counters.count_drop(Reason::SocketLimit);
        self.listeners_retry.get_or_insert(self.now + LISTENER_RETRY);
    }

    /// Sends the interrupt of the transmit ring that is owed.
    pub(super) fn pay(&mut self) {
        if self.owed.settle()
            && let Some(ring) = &self.tx
        {
            ring.signal();
            self.counters.guest_interrupts.add(1);
        }
    }

    /// Ends a datagram flow whose time has come, or waits on.
    fn expire(&mut self, id: FlowId, at: Time) {
        if at <= self.now {
            self.flows.remove(id);
        } else {
            self.flows.arm(id, at);
        }
    }

    /// Watches a listener.
    pub(super) fn watch_listener(&self, fd: BorrowedFd<'_>, index: u32) -> io::Result<()> {
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        Ok(self.epoll.add(fd, EpollEvent::new(flags, tag::LISTENER << TAG_SHIFT | u64::from(index)))?)
    }

    /// An initial sequence number.
    pub(super) fn initial_sequence(&self, key: &Key) -> u32 {
        self.peers.shared.initial_sequence(key, self.now)
    }

    /// Queues the frames that services made.
    pub(super) fn send_frames(&mut self) {
        for frame in self.frames.drain(..) {
            self.port.queue(frame);
        }
    }
}

/// The descriptor of a socket, for calls that borrow it.
pub(super) fn fd<S: AsFd>(s: &S) -> BorrowedFd<'_> {
    s.as_fd()
}

fn flow_event(id: FlowId) -> EpollEvent {
    let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLPRI | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP;
    EpollEvent::new(flags | EpollFlags::EPOLLET, tag::FLOW << TAG_SHIFT | id.to_token())
}

/// Watches a flow's socket, by edges.
pub(super) fn watch(epoll: &Epoll, fd: BorrowedFd<'_>, id: FlowId) -> io::Result<()> {
    Ok(epoll.add(fd, flow_event(id))?)
}

/// Watches a datagram flow's socket for what comes in and for errors, by edges. Datagrams that a full socket does not
/// take are lost, so room in it is no news; the kernel would tell of it after each one that was sent.
pub(super) fn watch_input(epoll: &Epoll, fd: BorrowedFd<'_>, id: FlowId) -> io::Result<()> {
    let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
    Ok(epoll.add(fd, EpollEvent::new(flags, tag::FLOW << TAG_SHIFT | id.to_token()))?)
}

/// Makes epoll look at a flow's socket again: if it is not writable now, the kernel will tell when it is.
pub(super) fn watch_again(epoll: &Epoll, fd: BorrowedFd<'_>, id: FlowId) {
    if let Err(error) = epoll.modify(fd, &mut flow_event(id)) {
        tracing::debug!(%error, "epoll_ctl");
    }
}
