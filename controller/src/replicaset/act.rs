//! Carrying out what was decided: instances adopted, made, deleted.

use std::time::Instant;

use futures::future::join_all;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use podvirt_api::names::event;
use podvirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceReplicaSet as ReplicaSet};
use serde_json::json;

use super::controller::{Error, Shared};
use super::decide::Action;
use crate::attachments::reason_of;

/// Requests that are under way at the same time, and that fail at most before the rest is left for later.
const TOGETHER: usize = 16;

/// Asks for what was decided, until something is refused.
pub(super) async fn carry_out(set: &ReplicaSet, actions: &[Action], shared: &Shared) -> Result<(), Error> {
    let api = Api::namespaced(shared.context.client.clone(), &set.namespace().unwrap_or_default());
    for some in actions.chunks(TOGETHER) {
        let asked = join_all(some.iter().map(|action| Box::pin(one(&api, set, action, shared)))).await;
        asked.into_iter().collect::<Result<(), Error>>()?;
    }
    Ok(())
}

async fn one(
    api: &Api<VirtualMachineInstance>,
    set: &ReplicaSet,
    action: &Action,
    shared: &Shared,
) -> Result<(), Error> {
    let own = set.uid().unwrap_or_default();
    let recorder = &shared.context.recorder;
    let refused = |reason: &'static str, message: String| async move {
        recorder.warning(set, reason, &message).await;
        Err(Error::Refused { reason, message })
    };
    match action {
        Action::Own { name, uid, version, owners } => {
            let change =
                json!({"metadata": {"uid": uid, "resourceVersion": version, "ownerReferences": owners}});
            match api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await {
                Ok(_) => Ok(()),
                // Its change, which is being told, calls for the next pass.
                Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
                Err(error) => {
                    let why = reason_of(&error);
                    let message =
                        format!("Error changing the owner of virtual machine instance {name}: {why}");
                    refused(event::FAILED_UPDATE, message).await
                }
            }
        }
        Action::Create(vmi) => match api.create(&PostParams::default(), vmi).await {
            Ok(made) => {
                let (name, uid) = (made.name_any(), made.uid().unwrap_or_default());
                // Its echo, if it has come before the answer, is found by the next pass.
                shared.expectations.expect_creation(&own, &uid, Instant::now());
                tracing::info!(vmi = name, "instance made");
                let message = format!(
                    "Started the virtual machine by creating the new virtual machine instance {name}"
                );
                recorder.normal(set, event::SUCCESSFUL_CREATE, &message).await;
                Ok(())
            }
            Err(error) => {
                let message = format!("Error creating virtual machine instance: {}", reason_of(&error));
                refused(event::FAILED_CREATE, message).await
            }
        },
        Action::Delete { name, uid, finished } => {
            let only = Preconditions { uid: Some(uid.clone()), resource_version: None };
            match api.delete(name, &DeleteParams::default().preconditions(only)).await {
                Ok(_) => {
                    shared.expectations.expect_deletion(&own, uid, Instant::now());
                    tracing::info!(vmi = name, finished, "instance deleted");
                    let message = if *finished {
                        format!("Deleted finished virtual machine: {uid}")
                    } else {
                        format!("Stopped the virtual machine by deleting the virtual machine instance {uid}")
                    };
                    recorder.normal(set, event::SUCCESSFUL_DELETE, &message).await;
                    Ok(())
                }
                // Gone, or another one has its name.
                Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
                Err(error) => {
                    let why = reason_of(&error);
                    let message = format!("Error deleting virtual machine instance {name}: {why}");
                    refused(event::FAILED_DELETE, message).await
                }
            }
        }
    }
}
