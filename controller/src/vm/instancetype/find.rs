//! Reads what a machine names: a revision, or the object itself.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use podvirt_api::instancetype::{GROUP, Matcher, Scope, Subject, VERSION, is_name, spec_of};
use podvirt_api::v1::{InstancetypeStatusRef, VirtualMachine};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::super::reconcile::{Error, Shell};
use super::{Problem, refs};

/// What a machine names.
pub(super) struct Found<T> {
    pub(super) spec: T,
    /// Where it comes from no revision yet: the object, to be stored.
    pub(super) object: Option<(Scope, Value)>,
}

/// What was looked for, or why it is not there.
pub(super) type Looked<T> = Result<Result<T, Problem>, Error>;

/// A failure of the API server's as a problem, if it is one that people can do something about.
pub(super) fn problem(error: kube::Error, to_problem: impl Fn(&str) -> Problem) -> Result<Problem, Error> {
    match error {
        kube::Error::Api(status) if status.is_not_found() => Ok(to_problem(&status.message)),
        other => Err(Error::Ask(other)),
    }
}

impl Shell {
    /// What `matcher` names, by the revision of `reference` where that has one.
    pub(super) async fn look<T: DeserializeOwned>(
        &self,
        vm: &VirtualMachine,
        subject: Subject,
        matcher: &Matcher,
        reference: &InstancetypeStatusRef,
    ) -> Looked<Found<T>> {
        let failed = |message: &str| Problem::not_found(subject, message);
        if let Some(name) = refs::revision(reference) {
            let found = match self.revision(vm, name).await {
                Ok(found) => found,
                Err(error) => return problem(error, failed).map(Err),
            };
            let spec = spec_of(&found, subject).map_err(|error| failed(&error.to_string()));
            return Ok(spec.map(|spec| Found { spec, object: None }));
        }
        let scope = match matcher.scope(subject) {
            Ok(scope) => scope,
            Err(error) => return Ok(Err(failed(&error.to_string()))),
        };
        let Some(name) = matcher.name().filter(|name| is_name(name)) else {
            let message = format!("spec.{}.name: the name of an object is required", subject.field());
            return Ok(Err(failed(&message)));
        };
        let gvk = GroupVersionKind::gvk(GROUP, VERSION, subject.kind(scope));
        let kind = ApiResource::from_gvk_with_plural(&gvk, &subject.plural(scope));
        let api: Api<DynamicObject> = match scope {
            Scope::Namespace => {
                Api::namespaced_with(self.client.clone(), &vm.namespace().unwrap_or_default(), &kind)
            }
            Scope::Cluster => Api::all_with(self.client.clone(), &kind),
        };
        let object = match api.get(name).await {
            Ok(object) => object,
            Err(error) => return problem(error, failed).map(Err),
        };
        let object = serde_json::to_value(&object).map_err(kube::Error::SerdeError).map_err(Error::Ask)?;
        let spec = T::deserialize(&object["spec"]).map_err(|error| failed(&error.to_string()));
        Ok(spec.map(|spec| Found { spec, object: Some((scope, object)) }))
    }

    /// A revision in the machine's namespace. The cache may not have the newest, nor one that was not made for a machine.
    pub(super) async fn revision(
        &self,
        vm: &VirtualMachine,
        name: &str,
    ) -> Result<Arc<ControllerRevision>, kube::Error> {
        let namespace = vm.namespace().unwrap_or_default();
        if let Some(known) = self.revisions.get(&ObjectRef::new(name).within(&namespace)) {
            return Ok(known);
        }
        Api::<ControllerRevision>::namespaced(self.client.clone(), &namespace).get(name).await.map(Arc::new)
    }
}
