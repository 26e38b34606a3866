//! Lines of the log that tell of flows which limits refuse.
//!
//! A counter alone tells those who look for it. So the first refusal of a kind leaves a line, and then one a minute at most, with
//! the number since the last one. What is refused after the last line of a burst is told with the next refusal. Clients of
//! the control interface that watch the link hear of a full flow table when the log does.

use std::time::Duration;

use tokio::sync::watch;

use crate::control::RefusedFlows;
use crate::counters::{Counters, Reason};
use crate::time::Time;

/// Between two lines of one kind.
const PAUSE: Duration = Duration::from_secs(60);

/// Reasons that are told, each with the setting that an operator may change.
const TOLD: [(Reason, &str); 3] = [
    (Reason::FlowLimit, "limits.flows is reached: new flows are refused"),
    (Reason::FlowRate, "limits.new_flows_per_second is exceeded: new flows are refused"),
    (Reason::SocketLimit, "no socket for a new flow: descriptors (RLIMIT_NOFILE), ports or memory ran out"),
];

/// What was told of each reason.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    told: [Told; TOLD.len()],
    /// What a full flow table has refused, for the control interface.
    refused: watch::Sender<RefusedFlows>,
}

#[derive(Debug, Default)]
struct Told {
    /// Refusals that lines have told of.
    count: u64,
    /// When the next line may come.
    next: Option<Time>,
}

impl Refusals {
    /// Nothing was told; `refused` is what all workers of the guest have refused.
    pub(super) fn new(refused: watch::Sender<RefusedFlows>) -> Refusals {
        Refusals { told: Default::default(), refused }
    }

    /// Another clock: the pauses are over.
    pub(super) fn forget_times(&mut self) {
        self.told.iter_mut().for_each(|told| told.next = None);
    }

    /// Writes the lines that are due, and wakes those who wait for word of a full flow table.
    pub(super) fn log(&mut self, counters: &Counters, flows: usize, now: Time) {
        let mut full = 0;
        for (reason, refused, why) in self.due(counters, now) {
            tracing::warn!(refused, flows, "{why}");
            if reason == Reason::FlowLimit {
                full = refused;
            }
        }
        if full > 0 {
            self.refused.send_modify(|refused| refused.count += full);
        }
    }

    /// What is to be told now: which limit, how many it has refused, and the line.
    fn due(&mut self, counters: &Counters, now: Time) -> impl Iterator<Item = (Reason, u64, &'static str)> {
        self.told.iter_mut().zip(TOLD).filter_map(move |(told, (reason, why))| {
            let count = counters.dropped(reason);
            let refused = count.saturating_sub(told.count);
            if refused == 0 || told.next.is_some_and(|next| now < next) {
                return None;
            }
            *told = Told { count, next: Some(now + PAUSE) };
            Some((reason, refused, why))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_leaves_a_line_a_minute_with_all_that_was_refused() {
        let (mut refusals, counters) = (Refusals::default(), Counters::default());
        let mut lines = Vec::new();
        for second in 0..150 {
            counters.drops(Reason::FlowLimit, 10);
            counters.drops(Reason::Denied, 10);
            if second == 30 {
                counters.drops(Reason::FlowRate, 1);
            }
            let now = Time::from_millis(second * 1000);
            lines.extend(refusals.due(&counters, now).map(|(_, refused, why)| (second, refused, why)));
        }
        let [flows, rate, _] = TOLD.map(|(_, why)| why);
        assert_eq!(lines, [(0, 10, flows), (30, 1, rate), (60, 600, flows), (120, 600, flows)]);
    }

    #[test]
    fn a_full_flow_table_is_told_to_clients_when_the_log_tells_it() {
        let (sender, mut receiver) = watch::channel(RefusedFlows { limit: 7, count: 0 });
        let (mut refusals, counters) = (Refusals::new(sender), Counters::default());
        counters.drops(Reason::FlowRate, 5);
        refusals.log(&counters, 7, Time::ZERO);
        assert!(!receiver.has_changed().unwrap(), "the table has room");
        counters.drops(Reason::FlowLimit, 3);
        refusals.log(&counters, 7, Time::ZERO);
        assert_eq!(*receiver.borrow_and_update(), RefusedFlows { limit: 7, count: 3 });
        counters.drops(Reason::FlowLimit, 4);
        refusals.log(&counters, 7, Time::from_millis(59_000));
        assert!(!receiver.has_changed().unwrap(), "once a minute");
        refusals.log(&counters, 7, Time::from_millis(60_000));
        assert_eq!(*receiver.borrow_and_update(), RefusedFlows { limit: 7, count: 7 });
    }

    #[test]
    fn nothing_is_told_without_a_refusal() {
        let (mut refusals, counters) = (Refusals::default(), Counters::default());
        assert_eq!(refusals.due(&counters, Time::ZERO).count(), 0);
        counters.drops(Reason::SocketLimit, 1);
        assert_eq!(refusals.due(&counters, Time::ZERO).count(), 1);
        assert_eq!(refusals.due(&counters, Time::from_millis(100_000)).count(), 0);
    }
}
