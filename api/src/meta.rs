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
    }
}
