//! Payload out of order, and how much of it a worker keeps for all its flows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::tcp::{Hold, Seq};

/// Most bytes that a worker's flows keep together.
const MOST: usize = 8 << 20;

/// What the flows of a worker keep together; a flow that moves gives back to the one it came from.
#[derive(Clone, Debug, Default)]
pub(super) struct HoldBudget(Arc<AtomicUsize>);

/// What one flow keeps.
#[derive(Debug)]
pub(super) struct Held {
    hold: Hold,
    budget: HoldBudget,
}

impl Held {
    pub(super) fn new(budget: HoldBudget) -> Held {
        Held { hold: Hold::default(), budget }
    }

    /// Keeps a payload of `len` bytes, made by `copy`, if it is wanted and may be kept; false if not.
    pub(super) fn keep(&mut self, seq: Seq, len: usize, copy: impl FnOnce() -> Vec<u8>) -> bool {
        let wanted = self.hold.wants(seq, len) && self.budget.0.load(Relaxed) + len <= MOST;
        if wanted {
            let payload = copy();
            self.budget.0.fetch_add(payload.len(), Relaxed);
            self.hold.keep(seq, payload);
        }
        wanted
    }

    /// The next piece that continues the stream at `next`.
    pub(super) fn take(&mut self, next: Seq) -> Option<(Seq, Vec<u8>)> {
        let before = self.hold.bytes();
        let taken = self.hold.take(next);
        self.budget.0.fetch_sub(before - self.hold.bytes(), Relaxed);
        taken
    }

    pub(super) fn is_empty(&self) -> bool {
        self.hold.bytes() == 0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.hold.bytes(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_flows_together_are_bounded_and_give_back_what_they_kept() {
        let budget = HoldBudget::default();
        let mut flows = Vec::new();
        let kept = (0..100u32).filter(|_| {
            let mut held = Held::new(budget.clone());
            let kept = held.keep(Seq(10), 200 << 10, || vec![0; 200 << 10]);
            flows.push(held);
            kept
        });
        assert_eq!(kept.count(), MOST / (200 << 10));
        assert!(flows[0].take(Seq(20)).is_some() && flows[0].is_empty());
        assert!(flows[1].take(Seq(10 + (200 << 10))).is_none() && flows[1].is_empty());
        drop(flows);
        assert_eq!(budget.0.load(Relaxed), 0);
    }
}
