//! References in a machine's status to what it was made from.

use podvirt_api::instancetype::{Matcher, Subject};
use podvirt_api::v1::{ControllerRevisionRef, InstancetypeStatusRef, VirtualMachine, VirtualMachineStatus};

/// The reference of a subject.
pub fn of(status: &mut VirtualMachineStatus, subject: Subject) -> &mut Option<InstancetypeStatusRef> {
    match subject {
        Subject::Instancetype => &mut status.instancetype_ref,
        Subject::Preference => &mut status.preference_ref,
    }
}

/// Name of the revision that a reference has.
pub fn revision(reference: &InstancetypeStatusRef) -> Option<&str> {
    let revision = reference.controller_revision_ref.as_ref()?.name.as_deref()?;
    (!revision.is_empty()).then_some(revision)
}

/// Names of the revisions that the machine's status refers to.
pub fn revisions(vm: &VirtualMachine) -> Vec<&str> {
    let references = [&vm.status.instancetype_ref, &vm.status.preference_ref];
    references.into_iter().flatten().filter_map(revision).collect()
}

/// The reference as it is to be for `matcher`. Without a revision: what is named now is to be stored.
pub fn follow(reference: Option<&InstancetypeStatusRef>, matcher: &Matcher) -> InstancetypeStatusRef {
    let mut wanted = reference.cloned().unwrap_or_default();
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    for (there, named) in [
        (&mut wanted.name, given(&matcher.name)),
        (&mut wanted.kind, given(&matcher.kind)),
        (&mut wanted.infer_from_volume, given(&matcher.infer_from_volume)),
    ] {
        if named.is_some() && *there != named {
            *there = named;
            wanted.controller_revision_ref = None;
        }
    }
    if let Some(policy) = &matcher.infer_from_volume_failure_policy {
        wanted.infer_from_volume_failure_policy = Some(policy.clone());
    }
    if let Some(name) = matcher.revision() {
        refer(&mut wanted, name);
    }
    wanted
}

/// Has a reference name a revision.
pub fn refer(reference: &mut InstancetypeStatusRef, revision: &str) {
    reference.controller_revision_ref = Some(ControllerRevisionRef { name: Some(revision.to_owned()) });
}
