//! The pod's socket as Linux behaves, and the peer behind it.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Close, DOWN, Plan, UP, byte, bytes, min_time};
use netd_base::time::Time;

/// Events as epoll reports them, by edges.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Events {
    pub(super) readable: bool,
    pub(super) end: bool,
    pub(super) writable: bool,
    pub(super) broken: bool,
}

/// Habits of the kernel and of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    /// Send buffer in bytes.
    pub(super) send_buffer: u64,
    /// Send buffer that each hundred bytes of payload take.
    pub(super) overhead: u64,
    pub(super) receive_buffer: u64,
    pub(super) peer_buffer: u64,
    pub(super) round_trip: Duration,
    /// What the peer reads at once, and how often.
    pub(super) read: (u64, Duration),
    /// What the peer writes at once, and how often.
    pub(super) write: (u64, Duration),
    /// The peer stops reading here for a while.
    pub(super) stall: Option<(u64, Duration)>,
    pub(super) near: bool,
}

/// The socket and its peer.
#[derive(Debug)]
pub(super) struct Pod {
    pub(super) habits: Habits,
    plan: Plan,
    connects_in: Duration,
    connected_at: Option<Time>,
    connected: bool,
    /// Bytes that the socket took from the guest, that went to the peer, that the peer has.
    pub(super) sent: u64,
    transmitted: u64,
    pub(super) acked: u64,
    peer_read: u64,
    on_the_way: VecDeque<(Time, u64)>,
    next_read: Time,
    stalled_until: Option<Time>,
    shut: bool,
    end_seen_at: Option<Time>,
    pub(super) end_seen: bool,
    wants_writable: bool,
    /// Bytes that the peer has sent, that were consumed, and the peek offset.
    arrived: u64,
    pub(super) base: u64,
    pub(super) offset: u64,
    next_write: Time,
    ended: bool,
    pub(super) open: bool,
    pub(super) aborted: bool,
    pub(super) died: bool,
    events: Events,
}

impl Pod {
    pub(super) fn new(habits: Habits, plan: Plan, connects_in: Duration) -> Pod {
        Pod {
            habits,
            plan,
            connects_in,
            connected_at: None,
            connected: false,
            sent: 0,
            transmitted: 0,
            acked: 0,
            peer_read: 0,
            on_the_way: VecDeque::new(),
            next_read: Time::ZERO,
            stalled_until: None,
            shut: false,
            end_seen_at: None,
            end_seen: false,
            wants_writable: false,
            arrived: 0,
            base: 0,
            offset: 0,
            next_write: Time::ZERO,
            ended: false,
            open: true,
            aborted: false,
            died: false,
            events: Events::default(),
        }
    }

    /// connect(2), or the peer's.
    pub(super) fn connect(&mut self, now: Time) {
        self.connected_at = Some(now + self.connects_in);
    }

    fn used(&self) -> u64 {
        (self.sent - self.acked) * self.habits.overhead / 100
    }

    pub(super) fn free(&self) -> u64 {
        self.habits.send_buffer.saturating_sub(self.used())
    }

    pub(super) fn is_writable(&self) -> bool {
        self.free() >= self.used() / 2 && self.free() > 0
    }

    pub(super) fn ask_writable(&mut self) {
        self.wants_writable = true;
    }

    /// The peer's window as seen from the last acknowledged byte.
    pub(super) fn peer_window(&self) -> u64 {
        self.peer_read + self.habits.peer_buffer - self.acked
    }

    /// sendmsg(2).
    pub(super) fn send(&mut self, payload: &[u8]) -> usize {
        assert!(self.open && !self.shut, "send on a socket that was shut");
        let n = (self.free() * 100 / self.habits.overhead).min(payload.len() as u64) as usize;
        for (i, b) in payload[..n].iter().enumerate() {
            assert_eq!(*b, byte(UP, self.sent + i as u64), "byte {} to the pod", self.sent + i as u64);
        }
        self.sent += n as u64;
        assert!(self.sent <= self.plan.up);
        self.wants_writable |= n < payload.len();
        n
    }

    /// recvmsg(2) with MSG_PEEK; None: EAGAIN.
    pub(super) fn peek(&mut self, most: usize) -> Option<Vec<u8>> {
        assert!(self.open, "peek on a closed socket");
        let at = self.base + self.offset;
        if at >= self.arrived {
            return (self.ended || self.died).then(Vec::new);
        }
        let n = (self.arrived - at).min(most as u64);
        self.offset += n;
        Some(bytes(DOWN, at, n as usize))
    }

    /// Bytes in the receive queue, peeked or not.
    pub(super) fn queued(&self) -> u32 {
        (self.arrived - self.base) as u32
    }

    /// Whether all that has arrived was peeked, or the end was.
    pub(super) fn is_drained(&self) -> bool {
        self.ended || self.base + self.offset == self.arrived
    }

    /// recv(2) with MSG_TRUNC.
    pub(super) fn consume(&mut self, n: u64) {
        assert!(self.base + n <= self.arrived, "more consumed than received");
        self.base += n;
        self.offset = self.offset.saturating_sub(n);
    }

    pub(super) fn rewind(&mut self) {
        self.offset = 0;
    }

    pub(super) fn shutdown(&mut self) {
        assert!(self.open && !self.shut);
        self.shut = true;
    }

    /// close(2): with unread data Linux would send a RST.
    pub(super) fn close(&mut self) {
        if self.open && !self.died {
            assert!(self.base == self.arrived && self.ended && self.shut, "closed with something left");
        }
        self.open = false;
    }

    pub(super) fn abort(&mut self) {
        self.open = false;
        self.aborted = true;
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connected
    }

    pub(super) fn take_events(&mut self) -> Option<Events> {
        self.has_events().then(|| std::mem::take(&mut self.events))
    }

    /// Whether the peer has had everything, the end included.
    pub(super) fn is_complete(&self) -> bool {
        self.peer_read == self.plan.up && self.end_seen
    }

    pub(super) fn has_events(&self) -> bool {
        let e = &self.events;
        self.open && (e.readable || e.end || e.writable || e.broken)
    }

    pub(super) fn poll_at(&self) -> Option<Time> {
        if self.aborted || self.died {
            return None;
        }
        if !self.connected {
            return self.connected_at;
        }
        let reads = self.peer_read < self.acked;
        let room = self.arrived - self.base < self.habits.receive_buffer;
        let writes = (self.arrived < self.plan.down && room) || self.may_end();
        min_time([
            self.on_the_way.front().map(|w| w.0),
            reads.then_some(self.next_read),
            writes.then_some(self.next_write),
            self.end_seen_at.filter(|_| !self.end_seen && self.peer_read == self.sent),
        ])
    }

    fn may_end(&self) -> bool {
        let other = self.plan.peer_closes == Close::AfterSending || self.end_seen;
        !self.ended && self.arrived == self.plan.down && other
    }

    pub(super) fn poll(&mut self, now: Time) {
        if self.aborted || self.died || self.connected_at.is_none_or(|at| at > now) {
            return;
        }
        if !self.connected {
            self.connected = true;
            self.events.writable = true;
        }
        while let Some((_, upto)) = self.on_the_way.pop_front_if(|w| w.0 <= now) {
            self.acked = upto;
        }
        self.read(now);
        let limit = (self.peer_read + self.habits.peer_buffer).min(self.sent);
        if limit > self.transmitted {
            self.transmitted = limit;
            self.on_the_way.push_back((now + self.habits.round_trip, limit));
        }
        if self.wants_writable && self.is_writable() {
            self.wants_writable = false;
            self.events.writable = true;
        }
        if self.shut && self.acked == self.sent && self.end_seen_at.is_none() {
            self.end_seen_at = Some(now + self.habits.round_trip);
        }
        self.end_seen |= self.end_seen_at.is_some_and(|at| at <= now) && self.peer_read == self.sent;
        self.write(now);
        if self.open && self.plan.peer_resets_at.is_some_and(|at| self.acked >= at) {
            self.died = true;
            self.events.broken = true;
        }
    }

    fn read(&mut self, now: Time) {
        if now < self.next_read || self.peer_read >= self.acked {
            return;
        }
        if let Some((at, pause)) = self.habits.stall
            && self.peer_read >= at
        {
            let until = *self.stalled_until.get_or_insert(now + pause);
            if now < until {
                self.next_read = until;
                return;
            }
        }
        self.peer_read = (self.peer_read + self.habits.read.0).min(self.acked);
        self.next_read = now + self.habits.read.1;
    }

    fn write(&mut self, now: Time) {
        if now < self.next_write {
            return;
        }
        let room = self.habits.receive_buffer.saturating_sub(self.arrived - self.base);
        let n = self.habits.write.0.min(self.plan.down - self.arrived).min(room);
        if n > 0 {
            self.arrived += n;
            self.events.readable = true;
            self.next_write = now + self.habits.write.1;
        } else if self.may_end() {
            self.ended = true;
            self.events.readable = true;
            self.events.end = true;
        }
    }
}
