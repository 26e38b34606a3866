//! Whether an instance is in a state in which a subresource can do anything, and its launchers.

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use podvirt_api::names::label;
use podvirt_api::v1::{
    VirtualMachineInstance, VirtualMachineInstanceConditionType as Condition,
    VirtualMachineInstancePhase as Phase,
};

use crate::pages;
use crate::status::Status;
use crate::target::Kind;

/// Most launcher pods of an instance that are looked at: it has one, and another while it moves; the others have ended.
const MAX_LAUNCHERS: usize = 16;

fn has(vmi: &VirtualMachineInstance, wanted: &Condition) -> bool {
    vmi.status.conditions.iter().any(|c| c.r#type == *wanted && c.status == "True")
}

/// The launcher pods of an instance: those that it controls, since any pod may have the label.
///
/// # Errors
///
/// The API server could not be asked.
pub async fn launchers(client: &Client, vmi: &VirtualMachineInstance) -> Result<Vec<Pod>, Status> {
    let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
    let uid = vmi.metadata.uid.as_deref().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let params = ListParams::default().labels(&format!("{}={uid}", label::CREATED_BY));
    let mut names = Vec::new();
    pages::each_metadata(&pods, params, |pod| {
        let mut owners = pod.metadata.owner_references.iter().flatten();
        if owners.any(|owner| owner.controller == Some(true) && owner.uid == uid) {
            names.extend(pod.metadata.name);
        }
    })
    .await?;
    let mut found = Vec::new();
    for name in names.iter().take(MAX_LAUNCHERS) {
        found.extend(pods.get_opt(name).await?);
    }
    Ok(found)
}

/// Judges `subresource` of `vmi`. Only running instances have a virt-handler that can do something.
///
/// # Errors
///
/// The instance does not run, lacks the device, or is in the state already that is asked for.
pub fn check(vmi: &VirtualMachineInstance, subresource: &str) -> Result<(), Status> {
    let name = vmi.metadata.name.as_deref().unwrap_or_default();
    let refuse = |why: &str| Err(Status::conflict(Kind::Instance.in_errors(), name, why));
    let devices = &vmi.spec.domain.devices;
    match subresource {
        "console" if devices.autoattach_serial_console == Some(false) => {
            return Err(Status::bad_request("No serial consoles are present."));
        }
        "vnc" | "vnc/screenshot" if devices.autoattach_graphics_device == Some(false) => {
            return Err(Status::bad_request("No graphics devices are present."));
        }
        _ => {}
    }
    let phase = vmi.status.phase.as_ref().map_or("", Phase::as_str);
    if phase != Phase::Running.as_str() || vmi.status.node_name.is_none() {
        let on_its_way = !matches!(vmi.status.phase, Some(Phase::Succeeded | Phase::Failed));
        if on_its_way && matches!(subresource, "console" | "vnc" | "vnc/screenshot" | "portforward") {
            // Upstream's virtctl tries again after a 400, and only then.
            return Err(Status::bad_request(format!(
                "Unable to connect to VirtualMachineInstance because phase is {phase} instead of Running"
            )));
        }
        return refuse("VMI is not running");
    }
    let paused = has(vmi, &Condition::Paused);
    let agent = has(vmi, &Condition::AgentConnected);
    match subresource {
        "pause" if paused => refuse("VMI is already paused"),
        // virt-launcher lets the agent's own probe succeed while the guest is paused; the kubelet would kill by any other.
        "pause" if vmi.spec.liveness_probe.as_ref().is_some_and(|probe| probe.guest_agent_ping.is_none()) => {
            Err(Status::forbidden("Pausing VMIs with LivenessProbe is currently not supported"))
        }
        "unpause" if !paused => refuse("VMI is not paused"),
        "softreboot" | "freeze" if paused => refuse("VMI is paused"),
        "softreboot" if !agent && !acpi(vmi) => {
            refuse("VMI neither have the agent connected nor the ACPI feature enabled")
        }
        "guestosinfo" | "userlist" | "filesystemlist" | "freeze" if !agent => {
            refuse("VMI does not have guest agent connected")
        }
        _ => Ok(()),
    }
}

/// ACPI is on unless it is switched off.
fn acpi(vmi: &VirtualMachineInstance) -> bool {
    let features = vmi.spec.domain.features.as_ref();
    let acpi = features.and_then(|features| serde_json::to_value(&features.acpi).ok());
    acpi.and_then(|acpi| acpi.get("enabled")?.as_bool()).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn vmi(phase: &str, conditions: &[&str], spec: Value) -> VirtualMachineInstance {
        let conditions: Vec<Value> =
            conditions.iter().map(|name| json!({"type": name, "status": "True"})).collect();
        serde_json::from_value(json!({
            "metadata": {"name": "vm1"}, "spec": spec,
            "status": {"phase": phase, "nodeName": "node1", "conditions": conditions},
        }))
        .unwrap()
    }

    #[test]
    fn each_subresource_needs_its_state() {
        let plain = json!({"domain": {"devices": {}}});
        let no_devices = json!({"domain": {"devices": {"autoattachSerialConsole": false, "autoattachGraphicsDevice": false}}});
        let no_acpi = json!({"domain": {"devices": {}, "features": {"acpi": {"enabled": false}}}});
        let probed = json!({"domain": {"devices": {}}, "livenessProbe": {"exec": {"command": ["true"]}}});
        let pinged = json!({"domain": {"devices": {}}, "livenessProbe": {"guestAgentPing": {}}});
        let agent: &[&str] = &["AgentConnected"];
        let paused: &[&str] = &["Paused"];
        for (subresource, phase, conditions, spec, outcome) in [
            ("console", "Running", [].as_slice(), &plain, ""),
            ("console", "Scheduled", &[], &plain, "because phase is Scheduled instead of Running"),
            ("vnc", "", &[], &plain, "because phase is  instead of Running"),
            ("console", "Failed", &[], &plain, "VMI is not running"),
            ("pause", "Scheduled", &[], &plain, "VMI is not running"),
            ("console", "Running", &[], &no_devices, "No serial consoles are present."),
            ("vnc/screenshot", "Scheduled", &[], &plain, "because phase is Scheduled instead of Running"),
            ("vnc/screenshot", "Running", paused, &plain, ""),
            ("vnc/screenshot", "Running", &[], &no_devices, "No graphics devices are present."),
            ("vnc", "Running", paused, &plain, ""),
            ("vnc", "Running", &[], &no_devices, "No graphics devices are present."),
            ("portforward", "Succeeded", &[], &plain, "VMI is not running"),
            ("pause", "Running", &[], &plain, ""),
            ("pause", "Running", paused, &plain, "VMI is already paused"),
            ("pause", "Running", &[], &probed, "Pausing VMIs with LivenessProbe is currently not supported"),
            ("pause", "Running", &[], &pinged, ""),
            ("unpause", "Running", paused, &plain, ""),
            ("unpause", "Running", &[], &plain, "VMI is not paused"),
            ("softreboot", "Running", &[], &plain, ""),
            (
                "softreboot",
                "Running",
                &[],
                &no_acpi,
                "VMI neither have the agent connected nor the ACPI feature enabled",
            ),
            ("softreboot", "Running", agent, &no_acpi, ""),
            ("softreboot", "Running", paused, &plain, "VMI is paused"),
            ("reset", "Running", &[], &plain, ""),
            ("freeze", "Running", &[], &plain, "VMI does not have guest agent connected"),
            ("freeze", "Running", agent, &plain, ""),
            ("guestosinfo", "Running", &[], &plain, "VMI does not have guest agent connected"),
            ("userlist", "Running", agent, &plain, ""),
        ] {
            let vmi = vmi(phase, conditions, spec.clone());
            let got = check(&vmi, subresource).map_or_else(|s| s.message, |()| String::new());
            assert!(
                if outcome.is_empty() { got.is_empty() } else { got.ends_with(outcome) },
                "{subresource} {phase} {conditions:?}: {got}"
            );
        }
    }

    #[test]
    fn an_instance_on_its_way_is_worth_another_try_an_ended_one_is_not() {
        let spec = json!({"domain": {"devices": {}}});
        let mut without_node = vmi("Running", &[], spec.clone());
        without_node.status.node_name = None;
        assert_eq!(check(&without_node, "console").unwrap_err().code, 400);
        assert_eq!(check(&vmi("Scheduling", &[], spec.clone()), "console").unwrap_err().code, 400);
        assert_eq!(check(&vmi("Succeeded", &[], spec.clone()), "console").unwrap_err().code, 409);
        assert_eq!(check(&vmi("Scheduling", &[], spec), "pause").unwrap_err().code, 409);
    }
}
