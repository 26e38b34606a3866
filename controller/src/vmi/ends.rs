//! Since when the ends of machines have been seen.
//!
//! A machine that is deleted is gone with its pod, which may be a second after its guest has powered off. A client that
//! follows it by a watch sees each of its phases. One that asks again and again does not, if the object goes between two
//! of its questions: it finds neither a guest that runs nor one that has ended well. So the object of a machine whose guest
//! has run stays for [`SEEN_FOR`] after its final phase has come back by the watch.
//!
//! Upstream's objects stay for about 8 s then, without a rule that says so: virt-launcher-monitor asks four times, with
//! growing pauses, whether a mesh's proxy is in the pod before it lets the container end.
//!
//! A machine that another object controls (a VirtualMachine, a replica set) is let go at once. The controlling object makes
//! the next machine when the ended machine is gone, and tells in its own status how the ended machine ended.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use podvirt_api::v1::VirtualMachineInstance;

/// How long a final phase is to be seen. Clients ask once a second, and a question and its answer take time.
pub const SEEN_FOR: Duration = Duration::from_secs(2);

/// When each final phase was seen first, by the machine's UID. The times are by the clock of this process, because times that
/// a virt-handler wrote are by the clock of its node. A replica of virt-controller that takes the lead counts from its start.
#[derive(Debug, Default)]
pub(super) struct Ends(Mutex<HashMap<String, Instant>>);

impl Ends {
    /// How long the final phase of this machine has been seen by `now`.
    pub(super) fn seen(&self, machine: &str, now: Instant) -> Duration {
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = *ends.entry(machine.to_owned()).or_insert(now);
        now.saturating_duration_since(since)
    }

    /// The machine itself is gone.
    pub(super) fn forget(&self, machine: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(machine);
    }
}

/// How much longer the object of this machine stays, whose final phase has been seen for `seen`. Its guest may have run if it
/// has come to a node: its pods are not listed any more.
pub(super) fn left(vmi: &VirtualMachineInstance, seen: Duration) -> Duration {
    let owners = vmi.metadata.owner_references.iter().flatten();
    if vmi.status.node_name.is_none() || owners.into_iter().any(|owner| owner.controller == Some(true)) {
        return Duration::ZERO;
    }
    SEEN_FOR.saturating_sub(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_counts_from_when_it_was_seen_first() {
        let (ends, start) = (Ends::default(), Instant::now());
        let after = |machine, seconds| ends.seen(machine, start + Duration::from_secs(seconds)).as_secs();
        assert_eq!([after("a", 0), after("b", 1), after("a", 2), after("b", 5)], [0, 0, 2, 4]);
        ends.forget("a");
        assert_eq!([after("a", 9), after("a", 8)], [0, 0], "a clock that goes back counts for nothing");
    }
}
