//! Steps the four parts from event to event.

use std::time::Duration;

use super::driver::Driver;
use super::guest::Guest;
use super::link::Link;
use super::pod::Pod;
use super::{Plan, min_time};
use netd_base::time::Time;

/// One connection from its start to its end.
pub(super) struct World<G> {
    pub(super) guest: G,
    pub(super) driver: Driver,
    pub(super) pod: Pod,
    pub(super) to_guest: Link,
    pub(super) to_netd: Link,
    pub(super) now: Time,
    pub(super) plan: Plan,
    /// Print every packet.
    pub(super) trace: bool,
}

/// Most steps of a run.
const STEPS: u32 = 100_000;

impl<G: Guest> World<G> {
    /// Runs until the connection is gone; fails when that takes longer than `limit`.
    pub(super) fn run(&mut self, limit: Duration) {
        for _ in 0..STEPS {
            let Some(next) = self.next() else { break };
            assert!(next.since(Time::ZERO) <= limit, "not over after {limit:?}: {}", self.describe());
            self.now = if next > self.now { next } else { self.now };
            self.step();
            if self.is_over() {
                return;
            }
        }
        panic!("no end in sight at {:?}: {}", self.now, self.describe());
    }

    fn next(&self) -> Option<Time> {
        min_time([
            self.guest.poll_at(),
            self.driver.poll_at(),
            self.pod.poll_at(),
            self.pod.has_events().then_some(self.now),
            self.to_guest.poll_at(),
            self.to_netd.poll_at(),
        ])
    }

    fn is_over(&self) -> bool {
        let reset = self.plan.guest_resets_at.is_some() || self.plan.peer_resets_at.is_some();
        let ended = reset || (self.guest.is_complete() && self.pod.is_complete());
        self.driver.is_over()
            && ended
            && self.to_guest.poll_at().is_none()
            && self.to_netd.poll_at().is_none()
    }

    fn step(&mut self) {
        let now = self.now;
        self.pod.poll(now);
        let arrived = self.to_netd.receive(now);
        self.driver.turn(now, &arrived, &mut self.pod);
        // What the socket was told may change what the peer does at once.
        self.pod.poll(now);
        for p in self.driver.out.drain(..) {
            if self.trace {
                println!("{:>12} > {}", now.as_micros(), show(&p));
            }
            self.to_guest.send(p, now);
        }
        for p in self.to_guest.receive(now) {
            self.guest.receive(&p, now);
        }
        let mut out = Vec::new();
        self.guest.poll(now, &mut out);
        for p in out {
            if self.trace {
                println!("{:>12} < {}", now.as_micros(), show(&p));
            }
            self.to_netd.send(p, now);
        }
    }

    pub(super) fn describe(&self) -> String {
        format!("guest {}\npod {:?}\nconn {:?}", self.guest.describe(), self.pod, self.driver.conn)
    }
}

fn show(p: &super::Packet) -> String {
    format!(
        "seq {} ack {} flags {:05b} win {} len {} mss {:?} ws {:?}",
        p.seq.0,
        p.ack.0,
        p.flags.0,
        p.window,
        p.payload.len(),
        p.mss,
        p.scale
    )
}
