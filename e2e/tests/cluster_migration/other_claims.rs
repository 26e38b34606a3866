//! Disks of a running machine that move to other claims.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use podvirt_api::storage;
use podvirt_api::v1::{self, VirtualMachine, VirtualMachineConditionType as Type};
use podvirt_e2e::cluster::{Cluster, Manifest, Namespace, SOON, Security, prepare_volumes};

use crate::claims::{write_on, writers, written};
use crate::moving::{MOVE, Machine};
use crate::storage::claim;

/// Place of the volume in the list of the machine's volumes.
const PLACE: u32 = 2;

/// Has the template name another claim for the volume, to which it is to move.
fn name(namespace: &Namespace<'_>, claim: &str) {
    let patch = format!(
        r#"[{{"op": "add", "path": "/spec/updateVolumesStrategy", "value": "Migration"}},
            {{"op": "replace", "path": "/spec/template/spec/volumes/{PLACE}/persistentVolumeClaim/claimName", "value": "{claim}"}}]"#
    );
    namespace.kubectl(&["patch", "vm", "vm", "--type=json", "-p", &patch]).unwrap();
}

/// The claim that the instance's status tells of the volume, and whether it is moving to another one.
fn told(instance: &v1::VirtualMachineInstance) -> (Option<String>, bool) {
    let status = instance.status.volume_status.iter().find(|status| status.name == "data");
    let claim = status.and_then(|status| status.persistent_volume_claim_info.as_ref()?.claim_name.clone());
    let volume = instance.spec.volumes.iter().find(|volume| volume.name == "data");
    (claim, volume.is_some_and(|volume| storage::moving(instance, volume).is_some()))
}

/// A disk goes from a disk image to a device that is larger, and on to another disk image, while the guest writes it; no block is lost,
/// it becomes as large as its claim, and the claims that it has left are free. What is taken back meanwhile stays.
#[test]
fn a_disk_moves_to_other_claims_while_the_guest_writes_it() {
    prepare_volumes().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.volumes().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    claim(&namespace, "first", "Filesystem", "ReadWriteMany", "64Mi");
    claim(&namespace, "device", "Block", "ReadWriteMany", "128Mi");
    claim(&namespace, "last", "Filesystem", "ReadWriteMany", "160Mi");
    let manifest = Manifest {
        name: "vm",
        user_data: &writers(&["data"]),
        volumes: "{name: data, persistentVolumeClaim: {claimName: first}}",
        disks: "{name: data, serial: data, disk: {bus: virtio}}",
        ..Default::default()
    };
    let mut machine = Machine::start(&namespace, &manifest);
    // Taken back before the machine has moved.
    name(&namespace, "device");
    let moving = |from: &str| {
        let from = Some(from.to_owned());
        move |instance: &v1::VirtualMachineInstance| told(instance) == (from.clone(), true)
    };
    let stays = |on: &str| {
        let on = Some(on.to_owned());
        move |instance: &v1::VirtualMachineInstance| told(instance) == (on.clone(), false)
    };
    namespace.wait("vm", "a volume that moves", SOON, moving("first")).unwrap();
    name(&namespace, "first");
    namespace.wait("vm", "a volume that stays", MOVE, stays("first")).unwrap();
    for (from, to) in [("first", "device"), ("device", "last")] {
        write_on(&namespace, &mut machine, &["data"]);
        name(&namespace, to);
        namespace.wait("vm", "a volume that moves", SOON, moving(from)).unwrap();
        let source = machine.pod();
        let migration = machine.migrate();
        machine.has_moved(&migration, &source);
        namespace.wait("vm", "a volume that has moved", SOON, stays(to)).unwrap();
        write_on(&namespace, &mut machine, &["data"]);
        namespace.kubectl(&["delete", "pvc", from, "--wait=false"]).unwrap();
        namespace.wait_gone::<PersistentVolumeClaim>(from, SOON).unwrap();
        let grown = "disk=$(cat /tmp/data/disk); until [ $(blockdev --getsize64 $disk) -ge 134217728 ]; do usleep 50000; done";
        machine.sh(grown);
    }
    written(&mut machine, "data");
    let restart = |vm: &VirtualMachine| {
        vm.status.conditions.iter().any(|condition| condition.r#type == Type::RestartRequired)
    };
    let vm = namespace.wait("vm", "the machine", SOON, |_: &VirtualMachine| true).unwrap();
    assert!(!restart(&vm), "{:?}", vm.status.conditions);
}
