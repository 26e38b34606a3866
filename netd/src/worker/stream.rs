//! TCP flows: what connects [`Conn`] to a socket and to the guest's rings.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nix::sys::epoll::EpollFlags;
use socket2::Socket;

use super::flows::Flow;
use super::held::Held;
use super::room::Room;
use super::transmit::TxFrame;
use super::transmit::gather::Gather;
use super::turn::{Worker, fd, watch_again};
use crate::control::{FlowInfo, FlowKind, SocketInfo, TcpInfo};
use crate::counters::Reason;
use crate::flow::{FlowId, Key};
use crate::ring::Iovs;
use crate::sockets;
use crate::state::{self, Descriptors, Missing, Named};
use crate::sys;
use crate::tcp::{Command, Config, Conn, PodState, Segment, State};
use crate::time::Time;
use crate::wire::{TcpFlags, TcpMeta};

/// Payload bytes asked of a socket at first; doubles while it has more and shrinks back when it has not.
pub(super) const FIRST_READ: u32 = 16 << 10;
/// Slices of one flow in a batch, below IOV_MAX.
const GATHER_SLICES: usize = 512;

/// Deadlines that are nearer than this are taken back when they are off: they would come up before long.
const SOON: Duration = Duration::from_millis(5);

/// A TCP flow.
pub(super) struct TcpFlow {
    pub(super) conn: Conn,
    /// None once both directions have ended.
    pub(super) socket: Option<Socket>,
    pub(super) pod_peer: SocketAddr,
    pub(super) from_guest: bool,
    /// The kernel keeps the peek offset.
    pub(super) kernel_offset: bool,
    /// The socket has, or may have, data that was not peeked.
    pub(super) readable: bool,
    /// The peer has closed: a read will find the end.
    pub(super) peer_closed: bool,
    /// The peer's urgent mark is in the socket, or was when epoll last told of it: a read ends there, and that it was
    /// short does not say that there is no more.
    pub(super) urgent: bool,
    /// Stands in `Queues`.
    pub(super) queued: bool,
    /// In the list of connections that are being opened; see [`super::evict`].
    pub(super) opening: bool,
    /// The socket is being repaired: the worker does not touch it, and the guest's segments are lost. See [`super::parked`].
    pub(super) parked: bool,
    /// Payload of the guest that came out of order.
    held: Option<Box<Held>>,
    /// Something was sent to the socket, or its buffer may have drained: its state is to be read.
    stale: bool,
    room: Room,
    /// The peer is near: see [`Config::ack_queued_rtt`].
    near: bool,
    /// `tcpi_bytes_acked` when the connection opened: the SYN counts or not, depending on the direction.
    acked_base: u64,
    pub(super) want: u32,
    /// Segments sent again that the counters know of.
    retransmits: u32,
    bytes_to_pod: u64,
    pub(super) bytes_to_guest: u64,
    pub(super) used: Time,
    /// Segments by the ring of the flow's own worker, since another one last asked for the flow.
    pub(super) own_segments: u32,
}

impl TcpFlow {
    pub(super) fn new(
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
            retransmits: 0,
            bytes_to_pod: 0,
            bytes_to_guest: 0,
            used: now,
            own_segments: 0,
        }
    }

    /// The flow for a successor.
    pub(super) fn state<'a>(&'a self, key: &Key, named: &mut Named<'a>) -> state::TcpFlow {
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
        }
    }

    /// A flow of a predecessor. Everything that its socket may have to say is asked for anew.
    pub(super) fn from_state(
        state: state::TcpFlow,
        config: Config,
        fds: &mut Descriptors,
    ) -> Result<Self, Missing> {
        let mut conn = state.conn;
        conn.adopt(config);
        let socket = fds.take_if(state.socket)?.map(Socket::from);
        // A predecessor may not have known of it.
        if let Some(Err(error)) = socket.as_ref().map(sockets::in_line) {
            tracing::debug!(peer = %state.pod_peer, %error, "SO_OOBINLINE");
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

    /// The worker does not touch the socket from now on; see [`super::parked`].
    pub(super) fn park(&mut self) {
        (self.parked, self.readable) = (true, false);
    }

    /// The socket is as any other again. Everything that it may have to say is asked for anew.
    pub(super) fn unpark(&mut self) {
        (self.parked, self.readable, self.stale) = (false, true, true);
    }

    /// Ends a connection that has just come from another machine: the guest hears it when it runs, the peer when the socket's
    /// repair has ended, after which it is closed.
    pub(super) fn refuse(&mut self) {
        self.reset_peer();
        self.socket = None;
        self.conn.on_pod_error();
    }

    /// Ends the connection with its peer by a RST.
    pub(super) fn reset_peer(&self) {
        if let Some(socket) = &self.socket {
            sockets::abort_on_close(socket);
        }
    }

    pub(super) fn info(&self, key: &Key, now: Time) -> FlowInfo {
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
    pub(super) fn socket_info(&self) -> Option<SocketInfo> {
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

    /// The socket's state as the connection opens, from where the kernel's acknowledged bytes are counted.
    pub(super) fn opening_state(&mut self) -> Option<PodState> {
        let s = self.socket.as_ref()?;
        let buffer = sys::send_buffer(fd(s)).ok()?;
        let info = sys::tcp_info(fd(s)).ok()?;
        self.room.see(buffer);
        self.acked_base = info.bytes_acked;
        self.near = self.is_near(info.min_rtt);
        let space = usable(buffer.free());
        Some(PodState { space, acked: 0, peer_window: info.snd_wnd, near: self.near })
    }

    fn is_near(&self, rtt: u32) -> bool {
        u128::from(rtt) <= self.conn.config().ack_queued_rtt.as_micros()
    }

    /// The socket's state for [`Conn`], and whether epoll must be asked to tell of free space.
    pub(super) fn pod_state(&mut self) -> Option<(PodState, bool)> {
        let s = self.socket.as_ref()?;
        let near = |space| PodState { space, acked: 0, peer_window: u32::MAX >> 1, near: true };
        if self.near
            && let Some(free) = self.room.known()
        {
            return Some((near(usable(free)), false));
        }
        let buffer = sys::send_buffer(fd(s)).ok()?;
        self.room.see(buffer);
        let mut state = PodState { near: self.near, ..near(usable(buffer.free())) };
        if !self.near
            && let Ok(info) = sys::tcp_info(fd(s))
        {
            self.near = self.is_near(info.min_rtt);
            state.near = self.near;
            state.acked = info.bytes_acked.wrapping_sub(self.acked_base) as u32;
            state.peer_window = info.snd_wnd;
        }
        Some((state, !buffer.writable()))
    }

    /// Does what the connection asks for on the socket.
    fn carry_out(&mut self, command: Command) -> io::Result<()> {
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
            Command::ShutdownWrite => s.shutdown(std::net::Shutdown::Write)?,
            Command::Abort => {
                sockets::abort_on_close(s);
                self.socket = None;
            }
        }
        Ok(())
    }
}

impl Worker {
    /// A segment of the guest whose payload starts `payload` bytes into the frame.
    pub(super) fn on_stream_segment(
        &mut self,
        key: Key,
        segment: &Segment,
        frame: &TxFrame<'_>,
        payload: usize,
    ) -> Result<(), Reason> {
        let Some(id) = self.flows.find(&key) else {
            let opens = segment.flags.has(TcpFlags::SYN) && !segment.flags.has(TcpFlags::ACK);
            if self.pass_on(&key, frame, opens) {
                return Ok(());
            }
            return self.on_stray_segment(key, segment);
        };
        let crowded = self.tx.gathers.slices_of(id).map_or(self.tx.gathers.is_full(), |n| n > GATHER_SLICES);
        if segment.len > 0 && crowded {
            self.flush_gathers();
        }
        let Some(Flow::Tcp(f)) = self.flows.get_mut(id) else { return Err(Reason::NoConnection) };
        if f.parked {
            return Err(Reason::TcpNoRoom);
        }
        let refused = segment.flags.has(TcpFlags::RST) && f.conn.state() == State::SynSent;
        let input = f.conn.on_segment(segment, self.now);
        f.used = self.now;
        f.own_segments = f.own_segments.saturating_add(u32::from(self.peers.hops == 0));
        if input.reopen {
            self.flows.remove(id);
            return self.on_stray_segment(key, segment);
        }
        let mut kept = false;
        if input.hold {
            let held = f.held.get_or_insert_with(|| Box::new(Held::new(self.hold_budget.clone())));
            let len = segment.len as usize;
            kept = held.keep(segment.seq, len, || {
                let mut copy = vec![0; len];
                frame.slices.read(frame.first, payload, &mut copy);
                copy
            });
        }
        let gaps = f.held.is_some();
        if input.take > 0 {
            let g = self.tx.gathers.of(id);
            let from = payload + input.skip as usize;
            g.bytes += g.iovs.append_from(frame.slices, frame.first, from, input.take as usize) as u32;
            if gaps {
                self.release_gap(id);
            }
        }
        self.touch(id);
        if refused {
            self.on_client_refused(key.guest.port());
        }
        input.dropped.filter(|_| !kept).map_or(Ok(()), Err)
    }

    /// A gap may have been filled: what was kept behind it follows.
    #[cold]
    fn release_gap(&mut self, id: FlowId) {
        let Some(Flow::Tcp(f)) = self.flows.get_mut(id) else { return };
        let Some(held) = f.held.as_mut() else { return };
        while let Some((seq, payload)) = held.take(f.conn.next_from_guest()) {
            let input = f.conn.on_held(seq, payload.len() as u32, self.now);
            if input.take > 0 {
                let g = self.tx.gathers.of(id);
                let payload = Iovs::from_owned(payload);
                g.bytes += g.iovs.append(&payload, input.skip as usize, input.take as usize) as u32;
            }
        }
        if held.is_empty() {
            f.held = None;
        }
    }

    /// Sends a flow's gathered payload.
    pub(super) fn flush_stream(&mut self, g: &Gather) {
        let Some(Flow::Tcp(f)) = self.flows.get_mut(g.flow) else { return };
        let Some(s) = &f.socket else { return };
        let sent = match sys::send(fd(s), &g.iovs) {
            Ok(n) => n as u32,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock || is_exhausted(&e) => 0,
            Err(error) => {
                tracing::debug!(peer = %f.pod_peer, %error, "send");
                f.conn.on_pod_error();
                0
            }
        };
        let short = sent < g.bytes;
        f.stale = true;
        f.room.take(sent);
        if short {
            f.room.forget();
        }
        f.bytes_to_pod += u64::from(sent);
        self.counters.tcp_bytes_to_pod.add(u64::from(sent));
        f.conn.on_flushed(g.bytes, sent, self.now);
        if short {
            self.counters.count_drop(Reason::TcpNoRoom);
        }
    }

    /// An event of a connection's socket.
    pub(super) fn on_stream_event(&mut self, id: FlowId, events: EpollFlags) {
        let Some(Flow::Tcp(f)) = self.flows.get_mut(id).filter(|f| !f.is_parked()) else { return };
        let Some(s) = &f.socket else { return };
        if f.conn.state() == State::Connecting {
            if events.intersects(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP)
                && let Some(error) = sockets::take_error(s)
            {
                return self.on_connect_failed(id, &error);
            }
            if !events.contains(EpollFlags::EPOLLOUT) || events.contains(EpollFlags::EPOLLHUP) {
                return;
            }
            self.counters.tcp_connect.observe(f.conn.opening_for(self.now));
            if let Some(state) = f.opening_state() {
                f.conn.on_connected(&state);
            }
        } else if events.contains(EpollFlags::EPOLLERR)
            && let Some(error) = sockets::take_error(s)
        {
            tracing::debug!(peer = %f.pod_peer, %error, "connection broke");
            f.conn.on_pod_error();
        }
        let comes =
            EpollFlags::EPOLLIN | EpollFlags::EPOLLPRI | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP;
        if events.intersects(comes) {
            f.readable = true;
            f.urgent = events.contains(EpollFlags::EPOLLPRI);
            f.peer_closed |= events.intersects(EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP);
        }
        // A socket is writable whenever something else happens to it as well. That is news to who waits for room, and
        // to who counts what a far peer has acknowledged.
        f.stale |= events.contains(EpollFlags::EPOLLOUT) && (f.room.is_awaited() || !f.near);
        self.settle_stream(id);
    }

    fn on_connect_failed(&mut self, id: FlowId, error: &io::Error) {
        let Some((key, Flow::Tcp(f))) = self.flows.remove(id) else { return };
        let syn = f.conn.guest_isn();
        self.refuse(&key, syn, error);
    }

    /// A connection's deadline.
    pub(super) fn on_stream_deadline(&mut self, id: FlowId) {
        if let Some(Flow::Tcp(f)) = self.flows.get_mut(id) {
            if !f.parked && f.conn.wants_pod_state(self.now) {
                f.stale = true;
                f.room.forget();
            }
            // Without a ring nothing can be sent again: the guest is stopped, not lost.
            if !f.parked && (self.port.rx.is_some() || f.conn.is_done_with_socket()) {
                f.conn.on_timer(self.now);
            } else {
                let later = self.now + Duration::from_secs(1);
                self.flows.arm(id, later);
                return;
            }
        }
        self.settle_stream(id);
    }

    /// Everything that a connection has to do now, except moving data to the guest.
    pub(super) fn settle_stream(&mut self, id: FlowId) {
        let now = self.now;
        let Some(Flow::Tcp(f)) = self.flows.get_mut(id).filter(|f| !f.is_parked()) else { return };
        f.conn.on_flushed(0, 0, now);
        let mut rewatch = false;
        if std::mem::take(&mut f.stale)
            && !f.conn.is_done_with_socket()
            && let Some((state, full)) = f.pod_state()
        {
            f.conn.on_pod(&state, now);
            rewatch = full;
        }
        self.send_controls(id);
        let Some(Flow::Tcp(f)) = self.flows.get_mut(id) else { return };
        while let Some(command) = f.conn.command() {
            if let Err(error) = f.carry_out(command) {
                tracing::debug!(peer = %f.pod_peer, ?command, %error, "socket");
                f.conn.on_pod_error();
            }
        }
        let counted = std::mem::replace(&mut f.retransmits, f.conn.retransmits());
        self.counters.tcp_retransmits.add(u64::from(f.retransmits.wrapping_sub(counted)));
        let ended = f.conn.is_done_with_socket() && f.socket.take().is_some();
        if f.conn.is_closed() {
            self.flows.remove(id);
            return;
        }
        // Only a flow that may send is made ready: one that waits for the guest's window would turn the loop for
        // nothing, and the guest's segment wakes it. Asking for the budget starts the persist timer.
        let ready = f.readable && f.conn.budget(now).is_some();
        let opened = f.opening && !f.conn.is_opening();
        let at = f.conn.poll_at();
        if rewatch && let Some(s) = &f.socket {
            watch_again(&self.epoll, fd(s), id);
        }
        if let Some(at) = at {
            // An acknowledgement that went with data is not to be seen to any more.
            self.flows.arm_before(id, at, now + SOON);
        }
        if opened {
            self.flows.rank_opening(id);
        }
        if ended {
            self.note_over(id);
        }
        if ready {
            self.make_ready(id);
        }
    }

    /// Writes the control segments that the connection has.
    fn send_controls(&mut self, id: FlowId) {
        let Some(key) = self.flows.key(id).copied() else { return };
        let Some(ends) = self.port.ends(&key, None) else { return };
        loop {
            if !self.port.has_room() {
                if self.port.rx.is_some() {
                    self.make_ready(id);
                }
                return;
            }
            let Some(Flow::Tcp(f)) = self.flows.get_mut(id) else { return };
            let Some(c) = f.conn.poll(self.now) else { return };
            if c.flags.has(TcpFlags::RST) {
                self.counters.tcp_resets.add(1);
            }
            let meta = TcpMeta {
                src_port: ends.src_port,
                dst_port: ends.dst_port,
                seq: c.seq.0,
                ack: c.ack.0,
                flags: c.flags,
                window: c.window,
                mss: c.mss,
                window_scale: c.window_scale,
                payload_len: 0,
                gso_size: None,
            };
            self.write_headers(&ends.at, &meta);
        }
    }
}

/// What the guest may fill of free room: an eighth is left for the kernel's own bookkeeping per segment, which counts
/// as well.
fn usable(free: u32) -> u32 {
    free - free / 8
}

/// Whether a call failed because the process or the system ran out of something.
pub(super) fn is_exhausted(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM | libc::EADDRNOTAVAIL | libc::EAGAIN)
    )
}
