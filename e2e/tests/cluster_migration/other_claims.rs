//! Disks of a running machine that move to other claims.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use podvirt_api::storage;
use podvirt_api::v1::{self, VirtualMachine, VirtualMachineConditionType as Type};
use podvirt_e2e::cluster::{Cluster, Manifest, Namespace, SOON, Security, prepare_volumes};
use serde_json::{Value, json};

use crate::claims::{write_on, writers, written};
use crate::moving::{MOVE, Machine};
use crate::storage::claim;
use crate::volumes::wait_ready;

/// Places of the volumes in the list of the machine's volumes: one that it starts with, and one that is plugged.
const DATA: u32 = 2;
/// See [`DATA`].
const PLUGGED: u32 = 3;

/// Has the template name other claims for these volumes, to which they are to move.
fn name(namespace: &Namespace<'_>, claims: &[(u32, &str)]) {
    let strategy = json!({"op": "add", "path": "/spec/updateVolumesStrategy", "value": "Migration"});
    let claims = claims.iter().map(|(place, claim)| {
        let path = format!("/spec/template/spec/volumes/{place}/persistentVolumeClaim/claimName");
        json!({"op": "replace", "path": path, "value": claim})
    });
    let patch: Value = [strategy].into_iter().chain(claims).collect();
    namespace.kubectl(&["patch", "vm", "vm", "--type=json", "-p", &patch.to_string()]).unwrap();
}

/// The claim that the instance's status tells of the volume, and whether it is moving to another one.
fn told(instance: &v1::VirtualMachineInstance) -> (Option<String>, bool) {
    let status = instance.status.volume_status.iter().find(|status| status.name == "data");
    let claim = status.and_then(|status| status.persistent_volume_claim_info.as_ref()?.claim_name.clone());
    let volume = instance.spec.volumes.iter().find(|volume| volume.name == "data");
    (claim, volume.is_some_and(|volume| storage::moving(instance, volume).is_some()))
}

/// Two disks, of which one was plugged, go from disk images to devices that are larger, and on to other disk images, while the guest
/// writes them; no block is lost, the one that is not plugged becomes as large as its claim, and the claims that they have left
/// are free. What is taken back meanwhile stays.
#[test]
fn long_disks_move_to_other_claims_while_the_guest_writes_them() {
    prepare_volumes().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.volumes().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    claim(&namespace, "first", "Filesystem", "ReadWriteMany", "64Mi");
    claim(&namespace, "device", "Block", "ReadWriteMany", "128Mi");
    claim(&namespace, "last", "Filesystem", "ReadWriteMany", "160Mi");
    claim(&namespace, "plugged", "Filesystem", "ReadWriteOnce", "64Mi");
    claim(&namespace, "plugged-device", "Block", "ReadWriteOnce", "128Mi");
    claim(&namespace, "plugged-last", "Filesystem", "ReadWriteMany", "160Mi");
    let manifest = Manifest {
        name: "vm",
        user_data: &writers(&["data"]),
        volumes: "{name: data, persistentVolumeClaim: {claimName: first}}",
        disks: "{name: data, serial: data, disk: {bus: virtio}}",
        ..Default::default()
    };
    let mut machine = Machine::start(&namespace, &manifest);
    namespace.virtctl(&["addvolume", "vm", "--volume-name=plugged", "--bus=virtio"]).unwrap();
    wait_ready(&namespace, &machine, &["plugged"]);
    machine.sh(
        "until grep -qx plugged /sys/block/*/serial; do usleep 50000; done; writer plugged >/dev/null 2>&1 &",
    );
    // Taken back before the machine has moved.
    name(&namespace, &[(DATA, "device"), (PLUGGED, "plugged-device")]);
    let moving = |from: &str| {
        let from = Some(from.to_owned());
        move |instance: &v1::VirtualMachineInstance| told(instance) == (from.clone(), true)
    };
    let can_move = |instance: &v1::VirtualMachineInstance| {
        instance.status.conditions.iter().any(|c| c.r#type.as_str() == "LiveMigratable" && c.status == "True")
    };
    let stays = |on: &str| {
        let on = Some(on.to_owned());
        move |instance: &v1::VirtualMachineInstance| told(instance) == (on.clone(), false)
    };
    namespace.wait("vm", "a volume that moves", SOON, moving("first")).unwrap();
    name(&namespace, &[(DATA, "first"), (PLUGGED, "plugged")]);
    namespace.wait("vm", "a volume that stays", MOVE, stays("first")).unwrap();
    for ([from, plugged_from], [to, plugged_to]) in [
        (["first", "plugged"], ["device", "plugged-device"]),
        (["device", "plugged-device"], ["last", "plugged-last"]),
    ] {
        write_on(&namespace, &mut machine, &["data", "plugged"]);
        name(&namespace, &[(DATA, to), (PLUGGED, plugged_to)]);
        namespace.wait("vm", "a volume that moves", SOON, moving(from)).unwrap();
        // On its former claim, which one node alone can have, it kept the machine.
        namespace.wait("vm", "a machine that can move", SOON, can_move).unwrap();
        let source = machine.pod();
        let migration = machine.migrate();
        machine.has_moved(&migration, &source);
        namespace.wait("vm", "a volume that has moved", SOON, stays(to)).unwrap();
        write_on(&namespace, &mut machine, &["data", "plugged"]);
        for from in [from, plugged_from] {
            namespace.kubectl(&["delete", "pvc", from, "--wait=false"]).unwrap();
            namespace.wait_gone::<PersistentVolumeClaim>(from, SOON).unwrap();
        }
        let grown = "disk=$(cat /tmp/data/disk); until [ $(blockdev --getsize64 $disk) -ge 134217728 ]; do usleep 50000; done";
        machine.sh(grown);
    }
    written(&mut machine, "data");
    written(&mut machine, "plugged");
    let restart = |vm: &VirtualMachine| {
        vm.status.conditions.iter().any(|condition| condition.r#type == Type::RestartRequired)
    };
    let vm = namespace.wait("vm", "the machine", SOON, |_: &VirtualMachine| true).unwrap();
    assert!(!restart(&vm), "{:?}", vm.status.conditions);
}
