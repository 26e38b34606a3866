//! `kubevirt_vmi_info`: what a machine is, as labels. virt-handler tells it of the machines of its node, virt-controller of
//! those that no node has yet.

use crate::migration::{eviction_strategy, migratable};
use crate::names::label;
use crate::v1::{EvictionStrategy, KubeVirtConfiguration, VirtualMachineInstance};

/// Name of the series.
pub const NAME: &str = "kubevirt_vmi_info";
/// Annotations of a machine with the name of its instance type, of its namespace or of the cluster.
const INSTANCETYPE: [&str; 2] = ["kubevirt.io/instancetype-name", "kubevirt.io/cluster-instancetype-name"];
/// The same of its preference.
const PREFERENCE: [&str; 2] = ["kubevirt.io/preference-name", "kubevirt.io/cluster-preference-name"];

/// Names and values of the labels of a machine's series, as upstream's; `pod` is the pod that the machine runs in, or will.
pub fn labels(
    vmi: &VirtualMachineInstance,
    node: &str,
    pod: String,
    configuration: &KubeVirtConfiguration,
) -> [(&'static str, String); 17] {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let noted = |names: &[&str]| {
        let found =
            vmi.metadata.annotations.iter().find_map(|all| names.iter().find_map(|name| all.get(*name)));
        found.cloned().unwrap_or_default()
    };
    let guest = vmi.status.guest_os_info.clone().unwrap_or_default();
    let phase = vmi.status.phase.as_ref().map_or("", |phase| phase.as_str());
    let machine = vmi.status.machine.as_ref().and_then(|machine| machine.r#type.clone());
    let labels = vmi.metadata.labels.as_ref();
    let is_outdated = labels.is_some_and(|labels| labels.contains_key(label::OUTDATED_LAUNCHER_IMAGE));
    [
        ("node", node.to_owned()),
        ("namespace", text(&vmi.metadata.namespace)),
        ("name", text(&vmi.metadata.name)),
        ("phase", phase.to_lowercase()),
        ("os", noted(&["vm.kubevirt.io/os"])),
        ("workload", noted(&["vm.kubevirt.io/workload"])),
        ("flavor", noted(&["vm.kubevirt.io/flavor"])),
        ("instance_type", noted(&INSTANCETYPE)),
        ("preference", noted(&PREFERENCE)),
        ("guest_os_kernel_release", text(&guest.kernel_release)),
        ("guest_os_machine", machine.unwrap_or_default()),
        ("guest_os_arch", text(&guest.machine)),
        ("guest_os_name", text(&guest.name)),
        ("guest_os_version_id", text(&guest.version_id)),
        ("evictable", is_evictable(vmi, configuration).to_string()),
        ("outdated", is_outdated.to_string()),
        ("vmi_pod", pod),
    ]
}

/// Whether an eviction of its pod ends otherwise than by being refused: a machine that is to move and cannot stands in the way of a
/// node's drain.
fn is_evictable(vmi: &VirtualMachineInstance, configuration: &KubeVirtConfiguration) -> bool {
    let moves = eviction_strategy(vmi, configuration) == EvictionStrategy::LiveMigrate;
    !moves || migratable(vmi).is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_vmi_is_described_by_upstreams_labels() {
        let vmi = json!({
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "u", "labels": {"kubevirt.io/outdatedLauncherImage": ""},
                "annotations": {
                    "vm.kubevirt.io/os": "fedora", "vm.kubevirt.io/workload": "server", "vm.kubevirt.io/flavor": "small",
                    "kubevirt.io/cluster-instancetype-name": "u1.small", "kubevirt.io/preference-name": "own",
                },
            },
            "spec": {"domain": {"devices": {}}, "evictionStrategy": "LiveMigrate"},
            "status": {
                "phase": "Running", "machine": {"type": "pc-q35-10.0"},
                "guestOSInfo": {"name": "Fedora Linux", "versionId": "43", "kernelRelease": "6.18", "machine": "x86_64"},
            },
        });
        let mut vmi: VirtualMachineInstance = serde_json::from_value(vmi).unwrap();
        let mut cluster = KubeVirtConfiguration::default();
        let found = labels(&vmi, "node1", "virt-launcher-web-u".into(), &cluster);
        let expected = [
            ("node", "node1"),
            ("namespace", "shop"),
            ("name", "web"),
            ("phase", "running"),
            ("os", "fedora"),
            ("workload", "server"),
            ("flavor", "small"),
            ("instance_type", "u1.small"),
            ("preference", "own"),
            ("guest_os_kernel_release", "6.18"),
            ("guest_os_machine", "pc-q35-10.0"),
            ("guest_os_arch", "x86_64"),
            ("guest_os_name", "Fedora Linux"),
            ("guest_os_version_id", "43"),
            ("evictable", "false"),
            ("outdated", "true"),
            ("vmi_pod", "virt-launcher-web-u"),
        ];
        assert_eq!(found.each_ref().map(|(name, value)| (*name, value.as_str())), expected);
        vmi.spec.eviction_strategy = Some(EvictionStrategy::LiveMigrateIfPossible);
        assert!(is_evictable(&vmi, &cluster));
        vmi.spec.eviction_strategy = None;
        assert!(is_evictable(&vmi, &cluster));
        cluster.eviction_strategy = Some(EvictionStrategy::LiveMigrate);
        assert!(!is_evictable(&vmi, &cluster), "the cluster's strategy holds where the machine says none");
    }
}
