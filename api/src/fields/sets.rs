//! The rows of the kinds that make machines from a template.

use super::Field;
use super::Kind::{Any, Bool, Int, Object, OneOf, Text, TextMap};
use super::Support::{Carried, Kept};
use super::table::row;

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
