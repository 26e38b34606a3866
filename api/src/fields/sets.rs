//! The rows of the kinds that make machines from a template, and of presets.

use super::Field;
use super::Kind::{Any, Bool, Int, Object, OneOf, Text, TextMap};
use super::Support::{Carried, Kept};
use super::table::row;

/// The orders in which VMs of a pool are taken.
const SORT_POLICIES: &[&str] = &["AscendingOrder", "DescendingOrder", "Newest", "Oldest", "Random"];
/// What is kept of VMs that a pool gives up.
const PRESERVATION: &[&str] = &["Disabled"];

/// Every field of a VirtualMachineInstanceReplicaSet but those below `spec.template.spec`, which are a
/// VirtualMachineInstance's.
#[rustfmt::skip] // One row a line.
pub const REPLICA_SET: &[Field] = &[
    row(Carried, "apiVersion", OneOf(&["kubevirt.io/v1"]), ""),
    row(Carried, "kind", OneOf(&["VirtualMachineInstanceReplicaSet"]), ""),
    row(Kept, "metadata", Any, "labels and annotations do not go to the instances: those of the template do"),
    row(Kept, "status", Any, ""),
    row(Carried, "spec", Object, ""),
    row(Carried, "spec.replicas", Int(0, i32::MAX as i64), "1 when not set"),
    row(Carried, "spec.selector", Any, "has to match the template's labels"),
    row(Carried, "spec.paused", Bool, "nothing is made or deleted"),
    row(Carried, "spec.template", Object, ""),
    row(Carried, "spec.template.metadata", Object, ""),
    row(Carried, "spec.template.metadata.labels", TextMap, "one at least"),
    row(Carried, "spec.template.metadata.annotations", TextMap, "as of a VirtualMachineInstance: [annotations](compatibility.md#annotations)"),
    row(Carried, "spec.template.metadata.name", Text, "the instances' names begin with it"),
    row(Carried, "spec.template.metadata.generateName", Text, "the instances' names begin with it where `name` is not set; with the replica set's name else"),
    row(Kept, "spec.template.metadata.namespace", Any, "the instances have the replica set's namespace"),
    row(Kept, "spec.template.metadata.creationTimestamp", Any, ""),
    row(Kept, "spec.template.metadata.uid", Any, ""),
    row(Kept, "spec.template.metadata.resourceVersion", Any, ""),
    row(Kept, "spec.template.metadata.generation", Any, ""),
    row(Kept, "spec.template.metadata.selfLink", Any, ""),
    row(Kept, "spec.template.metadata.deletionTimestamp", Any, ""),
    row(Kept, "spec.template.metadata.deletionGracePeriodSeconds", Any, ""),
    row(Kept, "spec.template.metadata.finalizers", Any, ""),
    row(Kept, "spec.template.metadata.ownerReferences", Any, ""),
    row(Kept, "spec.template.metadata.managedFields", Any, ""),
    row(Carried, "spec.template.spec", Object, "[as of a VirtualMachineInstance](#virtualmachineinstance)"),
];

/// Every field of a VirtualMachinePool but those below `spec.virtualMachineTemplate.spec`, which are a VirtualMachine's.
#[rustfmt::skip] // One row a line.
pub const POOL: &[Field] = &[
    row(Carried, "apiVersion", OneOf(&["pool.kubevirt.io/v1beta1", "pool.kubevirt.io/v1alpha1"]), "the two are the same"),
    row(Carried, "kind", OneOf(&["VirtualMachinePool"]), ""),
    row(Kept, "metadata", Any, "labels and annotations do not go to the VirtualMachines: those of the template do"),
    row(Kept, "status", Any, ""),
    row(Carried, "spec", Object, ""),
    row(Carried, "spec.replicas", Int(0, i32::MAX as i64), "1 when not set"),
    row(Carried, "spec.selector", Any, "has to match the template's labels; cannot be changed"),
    row(Carried, "spec.paused", Bool, "nothing is made, changed or deleted"),
    row(Carried, "spec.nameGeneration", Object, ""),
    row(Carried, "spec.nameGeneration.appendIndexToConfigMapRefs", Bool, ""),
    row(Carried, "spec.nameGeneration.appendIndexToSecretRefs", Bool, "of volumes that are Secrets, and of cloud-init's"),
    row(Carried, "spec.maxUnavailable", Any, "a number, or a percentage of `replicas`; `100%` when not set"),
    row(Carried, "spec.scaleInStrategy", Object, "one of these; `proactive` when not set"),
    row(Carried, "spec.scaleInStrategy.unmanaged", Object, "the user deletes VirtualMachines"),
    row(Carried, "spec.scaleInStrategy.opportunistic", Object, "the user deletes VirtualMachines"),
    row(Carried, "spec.scaleInStrategy.opportunistic.statePreservation", OneOf(PRESERVATION), "claims belong to VirtualMachines by DataVolumes, which podvirt has not"),
    row(Carried, "spec.scaleInStrategy.proactive", Object, ""),
    row(Carried, "spec.scaleInStrategy.proactive.selectionPolicy", Object, ""),
    row(Carried, "spec.scaleInStrategy.proactive.selectionPolicy.sortPolicy", OneOf(SORT_POLICIES), "`Random` when not set"),
    row(Carried, "spec.scaleInStrategy.proactive.selectionPolicy.selectors", Object, ""),
    row(Carried, "spec.scaleInStrategy.proactive.selectionPolicy.selectors.labelSelector", Any, ""),
    row(Carried, "spec.scaleInStrategy.proactive.selectionPolicy.selectors.nodeSelectorRequirementMatcher", Any, ""),
    row(Carried, "spec.scaleInStrategy.proactive.statePreservation", OneOf(PRESERVATION), "claims belong to VirtualMachines by DataVolumes, which podvirt has not"),
    row(Carried, "spec.updateStrategy", Object, "one of these; `proactive` when not set"),
    row(Carried, "spec.updateStrategy.unmanaged", Object, "VirtualMachines stay as they were made"),
    row(Carried, "spec.updateStrategy.opportunistic", Object, "a change takes effect when a VirtualMachine starts the next time"),
    row(Carried, "spec.updateStrategy.proactive", Object, "VirtualMachines are restarted"),
    row(Carried, "spec.updateStrategy.proactive.selectionPolicy", Object, ""),
    row(Carried, "spec.updateStrategy.proactive.selectionPolicy.sortPolicy", OneOf(SORT_POLICIES), "`Random` when not set"),
    row(Carried, "spec.updateStrategy.proactive.selectionPolicy.selectors", Object, ""),
    row(Carried, "spec.updateStrategy.proactive.selectionPolicy.selectors.labelSelector", Any, ""),
    row(Carried, "spec.updateStrategy.proactive.selectionPolicy.selectors.nodeSelectorRequirementMatcher", Any, ""),
    row(Carried, "spec.autohealing", Object, "VirtualMachines that do not come up are replaced"),
    row(Carried, "spec.autohealing.startUpFailureThreshold", Int(1, u32::MAX as i64), "3 when not set"),
    row(Carried, "spec.autohealing.minFailingToStartDuration", Text, "as Go writes it; `5m` when not set"),
    row(Carried, "spec.virtualMachineTemplate", Object, ""),
    row(Carried, "spec.virtualMachineTemplate.metadata", Object, ""),
    row(Carried, "spec.virtualMachineTemplate.metadata.labels", TextMap, "one at least"),
    row(Carried, "spec.virtualMachineTemplate.metadata.annotations", TextMap, "as of a VirtualMachine: [annotations](compatibility.md#annotations)"),
    row(Kept, "spec.virtualMachineTemplate.metadata.name", Any, "the VirtualMachines have the pool's name, with a number behind it"),
    row(Kept, "spec.virtualMachineTemplate.metadata.generateName", Any, ""),
    row(Kept, "spec.virtualMachineTemplate.metadata.namespace", Any, "the VirtualMachines have the pool's namespace"),
    row(Kept, "spec.virtualMachineTemplate.metadata.creationTimestamp", Any, ""),
    row(Kept, "spec.virtualMachineTemplate.metadata.uid", Any, ""),
    row(Kept, "spec.virtualMachineTemplate.metadata.resourceVersion", Any, ""),
    row(Kept, "spec.virtualMachineTemplate.metadata.generation", Any, ""),
    row(Kept, "spec.virtualMachineTemplate.metadata.selfLink", Any, ""),
    row(Kept, "spec.virtualMachineTemplate.metadata.deletionTimestamp", Any, ""),
    row(Kept, "spec.virtualMachineTemplate.metadata.deletionGracePeriodSeconds", Any, ""),
    row(Kept, "spec.virtualMachineTemplate.metadata.finalizers", Any, ""),
    row(Kept, "spec.virtualMachineTemplate.metadata.ownerReferences", Any, ""),
    row(Kept, "spec.virtualMachineTemplate.metadata.managedFields", Any, ""),
    row(Carried, "spec.virtualMachineTemplate.spec", Any, "[as of a VirtualMachine](#virtualmachine)"),
];

/// Every field of a VirtualMachineInstancePreset but those below `spec.domain`, which are a VirtualMachineInstance's.
#[rustfmt::skip] // One row a line.
pub const PRESET: &[Field] = &[
    row(Carried, "apiVersion", OneOf(&["kubevirt.io/v1"]), "`v1alpha3` is served as well"),
    row(Carried, "kind", OneOf(&["VirtualMachineInstancePreset"]), "deprecated upstream"),
    row(Kept, "metadata", Any, ""),
    row(Carried, "spec", Object, ""),
    row(Carried, "spec.selector", Any, "of the labels of new VirtualMachineInstances"),
    row(Carried, "spec.domain", Object, "[as of a VirtualMachineInstance](#virtualmachineinstance); only [some parts](instances.md#presets) have an effect"),
];
