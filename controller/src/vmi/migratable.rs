//! Whether a machine can be moved to another node while it runs, and how its disks get there.
//!
//! | part | moves | how |
//! |---|---|---|
//! | interface on the pod network, `passtBinding` or `masquerade` | yes | netd hands its state over |
//! | interface on a network of Multus, `passtBinding` | yes | likewise; its connections go on where its address does |
//! | interface on the pod network, `bridge`; `sriov` | no | the pod's own link is the guest's |
//! | claim with ReadWriteMany (ReadOnlyMany where it is only read) | yes | both nodes have it |
//! | other claims, disks of the node | no | one node alone has them |
//! | containerDisk, ephemeral, emptyDisk | yes | what the guest wrote is copied |
//! | cloud-init | yes | made anew from the manifest |

use podvirt_api::names::condition::reason;
use podvirt_api::v1::{
    Interface, VirtualMachineInstance, VirtualMachineInstanceMigrationMethod as Method, Volume,
};

use crate::template;

/// How the machine moves. `local`: those of its claims that one node alone can use.
///
/// # Errors
///
/// It cannot: reason and message of the condition LiveMigratable.
pub fn judge(vmi: &VirtualMachineInstance, local: &[String]) -> Result<Method, (&'static str, String)> {
    let spec = &vmi.spec;
    for interface in &spec.domain.devices.interfaces {
        let on_pod_network = spec.networks.iter().any(|n| n.name == interface.name && n.pod.is_some());
        if let Some(why) = stays(interface, on_pod_network) {
            let message = format!("interface {}: {why}", interface.name);
            return Err((reason::INTERFACE_NOT_LIVE_MIGRATABLE, message));
        }
    }
    for volume in &spec.volumes {
        if volume.host_disk.is_some() {
            let message = format!("volume {}: a hostDisk is a file of its node", volume.name);
            return Err((reason::DISKS_NOT_LIVE_MIGRATABLE, message));
        }
        let claim = template::claim_name(volume).filter(|claim| local.iter().any(|name| name == claim));
        if let Some(claim) = claim {
            let message = format!(
                "volume {}: PersistentVolumeClaim {claim} is not ReadWriteMany, and podvirt does not copy claims",
                volume.name
            );
            return Err((reason::DISKS_NOT_LIVE_MIGRATABLE, message));
        }
    }
    Ok(if spec.volumes.iter().any(is_copied) { Method::BlockMigration } else { Method::LiveMigration })
}

fn stays(interface: &Interface, on_pod_network: bool) -> Option<&'static str> {
    if interface.sriov.is_some() {
        Some("sriov is a device of its node")
    } else if on_pod_network && interface.passt_binding.is_none() && interface.masquerade.is_none() {
        Some("passtBinding or masquerade can be moved on the pod network, this binding cannot")
    } else {
        None
    }
}

/// Whether the disk is a file of the pod that the guest writes.
fn is_copied(volume: &Volume) -> bool {
    volume.container_disk.is_some() || volume.ephemeral.is_some() || volume.empty_disk.is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn judged(interface: Value, volume: Value, local: &[&str]) -> Result<Method, (&'static str, String)> {
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
        }))
        .unwrap();
        let local: Vec<String> = local.iter().map(ToString::to_string).collect();
        judge(&vmi, &local)
    }

    #[test]
    fn netds_bindings_move_and_others_do_not() {
        let disk = json!({"containerDisk": {"image": "d"}});
        for binding in ["passtBinding", "masquerade"] {
            assert_eq!(judged(json!({binding: {}}), disk.clone(), &[]), Ok(Method::BlockMigration));
        }
        for binding in ["bridge", "sriov"] {
            let (reason, message) = judged(json!({binding: {}}), disk.clone(), &[]).unwrap_err();
            assert_eq!(reason, "InterfaceNotLiveMigratable");
            assert!(message.starts_with("interface default: "), "{message}");
        }
    }

    #[test]
    fn disks_move_that_both_nodes_have_or_that_are_copied() {
        let netd = json!({"passtBinding": {}});
        let claim = json!({"persistentVolumeClaim": {"claimName": "data"}});
        let overlay = json!({"ephemeral": {"persistentVolumeClaim": {"claimName": "data"}}});
        for (volume, local, method) in [
            (claim.clone(), &[][..], Method::LiveMigration),
            (claim.clone(), &["other"], Method::LiveMigration),
            (overlay.clone(), &[], Method::BlockMigration),
            (json!({"emptyDisk": {"capacity": "1Gi"}}), &[], Method::BlockMigration),
            (json!({"cloudInitNoCloud": {"userData": "x"}}), &[], Method::LiveMigration),
        ] {
            assert_eq!(judged(netd.clone(), volume.clone(), local), Ok(method), "{volume}");
        }
        for (volume, local) in [
            (claim, &["data"][..]),
            (overlay, &["data"]),
            (json!({"hostDisk": {"path": "/x", "type": "Disk"}}), &[]),
        ] {
            let (reason, message) = judged(netd.clone(), volume, local).unwrap_err();
            assert_eq!(reason, "DisksNotLiveMigratable");
            assert!(message.starts_with("volume root: "), "{message}");
        }
    }
}
