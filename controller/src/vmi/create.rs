//! The pod of a machine that has none: made once the machine's claims are there and filled.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use podvirt_api::names::condition::{self as conditions, reason};

use super::claims::{Problem, volume_status};
use super::data::{self, Filling};
use super::decide::{Action, Decision, Observed, forget_trouble};
use super::observe::Trouble;
use super::status::{condition, remove_condition};
use crate::storage::backend::Backend;
use crate::template::{self, TemplateError};

/// When to look again for a claim that was missing, if the watch of claims does not tell of it.
const CLAIM_RETRY: Duration = Duration::from_secs(5);

/// Reasons of [`conditions::SYNCHRONIZED`] that speak of claims.
pub(super) const OF_CLAIMS: [&str; 2] = [reason::FAILED_PVC_NOT_FOUND, reason::FAILED_DATA_VOLUME_IMPORT];

/// Those that speak of the claim with the state of firmware and TPM.
pub(super) const OF_BACKEND: [&str; 3] = [
    reason::FAILED_BACKEND_STORAGE_CREATE,
    reason::FAILED_BACKEND_STORAGE_PROBE,
    reason::BACKEND_STORAGE_NOT_READY,
];

/// The machine has no pod: it gets one, or says what its claims lack.
pub(super) fn create(seen: &Observed<'_>, decision: &mut Decision, now: Timestamp) {
    let namespace = seen.vmi.metadata.namespace.as_deref().unwrap_or_default();
    let waits = |problem: &Problem| *problem == Problem::Filling(Filling::WaitsForConsumer);
    let first = seen.claims.iter().find(|(_, problem)| !waits(problem));
    if let Some((claim, problem)) = first {
        let (reason, message) = match problem {
            Problem::Filling(Filling::Failed(why)) => {
                let reason = reason::FAILED_DATA_VOLUME_IMPORT.into();
                decision.fail(&Trouble { reason, message: why.clone() }, now);
                return;
            }
            Problem::Filling(Filling::Goes(Some(why))) => (reason::FAILED_DATA_VOLUME_IMPORT, why.clone()),
            Problem::Filling(_) => {
                forget_trouble(&mut decision.vmi);
                decision.look_again = Some(CLAIM_RETRY);
                return;
            }
            Problem::Missing => (
                reason::FAILED_PVC_NOT_FOUND,
                format!(
                    "PersistentVolumeClaim {namespace}/{claim} does not exist; the machine starts once it does"
                ),
            ),
        };
        decision.unsynchronized(&Trouble { reason: reason.into(), message }, now);
        decision.look_again = Some(CLAIM_RETRY);
        return;
    }
    if !backend(seen, decision, now) {
        return;
    }
    let images = seen.settings.images(seen.launcher_image, seen.limits);
    // The pod has each claim by its mode, which the status tells.
    let mut vmi = seen.vmi.clone();
    vmi.status.volume_status = volume_status(&vmi, seen.claims_told, seen.backend);
    if !seen.claims.is_empty() {
        forget_trouble(&mut decision.vmi);
        data::wait_for_consumer(seen.consumers, decision, now, |decision| {
            make(template::consumer_pod(&vmi, &seen.settings.configuration, &images), decision, now);
        });
        decision.look_again = Some(CLAIM_RETRY);
    } else if data::consumers_are_gone(seen.consumers, decision) {
        make(template::launcher_pod(&vmi, &seen.settings.configuration, &images), decision, now);
    }
}

/// Whether the claim with the state of firmware and TPM can be used, or none is needed. It is made where it is missing.
fn backend(seen: &Observed<'_>, decision: &mut Decision, now: Timestamp) -> bool {
    match seen.backend {
        Backend::Ready(_) | Backend::Unneeded(None) => return true,
        Backend::Unneeded(Some(left)) => {
            let (name, uid) = (left.metadata.name.clone(), left.metadata.uid.clone());
            let (name, uid) = (name.unwrap_or_default(), uid.unwrap_or_default());
            decision.actions.push(Action::DeleteClaim { name, uid });
            return true;
        }
        Backend::Unknown => {}
        Backend::Missing(claim) => {
            forget_trouble(&mut decision.vmi);
            decision.actions.push(Action::CreateClaim(claim.clone()));
        }
        Backend::Waits(_, reason, message) => {
            decision.unsynchronized(&Trouble { reason: (*reason).into(), message: message.clone() }, now);
        }
    }
    decision.look_again = Some(CLAIM_RETRY);
    false
}

/// Makes a pod, if it can be rendered.
fn make(pod: Result<Pod, TemplateError>, decision: &mut Decision, now: Timestamp) {
    match pod {
        Ok(pod) => {
            let failed = condition(&decision.vmi.status, conditions::SYNCHRONIZED)
                .and_then(|c| c.reason.as_deref())
                .is_some_and(|r| OF_CLAIMS.contains(&r) || OF_BACKEND.contains(&r));
            if failed {
                remove_condition(&mut decision.vmi.status, conditions::SYNCHRONIZED);
            }
            decision.actions.push(Action::Create(Box::new(pod)));
        }
        Err(error) => {
            let trouble = Trouble { reason: reason::FAILED_CREATE.into(), message: error.to_string() };
            decision.unsynchronized(&trouble, now);
        }
    }
}
