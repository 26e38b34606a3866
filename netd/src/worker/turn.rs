//! The worker's variables and the turn of its loop.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use tokio::sync::watch;

use super::command::{Command, Inbox};
use super::echo::Echoes;
use super::flows::{Flow, Flows};
use super::guest::Guest;
use super::held::HoldBudget;
use super::life::Life;
use super::listening::Listening;
use super::listening::carriers::{Carriers, OutletId};
use super::pace::{NAP, Pace, Pause, Turn};
use super::peers::Peers;
use super::receive::{InHand, Origin, Queues, ReceiveQueue};
use super::refusals::Refusals;
use super::slow::Slow;
use super::source_ports::SourcePorts;
use super::spin::Met;
use super::transmit::Transmit;
use crate::control::RefusedFlows;
use crate::counters::Counters;
use crate::flow::{FlowId, Key};
use crate::guest::Services;
use crate::limits::{Limits, Timeouts};
use crate::net::Link;
use crate::ring::Ring;
use crate::sockets::PeekOffset;
use crate::sys::Waiter;
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
/// What a worker is made of.
pub(super) struct Parts {
    pub(super) limits: Limits,
    pub(super) timeouts: Timeouts,
    pub(super) link: Arc<Link>,
    pub(super) asks: bool,
    pub(super) counters: Arc<Counters>,
    pub(super) peek: PeekOffset,
    pub(super) spins: bool,
    pub(super) peers: Peers,
    pub(super) carriers: Arc<Carriers>,
    pub(super) source_ports: SourcePorts,
    pub(super) refused: watch::Sender<RefusedFlows>,
}

/// The worker. See the [module](super) for its theory. What its parts keep to themselves is private to the directory or file
/// that they stand in.
pub(super) struct Worker {
    pub(super) clock: Clock,
    pub(super) now: Time,
    pub(super) epoll: Arc<Epoll>,
    inbox: Inbox,
    /// It may spin; see [`super::spin`].
    spins: bool,
    /// The flows that turns have something of.
    pub(super) met: Met,
    pub(super) counters: Arc<Counters>,
    pub(super) timeouts: Timeouts,
    pub(super) life: Life,
    refusals: Refusals,
    pub(super) guest: Guest,
    pub(super) receiveq: ReceiveQueue,
    /// What has, or may have, something for the guest.
    pub(super) queues: Queues,
    /// What was received and waits for the guest's buffers.
    pub(super) in_hand: InHand,
    pub(super) tx: Transmit,
    pub(super) slow: Slow,
    pub(super) flows: Flows,
    /// Connections in TIME-WAIT by the side that opened them, the oldest first.
    pub(super) over: [VecDeque<FlowId>; 2],
    pub(super) hold_budget: HoldBudget,
    pub(super) echoes: Echoes,
    pub(super) peers: Peers,
    pub(super) peek: PeekOffset,
    pub(super) source_ports: SourcePorts,
    pub(super) listening: Listening,
    pub(super) carriers: Arc<Carriers>,
    /// Frames that netd makes itself, on their way to the receiveq.
    pub(super) frames: Vec<Vec<u8>>,
}

impl Worker {
    pub(super) fn new(parts: Parts, inbox: Inbox) -> io::Result<Self> {
        let Parts {
            limits,
            timeouts,
            link,
            asks,
            counters,
            peek,
            spins,
            peers,
            carriers,
            source_ports,
            refused,
        } = parts;
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
            spins,
            met: Met::default(),
            life: Life::new(now),
            refusals: Refusals::new(refused),
            receiveq: ReceiveQueue::new(link.clone(), counters.clone()),
            guest: Guest::new(link),
            queues: Queues::default(),
            in_hand: InHand::default(),
            tx: Transmit::default(),
            slow: Slow::new(&limits, workers, peers.index),
            flows: Flows::new(limits.flows, peers.shared.clone(), peers.index),
            over: [VecDeque::new(), VecDeque::new()],
            hold_budget: HoldBudget::default(),
            echoes: Echoes::default(),
            peek,
            source_ports,
            listening: Listening::new(asks),
            carriers,
            peers,
            frames: Vec::new(),
            counters,
            timeouts,
        })
    }

    /// Goes by another clock. No flow is here: what else waits for a moment begins anew.
    pub(super) fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
        self.now = clock.now();
        self.over.iter_mut().for_each(VecDeque::clear);
        self.listening.end_retry();
        self.peers.move_at = None;
        self.guest.services = Services::new();
        self.slow.forget_errors();
        self.listening.silence.put_off(self.now);
        self.forget_answers();
        self.tx.forget_owed();
        self.refusals.forget_times();
    }

    /// Waits for the next command of the mailbox.
    pub(super) fn next_command(&self) -> Option<Command> {
        self.inbox.wait()
    }

    /// Turns until a shutdown is asked for.
    pub(super) fn run(&mut self) {
        let mut events = vec![EpollEvent::empty(); EVENTS];
        let mut waiter = Waiter::new();
        let mut pace = Pace::new(self.spins);
        let mut pause = Pause::Look;
        if self.life.frozen {
            self.stand_still();
        }
        while self.life.running {
            let waited = match pause {
                Pause::None => Ok(0),
                Pause::Look => waiter.wait(&self.epoll, &mut events, Some(Duration::ZERO)),
                Pause::Spin => {
                    thread::yield_now();
                    waiter.wait(&self.epoll, &mut events, Some(Duration::ZERO))
                }
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
            self.tx.spinning = pause == Pause::Spin;
            for event in events.iter().take(n) {
                self.on_event(*event);
            }
            self.read_mail();
            self.on_deadlines();
            let mut more = self.transmit();
            self.flush_outboxes();
            more |= self.settle_silence();
            more |= self.watch_some();
            more |= self.accept_some();
            more |= self.serve_heard();
            more |= self.serve_ready();
            self.receiveq.flush_queue();
            self.receiveq.publish();
            if let Some(ring) = self.receiveq.broken.take() {
                self.unwatch_ring(&ring);
            }
            self.plan_move();
            self.refusals.log(&self.counters, self.flows.len(), self.now);
            more |= self.life.rung;
            let moved = self.tx.take_sent() + std::mem::take(&mut self.receiveq.moved);
            let turn =
                Turn { at: self.now, moved, worked: n > 0 || moved > 0, same: self.met.end_turn(), more };
            let next = pace.after(turn, waiter.is_fine());
            self.count_turn(pause, next, turn.worked);
            pause = next;
            if matches!(pause, Pause::Sleep | Pause::Nap) && self.tx.owes_before_sleep() {
                self.pay();
            }
            match pause {
                Pause::Sleep if self.rest() => pause = Pause::Look,
                Pause::Nap | Pause::Spin if self.rest_rx() => pause = Pause::Look,
                _ => {}
            }
        }
    }

    /// Counts the turn between two pauses; it had something to do if it `worked`.
    fn count_turn(&self, before: Pause, next: Pause, worked: bool) {
        if worked || before != Pause::Spin {
            self.counters.wakeups.add(1);
        }
        if before == Pause::Spin {
            self.counters.spins_found.add(u64::from(worked));
            self.counters.spins_in_vain.add(u64::from(!worked && next == Pause::Sleep));
        }
    }

    /// Before sleeping: kicks are asked for; true when there is more to do at once.
    fn rest(&mut self) -> bool {
        let tx = self.tx.request_kicks();
        self.rest_rx() || tx
    }

    /// The same for the receive ring, if something waits for more buffers than it has.
    fn rest_rx(&mut self) -> bool {
        let more = self.receiveq.starved && self.receiveq.rx.as_mut().is_some_and(Ring::request_more);
        if more {
            self.receiveq.feed();
        }
        more
    }

    fn timeout(&self) -> Option<Duration> {
        let next = [
            self.flows.next_deadline(),
            self.guest.services.poll_at(),
            self.slow.poll_at(),
            self.listening.retry_at(),
            self.listening.inquiry.poll_at(),
            self.listening.silence.poll_at(),
            self.peers.move_at,
            self.tx.due_at(),
        ];
        // Up to the next millisecond: deadlines that lie close together are one wake-up.
        let round = |d: Duration| Duration::from_millis(d.as_micros().div_ceil(1000) as u64);
        next.into_iter().flatten().min().map(|at| round(at.since(self.clock.now())))
    }

    fn on_event(&mut self, event: EpollEvent) {
        let token = event.data();
        match token >> TAG_SHIFT {
            tag::BELL => {
                self.life.rung = true;
            }
            tag::RX_KICK => {
                self.counters.guest_kicks.add(1);
                self.receiveq.feed();
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
            if !self.life.rung || !self.life.running {
                return;
            }
            match self.inbox.next() {
                Some(command) => self.on_command(command),
                None => self.life.rung = false,
            }
        }
    }

    fn on_flow_event(&mut self, id: FlowId, events: EpollFlags) {
        self.met.add(id);
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
        if self.guest.services.poll_at().is_some_and(|at| at <= self.now) {
            let link = self.receiveq.link.clone();
            self.guest.services.poll(self.now, &link, &mut self.frames);
            self.send_frames();
        }
        if self.slow.poll_at().is_some_and(|at| at <= self.now) {
            self.expire_fragments();
        }
        if self.peers.move_at.is_some_and(|at| at <= self.now) {
            self.move_flows();
        }
        if self.tx.due_at().is_some_and(|at| at <= self.now) {
            self.pay();
        }
        if self.listening.retry_at().is_some_and(|at| at <= self.now) {
            self.listening.end_retry();
        }
        if self.listening.inquiry.poll_at().is_some_and(|at| at <= self.now) {
            self.ask_guest();
        }
        self.listening.silence.poll(self.now);
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
            self.receiveq.queue(frame);
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
