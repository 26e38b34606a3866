//! Volumes that are plugged and unplugged: from what is stored and a request to the lists that are to be stored.
//!
//! A request about a VirtualMachine changes its template. virt-controller brings the running instance to it, so the volume is there
//! after a restart, too. A request about an instance changes the instance alone: what is plugged so is gone when the machine
//! starts anew. The instance of a VirtualMachine notes these volumes in an annotation, by which virt-controller leaves them alone.

use std::collections::BTreeSet;

use json_patch::Patch;
use podvirt_api::admission::vmi::validate_plugged;
use podvirt_api::names::annotation;
use podvirt_api::storage::{claim, is_hotpluggable};
use podvirt_api::v1::{
    AddVolumeOptions, Disk, KubeVirtConfiguration, RemoveVolumeOptions, VirtualMachine,
    VirtualMachineInstance, VirtualMachineInstancePhase as Phase, VirtualMachineInstanceSpec, Volume,
};
use podvirt_daemon::patch::{list, unchanged};
use serde_json::{Value, json};

use crate::lifecycle::Change;
use crate::status::Status;
use crate::target::Kind;

/// What is to become of a volume.
#[derive(Clone, Debug)]
pub enum Wish {
    /// It is plugged.
    Add(Box<Added>),
    /// It is unplugged: the volume of this name, or the one with a claim of this name.
    Remove(String),
}

/// A volume and its disk.
#[derive(Clone, Debug)]
pub struct Added {
    volume: Volume,
    disk: Disk,
}

impl Wish {
    /// What a request to add a volume asks for.
    ///
    /// # Errors
    ///
    /// Something is missing.
    pub fn add(options: AddVolumeOptions) -> Result<Wish, Status> {
        let missing = |what: &str| Status::bad_request(format!("AddVolumeOptions requires {what}"));
        let name = options.name;
        if name.is_empty() {
            return Err(missing("name to be set"));
        }
        let disk = options.disk.ok_or_else(|| missing("disk to not be nil"))?;
        if disk.disk.is_none() && disk.lun.is_none() && disk.cdrom.is_some() {
            return Err(Status::bad_request(format!(
                "AddVolume request for [{name}] requires diskDevice of type 'disk' or 'lun' to be used: the medium of a CD-ROM comes \
                 and goes with a volume of its name in the VirtualMachine's template"
            )));
        }
        let source = options.volume_source.ok_or_else(|| missing("VolumeSource to not be nil"))?;
        let mut volume = Volume {
            name: name.clone(),
            persistent_volume_claim: source.persistent_volume_claim,
            data_volume: source.data_volume,
            ..Volume::default()
        };
        if let Some(data) = &mut volume.data_volume {
            data.hotpluggable = Some(true);
        } else if let Some(claim) = &mut volume.persistent_volume_claim {
            claim.hotpluggable = Some(true);
        } else {
            return Err(missing("VolumeSource to have persistentVolumeClaim or dataVolume"));
        }
        Ok(Wish::Add(Box::new(Added { volume, disk: Disk { name, ..disk } })))
    }

    /// What a request to remove a volume asks for.
    ///
    /// # Errors
    ///
    /// It names no volume.
    pub fn remove(options: RemoveVolumeOptions) -> Result<Wish, Status> {
        if options.name.is_empty() {
            return Err(Status::bad_request("RemoveVolumeOptions requires name to be set"));
        }
        Ok(Wish::Remove(options.name))
    }

    /// Carries the wish out on volumes and disks; returns the name of its volume.
    ///
    /// # Errors
    ///
    /// Why it cannot be; upstream's words.
    fn apply(&self, spec: &mut VirtualMachineInstanceSpec) -> Result<String, String> {
        let claim_name = |volume: &Volume| claim(volume).map(|claim| claim.name.to_owned());
        match self {
            Wish::Add(added) => {
                let Added { volume, disk } = added.as_ref();
                let name = &volume.name;
                if spec.volumes.iter().any(|there| there.name == *name) {
                    return Err(format!(
                        "Unable to add volume [{name}] because volume with that name already exists"
                    ));
                }
                let source = claim_name(volume);
                if spec.volumes.iter().any(|there| claim_name(there) == source) {
                    let source = source.unwrap_or_default();
                    return Err(format!("Unable to add volume source [{source}] because it already exists"));
                }
                // A disk without a volume may be there, a drive for CDs.
                if !spec.domain.devices.disks.iter().any(|there| there.name == *name) {
                    spec.domain.devices.disks.push(disk.clone());
                }
                spec.volumes.push(volume.clone());
                Ok(name.clone())
            }
            Wish::Remove(wanted) => {
                let is_it =
                    |volume: &&Volume| volume.name == *wanted || claim_name(volume).as_ref() == Some(wanted);
                let Some(volume) = spec.volumes.iter().find(is_it) else {
                    return Err(format!("Unable to remove volume [{wanted}] because it does not exist"));
                };
                let name = volume.name.clone();
                if !is_hotpluggable(volume) {
                    return Err(format!("Unable to remove volume [{name}] because it is not hotpluggable"));
                }
                spec.volumes.retain(|volume| volume.name != name);
                spec.domain.devices.disks.retain(|disk| disk.name != name);
                Ok(name)
            }
        }
    }
}

/// The change of a VirtualMachine's template.
///
/// # Errors
///
/// The wish cannot be carried out.
pub fn of_machine(vm: &VirtualMachine, wish: &Wish) -> Result<Change, Status> {
    let name = vm.metadata.name.as_deref().unwrap_or_default();
    let template = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
    let old = template.ok_or_else(|| Status::internal("the VM has no spec.template.spec"))?;
    let mut new = old.clone();
    wish.apply(&mut new).map_err(|why| Status::conflict(Kind::VirtualMachine.in_errors(), name, &why))?;
    Ok(Change::Spec(patch_of(unchanged(vm), lists("/spec/template/spec", old, &new))?))
}

/// The change of a running instance.
///
/// # Errors
///
/// It does not run, the wish cannot be carried out, or what would come of it is invalid.
pub fn of_instance(
    vmi: &VirtualMachineInstance,
    wish: &Wish,
    config: &KubeVirtConfiguration,
) -> Result<Patch, Status> {
    let name = vmi.metadata.name.as_deref().unwrap_or_default();
    let conflict = |why: &str| Status::conflict(Kind::Instance.in_errors(), name, why);
    if vmi.status.phase != Some(Phase::Running) {
        return Err(conflict("VMI is not running"));
    }
    let mut new = vmi.clone();
    let volume = wish.apply(&mut new.spec).map_err(|why| conflict(&why))?;
    let value = |vmi: &VirtualMachineInstance| {
        serde_json::to_value(vmi)
            .map_err(|error| Status::internal(format!("the VMI cannot be written: {error}")))
    };
    let problems = validate_plugged(&value(vmi)?, &value(&new)?, config);
    if !problems.is_empty() {
        return Err(Status::bad_request(problems.to_string()));
    }
    patch_of(unchanged(vmi), lists("/spec", &vmi.spec, &new.spec).chain(noted(vmi, wish, &volume)))
}

/// Notes in the instance of a VirtualMachine that a volume is the instance's own, or is no more.
fn noted(vmi: &VirtualMachineInstance, wish: &Wish, volume: &str) -> Option<Value> {
    let owners = vmi.metadata.owner_references.iter().flatten();
    if !owners.into_iter().any(|owner| owner.controller == Some(true) && owner.kind == "VirtualMachine") {
        return None;
    }
    let annotations = vmi.metadata.annotations.as_ref();
    let known = annotations.and_then(|all| all.get(annotation::EPHEMERAL_VOLUMES));
    let mut volumes: BTreeSet<String> =
        known.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    match wish {
        Wish::Add(_) => drop(volumes.insert(volume.to_owned())),
        Wish::Remove(_) => drop(volumes.remove(volume)),
    }
    let path = format!("/metadata/annotations/{}", annotation::EPHEMERAL_VOLUMES.replace('/', "~1"));
    match (volumes.is_empty(), known) {
        (true, None) => None,
        (true, Some(_)) => Some(json!({"op": "remove", "path": path})),
        (false, _) if annotations.is_none() => {
            let text = json!(volumes).to_string();
            Some(
                json!({"op": "add", "path": "/metadata/annotations", "value": {annotation::EPHEMERAL_VOLUMES: text}}),
            )
        }
        (false, _) => Some(json!({"op": "add", "path": path, "value": json!(volumes).to_string()})),
    }
}

/// The operations that bring volumes and disks from `old` to `new`.
fn lists(
    path: &str,
    old: &VirtualMachineInstanceSpec,
    new: &VirtualMachineInstanceSpec,
) -> impl Iterator<Item = Value> {
    let disks = |spec: &VirtualMachineInstanceSpec| json!(spec.domain.devices.disks);
    let volumes = list(&format!("{path}/volumes"), &json!(old.volumes), &json!(new.volumes));
    let disks = list(&format!("{path}/domain/devices/disks"), &disks(old), &disks(new));
    volumes.into_iter().chain(disks)
}

fn patch_of(test: Value, operations: impl IntoIterator<Item = Value>) -> Result<Patch, Status> {
    let operations: Vec<Value> = std::iter::once(test).chain(operations).collect();
    serde_json::from_value(operations.into())
        .map_err(|error| Status::internal(format!("the change cannot be written: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(more: Value) -> VirtualMachineInstance {
        let mut vmi = json!({
            "metadata": {"name": "vm", "namespace": "ns", "resourceVersion": "7"},
            "spec": {
                "domain": {"devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]}, "memory": {"guest": "64Mi"}},
                "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "root"}}],
            },
            "status": {"phase": "Running"},
        });
        json_patch::merge(&mut vmi, &more);
        serde_json::from_value(vmi).unwrap()
    }

    fn add(name: &str, claim: &str, bus: &str) -> Wish {
        let options = json!({"name": name, "disk": {"disk": {"bus": bus}},
            "volumeSource": {"persistentVolumeClaim": {"claimName": claim}}});
        Wish::add(serde_json::from_value(options).unwrap()).unwrap()
    }

    fn changed(vmi: &VirtualMachineInstance, wish: &Wish) -> Result<Value, Status> {
        let patch = of_instance(vmi, wish, &KubeVirtConfiguration::default())?;
        let mut value = serde_json::to_value(vmi).unwrap();
        json_patch::patch(&mut value, &patch).unwrap();
        Ok(value)
    }

    #[test]
    fn a_volume_comes_with_its_disk_and_goes_by_its_name_or_its_claims() {
        let vmi = instance(json!({}));
        let with = changed(&vmi, &add("data", "claim", "scsi")).unwrap();
        assert_eq!(
            with["spec"]["volumes"][1],
            json!({"name": "data", "persistentVolumeClaim": {"claimName": "claim", "hotpluggable": true}})
        );
        assert_eq!(
            with["spec"]["domain"]["devices"]["disks"][1],
            json!({"name": "data", "disk": {"bus": "scsi"}})
        );
        assert_eq!(with["metadata"].get("annotations"), None, "it belongs to no VirtualMachine");
        let vmi: VirtualMachineInstance = serde_json::from_value(with).unwrap();
        for name in ["data", "claim"] {
            let without = changed(&vmi, &Wish::Remove(name.into())).unwrap();
            assert_eq!(without["spec"]["volumes"].as_array().unwrap().len(), 1);
            assert_eq!(without["spec"]["domain"]["devices"]["disks"].as_array().unwrap().len(), 1);
        }
    }

    #[test]
    fn what_cannot_be_is_refused_in_upstreams_words() {
        let vmi = instance(json!({}));
        for (wish, code, words) in [
            (
                add("root", "x", "scsi"),
                409,
                "Unable to add volume [root] because volume with that name already exists",
            ),
            (add("x", "root", "scsi"), 409, "Unable to add volume source [root] because it already exists"),
            (Wish::Remove("x".into()), 409, "Unable to remove volume [x] because it does not exist"),
            (
                Wish::Remove("root".into()),
                409,
                "Unable to remove volume [root] because it is not hotpluggable",
            ),
            (add("x", "y", "sata"), 400, "spec.domain.devices.disks[1].disk.bus: 'sata'"),
        ] {
            let refused = changed(&vmi, &wish).unwrap_err();
            assert_eq!(refused.code, code, "{}", refused.message);
            assert!(refused.message.contains(words), "{}", refused.message);
        }
        let stopped = instance(json!({"status": {"phase": "Scheduled"}}));
        assert_eq!(changed(&stopped, &add("x", "y", "scsi")).unwrap_err().code, 409);
        for (options, words) in [
            (json!({}), "name to be set"),
            (json!({"name": "x"}), "disk to not be nil"),
            (json!({"name": "x", "disk": {}}), "VolumeSource to not be nil"),
            (json!({"name": "x", "disk": {}, "volumeSource": {}}), "persistentVolumeClaim or dataVolume"),
        ] {
            let refused = Wish::add(serde_json::from_value(options).unwrap()).unwrap_err();
            assert!(refused.code == 400 && refused.message.contains(words), "{}", refused.message);
        }
    }

    #[test]
    fn the_instance_of_a_virtual_machine_notes_what_is_its_own() {
        let owner = json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": "u", "controller": true}]);
        let vmi = instance(json!({"metadata": {"ownerReferences": owner}}));
        let note = |value: &Value| value["metadata"]["annotations"][annotation::EPHEMERAL_VOLUMES].clone();
        let one = changed(&vmi, &add("b", "b", "scsi")).unwrap();
        assert_eq!(note(&one), json!(r#"["b"]"#));
        let two = changed(&serde_json::from_value(one).unwrap(), &add("a", "a", "virtio")).unwrap();
        assert_eq!(note(&two), json!(r#"["a","b"]"#));
        let left = changed(&serde_json::from_value(two).unwrap(), &Wish::Remove("b".into())).unwrap();
        assert_eq!(note(&left), json!(r#"["a"]"#));
        let none = changed(&serde_json::from_value(left).unwrap(), &Wish::Remove("a".into())).unwrap();
        assert_eq!(note(&none), Value::Null);
    }
}
