//! Dumps of a machine's memory: from the request to `status.memoryDumpRequest`, which virt-controller acts upon.
//!
//! A machine has one dump, on one claim: it is made anew by further requests, until it is dissociated. Words are upstream's.

use json_patch::Patch;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use podvirt_api::memory_dump::needed;
use podvirt_api::quantity::Quantity;
use podvirt_api::snapshot;
use podvirt_api::v1::{
    MemoryDumpPhase as Phase, VirtualMachine, VirtualMachineInstance, VirtualMachineInstancePhase,
    VirtualMachineMemoryDumpRequest as Request,
};
use serde_json::{Value, json};

use crate::lifecycle::{Change, add, replace, test};
use crate::status::Status;
use crate::target::Kind;

const CLAIM: &str = "persistentvolumeclaim";
/// Modes of a claim that is written to.
const WRITABLE: [&str; 3] = ["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"];

fn refuse(vm: &VirtualMachine, why: &str) -> Status {
    let name = vm.metadata.name.as_deref().unwrap_or_default();
    Status::conflict(Kind::VirtualMachine.in_errors(), name, why)
}

/// The claim that a dump is to be written to: the one that is asked for, or else that of the last dump.
///
/// # Errors
///
/// There is neither, or the machine's dumps are on another claim.
pub(crate) fn claim_of(vm: &VirtualMachine, asked: &str) -> Result<String, Status> {
    match (asked, vm.status.memory_dump_request.as_ref()) {
        ("", None) => Err(Status::bad_request("Memory dump requires claim name to be set")),
        ("", Some(known)) => Ok(known.claim_name.clone()),
        (asked, Some(known)) if known.claim_name != asked => Err(refuse(
            vm,
            &format!(
                "can't request memory dump for pvc [{asked}] while pvc [{}] is still associated as the memory dump pvc",
                known.claim_name
            ),
        )),
        (asked, _) => Ok(asked.to_owned()),
    }
}

/// Whether a dump of the machine's memory has room on the claim.
///
/// # Errors
///
/// It has not, or the claim cannot have files written to.
pub(crate) fn fits(
    name: &str,
    claim: Option<&PersistentVolumeClaim>,
    vmi: Option<&VirtualMachineInstance>,
) -> Result<(), Status> {
    let runs = |vmi: &&VirtualMachineInstance| {
        vmi.status.phase == Some(VirtualMachineInstancePhase::Running)
            && vmi.metadata.deletion_timestamp.is_none()
    };
    let Some(vmi) = vmi.filter(runs) else {
        let instance = vmi.and_then(|vmi| vmi.metadata.name.as_deref()).unwrap_or_default();
        return Err(Status::conflict(Kind::Instance.in_errors(), instance, "VMI is not running"));
    };
    let spec = claim.ok_or_else(|| Status::not_found(CLAIM, name))?.spec.as_ref();
    let refuse = |why: &str| Err(Status::conflict(CLAIM, name, why));
    if spec.and_then(|spec| spec.volume_mode.as_deref()) == Some("Block") {
        return refuse("pvc should be filesystem pvc");
    }
    let modes = spec.and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    if !modes.iter().any(|mode| WRITABLE.contains(&mode.as_str())) {
        return refuse("pvc access mode can't be read only");
    }
    let requests = spec.and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    let asked = requests.and_then(|all| all.get("storage")).map_or("0", |size| size.0.as_str());
    let needed = needed(vmi);
    if asked.parse::<Quantity>().map_or(0, |size| size.value()) < needed {
        return refuse(&format!("pvc size [{asked}] should be bigger then [{}Mi]", needed >> 20));
    }
    Ok(())
}

/// Whether the claim, and the volume of its name, are free for a dump: the volume is told by the claim's name from then on.
///
/// # Errors
///
/// The machine has another volume of the name, or uses the claim for something else.
pub(crate) fn is_free(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    claim: &str,
) -> Result<(), Status> {
    let template = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
    let specs = [template, vmi.map(|vmi| &vmi.spec)];
    for volume in specs.into_iter().flatten().flat_map(|spec| &spec.volumes) {
        let is_dump = volume.memory_dump.as_ref().is_some_and(|dump| dump.claim_name == claim);
        if !is_dump && (volume.name == claim || snapshot::claim(volume) == Some(claim)) {
            let why = format!(
                "can't dump memory to pvc [{claim}]: it is, or has the name of, the machine's volume {}; a claim of another name \
                 that the machine does not use is allowed",
                volume.name
            );
            return Err(refuse(vm, &why));
        }
    }
    Ok(())
}

/// Asks for a dump to this claim.
///
/// # Errors
///
/// Another request is under way.
pub(crate) fn dump(vm: &VirtualMachine, claim: &str) -> Result<Change, Status> {
    match vm.status.memory_dump_request.as_ref().map(|known| &known.phase) {
        None | Some(Phase::Completed | Phase::Failed) => {}
        Some(Phase::Dissociating) => {
            return Err(refuse(
                vm,
                &format!("can't dump memory for pvc [{claim}] a remove memory dump request is in progress"),
            ));
        }
        Some(_) => {
            return Err(refuse(vm, &format!("memory dump request for pvc [{claim}] already in progress")));
        }
    }
    Ok(write(vm, &Request { claim_name: claim.to_owned(), phase: Phase::Associating, ..Request::default() }))
}

/// Asks for the machine to have no more to do with its dump, which stays on its claim.
///
/// # Errors
///
/// It has none, or was asked already.
pub(crate) fn remove(vm: &VirtualMachine) -> Result<Change, Status> {
    let name = vm.metadata.name.as_deref().unwrap_or_default();
    let Some(known) = &vm.status.memory_dump_request else {
        return Err(refuse(
            vm,
            &format!("can't remove memory dump association for vm {name}, no association found"),
        ));
    };
    if known.remove == Some(true) {
        return Err(refuse(
            vm,
            &format!("memory dump remove request for pvc [{}] already exists", known.claim_name),
        ));
    }
    Ok(write(
        vm,
        &Request {
            claim_name: known.claim_name.clone(),
            phase: Phase::Dissociating,
            remove: Some(true),
            ..Request::default()
        },
    ))
}

fn write(vm: &VirtualMachine, request: &Request) -> Change {
    let path = ["status", "memoryDumpRequest"];
    Change::Status(Patch(match &vm.status.memory_dump_request {
        None if vm.status == podvirt_api::v1::VirtualMachineStatus::default() => {
            vec![add(&["status"], json!({ "memoryDumpRequest": request }))]
        }
        None => vec![test(&path, Value::Null), add(&path, json!(request))],
        Some(known) => vec![test(&path, json!(known)), replace(&path, json!(request))],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(request: Value) -> VirtualMachine {
        let vm = json!({"metadata": {"name": "vm"}, "spec": {}, "status": {"ready": true, "memoryDumpRequest": request}});
        serde_json::from_value(vm).unwrap()
    }

    fn after(vm: &VirtualMachine, change: Change) -> Value {
        let Change::Status(patch) = change else { panic!("{change:?}") };
        let mut value = serde_json::to_value(vm).unwrap();
        // The API server takes a test for null of what is not there.
        let steps = patch
            .0
            .into_iter()
            .filter(|step| !matches!(step, json_patch::PatchOperation::Test(t) if t.value.is_null()));
        json_patch::patch(&mut value, &steps.collect::<Vec<_>>()).unwrap();
        value["status"]["memoryDumpRequest"].clone()
    }

    #[test]
    fn a_machine_has_one_dump_on_one_claim() {
        let with = |phase: &str| vm(json!({"claimName": "a", "phase": phase}));
        assert_eq!(claim_of(&vm(Value::Null), "a").unwrap(), "a");
        assert_eq!(claim_of(&with("Completed"), "").unwrap(), "a");
        assert_eq!(claim_of(&vm(Value::Null), "").unwrap_err().code, 400);
        let other = claim_of(&with("Completed"), "b").unwrap_err();
        assert!(other.message.contains("while pvc [a] is still associated"), "{}", other.message);

        let asked = json!({"claimName": "a", "phase": "Associating"});
        for before in [vm(Value::Null), with("Completed"), with("Failed")] {
            assert_eq!(after(&before, dump(&before, "a").unwrap()), asked);
        }
        for (phase, says) in [
            ("InProgress", "already in progress"),
            ("Associating", "already in progress"),
            ("Dissociating", "remove memory dump request is in progress"),
        ] {
            let told = dump(&with(phase), "a").unwrap_err().message;
            assert!(told.ends_with(says), "{told}");
        }
        let removed = json!({"claimName": "a", "phase": "Dissociating", "remove": true});
        assert_eq!(after(&with("InProgress"), remove(&with("InProgress")).unwrap()), removed);
        assert!(remove(&vm(Value::Null)).unwrap_err().message.ends_with("no association found"));
        assert!(remove(&vm(removed)).unwrap_err().message.ends_with("already exists"));
    }

    #[test]
    fn a_claim_that_is_or_is_named_as_another_volume_is_refused() {
        let with = |volume: Value| -> VirtualMachine {
            let spec = json!({"domain": {"devices": {}}, "volumes": [volume]});
            serde_json::from_value(json!({"metadata": {"name": "vm"}, "spec": {"template": {"spec": spec}}}))
                .unwrap()
        };
        for (volume, free) in [
            (json!({"name": "data", "persistentVolumeClaim": {"claimName": "data"}}), false),
            (json!({"name": "data", "emptyDisk": {"capacity": "1Gi"}}), false),
            (json!({"name": "root", "persistentVolumeClaim": {"claimName": "data"}}), false),
            (json!({"name": "root", "dataVolume": {"name": "data"}}), false),
            (json!({"name": "data", "memoryDump": {"claimName": "data"}}), true),
            (json!({"name": "root", "persistentVolumeClaim": {"claimName": "other"}}), true),
        ] {
            let vm = with(volume.clone());
            let outcome = is_free(&vm, None, "data");
            assert_eq!(outcome.is_ok(), free, "{volume}");
            assert!(free || outcome.unwrap_err().code == 409);
            let instance = json!({"metadata": {"name": "vm"}, "spec": vm.spec.template.unwrap().spec});
            let instance: VirtualMachineInstance = serde_json::from_value(instance).unwrap();
            let bare = with(json!({"name": "x", "emptyDisk": {"capacity": "1Gi"}}));
            assert_eq!(is_free(&bare, Some(&instance), "data").is_ok(), free, "of the instance: {volume}");
        }
    }

    #[test]
    fn the_claim_must_have_room_and_files() {
        let claim = |mode: &str, access: &str, size: &str| -> PersistentVolumeClaim {
            serde_json::from_value(json!({"spec": {"volumeMode": mode, "accessModes": [access],
                "resources": {"requests": {"storage": size}}}}))
            .unwrap()
        };
        let vmi = |phase: &str| -> VirtualMachineInstance {
            serde_json::from_value(json!({"metadata": {"name": "vm"}, "spec": {"domain": {"devices": {}, "memory": {"guest": "128Mi"}}},
                "status": {"phase": phase}}))
            .unwrap()
        };
        let running = vmi("Running");
        let told = |claim: Option<PersistentVolumeClaim>, vmi: Option<&VirtualMachineInstance>| {
            fits("dump", claim.as_ref(), vmi).map_or_else(|status| status.message, |()| String::new())
        };
        let good = || Some(claim("Filesystem", "ReadWriteOnce", "241Mi"));
        assert_eq!(told(good(), Some(&running)), "");
        for (claim, vmi, says) in [
            (good(), None, "VMI is not running"),
            (good(), Some(&vmi("Scheduled")), "VMI is not running"),
            (None, Some(&running), "persistentvolumeclaim.kubevirt.io \"dump\" not found"),
            (Some(claim("Block", "ReadWriteOnce", "1Gi")), Some(&running), "pvc should be filesystem pvc"),
            (
                Some(claim("Filesystem", "ReadOnlyMany", "1Gi")),
                Some(&running),
                "pvc access mode can't be read only",
            ),
            (
                Some(claim("Filesystem", "ReadWriteMany", "240Mi")),
                Some(&running),
                "pvc size [240Mi] should be bigger then [241Mi]",
            ),
        ] {
            let told = told(claim, vmi);
            assert!(told.ends_with(says), "{told}, not {says}");
        }
    }
}
