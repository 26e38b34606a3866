//! Tells the machine's user that a netd refuses new flows because its flow table is full.
//!
//! netd says so on the call by which it tells the pod's addresses, when it logs it: once a minute for as long as it lasts. The user
//! hears of it once in [`EVENT_INTERVAL`], whichever of the machine's netds it is.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use podvirt_api::names::{annotation, event};
use podvirt_api::netd::MAX_FLOWS;
use podvirt_proto::netd::v1::RefusedFlows;
use tokio::time::Instant;

use super::shared::Shared;

/// The time between two events of a machine.
const EVENT_INTERVAL: Duration = Duration::from_secs(600);

/// When the last event was told.
#[derive(Debug, Default)]
pub(super) struct FlowLimit(Mutex<Option<Instant>>);

impl FlowLimit {
    /// Whether an event is due at `now`, which counts as told then.
    fn take(&self, now: Instant) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| now.duration_since(last) >= EVENT_INTERVAL);
        if due {
            *last = Some(now);
        }
        due
    }
}

/// Queues the event of flows that the netd of `interface` refused until `now`, unless the last one was a short while ago.
pub(super) fn warn(shared: &Shared, interface: &str, refused: RefusedFlows, now: Instant) {
    if shared.flow_limit.take(now) {
        shared.event("Warning", event::FLOW_LIMIT, message(interface, refused.limit));
    }
}

/// What the user reads; without a number that grows, since Kubernetes counts repetitions of a message in one event.
fn message(interface: &str, limit: u32) -> String {
    format!(
        "interface {interface}: new connections are refused, because netd carries at most {limit} flows at the same \
         time; the machine's annotation {} allows up to {MAX_FLOWS}, from its next start or migration on",
        annotation::NETD_FLOWS
    )
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::super::shared::Identity;
    use super::*;

    #[test]
    fn a_machine_whose_flow_tables_are_full_has_an_event_now_and_then() {
        let shared = Shared::new(Identity::default(), mpsc::channel(1).0);
        let begin = Instant::now();
        let events = |interface: &str, after: Duration| {
            warn(&shared, interface, RefusedFlows { limit: 16_384, count: 5 }, begin + after);
            let first = shared.first_event();
            first.iter().for_each(|event| shared.event_told(event));
            first
        };
        let first = events("default", Duration::ZERO).unwrap();
        assert_eq!((first.kind.as_str(), first.reason.as_str()), ("Warning", "FlowLimit"));
        for part in ["interface default:", "at most 16384 flows", "annotation podvirt.io/netd-flows"] {
            assert!(first.message.contains(part), "{part} is not in {}", first.message);
        }
        assert_eq!(events("default", Duration::from_secs(60)), None);
        assert_eq!(events("blue", Duration::from_secs(599)), None, "the machine has one for all interfaces");
        let next = events("default", Duration::from_secs(600)).unwrap();
        assert_eq!(next, first, "Kubernetes counts it as a repetition");
    }
}
