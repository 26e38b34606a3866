//! A TCP flow: its connection towards the guest, its socket, and what is between them.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::Socket;

use crate::control::{FlowInfo, FlowKind, SocketInfo, TcpInfo};
use crate::flow::Key;
use crate::sockets::{self, IpFields};
use crate::state::{self, Descriptors, Missing, Named};
use crate::sys;
use crate::tcp::{Command, Config, Conn, PodState};
use crate::time::Time;
use crate::worker::held::Held;
use crate::worker::room::Room;
use crate::worker::turn::fd;

/// Payload bytes asked of a socket at first; doubles while it has more and shrinks back when it has not.
pub(in crate::worker) const FIRST_READ: u32 = 16 << 10;

/// A TCP flow.
pub(in crate::worker) struct TcpFlow {
    pub(in crate::worker) conn: Conn,
    /// None once both directions have ended.
    pub(in crate::worker) socket: Option<Socket>,
    pub(in crate::worker) pod_peer: SocketAddr,
    pub(in crate::worker) from_guest: bool,
    /// The kernel keeps the peek offset.
    pub(in crate::worker) kernel_offset: bool,
    /// The socket has, or may have, data that was not peeked.
    pub(in crate::worker) readable: bool,
    /// The peer has closed: a read will find the end.
    pub(in crate::worker) peer_closed: bool,
    /// The peer's urgent mark is in the socket, or was when epoll last told of it: a read ends there, and that it was
    /// short does not say that there is no more.
    pub(in crate::worker) urgent: bool,
    /// Stands in `Queues`.
    pub(in crate::worker) queued: bool,
    /// In the list of connections that are being opened; see [`crate::worker::evict`].
    pub(in crate::worker) opening: bool,
    /// The socket is being repaired: the worker does not touch it, and the guest's segments are lost. See [`crate::worker::parked`].
    pub(in crate::worker) parked: bool,
    /// Payload of the guest that came out of order.
    pub(in crate::worker) held: Option<Box<Held>>,
    /// The socket's state is to be read, whatever the connection has planned ([`Conn::wants_pod_state`]): a near peer was sent
    /// something, or the buffer may have drained.
    pub(in crate::worker) stale: bool,
    pub(in crate::worker) room: Room,
    /// The peer is near: see [`Config::ack_queued_rtt`].
    pub(in crate::worker) near: bool,
    /// `tcpi_bytes_acked` when the connection opened: the SYN counts or not, depending on the direction.
    acked_base: u64,
    pub(in crate::worker) want: u32,
    /// What the socket's packets say, as the guest's did last; none before its first.
    pub(in crate::worker) fields: Option<IpFields>,
    /// Segments sent again that the counters know of.
    pub(in crate::worker) retransmits: u32,
    pub(in crate::worker) bytes_to_pod: u64,
    pub(in crate::worker) bytes_to_guest: u64,
    pub(in crate::worker) used: Time,
    /// Segments by the ring of the flow's own worker, since another one last asked for the flow.
    pub(in crate::worker) own_segments: u32,
}

impl TcpFlow {
    pub(in crate::worker) fn new(
        conn: Conn,
        socket: Socket,
        pod_peer: SocketAddr,
        from_guest: bool,
        kernel_offset: bool,
        now: Time,
    ) -> Self {
        TcpFlow {
            conn,
            socket: Some(socket),
            pod_peer,
            from_guest,
            kernel_offset,
            readable: false,
            peer_closed: false,
            urgent: false,
            queued: false,
            opening: false,
            parked: false,
            held: None,
            stale: false,
            room: Room::default(),
            near: false,
            acked_base: 0,
            want: FIRST_READ,
            fields: None,
            retransmits: 0,
            bytes_to_pod: 0,
            bytes_to_guest: 0,
            used: now,
            own_segments: 0,
        }
    }

    /// The flow for a successor.
    pub(in crate::worker) fn state<'a>(&'a self, key: &Key, named: &mut Named<'a>) -> state::TcpFlow {
        state::TcpFlow {
            key: (key.guest, key.peer),
            pod_peer: self.pod_peer,
            from_guest: self.from_guest,
            socket: self.socket.as_ref().map(|s| named.name(fd(s))),
            kernel_offset: self.kernel_offset,
            peer_closed: self.peer_closed,
            near: self.near,
            acked_base: self.acked_base,
            bytes_to_pod: self.bytes_to_pod,
            bytes_to_guest: self.bytes_to_guest,
            used: self.used,
            conn: self.conn.clone(),
            ttl: self.fields.map_or(0, |fields| fields.ttl),
            dscp: self.fields.map_or(0, |fields| fields.dscp),
        }
    }

    /// A flow of a predecessor. Everything that its socket may have to say is asked for anew.
    pub(in crate::worker) fn from_state(
        state: state::TcpFlow,
        config: Config,
        fds: &mut Descriptors,
    ) -> Result<Self, Missing> {
        let mut conn = state.conn;
        conn.adopt(config);
        let socket = fds.take_if(state.socket)?.map(Socket::from);
        // A predecessor may not have known of these.
        if let Some(Err(error)) = socket.as_ref().map(sockets::in_line) {
            tracing::debug!(peer = %state.pod_peer, %error, "SO_OOBINLINE");
        }
        if !conn.guest_closed() {
            socket.as_ref().inspect(|s| sockets::abort_on_close(s));
        }
        Ok(TcpFlow {
            socket,
            pod_peer: state.pod_peer,
            from_guest: state.from_guest,
            kernel_offset: state.kernel_offset,
            readable: true,
            peer_closed: state.peer_closed,
            // epoll tells of it once the socket is watched.
            urgent: false,
            queued: false,
            opening: false,
            parked: false,
            stale: true,
            room: Room::default(),
            near: state.near,
            acked_base: state.acked_base,
            want: FIRST_READ,
            fields: (state.ttl > 0).then_some(IpFields { ttl: state.ttl, dscp: state.dscp & !3 }),
            own_segments: 0,
            retransmits: conn.retransmits(),
            bytes_to_pod: state.bytes_to_pod,
            bytes_to_guest: state.bytes_to_guest,
            used: state.used,
            // It was never acknowledged: the guest sends it again.
            held: None,
            conn,
        })
    }

    /// Has the socket's packets say what the guest's do.
    #[cold]
    pub(in crate::worker) fn set_fields(&mut self, fields: IpFields) {
        let Some(s) = &self.socket else { return };
        if let Err(error) = sockets::set_ip_fields(s, self.pod_peer.ip(), fields, self.fields) {
            tracing::debug!(peer = %self.pod_peer, ?fields, %error, "IP fields");
        }
        self.fields = Some(fields);
    }

    /// The flow has come from another machine: its socket is a new one, and its peer may be further away, or nearer.
    pub(in crate::worker) fn on_moved(&mut self) {
        self.near = false;
        if let Some(fields) = self.fields.take() {
            self.set_fields(fields);
        }
    }

    /// The worker does not touch the socket from now on; see [`crate::worker::parked`].
    pub(in crate::worker) fn park(&mut self) {
        (self.parked, self.readable) = (true, false);
    }

    /// The socket is as any other again. Everything that it may have to say is asked for anew.
    pub(in crate::worker) fn unpark(&mut self) {
        (self.parked, self.readable, self.stale) = (false, true, true);
    }

    /// Ends a connection that has just come from another machine: the guest hears it when it runs, the peer when the socket's
    /// repair has ended, after which it is closed.
    pub(in crate::worker) fn refuse(&mut self) {
        self.reset_peer();
        self.socket = None;
        self.conn.on_pod_error();
    }

    /// The socket broke. What the peer has sent before is read first; the end that such a read finds is the RST.
    pub(in crate::worker) fn on_broken(&mut self) {
        let queued = self.socket.as_ref().and_then(|s| sys::received_bytes(fd(s)).ok());
        self.conn.on_pod_broken(queued.unwrap_or(0));
        self.readable = true;
    }

    /// Ends the connection with its peer by a RST.
    pub(in crate::worker) fn reset_peer(&self) {
        if let Some(socket) = &self.socket {
            sockets::abort_on_close(socket);
        }
    }

    pub(in crate::worker) fn info(&self, key: &Key, now: Time) -> FlowInfo {
        FlowInfo {
            kind: FlowKind::Tcp,
            // While its socket is repaired after a migration nothing else can be said of it.
            state: if self.parked { "REPAIR" } else { self.conn.state().name() },
            from_guest: self.from_guest,
            guest: key.guest,
            guest_peer: key.peer,
            pod_peer: self.pod_peer,
            bytes_to_pod: self.bytes_to_pod,
            bytes_to_guest: self.bytes_to_guest,
            retransmits: self.conn.retransmits(),
            idle: now.since(self.used),
            tcp: Some(self.tcp_info()),
        }
    }

    fn tcp_info(&self) -> TcpInfo {
        let facts = self.conn.facts();
        TcpInfo {
            guest_rtt: facts.rtt,
            in_flight: facts.in_flight,
            guest_window: facts.send_window,
            pod_window: facts.receive_window,
            socket: None,
        }
    }

    /// What the kernel tells of the socket: two system calls.
    pub(in crate::worker) fn socket_info(&self) -> Option<SocketInfo> {
        let s = self.socket.as_ref()?;
        let info = sys::tcp_info(fd(s)).ok()?;
        let sent = info.bytes_sent.saturating_sub(info.bytes_retrans);
        // The base of a connection from another machine lies before zero.
        let acked = info.bytes_acked.checked_sub(self.acked_base).unwrap_or(info.bytes_acked);
        Some(SocketInfo {
            rtt: Duration::from_micros(info.rtt.into()),
            retransmits: info.total_retrans,
            send_queue: sent.saturating_sub(acked) + u64::from(info.notsent_bytes),
            receive_queue: sys::received_bytes(fd(s)).unwrap_or(0).into(),
        })
    }

    /// How long the kernel has not heard of the peer.
    pub(in crate::worker) fn peer_silence(&self) -> Option<Duration> {
        let info = sys::tcp_info(fd(self.socket.as_ref()?)).ok()?;
        Some(Duration::from_millis(info.last_ack_recv.min(info.last_data_recv).into()))
    }

    /// The socket's state as the connection opens, from where the kernel's acknowledged bytes are counted.
    pub(in crate::worker) fn opening_state(&mut self) -> Option<PodState> {
        let s = self.socket.as_ref()?;
        let buffer = sys::send_buffer(fd(s)).ok()?;
        let info = sys::tcp_info(fd(s)).ok()?;
        self.room.see(buffer);
        self.acked_base = info.bytes_acked;
        self.near = self.is_near(info.min_rtt);
        let space = usable(buffer.free());
        Some(PodState {
            space,
            acked: 0,
            peer_window: info.snd_wnd,
            near: self.near,
            rtt: shortest(info.min_rtt),
            notifies: false,
        })
    }

    fn is_near(&self, rtt: u32) -> bool {
        u128::from(rtt) <= self.conn.config().ack_queued_rtt.as_micros()
    }

    /// The socket's state for [`Conn`], and whether epoll must be asked to tell of free space.
    pub(in crate::worker) fn pod_state(&mut self) -> Option<(PodState, bool)> {
        let s = self.socket.as_ref()?;
        let near = |space| {
            let rtt = Duration::ZERO;
            PodState { space, acked: 0, peer_window: u32::MAX >> 1, near: true, rtt, notifies: false }
        };
        if self.near
            && let Some(free) = self.room.known()
        {
            return Some((near(usable(free)), false));
        }
        let buffer = sys::send_buffer(fd(s)).ok()?;
        self.room.see(buffer);
        let notifies = !buffer.writable();
        let mut state = PodState { near: self.near, notifies, ..near(usable(buffer.free())) };
        if !self.near
            && let Ok(info) = sys::tcp_info(fd(s))
        {
            self.near = self.is_near(info.min_rtt);
            state.near = self.near;
            state.rtt = shortest(info.min_rtt);
            state.acked = info.bytes_acked.wrapping_sub(self.acked_base) as u32;
            state.peer_window = info.snd_wnd;
        }
        Some((state, notifies))
    }

    /// Does what the connection asks for on the socket.
    pub(in crate::worker) fn carry_out(&mut self, command: Command) -> io::Result<()> {
        let Some(s) = &self.socket else { return Ok(()) };
        match command {
            Command::Consume(n) => {
                let mut left = n;
                while left > 0 {
                    match sys::discard(fd(s), left)? {
                        0 => break,
                        done => left -= (done as u32).min(left),
                    }
                }
                // A peek from the queue's first byte gets beyond the mark only once that is the first byte.
                self.readable |= self.urgent && !self.kernel_offset;
            }
            Command::Rewind => {
                if self.kernel_offset {
                    sys::enable_peek_offset(fd(s), 0)?;
                }
                self.readable = true;
            }
            Command::Keepalive(seconds) => {
                if let Err(error) = sockets::set_keepalive_interval(s, seconds) {
                    tracing::debug!(peer = %self.pod_peer, seconds, %error, "keepalives");
                }
            }
            Command::ShutdownWrite => {
                s.shutdown(std::net::Shutdown::Write)?;
                sockets::finish_on_close(s);
            }
            Command::Abort => {
                sockets::abort_on_close(s);
                self.socket = None;
            }
        }
        Ok(())
    }
}

/// The kernel's shortest round trip in microseconds; zero before the first, where it has the largest number.
fn shortest(min_rtt: u32) -> Duration {
    if min_rtt == u32::MAX { Duration::ZERO } else { Duration::from_micros(min_rtt.into()) }
}

/// What the guest may fill of free room: an eighth is left for the kernel's own bookkeeping per segment, which counts
/// as well.
fn usable(free: u32) -> u32 {
    free - free / 8
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::sockets::{PeekOffset, SourcePort, connect};
    use crate::tcp::{Segment, Seq};
    use crate::wire::TcpFlags;

    /// A flow that the guest has opened to the listener, and the listener's end of it.
    fn opened() -> (TcpFlow, std::net::TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let peer = listener.local_addr().unwrap();
        let syn = Segment {
            seq: Seq(1),
            ack: Seq(0),
            flags: TcpFlags::SYN,
            window: 1000,
            len: 0,
            mss: None,
            window_scale: None,
        };
        let conn = Conn::open_by_guest(Config::default(), 1, &syn, Time::ZERO);
        let usual = IpFields { ttl: 64, dscp: 0 };
        let socket = connect(peer, SourcePort::Any, usual, PeekOffset::NONE).unwrap();
        let accepted = listener.accept().unwrap().0;
        accepted.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        (TcpFlow::new(conn, socket, peer, true, false, Time::ZERO), accepted)
    }

    #[test]
    fn what_the_guest_has_not_closed_is_reset_with_its_flow_and_what_it_has_closed_goes_out() {
        for closed in [false, true] {
            let (mut flow, mut peer) = opened();
            flow.socket.as_ref().unwrap().send(b"half").unwrap();
            if closed {
                flow.carry_out(Command::ShutdownWrite).unwrap();
            }
            drop(flow);
            let mut got = Vec::new();
            let end = peer.read_to_end(&mut got).map_err(|e| e.kind());
            assert_eq!(end, if closed { Ok(4) } else { Err(io::ErrorKind::ConnectionReset) });
        }
    }

    #[test]
    fn a_flow_that_has_moved_does_not_take_its_peer_for_near_and_has_its_fields() {
        let (mut flow, _peer) = opened();
        (flow.near, flow.fields) = (true, Some(IpFields { ttl: 200, dscp: 0x28 }));
        flow.on_moved();
        assert!(!flow.near);
        let socket = flow.socket.as_ref().unwrap();
        assert_eq!((socket.ttl_v4().unwrap(), socket.tos_v4().unwrap()), (200, 0x28));
        // The kernel tells how far the peer is from here, and its window.
        assert!(flow.pod_state().unwrap().0.peer_window < u32::MAX >> 1);
    }
}
