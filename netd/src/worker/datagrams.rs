//! UDP flows: datagrams between the guest and connected sockets of the pod.

use std::io;
use std::net::{IpAddr, SocketAddr};

use socket2::Socket;

use super::gather::Gather;
use super::sockets;
use super::stream::is_exhausted;
use super::transmit::TxFrame;
use super::turn::{Flow, Worker, fd, watch};
use crate::counters::Reason;
use crate::ctl::{FlowInfo, FlowKind};
use crate::flow::{FlowId, Key, Kind};
use crate::icmp::IcmpError;
use crate::sys::{self, BATCH, PmtuDiscovery, SendItem};
use crate::time::Time;
use crate::udp::{SendOptions, Session};
use crate::wire::{ETH_LEN, Ip, MAX_HEADERS, UdpHeader, VNET_LEN, build_udp, fold, sum};

/// Receive calls for one flow in one turn.
const READS_PER_TURN: usize = 4;
/// Errors taken from one socket at once.
const ERRORS_PER_TURN: usize = 16;

/// A UDP flow.
pub(super) struct UdpFlow {
    socket: Socket,
    pub(super) session: Session,
    /// The address that the socket was bound to; none: the wildcard.
    local: Option<IpAddr>,
    pod_peer: SocketAddr,
    from_guest: bool,
    options: Option<SendOptions>,
    pub(super) queued: bool,
    bytes_to_pod: u64,
    bytes_to_guest: u64,
}

impl UdpFlow {
    pub(super) fn info(&self, key: &Key, now: Time) -> FlowInfo {
        FlowInfo {
            kind: FlowKind::Udp,
            state: if self.session.is_replied() { "REPLIED" } else { "UNREPLIED" },
            from_guest: self.from_guest,
            guest: key.guest,
            guest_peer: key.peer,
            pod_peer: self.pod_peer,
            bytes_to_pod: self.bytes_to_pod,
            bytes_to_guest: self.bytes_to_guest,
            retransmits: 0,
            idle: self.session.idle(now),
            tcp: None,
        }
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(super) fn pod_peer(&self) -> SocketAddr {
        self.pod_peer
    }

    /// Sets what the next datagram needs.
    fn set_options(&mut self, options: SendOptions) {
        let family = self.pod_peer.ip();
        let pmtu = if options.dont_fragment { PmtuDiscovery::Probe } else { PmtuDiscovery::Dont };
        let result = sys::set_ttl(fd(&self.socket), family, options.ttl)
            .and_then(|()| sys::set_pmtu_discovery(fd(&self.socket), family, pmtu));
        if let Err(error) = result {
            tracing::debug!(?options, %error, "socket options");
        }
        self.options = Some(options);
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
        let id = match self.flows.find(&key).or_else(|| self.find_by_link_local(&key)) {
            Some(id) => id,
            None if self.pass_datagram_on(&key, frame) => return Ok(()),
            None => self.open_udp_by_guest(key, ip, frame)?,
        };
        // RFC 1122 3.2.1.7: a TTL of zero is never sent; what arrives with one is the guest's mistake.
        let options = SendOptions { ttl: ip.ttl.max(1), dont_fragment: ip.dont_fragment };
        let Some(Flow::Udp(f)) = self.flows.get_mut(id) else { return Err(Reason::NoConnection) };
        f.session.on_guest(self.now);
        if f.options != Some(options) {
            // What was gathered before goes out as it was meant.
            self.flush_gathers();
            if let Some(Flow::Udp(f)) = self.flows.get_mut(id) {
                f.set_options(options);
            }
        }
        if self.gathers.slices_of(id).is_none() && self.gathers.is_full() {
            self.flush_gathers();
        }
        let g = self.gathers.of(id);
        let first = g.iovs.len();
        g.iovs.append_from(frame.slices, frame.first, at, len);
        g.items.push(SendItem { first, slices: g.iovs.len() - first });
        g.bytes += len as u32;
        if g.items.len() >= BATCH {
            self.flush_gathers();
        }
        Ok(())
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
        let link = &self.port.link;
        let IpAddr::V6(from) = key.guest.ip() else { return None };
        let to = key.peer.ip();
        if !from.is_unicast_link_local() || link.gateway_address(to) != Some(to) {
            return None;
        }
        let guest = SocketAddr::new(link.guest_address(to)?, key.guest.port());
        Some(Key { guest, ..*key })
    }

    fn open_udp_by_guest(&mut self, key: Key, ip: &Ip, frame: &TxFrame<'_>) -> Result<FlowId, Reason> {
        let link = &self.port.link;
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
        match self.open_udp(key, None, key.guest.port(), pod_peer, true) {
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

    /// Opens a flow whose socket is bound to `local`, `port` where that can be had.
    pub(super) fn open_udp(
        &mut self,
        key: Key,
        local: Option<IpAddr>,
        port: u16,
        pod_peer: SocketAddr,
        from_guest: bool,
    ) -> Result<FlowId, OpenError> {
        if self.flows.is_full() {
            return Err(OpenError::Refused(Reason::FlowLimit));
        }
        if !self.peers.shared.budget.admit(self.now) {
            return Err(OpenError::Refused(Reason::FlowRate));
        }
        let socket = match sockets::udp_flow(local, port, pod_peer) {
            Ok(s) => s,
            Err(e) if is_exhausted(&e) => return Err(OpenError::Refused(Reason::SocketLimit)),
            Err(e) => return Err(OpenError::Socket(e)),
        };
        let flow = UdpFlow {
            socket,
            session: Session::udp(&self.timeouts, self.now),
            local,
            pod_peer,
            from_guest,
            options: None,
            queued: false,
            bytes_to_pod: 0,
            bytes_to_guest: 0,
        };
        let at = flow.session.expires();
        let id = self
            .flows
            .insert(key, Flow::Udp(Box::new(flow)))
            .ok_or(OpenError::Refused(Reason::TupleCollision))?;
        if let Some(Flow::Udp(f)) = self.flows.get_mut(id)
            && let Err(error) = watch(&self.epoll, fd(&f.socket), id)
        {
            self.flows.remove(id);
            return Err(OpenError::Socket(error));
        }
        self.flows.arm(id, at);
        self.counters.udp_flows.add(1);
        Ok(id)
    }

    /// Answers a datagram of the guest by an ICMP error that quotes it.
    fn reject(&mut self, key: &Key, ip: &Ip, frame: &TxFrame<'_>, kind: IcmpError) {
        let copy = frame.copy();
        let end = ETH_LEN + ip.header_len + ip.payload_len;
        if let Some(packet) = copy.get(ETH_LEN..end.min(copy.len())) {
            self.tell(kind, None, key.guest.ip(), packet);
        }
    }

    /// Sends a flow's gathered datagrams.
    pub(super) fn flush_datagrams(&mut self, g: &Gather) {
        let Some(Flow::Udp(f)) = self.flows.get_mut(g.flow) else { return };
        let mut items = g.items.as_slice();
        let mut failures = 0;
        while !items.is_empty() {
            match sys::send_batch(fd(&f.socket), &g.iovs, items) {
                Ok(n) => {
                    self.counters.udp_datagrams_to_pod.add(n as u64);
                    items = &items[n.min(items.len())..];
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock || is_exhausted(&e) => break,
                // The first call after an ICMP error reports that error instead of sending: the datagram has its
                // second chance. One that fails again is given up.
                Err(error) => {
                    failures += 1;
                    if failures % 2 == 0 {
                        tracing::debug!(peer = %f.pod_peer, %error, "send");
                        self.counters.count_drop(Reason::UdpSend);
                        items = &items[1..];
                    }
                }
            }
        }
        f.bytes_to_pod += u64::from(g.bytes);
        for _ in items {
            self.counters.count_drop(Reason::UdpSend);
        }
        if failures > 0 {
            self.on_datagram_errors(g.flow);
        }
    }

    /// Moves datagrams of one flow to the guest; true when there may be more.
    pub(super) fn deliver_datagrams(&mut self, id: FlowId) -> bool {
        for _ in 0..READS_PER_TURN {
            let most = self.receivable();
            if most == 0 {
                return true;
            }
            let Some(Flow::Udp(f)) = self.flows.get_mut(id) else { return false };
            let n = match self.datagrams.receive(fd(&f.socket), most) {
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => {
                    self.on_datagram_errors(id);
                    return true;
                }
            };
            f.session.on_pod(self.now);
            let (at, peer) = (f.session.expires(), f.pod_peer);
            self.flows.arm(id, at);
            for i in 0..n {
                if self.datagrams.get(i).is_some_and(|d| d.from == peer) {
                    self.deliver_datagram(id, i);
                } else if let Err(reason) = self.on_early_datagram(id, i) {
                    self.counters.count_drop(reason);
                }
            }
            if n < most {
                return false;
            }
        }
        true
    }

    /// A datagram of somebody else came between bind() and connect() of a flow's socket: it belongs to the
    /// listener of that port, if there is one.
    fn on_early_datagram(&mut self, id: FlowId, i: usize) -> Result<(), Reason> {
        let Some(Flow::Udp(f)) = self.flows.get_mut(id) else { return Ok(()) };
        let address = f.local;
        let port = f.socket.local_addr().ok().and_then(|a| a.as_socket()).map_or(0, |a| a.port());
        if self.peers.index != 0 {
            // Worker 0 has the listeners.
            return self.pass_datagram(0, Err(port), i, address);
        }
        let rule = self.listeners.udp_rule(port).ok_or(Reason::Denied)?;
        self.on_listener_datagram(rule, i, address)
    }

    /// How many datagrams the receive ring can surely take.
    pub(super) fn receivable(&mut self) -> usize {
        // Mergeable buffers are at least 1.5 KiB; a larger datagram takes several.
        let each = 1 + usize::from(self.port.link.mtu) / 1536;
        self.port.free_chains(BATCH * each) / each
    }

    /// Writes the `i`th received datagram to the guest as one of flow `id`.
    pub(super) fn deliver_datagram(&mut self, id: FlowId, i: usize) {
        let Some(key) = self.flows.key(id).copied() else { return };
        let Some(d) = self.datagrams.get(i) else { return };
        let Some(ends) = self.port.ends(&key, d.ttl) else {
            self.counters.count_drop(Reason::NoGuest);
            return;
        };
        let mut b = [0; MAX_HEADERS];
        let end = build_udp(&mut b, &ends.at, ends.src_port, ends.dst_port, d.payload.len());
        let mtu = self.port.link.mtu;
        if end - VNET_LEN - ETH_LEN + d.payload.len() > usize::from(mtu) {
            // The pod's kernel has put it together from fragments; for the guest it is cut again.
            let frame = complete_checksum(&b[..end], d.payload);
            let id = self.fragment_ids.next();
            for fragment in crate::frag::split_frame(&frame, mtu, id).unwrap_or_default() {
                self.port.queue(fragment);
            }
        } else if self.port.frame(&b[..end], d.payload).is_err() {
            self.counters.count_drop(Reason::NoRxBuffer);
            return;
        }
        self.counters.udp_datagrams_to_guest.add(1);
        if let Some(Flow::Udp(f)) = self.flows.get_mut(id) {
            f.bytes_to_guest += d.payload.len() as u64;
        }
    }

    /// Relays the errors in a flow's error queue to the guest.
    pub(super) fn on_datagram_errors(&mut self, id: FlowId) {
        let Some(key) = self.flows.key(id).copied() else { return };
        for _ in 0..ERRORS_PER_TURN {
            let (error, echo) = match self.flows.get_mut(id) {
                Some(Flow::Udp(f)) => (sys::recv_error(fd(&f.socket)), false),
                Some(Flow::Echo(f)) => (sys::recv_error(fd(f.socket())), true),
                _ => return,
            };
            let Ok(Some(e)) = error else { return };
            let Some(kind) =
                IcmpError::from_extended(e.errno.cast_signed(), e.origin, e.icmp_type, e.icmp_code, e.info)
            else {
                continue;
            };
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

/// The Ethernet frame of a UDP datagram with its checksum complete.
fn complete_checksum(headers: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut frame = [&headers[VNET_LEN..], payload].concat();
    let udp = headers.len() - VNET_LEN - UdpHeader::LEN;
    // The field holds the pseudo header's sum; RFC 768: a sum of zero is sent as its complement.
    let sum = match !fold(sum(&frame[udp..], 0)) {
        0 => 0xffff,
        s => s,
    };
    frame[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Why a flow was not opened.
pub(super) enum OpenError {
    /// A limit.
    Refused(Reason),
    /// The pod's network.
    Socket(io::Error),
}
