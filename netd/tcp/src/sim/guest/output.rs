//! What the reference guest sends, and what its application does.

use super::{Packet, Reference, State, Time, UP, bytes};
use netd_wire::TcpFlags;

impl Reference {
    /// The window field, and what it promises.
    pub(super) fn window(&mut self) -> u16 {
        let mut free = self.habits.buffer.saturating_sub(self.queued());
        if self.habits.shrinks {
            if self.rng.chance(5) {
                free /= 2;
            }
        } else {
            let promised = self.edge.saturating_sub(self.expected);
            free = free.max(promised.next_multiple_of(1 << self.scale()));
        }
        let field = (free >> self.scale()).min(0xffff);
        self.edge = self.expected + (field << self.scale());
        self.highest_edge = self.highest_edge.max(self.edge);
        field as u16
    }

    pub(super) fn packet(&mut self, at: u64, flags: TcpFlags, payload: Vec<u8>) -> Packet {
        let window = if self.state == State::Dead { 0 } else { self.window() };
        self.unacked_segments = 0;
        self.ack_at = None;
        Packet {
            seq: self.seq(at),
            ack: self.irs.plus(self.expected as u32),
            flags,
            window,
            mss: None,
            scale: None,
            payload,
        }
    }

    pub(super) fn syn(&mut self) -> Packet {
        let answer = self.state == State::SynReceived;
        let flags = if answer { TcpFlags::SYN.with(TcpFlags::ACK) } else { TcpFlags::SYN };
        let mut p = self.packet(0, flags, Vec::new());
        // The window of a SYN is not scaled.
        p.window = self.habits.buffer.min(0xffff) as u16;
        self.edge = self.expected + u64::from(p.window);
        self.highest_edge = self.highest_edge.max(self.edge);
        p.mss = self.habits.mss;
        p.scale = self.habits.scale.filter(|_| !answer || self.scales);
        p
    }

    /// The application reads and writes.
    pub(super) fn run_application(&mut self, now: Time) {
        if now >= self.next_read && self.queued() > 0 {
            let stalled = match self.habits.stall {
                Some((at, pause)) if self.read >= at => now < *self.stalled_until.get_or_insert(now + pause),
                _ => false,
            };
            if stalled {
                self.next_read = self.stalled_until.unwrap_or(now);
            } else {
                let told = self.edge.saturating_sub(self.expected);
                self.read += self.queued().min(self.habits.read.0);
                self.next_read = now + self.habits.read.1;
                let free = self.habits.buffer.saturating_sub(self.queued());
                let worth = (self.habits.buffer / 2).min(1460);
                // Behind an ACK that is held back the growth would be told with new data acknowledged.
                let bare = self.ack_now == 0 && self.unacked_segments == 0;
                let tells = self.habits.tells_all && bare && free >> self.scale() > told >> self.scale();
                self.window_updates += u32::from(tells);
                if (tells || (told < worth && free >= worth)) && !self.has_end() {
                    self.ack_now = self.ack_now.max(1);
                }
            }
        }
        if self.has_end() && self.end == Some(self.read + 1) {
            self.end_read = true;
        }
        if now >= self.next_write && self.written < self.plan.up {
            self.written = (self.written + self.habits.write.0).min(self.plan.up);
            self.next_write = now + self.habits.write.1;
        }
    }

    pub(super) fn send_data(&mut self, now: Time, out: &mut Vec<Packet>) {
        if std::mem::take(&mut self.resend) && self.una <= self.written && self.una < self.next {
            let len = (self.written + 1 - self.una).min(self.peer_mss).min(self.next - self.una);
            let payload = bytes(UP, self.una - 1, len as usize);
            let p = self.packet(self.una, TcpFlags::ACK, payload);
            out.push(p);
        }
        while self.next <= self.written {
            let room = self.limit.saturating_sub(self.next);
            let mut len = (self.written + 1 - self.next).min(room).min(self.peer_mss);
            if self.habits.odd && len > 1 {
                len = self.rng.range(1, len);
            }
            let rest = self.written + 1 - self.next;
            let silly = len < self.peer_mss && len < rest && self.next > self.una && !self.habits.odd;
            if len == 0 || silly {
                if self.probe && self.una == self.next {
                    self.send_probe(out);
                }
                break;
            }
            let payload = bytes(UP, self.next - 1, len as usize);
            let p = self.packet(self.next, TcpFlags::ACK.with(TcpFlags::PSH), payload);
            out.push(p);
            self.next += len;
            self.max = self.max.max(self.next);
            self.rto_at.get_or_insert(now + self.rto);
        }
        self.probe = false;
        let waiting = self.next <= self.written || self.una < self.max;
        if let Some(fin) = self.fin_at().filter(|fin| *fin == self.next)
            && (self.next < self.limit || self.habits.eager_fin)
        {
            let p = self.packet(fin, TcpFlags::FIN.with(TcpFlags::ACK), Vec::new());
            out.push(p);
            self.next += 1;
            self.max = self.max.max(self.next);
            self.rto_at.get_or_insert(now + self.rto);
        } else if waiting || self.fin_at() == Some(self.next) {
            self.rto_at.get_or_insert(now + self.rto);
        }
    }

    pub(super) fn send_probe(&mut self, out: &mut Vec<Packet>) {
        let p = if self.habits.probes_by_byte {
            let payload = bytes(UP, self.next - 1, 1);
            let p = self.packet(self.next, TcpFlags::ACK, payload);
            self.max = self.max.max(self.next + 1);
            p
        } else {
            self.packet(self.una - 1, TcpFlags::ACK, Vec::new())
        };
        out.push(p);
    }
}
