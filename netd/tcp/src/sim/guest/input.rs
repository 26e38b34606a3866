//! What the reference guest makes of segments.

use super::{DOWN, Packet, RTO, Reference, Time, byte};
use netd_wire::TcpFlags;

impl Reference {
    pub(super) fn on_ack(&mut self, p: &Packet, now: Time) {
        let ack = self.una as i64 + i64::from(p.ack.since(self.seq(self.una)) as i32);
        let Ok(ack) = u64::try_from(ack) else { return };
        assert!(ack <= self.max, "acknowledged {ack} of {}", self.max);
        if ack < self.una {
            return;
        }
        let shift = if p.has(TcpFlags::SYN) { 0 } else { self.peer_scale };
        let limit = ack + (u64::from(p.window) << shift);
        let bare = p.payload.is_empty() && !p.has(TcpFlags::FIN) && !p.has(TcpFlags::SYN);
        if ack > self.una {
            self.una = ack;
            self.next = self.next.max(ack);
            self.dup_acks = 0;
            // A partial acknowledgement tells the next hole.
            self.resend = self.habits.new_reno && ack < self.recover && self.recovering;
            self.recovering &= ack < self.recover;
            self.rto = RTO;
            self.rto_at = (self.una < self.max).then(|| now + self.rto);
        } else if bare && limit == self.limit && self.una < self.max {
            self.dup_acks += 1;
            if self.dup_acks == 3 && self.una >= self.recover {
                self.recover = self.max;
                self.recovering = true;
                if self.habits.new_reno {
                    self.resend = true;
                } else {
                    self.next = self.una;
                }
            }
        }
        // Packets may come in another order: the edge stays where it was.
        self.limit = self.limit.max(limit);
    }

    pub(super) fn on_payload(&mut self, p: &Packet, now: Time) {
        let at = self.place(p.seq);
        let occupied = i64::from(p.occupied());
        let end = at + occupied;
        if occupied > 0 {
            assert!(end <= self.highest_edge as i64, "sent beyond the window: {end} > {}", self.highest_edge);
        }
        // RFC 9293 3.10.7.4, first.
        let window = self.edge as i64 - self.expected as i64;
        let acceptable = match (occupied, window) {
            (0, 0) => at == self.expected as i64,
            (0, _) => at >= self.expected as i64 && at <= self.edge as i64,
            (_, 0) => false,
            _ => end > self.expected as i64 && at < self.edge as i64,
        };
        if !acceptable {
            self.ack_now += 1;
            return;
        }
        if occupied == 0 {
            return;
        }
        let fin = p.has(TcpFlags::FIN);
        let data_end = end - i64::from(fin);
        if fin {
            assert_eq!(data_end as u64, self.plan.down + 1, "FIN in the wrong place");
            if self.end.is_none() && (at <= self.expected as i64 || self.habits.reassembles) {
                self.end = Some(data_end as u64);
            }
        }
        if at > self.expected as i64 {
            self.ack_now += 1;
            if self.habits.reassembles && data_end > at {
                self.pending.insert(at as u64, p.payload.clone());
            }
            return;
        }
        self.accept(at as u64, &p.payload);
        while let Some((&at, _)) = self.pending.first_key_value().filter(|(at, _)| **at <= self.expected) {
            let payload = self.pending.remove(&at).unwrap_or_default();
            self.accept(at, &payload);
            self.ack_now = self.ack_now.max(1);
        }
        if self.end == Some(self.expected) {
            self.expected += 1;
            self.ack_now = self.ack_now.max(1);
        }
        self.unacked_segments += 1;
        if self.unacked_segments >= 2 {
            self.ack_now = self.ack_now.max(1);
        } else if self.ack_at.is_none() {
            self.ack_at = Some(now + self.habits.ack_delay);
        }
    }

    /// Everything has arrived, the FIN included.
    pub(super) fn has_end(&self) -> bool {
        self.end.is_some_and(|end| self.expected > end)
    }

    /// Both FINs were acknowledged, whatever the application has read.
    pub(in crate::sim) fn is_past_reset(&self) -> bool {
        self.has_end() && self.una == self.plan.up + 2
    }

    pub(super) fn accept(&mut self, at: u64, payload: &[u8]) {
        for (i, b) in payload.iter().enumerate() {
            let i = at + i as u64;
            assert_eq!(*b, byte(DOWN, i - 1), "byte {} to the guest", i - 1);
            if i == self.expected && (i < self.edge || !self.habits.shrinks) {
                self.expected += 1;
            }
        }
    }
}
