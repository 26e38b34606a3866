//! Stores what a machine names as ControllerRevisions, and deletes those that it does not refer to any more.

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use podvirt_api::instancetype::{Scope, Subject, is_same, revision};
use podvirt_api::v1::VirtualMachine;
use serde_json::Value;

use super::super::reconcile::{Error, Shell};
use super::Problem;
use super::find::Looked;
use crate::claim::{Ownership, is_of_predecessor, ownership};

/// Upstream's words for a revision that could not be stored.
fn not_stored(why: &str) -> Problem {
    let what = "error encountered while storing instancetype.kubevirt.io controllerRevisions";
    Problem::not_applied(format!("{what}: {why}"))
}

impl Shell {
    /// Stores `object`, which `vm` names, and returns the revision's name.
    pub(super) async fn keep(
        &self,
        vm: &VirtualMachine,
        subject: Subject,
        scope: Scope,
        object: &Value,
    ) -> Looked<String> {
        let wanted = revision(vm, subject, scope, object);
        let name = wanted.name_any();
        let revisions = self.revisions_of(vm);
        match revisions.create(&PostParams::default(), &wanted).await {
            Ok(_) => {
                tracing::info!(revision = name, kind = subject.kind(scope), "stored");
                return Ok(Ok(name));
            }
            // An earlier pass has made it: the name has the object's generation in it.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(kube::Error::Api(status)) if status.is_forbidden() || status.is_invalid() => {
                return Ok(Err(not_stored(&format!(
                    "failed to create ControllerRevision: {}",
                    status.message
                ))));
            }
            Err(error) => return Err(Error::Ask(error)),
        }
        let there = revisions.get(&name).await.map_err(Error::Ask)?;
        // A machine's revisions go with it, at the garbage collector's leisure.
        if ownership(&vm.metadata, &there.metadata) == Ownership::Leaving
            || is_of_predecessor(&vm.metadata, "VirtualMachine", &there.metadata)
        {
            return Ok(Err(not_stored(&format!("ControllerRevision {name} is being deleted"))));
        }
        if is_same(&there, &wanted) {
            return Ok(Ok(name));
        }
        Ok(Err(not_stored(&format!("found existing ControllerRevision with unexpected data: {name}"))))
    }

    /// Deletes a revision if the machine owns it.
    pub(super) async fn forget(&self, vm: &VirtualMachine, name: &str) -> Result<(), Error> {
        let there = match self.revision(vm, name).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
            there => there.map_err(Error::Ask)?,
        };
        if !there.owner_references().iter().any(|owner| Some(&owner.uid) == vm.metadata.uid.as_ref()) {
            return Ok(());
        }
        let only = Preconditions { uid: there.uid(), resource_version: None };
        match self.revisions_of(vm).delete(name, &DeleteParams::default().preconditions(only)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            gone => gone.map(drop).map_err(Error::Ask),
        }
    }

    fn revisions_of(&self, vm: &VirtualMachine) -> Api<ControllerRevision> {
        Api::namespaced(self.client.clone(), &vm.namespace().unwrap_or_default())
    }
}
