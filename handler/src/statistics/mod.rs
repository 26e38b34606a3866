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
//! virt-handler's. Every client that reaches the port can ask for the series of all machines, so those of one machine are
//! bounded in bytes, its labels among them.

pub mod collect;
pub mod families;

use std::collections::BTreeMap;

use podvirt_api::v1::VirtualMachineInstance;
use podvirt_proto::bounded;
use podvirt_proto::stats::{DomainStats, MAX_ROWS};
use serde::Deserialize;

use crate::launcher::report::cut;

/// Bytes of a VMI's labels that its series carry; the labels that do not fit are left out. Each series has all of them.
const MAX_LABEL_BYTES: usize = 2 << 10;
/// Bytes of a text that a launcher or a guest gives, such as the name of a disk.
const MAX_TEXT_BYTES: usize = 128;
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
    pub filesystems: Vec<Filesystem>,
}

/// A file system of a guest, of what its agent tells.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Filesystem {
    /// The guest's name of the disk.
    pub disk_name: String,
    /// Where it is mounted in the guest.
    pub mount_point: String,
    /// Its kind, such as `ext4`.
    pub file_system_type: String,
    /// Bytes that are used.
    pub used_bytes: i64,
    /// Bytes in all.
    pub total_bytes: i64,
}

/// The list of a guest's file systems.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
struct Filesystems(#[serde(deserialize_with = "bounded::list::<_, _, MAX_ROWS>")] Vec<Filesystem>);

impl Report {
    /// The report of a launcher: with every text cut, and without those that have no series.
    fn new(labels: Vec<(String, String)>, mut stats: DomainStats, filesystems: Filesystems) -> Self {
        let mut filesystems = filesystems.0;
        cut(&mut stats.name, MAX_TEXT_BYTES);
        stats.uuid = String::new();
        for disk in &mut stats.block {
            disk.path = None;
            cut(&mut disk.alias, MAX_TEXT_BYTES);
            disk.name.iter_mut().for_each(|name| cut(name, MAX_TEXT_BYTES));
        }
        for net in &mut stats.net {
            [&mut net.name, &mut net.alias].into_iter().flatten().for_each(|name| cut(name, MAX_TEXT_BYTES));
        }
        for filesystem in &mut filesystems {
            let Filesystem { disk_name, mount_point, file_system_type, .. } = filesystem;
            [disk_name, mount_point, file_system_type].into_iter().for_each(|text| cut(text, MAX_TEXT_BYTES));
        }
        Self { labels, stats, filesystems }
    }
}

/// Labels of the series of `vmi`, which runs on `node`.
fn labels(node: &str, vmi: &VirtualMachineInstance) -> Vec<(String, String)> {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let own = vmi.metadata.labels.iter().flatten().map(|(key, value)| (label(key), value.clone()));
    // Two names may become one; a series with the same label twice would spoil the whole scrape.
    let mut own: BTreeMap<String, String> = own.collect();
    let mut bytes = 0;
    own.retain(|key, value| {
        let fits = bytes + key.len() + value.len() <= MAX_LABEL_BYTES;
        bytes += if fits { key.len() + value.len() } else { 0 };
        fits
    });
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

    #[test]
    fn labels_that_do_not_fit_are_left_out() {
        let mut vmi = VirtualMachineInstance::default();
        let long = |n: usize| (format!("{}.example/{n:02}", "a".repeat(200)), "v".repeat(63));
        let own = (0..60).map(long).chain([("tier".into(), "front".into())]);
        vmi.metadata.labels = Some(own.collect());
        let labels = labels("node1", &vmi);
        let bytes: usize = labels[3..].iter().map(|(key, value)| key.len() + value.len()).sum();
        assert!((MAX_LABEL_BYTES / 2..=MAX_LABEL_BYTES).contains(&bytes), "{bytes}");
        assert_eq!(labels.last().map(|(key, _)| key.as_str()), Some("kubernetes_vmi_label_tier"));
    }

    #[test]
    fn texts_of_a_launcher_are_cut() {
        let long = "ä".repeat(64 << 10);
        let json = serde_json::json!({
            "Name": long, "UUID": long,
            "Net": [{"Name": long, "NameSet": true, "Alias": long, "AliasSet": true}],
            "Block": [{"Alias": long, "Name": long, "NameSet": true, "Path": long, "PathSet": true}],
        });
        let filesystems = serde_json::json!([{"diskName": long, "mountPoint": long, "fileSystemType": long}]);
        let (stats, filesystems) =
            (serde_json::from_value(json).unwrap(), serde_json::from_value(filesystems).unwrap());
        let report = Report::new(Vec::new(), stats, filesystems);
        let Filesystem { disk_name, mount_point, file_system_type, .. } = &report.filesystems[0];
        let (net, disk) = (&report.stats.net[0], &report.stats.block[0]);
        let texts =
            [&report.stats.name, &report.stats.uuid, &disk.alias, disk_name, mount_point, file_system_type];
        let texts =
            texts.into_iter().chain([&net.name, &net.alias, &disk.name, &disk.path].into_iter().flatten());
        assert!(texts.map(String::capacity).all(|bytes| bytes <= MAX_TEXT_BYTES));
    }
}
