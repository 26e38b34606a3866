//! What peers open at the pod's ports: connections are accepted, a bounded number in each turn.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::Socket;

use super::{Entry, STEERED, rule_for};
use crate::counters::Reason;
use crate::flow::{Key, Kind};
use crate::port::{PortRule, Proto};
use crate::shared::Side;
use crate::sockets;
use crate::worker::receive::inbound::Origin;
use crate::worker::stream::is_exhausted;
use crate::worker::turn::{Worker, fd};

/// Connections accepted from one listener before the next has its turn.
const TAKES_PER_TURN: usize = 16;
/// Listeners that have a turn in one of the worker's: at most so many times [`TAKES_PER_TURN`] connections are accepted
/// before frames are carried again.
const LISTENERS_PER_TURN: usize = 8;
/// Listeners that are given to one poll(2): below the limit of descriptors of most processes.
const POLLED: usize = 512;
/// Turns of [`TAKES_PER_TURN`] that a listener has before a migration: more than can wait there.
const WAITING_TURNS: usize = 64;
/// Other source ports tried when the guest already has a connection from the rewritten address and port.
const PORT_TRIES: u16 = 256;
/// Where those start: the dynamic ports of RFC 6335.
const FIRST_DYNAMIC: u16 = 49_152;

/// How soon a listener is tried again that ran out of descriptors.
const LISTENER_RETRY: Duration = Duration::from_millis(100);

impl Worker {
    /// Descriptors ran out at a listener: no connection can be accepted for a while.
    pub(super) fn retry_listeners(&mut self) {
        self.counters.count_drop(Reason::SocketLimit);
        self.listening.retry.get_or_insert(self.now + LISTENER_RETRY);
    }

    /// A listener has something.
    pub(in crate::worker) fn on_listener(&mut self, index: u32) {
        let Some(Some(entry)) = self.listening.listeners.entries.get(index as usize) else { return };
        let rule = entry.rule;
        if rule.proto == Proto::Udp {
            return self.make_heard_ready(Origin::Listener(index));
        }
        if let Some(queued) = self.listening.listeners.queued(index)
            && !std::mem::replace(queued, true)
        {
            self.listening.listeners.knocking.push_back(index);
        }
    }

    /// Accepts connections, a bounded number in all and of each listener in turn: a port that is flooded delays the
    /// others by no more than that. True when more could be accepted at once.
    pub(in crate::worker) fn accept_some(&mut self) -> bool {
        for _ in 0..LISTENERS_PER_TURN.min(self.listening.listeners.knocking.len()) {
            if self.listening.retry.is_some() {
                return false;
            }
            let Some(index) = self.listening.listeners.knocking.pop_front() else { break };
            if let Some(queued) = self.listening.listeners.queued(index) {
                *queued = false;
            }
            // More may be there, and makes no new edge.
            if self.accept_from(index) {
                self.on_listener(index);
            }
        }
        self.listening.retry.is_none() && !self.listening.listeners.knocking.is_empty()
    }

    /// Accepts every connection that waits at a TCP listener: one that the kernel alone has accepted would be lost with it.
    pub(in crate::worker) fn accept_waiting(&mut self) {
        let runs = self.listening.silence.runs();
        let is_tcp = |e: &Entry| e.rule.proto == Proto::Tcp && e.accepts(runs);
        let all = 0..self.listening.listeners.entries.len() as u32;
        let tcp = |at: &u32| {
            self.listening.listeners.entries.get(*at as usize).is_some_and(|e| e.as_ref().is_some_and(is_tcp))
        };
        let listeners: Vec<u32> = all.filter(tcp).collect();
        for places in listeners.chunks(POLLED) {
            for at in self.knocked(places) {
                self.accept_all(at);
            }
        }
    }

    /// Accepts every connection that waits at one listener.
    pub(in crate::worker) fn accept_all(&mut self, at: u32) {
        for _ in 0..WAITING_TURNS {
            if self.listening.retry.is_some() || !self.accept_from(at) {
                break;
            }
        }
    }

    /// Those of the listeners at these places at which connections wait.
    fn knocked(&self, places: &[u32]) -> Vec<u32> {
        let socket = |at: &u32| {
            let entry = self.listening.listeners.entries.get(*at as usize)?.as_ref()?;
            Some((*at, PollFd::new(fd(&entry.socket.as_ref()?.socket), PollFlags::POLLIN)))
        };
        let (places, mut fds): (Vec<u32>, Vec<PollFd<'_>>) = places.iter().filter_map(socket).unzip();
        match poll(&mut fds, PollTimeout::ZERO) {
            Ok(0) => Vec::new(),
            Ok(_) => {
                let ready = |f: &PollFd<'_>| f.any().unwrap_or(true);
                places.into_iter().zip(&fds).filter(|(_, f)| ready(f)).map(|(at, _)| at).collect()
            }
            // Then each is asked.
            Err(_) => places,
        }
    }

    /// Accepts connections of one listener; true when there may be more.
    fn accept_from(&mut self, index: u32) -> bool {
        let runs = self.listening.silence.runs();
        for _ in 0..TAKES_PER_TURN {
            let entry = self.listening.listeners.entries.get(index as usize).and_then(Option::as_ref);
            let entry = entry.filter(|e| e.accepts(runs));
            let Some((rule, listener)) = entry.and_then(|e| Some((e.rule, e.socket.as_ref()?))) else {
                return false;
            };
            match sockets::accept(&listener.socket) {
                Ok((s, from)) if sockets::is_filler(&s, from) => {}
                Ok((s, from)) => {
                    if !listener.bequeaths
                        && let Err(error) = sockets::stream_options(&s, self.peek)
                    {
                        tracing::debug!(%from, %error, "socket options");
                        self.counters.count_drop(Reason::SocketLimit);
                        sockets::abort_on_close(&s);
                        continue;
                    }
                    let port = || s.local_addr().ok().and_then(|a| a.as_socket()).map_or(0, |a| a.port());
                    let rule = if rule.pod == STEERED { rule_for(rule, port()) } else { rule };
                    self.on_accepted(rule, s, from);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(e) if is_exhausted(&e) => {
                    self.retry_listeners();
                    return true;
                }
                // An error of one connection that is gone already (accept(2)).
                Err(error) => tracing::debug!(port = rule.pod, %error, "listener"),
            }
        }
        true
    }

    fn on_accepted(&mut self, rule: PortRule, socket: Socket, from: SocketAddr) {
        match self.assign(Kind::Tcp, rule, from) {
            Some(to) => self.pass_connection(to, rule, socket, from),
            None => self.on_assigned_connection(rule, socket, from),
        }
    }

    /// A connection that the pod has accepted, and that this worker is to have.
    pub(in crate::worker) fn on_assigned_connection(
        &mut self,
        rule: PortRule,
        socket: Socket,
        from: SocketAddr,
    ) {
        let opened = self.try_accepted(rule, from);
        match opened {
            Ok(key) => {
                if let Err(reason) = self.open_by_pod(key, socket, from) {
                    self.counters.count_drop(reason);
                }
            }
            Err(reason) => {
                tracing::debug!(port = rule.pod, %from, ?reason, "connection refused");
                self.counters.count_drop(reason);
                sockets::abort_on_close(&socket);
            }
        }
    }

    fn try_accepted(&mut self, rule: PortRule, from: SocketAddr) -> Result<Key, Reason> {
        let key = self.guest_key(Kind::Tcp, rule, from)?;
        // The rate first: what it refuses must not cost another flow its place.
        if !self.peers.shared.budget.admit(Side::Peer, self.now) {
            return Err(Reason::FlowRate);
        }
        if !self.has_room_for_flow(Side::Peer) {
            return Err(Reason::FlowLimit);
        }
        Ok(key)
    }

    /// The guest-visible tuple for a peer: its own address unless that overlaps, and then a port that no other
    /// overlapping peer has.
    pub(in crate::worker) fn guest_key(
        &mut self,
        kind: Kind,
        rule: PortRule,
        from: SocketAddr,
    ) -> Result<Key, Reason> {
        let link = &self.receiveq.link;
        let guest = link.guest_address(from.ip()).ok_or(Reason::NoGuest)?;
        let seen = link.source_for_guest(from.ip()).ok_or(Reason::NoGuest)?;
        let guest = SocketAddr::new(guest, rule.guest);
        let mut key = Key { kind, guest, peer: SocketAddr::new(seen, from.port()) };
        let mut port = FIRST_DYNAMIC.wrapping_add(self.now.as_micros() as u16 % (u16::MAX - FIRST_DYNAMIC));
        for _ in 0..PORT_TRIES {
            match self.flows.find(&key) {
                Some(id) if self.is_over(id) => {
                    self.flows.remove(id);
                    return Ok(key);
                }
                None if !self.peers.has_elsewhere(&key) => return Ok(key),
                _ => {}
            }
            key.peer.set_port(port);
            port = port.checked_add(1).unwrap_or(FIRST_DYNAMIC);
        }
        Err(Reason::TupleCollision)
    }
}
