//! TCP connections that open, and those that are refused.

use std::io;
use std::net::SocketAddr;

use socket2::Socket;

use super::flows::Flow;
use super::flows::TcpFlow;
use super::stream::is_exhausted;
use super::turn::{Worker, fd, watch};
use crate::counters::Reason;
use crate::flow::{FlowId, Key, Kind};
use crate::icmp::IcmpError;
use crate::shared::Side;
use crate::sockets::{self, IpFields};
use crate::tcp::{Config, Conn, IN_FLIGHT, IN_FLIGHT_COPIED, Segment, Seq};
use crate::wire::{EthIp, MAX_HEADERS, TcpFlags, TcpMeta, build_tcp};

impl Worker {
    /// The tunables of a connection of this family; `kernel_offset`: the kernel keeps its peek offset.
    pub(super) fn tcp_config(&self, like: std::net::IpAddr, kernel_offset: bool) -> Config {
        let headers = if like.is_ipv4() { 40 } else { 60 };
        Config {
            mss: self.receiveq.link.mtu.saturating_sub(headers).max(64),
            time_wait: self.timeouts.tcp_time_wait,
            keepalive: self.timeouts.tcp_idle,
            handshake: self.timeouts.tcp_handshake,
            in_flight: if kernel_offset { IN_FLIGHT } else { IN_FLIGHT_COPIED },
            ..Config::default()
        }
    }

    /// A segment that belongs to no connection (RFC 9293 3.10.7.1 and 3.10.7.2).
    pub(super) fn on_stray_segment(
        &mut self,
        key: Key,
        segment: &Segment,
        fields: IpFields,
    ) -> Result<(), Reason> {
        let answers = self.is_answer(&key, segment);
        if segment.flags.has(TcpFlags::RST) {
            return if answers { Ok(()) } else { Err(Reason::NoConnection) };
        }
        if !segment.flags.has(TcpFlags::SYN) || segment.flags.has(TcpFlags::ACK) {
            self.reset_guest(&key, segment);
            return if answers { Ok(()) } else { Err(Reason::NoConnection) };
        }
        let refused = self.open_by_guest(key, segment, fields);
        if refused.is_err() {
            self.reset_guest(&key, segment);
        }
        refused
    }

    fn open_by_guest(&mut self, key: Key, syn: &Segment, fields: IpFields) -> Result<(), Reason> {
        let link = &self.receiveq.link;
        // What is left of the guest's addresses is link-local, and such traffic goes no further than the link.
        if link.guest_address(key.guest.ip()) != Some(key.guest.ip()) {
            return Err(Reason::Denied);
        }
        let pod_peer = link.way_out(Kind::Tcp, key.peer)?;
        // The rate first: what it refuses must not cost another flow its place.
        if !self.peers.shared.budget.admit(Side::Guest, self.now) {
            return Err(Reason::FlowRate);
        }
        if !self.has_room_for_flow(Side::Guest) {
            return Err(Reason::FlowLimit);
        }
        let to = pod_peer.ip();
        let kernel_offset = self.peek.of(to);
        let config = self.tcp_config(to, kernel_offset);
        let conn = Conn::open_by_guest(config, self.initial_sequence(&key), syn, self.now);
        self.counters.tcp_opened_by_guest.add(1);
        let from = self.source_ports.choose(key.guest.port(), to);
        let socket = match sockets::connect(pod_peer, from, fields, self.peek) {
            Ok(s) => s,
            Err(e) if is_exhausted(&e) => return Err(Reason::SocketLimit),
            Err(e) => {
                self.refuse(&key, syn.seq, &e);
                return Ok(());
            }
        };
        let mut flow = TcpFlow::new(conn, socket, pod_peer, true, kernel_offset, self.now);
        flow.fields = Some(fields);
        self.insert_stream(key, flow).map(|_| ())
    }

    fn insert_stream(&mut self, key: Key, flow: TcpFlow) -> Result<FlowId, Reason> {
        let id = self.flows.insert(key, Flow::Tcp(Box::new(flow)))?;
        let ok = match self.flows.get_mut(id) {
            Some(Flow::Tcp(f)) => f.socket.as_ref().is_some_and(|s| watch(&self.epoll, fd(s), id).is_ok()),
            _ => false,
        };
        if !ok {
            self.flows.remove(id);
            return Err(Reason::SocketLimit);
        }
        self.settle_stream(id);
        Ok(id)
    }

    /// The pod accepted a connection: it is opened towards the guest.
    pub(super) fn open_by_pod(
        &mut self,
        key: Key,
        socket: Socket,
        pod_peer: SocketAddr,
    ) -> Result<(), Reason> {
        let kernel_offset = self.peek.of_socket(&socket);
        let config = self.tcp_config(key.guest.ip(), kernel_offset);
        let conn = Conn::open_by_pod(config, self.initial_sequence(&key), self.now);
        let mut flow = TcpFlow::new(conn, socket, pod_peer, false, kernel_offset, self.now);
        if let Some(state) = flow.opening_state() {
            flow.conn.on_accepted(&state);
        }
        self.counters.tcp_opened_by_pod.add(1);
        if self.receiveq.guest_mac.is_none() {
            let link = self.receiveq.link.clone();
            crate::guest::Services::solicit(&link, &mut self.frames);
            self.send_frames();
        }
        self.insert_stream(key, flow).map(|_| ())
    }

    /// Tells the guest that there is no connection for its segment.
    fn reset_guest(&mut self, key: &Key, segment: &Segment) {
        let occupied = segment.len
            + u32::from(segment.flags.has(TcpFlags::SYN))
            + u32::from(segment.flags.has(TcpFlags::FIN));
        // RFC 9293 3.10.7.1.
        let (seq, ack, flags) = if segment.flags.has(TcpFlags::ACK) {
            (segment.ack, Seq(0), TcpFlags::RST)
        } else {
            (Seq(0), segment.seq.plus(occupied), TcpFlags::RST.with(TcpFlags::ACK))
        };
        let Some(ends) = self.receiveq.ends(key, None) else { return };
        let meta = TcpMeta {
            src_port: ends.src_port,
            dst_port: ends.dst_port,
            seq: seq.0,
            ack: ack.0,
            flags,
            window: 0,
            mss: None,
            window_scale: None,
            payload_len: 0,
            gso_size: None,
        };
        self.write_headers(&ends.at, &meta);
    }

    pub(super) fn write_headers(&mut self, at: &EthIp, meta: &TcpMeta) {
        let mut b = [0; MAX_HEADERS];
        let end = build_tcp(&mut b, at, meta);
        // Without a buffer the segment is lost, as on a wire: the guest sends its own again.
        if self.receiveq.frame(&b[..end], &[]).is_err() {
            self.counters.count_drop(Reason::NoRxBuffer);
        }
    }

    /// The pod cannot connect: the guest learns why.
    pub(super) fn refuse(&mut self, key: &Key, syn: Seq, error: &io::Error) {
        self.counters.tcp_refused.add(1);
        tracing::debug!(peer = %key.peer, %error, "connect refused");
        let kind = match error.raw_os_error() {
            Some(libc::ENETUNREACH) => IcmpError::NetUnreachable,
            Some(libc::EHOSTUNREACH | libc::ETIMEDOUT | libc::EHOSTDOWN) => IcmpError::HostUnreachable,
            Some(libc::EACCES | libc::EPERM) => IcmpError::AdminProhibited,
            _ => {
                let segment = Segment {
                    seq: syn,
                    ack: Seq(0),
                    flags: TcpFlags::SYN,
                    window: 0,
                    len: 0,
                    mss: None,
                    window_scale: None,
                };
                return self.reset_guest(key, &segment);
            }
        };
        if let Some(quote) = crate::icmp::quote_tcp_syn(key.guest, key.peer, syn.0) {
            self.tell(kind, None, key.guest.ip(), &quote);
        }
    }
}
