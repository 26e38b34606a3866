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
//! The first flows from a port of the guest have sockets of their own, as a resolver's have: connected, so that the kernel sorts
//! for them. But the first of them is *open* where nothing else hears the port, which is so for ephemeral ports: it is not connected, and
//! hears other peers as well. A server may answer from another port than it was asked at (TFTP, RFC 1350, section 4), and a guest's
//! socket may be spoken to by a peer that it has not asked (STUN, RFC 8489). Who is let in is said by [`Carriers::admits`].
//! An outlet exists for as long as a flow has a [`Lease`] of it.
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
use crate::pod;
use crate::port::{PortRange, PortRule, Proto};
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
    /// The port of the guest and the peer's address, where the guest speaks to it; apart, for a flow to be small.
    speaks: Option<Box<(u16, IpAddr)>>,
}

impl Lease {
    /// Whether it is of the socket that hears other peers as well.
    pub(in crate::worker) fn is_open(&self) -> bool {
        matches!(self.of, Leased::Own { open: true, .. })
    }
}

#[derive(Clone, Copy)]
enum Leased {
    Outlet(OutletId),
    /// The number of own sockets from a port of the guest, and whether it is the open one.
    Own {
        port: u16,
        v4: bool,
        open: bool,
    },
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.carriers.release(self.of, self.speaks.as_deref());
    }
}

/// All of them.
#[derive(Default)]
pub(in crate::worker) struct Carriers {
    spec: Ports,
    /// The pod's ephemeral ports, which are not steered.
    ephemeral: Option<PortRange>,
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
    /// By port and whether IPv4.
    own: HashMap<(u16, bool), Own>,
    /// How many flows there are from a port of the guest to an address, of those that have leases.
    spoken_to: HashMap<(u16, IpAddr), u32>,
}

/// Sockets of their own that flows from one port of the guest have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Own {
    flows: u32,
    /// One of them is open.
    open: bool,
}

impl Carriers {
    /// None yet, in a pod whose ports are configured so.
    pub(in crate::worker) fn new(spec: Ports) -> Carriers {
        Carriers { spec, ephemeral: pod::ephemeral_ports(), ..Carriers::default() }
    }

    /// Whether a peer that no flow is with may speak to a port of the guest that nothing is forwarded to: one of an address that the
    /// guest speaks to from there, and where `all` ports lead to the guest, anyone.
    pub(in crate::worker) fn admits(&self, port: u16, from: IpAddr) -> bool {
        self.spec.all_covers(Proto::Udp, port) || self.state().spoken_to.contains_key(&(port, from))
    }

    /// Whether a socket that hears all peers may be had for a port: what comes to it is led to no other socket of netd's.
    fn may_open(&self, state: &State, port: u16) -> bool {
        let steered = self.spec.is_steered()
            && self.spec.all_covers(Proto::Udp, port)
            && !self.ephemeral.is_some_and(|range| range.contains(port));
        !steered && state.listener(port).is_none()
    }

    fn lease(self: &Arc<Self>, state: &mut State, of: Leased, speaks: Option<(u16, IpAddr)>) -> Lease {
        if let Some(speaks) = speaks {
            *state.spoken_to.entry(speaks).or_insert(0) += 1;
        }
        Lease { carriers: self.clone(), of, speaks: speaks.map(Box::new) }
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
            None => self.outlet_in(&mut state, OutletId::new(rule.pod, v4, false), None),
        }
    }

    /// What carries a flow that the guest has begun from `port` and that has no socket of its own.
    pub(in crate::worker) fn for_guest(self: &Arc<Self>, port: u16, peer: IpAddr) -> io::Result<Carrier> {
        let mut state = self.state();
        match state.listener(port).filter(|l| l.guest == port) {
            Some(listener) => Ok(Carrier { socket: listener.clone(), _lease: None }),
            None => self.outlet_in(&mut state, OutletId::new(port, peer.is_ipv4(), true), Some(peer)),
        }
    }

    /// What carries a flow that a predecessor had by this name.
    pub(in crate::worker) fn by_place(self: &Arc<Self>, place: u32, peer: IpAddr) -> io::Result<Carrier> {
        let mut state = self.state();
        match OutletId::from_place(place) {
            Some(id) => self.outlet_in(&mut state, id, id.hears().then_some(peer)),
            None => {
                let listener = state.listeners.get(&place).ok_or(io::ErrorKind::NotFound)?;
                Ok(Carrier { socket: listener.clone(), _lease: None })
            }
        }
    }

    fn outlet_in(
        self: &Arc<Self>,
        state: &mut State,
        id: OutletId,
        peer: Option<IpAddr>,
    ) -> io::Result<Carrier> {
        if !state.outlets.contains_key(&id) {
            // The port of a listener that leads to another port of the guest is not to be had: it would no longer hear.
            let taken = id.hears() && state.listener(id.port()).is_some();
            let port = if taken { 0 } else { self.source_port(id.port()) };
            let socket = sockets::udp_outlet(any(id.v4()), port, id.hears())?;
            self.put(state, id, socket)?;
        }
        let (socket, leases) = state.outlets.get_mut(&id).ok_or(io::ErrorKind::NotFound)?;
        *leases += 1;
        let socket = socket.clone();
        let lease = self.lease(state, Leased::Outlet(id), peer.map(|peer| (id.port(), peer)));
        Ok(Carrier { socket, _lease: Some(lease) })
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

    /// Leave to open one more flow to a peer with a socket of its own from `port` of the guest; none: there are enough.
    pub(in crate::worker) fn own(self: &Arc<Self>, port: u16, peer: IpAddr) -> Option<Lease> {
        let mut state = self.state();
        let may_open = self.may_open(&state, port);
        let own = state.own.entry((port, peer.is_ipv4())).or_default();
        if own.flows >= OWN {
            return None;
        }
        own.flows += 1;
        let open = may_open && !own.open;
        own.open |= open;
        let of = Leased::Own { port, v4: peer.is_ipv4(), open };
        Some(self.lease(&mut state, of, Some((port, peer))))
    }

    /// Counts a flow with a connected socket of its own that there is already.
    pub(in crate::worker) fn count_own(self: &Arc<Self>, port: u16, peer: IpAddr) -> Lease {
        let mut state = self.state();
        let v4 = peer.is_ipv4();
        state.own.entry((port, v4)).or_default().flows += 1;
        self.lease(&mut state, Leased::Own { port, v4, open: false }, Some((port, peer)))
    }

    fn release(&self, of: Leased, speaks: Option<&(u16, IpAddr)>) {
        let mut state = self.state();
        if let Some(speaks) = speaks
            && let Some(flows) = state.spoken_to.get_mut(speaks)
        {
            *flows = flows.saturating_sub(1);
            if *flows == 0 {
                state.spoken_to.remove(speaks);
            }
        }
        let gone = match of {
            Leased::Outlet(id) => {
                let last = state.outlets.get_mut(&id).is_some_and(|(_, leases)| {
                    *leases = leases.saturating_sub(1);
                    *leases == 0
                });
                if last { state.outlets.remove(&id) } else { None }
            }
            Leased::Own { port, v4, open } => {
                let last = state.own.get_mut(&(port, v4)).is_some_and(|own| {
                    own.flows = own.flows.saturating_sub(1);
                    own.open &= !open;
                    own.flows == 0
                });
                if last {
                    state.own.remove(&(port, v4));
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

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

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
        let hears = carriers.for_guest(40_053, PEER).unwrap();
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
        let mut own: Vec<Lease> = std::iter::from_fn(|| carriers.own(7, PEER)).take(100).collect();
        assert_eq!(own.len(), OWN as usize);
        assert!(carriers.own(8, PEER).is_some());
        own.pop();
        assert!(carriers.own(7, PEER).is_some());
        drop(own);
        assert!(carriers.state().own.is_empty() && carriers.state().spoken_to.is_empty());
    }

    #[test]
    fn one_socket_of_a_port_is_open_where_nothing_else_hears_it() {
        let steered = Ports { steering: Some("/run/netd/ports.sock".into()), ..Ports::default() };
        let ephemeral = pod::ephemeral_ports().unwrap().bounds().0;
        for (spec, port, may) in [
            (Ports::default(), 7, true),
            (steered.clone(), 7, false),
            (steered.clone(), ephemeral, true),
            // Not steered, as it is reserved.
            (steered, 15_053, true),
        ] {
            let carriers = Arc::new(Carriers::new(spec));
            let [first, second] = [(); 2].map(|()| carriers.own(port, PEER).unwrap());
            assert_eq!([first.is_open(), second.is_open()], [may, false], "{port}");
            drop(first);
            assert_eq!(carriers.own(port, PEER).unwrap().is_open(), may);
            assert!(!second.is_open());
        }
    }

    #[test]
    fn peers_of_hosts_that_the_guest_speaks_to_are_admitted_and_others_where_all_ports_are_forwarded() {
        let other: IpAddr = [192, 0, 2, 2].into();
        let all = Arc::new(Carriers::new(Ports::default()));
        assert!(all.admits(7, PEER) && all.admits(7, other) && !all.admits(15_053, other));
        let listed = Arc::new(Carriers::new(Ports {
            udp: crate::config::ports::PortSpec::default(),
            ..Ports::default()
        }));
        assert!(!listed.admits(7, PEER));
        let own = listed.own(7, PEER).unwrap();
        let shared = listed.for_guest(40_054, PEER).unwrap();
        for port in [7, 40_054] {
            assert!(listed.admits(port, PEER) && !listed.admits(port, other) && !listed.admits(8, PEER));
        }
        drop((own, shared));
        assert!(!listed.admits(7, PEER) && !listed.admits(40_054, PEER));
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
