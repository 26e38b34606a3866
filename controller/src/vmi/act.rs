//! Carrying out what was decided: pods made, deleted, written.

use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use podvirt_api::names::{condition, event};
use podvirt_api::v1::VirtualMachineInstance;
use serde_json::json;

use super::controller::{Error, Shared, write};
use super::decide::{self, Action};
use super::{observe, pods};
use crate::attachments::{self, reason_of};

/// Asks for what was decided.
pub(super) async fn carry_out(
    api: &Api<Pod>,
    vmi: &VirtualMachineInstance,
    action: Action,
    shared: &Shared,
) -> Result<(), Error> {
    match action {
        Action::Create(pod) => Box::pin(create(api, vmi, &pod, shared)).await,
        Action::CreateClaim(claim) => create_claim(vmi, &claim, shared).await,
        Action::DeleteClaim { name, uid } => {
            let claims: Api<PersistentVolumeClaim> =
                Api::namespaced(shared.context.client.clone(), &vmi.namespace().unwrap_or_default());
            match claims.delete(&name, &exactly(uid)).await {
                Ok(_) => Ok(()),
                // Gone, or another one has its name.
                Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
                Err(source) => Err(Error::Delete { name, source }),
            }
        }
        Action::Delete { name, uid } => delete(api, vmi, name, uid, shared).await,
        Action::Gate { name, uid, open, reason } => {
            let gate = json!({
                "type": condition::VIRTUAL_MACHINE_UNPAUSED,
                "status": if open { "True" } else { "False" },
                "reason": reason,
                "lastTransitionTime": Time(Timestamp::now()),
            });
            // A strategic merge: the other conditions are kubelet's and stay.
            let body = json!({"metadata": {"uid": uid}, "status": {"conditions": [gate]}});
            let params = PatchParams::default();
            settled(api.patch_status(&name, &params, &Patch::Strategic(&body)).await, name)
        }
        Action::Annotate { name, uid, annotations } => {
            let body = json!({"metadata": {"uid": uid, "annotations": annotations}});
            settled(api.patch(&name, &PatchParams::default(), &Patch::Merge(&body)).await, name)
        }
        Action::Label { name, uid, key, value } => {
            let body = json!({"metadata": {"uid": uid, "labels": {key: value}}});
            settled(api.patch(&name, &PatchParams::default(), &Patch::Merge(&body)).await, name)
        }
    }
}

/// A pod that went meanwhile, or came anew under its name, needs no write; its change is being told.
fn settled(result: Result<Pod, kube::Error>, name: String) -> Result<(), Error> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(source) => Err(Error::Update { name, source }),
    }
}

async fn create(
    api: &Api<Pod>,
    vmi: &VirtualMachineInstance,
    pod: &Pod,
    shared: &Shared,
) -> Result<(), Error> {
    let (name, machine) = (pod.name_any(), vmi.uid().unwrap_or_default());
    let pod = match attachments::with_resources(&shared.context.client, pod).await {
        Ok(pod) => pod,
        Err(error) => {
            Box::pin(tell_refused(vmi, &error.told(), shared)).await?;
            return Err(error.into());
        }
    };
    match api.create(&PostParams::default(), &pod).await {
        Ok(made) => {
            shared.expectations.expect_creation(&machine, &made.uid().unwrap_or_default(), Instant::now());
            // Its echo may have come before the answer.
            for seen in shared.pods.all_of(&machine) {
                let deleting = seen.metadata.deletion_timestamp.is_some();
                shared.expectations.seen(&machine, &seen.uid().unwrap_or_default(), deleting);
            }
            let message = format!("made {} {name}", role(&pod));
            tracing::info!(pod = name, role = role(&pod), "pod made");
            shared.context.recorder.normal(vmi, event::SUCCESSFUL_CREATE, &message).await;
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let there =
                api.get_opt(&name).await.map_err(|source| Error::Create { name: name.clone(), source })?;
            match there {
                Some(there) if pods::machine(&there).is_none_or(|(uid, _)| uid != machine) => {
                    Err(Error::Taken(name))
                }
                // Ours, or gone by now: the watch tells.
                _ => Ok(()),
            }
        }
        Err(source) if observe::is_attachment(&pod) => {
            let message = format!("{} {name} could not be made: {}", role(&pod), reason_of(&source));
            shared.context.recorder.warning(vmi, event::FAILED_CREATE, &message).await;
            Err(Error::Create { name, source })
        }
        Err(source) => {
            Box::pin(tell_refused(vmi, &reason_of(&source), shared)).await?;
            Err(Error::Create { name, source })
        }
    }
}

/// Makes the claim with the state of firmware and TPM. Its name follows from the machine: what is there already is that claim.
async fn create_claim(
    vmi: &VirtualMachineInstance,
    claim: &PersistentVolumeClaim,
    shared: &Shared,
) -> Result<(), Error> {
    let name = claim.name_any();
    let api: Api<PersistentVolumeClaim> =
        Api::namespaced(shared.context.client.clone(), &vmi.namespace().unwrap_or_default());
    match api.create(&PostParams::default(), claim).await {
        Ok(_) => {
            tracing::info!(claim = name, "claim for the machine's state made");
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(source) => {
            let why = reason_of(&source);
            let message = format!("PersistentVolumeClaim {name} could not be made: {why}");
            let reason = condition::reason::FAILED_BACKEND_STORAGE_CREATE;
            shared.context.recorder.warning(vmi, reason, &message).await;
            Err(Error::Create { name, source })
        }
    }
}

/// Deletes the very object.
fn exactly(uid: String) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
        ..DeleteParams::default()
    }
}

/// What a pod of a machine is, for people.
fn role(pod: &Pod) -> &'static str {
    if observe::is_attachment(pod) { "attachment pod" } else { "launcher pod" }
}

/// Says why the machine has no pod.
async fn tell_refused(vmi: &VirtualMachineInstance, why: &str, shared: &Shared) -> Result<(), Error> {
    // The machine may have been written just now: what is in the cache is older.
    let api: Api<VirtualMachineInstance> =
        Api::namespaced(shared.context.client.clone(), &vmi.namespace().unwrap_or_default());
    if let Ok(Some(current)) = api.get_opt(&vmi.name_any()).await
        && current.uid() == vmi.uid()
    {
        let decision = decide::refused(&current, why, Timestamp::now());
        write(&current, &decision, shared).await?;
    }
    Ok(())
}

async fn delete(
    api: &Api<Pod>,
    vmi: &VirtualMachineInstance,
    name: String,
    uid: String,
    shared: &Shared,
) -> Result<(), Error> {
    match api.delete(&name, &exactly(uid.clone())).await {
        Ok(_) => {
            let machine = vmi.uid().unwrap_or_default();
            shared.expectations.expect_deletion(&machine, &uid, Instant::now());
            let there = shared.pods.all_of(&machine);
            let pod = there.iter().find(|p| p.uid().as_ref() == Some(&uid));
            let role = pod.map_or("pod", |pod| role(pod));
            match pod {
                Some(pod) => {
                    let deleting = pod.metadata.deletion_timestamp.is_some();
                    shared.expectations.seen(&machine, &uid, deleting);
                }
                None => shared.expectations.gone(&machine, &uid),
            }
            tracing::info!(pod = name, role, "pod deleted");
            let message = format!("deleted {role} {name}");
            shared.context.recorder.normal(vmi, event::SUCCESSFUL_DELETE, &message).await;
            Ok(())
        }
        // Gone, or another one has its name.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(source) => {
            let message = format!("pod {name} could not be deleted: {}", reason_of(&source));
            shared.context.recorder.warning(vmi, event::FAILED_DELETE, &message).await;
            Err(Error::Delete { name, source })
        }
    }
}
