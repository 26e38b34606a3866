//! Whether the target's pods have the claims that the machine is to have there.
//!
//! A volume may begin to move to another claim, or stay after all, while a migration waits for its pods. A target pod with the wrong claim
//! would have the launchers copy the claim onto itself, or use a claim with parts of a disk: the machine is not handed over to it.

use k8s_openapi::api::core::v1::Pod;
use podvirt_api::storage::{claim, is_hotpluggable};
use podvirt_api::v1::VirtualMachineInstance;

use crate::template;
use crate::vmi::{hotplug, observe};

/// Why the target's launcher pod cannot take the machine: it was made with other claims than the machine is to have now.
pub(super) fn of_launcher(pod: &Pod, vmi: &VirtualMachineInstance) -> Option<String> {
    let has: Vec<&str> = template::claims_of(pod).map(|(_, claim)| claim).collect();
    let wanted = vmi.spec.volumes.iter().filter(|volume| !is_hotpluggable(volume)).filter_map(claim);
    let mut lacking = wanted.map(|claim| claim.name).filter(|name| !has.contains(name));
    lacking.next().map(|name| {
        format!("the target pod was made before the machine was to have the PersistentVolumeClaim {name}")
    })
}

/// UID of the target's attachment pod, if volumes are plugged into the machine.
///
/// # Errors
///
/// Why the migration waits: the attachment pod is not ready, or does not hold the claim of each of these volumes. The controller of
/// instances replaces an attachment pod that it made before a volume began to move.
pub(super) fn of_attachment(
    pod: Option<&Pod>,
    vmi: &VirtualMachineInstance,
) -> Result<Option<String>, String> {
    let mut plugged = vmi.status.volume_status.iter().filter(|told| hotplug::is_in_use(told)).peekable();
    if plugged.peek().is_none() {
        return Ok(None);
    }
    let Some(pod) = pod else {
        return Err("the target has no pod for the claims of the volumes that are plugged".into());
    };
    let name = observe::name(pod);
    let has = |name: &str| template::volumes_of(pod).any(|one| one == name);
    if let Some(told) = plugged.find(|told| !has(&told.name)) {
        return Err(format!("attachment pod {name}: it does not have the volume {}", told.name));
    }
    for (volume, held) in template::claims_of(pod) {
        let wanted = vmi.spec.volumes.iter().find(|one| one.name == volume).and_then(claim);
        if let Some(wanted) = wanted.filter(|wanted| wanted.name != held) {
            return Err(format!(
                "attachment pod {name}: for the volume {volume} it holds the PersistentVolumeClaim {held}, and the machine is to have \
                 {} at the target",
                wanted.name
            ));
        }
    }
    if !observe::is_ready(pod) || observe::is_terminating(pod) {
        return Err(format!("attachment pod {name} is not ready"));
    }
    Ok(Some(observe::uid(pod).to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A machine with a plugged volume `data`, and perhaps another one, on `claim`.
    fn vmi(claim: &str, hotpluggable: bool) -> VirtualMachineInstance {
        let told = json!([{"name": "data", "target": "sda", "phase": "Ready", "hotplugVolume": {}}]);
        serde_json::from_value(json!({
            "metadata": {"name": "vm"},
            "spec": {"domain": {"devices": {}}, "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": claim, "hotpluggable": hotpluggable}},
            ]},
            "status": {"volumeStatus": if hotpluggable { told } else { json!([]) }},
        }))
        .unwrap()
    }

    fn pod(volumes: Value, ready: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "hp", "uid": "u"},
            "spec": {"containers": [], "volumes": volumes},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    #[test]
    fn an_attachment_pod_holds_the_claim_that_the_machine_is_to_have() {
        let held = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "old"}}]);
        let (ready, early) = (pod(held.clone(), "True"), pod(held, "False"));
        assert_eq!(of_attachment(Some(&ready), &vmi("old", true)), Ok(Some("u".into())));
        for (pod, claim, why) in [
            (None, "old", "the target has no pod for the claims of the volumes that are plugged"),
            (Some(&pod(json!([]), "True")), "old", "attachment pod hp: it does not have the volume data"),
            (
                Some(&ready),
                "new",
                "attachment pod hp: for the volume data it holds the PersistentVolumeClaim old, and the machine is to have new at \
                 the target",
            ),
            (Some(&early), "old", "attachment pod hp is not ready"),
        ] {
            assert_eq!(of_attachment(pod, &vmi(claim, true)), Err(why.to_owned()));
        }
        assert_eq!(of_attachment(None, &vmi("old", false)), Ok(None), "nothing is plugged");
    }

    #[test]
    fn a_launcher_pod_has_the_claims_that_are_not_plugged() {
        let pod = pod(json!([{"name": "data", "persistentVolumeClaim": {"claimName": "old"}}]), "True");
        assert_eq!(of_launcher(&pod, &vmi("old", false)), None);
        assert_eq!(of_launcher(&pod, &vmi("new", true)), None);
        assert!(of_launcher(&pod, &vmi("new", false)).unwrap().ends_with("PersistentVolumeClaim new"));
    }
}
