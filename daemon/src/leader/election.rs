//! The rules of the election: a state machine without a clock and without a client.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

use super::Timing;

/// What a replica does next.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Make the lease, which is not there yet.
    Create(Lease),
    /// Put this in place of the lease that was read.
    Replace(Lease),
    /// Look again later: another replica leads, or the lease was just renewed.
    Wait,
}

/// One replica's knowledge of the lease.
#[derive(Debug)]
pub(super) struct Election {
    identity: String,
    namespace: String,
    name: String,
    timing: Timing,
    /// The record last seen of another replica's, and when it was first seen.
    seen: Option<(Lease, Instant)>,
    /// The lease as this replica wrote it, and when it sent it.
    held: Option<(Lease, Instant)>,
}

impl Election {
    pub(super) fn new(identity: &str, namespace: &str, name: &str, timing: Timing) -> Self {
        Self {
            identity: identity.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            timing,
            seen: None,
            held: None,
        }
    }

    /// Until when this replica may work as the leader. `None`: it may not.
    pub(super) fn leads_until(&self) -> Option<Instant> {
        self.held.as_ref().map(|(_, sent)| *sent + self.timing.renew_deadline)
    }

    /// The holder another replica last saw, for logs.
    pub(super) fn holder(&self) -> Option<&str> {
        let (lease, _) = self.held.as_ref().or(self.seen.as_ref())?;
        holder_of(lease)
    }

    /// The renewal of a lease that this replica holds. `None`: it holds none, or not any more.
    pub(super) fn renewal(&mut self, now: Instant, wall: Timestamp) -> Option<Lease> {
        if self.leads_until().is_none_or(|until| now >= until) {
            self.held = None;
            return None;
        }
        let (lease, _) = self.held.as_ref()?;
        Some(renewed(lease, wall))
    }

    /// The renewal once more, from the lease as it was read after a conflict. `None`: another replica has it.
    ///
    /// A renewal can arrive although its answer is lost. It has moved the version then, but it is this replica's.
    pub(super) fn recovery(&self, read: Option<&Lease>, wall: Timestamp) -> Option<Lease> {
        read.filter(|read| holder_of(read) == Some(self.identity.as_str())).map(|read| renewed(read, wall))
    }

    /// Judges the lease as it was just read.
    pub(super) fn judge(&mut self, read: Option<&Lease>, now: Instant, wall: Timestamp) -> Step {
        let Some(read) = read else {
            return Step::Create(self.claim(ObjectMeta::default(), 0, wall));
        };
        let version = &read.metadata.resource_version;
        let first_seen = match &self.seen {
            Some((seen, at)) if seen.metadata.resource_version == *version => *at,
            _ => {
                self.seen = Some((read.clone(), now));
                now
            }
        };
        let spec = read.spec.clone().unwrap_or_default();
        let holder = holder_of(read);
        let mine = holder == Some(self.identity.as_str());
        // What another replica's clock says is not compared with ours: its lease runs from when we saw it change.
        let runs = Duration::from_secs(u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0));
        // A record of this replica's own is what its lead left when it ended. Other replicas may take the lease first:
        // a replica that cannot hear answers must not keep the lease from replicas that can.
        let runs = if mine { runs * 2 } else { runs };
        if holder.is_some() && now < first_seen + runs {
            return Step::Wait;
        }
        let transitions = spec.lease_transitions.unwrap_or(0);
        let transitions = if mine { transitions } else { transitions.saturating_add(1) };
        Step::Replace(self.claim(read.metadata.clone(), transitions, wall))
    }

    /// The API server took `written`, which was sent at `sent`.
    pub(super) fn acknowledged(&mut self, written: Lease, sent: Instant) {
        self.held = Some((written, sent));
    }

    /// Another replica wrote the lease, or it is gone: this replica leads no more.
    pub(super) fn refused(&mut self) {
        self.held = None;
    }

    /// The lease given back, so that another replica need not wait for its end. Leads no more.
    pub(super) fn release(&mut self, wall: Timestamp) -> Option<Lease> {
        let (mut lease, _) = self.held.take()?;
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(wall));
        Some(lease)
    }

    fn claim(&self, metadata: ObjectMeta, transitions: i32, wall: Timestamp) -> Lease {
        Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(self.namespace.clone()),
                managed_fields: None,
                ..metadata
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: Some(
                    i32::try_from(self.timing.lease_duration.as_secs()).unwrap_or(i32::MAX),
                ),
                acquire_time: Some(MicroTime(wall)),
                renew_time: Some(MicroTime(wall)),
                lease_transitions: Some(transitions),
                ..LeaseSpec::default()
            }),
        }
    }
}

fn renewed(lease: &Lease, wall: Timestamp) -> Lease {
    let spec = LeaseSpec { renew_time: Some(MicroTime(wall)), ..lease.spec.clone().unwrap_or_default() };
    Lease { metadata: lease.metadata.clone(), spec: Some(spec) }
}

fn holder_of(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}
