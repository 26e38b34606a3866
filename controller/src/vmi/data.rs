//! What DataVolumes mean to a machine that has no pod yet, and what its status tells of them.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use podvirt_api::cdi::{DataVolume, Phase};
use podvirt_api::names::condition::{self as conditions, FALSE, TRUE, UNKNOWN, reason};
use podvirt_api::storage::claim;
use podvirt_api::v1::VirtualMachineInstance;

use super::decide::{Action, Decision};
use super::observe::{self, Trouble};
use super::status::{remove_condition, set_condition};
use crate::data::DataVolumes;
use crate::template;

/// What keeps a machine from using a claim that a DataVolume fills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filling {
    /// It is being filled. With a text: that does not go on by itself, and why.
    Goes(Option<String>),
    /// It will be once a pod that uses it has a node.
    WaitsForConsumer,
    /// CDI has given up, and why.
    Failed(String),
}

/// What keeps a machine from using a claim that says that it is of the DataVolume `name`.
pub fn judge(found: Option<&DataVolume>, name: &str) -> Option<Filling> {
    let Some(found) = found else {
        let message = format!("DataVolume {name}, which owns the PersistentVolumeClaim, is not there");
        return Some(Filling::Goes(Some(message)));
    };
    match found.phase() {
        Phase::Usable => None,
        Phase::WaitsForConsumer => Some(Filling::WaitsForConsumer),
        Phase::Filling => Some(Filling::Goes(found.error().or_else(|| found.beyond_quota()))),
        Phase::Failed => Some(Filling::Failed(found.error().unwrap_or_default())),
    }
}

/// The DataVolumes of the machine's claims.
pub fn of_machine(vmi: &VirtualMachineInstance, known: &DataVolumes) -> Vec<Arc<DataVolume>> {
    let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
    let claims = vmi.spec.volumes.iter().filter_map(claim);
    claims.filter_map(|claim| known.get(namespace, claim.name)).collect()
}

/// Whether all DataVolumes of the machine are ready, in its condition DataVolumesReady.
pub(super) fn tell(data: &[Arc<DataVolume>], decision: &mut Decision, now: Timestamp) {
    if data.is_empty() {
        return;
    }
    let ready = |one: &Arc<DataVolume>| {
        one.condition("Ready").map_or(UNKNOWN.to_owned(), |ready| ready.status.clone())
    };
    let all: Vec<String> = data.iter().map(ready).collect();
    let status = if all.iter().any(|one| one == FALSE) {
        FALSE
    } else if all.iter().any(|one| one != TRUE) {
        UNKNOWN
    } else {
        TRUE
    };
    let (reason, message) = if status == TRUE {
        (reason::ALL_DATA_VOLUMES_READY, "All of the VMI's DVs are bound and ready")
    } else {
        (reason::NOT_ALL_DATA_VOLUMES_READY, "Not all of the VMI's DVs are ready")
    };
    set_condition(&mut decision.vmi.status, conditions::DATA_VOLUMES_READY, status, reason, message, now);
}

/// The claims are usable but for those that wait for a consumer. `make` makes the pod that is one.
pub(super) fn wait_for_consumer(
    consumers: &[Arc<Pod>],
    decision: &mut Decision,
    now: Timestamp,
    make: impl FnOnce(&mut Decision),
) {
    set_condition(&mut decision.vmi.status, conditions::PROVISIONING, TRUE, "", "", now);
    match consumers.first() {
        None => make(decision),
        Some(pod) if observe::is_terminating(pod) => {}
        Some(pod) if !observe::is_done(pod) && template::is_misplaced(&decision.vmi, pod) => {
            delete(consumers, decision);
        }
        Some(pod) if observe::is_done(pod) && !observe::succeeded(pod) => {
            let end = observe::end(pod);
            decision
                .fail(&Trouble { message: format!("consumer of the claims: {}", end.message), ..end }, now);
        }
        Some(pod) => {
            if let Some(trouble) = observe::waiting(pod, now) {
                decision.unsynchronized(&trouble, now);
            }
        }
    }
}

/// Whether no consumer is in the way of the machine's own pod; those that are, are deleted.
pub(super) fn consumers_are_gone(consumers: &[Arc<Pod>], decision: &mut Decision) -> bool {
    delete(consumers, decision);
    if consumers.is_empty() {
        remove_condition(&mut decision.vmi.status, conditions::PROVISIONING);
    }
    consumers.is_empty()
}

/// Deletes the consumers that are not deleted yet.
pub(super) fn delete(consumers: &[Arc<Pod>], decision: &mut Decision) {
    let left = consumers.iter().filter(|pod| !observe::is_terminating(pod));
    decision.actions.extend(left.map(|pod| Action::Delete {
        name: observe::name(pod).to_owned(),
        uid: observe::uid(pod).to_owned(),
    }));
}
