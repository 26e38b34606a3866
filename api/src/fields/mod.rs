//! Which fields of the upstream API podvirt carries out.
//!
//! The tables of [`TABLES`] list every field of their kinds; a test holds them against
//! the model of upstream's API. A field that is [`Support::Refused`] stands for all that is below it. [`check()`]
//! walks a document along its kind's table and tells everything that is not known, not carried out or of the
//! wrong type; `docs/vmi-fields.md` and a part of `docs/compatibility.md` are the same tables for people, kept in
//! step by a test. [`ANNOTATIONS`] is the same for annotations.

mod annotations;
mod check;
mod docs;
mod objects;
mod sets;
mod table;

use std::collections::BTreeMap;

pub use annotations::{ANNOTATIONS, Annotation, Effect, On, Wish, check_annotations};
pub(crate) use check::drop_open_words;
pub use check::{MAX_ELEMENTS, MAX_PORTS, Place, check};
pub use docs::{markdown, refused_markdown};
pub use objects::{KUBEVIRT, VM};
pub use sets::{POOL, PRESET, REPLICA_SET};
pub use table::VMI;

/// The kinds that have a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// VirtualMachineInstance.
    Vmi,
    /// VirtualMachine; its `spec.template.spec` is a VirtualMachineInstance's.
    Vm,
    /// KubeVirt.
    KubeVirt,
    /// VirtualMachineInstanceReplicaSet; its `spec.template.spec` is a VirtualMachineInstance's.
    ReplicaSet,
    /// VirtualMachinePool; its `spec.virtualMachineTemplate.spec` is a VirtualMachine's, and is judged as one.
    Pool,
    /// VirtualMachineInstancePreset; its `spec.domain` is a VirtualMachineInstance's.
    Preset,
}

/// The tables by their kinds, in the order of the documents that are written from them.
pub const TABLES: &[(&str, &[Field])] = &[
    ("VirtualMachineInstance", VMI),
    ("VirtualMachine", VM),
    ("VirtualMachineInstanceReplicaSet", REPLICA_SET),
    ("VirtualMachinePool", POOL),
    ("VirtualMachineInstancePreset", PRESET),
    ("KubeVirt", KUBEVIRT),
];

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Fields; they stand in the table under their own paths.
    Object,
    /// A list of objects; their fields stand in the table under `path[]`.
    List,
    /// A text without control characters: one line.
    Text,
    /// A text of any number of lines.
    Lines,
    /// A list of texts.
    Texts,
    /// Texts by name.
    TextMap,
    /// A whole number in this range.
    Int(i64, i64),
    /// `true` or `false`.
    Bool,
    /// A quantity such as `256Mi`.
    Quantity,
    /// Quantities by name.
    QuantityMap,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// A list of these texts.
    SomeOf(&'static [&'static str]),
    /// Anything: podvirt does not look at it.
    Any,
}

/// What podvirt does with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It is carried out.
    Carried,
    /// It is carried out in a cluster; `virt-launcher` alone refuses it.
    Cluster,
    /// `virt-launcher` alone carries it out; a cluster refuses it.
    Alone,
    /// A manifest that sets it is refused.
    Refused,
    /// The API server or a controller writes it; it is read over.
    Kept,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Path from the object, with `[]` behind a list: `spec.domain.devices.disks[].serial`.
    pub path: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// What podvirt does with it.
    pub support: Support,
    /// What a user has to know beside, or nothing.
    pub note: &'static str,
}

/// The table as a tree.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) field: Option<&'static Field>,
    pub(crate) children: BTreeMap<&'static str, Node>,
}

impl Node {
    pub(crate) fn build(table: &'static [Field]) -> Node {
        let mut root = Node { field: None, children: BTreeMap::new() };
        for field in table {
            root.at(field.path).field = Some(field);
        }
        root
    }

    /// The path in the table; empty of a node without a row.
    pub(crate) fn path(&self) -> &'static str {
        self.field.map_or("", |field| field.path)
    }

    /// The node of a path, made if it is not there.
    fn at(&mut self, path: &'static str) -> &mut Node {
        path.split('.').fold(self, |node, segment| {
            node.children
                .entry(segment.trim_end_matches("[]"))
                .or_insert_with(|| Node { field: None, children: BTreeMap::new() })
        })
    }

    /// The tree of a VirtualMachine: with the fields of a VirtualMachineInstance below its template.
    pub(crate) fn of_vm(vmi: &Node) -> Node {
        Node::with(VM, "spec.template.spec", vmi, "spec")
    }

    /// The tree of a table, with what `other` has at the path `from` below its path `at`.
    pub(crate) fn with(table: &'static [Field], at: &'static str, other: &Node, from: &str) -> Node {
        let mut root = Node::build(table);
        let found = from.split('.').try_fold(other, |node, segment| node.children.get(segment));
        if let Some(found) = found {
            root.at(at).children.clone_from(&found.children);
        }
        root
    }
}

#[cfg(test)]
mod tests;
