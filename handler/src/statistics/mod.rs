//! Statistics of guests: what this node's launchers tell at each scrape, under KubeVirt's names.
//!
//! ```text
//!  GET /metrics ──> collect ──┬─ GetDomainStats, GetFilesystems ──> launcher of VMI a
//!                             ├─ …                              ──> launcher of VMI b
//!                             └─ reports of those that answered in time ──> families ──> text
//! ```
//!
//! [`collect`] asks, [`families`] is a pure function of the reports. A launcher belongs to its tenant: what it tells is
//! bounded in number and length, and can stand in the series of its own VMI only, since the labels that name a VMI are
//! virt-handler's.

pub mod collect;
pub mod families;

use std::collections::BTreeMap;

use podvirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceFileSystem};
use podvirt_proto::stats::DomainStats;

/// The most labels of a VMI that its series carry.
const LABELS: usize = 64;
/// What stands before the name of a VMI's label.
const LABEL_PREFIX: &str = "kubernetes_vmi_label_";

/// What one launcher has told.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Labels that every series of the VMI has: node, namespace, name, and the VMI's own.
    pub labels: Vec<(String, String)>,
    /// What the machine has used.
    pub stats: DomainStats,
    /// The guest's file systems, where its agent tells them.
    pub filesystems: Vec<VirtualMachineInstanceFileSystem>,
}

/// Labels of the series of `vmi`, which runs on `node`.
fn labels(node: &str, vmi: &VirtualMachineInstance) -> Vec<(String, String)> {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let own = vmi.metadata.labels.iter().flatten().take(LABELS);
    // Two names may become one; a series with the same label twice would spoil the whole scrape.
    let own: BTreeMap<String, String> = own.map(|(key, value)| (label(key), value.clone())).collect();
    let named = [
        ("node".to_owned(), node.to_owned()),
        ("namespace".to_owned(), text(&vmi.metadata.namespace)),
        ("name".to_owned(), text(&vmi.metadata.name)),
    ];
    named.into_iter().chain(own).collect()
}

/// The name of a series' label that tells this label of a VMI.
fn label(key: &str) -> String {
    let fits = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    LABEL_PREFIX.chars().chain(key.chars().map(fits)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vmis_labels_become_labels_of_its_series_each_once() {
        let mut vmi = VirtualMachineInstance::default();
        vmi.metadata.name = Some("web".into());
        vmi.metadata.namespace = Some("shop".into());
        let own = [("app.example/a-b", "x"), ("app.example/a.b", "y"), ("tier", "front")];
        vmi.metadata.labels = Some(own.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect());
        let labels = labels("node1", &vmi);
        let labels: Vec<_> = labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(
            labels,
            [
                ("node", "node1"),
                ("namespace", "shop"),
                ("name", "web"),
                ("kubernetes_vmi_label_app_example_a_b", "y"),
                ("kubernetes_vmi_label_tier", "front"),
            ]
        );
    }
}
