//! The part of Kubernetes' object metadata that podvirt reads.

use std::collections::BTreeMap;

objects! {
    /// Name and identity of an object.
    ObjectMeta {
        /// Name, unique in the namespace.
        name: String,
        /// Namespace; empty means `default`.
        namespace: String,
        /// Identity that the API server gave; empty outside a cluster.
        uid: String,
        /// Labels.
        labels: BTreeMap<String, String>,
        /// Annotations.
        annotations: BTreeMap<String, String>,
        /// Objects that the object goes with.
        owner_references: Vec<OwnerReference>,
    }

    /// An object that another object goes with.
    OwnerReference {
        /// Kind.
        kind: String,
        /// Identity.
        uid: String,
    }
}

impl ObjectMeta {
    /// The identity that outlives a restart: the owning VirtualMachine's, else the object's own.
    pub fn lasting_uid(&self) -> &str {
        self.owner_references.iter().find(|o| o.kind == "VirtualMachine").map_or(&self.uid, |o| &o.uid)
    }
}
