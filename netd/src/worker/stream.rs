//! What a worker does with TCP flows: segments of the guest, events of sockets, deadlines, and what follows from each.

use std::io;
use std::time::Duration;

use nix::sys::epoll::EpollFlags;

use super::flows::Flow;
use super::held::Held;
use super::transmit::TxFrame;
use super::transmit::gather::Gather;
use super::turn::{Worker, fd, watch_again};
use crate::counters::Reason;
use crate::flow::{FlowId, Key};
use crate::ring::Iovs;
use crate::sockets::{self, IpFields};
use crate::sys;
use crate::tcp::{Command, End, Segment, State};
use crate::wire::{TcpFlags, TcpMeta};

/// Slices of one flow in a batch, below IOV_MAX.
const GATHER_SLICES: usize = 512;

/// Deadlines that are nearer than this are taken back when they are off: they would come up before long.
const SOON: Duration = Duration::from_millis(5);

impl Worker {
    /// A segment of the guest whose payload starts `payload` bytes into the frame.
    pub(super) fn on_stream_segment(
        &mut self,
        key: Key,
        segment: &Segment,
        fields: IpFields,
        frame: &TxFrame<'_>,
        payload: usize,
    ) -> Result<(), Reason> {
        let Some(id) = self.flows.find(&key) else {
            let opens = segment.flags.has(TcpFlags::SYN) && !segment.flags.has(TcpFlags::ACK);
            if self.pass_on(&key, frame, opens) {
                return Ok(());
            }
            return self.on_stray_segment(key, segment, fields);
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
        // A kernel's RST has no socket whose fields it could have.
        if f.fields != Some(fields) && !segment.flags.has(TcpFlags::RST) {
            f.set_fields(fields);
        }
        f.own_segments = f.own_segments.saturating_add(u32::from(self.peers.hops == 0));
        if input.reopen {
            self.flows.remove(id);
            return self.on_stray_segment(key, segment, fields);
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
        input.dropped.filter(|_| !kept).map_or(Ok(()), |refusal| Err(refusal.into()))
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
                f.on_broken();
                0
            }
        };
        let short = sent < g.bytes;
        // Of a far peer there is no news yet: the connection plans when to look for some.
        f.stale |= f.near || short;
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
            f.on_broken();
        }
        let comes =
            EpollFlags::EPOLLIN | EpollFlags::EPOLLPRI | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP;
        if events.intersects(comes) {
            f.readable = true;
            f.urgent = events.contains(EpollFlags::EPOLLPRI);
            f.peer_closed |= events.intersects(EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP);
        }
        // A socket is writable whenever something else happens to it as well. That is news where room is waited for, and what
        // a far peer sends has an acknowledgement with it.
        f.stale |=
            events.contains(EpollFlags::EPOLLOUT) && (f.room.is_awaited() || f.conn.may_have_news(self.now));
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
            if !f.parked && (self.receiveq.rx.is_some() || f.conn.is_done_with_socket()) {
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
        if (std::mem::take(&mut f.stale) || f.conn.wants_pod_state(now))
            && !f.conn.is_done_with_socket()
            && let Some((state, full)) = f.pod_state()
        {
            f.conn.on_pod(&state, now);
            rewatch = full;
        }
        if f.conn.is_probed() {
            let silent = f.peer_silence();
            f.conn.answer_probe(silent);
        }
        self.send_controls(id);
        let Some(Flow::Tcp(f)) = self.flows.get_mut(id) else { return };
        while let Some(command) = f.conn.command() {
            if let Err(error) = f.carry_out(command) {
                tracing::debug!(peer = %f.pod_peer, ?command, %error, "socket");
                match command {
                    // A peer that has reset the connection leaves nothing to shut, but something to read.
                    Command::ShutdownWrite => f.on_broken(),
                    _ => f.conn.on_pod_error(),
                }
            }
        }
        let counted = std::mem::replace(&mut f.retransmits, f.conn.retransmits());
        self.counters.tcp_retransmits.add(u64::from(f.retransmits.wrapping_sub(counted)));
        let ended = f.conn.is_done_with_socket() && f.socket.take().is_some();
        if f.conn.is_closed() {
            self.counters.tcp_resets.add(u64::from(f.conn.end() == Some(End::Reset)));
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
        let Some(key) = self.flows.key(id) else { return };
        let Some(ends) = self.receiveq.ends(&key, None) else { return };
        loop {
            if !self.receiveq.has_room() {
                if self.receiveq.rx.is_some() {
                    self.make_ready(id);
                }
                return;
            }
            let Some(Flow::Tcp(f)) = self.flows.get_mut(id) else { return };
            let Some(c) = f.conn.poll(self.now) else { return };
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

/// Whether a call failed because the process or the system ran out of something.
pub(super) fn is_exhausted(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM | libc::EADDRNOTAVAIL | libc::EAGAIN)
    )
}
