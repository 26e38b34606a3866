//! Volumes that come and go while the machine runs.
//!
//! What the template says of volumes that are hotpluggable is written into the running instance, and need not wait for the next
//! start. The controller of instances, virt-handler and virt-launcher bring the machine to it.
//!
//! ```text
//! template                 instance                          then
//! a volume, hotpluggable   the volume and its disk are added   a pod gets the claim, the guest the disk
//! the volume is gone       both are removed                    the guest loses the disk, then the pod the claim
//! the volume is another    both are removed, and added anew once the status tells of the former one no more
//! ```
//!
//! The volume of a memory dump is in the instance while the dump is written ([`super::memory_dump`]). A volume that was plugged into the
//! instance alone (annotation [`annotation::EPHEMERAL_VOLUMES`]) stays as it is. Nothing is written
//! while the instance does not run or moves: the target's pods are made for what stands there.

use std::collections::BTreeSet;

use kube::ResourceExt;
use podvirt_api::memory_dump::is_for_instance;
use podvirt_api::migration::is_under_way;
use podvirt_api::names::annotation;
use podvirt_api::storage::is_hotpluggable;
use podvirt_api::v1::{
    Disk, VirtualMachine, VirtualMachineInstance, VirtualMachineInstancePhase as Phase,
    VirtualMachineInstanceSpec, Volume,
};
use podvirt_daemon::patch::{list, unchanged};
use serde_json::{Value, json};

use super::moves;

/// Takes out of `spec`, a template's, the volumes that come and go, with their disks. A CD-ROM's drive stays.
pub fn leave_out(spec: &mut VirtualMachineInstanceSpec) {
    let (gone, stay): (Vec<Volume>, Vec<Volume>) =
        std::mem::take(&mut spec.volumes).into_iter().partition(is_hotpluggable);
    spec.volumes = stay;
    let goes = |disk: &Disk| disk.cdrom.is_none() && gone.iter().any(|volume| volume.name == disk.name);
    spec.domain.devices.disks.retain(|disk| !goes(disk));
}

/// The operations of a JSON patch that bring the instance's volumes to the template, and what they come to; none where they are
/// there.
pub fn of_instance(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> Option<(Vec<Value>, String)> {
    let moves = vmi.status.migration_state.as_ref().is_some_and(is_under_way);
    if vmi.status.phase != Some(Phase::Running) || vmi.metadata.deletion_timestamp.is_some() || moves {
        return None;
    }
    let template = vm.spec.template.as_ref()?.spec.as_ref()?;
    let wanted: Vec<&Volume> = template.volumes.iter().filter(|volume| is_for_instance(vm, volume)).collect();
    let (volumes, disks) = (&vmi.spec.volumes, &vmi.spec.domain.devices.disks);
    let own = own(vmi);
    // What is to move to another claim with its content is not unplugged.
    let moves = |volume: &Volume| {
        let is_wanted = |wanted: &&Volume| wanted.name == volume.name && is_hotpluggable(wanted);
        moves::is_asked_for(vm) && !moves::is_medium(template, volume) && wanted.iter().any(is_wanted)
    };
    let leaves = |volume: &&Volume| {
        is_hotpluggable(volume) && !moves(volume) && !own.contains(&volume.name) && !wanted.contains(volume)
    };
    let leaving: Vec<&str> = volumes.iter().filter(leaves).map(|volume| volume.name.as_str()).collect();
    let is_known = |name: &str| {
        volumes.iter().any(|volume| volume.name == name)
            || vmi.status.volume_status.iter().any(|told| told.name == name)
    };
    let comes = |volume: &&&Volume| is_hotpluggable(volume) && !is_known(&volume.name);
    let coming: Vec<&Volume> = wanted.iter().filter(comes).copied().collect();
    if leaving.is_empty() && coming.is_empty() {
        return None;
    }
    let stays = |name: &str| !leaving.contains(&name);
    // A CD-ROM loses its medium alone.
    let is_drive = |disk: &Disk| {
        let wanted = template.domain.devices.disks.iter().find(|wanted| wanted.name == disk.name);
        disk.cdrom.is_some() && wanted.is_some_and(|wanted| wanted.cdrom.is_some())
    };
    let new_volumes: Vec<&Volume> =
        volumes.iter().filter(|volume| stays(&volume.name)).chain(coming.iter().copied()).collect();
    let comes = |disk: &&Disk| {
        coming.iter().any(|volume| volume.name == disk.name)
            && !disks.iter().any(|there| there.name == disk.name)
    };
    let new_disks: Vec<&Disk> = disks
        .iter()
        .filter(|disk| stays(&disk.name) || is_drive(disk))
        .chain(template.domain.devices.disks.iter().filter(comes))
        .collect();
    let operations = [
        Some(unchanged(vmi)),
        list("/spec/volumes", &json!(volumes), &json!(new_volumes)),
        list("/spec/domain/devices/disks", &json!(disks), &json!(new_disks)),
    ];
    let operations = operations.into_iter().flatten().collect();
    let said = coming.iter().map(|volume| format!("volume {} is plugged", volume.name));
    let said = said.chain(leaving.iter().map(|name| format!("volume {name} is unplugged")));
    Some((operations, said.collect::<Vec<_>>().join(", ")))
}

/// Volumes that were plugged into the instance alone.
fn own(vmi: &VirtualMachineInstance) -> BTreeSet<String> {
    let told = vmi.annotations().get(annotation::EPHEMERAL_VOLUMES);
    told.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(volumes: &[(&str, &str, bool)]) -> Value {
        let volume = |(name, claim, hotpluggable): &(&str, &str, bool)| json!({"name": name, "persistentVolumeClaim": {"claimName": claim, "hotpluggable": hotpluggable}});
        let disks: Vec<Value> =
            volumes.iter().map(|(name, ..)| json!({"name": name, "disk": {"bus": "scsi"}})).collect();
        json!({"domain": {"devices": {"disks": disks}}, "volumes": volumes.iter().map(volume).collect::<Vec<_>>()})
    }

    fn vm(volumes: &[(&str, &str, bool)]) -> VirtualMachine {
        let vm = json!({"metadata": {"name": "vm"}, "spec": {"template": {"spec": spec(volumes)}}});
        serde_json::from_value(vm).unwrap()
    }

    fn vmi(volumes: &[(&str, &str, bool)], more: Value) -> VirtualMachineInstance {
        let mut vmi = json!({"metadata": {"name": "vm", "resourceVersion": "7"}, "spec": spec(volumes), "status": {"phase": "Running"}});
        json_patch::merge(&mut vmi, &more);
        serde_json::from_value(vmi).unwrap()
    }

    /// Names of volumes and disks after the change.
    fn changed(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> Option<(Vec<String>, Vec<String>)> {
        let (operations, _) = of_instance(vm, vmi)?;
        let mut value = serde_json::to_value(vmi).unwrap();
        let patch: json_patch::Patch = serde_json::from_value(operations.into()).unwrap();
        json_patch::patch(&mut value, &patch).unwrap();
        let names = |list: &Value| {
            list.as_array()
                .unwrap()
                .iter()
                .map(|one| one["name"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        Some((names(&value["spec"]["volumes"]), names(&value["spec"]["domain"]["devices"]["disks"])))
    }

    const ROOT: (&str, &str, bool) = ("root", "root", false);

    #[test]
    fn what_is_hotpluggable_follows_the_template_and_nothing_else_does() {
        let running = vmi(&[ROOT], json!({}));
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let both = |all: &[&str]| Some((names(all), names(all)));
        assert_eq!(changed(&vm(&[ROOT, ("data", "a", true)]), &running), both(&["root", "data"]));
        assert_eq!(changed(&vm(&[ROOT, ("data", "a", false)]), &running), None, "it waits for a restart");
        let plugged = vmi(&[ROOT, ("data", "a", true)], json!({}));
        assert_eq!(changed(&vm(&[ROOT, ("data", "a", true)]), &plugged), None);
        assert_eq!(changed(&vm(&[ROOT]), &plugged), both(&["root"]));
        // Another claim: first the former one goes.
        let other = vm(&[ROOT, ("data", "b", true)]);
        assert_eq!(changed(&other, &plugged), both(&["root"]));
        let told =
            json!({"status": {"volumeStatus": [{"name": "data", "target": "sda", "hotplugVolume": {}}]}});
        assert_eq!(changed(&other, &vmi(&[ROOT], told)), None, "its disk is there still");
        assert_eq!(changed(&other, &running), both(&["root", "data"]));
    }

    #[test]
    fn a_cd_rom_loses_its_medium_and_keeps_its_drive() {
        let drive = |volume: bool| {
            let volumes = if volume { &[ROOT, ("tools", "iso", true)][..] } else { &[ROOT] };
            let mut spec = spec(volumes);
            spec["domain"]["devices"]["disks"] =
                json!([{"name": "root"}, {"name": "tools", "cdrom": {"bus": "sata"}}]);
            spec
        };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let with = |volume: bool| {
            let mut vm = vm(&[]);
            vm.spec.template.as_mut().unwrap().spec = serde_json::from_value(drive(volume)).unwrap();
            let mut vmi = vmi(&[], json!({}));
            vmi.spec = serde_json::from_value(drive(volume)).unwrap();
            (vm, vmi)
        };
        // Another medium, also where volumes move to other claims.
        let (mut other, full_vmi) = with(true);
        other.spec.update_volumes_strategy = Some(serde_json::from_value(json!("Migration")).unwrap());
        let volumes = &mut other.spec.template.as_mut().unwrap().spec.as_mut().unwrap().volumes;
        volumes[1].persistent_volume_claim.as_mut().unwrap().claim_name = "other".into();
        assert_eq!(changed(&other, &full_vmi), Some((names(&["root"]), names(&["root", "tools"]))));
        let ((empty, empty_vmi), (full, full_vmi)) = (with(false), with(true));
        assert_eq!(changed(&full, &empty_vmi), Some((names(&["root", "tools"]), names(&["root", "tools"]))));
        assert_eq!(changed(&empty, &full_vmi), Some((names(&["root"]), names(&["root", "tools"]))));
        // What is compared for a restart has the drive with and without its medium.
        let left = |vm: &VirtualMachine| {
            let mut spec = vm.spec.template.clone().unwrap().spec.unwrap();
            leave_out(&mut spec);
            spec
        };
        assert_eq!(left(&empty), left(&full));
    }

    #[test]
    fn what_is_the_instances_own_and_what_moves_is_left_alone() {
        let own = json!({"metadata": {"annotations": {annotation::EPHEMERAL_VOLUMES: r#"["data"]"#}}});
        assert_eq!(changed(&vm(&[ROOT]), &vmi(&[ROOT, ("data", "a", true)], own)), None);
        let moves = json!({"status": {"migrationState": {"migrationUid": "m", "startTimestamp": "2026-01-01T00:00:00Z"}}});
        for more in [moves, json!({"status": {"phase": "Scheduled"}})] {
            assert_eq!(changed(&vm(&[ROOT, ("data", "a", true)]), &vmi(&[ROOT], more)), None);
        }
    }

    #[test]
    fn a_template_without_what_comes_and_goes_has_neither_its_volumes_nor_their_disks() {
        let mut template = vm(&[ROOT, ("data", "a", true)]).spec.template.unwrap().spec.unwrap();
        leave_out(&mut template);
        assert_eq!((template.volumes.len(), template.domain.devices.disks.len()), (1, 1));
    }
}
