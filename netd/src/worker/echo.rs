//! Echo flows: the guest's pings through ping sockets of the pod.
//!
//! One socket serves one identifier of the guest, whatever the destinations: a ping socket does not sort
//! answers by peer, so two of them with one identifier would take each other's.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::Socket;

use super::datagrams::apply;
use super::flows::Flow;
use super::stream::is_exhausted;
use super::transmit::TxFrame;
use super::turn::{Worker, fd, watch_input};
use crate::control::{FlowInfo, FlowKind};
use crate::counters::Reason;
use crate::flow::{FlowId, Key, Kind};
use crate::icmp::{self, EchoReply, EchoRequest, IcmpError};
use crate::limits::Timeouts;
use crate::shared::Side;
use crate::sockets;
use crate::state::{self, Descriptors, Missing, Named};
use crate::sys::{ReceiveBatch, SocketError};
use crate::time::Time;
use crate::udp::{Life, SendOptions};

/// Answers taken from one socket in one turn.
const READS_PER_TURN: usize = 4;
/// TTL of replies whose own is not known, and of the gateway's.
const GATEWAY_TTL: u8 = 64;
/// Bytes of an echo message before its data.
const ECHO_HEADER: usize = 8;

/// An echo flow.
pub(super) struct EchoFlow {
    socket: Socket,
    pub(super) life: Life,
    /// How the guest wants its requests sent; the socket is set so.
    options: Option<SendOptions>,
    pub(super) queued: bool,
    bytes_to_pod: u64,
    bytes_to_guest: u64,
}

impl EchoFlow {
    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The flow for a successor.
    pub(super) fn state<'a>(&'a self, key: &Key, named: &mut Named<'a>) -> state::EchoFlow {
        state::EchoFlow {
            guest: key.guest,
            socket: named.name(fd(&self.socket)),
            ttl: self.options.map(|options| options.ttl),
            bytes_to_pod: self.bytes_to_pod,
            bytes_to_guest: self.bytes_to_guest,
            session: self.life.saved(),
        }
    }

    /// A flow of a predecessor.
    pub(super) fn from_state(
        state: state::EchoFlow,
        timeouts: &Timeouts,
        fds: &mut Descriptors,
    ) -> Result<Self, Missing> {
        Ok(EchoFlow {
            socket: fds.take(state.socket)?.into(),
            life: Life::resume_echo(state.session, timeouts),
            options: None,
            queued: false,
            bytes_to_pod: state.bytes_to_pod,
            bytes_to_guest: state.bytes_to_guest,
        })
    }

    pub(super) fn info(&self, key: &Key, now: Time) -> FlowInfo {
        FlowInfo {
            kind: FlowKind::Echo,
            state: if self.life.is_replied() { "REPLIED" } else { "UNREPLIED" },
            from_guest: true,
            guest: key.guest,
            guest_peer: key.peer,
            pod_peer: key.peer,
            bytes_to_pod: self.bytes_to_pod,
            bytes_to_guest: self.bytes_to_guest,
            retransmits: 0,
            idle: self.life.idle(now),
            tcp: None,
        }
    }
}

/// What echo flows share.
#[derive(Default)]
pub(super) struct Echoes {
    batch: ReceiveBatch,
    /// The log has a refused ping socket.
    refused: bool,
}

impl Worker {
    /// An echo request of the guest; sent with these `options`; `packet` is the whole IP packet in `frame`.
    pub(super) fn on_echo_request(
        &mut self,
        echo: &EchoRequest,
        options: SendOptions,
        packet: &[u8],
        frame: &TxFrame<'_>,
    ) -> Result<(), Reason> {
        let link = &self.receiveq.link;
        let data = packet.get(echo.payload.clone()).ok_or(Reason::Malformed)?;
        // What is not the assigned address is link-local, and such traffic goes no further than the gateway.
        let assigned = link.guest_address(echo.src) == Some(echo.src);
        // A flow has no destination of its own, so each is asked for.
        let to = link.way_out(Kind::Echo, SocketAddr::new(echo.dst, 0)).map(|to| to.ip());
        if to == Err(Reason::EgressDenied) && assigned {
            self.tell(IcmpError::AdminProhibited, None, echo.src, packet);
            return Err(Reason::EgressDenied);
        }
        let Some(to) = to.ok().filter(|_| assigned) else {
            // The gateway is netd itself where it is not an address of the pod's network.
            if link.gateway_address(echo.dst) == Some(echo.dst) {
                self.answer_echo(&EchoReply {
                    from: echo.dst,
                    guest: echo.src,
                    id: echo.id,
                    sequence: echo.sequence,
                    payload: data,
                    ttl: GATEWAY_TTL,
                    class: options.class,
                });
                return Ok(());
            }
            return Err(Reason::Denied);
        };
        let any: IpAddr =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let key = Key {
            kind: Kind::Echo,
            guest: SocketAddr::new(echo.src, echo.id),
            peer: SocketAddr::new(any, 0),
        };
        let id = match self.flows.find(&key) {
            Some(id) => id,
            None if self.pass_on(&key, frame, false) => return Ok(()),
            None => self.open_echo(key)?,
        };
        let Some(Flow::Echo(f)) = self.flows.get_mut(id) else { return Err(Reason::NoConnection) };
        let used = f.life.on_guest(self.now);
        if f.options != Some(options) {
            apply(fd(&f.socket), to, options);
            f.options = Some(options);
        }
        // The kernel fills in identifier and checksum.
        let mut message = Vec::with_capacity(ECHO_HEADER + data.len());
        message.extend_from_slice(&[if to.is_ipv4() { 8 } else { 128 }, 0, 0, 0]);
        message.extend_from_slice(&echo.id.to_be_bytes());
        message.extend_from_slice(&echo.sequence.to_be_bytes());
        message.extend_from_slice(data);
        let to = SocketAddr::new(to, 0).into();
        let mut sent = f.socket.send_to(&message, &to);
        if sent.is_err() {
            // The first call after an ICMP error reports that error instead.
            sent = f.socket.send_to(&message, &to);
        }
        if sent.is_ok() {
            f.bytes_to_pod += data.len() as u64;
        }
        self.note_use(id, used);
        match sent {
            Ok(_) => {}
            Err(error) => {
                tracing::trace!(%error, "echo");
                self.on_datagram_errors(id);
                let kind = match error.raw_os_error() {
                    Some(libc::ENETUNREACH) => IcmpError::NetUnreachable,
                    Some(libc::EACCES | libc::EPERM) => IcmpError::AdminProhibited,
                    Some(libc::EHOSTUNREACH) => IcmpError::HostUnreachable,
                    _ => return Err(Reason::UdpSend),
                };
                self.tell(kind, None, echo.src, packet);
            }
        }
        Ok(())
    }

    fn open_echo(&mut self, key: Key) -> Result<FlowId, Reason> {
        if !self.peers.shared.budget.admit_datagrams(Side::Guest, self.now) {
            return Err(Reason::FlowRate);
        }
        if !self.has_room_for_datagrams(Side::Guest) {
            return Err(Reason::FlowLimit);
        }
        let socket = sockets::ping(key.guest.ip(), key.guest.port()).map_err(|error| {
            // The guest can have one refused for each of its identifiers: said once, counted each time.
            if !is_exhausted(&error) && !std::mem::replace(&mut self.echoes.refused, true) {
                tracing::warn!(%error, "no ping socket: net.ipv4.ping_group_range must include netd's group");
            }
            Reason::SocketLimit
        })?;
        let life = Life::echo(&self.timeouts, self.now);
        let at = life.expires();
        let flow =
            EchoFlow { socket, life, options: None, queued: false, bytes_to_pod: 0, bytes_to_guest: 0 };
        let id = self.flows.insert(key, Flow::Echo(Box::new(flow)))?;
        if let Some(Flow::Echo(f)) = self.flows.get_mut(id)
            && watch_input(&self.epoll, fd(&f.socket), id).is_err()
        {
            self.flows.remove(id);
            return Err(Reason::SocketLimit);
        }
        self.flows.arm(id, at);
        self.counters.icmp_echo_flows.add(1);
        Ok(id)
    }

    /// Moves echo replies of one flow to the guest; true when there may be more.
    pub(super) fn deliver_echoes(&mut self, id: FlowId) -> bool {
        for _ in 0..READS_PER_TURN {
            let most = self.receivable();
            if most == 0 {
                return true;
            }
            let Some(key) = self.flows.key(id) else { return false };
            let Some(Flow::Echo(f)) = self.flows.get_mut(id) else { return false };
            let n = match self.echoes.batch.receive(fd(&f.socket), most) {
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => {
                    self.on_datagram_errors(id);
                    return true;
                }
            };
            let used = f.life.on_pod(self.now);
            let at = f.life.expires();
            self.flows.arm(id, at);
            self.note_use(id, used);
            for i in 0..n {
                let Some(Flow::Echo(f)) = self.flows.get_mut(id) else { return false };
                let Some(d) = self.echoes.batch.get(i) else { continue };
                let Some(data) = d.payload.get(ECHO_HEADER..) else { continue };
                let sequence = u16::from_be_bytes([d.payload[6], d.payload[7]]);
                let Some(from) = self.receiveq.link.source_for_guest(d.from.ip()) else { continue };
                f.bytes_to_guest += data.len() as u64;
                let (ttl, class, data) = (d.ttl.unwrap_or(GATEWAY_TTL), d.class, data.to_vec());
                self.answer_echo(&EchoReply {
                    from,
                    guest: key.guest.ip(),
                    id: key.guest.port(),
                    sequence,
                    payload: &data,
                    ttl,
                    class,
                });
            }
            if n < most {
                return false;
            }
        }
        true
    }

    /// Gives the guest an echo reply.
    fn answer_echo(&mut self, reply: &EchoReply<'_>) {
        let Some(mac) = self.receiveq.guest_mac else { return };
        let Some(frame) = icmp::echo_reply_frame(&self.receiveq.link, mac, reply) else { return };
        let id = self.slow.fragment_ids.next();
        // An answer without one of its fragments is of no use.
        match crate::frag::split_frame(&frame, self.receiveq.link.mtu, id).unwrap_or_default() {
            mut whole if whole.len() == 1 => whole.drain(..).for_each(|frame| self.receiveq.queue(frame)),
            fragments => {
                if !self.receiveq.queue_all(fragments) {
                    self.counters.count_drop(Reason::NoRxBuffer);
                }
            }
        }
    }

    /// Relays an error about an echo request.
    pub(super) fn on_echo_error(&mut self, key: &Key, e: &SocketError, kind: IcmpError) {
        let Some(to) = e.destination else { return };
        let Some(header) = e.payload.first_chunk::<ECHO_HEADER>() else { return };
        let seq = u16::from_be_bytes([header[6], header[7]]);
        let data = &e.payload[ECHO_HEADER..];
        if let Some(quote) = icmp::quote_echo(key.guest.ip(), to.ip(), key.guest.port(), seq, data) {
            self.tell(kind, e.offender, key.guest.ip(), &quote);
        }
    }
}
