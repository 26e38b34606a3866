//! Dumps of the guest's memory.
//!
//! # Theory of operation
//!
//! virt-api writes the wish into `status.memoryDumpRequest`. What is done follows from its phase, and the phase from what is there:
//!
//! ```text
//!                   done here                                     the next phase, once
//!  Associating      the claim becomes a volume of the template    it is one: InProgress
//!  InProgress       the volume is in the instance                 the instance's status tells how the dump ended: Unmounting, Failed
//!  Unmounting       the claim gets an annotation, the volume      no pod has the claim: Completed
//!                   leaves the instance
//!  Completed        -                                             a request
//!  Failed           as Unmounting                                 a request
//!  Dissociating     the volume leaves the template and instance   no pod has the claim: the request is gone
//! ```
//!
//! Volumes of the instance follow the template as others do that come and go ([`super::volumes`]); which of the template's are meant is
//! told by [`is_for_instance`](podvirt_api::memory_dump::is_for_instance). An instance that ends while its memory is written has no dump: the
//! request fails, and says so.

use podvirt_api::memory_dump::{FAILED, file, volume};
use podvirt_api::v1::{
    MemoryDumpPhase as Phase, VirtualMachine, VirtualMachineInstance,
    VirtualMachineMemoryDumpRequest as Request, VirtualMachineStatus, Volume, VolumePhase,
};
use podvirt_daemon::patch::{list, unchanged};
use serde_json::{Value, json};

use super::is_final;

/// Whether the template has the volume of the request.
fn is_in_template(vm: &VirtualMachine, claim: &str) -> bool {
    template(vm).iter().any(|volume| is_dump(volume, claim))
}

/// Whether a volume is that of a dump to `claim`. Another volume may have the claim's name.
fn is_dump(volume: &Volume, claim: &str) -> bool {
    volume.name == claim && volume.memory_dump.is_some()
}

/// Whether another volume of the template or of the instance has the name that the request's volume would have.
fn is_name_taken(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>, claim: &str) -> bool {
    let of_instance = vmi.into_iter().flat_map(|vmi| &vmi.spec.volumes);
    template(vm).iter().chain(of_instance).any(|volume| volume.name == claim && volume.memory_dump.is_none())
}

fn template(vm: &VirtualMachine) -> &[Volume] {
    let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
    spec.map_or(&[], |spec| &spec.volumes)
}

/// Whether the instance, or one of its pods, has the claim. An instance that has ended has none, though it may stay for long.
fn is_in_instance(vmi: Option<&VirtualMachineInstance>, claim: &str) -> bool {
    vmi.filter(|vmi| !is_final(vmi)).is_some_and(|vmi| {
        match vmi.spec.volumes.iter().find(|volume| volume.name == claim) {
            Some(volume) => is_dump(volume, claim),
            None => vmi.status.volume_status.iter().any(|told| told.name == claim),
        }
    })
}

/// Writes the request's next phase.
pub(super) fn follow(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    status: &mut VirtualMachineStatus,
) {
    let Some(request) = &mut status.memory_dump_request else { return };
    let claim = request.claim_name.clone();
    match request.phase {
        Phase::Associating | Phase::InProgress if is_name_taken(vm, vmi, &claim) => {
            request.phase = Phase::Failed;
            let why = "the machine has another volume of this name";
            request.message = Some(format!("Memory dump to pvc {claim} failed: {why}"));
        }
        Phase::Associating if is_in_template(vm, &claim) => request.phase = Phase::InProgress,
        Phase::InProgress => in_progress(request, vmi),
        Phase::Unmounting if !is_in_instance(vmi, &claim) => request.phase = Phase::Completed,
        Phase::Dissociating if !is_in_instance(vmi, &claim) && !is_in_template(vm, &claim) => {
            status.memory_dump_request = None;
        }
        _ => {}
    }
}

fn in_progress(request: &mut Request, vmi: Option<&VirtualMachineInstance>) {
    let Some(vmi) = vmi.filter(|vmi| !is_final(vmi) && vmi.metadata.deletion_timestamp.is_none()) else {
        request.phase = Phase::Failed;
        request.message =
            Some(format!("Memory dump to pvc {} failed: the machine has ended", request.claim_name));
        return;
    };
    let told = vmi.status.volume_status.iter().find(|told| told.name == request.claim_name);
    let Some((told, dump)) = told.and_then(|told| Some((told, told.memory_dump_volume.as_ref()?))) else {
        return;
    };
    if dump.start_timestamp.is_some() {
        request.start_timestamp.clone_from(&dump.start_timestamp);
    }
    match told.phase {
        Some(VolumePhase::MemoryDumpCompleted) => {
            request.phase = Phase::Unmounting;
            request.end_timestamp.clone_from(&dump.end_timestamp);
            request.file_name = file(told).map(ToOwned::to_owned);
        }
        Some(VolumePhase::MemoryDumpFailed) => {
            request.phase = Phase::Failed;
            request.end_timestamp.clone_from(&dump.end_timestamp);
            request.message.clone_from(&told.message);
        }
        _ => {}
    }
}

/// The operations of a JSON patch that bring the template to the request, and what they come to; none where it is there.
pub(super) fn of_template(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
) -> Option<(Vec<Value>, String)> {
    let request = vm.status.memory_dump_request.as_ref()?;
    let claim = &request.claim_name;
    let old = template(vm);
    let (new, said) = match request.phase {
        // One that the instance still has is that of the last dump.
        Phase::Associating
            if !is_in_template(vm, claim)
                && !is_in_instance(vmi, claim)
                && !is_name_taken(vm, vmi, claim) =>
        {
            let new = old.iter().cloned().chain([volume(claim)]).collect::<Vec<_>>();
            (new, format!("volume {claim} gets a dump of the machine's memory"))
        }
        Phase::Dissociating => {
            let new = old.iter().filter(|one| !is_dump(one, claim)).cloned().collect::<Vec<_>>();
            (new, format!("the memory dump on volume {claim} is no longer the machine's"))
        }
        _ => return None,
    };
    let change = list("/spec/template/spec/volumes", &json!(old), &json!(new))?;
    Some((vec![unchanged(vm), change], said))
}

/// What the claim's annotation is to say of the dump: the claim, and the text.
pub(super) fn annotation(vm: &VirtualMachine) -> Option<(&str, &str)> {
    let request = vm.status.memory_dump_request.as_ref()?;
    let text = match request.phase {
        Phase::Unmounting => request.file_name.as_deref()?,
        Phase::Failed if is_in_template(vm, &request.claim_name) => FAILED,
        _ => return None,
    };
    Some((&request.claim_name, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump_volume() -> Value {
        json!({"name": "dump", "memoryDump": {"claimName": "dump", "hotpluggable": true}})
    }

    fn vm(request: Value, associated: bool) -> VirtualMachine {
        let root = json!({"name": "root"});
        on(if associated { json!([root, dump_volume()]) } else { json!([root]) }, request)
    }

    fn on(volumes: Value, request: Value) -> VirtualMachine {
        let vm = json!({"metadata": {"name": "vm", "resourceVersion": "7"},
            "spec": {"template": {"spec": {"domain": {"devices": {}}, "volumes": volumes}}},
            "status": {"memoryDumpRequest": request}});
        serde_json::from_value(vm).unwrap()
    }

    fn vmi(volumes: Value, told: Value) -> VirtualMachineInstance {
        let vmi = json!({"metadata": {"name": "vm"}, "spec": {"domain": {"devices": {}}, "volumes": volumes},
            "status": {"phase": "Running", "volumeStatus": told}});
        serde_json::from_value(vmi).unwrap()
    }

    fn followed(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>) -> Value {
        let mut status = vm.status.clone();
        follow(vm, vmi, &mut status);
        serde_json::to_value(status.memory_dump_request).unwrap()
    }

    fn at(phase: &str) -> Value {
        json!({"claimName": "dump", "phase": phase})
    }

    #[test]
    fn the_phase_follows_from_template_and_instance() {
        let bare = vmi(json!([]), json!([]));
        let has = vmi(json!([dump_volume()]), json!([{"name": "dump", "target": ""}]));
        let leaves = vmi(json!([]), json!([{"name": "dump", "target": ""}]));
        for (phase, associated, vmi, next) in [
            ("Associating", false, &bare, at("Associating")),
            ("Associating", true, &bare, at("InProgress")),
            ("InProgress", true, &has, at("InProgress")),
            ("Unmounting", true, &has, at("Unmounting")),
            ("Unmounting", true, &leaves, at("Unmounting")),
            ("Unmounting", true, &bare, at("Completed")),
            ("Completed", true, &bare, at("Completed")),
            ("Failed", true, &bare, at("Failed")),
            ("Dissociating", true, &bare, at("Dissociating")),
            ("Dissociating", false, &leaves, at("Dissociating")),
            ("Dissociating", false, &bare, Value::Null),
        ] {
            assert_eq!(followed(&vm(at(phase), associated), Some(vmi)), next, "{phase}");
        }
        assert_eq!(followed(&vm(at("Dissociating"), false), None), Value::Null, "it is off");
        for phase in ["Succeeded", "Failed"] {
            let mut ended = has.clone();
            ended.status.phase = Some(phase.into());
            assert_eq!(followed(&vm(at("Unmounting"), true), Some(&ended)), at("Completed"), "{phase}");
            assert_eq!(followed(&vm(at("Dissociating"), false), Some(&ended)), Value::Null, "{phase}");
        }
    }

    #[test]
    fn a_dump_to_a_claim_that_is_named_as_a_volume_fails_and_can_be_taken_away() {
        let disk = json!({"name": "dump", "persistentVolumeClaim": {"claimName": "dump"}});
        let there = vmi(json!([disk]), json!([{"name": "dump", "target": "vda"}]));
        for phase in ["Associating", "InProgress"] {
            let vm = on(json!([disk]), at(phase));
            let followed = followed(&vm, Some(&there));
            assert_eq!(followed["phase"], "Failed", "{phase}");
            let why = followed["message"].as_str().unwrap();
            assert!(why.ends_with("the machine has another volume of this name"), "{why}");
            assert_eq!(of_template(&vm, Some(&there)).map(|(_, said)| said), None);
        }
        let vm = on(json!([disk]), at("Dissociating"));
        assert_eq!(followed(&vm, Some(&there)), Value::Null);
        assert_eq!(of_template(&vm, Some(&there)).map(|(_, said)| said), None, "the disk stays");
        assert_eq!(annotation(&on(json!([disk]), at("Failed"))), None, "nothing was written to the claim");
    }

    #[test]
    fn how_the_dump_ended_is_taken_from_the_instance() {
        let (start, end) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z");
        let told = |phase: &str, message: Value| {
            let dump = json!({"claimName": "dump", "targetFileName": "f", "startTimestamp": start, "endTimestamp": end});
            let told = json!({"name": "dump", "target": "", "phase": phase, "message": message, "memoryDumpVolume": dump});
            vmi(json!([dump_volume()]), json!([told]))
        };
        let vm = vm(at("InProgress"), true);
        let done = json!({"claimName": "dump", "phase": "Unmounting", "startTimestamp": start, "endTimestamp": end, "fileName": "f"});
        assert_eq!(followed(&vm, Some(&told("MemoryDumpCompleted", Value::Null))), done);
        let failed = json!({"claimName": "dump", "phase": "Failed", "startTimestamp": start, "endTimestamp": end, "message": "no room"});
        assert_eq!(followed(&vm, Some(&told("MemoryDumpFailed", json!("no room")))), failed);
        let ended = followed(&vm, None);
        assert_eq!(ended["phase"], "Failed");
        assert!(ended["message"].as_str().unwrap().ends_with("the machine has ended"), "{ended}");
    }

    #[test]
    fn the_volume_comes_to_the_template_and_leaves_it() {
        let volumes = |vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>| {
            let (operations, _) = of_template(vm, vmi)?;
            let mut value = serde_json::to_value(vm).unwrap();
            let patch: json_patch::Patch = serde_json::from_value(operations.into()).unwrap();
            json_patch::patch(&mut value, &patch).unwrap();
            let names = value["spec"]["template"]["spec"]["volumes"].as_array().unwrap().clone();
            Some(names.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>())
        };
        let bare = vmi(json!([]), json!([]));
        let both = Some(vec!["root".to_owned(), "dump".to_owned()]);
        assert_eq!(volumes(&vm(at("Associating"), false), Some(&bare)), both);
        let leaves = vmi(json!([]), json!([{"name": "dump", "target": ""}]));
        assert_eq!(volumes(&vm(at("Associating"), false), Some(&leaves)), None, "its former pod is there");
        assert_eq!(volumes(&vm(at("Associating"), true), Some(&bare)), None);
        assert_eq!(volumes(&vm(at("Completed"), true), Some(&bare)), None);
        assert_eq!(volumes(&vm(at("Dissociating"), true), None), Some(vec!["root".to_owned()]));
        assert_eq!(volumes(&vm(at("Dissociating"), false), None), None);
    }

    #[test]
    fn the_claim_says_what_is_on_it() {
        let done = json!({"claimName": "dump", "phase": "Unmounting", "fileName": "f"});
        assert_eq!(annotation(&vm(done, true)), Some(("dump", "f")));
        assert_eq!(annotation(&vm(at("Failed"), true)), Some(("dump", "Memory dump failed")));
        assert_eq!(annotation(&vm(at("Completed"), true)), None);
    }
}
