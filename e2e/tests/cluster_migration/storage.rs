//! Machines on volumes of a storage that both nodes have: block devices, directories, and what becomes of them.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use podvirt_api::storage::{Fate, verdict};
use podvirt_api::v1;
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, Namespace, SOON, Security, prepare_volumes};

use crate::claims::{BLOCKS, write_on, writers, written};
use crate::moving::Machine;

/// Disks that the guest writes all the time, by volume.
const WRITTEN: [&str; 2] = ["data", "files"];

/// Makes a claim, of `Block` or `Filesystem`, and waits until it has its volume.
pub(crate) fn claim(namespace: &Namespace<'_>, name: &str, mode: &str, access: &str, size: &str) {
    namespace
        .apply(&format!(
            "{{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: {name}}}, spec: {{storageClassName: bed-block, \
             volumeMode: {mode}, accessModes: [{access}], resources: {{requests: {{storage: {size}}}}}}}}}"
        ))
        .unwrap();
    let bound = |c: &PersistentVolumeClaim| {
        c.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Bound"))
    };
    // The scheduler looks again late at a pod whose claims were not bound at first.
    namespace.wait(name, "a bound claim", SOON, bound).unwrap();
}

/// The device of a disk, for a shell in the guest.
fn device(serial: &str) -> String {
    format!("/dev/$(cd /sys/block; grep -lx {serial} */serial | cut -d / -f 1)")
}

/// What the launcher's pod reads of a claim's device from the storage itself, by a command that gets it.
fn in_pod(
    namespace: &Namespace<'_>,
    machine: &Machine<'_>,
    volume: &str,
    blocks: u32,
    command: &str,
) -> String {
    let pod = machine.pod().metadata.name.unwrap();
    let read = format!("dd if=/dev/{volume} bs=4096 count={blocks} iflag=direct 2>/dev/null | {command}");
    namespace.kubectl(&["exec", &pod, "-c", "compute", "--", "sh", "-c", &read]).unwrap().trim().to_owned()
}

/// Asks for more storage of claims, and has the kubelet of the machine's node look at them before the next minutes are over.
fn expand(namespace: &Namespace<'_>, machine: &Machine<'_>, claims: &[&str], size: &str) {
    let patch = format!("{{\"spec\": {{\"resources\": {{\"requests\": {{\"storage\": \"{size}\"}}}}}}}}");
    for name in claims {
        namespace.kubectl(&["patch", "pvc", name, "-p", &patch]).unwrap();
    }
    for name in claims {
        let due = |c: &PersistentVolumeClaim| {
            let status = c.status.clone().unwrap_or_default();
            let grows = status.allocated_resource_statuses.unwrap_or_default();
            let has = status.capacity.and_then(|capacity| capacity.get("storage").cloned());
            grows.get("storage").is_some_and(|told| told == "NodeResizePending")
                || has.is_some_and(|has| has.0 == size)
        };
        namespace.wait(name, "a volume that has grown", SOON, due).unwrap();
    }
    let pod = machine.pod().metadata.name.unwrap();
    namespace.kubectl(&["annotate", "pod", &pod, "look=again"]).unwrap();
}

/// Waits until a disk of the guest's is so large, in MiB.
fn wait_size(
    namespace: &Namespace<'_>,
    machine: &mut Machine<'_>,
    serial: &str,
    mib: std::ops::RangeInclusive<u64>,
) {
    let size = || {
        let bytes: u64 = machine.sh(&format!("blockdev --getsize64 {}", device(serial))).parse()?;
        Ok(mib.contains(&(bytes >> 20)).then_some(()))
    };
    namespace.until("a disk that has grown", BOOT, size).unwrap();
}

/// An empty claim gets a disk image, and the machine's volumes grow under it.
#[test]
fn a_machine_moves_with_its_volumes_and_they_grow() {
    prepare_volumes().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.volumes().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    claim(&namespace, "data", "Block", "ReadWriteMany", "8Mi");
    claim(&namespace, "base", "Block", "ReadWriteMany", "16Mi");
    claim(&namespace, "files", "Filesystem", "ReadWriteMany", "128Mi");
    let manifest = Manifest {
        name: "vm",
        user_data: &writers(&WRITTEN),
        volumes: "{name: data, persistentVolumeClaim: {claimName: data}}, \
                  {name: files, persistentVolumeClaim: {claimName: files}}, \
                  {name: base, ephemeral: {persistentVolumeClaim: {claimName: base}}}",
        disks: "{name: data, serial: data, disk: {bus: virtio}}, {name: files, serial: files, disk: {bus: virtio}}, \
                {name: base, serial: base, disk: {bus: virtio}}",
        ..Default::default()
    };
    let mut machine = Machine::start(&namespace, &manifest);
    let instance = machine.instance();
    let told = verdict(&instance).unwrap();
    assert_eq!((told["data"], told["base"]), (Fate::Shared, Fate::Copied), "{told:?}");
    assert_eq!(machine.sh(&format!("blockdev --getsize64 {}", device("data"))), "8388608");
    // The file system may take a part of what was asked for.
    wait_size(&namespace, &mut machine, "files", 115..=128);
    machine.sh(&format!("echo overlaid | dd of={} conv=notrunc,fsync", device("base")));

    write_on(&namespace, &mut machine, &WRITTEN);
    let source = machine.pod();
    let migration = machine.migrate();
    machine.has_moved(&migration, &source);
    expand(&namespace, &machine, &["data", "files"], "256Mi");
    wait_size(&namespace, &mut machine, "data", 256..=256);
    wait_size(&namespace, &mut machine, "files", 200..=256);
    write_on(&namespace, &mut machine, &WRITTEN);
    let hash = written(&mut machine, "data");
    assert_eq!(in_pod(&namespace, &machine, "data", BLOCKS, "sha256sum | cut -d ' ' -f 1"), hash);
    written(&mut machine, "files");
    // What the guest wrote over the other one went along, and not to the claim.
    machine.sh("echo 3 >/proc/sys/vm/drop_caches");
    assert_eq!(machine.sh(&format!("head -n 1 {}", device("base"))), "overlaid");
    assert_eq!(in_pod(&namespace, &machine, "base", 1, "tr -d '\\000' | wc -c"), "0");
}

/// A guest installs itself on a device and is started from it.
#[test]
fn long_a_machine_boots_from_a_block_device() {
    prepare_volumes().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.volumes().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    claim(&namespace, "system", "Block", "ReadWriteOnce", "256Mi");
    let installs = Manifest {
        name: "vm",
        run: "Manual",
        volumes: "{name: system, persistentVolumeClaim: {claimName: system}}",
        disks: "{name: system, serial: system, disk: {bus: virtio}}",
        ..Default::default()
    };
    namespace.apply(&installs.machine()).unwrap();
    namespace.virtctl(&["start", "vm"]).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (mut console, _running) = namespace.shell("vm").unwrap();
    let copy = format!("dd if=/dev/vda of={} bs=1M conv=fsync", device("system"));
    console.sh(&copy, BOOT).unwrap();
    namespace.kubectl(&["delete", "vm", "vm"]).unwrap();
    namespace.wait_gone::<v1::VirtualMachineInstance>("vm", SOON).unwrap();

    let boots = installs
        .instance()
        .replace("containerDisk: {image: 'podvirt/disk-tiny:dev'}", "emptyDisk: {capacity: 1Mi}");
    let boots =
        boots.replace("{name: system, serial: system,", "{name: system, serial: system, bootOrder: 1,");
    namespace.apply(&boots).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (mut console, _running) = namespace.shell("vm").unwrap();
    assert_eq!(console.sh(&format!("blockdev --getsize64 {}", device("system")), SOON).unwrap(), "268435456");
    let stays = |i: &v1::VirtualMachineInstance| {
        let condition = i.status.conditions.iter().find(|c| c.r#type.as_str() == "LiveMigratable");
        condition.is_some_and(|c| {
            c.message
                .as_deref()
                .is_some_and(|m| m.contains("PersistentVolumeClaim system is not ReadWriteMany"))
        })
    };
    namespace.wait("vm", "a machine that cannot be moved", SOON, stays).unwrap();
}
