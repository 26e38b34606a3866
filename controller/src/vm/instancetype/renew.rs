//! Revisions that an early release of upstream's has made are made anew.
//!
//! Their names and labels do not say the version of what they keep, and later releases read them no more. A new one is
//! stored, then the machine's status refers to it, then the old one goes: at each moment the status names one that is there.

use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use podvirt_api::instancetype::{Matcher, Subject, VERSION, unlabelled};
use podvirt_api::v1::VirtualMachine;
use serde_json::json;

use super::super::reconcile::{Error, Shell};
use super::refs;
use crate::failure::is_lost;

impl Shell {
    /// Makes a revision of the machine anew where it does not say its version; whether it did.
    ///
    /// What cannot be found or stored is told when the machine's shape is made.
    pub(super) async fn renew(&self, vm: &VirtualMachine) -> Result<bool, Error> {
        for subject in Subject::ALL {
            // A revision that the machine itself names stays what is named.
            if Matcher::of(vm, subject).is_none_or(|matcher| matcher.revision().is_some()) {
                continue;
            }
            let mut status = vm.status.clone();
            let Some(old) = refs::of(&mut status, subject).as_ref().and_then(refs::revision) else {
                continue;
            };
            // The names of later releases say the version: these need no look.
            if old.contains(&format!("-{VERSION}-")) {
                continue;
            }
            let Ok(found) = self.revision(vm, old).await else { continue };
            let Some((scope, object)) = unlabelled(&found, subject) else { continue };
            match self.keep(vm, subject, scope, &object).await? {
                Ok(new) if new != old => {
                    self.refer_anew(vm, subject, old, &new).await?;
                    return Ok(true);
                }
                Ok(_) | Err(_) => {}
            }
        }
        Ok(false)
    }

    async fn refer_anew(
        &self,
        vm: &VirtualMachine,
        subject: Subject,
        old: &str,
        new: &str,
    ) -> Result<(), Error> {
        let path = format!("/status/{}Ref/controllerRevisionRef/name", subject.field());
        let patch = json!([
            {"op": "test", "path": path, "value": old},
            {"op": "replace", "path": path, "value": new},
        ]);
        let patch: json_patch::Patch =
            serde_json::from_value(patch).map_err(kube::Error::SerdeError).map_err(Error::Ask)?;
        let machines =
            Api::<VirtualMachine>::namespaced(self.client.clone(), &vm.namespace().unwrap_or_default());
        let patch = Patch::Json::<()>(patch);
        match machines.patch_status(&vm.name_any(), &PatchParams::default(), &patch).await {
            Ok(_) => {
                tracing::info!(old, new, "a revision that did not say its version is made anew");
                self.forget(vm, old).await
            }
            // It has changed, or is gone: that is told by its watch.
            Err(kube::Error::Api(status)) if is_lost(&status) => Ok(()),
            Err(error) => Err(Error::Ask(error)),
        }
    }
}
