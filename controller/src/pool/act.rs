//! Carrying out what was decided: VMs made, deleted, written; instances deleted; revisions kept.

use std::time::Instant;

use futures::future::join_all;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use podvirt_api::names::{event, label};
use podvirt_api::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachinePool as Pool};
use serde_json::{Value, json};

use super::controller::Shared;
use super::decide::{Action, Target};
use super::revision;
use crate::attachments::reason_of;
use crate::failure::{Error, is_lost};

/// Requests that are under way at the same time, and that fail at most before the rest is left for later.
const TOGETHER: usize = 16;

/// What a pass asks by.
struct Act<'a> {
    pool: &'a Pool,
    shared: &'a Shared,
    machines: Api<VirtualMachine>,
    instances: Api<VirtualMachineInstance>,
    revisions: Api<ControllerRevision>,
}

/// Asks for what was decided, until something is refused.
pub(super) async fn carry_out(pool: &Pool, actions: &[Action], shared: &Shared) -> Result<(), Error> {
    let (client, namespace) = (&shared.context.client, pool.namespace().unwrap_or_default());
    let act = Act {
        pool,
        shared,
        machines: Api::namespaced(client.clone(), &namespace),
        instances: Api::namespaced(client.clone(), &namespace),
        revisions: Api::namespaced(client.clone(), &namespace),
    };
    // The revision is there before anything names it.
    let (first, rest): (Vec<_>, Vec<_>) = actions.iter().partition(|action| **action == Action::Remember);
    for action in first {
        Box::pin(act.one(action)).await?;
    }
    for some in rest.chunks(TOGETHER) {
        let asked = join_all(some.iter().map(|action| Box::pin(act.one(action)))).await;
        asked.into_iter().collect::<Result<(), Error>>()?;
    }
    Ok(())
}

impl Act<'_> {
    async fn one(&self, action: &Action) -> Result<(), Error> {
        match action {
            Action::Release { vm, owners } => self.release(vm, owners).await,
            Action::Remember => match self.shared.revisions.remember(&self.revisions, self.pool).await {
                Ok(()) => Ok(()),
                Err(revision::Error::Api(error)) => {
                    Err(Error::Refused(format!("Error writing the revision: {}", reason_of(&error))))
                }
                Err(error) => Err(Error::Refused(format!("Error writing the revision: {error}"))),
            },
            Action::Create(vm) => self.create(vm).await,
            Action::Delete(vm) => self.delete(vm).await,
            Action::Update(vm, wanted) => self.update(vm, wanted).await,
            Action::Restart(vmi) => self.restart(vmi).await,
            Action::Label(vmi, revision) => {
                let labels = json!({ label::POOL_REVISION: revision });
                let change = Patch::Merge(json!({"metadata": {"uid": vmi.uid, "labels": labels}}));
                let patched = self.instances.patch(&vmi.name, &PatchParams::default(), &change).await;
                self.settled(patched.map(drop), &format!("updating resource {}", self.path(&vmi.name))).await
            }
            Action::Forget(name) => {
                let gone = self.shared.revisions.delete(&self.revisions, self.pool, name).await;
                gone.map_err(|error| {
                    Error::Refused(format!("error while pruning vmpool revisions: {}", reason_of(&error)))
                })
            }
        }
    }

    /// A name as events tell it.
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.pool.namespace().unwrap_or_default())
    }

    async fn told(&self, reason: &str, message: &str) {
        self.shared.context.recorder.normal(self.pool, reason, message).await;
    }

    /// Tells people that something was refused.
    async fn refused(&self, reason: &str, what: &str, error: &kube::Error) -> Result<(), Error> {
        let message = format!("Error {what}: {}", reason_of(error));
        self.shared.context.recorder.warning(self.pool, reason, &message).await;
        Err(Error::Refused(message))
    }

    /// How a change went that need not be made if the object is another one by now.
    async fn settled(&self, changed: Result<(), kube::Error>, what: &str) -> Result<(), Error> {
        match changed {
            Ok(()) => Ok(()),
            Err(kube::Error::Api(status)) if is_lost(&status) => Ok(()),
            Err(error) => self.refused(event::FAILED_UPDATE, what, &error).await,
        }
    }

    async fn release(&self, vm: &Target, owners: &impl serde::Serialize) -> Result<(), Error> {
        let metadata = json!({"uid": vm.uid, "resourceVersion": vm.version, "ownerReferences": owners});
        let change = Patch::Merge(json!({ "metadata": metadata }));
        let patched = self.machines.patch(&vm.name, &PatchParams::default(), &change).await;
        self.settled(patched.map(drop), &format!("releasing VM {}", self.path(&vm.name))).await
    }

    async fn create(&self, vm: &VirtualMachine) -> Result<(), Error> {
        match self.machines.create(&PostParams::default(), vm).await {
            Ok(made) => {
                let own = self.pool.uid().unwrap_or_default();
                let uid = made.uid().unwrap_or_default();
                self.shared.expectations.expect_creation(&own, &uid, Instant::now());
                tracing::info!(vm = made.name_any(), "VM made");
                self.told(event::SUCCESSFUL_CREATE, &format!("Created VM {}", self.path(&made.name_any())))
                    .await;
                Ok(())
            }
            Err(error) => self.refused(event::FAILED_CREATE, "creating VM", &error).await,
        }
    }

    async fn delete(&self, vm: &Target) -> Result<(), Error> {
        let path = self.path(&vm.name);
        let only = Preconditions { uid: Some(vm.uid.clone()), resource_version: None };
        match self.machines.delete(&vm.name, &DeleteParams::default().preconditions(only)).await {
            Ok(_) => {
                self.expect_end(&vm.uid);
                tracing::info!(vm = vm.name, "VM deleted");
                let message = format!("Deleted VM {path} with uid {} from pool", vm.uid);
                self.told(event::SUCCESSFUL_DELETE, &message).await;
                Ok(())
            }
            Err(kube::Error::Api(status)) if is_lost(&status) => Ok(()),
            Err(error) => {
                self.refused(event::FAILED_DELETE, &format!("deleting virtual machine {path}"), &error).await
            }
        }
    }

    async fn update(&self, vm: &Target, wanted: &VirtualMachine) -> Result<(), Error> {
        let path = self.path(&vm.name);
        let change: Value = json!([
            {"op": "test", "path": "/metadata/uid", "value": vm.uid},
            {"op": "test", "path": "/metadata/resourceVersion", "value": vm.version},
            {"op": "add", "path": "/metadata/labels", "value": wanted.metadata.labels.clone().unwrap_or_default()},
            {"op": "add", "path": "/metadata/annotations", "value": wanted.metadata.annotations.clone().unwrap_or_default()},
            {"op": "replace", "path": "/spec", "value": wanted.spec},
        ]);
        let change: json_patch::Patch = serde_json::from_value(change).map_err(kube::Error::SerdeError)?;
        match self.machines.patch(&vm.name, &PatchParams::default(), &Patch::Json::<()>(change)).await {
            Ok(_) => {
                tracing::info!(vm = vm.name, "VM updated");
                self.told(event::SUCCESSFUL_UPDATE, &format!("Updated VM {path}")).await;
                Ok(())
            }
            Err(kube::Error::Api(status)) if is_lost(&status) => Ok(()),
            Err(error) => {
                self.refused(event::FAILED_UPDATE, &format!("updating virtual machine {path}"), &error).await
            }
        }
    }

    async fn restart(&self, vmi: &Target) -> Result<(), Error> {
        let path = self.path(&vmi.name);
        let only = Preconditions { uid: Some(vmi.uid.clone()), resource_version: None };
        match self.instances.delete(&vmi.name, &DeleteParams::default().preconditions(only)).await {
            Ok(_) => {
                self.expect_end(&vmi.uid);
                tracing::info!(vmi = vmi.name, "instance deleted for an update");
                let message = format!("Successfully updated resource {path}");
                self.told(event::SUCCESSFUL_DELETE, &message).await;
                Ok(())
            }
            Err(kube::Error::Api(status)) if is_lost(&status) => Ok(()),
            Err(error) => {
                self.refused(event::FAILED_UPDATE, &format!("updating resource {path}"), &error).await
            }
        }
    }

    fn expect_end(&self, uid: &str) {
        let own = self.pool.uid().unwrap_or_default();
        self.shared.expectations.expect_deletion(&own, uid, Instant::now());
    }
}
