//! Which VMs and instances of a pool are of an older template, and how many may be away for an update.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use podvirt_api::names::{condition, label};
use podvirt_api::v1::{
    VirtualMachine, VirtualMachineConditionType, VirtualMachineInstance,
    VirtualMachineInstancePhase as Phase, VirtualMachinePool as Pool, VirtualMachinePoolSpec,
};

use super::revision::Revisions;

/// What an instance needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing.
    None,
    /// A restart: its VM has another template by now.
    Restart,
    /// This revision's name in its label: the template is the same.
    Label(String),
}

/// The revision that an object was made from.
pub(super) fn revision_of(labels: Option<&std::collections::BTreeMap<String, String>>) -> Option<&String> {
    labels?.get(label::POOL_REVISION)
}

/// Whether the pool has another template now than when `vm` was written.
pub(super) fn is_outdated(pool: &Pool, vm: &VirtualMachine, revisions: &Revisions) -> bool {
    let written = revision_of(vm.metadata.labels.as_ref()).and_then(|name| revisions.get(name));
    written.is_none_or(|old| old.virtual_machine_template != pool.spec.virtual_machine_template)
}

/// What the instance of an up-to-date VM needs.
pub(super) fn need(vm: &VirtualMachine, vmi: &VirtualMachineInstance, revisions: &Revisions) -> Need {
    let Some(of_vm) = revision_of(vm.metadata.labels.as_ref()) else { return Need::None };
    let Some(of_vmi) = revision_of(vmi.metadata.labels.as_ref()) else { return Need::Restart };
    if of_vm == of_vmi {
        return Need::None;
    }
    let Some(wanted) = revisions.get(of_vm) else { return Need::None };
    fn template(spec: &VirtualMachinePoolSpec) -> impl PartialEq + use<'_> {
        let vm = spec.virtual_machine_template.as_ref().and_then(|template| template.spec.as_ref());
        vm.and_then(|vm| vm.template.as_ref())
    }
    match revisions.get(of_vmi) {
        Some(had) if template(had) == template(wanted) => Need::Label(of_vm.clone()),
        _ => Need::Restart,
    }
}

/// How many VMs may be away at a time: all, when the pool does not say; one at least.
pub(super) fn max_unavailable(pool: &Pool) -> usize {
    let replicas = usize::try_from(pool.spec.replicas.unwrap_or(1)).unwrap_or(0);
    let number = match &pool.spec.max_unavailable {
        None => replicas,
        Some(IntOrString::Int(number)) => usize::try_from(*number).unwrap_or(0),
        Some(IntOrString::String(text)) => {
            let percent: Option<usize> = text.strip_suffix('%').and_then(|digits| digits.parse().ok());
            percent.map_or(0, |percent| replicas.saturating_mul(percent) / 100)
        }
    };
    number.max(1)
}

/// Whether a VM says that it is ready.
pub(super) fn is_ready(vm: &VirtualMachine) -> bool {
    let ready = |one: &podvirt_api::v1::VirtualMachineCondition| {
        one.r#type == VirtualMachineConditionType::Ready && one.status == condition::TRUE
    };
    vm.status.conditions.iter().any(ready)
}

/// Whether an instance serves.
pub(super) fn serves(vmi: &VirtualMachineInstance) -> bool {
    let ready = |one: &podvirt_api::v1::VirtualMachineInstanceCondition| {
        one.r#type.as_str() == condition::READY && one.status == condition::TRUE
    };
    vmi.metadata.deletion_timestamp.is_none()
        && vmi.status.phase == Some(Phase::Running)
        && vmi.status.conditions.iter().any(ready)
}
