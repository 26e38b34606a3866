//! From a machine to its shape.

use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use podvirt_api::defaults::Choices;
use podvirt_api::instancetype::{
    Matcher, Specs, Subject, check_requirements, expand, expand_template, machine_address,
};
use podvirt_api::v1::{InstancetypeReferencePolicy as Policy, KubeVirtConfiguration, VirtualMachine};
use serde_json::{Value, json};

use super::super::reconcile::{Error, Shell};
use super::find::{Found, Looked};
use super::{Problem, Shape, refs};
use crate::failure::is_lost;

/// Where the machine's own specification stands.
const TEMPLATE: &str = "spec.template.spec";

/// What to do with what machines name.
fn policy(config: &KubeVirtConfiguration) -> Policy {
    let policy = config.instancetype.as_ref().and_then(|chosen| chosen.reference_policy.clone());
    policy.unwrap_or(Policy::Reference)
}

/// Applies `specs` to the template of `vm`.
///
/// # Errors
///
/// They contradict it.
pub(super) fn made(
    vm: &VirtualMachine,
    specs: &Specs,
    config: &KubeVirtConfiguration,
) -> Result<VirtualMachine, Problem> {
    let mut made = vm.clone();
    let template = made.spec.template.get_or_insert_default();
    expand_template(TEMPLATE, specs, template, &Choices::of(config))
        .map_err(|conflicts| Problem::not_applied(conflicts.to_string()))?;
    machine_address(vm, template);
    let spec = template.spec.clone().unwrap_or_default();
    // What a machine gives itself, no instance type changes later: only the instance type's part can be new here.
    if specs.instancetype.is_some() {
        check_requirements(specs, &spec).map_err(|unmet| Problem::not_applied(unmet.message))?;
    }
    Ok(made)
}

impl Shell {
    /// The shape of a machine. Stores what it names, where that is not stored yet.
    pub(in super::super) async fn shape(&self, vm: &VirtualMachine) -> Result<Shape, Error> {
        if vm.metadata.deletion_timestamp.is_some() {
            return Ok(Shape::Plain);
        }
        if Subject::ALL.iter().all(|subject| Matcher::of(vm, *subject).is_none()) {
            return self.without(vm).await;
        }
        if self.renew(vm).await? {
            return Ok(Shape::Rewritten);
        }
        let settings = self.cluster.settings().await;
        let shape = self.with(vm, &settings.configuration).await?;
        Ok(shape.unwrap_or_else(Shape::Failed))
    }

    /// A machine that names nothing, and may have done so before.
    async fn without(&self, vm: &VirtualMachine) -> Result<Shape, Error> {
        if vm.status.instancetype_ref.is_none() && vm.status.preference_ref.is_none() {
            return Ok(Shape::Plain);
        }
        for name in refs::revisions(vm) {
            self.forget(vm, name).await?;
        }
        let mut made = vm.clone();
        Subject::ALL.iter().for_each(|subject| *refs::of(&mut made.status, *subject) = None);
        Ok(Shape::Made(Box::new(made)))
    }

    async fn with(&self, vm: &VirtualMachine, config: &KubeVirtConfiguration) -> Looked<Shape> {
        let mut status = vm.status.clone();
        let mut specs = Specs::default();
        let mut objects = Vec::new();
        for subject in Subject::ALL {
            let there = refs::of(&mut status, subject);
            let Some(matcher) = Matcher::of(vm, subject) else {
                *there = None;
                continue;
            };
            let wanted = refs::follow(there.as_ref(), &matcher);
            let object = match subject {
                Subject::Instancetype => {
                    let looked = self.look(vm, subject, &matcher, &wanted).await?;
                    looked.map(|Found { spec, object }| {
                        specs.instancetype = Some(spec);
                        object
                    })
                }
                Subject::Preference => {
                    let looked = self.look(vm, subject, &matcher, &wanted).await?;
                    looked.map(|Found { spec, object }| {
                        specs.preference = Some(spec);
                        object
                    })
                }
            };
            match object {
                Ok(object) => objects.extend(object.map(|(scope, object)| (subject, scope, object))),
                Err(problem) => return Ok(Err(problem)),
            }
            *there = Some(wanted);
        }
        let policy = policy(config);
        let is_stored = !refs::revisions(vm).is_empty();
        if policy == Policy::ExpandAll || policy == Policy::Expand && !is_stored {
            return self.rewrite(vm, &specs, config).await;
        }
        let mut made = match made(vm, &specs, config) {
            Ok(made) => made,
            Err(problem) => return Ok(Err(problem)),
        };
        for (subject, scope, object) in objects {
            let name = match self.keep(vm, subject, scope, &object).await? {
                Ok(name) => name,
                Err(problem) => return Ok(Err(problem)),
            };
            if let Some(reference) = refs::of(&mut status, subject) {
                refs::refer(reference, &name);
            }
        }
        made.status = status;
        Ok(Ok(Shape::Made(Box::new(made))))
    }

    /// Writes the shape into the machine itself. Its revisions go when it is seen to name nothing.
    async fn rewrite(
        &self,
        vm: &VirtualMachine,
        specs: &Specs,
        config: &KubeVirtConfiguration,
    ) -> Looked<Shape> {
        let mut expanded = match expand(vm, specs, config) {
            Ok(expanded) => expanded,
            Err(conflicts) => {
                let what = "error encountered while expanding into VirtualMachine";
                return Ok(Err(Problem::not_applied(format!("{what}: {conflicts}"))));
            }
        };
        let template = expanded.spec.template.get_or_insert_default();
        machine_address(vm, template);
        let mut operations = vec![
            json!({"op": "test", "path": "/metadata/resourceVersion", "value": vm.resource_version()}),
            json!({"op": "add", "path": "/spec/template", "value": template}),
        ];
        for subject in Subject::ALL.iter().filter(|subject| Matcher::of(vm, **subject).is_some()) {
            operations.push(json!({"op": "remove", "path": format!("/spec/{}", subject.field())}));
        }
        let patch: json_patch::Patch = serde_json::from_value(Value::Array(operations))
            .map_err(kube::Error::SerdeError)
            .map_err(Error::Ask)?;
        let machines =
            Api::<VirtualMachine>::namespaced(self.client.clone(), &vm.namespace().unwrap_or_default());
        match machines.patch(&vm.name_any(), &PatchParams::default(), &Patch::Json::<()>(patch)).await {
            Ok(_) => {
                tracing::info!("instance type and preference written into the template");
                Ok(Ok(Shape::Rewritten))
            }
            // It has changed, or is gone: that is told by its watch.
            Err(kube::Error::Api(status)) if is_lost(&status) => Ok(Ok(Shape::Rewritten)),
            Err(kube::Error::Api(status)) if status.is_invalid() || status.is_forbidden() => {
                let what = "error encountered when trying to update expanded VirtualMachine";
                Ok(Err(Problem::not_applied(format!("{what}: {}", status.message))))
            }
            Err(error) => Err(Error::Ask(error)),
        }
    }
}
