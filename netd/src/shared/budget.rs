//! How many flows one guest may have, over all its workers.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::config::Limits;
use crate::flow::Admission;
use crate::time::Time;

/// The guest's budget of flows: how many at once, and how fast new ones may come.
///
/// It is touched when a flow opens or ends, never for a packet of one.
#[derive(Debug)]
pub struct Budget {
    limit: u32,
    flows: AtomicU32,
    admission: Mutex<Admission>,
}

impl Budget {
    /// A budget of which nothing is used.
    pub fn new(limits: &Limits, now: Time) -> Budget {
        Budget {
            limit: limits.flows,
            flows: AtomicU32::new(0),
            admission: Mutex::new(Admission::new(limits.new_flows_per_second, limits.new_flows_burst, now)),
        }
    }

    /// Whether one more flow may be opened now by the rate of new flows.
    pub fn admit(&self, now: Time) -> bool {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner).admit(now)
    }

    /// Whether no more flow fits. Another worker may take the last place before this one does.
    pub fn is_full(&self) -> bool {
        self.flows.load(Relaxed) >= self.limit
    }

    /// Takes the place of one flow; false when there is none.
    pub fn take(&self) -> bool {
        let next = |flows: u32| (flows < self.limit).then_some(flows + 1);
        self.flows.fetch_update(Relaxed, Relaxed, next).is_ok()
    }

    /// Gives the place of one flow back.
    pub fn give_back(&self) {
        self.flows.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_once_each_by_whichever_thread() {
        let limits =
            Limits { flows: 1000, new_flows_per_second: 1, new_flows_burst: 700, ..Limits::default() };
        let budget = Budget::new(&limits, Time::ZERO);
        let count = |what: &(dyn Fn() -> bool + Sync)| {
            std::thread::scope(|scope| {
                let one = || scope.spawn(|| (0..900).filter(|_| what()).count());
                let threads = [one(), one()];
                threads.into_iter().map(|t| t.join().unwrap()).sum::<usize>()
            })
        };
        assert_eq!(count(&|| budget.take()), 1000);
        assert!(budget.is_full());
        assert_eq!(count(&|| budget.admit(Time::ZERO)), 700);
        budget.give_back();
        assert!(!budget.is_full());
        assert!(budget.take());
        assert!(!budget.take());
    }
}
