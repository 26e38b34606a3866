//! UDP flows: what they are, how they open, and the guest's datagrams on their way out.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use socket2::Socket;

use super::flows::Flow;
use super::listening::carriers::{Carrier, Carriers, Lease};
use super::stream::is_exhausted;
use super::transmit::TxFrame;
use super::turn::{Worker, fd, watch_input};
use crate::control::{FlowInfo, FlowKind};
use crate::counters::Reason;
use crate::flow::{FlowId, Key, Kind};
use crate::icmp::IcmpError;
use crate::limits::Timeouts;
use crate::port::PortRule;
use crate::shared::Side;
use crate::sockets;
use crate::state::{self, Descriptors, Missing, Named};
use crate::sys::{self, PmtuDiscovery, SocketError};
use crate::time::Time;
use crate::udp::{Item, Life, MAX_SEGMENTS, SendOptions};
use crate::wire::{ETH_LEN, Ip, UdpHeader};

/// Errors taken from one socket at once.
const ERRORS_PER_TURN: usize = 16;
/// UDP flows that get sockets of their own when their port is closed; binding each takes the longer the more there
/// are. The others end, and begin anew when the guest speaks.
const PARTING: usize = 1024;
/// Datagrams of one flow that are gathered before they are sent.
const MAX_GATHERED: usize = 2 * MAX_SEGMENTS;

const V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// What carries a flow's datagrams in the pod.
pub(super) enum Via {
    /// A socket of its own, connected or *open* to other peers; it counts where the guest speaks by it.
    Own {
        socket: Socket,
        connected: bool,
        #[expect(dead_code, reason = "it counts as long as it is there")]
        lease: Option<Lease>,
    },
    /// The socket of a port that other flows have as well.
    Port(Carrier),
    /// Nothing: a predecessor's flow whose port is no longer forwarded.
    Gone,
}

/// The longest that a predecessor's flow goes on without anything that carries it is until the guest's next datagram.
const NO_PLACE: u32 = u32::MAX;

/// A UDP flow.
pub(super) struct UdpFlow {
    pub(super) via: Via,
    pub(super) life: Life,
    /// The pod's address that the peer has spoken to; none: the kernel chooses.
    pub(super) local: Option<IpAddr>,
    pub(super) pod_peer: SocketAddr,
    pub(super) from_guest: bool,
    /// Its port has more flows than its share: see [`super::evict`].
    pub(super) crowding: bool,
    /// How the guest wants its datagrams sent; an own socket is set so.
    pub(super) options: Option<SendOptions>,
    /// The largest datagrams that may go in runs; less than a link's once a path has refused them.
    pub(super) largest_run: u16,
    pub(super) queued: bool,
    pub(super) bytes_to_pod: u64,
    pub(super) bytes_to_guest: u64,
}

impl UdpFlow {
    /// The flow for a successor.
    pub(super) fn state<'a>(&'a self, key: &Key, named: &mut Named<'a>) -> state::UdpFlow {
        let (socket, listener) = match &self.via {
            Via::Own { socket, .. } => (Some(named.name(fd(socket))), None),
            Via::Port(carrier) => (None, Some(carrier.socket.place)),
            Via::Gone => (None, Some(NO_PLACE)),
        };
        state::UdpFlow {
            key: (key.guest, key.peer),
            pod_peer: self.pod_peer,
            local: self.local,
            from_guest: self.from_guest,
            socket,
            listener,
            options: self.options,
            bytes_to_pod: self.bytes_to_pod,
            bytes_to_guest: self.bytes_to_guest,
            session: self.life.saved(),
        }
    }

    /// A flow of a predecessor; `mtu` is the guest's.
    pub(super) fn from_state(
        state: state::UdpFlow,
        mtu: u16,
        timeouts: &Timeouts,
        carriers: &Arc<Carriers>,
        fds: &mut Descriptors,
    ) -> Result<Self, Missing> {
        let via = match fds.take_if(state.socket)? {
            Some(socket) => {
                let (guest, _) = state.key;
                let peer = state.pod_peer.ip();
                let lease = state.from_guest.then(|| carriers.count_own(guest.port(), peer));
                let socket = Socket::from(socket);
                let connected = socket.peer_addr().is_ok();
                Via::Own { socket, connected, lease }
            }
            None => match carriers.by_place(state.listener.unwrap_or(NO_PLACE), state.pod_peer.ip()) {
                Ok(carrier) => Via::Port(carrier),
                Err(error) => {
                    tracing::debug!(peer = %state.pod_peer, %error, "nothing carries a UDP flow");
                    Via::Gone
                }
            },
        };
        Ok(UdpFlow {
            via,
            life: Life::resume_udp(state.session, timeouts),
            local: state.local,
            pod_peer: state.pod_peer,
            from_guest: state.from_guest,
            crowding: false,
            // What the socket is set to is not known as a whole: an older netd knows fewer options.
            options: None,
            largest_run: mtu.saturating_sub(headers(state.pod_peer)),
            queued: false,
            bytes_to_pod: state.bytes_to_pod,
            bytes_to_guest: state.bytes_to_guest,
        })
    }

    pub(super) fn info(&self, key: &Key, now: Time) -> FlowInfo {
        FlowInfo {
            kind: FlowKind::Udp,
            state: if self.life.is_replied() { "REPLIED" } else { "UNREPLIED" },
            from_guest: self.from_guest,
            guest: key.guest,
            guest_peer: key.peer,
            pod_peer: self.pod_peer,
            bytes_to_pod: self.bytes_to_pod,
            bytes_to_guest: self.bytes_to_guest,
            retransmits: 0,
            idle: self.life.idle(now),
            tcp: None,
        }
    }

    /// The flow's own socket.
    pub(super) fn socket(&self) -> Option<&Socket> {
        match &self.via {
            Via::Own { socket, .. } => Some(socket),
            Via::Port(_) | Via::Gone => None,
        }
    }

    /// The pod's port whose listener carries it.
    pub(super) fn forwarded_port(&self) -> Option<u16> {
        match &self.via {
            Via::Port(c) if c.socket.listens() => Some(c.socket.pod),
            _ => None,
        }
    }

    /// Closes an open socket to other peers, so that any version of netd can go on with it.
    pub(super) fn connect(&mut self) {
        if let Via::Own { socket, connected, .. } = &mut self.via
            && !std::mem::replace(connected, true)
            && let Err(error) = socket.connect(&self.pod_peer.into())
        {
            tracing::debug!(peer = %self.pod_peer, %error, "connect of a UDP flow");
        }
    }

    /// Takes note of how the guest wants its datagrams sent.
    fn set_options(&mut self, options: SendOptions) {
        if let Via::Own { socket, .. } = &self.via {
            apply(fd(socket), self.pod_peer.ip(), options);
        }
        self.options = Some(options);
    }
}

/// Bytes of a datagram's IP and UDP headers.
fn headers(peer: SocketAddr) -> u16 {
    UdpHeader::LEN as u16 + if peer.is_ipv4() { 20 } else { 40 }
}

/// Sets a socket to what its next datagrams need.
pub(super) fn apply(socket: BorrowedFd<'_>, family: IpAddr, options: SendOptions) {
    let pmtu = if options.dont_fragment { PmtuDiscovery::Probe } else { PmtuDiscovery::Dont };
    let result = sys::set_ttl(socket, family, options.ttl)
        .and_then(|()| sys::set_pmtu_discovery(socket, family, pmtu))
        .and_then(|()| sys::set_class(socket, family, options.class));
    if let Err(error) = result {
        tracing::trace!(?options, %error, "socket options");
    }
}

impl Worker {
    /// A datagram of the guest whose payload starts `at` bytes into the frame.
    pub(super) fn on_guest_datagram(
        &mut self,
        key: Key,
        ip: &Ip,
        frame: &TxFrame<'_>,
        at: usize,
        len: usize,
    ) -> Result<(), Reason> {
        let found = self.flows.find(&key).or_else(|| self.find_by_link_local(&key));
        let id = match found.filter(|id| self.has_outlet(*id)) {
            Some(id) => id,
            None if self.pass_datagram_on(&key, frame) => return Ok(()),
            None => self.open_udp_by_guest(key, ip, frame)?,
        };
        let options = SendOptions::of(ip);
        let Some(Flow::Udp(f)) = self.flows.get_mut(id) else { return Err(Reason::NoConnection) };
        let used = f.life.on_guest(self.now);
        if f.options != Some(options) {
            // What was gathered before goes out as it was meant.
            self.flush_gathers();
            if let Some(Flow::Udp(f)) = self.flows.get_mut(id) {
                f.set_options(options);
            }
        }
        self.note_use(id, used);
        self.met.add(id);
        if self.tx.gathers.slices_of(id).is_none() && self.tx.gathers.is_full() {
            self.flush_gathers();
        }
        let g = self.tx.gathers.of(id);
        let first = g.iovs.len();
        let bytes = g.iovs.append_from(frame.slices, frame.first, at, len) as u32;
        g.items.push(Item { first: first as u32, slices: (g.iovs.len() - first) as u32, bytes });
        g.bytes += bytes;
        if g.items.len() >= MAX_GATHERED {
            self.flush_gathers();
        }
        Ok(())
    }

    /// Whether there is what carries a flow; one whose port is no longer forwarded ends.
    fn has_outlet(&mut self, id: FlowId) -> bool {
        let gone = matches!(self.flows.get(id), Some(Flow::Udp(f)) if matches!(f.via, Via::Gone));
        if gone {
            self.flush_gathers();
            self.flows.remove(id);
        }
        !gone
    }

    /// The flow that a datagram from the guest's link-local address answers. IPv6 peers that overlap are seen as
    /// the gateway, whose address is link-local, and an unbound socket answers it from such an address as well
    /// (RFC 6724, section 5, rule 2).
    fn find_by_link_local(&self, key: &Key) -> Option<FlowId> {
        self.flows.find(&self.key_of_link_local(key)?)
    }

    /// Gives a datagram to the worker that has its flow.
    fn pass_datagram_on(&mut self, key: &Key, frame: &TxFrame<'_>) -> bool {
        self.pass_on(key, frame, false)
            || self.key_of_link_local(key).is_some_and(|key| self.pass_on(&key, frame, false))
    }

    fn key_of_link_local(&self, key: &Key) -> Option<Key> {
        let link = &self.receiveq.link;
        let IpAddr::V6(from) = key.guest.ip() else { return None };
        let to = key.peer.ip();
        if !from.is_unicast_link_local() || link.gateway_address(to) != Some(to) {
            return None;
        }
        let guest = SocketAddr::new(link.guest_address(to)?, key.guest.port());
        Some(Key { guest, ..*key })
    }

    fn open_udp_by_guest(&mut self, key: Key, ip: &Ip, frame: &TxFrame<'_>) -> Result<FlowId, Reason> {
        let link = &self.receiveq.link;
        // What is left of the guest's addresses is link-local, and such traffic goes no further than the link.
        if link.guest_address(key.guest.ip()) != Some(key.guest.ip()) {
            return Err(Reason::Denied);
        }
        let pod_peer = match link.way_out(Kind::Udp, key.peer) {
            Ok(peer) => peer,
            Err(reason) => {
                self.reject(&key, ip, frame, IcmpError::AdminProhibited);
                return Err(reason);
            }
        };
        match self.open_udp_from(key, None, pod_peer, Side::Guest) {
            Err(OpenError::Refused(reason)) => Err(reason),
            Err(OpenError::Socket(error)) => {
                let kind = match error.raw_os_error() {
                    Some(libc::ENETUNREACH) => IcmpError::NetUnreachable,
                    Some(libc::EACCES | libc::EPERM) => IcmpError::AdminProhibited,
                    _ => IcmpError::HostUnreachable,
                };
                self.reject(&key, ip, frame, kind);
                Err(Reason::UdpSend)
            }
            Ok(id) => Ok(id),
        }
    }

    /// Opens a flow from a port of the guest that nothing is forwarded to: one that the guest begins, or one of a peer that is admitted.
    pub(super) fn open_udp_from(
        &mut self,
        key: Key,
        local: Option<IpAddr>,
        pod_peer: SocketAddr,
        side: Side,
    ) -> Result<FlowId, OpenError> {
        self.admit_udp(side)?;
        let (port, peer) = (key.guest.port(), pod_peer.ip());
        let Some(lease) = self.carriers.own(port, peer) else {
            // A port that speaks with many peers has a socket that they share.
            let carrier = self.carriers.for_guest(port, peer).map_err(OpenError::of)?;
            return self.insert_udp(key, Via::Port(carrier), local, pod_peer, side == Side::Guest);
        };
        let port = self.carriers.source_port(port);
        let connected = !lease.is_open();
        let socket = if connected {
            sockets::udp_flow(local, port, pod_peer)
        } else {
            sockets::udp_open(if peer.is_ipv4() { V4 } else { V6 }, port)
        };
        let via = Via::Own { socket: socket.map_err(OpenError::of)?, connected, lease: Some(lease) };
        self.insert_own(key, via, local, pod_peer, side)
    }

    /// Opens the flow of a peer with a socket of its own that is bound to `local`, `port` where that can be had.
    pub(super) fn open_udp(
        &mut self,
        key: Key,
        local: Option<IpAddr>,
        port: u16,
        pod_peer: SocketAddr,
    ) -> Result<FlowId, OpenError> {
        self.admit_udp(Side::Peer)?;
        let socket = sockets::udp_flow(local, port, pod_peer).map_err(OpenError::of)?;
        let via = Via::Own { socket, connected: true, lease: None };
        self.insert_own(key, via, local, pod_peer, Side::Peer)
    }

    fn insert_own(
        &mut self,
        key: Key,
        via: Via,
        local: Option<IpAddr>,
        pod_peer: SocketAddr,
        side: Side,
    ) -> Result<FlowId, OpenError> {
        let id = self.insert_udp(key, via, local, pod_peer, side == Side::Guest)?;
        if let Some(s) = self.flows.get(id).and_then(|f| if let Flow::Udp(f) = f { f.socket() } else { None })
            && let Err(error) = watch_input(&self.epoll, fd(s), id)
        {
            self.flows.remove(id);
            return Err(OpenError::Socket(error));
        }
        Ok(id)
    }

    /// Opens the flow of a peer that has spoken to a port whose socket carries it. Where the port has its socket there is
    /// nothing to ask of the kernel.
    pub(super) fn open_udp_shared(
        &mut self,
        key: Key,
        local: Option<IpAddr>,
        rule: PortRule,
        pod_peer: SocketAddr,
    ) -> Result<FlowId, OpenError> {
        self.admit_udp(Side::Peer)?;
        let carrier = self.carriers.for_peer(rule, pod_peer.is_ipv4()).map_err(OpenError::of)?;
        self.insert_udp(key, Via::Port(carrier), local, pod_peer, false)
    }

    /// Gives a flow that a listener carries a socket of its own, where that can be had.
    fn part_from_listener(&mut self, id: FlowId) {
        let Some(Flow::Udp(f)) = self.flows.get_mut(id) else { return };
        let Some(pod) = f.forwarded_port() else { return };
        let socket = sockets::udp_flow(f.local, pod, f.pod_peer)
            .and_then(|s| watch_input(&self.epoll, fd(&s), id).map(|()| s));
        match socket {
            Ok(s) => {
                if let Some(options) = f.options {
                    apply(fd(&s), f.pod_peer.ip(), options);
                }
                f.via = Via::Own { socket: s, connected: true, lease: None };
                self.make_ready(id);
            }
            Err(error) => tracing::debug!(peer = %f.pod_peer, %error, "UDP flow"),
        }
    }

    /// Takes flows from the listeners of these ports of the pod, which close.
    pub(super) fn part_from_ports(&mut self, pods: &HashSet<u16>) {
        // What was gathered goes by the socket that is there.
        self.flush_gathers();
        let is_of = |flow: &Flow| match flow {
            Flow::Udp(f) => f.forwarded_port().is_some_and(|pod| pods.contains(&pod)),
            _ => false,
        };
        let carried: Vec<FlowId> =
            self.flows.iter().filter(|(_, _, flow)| is_of(flow)).map(|(id, _, _)| id).collect();
        for id in carried.iter().take(PARTING) {
            self.part_from_listener(*id);
        }
        // Another program's socket may take the port next, so no flow may hold it.
        for id in carried {
            if self.flows.get(id).is_some_and(is_of) {
                self.flows.remove(id);
            }
        }
    }

    fn admit_udp(&mut self, side: Side) -> Result<(), OpenError> {
        // The rate first: what it refuses must not cost another flow its place.
        if !self.peers.shared.budget.admit_datagrams(side, self.now) {
            return Err(OpenError::Refused(Reason::FlowRate));
        }
        if !self.has_room_for_datagrams(side) {
            return Err(OpenError::Refused(Reason::FlowLimit));
        }
        Ok(())
    }

    fn insert_udp(
        &mut self,
        key: Key,
        via: Via,
        local: Option<IpAddr>,
        pod_peer: SocketAddr,
        from_guest: bool,
    ) -> Result<FlowId, OpenError> {
        // The side that did not begin offers what was asked for.
        let service = if from_guest { key.peer.port() } else { key.guest.port() };
        let flow = UdpFlow {
            via,
            life: Life::udp(&self.timeouts, service, self.now),
            local,
            pod_peer,
            from_guest,
            crowding: false,
            options: None,
            largest_run: self.receiveq.link.mtu.saturating_sub(headers(pod_peer)),
            queued: false,
            bytes_to_pod: 0,
            bytes_to_guest: 0,
        };
        let at = flow.life.expires();
        let id = self.flows.insert(key, Flow::Udp(Box::new(flow))).map_err(OpenError::Refused)?;
        self.flows.arm(id, at);
        self.counters.udp_flows.add(1);
        Ok(id)
    }

    /// Answers a datagram of the guest by an ICMP error that quotes it.
    fn reject(&mut self, key: &Key, ip: &Ip, frame: &TxFrame<'_>, kind: IcmpError) {
        // A guest that floods what is closed costs a copy only as often as it is answered.
        if !self.slow.may_tell(self.now) {
            return;
        }
        let copy = frame.copy();
        let end = ETH_LEN + ip.header_len + ip.payload_len;
        if let Some(packet) = copy.get(ETH_LEN..end.min(copy.len())) {
            self.tell(kind, None, key.guest.ip(), packet);
        }
    }

    /// Relays the errors in a flow's error queue to the guest.
    pub(super) fn on_datagram_errors(&mut self, id: FlowId) {
        let Some(key) = self.flows.key(id) else { return };
        for _ in 0..ERRORS_PER_TURN {
            let (error, echo) = match self.flows.get(id) {
                Some(Flow::Udp(f)) => match &f.via {
                    Via::Own { socket, .. } => (sys::recv_error(fd(socket)), false),
                    Via::Port(c) => {
                        let (socket, port) = (c.socket.clone(), key.guest.port());
                        return self.relay_errors(&socket, Some(port));
                    }
                    Via::Gone => return,
                },
                Some(Flow::Echo(f)) => (sys::recv_error(fd(f.socket())), true),
                _ => return,
            };
            let Ok(Some(e)) = error else { return };
            let Some(kind) = kind_of(&e) else { continue };
            if echo {
                self.on_echo_error(&key, &e, kind);
                continue;
            }
            if let Some(quote) = crate::icmp::quote_udp(key.guest, key.peer, &e.payload) {
                self.tell(kind, e.offender, key.guest.ip(), &quote);
            }
        }
    }
}

/// What an entry of an error queue means to the guest.
pub(super) fn kind_of(e: &SocketError) -> Option<IcmpError> {
    IcmpError::from_extended(e.errno.cast_signed(), e.origin, e.icmp_type, e.icmp_code, e.info)
}

/// Why a flow was not opened.
pub(super) enum OpenError {
    /// A limit.
    Refused(Reason),
    /// The pod's network.
    Socket(io::Error),
}

impl OpenError {
    /// What it means that a socket cannot be made.
    fn of(error: io::Error) -> OpenError {
        if is_exhausted(&error) { OpenError::Refused(Reason::SocketLimit) } else { OpenError::Socket(error) }
    }
}
