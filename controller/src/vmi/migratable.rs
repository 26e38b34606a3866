//! Whether a machine can be moved to another node while it runs, and how its disks get there.
//!
//! | part | moves | how |
//! |---|---|---|
//! | interface on the pod network, `passtBinding` or `masquerade` | yes | netd hands its state over |
//! | interface on a network of Multus, `passtBinding` | yes | likewise; its connections go on where its address does |
//! | interface on the pod network, `bridge` | no, unless annotated | the pod's own address is the guest's |
//! | interface on the pod network, a network binding plugin | as it is registered | the plugin's to know |
//! | `sriov` | no | it is a device of its node |
//! | claim with ReadWriteMany (ReadOnlyMany where it is only read) | yes | both nodes have it |
//! | other claims, disks of the node | no | one node alone has them |
//! | containerDisk, ephemeral, emptyDisk | yes | what the guest wrote is copied |
//! | cloud-init | yes | made anew from the manifest |
//!
//! What becomes of the disks is [`podvirt_api::storage`]'s to say, which the launchers ask as well.

use podvirt_api::names::annotation;
use podvirt_api::names::condition::reason;
use podvirt_api::plugin::Joint;
use podvirt_api::storage::{self, Obstacle};
use podvirt_api::v1::{Interface, VirtualMachineInstance, VirtualMachineInstanceMigrationMethod as Method};

/// Why a machine does not move: reason and message of the condition LiveMigratable.
type Stays = (&'static str, String);

/// How the machine moves, by its status as far as its volumes go. `None`: its claims are not known yet.
///
/// # Errors
///
/// It cannot: reason and message of the condition LiveMigratable.
pub fn judge(vmi: &VirtualMachineInstance) -> Result<Option<Method>, Stays> {
    let spec = &vmi.spec;
    for interface in &spec.domain.devices.interfaces {
        let on_pod_network = spec.networks.iter().any(|n| n.name == interface.name && n.pod.is_some());
        let annotations = vmi.metadata.annotations.as_ref();
        let may = annotations.is_some_and(|all| all.contains_key(annotation::MOVE_BRIDGE));
        if let Some(why) = stays(vmi, interface, on_pod_network, may) {
            let message = format!("interface {}: {why}", interface.name);
            return Err((reason::INTERFACE_NOT_LIVE_MIGRATABLE, message));
        }
    }
    match storage::fates(vmi) {
        Ok(fates) => Ok(Some(storage::method(&fates))),
        Err(Obstacle::Untold { .. }) => Ok(None),
        Err(obstacle) => Err((reason::DISKS_NOT_LIVE_MIGRATABLE, obstacle.to_string())),
    }
}

fn stays(
    vmi: &VirtualMachineInstance,
    interface: &Interface,
    on_pod_network: bool,
    bridge_may: bool,
) -> Option<&'static str> {
    if interface.sriov.is_some() {
        return Some("sriov is a device of its node");
    }
    if !on_pod_network {
        return None;
    }
    match vmi.joint(interface) {
        Joint::Netd | Joint::Nat | Joint::Device => None,
        Joint::Bridge if bridge_may => None,
        Joint::ManagedTap | Joint::Tap | Joint::Sidecar => {
            let moves = vmi.plugin_of(interface).is_some_and(|plugin| plugin.migration.is_some());
            (!moves).then_some(
                "its network binding plugin is registered without migration, and so cannot be moved on the pod network",
            )
        }
        Joint::Bridge => Some(
            "passtBinding and masquerade can be moved on the pod network; bridge can where the machine has the annotation \
             kubevirt.io/allow-pod-bridge-network-live-migration",
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn judged(interface: Value, volume: Value, modes: &[&str]) -> Result<Option<Method>, Stays> {
        let mut interface = interface;
        interface["name"] = "default".into();
        let mut volume = volume;
        volume["name"] = "root".into();
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {
                "domain": {"devices": {"interfaces": [interface]}},
                "networks": [{"name": "default", "pod": {}}],
                "volumes": [volume],
            },
            "status": {"volumeStatus": [{"name": "root", "target": "",
                "persistentVolumeClaimInfo": {"claimName": "data", "accessModes": modes}}]},
        }))
        .unwrap();
        judge(&vmi)
    }

    #[test]
    fn netds_bindings_move_and_others_do_not() {
        let disk = json!({"containerDisk": {"image": "d"}});
        for interface in
            [json!({"passtBinding": {}}), json!({"masquerade": {}}), json!({"binding": {"name": "passt"}})]
        {
            assert_eq!(judged(interface, disk.clone(), &[]), Ok(Some(Method::BlockMigration)));
        }
        for binding in ["bridge", "sriov"] {
            let (reason, message) = judged(json!({binding: {}}), disk.clone(), &[]).unwrap_err();
            assert_eq!(reason, "InterfaceNotLiveMigratable");
            assert!(message.starts_with("interface default: "), "{message}");
        }
    }

    #[test]
    fn a_machine_in_the_pods_place_moves_where_its_annotation_says_so() {
        let judged = |binding: &str, annotations: Value| {
            let vmi: VirtualMachineInstance = serde_json::from_value(json!({
                "metadata": {"name": "web", "annotations": annotations},
                "spec": {
                    "domain": {"devices": {"interfaces": [{"name": "default", binding: {}}]}},
                    "networks": [{"name": "default", "pod": {}}],
                },
            }))
            .unwrap();
            judge(&vmi)
        };
        let annotated = || json!({"kubevirt.io/allow-pod-bridge-network-live-migration": "true"});
        assert_eq!(judged("bridge", annotated()), Ok(Some(Method::LiveMigration)));
        let (_, message) = judged("bridge", json!({})).unwrap_err();
        assert!(message.contains("kubevirt.io/allow-pod-bridge-network-live-migration"), "{message}");
        assert!(judged("sriov", annotated()).is_err());
    }

    #[test]
    fn a_device_of_the_node_stays_there() {
        let judged = |binding: &str| {
            let vmi: VirtualMachineInstance = serde_json::from_value(json!({
                "metadata": {"name": "web"},
                "spec": {
                    "domain": {"devices": {"interfaces": [{"name": "default", "masquerade": {}}, {"name": "fast", binding: {}}]}},
                    "networks": [{"name": "default", "pod": {}}, {"name": "fast", "multus": {"networkName": "fast"}}],
                },
            }))
            .unwrap();
            judge(&vmi)
        };
        assert_eq!(judged("bridge"), Ok(Some(Method::LiveMigration)));
        let why = ("InterfaceNotLiveMigratable", "interface fast: sriov is a device of its node".to_owned());
        assert_eq!(judged("sriov"), Err(why));
    }

    #[test]
    fn disks_move_that_both_nodes_have_or_that_are_copied() {
        let netd = json!({"passtBinding": {}});
        let claim = json!({"persistentVolumeClaim": {"claimName": "data"}});
        let other = json!({"persistentVolumeClaim": {"claimName": "other"}});
        let overlay = json!({"ephemeral": {"persistentVolumeClaim": {"claimName": "data"}}});
        for (volume, method) in [
            (claim.clone(), Some(Method::LiveMigration)),
            (other, None),
            (overlay.clone(), Some(Method::BlockMigration)),
            (json!({"emptyDisk": {"capacity": "1Gi"}}), Some(Method::BlockMigration)),
            (json!({"cloudInitNoCloud": {"userData": "x"}}), Some(Method::LiveMigration)),
        ] {
            assert_eq!(judged(netd.clone(), volume.clone(), &["ReadWriteMany"]), Ok(method), "{volume}");
        }
        for volume in [claim, overlay, json!({"hostDisk": {"path": "/x", "type": "Disk"}})] {
            let (reason, message) = judged(netd.clone(), volume, &["ReadWriteOnce"]).unwrap_err();
            assert_eq!(reason, "DisksNotLiveMigratable");
            assert!(message.starts_with("volume root: "), "{message}");
        }
    }
}
