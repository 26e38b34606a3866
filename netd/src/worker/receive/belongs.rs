//! Which flow a datagram of the pod belongs to, and an error of a socket that many flows share.

use std::net::{IpAddr, SocketAddr};

use crate::counters::Reason;
use crate::flow::{FlowId, Key, Kind};
use crate::port::{PortRule, Proto};
use crate::shared::Side;
use crate::sys::{self, Datagram};
use crate::worker::datagrams::{OpenError, Via, kind_of};
use crate::worker::flows::Flow;
use crate::worker::listening::carriers::PortSocket;
use crate::worker::listening::{STEERED, rule_for};
use crate::worker::turn::{Worker, fd};

/// Errors taken from a shared socket at once.
const ERRORS_PER_TURN: usize = 256;
/// Steered ports that an error may be about: it does not tell.
const PORTS_TRIED: usize = 256;

impl Worker {
    /// The flow of a datagram that came to a flow's own socket. A datagram of another peer came between bind() and connect(), or to a
    /// socket that is open: it belongs to the listener of that port, if there is one, or to the port of the guest.
    pub(super) fn flow_of_own(&mut self, id: FlowId, d: &Datagram<'_>) -> Result<Option<FlowId>, Reason> {
        let Some(Flow::Udp(f)) = self.flows.get(id) else { return Err(Reason::NoConnection) };
        if f.pod_peer == d.from {
            return Ok(Some(id));
        }
        let address = d.to.or(f.local);
        let port = match self.flows.key(id) {
            // The pod's may be another one.
            Some(key) if f.from_guest => key.guest.port(),
            _ => f.socket().and_then(|s| s.local_addr().ok()?.as_socket()).map_or(0, |a| a.port()),
        };
        if self.peers.index != 0 {
            // Worker 0 has the listeners.
            self.pass_datagram(0, Err(port), d, address);
            return Ok(None);
        }
        self.flow_of_early(port, d, address)
    }

    /// The flow of a datagram that came to the pod's port `port` by a socket that is not its listener's: one that there
    /// is, or a new one of the listener if there is one.
    pub(super) fn flow_of_early(
        &mut self,
        port: u16,
        d: &Datagram<'_>,
        to: Option<IpAddr>,
    ) -> Result<Option<FlowId>, Reason> {
        if let Some(key) = self.key_of_peer(port, d.from) {
            if let Some(id) = self.flows.find(&key)
                && matches!(self.flows.get(id), Some(Flow::Udp(f)) if f.pod_peer == d.from)
            {
                return Ok(Some(id));
            }
            if self.peers.index == 0
                && let Some(owner) = self.peers.shared.directory.owner(&key).filter(|owner| *owner != 0)
            {
                self.pass_datagram(owner, Err(port), d, to);
                return Ok(None);
            }
        }
        // Worker 0 has the listeners, and has looked.
        if self.peers.index != 0 {
            return Err(Reason::Denied);
        }
        match self.carriers.place_of(port) {
            Some(listener) => self.flow_of_arrival(listener, &Datagram { to_port: Some(port), ..*d }, to),
            None => self.flow_of_uninvited(port, d, to).map(Some),
        }
    }

    /// The new flow of a peer that speaks to a port of the guest which nothing is forwarded to.
    fn flow_of_uninvited(
        &mut self,
        port: u16,
        d: &Datagram<'_>,
        to: Option<IpAddr>,
    ) -> Result<FlowId, Reason> {
        if !self.carriers.admits(port, d.from.ip()) {
            return Err(Reason::Denied);
        }
        let key =
            self.guest_key(Kind::Udp, PortRule { proto: Proto::Udp, pod: port, guest: port }, d.from)?;
        match self.open_udp_from(key, to.filter(is_own), d.from, Side::Peer) {
            Ok(id) => {
                // What arrived between bind() and connect() of the flow's socket may already wait there.
                self.make_ready(id);
                Ok(id)
            }
            Err(OpenError::Refused(reason)) => Err(reason),
            Err(OpenError::Socket(error)) => {
                tracing::debug!(from = %d.from, %error, "UDP flow");
                Err(Reason::SocketLimit)
            }
        }
    }

    /// The flow of a datagram that came to a listener and the pod's address `to`.
    pub(super) fn flow_of_arrival(
        &mut self,
        at: u32,
        d: &Datagram<'_>,
        to: Option<IpAddr>,
    ) -> Result<Option<FlowId>, Reason> {
        let (rule, _) = self.listening.listeners.udp(at).ok_or(Reason::Denied)?;
        let rule = rule_for(rule, d.to_port.unwrap_or(STEERED));
        match self.assign(Kind::Udp, rule, d.from) {
            Some(worker) => {
                self.pass_datagram(worker, Ok(rule), d, to);
                Ok(None)
            }
            None => self.flow_of_assigned(rule, d, to).map(Some),
        }
    }

    /// The flow of a datagram that is for this worker: its peer's, or a new one, which the socket of the port carries.
    pub(super) fn flow_of_assigned(
        &mut self,
        rule: PortRule,
        d: &Datagram<'_>,
        to: Option<IpAddr>,
    ) -> Result<FlowId, Reason> {
        let from = d.from;
        let key = self.key_of_peer(rule.guest, from).ok_or(Reason::NoGuest)?;
        let local = to.filter(is_own);
        let known = self.flows.find(&key);
        if let Some(id) = known
            && let Some(Flow::Udp(f)) = self.flows.get_mut(id)
            && f.pod_peer == from
        {
            if let Via::Port(via) = &mut f.via {
                // Replies leave from the address and the port that the peer has spoken to last.
                if via.socket.pod != rule.pod
                    && let Ok(carrier) = self.carriers.for_peer(rule, from.is_ipv4())
                {
                    *via = carrier;
                }
                f.local = local.or(f.local);
            }
            return Ok(id);
        }
        let key = self.guest_key(Kind::Udp, rule, from)?;
        // A peer that overlaps with another cannot be found by its address, so the kernel has to sort. Multicast that
        // was steered is answered from an address that only the kernel knows.
        let opened = if known.is_none() && (local.is_some() || self.carriers.place_of(rule.pod).is_some()) {
            self.open_udp_shared(key, local, rule, from)
        } else {
            self.open_udp(key, local, rule.pod, from).inspect(|id| {
                // What arrived between bind() and connect() of the flow's socket may already wait there.
                self.make_ready(*id);
            })
        };
        match opened {
            Ok(id) => Ok(id),
            Err(OpenError::Refused(reason)) => Err(reason),
            Err(OpenError::Socket(error)) => {
                tracing::debug!(%from, %error, "UDP flow");
                Err(Reason::SocketLimit)
            }
        }
    }

    /// The tuple of a flow between the guest's port and a peer, unless the peer overlaps with another.
    fn key_of_peer(&self, port: u16, from: SocketAddr) -> Option<Key> {
        let link = &self.receiveq.link;
        let guest = SocketAddr::new(link.guest_address(from.ip())?, port);
        Some(Key {
            kind: Kind::Udp,
            guest,
            peer: SocketAddr::new(link.source_for_guest(from.ip())?, from.port()),
        })
    }

    /// Relays the errors in a listener's error queue to the guest.
    pub(in crate::worker) fn on_listener_errors(&mut self, at: u32) {
        let Some((rule, listener)) = self.listening.listeners.udp(at) else { return };
        let socket = listener.socket.clone();
        self.relay_errors(&socket, (rule.pod != STEERED).then_some(rule.guest));
    }

    /// Relays the errors in the queue of a socket that many flows share to the guest. They are about `port` of the guest;
    /// none: about any of those that are steered.
    pub(in crate::worker) fn relay_errors(&mut self, socket: &PortSocket, port: Option<u16>) {
        for _ in 0..ERRORS_PER_TURN {
            let Ok(Some(e)) = sys::recv_error(fd(socket)) else { return };
            let (Some(kind), Some(to)) = (kind_of(&e), e.destination) else { continue };
            // A guest that is told no more of them is not looked for.
            if !self.slow.may_tell(self.now) {
                continue;
            }
            let ports = match port {
                Some(port) => vec![port],
                None => self.carriers.steered_ports(to.is_ipv4(), PORTS_TRIED),
            };
            let key_of = |port| self.key_of_peer(port, to).filter(|key| self.speaks(key, to));
            let Some(key) = ports.into_iter().find_map(key_of) else { continue };
            if let Some(quote) = crate::icmp::quote_udp(key.guest, key.peer, &e.payload) {
                self.tell(kind, e.offender, key.guest.ip(), &quote);
            }
        }
    }

    /// Whether there is a flow of this tuple, here or with another worker, and its peer is `to`. A peer that overlaps with
    /// another has a port of its own for the guest, which an error does not tell.
    fn speaks(&self, key: &Key, to: SocketAddr) -> bool {
        match self.flows.find(key).and_then(|id| self.flows.get(id)) {
            Some(Flow::Udp(f)) => f.pod_peer == to,
            _ => key.peer.ip() == to.ip() && self.peers.has_elsewhere(key),
        }
    }
}

/// Whether what was sent to an address may be answered from it: multicast and broadcast destinations cannot be a source address.
fn is_own(address: &IpAddr) -> bool {
    !address.is_multicast() && *address != IpAddr::from([255; 4])
}
