//! UDP sockets that carry the flows of many peers, and which flows share them.
//!
//! # Theory of operation
//!
//! A socket for each peer, all bound to one port, would make each further bind() slower, as the kernel looks through
//! those that have the port. So a port has one socket, and netd sorts by the sender:
//!
//! | flows | socket | what comes to it |
//! |---|---|---|
//! | of a forwarded port's peers | the port's listener | everything |
//! | of a steered port's peers | an *outlet* that only sends | nothing: the steered socket has it |
//! | that the guest begins from one port with more than [`OWN`] peers | an *outlet* that also hears | what the peers answer |
//!
//! The first flows from a port of the guest have connected sockets of their own, as a resolver's have: the kernel sorts
//! for them. An outlet exists for as long as a flow has a [`Lease`] of it.
//!
//! An outlet that only sends is connected, to its own port at the loopback address: so the kernel gives it no other
//! peer's datagrams, which are a listener's or the steered socket's, and the helper that steers ports does not take it
//! for a server's socket. What it sends names address and peer each time. An ICMP error about that comes to the steered
//! socket as well and tells the peer, but not the port.
//!
//! What many workers' flows share is in one place with a lock that is taken when a flow opens or ends. A socket itself
//! is used by all of them at once; what it is set to before a send is behind a lock of its own, which they only take
//! exclusively when it changes. Worker 0 hears for all; see [`crate::worker::peers`].

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use socket2::{Domain, Socket};

use super::MAX_ENTRIES;
use crate::config::ports::Ports;
use crate::port::{PortRule, Proto};
use crate::sockets;
use crate::udp::SendOptions;
use crate::worker::datagrams::apply;
use crate::worker::turn::{TAG_SHIFT, tag};

/// Flows from one port of the guest that have sockets of their own.
const OWN: u32 = 16;

/// A socket of one of the pod's ports.
pub(in crate::worker) struct PortSocket {
    socket: Socket,
    /// Which ports it joins.
    pub(in crate::worker) pod: u16,
    pub(in crate::worker) guest: u16,
    /// By which name a successor knows it: a listener's place, or an outlet's behind all of those.
    pub(in crate::worker) place: u32,
    /// See [`PortSocket::dual`].
    dual: OnceLock<bool>,
    /// What it is set to send, for IPv6 and IPv4.
    set: RwLock<[Option<SendOptions>; 2]>,
}

impl PortSocket {
    /// No system call is made.
    pub(in crate::worker) fn new(socket: Socket, rule: PortRule, place: u32) -> PortSocket {
        let PortRule { pod, guest, .. } = rule;
        PortSocket { socket, pod, guest, place, dual: OnceLock::new(), set: RwLock::default() }
    }

    /// Whether it is IPv6 that carries IPv4 as well.
    pub(in crate::worker) fn dual(&self) -> bool {
        let dual = || {
            let v6 = self.socket.domain().is_ok_and(|domain| domain == Domain::IPV6);
            v6 && !self.socket.only_v6().unwrap_or(false)
        };
        *self.dual.get_or_init(dual)
    }

    /// Whether it is a listener's.
    pub(in crate::worker) fn listens(&self) -> bool {
        (self.place as usize) < MAX_ENTRIES
    }

    /// Sends by `send` while the socket is set to what a family's datagrams need.
    pub(in crate::worker) fn prepared<T>(
        &self,
        v4: bool,
        options: SendOptions,
        send: impl FnOnce() -> T,
    ) -> T {
        let at = usize::from(v4);
        {
            let set = self.set.read().unwrap_or_else(PoisonError::into_inner);
            if set[at] == Some(options) {
                return send();
            }
        }
        let mut set = self.set.write().unwrap_or_else(PoisonError::into_inner);
        if set[at].replace(options) != Some(options) {
            apply(self.socket.as_fd(), any(v4), options);
        }
        send()
    }
}

impl Deref for PortSocket {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        &self.socket
    }
}

impl AsFd for PortSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn any(v4: bool) -> IpAddr {
    if v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// Which outlet: a port, a family, and whether it hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::worker) struct OutletId(u32);

impl OutletId {
    const V4: u32 = 1 << 16;
    const HEARS: u32 = 1 << 17;

    fn new(port: u16, v4: bool, hears: bool) -> OutletId {
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        OutletId(u32::from(port) | bit(v4, Self::V4) | bit(hears, Self::HEARS))
    }

    /// The outlet in a token, or a successor's name, made of it.
    pub(in crate::worker) fn from_bits(bits: u32) -> OutletId {
        OutletId(bits % (2 * Self::HEARS))
    }

    /// Which outlet has this name; none: it is a listener's place.
    pub(in crate::worker) fn from_place(place: u32) -> Option<OutletId> {
        let bits = place.checked_sub(MAX_ENTRIES as u32)?;
        (bits < 2 * Self::HEARS).then_some(OutletId(bits))
    }

    fn place(self) -> u32 {
        MAX_ENTRIES as u32 + self.0
    }

    /// Whether it is one for flows of this port of the guest and family.
    pub(in crate::worker) fn is_of(self, port: u16, v4: bool) -> bool {
        self.port() == port && self.v4() == v4
    }

    /// Its port, of the pod and of the guest.
    pub(in crate::worker) fn port(self) -> u16 {
        self.0 as u16
    }

    fn v4(self) -> bool {
        self.0 & Self::V4 != 0
    }

    fn hears(self) -> bool {
        self.0 & Self::HEARS != 0
    }
}

/// A socket that carries a flow.
pub(in crate::worker) struct Carrier {
    pub(in crate::worker) socket: Arc<PortSocket>,
    /// None: it is a listener's, whose end ends the flow's use of it.
    _lease: Option<Lease>,
}

/// A flow's part in something that ends with the last flow.
pub(in crate::worker) struct Lease {
    carriers: Arc<Carriers>,
    of: Leased,
}

#[derive(Clone, Copy)]
enum Leased {
    Outlet(OutletId),
    /// The number of own sockets from a port of the guest.
    Own(u16),
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.carriers.release(self.of);
    }
}

/// All of them.
#[derive(Default)]
pub(in crate::worker) struct Carriers {
    spec: Ports,
    state: Mutex<State>,
    /// Worker 0's.
    epoll: OnceLock<Arc<Epoll>>,
}

#[derive(Default)]
struct State {
    /// UDP listeners by their places, and the place of each port of the pod.
    listeners: HashMap<u32, Arc<PortSocket>>,
    places: HashMap<u16, u32>,
    /// With the number of leases.
    outlets: HashMap<OutletId, (Arc<PortSocket>, u32)>,
    own: HashMap<u16, u32>,
}

impl Carriers {
    /// None yet, in a pod whose ports are configured so.
    pub(in crate::worker) fn new(spec: Ports) -> Carriers {
        Carriers { spec, ..Carriers::default() }
    }

    /// The pod's port for datagrams that the guest sends from `port`; zero: the kernel chooses. A reserved port belongs to
    /// another program of the pod, which may start later.
    pub(in crate::worker) fn source_port(&self, port: u16) -> u16 {
        if self.spec.reserved.contains(Proto::Udp, port) { 0 } else { port }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker with this epoll hears the outlets.
    pub(in crate::worker) fn heard_by(&self, epoll: Arc<Epoll>) {
        // There is one worker 0.
        let _ = self.epoll.set(epoll);
    }

    /// A UDP port is forwarded.
    pub(in crate::worker) fn add_listener(&self, socket: Arc<PortSocket>) {
        let mut state = self.state();
        state.places.insert(socket.pod, socket.place);
        state.listeners.insert(socket.place, socket);
    }

    /// A UDP port is no longer forwarded.
    pub(in crate::worker) fn remove_listener(&self, pod: u16) {
        let mut state = self.state();
        if let Some(place) = state.places.remove(&pod) {
            state.listeners.remove(&place);
        }
    }

    /// The place of a forwarded port.
    pub(in crate::worker) fn place_of(&self, pod: u16) -> Option<u32> {
        self.state().places.get(&pod).copied()
    }

    /// What carries a flow that came by `rule`: the listener, or an outlet of a port that is steered.
    pub(in crate::worker) fn for_peer(self: &Arc<Self>, rule: PortRule, v4: bool) -> io::Result<Carrier> {
        let mut state = self.state();
        match state.listener(rule.pod).filter(|l| l.guest == rule.guest) {
            Some(listener) => Ok(Carrier { socket: listener.clone(), _lease: None }),
            None => self.outlet_in(&mut state, OutletId::new(rule.pod, v4, false)),
        }
    }

    /// What carries a flow that the guest has begun from `port` and that has no socket of its own.
    pub(in crate::worker) fn for_guest(self: &Arc<Self>, port: u16, v4: bool) -> io::Result<Carrier> {
        let mut state = self.state();
        match state.listener(port).filter(|l| l.guest == port) {
            Some(listener) => Ok(Carrier { socket: listener.clone(), _lease: None }),
            None => self.outlet_in(&mut state, OutletId::new(port, v4, true)),
        }
    }

    /// What carries a flow that a predecessor had by this name.
    pub(in crate::worker) fn by_place(self: &Arc<Self>, place: u32) -> io::Result<Carrier> {
        let mut state = self.state();
        match OutletId::from_place(place) {
            Some(id) => self.outlet_in(&mut state, id),
            None => {
                let listener = state.listeners.get(&place).ok_or(io::ErrorKind::NotFound)?;
                Ok(Carrier { socket: listener.clone(), _lease: None })
            }
        }
    }

    fn outlet_in(self: &Arc<Self>, state: &mut State, id: OutletId) -> io::Result<Carrier> {
        if !state.outlets.contains_key(&id) {
            // The port of a listener that leads to another port of the guest is not to be had: it would no longer hear.
            let taken = id.hears() && state.listener(id.port()).is_some();
            let port = if taken { 0 } else { self.source_port(id.port()) };
            let socket = sockets::udp_outlet(any(id.v4()), port, id.hears())?;
            self.put(state, id, socket)?;
        }
        let (socket, leases) = state.outlets.get_mut(&id).ok_or(io::ErrorKind::NotFound)?;
        *leases += 1;
        let lease = Lease { carriers: self.clone(), of: Leased::Outlet(id) };
        Ok(Carrier { socket: socket.clone(), _lease: Some(lease) })
    }

    fn put(&self, state: &mut State, id: OutletId, socket: Socket) -> io::Result<()> {
        if let Some(epoll) = self.epoll.get() {
            let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
            epoll.add(&socket, EpollEvent::new(flags, tag::OUTLET << TAG_SHIFT | u64::from(id.0)))?;
        }
        let rule = PortRule { proto: Proto::Udp, pod: id.port(), guest: id.port() };
        state.outlets.insert(id, (Arc::new(PortSocket::new(socket, rule, id.place())), 0));
        Ok(())
    }

    /// Leave to open one more flow with a socket of its own from `port` of the guest; none: there are enough.
    pub(in crate::worker) fn own(self: &Arc<Self>, port: u16) -> Option<Lease> {
        let mut state = self.state();
        let flows = state.own.entry(port).or_insert(0);
        if *flows >= OWN {
            return None;
        }
        *flows += 1;
        drop(state);
        Some(Lease { carriers: self.clone(), of: Leased::Own(port) })
    }

    /// Counts a flow with a socket of its own that there is already.
    pub(in crate::worker) fn count_own(self: &Arc<Self>, port: u16) -> Lease {
        *self.state().own.entry(port).or_insert(0) += 1;
        Lease { carriers: self.clone(), of: Leased::Own(port) }
    }

    fn release(&self, of: Leased) {
        let mut state = self.state();
        let gone = match of {
            Leased::Outlet(id) => {
                let last = state.outlets.get_mut(&id).is_some_and(|(_, leases)| {
                    *leases = leases.saturating_sub(1);
                    *leases == 0
                });
                if last { state.outlets.remove(&id) } else { None }
            }
            Leased::Own(port) => {
                let last = state.own.get_mut(&port).is_some_and(|n| {
                    *n = n.saturating_sub(1);
                    *n == 0
                });
                if last {
                    state.own.remove(&port);
                }
                None
            }
        };
        drop(state);
        // Closed without the lock.
        drop(gone);
    }

    /// The outlet's socket, to receive by.
    pub(in crate::worker) fn outlet(&self, id: OutletId) -> Option<Arc<PortSocket>> {
        self.state().outlets.get(&id).map(|(socket, _)| socket.clone())
    }

    /// Every outlet.
    pub(in crate::worker) fn outlets(&self) -> Vec<Arc<PortSocket>> {
        self.state().outlets.values().map(|(socket, _)| socket.clone()).collect()
    }

    /// Ports of a family by which steered ports' flows are answered, at most so many.
    pub(in crate::worker) fn steered_ports(&self, v4: bool, most: usize) -> Vec<u16> {
        let state = self.state();
        let ids = state.outlets.keys().filter(|id| !id.hears() && id.v4() == v4);
        ids.map(|id| id.port()).take(most).collect()
    }

    /// Takes in a predecessor's outlet.
    pub(in crate::worker) fn restore(&self, place: u32, socket: OwnedFd) -> io::Result<()> {
        let id = OutletId::from_place(place).ok_or(io::ErrorKind::InvalidData)?;
        self.put(&mut self.state(), id, socket.into())
    }

    /// Closes outlets of a predecessor that no flow has taken.
    pub(in crate::worker) fn close_unused(&self) {
        self.state().outlets.retain(|_, (_, leases)| *leases > 0);
    }
}

impl State {
    fn listener(&self, pod: u16) -> Option<&Arc<PortSocket>> {
        self.listeners.get(self.places.get(&pod)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(carriers: &Carriers) -> usize {
        carriers.state().outlets.len()
    }

    #[test]
    fn an_outlet_is_one_socket_for_all_its_flows_and_ends_with_the_last() {
        let carriers: Arc<Carriers> = Arc::default();
        let rule = PortRule { proto: Proto::Udp, pod: 40_053, guest: 40_053 };
        let flows: Vec<Carrier> = (0..100).map(|_| carriers.for_peer(rule, true).unwrap()).collect();
        assert_eq!(open(&carriers), 1);
        assert!(flows.iter().all(|f| Arc::ptr_eq(&f.socket, &flows[0].socket)));
        let local = flows[0].socket.local_addr().unwrap().as_socket().unwrap();
        assert_eq!(local.port(), 40_053);
        assert!(flows[0].socket.peer_addr().is_ok(), "it hears");
        let hears = carriers.for_guest(40_053, true).unwrap();
        assert!(hears.socket.peer_addr().is_err(), "it does not hear");
        assert_eq!(open(&carriers), 2);
        drop(flows);
        assert_eq!(open(&carriers), 1);
        drop(hears);
        assert_eq!(open(&carriers), 0);
    }

    #[test]
    fn the_first_flows_from_a_port_have_sockets_of_their_own() {
        let carriers: Arc<Carriers> = Arc::default();
        let mut own: Vec<Lease> = std::iter::from_fn(|| carriers.own(7)).take(100).collect();
        assert_eq!(own.len(), OWN as usize);
        assert!(carriers.own(8).is_some());
        own.pop();
        assert!(carriers.own(7).is_some());
        drop(own);
        assert!(carriers.state().own.is_empty());
    }

    #[test]
    fn names_of_outlets_are_behind_those_of_listeners() {
        for (port, v4, hears) in [(0, false, false), (u16::MAX, true, true), (53, true, false)] {
            let id = OutletId::new(port, v4, hears);
            assert_eq!(OutletId::from_place(id.place()), Some(id));
            assert_eq!(OutletId::from_bits(id.0), id);
            assert_eq!((id.port(), id.v4(), id.hears()), (port, v4, hears));
        }
        assert_eq!(OutletId::from_place(MAX_ENTRIES as u32 - 1), None);
        assert_eq!(OutletId::from_place(u32::MAX), None);
    }
}
