//! Carries out the action that a pass has decided on. Each is tied to what was read, by UID, resource version or a test in the
//! patch: what is not so any more is left to the next pass.

use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use podvirt_api::names::{self, event};
use podvirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use podvirt_daemon::patch;
use serde_json::{Value, json};

use super::decide::Action;
use super::failed::{fail, has_failed_for};
use super::instance::{Link, TEMPLATE_DIGEST};
use super::reconcile::{Error, Shell};
use super::{nics, revision};
use crate::attachments::reason_of;
use crate::failure::is_lost;

/// A machine, and the API that it is written by.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) machines: &'a Api<VirtualMachine>,
    pub(super) vm: &'a VirtualMachine,
}

impl Shell {
    /// Does one thing for a machine of this shape. `false`: what it rests on is not so any more.
    pub(super) async fn act(
        &self,
        target: Target<'_>,
        shape: &VirtualMachine,
        action: Action,
    ) -> Result<bool, Error> {
        let Target { machines, vm } = target;
        let namespace = vm.namespace().unwrap_or_default();
        let instances = Api::<VirtualMachineInstance>::namespaced(self.client.clone(), &namespace);
        let name = vm.name_any();
        let how = PatchParams::default();
        match action {
            Action::AddFinalizer => {
                let mut wanted = vm.clone();
                wanted.finalizers_mut().push(names::VM_FINALIZER.to_owned());
                patch::metadata(machines, vm, &wanted).await?;
                Ok(true)
            }
            Action::RemoveFinalizer => {
                let mut wanted = vm.clone();
                wanted.finalizers_mut().retain(|finalizer| finalizer != names::VM_FINALIZER);
                patch::metadata(machines, vm, &wanted).await?;
                Ok(true)
            }
            Action::MakeDataVolumes(places) => self.make_data_volumes(target, shape, &places).await,
            Action::Adopt { uid, version, owners } => {
                // The generation is of a VirtualMachine that is gone.
                let annotations = json!({ names::annotation::VM_GENERATION: "0" });
                let change = json!({"metadata": {"uid": uid, "resourceVersion": version, "ownerReferences": owners,
                    "annotations": annotations}});
                let patched = instances.patch(&name, &how, &Patch::Merge(change)).await;
                let message = format!("VirtualMachineInstance {uid} adopted: it had no controller");
                let reasons = (event::SUCCESSFUL_ADOPT, event::FAILED_ADOPT);
                self.told(target, so_still(patched), reasons, &message, "not adopted").await
            }
            Action::Start(vmi) => self.start(target, &instances, &vmi).await,
            Action::Stop { uid, version, because } => {
                let only = Preconditions { uid: Some(uid.clone()), resource_version: version };
                let deleted = instances.delete(&name, &DeleteParams::default().preconditions(only)).await;
                let message = format!("VirtualMachineInstance {uid} deleted: {because}");
                let reasons = (event::SUCCESSFUL_DELETE, event::FAILED_DELETE);
                self.told(target, so_still(deleted), reasons, &message, "not stopped").await
            }
            Action::BecomeAlways => {
                let patched = machines.patch(&name, &how, &Patch::Merge(always(vm))).await;
                let message = "a start was requested: the machine is no longer halted";
                let reasons = (event::STARTING, event::FAILED_CREATE);
                self.told(target, so_still(patched), reasons, message, "not started").await
            }
            Action::SetLinks { uid, links } => {
                let patch = json_patch(of(&uid).chain(links.iter().flat_map(link_operations)))?;
                match as_tested(instances.patch(&name, &how, &patch).await) {
                    Ok(so) => Ok(so),
                    Err(error) => {
                        self.refused(target, event::FAILED_CREATE, "links not changed", error).await
                    }
                }
            }
            Action::SetInterfaces { uid, change } => {
                let digest = change.digest.as_ref().map(|digest| {
                    let name = TEMPLATE_DIGEST.replace('/', "~1");
                    json!({"op": "add", "path": format!("/metadata/annotations/{name}"), "value": digest})
                });
                let patch = json_patch(of(&uid).chain(operations("/spec", &change)).chain(digest))?;
                let patched = instances.patch(&name, &how, &patch).await;
                self.changed(target, as_tested(patched), event::INTERFACES_CHANGED, &change.message).await
            }
            Action::SetInstance { uid, operations, reason, message } => {
                let patched = instances.patch(&name, &how, &json_patch(of(&uid).chain(operations))?).await;
                self.changed(target, as_tested(patched), reason, &message).await
            }
            Action::SetTemplate { operations, message } => {
                let patched = machines.patch(&name, &how, &json_patch(operations)?).await;
                self.changed(target, as_tested(patched), event::VOLUMES_CHANGED, &message).await
            }
            Action::ClearTemplate(change) => {
                let patch = json_patch(operations("/spec/template/spec", &change))?;
                let patched = machines.patch(&name, &how, &patch).await;
                self.changed(target, as_tested(patched), event::INTERFACES_CHANGED, &change.message).await
            }
            Action::NoteGeneration { uid, generation } => {
                let annotations = json!({ names::annotation::VM_GENERATION: generation.to_string() });
                let change = json!({"metadata": {"uid": uid, "annotations": annotations}});
                let patched = instances.patch(&name, &how, &Patch::Merge(change)).await;
                so_still(patched).map_err(Error::Ask)
            }
        }
    }

    async fn start(
        &self,
        target: Target<'_>,
        instances: &Api<VirtualMachineInstance>,
        vmi: &VirtualMachineInstance,
    ) -> Result<bool, Error> {
        // The cache may not have the last instance yet, or no longer.
        if instances.get_metadata_opt(&target.vm.name_any()).await.map_err(Error::Ask)?.is_some() {
            return Ok(false);
        }
        if let Err(error) = revision::renew(&self.client, target.vm).await {
            return self.refused(target, event::FAILED_CREATE, "not started", error).await;
        }
        match instances.create(&PostParams::default(), vmi).await {
            Ok(made) => {
                let message = format!("VirtualMachineInstance {} made", made.uid().unwrap_or_default());
                tracing::info!(vmi = made.uid(), "instance made");
                self.recorder.normal(target.vm, event::SUCCESSFUL_CREATE, &message).await;
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(false),
            Err(error) => self.refused(target, event::FAILED_CREATE, "not started", error).await,
        }
    }

    /// Tells people of what was changed in the instance or the template, or was refused; [`as_tested`] has made the answer.
    async fn changed(
        &self,
        target: Target<'_>,
        patched: Result<bool, kube::Error>,
        reason: &str,
        what: &str,
    ) -> Result<bool, Error> {
        self.told(target, patched, (reason, event::FAILED_CREATE), what, "the instance is not changed").await
    }

    /// Tells people that `what` was done, or that it was refused: `what_not`. The events' reasons are those of the one and the other.
    async fn told(
        &self,
        target: Target<'_>,
        answer: Result<bool, kube::Error>,
        (done, refused): (&str, &str),
        what: &str,
        what_not: &str,
    ) -> Result<bool, Error> {
        match answer {
            Ok(true) => {
                tracing::info!(reason = done, "{what}");
                self.recorder.normal(target.vm, done, what).await;
                Ok(true)
            }
            Ok(false) => Ok(false),
            Err(error) => self.refused(target, refused, what_not, error).await,
        }
    }

    /// Tells people that the API server refused an action, by an event and by the condition Failure.
    async fn refused(
        &self,
        target: Target<'_>,
        reason: &str,
        what: &str,
        error: kube::Error,
    ) -> Result<bool, Error> {
        self.failed(target, reason, what, &reason_of(&error)).await
    }

    /// Tells people that `what` is so, and why, by an event and by the condition Failure.
    pub(super) async fn failed(
        &self,
        Target { machines, vm }: Target<'_>,
        reason: &str,
        what: &str,
        why: &str,
    ) -> Result<bool, Error> {
        let message = format!("{what}: {why}");
        self.recorder.warning(vm, reason, &message).await;
        // Texts of one refusal may differ each time: writing them anew would wake the next attempt before its time.
        if has_failed_for(&vm.status, reason, what) {
            return Err(Error::Refused(message));
        }
        let mut wanted = vm.clone();
        fail(&mut wanted.status, reason, &message, Timestamp::now());
        patch::status_subresource(machines, vm, &wanted).await?;
        Err(Error::Refused(message))
    }
}

/// Whether an answer says that what was seen is so still, and was changed. A patch with tests: [`as_tested`].
fn so_still<T>(answer: Result<T, kube::Error>) -> Result<bool, kube::Error> {
    match answer {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(false),
        Err(error) => Err(error),
    }
}

/// As [`so_still`], of a patch that tests what was seen.
fn as_tested<T>(answer: Result<T, kube::Error>) -> Result<bool, kube::Error> {
    match answer {
        Err(kube::Error::Api(status)) if is_lost(&status) => Ok(false),
        answer => so_still(answer),
    }
}

/// A halted machine's change to one that runs.
fn always(vm: &VirtualMachine) -> Value {
    let spec =
        if vm.spec.running.is_some() { json!({"running": true}) } else { json!({"runStrategy": "Always"}) };
    json!({"metadata": {"resourceVersion": vm.resource_version()}, "spec": spec})
}

/// The operation that ties a patch to the object of this UID.
fn of(uid: &str) -> impl Iterator<Item = Value> + use<> {
    std::iter::once(json!({"op": "test", "path": "/metadata/uid", "value": uid}))
}

/// Sets an interface's link; by its name, as another interface may stand at its place after a change of the list.
fn link_operations(link: &Link) -> [Value; 2] {
    let path = format!("/spec/domain/devices/interfaces/{}", link.index);
    [
        json!({"op": "test", "path": format!("{path}/name"), "value": link.name}),
        json!({"op": "add", "path": format!("{path}/state"), "value": link.state}),
    ]
}

/// Changes interfaces and networks below `path`, if they are as they were seen.
fn operations(path: &str, change: &nics::Change) -> Vec<Value> {
    let lists = [
        ("domain/devices/interfaces", json!(change.old_interfaces), json!(change.interfaces)),
        ("networks", json!(change.old_networks), json!(change.networks)),
    ];
    let changed = lists.into_iter().flat_map(|(list, old, new)| {
        let path = format!("{path}/{list}");
        // A list that is not there cannot be tested; what it would be in the way of, is tested by its own.
        let test = (old != json!([])).then(|| json!({"op": "test", "path": path, "value": old}));
        test.into_iter().chain([json!({"op": "add", "path": path, "value": new})])
    });
    changed.collect()
}

fn json_patch(operations: impl IntoIterator<Item = Value>) -> Result<Patch<()>, Error> {
    let operations = Value::from_iter(operations);
    let patch = serde_json::from_value(operations).map_err(kube::Error::SerdeError).map_err(Error::Ask)?;
    Ok(Patch::Json(patch))
}
