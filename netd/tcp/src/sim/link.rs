//! The virtual link: one direction of it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Packet, Rng};
use netd_base::time::Time;

/// Faults of a direction, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) loss: u64,
    pub(super) duplication: u64,
    pub(super) reordering: u64,
    pub(super) latency: Duration,
}

/// Packets on their way.
#[derive(Debug)]
pub(super) struct Link {
    faults: Faults,
    rng: Rng,
    queue: BTreeMap<(Time, u64), Packet>,
    count: u64,
}

impl Link {
    pub(super) fn new(faults: Faults, rng: Rng) -> Link {
        Link { faults, rng, queue: BTreeMap::new(), count: 0 }
    }

    pub(super) fn send(&mut self, packet: Packet, now: Time) {
        if self.rng.chance(self.faults.loss) {
            return;
        }
        if self.rng.chance(self.faults.duplication) {
            self.enqueue(packet.clone(), now);
        }
        self.enqueue(packet, now);
    }

    fn enqueue(&mut self, packet: Packet, now: Time) {
        let mut at = now + self.faults.latency;
        if self.rng.chance(self.faults.reordering) {
            at = at + Duration::from_micros(self.rng.range(1, 2_000));
        }
        self.count += 1;
        self.queue.insert((at, self.count), packet);
    }

    pub(super) fn poll_at(&self) -> Option<Time> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    /// The packets that have arrived.
    pub(super) fn receive(&mut self, now: Time) -> Vec<Packet> {
        let mut arrived = Vec::new();
        while let Some(e) = self.queue.first_entry().filter(|e| e.key().0 <= now) {
            arrived.push(e.remove());
        }
        arrived
    }
}
