//! Which VMs of a pool are taken first, and which at all.

use std::cmp::Reverse;

use kube::ResourceExt;
use podvirt_api::selector::{Labels, Selector, SelectorError};
use podvirt_api::v1::{
    VirtualMachine, VirtualMachinePoolSelectionPolicy as Policy, VirtualMachinePoolSelectors as Selectors,
    VirtualMachinePoolSortPolicy as Sort,
};

/// The number at the end of a VM's name; 0 where there is none.
pub(super) fn index_of(vm: &VirtualMachine) -> usize {
    vm.name_any().rsplit('-').next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// The order in which VMs are taken; by chance when the policy does not say.
pub(super) fn sort(vms: &mut [&VirtualMachine], policy: Option<&Policy>) {
    let created = |vm: &VirtualMachine| vm.metadata.creation_timestamp.as_ref().map(|time| time.0);
    match policy.and_then(|policy| policy.sort_policy.as_ref()) {
        Some(Sort::AscendingOrder) => vms.sort_by_key(|vm| index_of(vm)),
        Some(Sort::DescendingOrder) => vms.sort_by_key(|vm| Reverse(index_of(vm))),
        Some(Sort::Newest) => vms.sort_by_key(|vm| Reverse(created(vm))),
        Some(Sort::Oldest) => vms.sort_by_key(|vm| created(vm)),
        // A UID is made by chance, so its order says nothing of the VM; a pass that is made again chooses the same.
        Some(Sort::Random | Sort::Other(_)) | None => vms.sort_by_key(|vm| vm.uid()),
    }
}

/// Those of `vms` that the policy's selectors select, if it has any.
///
/// # Errors
///
/// A selector cannot be evaluated.
pub(super) fn selected<'a>(
    vms: Vec<&'a VirtualMachine>,
    policy: Option<&Policy>,
) -> Result<Vec<&'a VirtualMachine>, SelectorError> {
    let Some(Selectors { label_selector, node_selector_requirement_matcher }) =
        policy.and_then(|policy| policy.selectors.as_ref())
    else {
        return Ok(vms);
    };
    let labels = label_selector.as_ref().map(|selector| Selector::of(Some(selector))).transpose()?;
    let nodes = node_selector_requirement_matcher.as_deref().map(Selector::of_nodes).transpose()?;
    let none = Labels::new();
    let is = |vm: &VirtualMachine| {
        let template = vm.spec.template.as_ref();
        let of_template = template.and_then(|template| template.metadata.as_ref()?.labels.as_ref());
        let of_node = template.and_then(|template| Some(&template.spec.as_ref()?.node_selector));
        labels.as_ref().is_none_or(|selector| selector.matches(of_template.unwrap_or(&none)))
            && nodes.as_ref().is_none_or(|selector| selector.matches(of_node.unwrap_or(&none)))
    };
    Ok(vms.into_iter().filter(|vm| is(vm)).collect())
}
