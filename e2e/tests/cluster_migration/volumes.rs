//! Volumes that are plugged into a running machine and unplugged, and what becomes of them when it moves.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use podvirt_api::names::label;
use podvirt_api::v1::{self, VolumePhase, VolumeStatus};
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, Namespace, Node, SOON, Security, prepare_volumes};

use crate::claims::{BLOCKS, write_on, writers, written};
use crate::failures::kill_handler;
use crate::moving::Machine;
use crate::storage::claim;

/// What the instance tells of a volume.
fn told<'i>(instance: &'i v1::VirtualMachineInstance, volume: &str) -> Option<&'i VolumeStatus> {
    instance.status.volume_status.iter().find(|told| told.name == volume)
}

/// Waits until the guest has the disks of these volumes.
pub(crate) fn wait_ready(namespace: &Namespace<'_>, machine: &Machine<'_>, volumes: &[&str]) {
    let ready = |instance: &v1::VirtualMachineInstance| {
        volumes.iter().all(|volume| {
            told(instance, volume)
                .is_some_and(|told| told.phase == Some(VolumePhase::Ready) && !told.target.is_empty())
        })
    };
    namespace.wait(machine.name(), "plugged disks", BOOT, ready).unwrap();
}

/// Waits until nothing is told of a volume any more.
pub(crate) fn wait_gone(namespace: &Namespace<'_>, machine: &Machine<'_>, volume: &str) {
    let gone = |instance: &v1::VirtualMachineInstance| told(instance, volume).is_none();
    namespace.wait(machine.name(), "a volume that is gone", BOOT, gone).unwrap();
}

/// Names of the claims that the namespace's attachment pods hold, a list for each pod that is not being deleted.
fn attached(namespace: &Namespace<'_>) -> Vec<Vec<String>> {
    let of_app = ListParams::default().labels(&format!("{}={}", label::APP, label::APP_HOTPLUG));
    let pods = namespace.cluster().block_on(namespace.api::<Pod>().list(&of_app)).unwrap().items;
    let living = pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let claims = |pod: Pod| {
        let volumes = pod.spec.unwrap().volumes.unwrap_or_default().into_iter();
        let mut names: Vec<String> =
            volumes.filter_map(|volume| Some(volume.persistent_volume_claim?.claim_name)).collect();
        names.sort();
        names
    };
    living.map(claims).collect()
}

/// Serial numbers of the guest's disks on the virtio bus.
fn serials(machine: &mut Machine<'_>) -> String {
    machine.sh("for d in /sys/block/vd*; do cat $d/serial; echo; done | tr '\\n' ' '")
}

/// A disk image and a device come while the guest runs, are written while it moves, and go; the claims are free then.
#[test]
fn volumes_come_move_and_go_while_the_guest_writes_them() {
    prepare_volumes().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.volumes().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    claim(&namespace, "files", "Filesystem", "ReadWriteMany", "64Mi");
    claim(&namespace, "device", "Block", "ReadWriteMany", "16Mi");
    let manifest = Manifest { name: "vm", user_data: &writers(&[]), ..Default::default() };
    let mut machine = Machine::start(&namespace, &manifest);
    for volume in ["files", "device"] {
        let named = format!("--volume-name={volume}");
        namespace.virtctl(&["addvolume", "vm", &named, "--bus=virtio"]).unwrap();
    }
    wait_ready(&namespace, &machine, &["device", "files"]);
    namespace
        .until("one attachment pod", SOON, || {
            let pods = attached(&namespace);
            Ok((pods == [["device".to_owned(), "files".to_owned()]]).then_some(()))
        })
        .unwrap();
    let seen = serials(&mut machine);
    assert!(seen.contains("files") && seen.contains("device"), "{seen}");
    machine.sh("for s in files device; do writer $s >/dev/null 2>&1 & done");
    write_on(&namespace, &mut machine, &["files", "device"]);

    let source = machine.pod();
    let migration = machine.migrate();
    machine.has_moved(&migration, &source);
    write_on(&namespace, &mut machine, &["files", "device"]);
    wait_ready(&namespace, &machine, &["device", "files"]);
    written(&mut machine, "files");
    let device = written(&mut machine, "device");

    // The template has lost them as well: they do not come back with the next start.
    for volume in ["files", "device"] {
        namespace.virtctl(&["removevolume", "vm", &format!("--volume-name={volume}")]).unwrap();
        wait_gone(&namespace, &machine, volume);
    }
    let left = serials(&mut machine);
    assert!(!left.contains("files") && !left.contains("device"), "{left}");
    namespace.until("no attachment pod", SOON, || Ok(attached(&namespace).is_empty().then_some(()))).unwrap();
    // What was written stays on the claim, and comes back with it, here on the SCSI bus.
    namespace.virtctl(&["addvolume", "vm", "--volume-name=device"]).unwrap();
    wait_ready(&namespace, &machine, &["device"]);
    let disk = "until disk=$(ls /sys/block | grep ^sd); do usleep 50000; done";
    let read = format!("{disk}; head -c {} /dev/$disk | sha256sum | cut -d ' ' -f 1", BLOCKS * 4096);
    assert_eq!(machine.sh(&read), device);
    namespace.virtctl(&["removevolume", "vm", "--volume-name=device"]).unwrap();
    wait_gone(&namespace, &machine, "device");
    for name in ["files", "device"] {
        namespace.kubectl(&["delete", "pvc", name, "--wait=false"]).unwrap();
        namespace.wait_gone::<PersistentVolumeClaim>(name, SOON).unwrap();
    }
}

/// How often a disk comes and goes under a guest that writes it.
const CYCLES: u32 = 200;
/// Of these, after how many virt-handler is killed while a disk is on its way.
const KILLS: u32 = 20;

/// Disks come and go two hundred times under a guest that writes them, on both buses in turns, while virt-handler and virt-controller
/// are killed now and then. Every block is read back, and at the end nothing is left.
#[test]
fn long_disks_come_and_go_two_hundred_times_under_a_guest_that_writes() {
    prepare_volumes().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.volumes().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    claim(&namespace, "files", "Filesystem", "ReadWriteOnce", "64Mi");
    claim(&namespace, "device", "Block", "ReadWriteOnce", "16Mi");
    let mut machine = Machine::start(&namespace, &Manifest { name: "vm", ..Default::default() });
    for cycle in 0..CYCLES {
        let volume = if cycle % 2 == 0 { "files" } else { "device" };
        let bus = if cycle / 2 % 2 == 0 { "virtio" } else { "scsi" };
        let (named, on) = (format!("--volume-name={volume}"), format!("--bus={bus}"));
        namespace.virtctl(&["addvolume", "vm", &named, &on]).unwrap();
        let kills_at = |place| cycle % KILLS == place;
        if kills_at(KILLS - 1) {
            kill_daemons(&cluster, &machine.node());
        }
        wait_ready(&namespace, &machine, &[volume]);
        if kills_at(KILLS - 1) {
            // The console ended with virt-handler.
            wait_daemons(&cluster);
            machine.goes_on();
        }
        // What this cycle writes, and what the last one of this claim has left.
        let disk = if bus == "virtio" { "/dev/vdc" } else { "/dev/sda" };
        let found = machine
            .sh(&format!("until [ -b {disk} ]; do usleep 50000; done; head -c 8 {disk} | tr -d '\\0'"));
        let left = if cycle < 2 { String::new() } else { format!("{:08}", cycle - 2) };
        assert_eq!(found, left, "cycle {cycle}");
        let write = format!(
            "yes {cycle:08} | head -c 1048576 >/tmp/w; dd if=/tmp/w of={disk} bs=64k conv=notrunc 2>/dev/null; sync; \
             echo 3 >/proc/sys/vm/drop_caches; head -c 1048576 {disk} | cmp - /tmp/w && echo same"
        );
        assert_eq!(machine.sh(&write), "same", "cycle {cycle}");
        namespace.virtctl(&["removevolume", "vm", &named]).unwrap();
        if kills_at(KILLS / 2) {
            kill_daemons(&cluster, &machine.node());
        }
        wait_gone(&namespace, &machine, volume);
        if kills_at(KILLS / 2) {
            wait_daemons(&cluster);
            machine.goes_on();
        }
    }
    namespace.until("no attachment pod", SOON, || Ok(attached(&namespace).is_empty().then_some(()))).unwrap();
    let pod = machine.pod().metadata.name.unwrap();
    let left = [
        "exec",
        &pod,
        "-c",
        "compute",
        "--",
        "sh",
        "-c",
        "ls /var/run/kubevirt/hotplug-disks /dev/fdset | grep -v :",
    ];
    assert_eq!(namespace.kubectl(&left).unwrap_or_default().trim(), "");
}

/// Kills virt-handler of the machine's node and virt-controller. Pods are made anew: a container that is killed again and again
/// the kubelet starts after pauses that grow to minutes.
fn kill_daemons(cluster: &Cluster, node: &Node<'_>) {
    kill_handler(node);
    cluster.kill_daemon("virt-handler", Some(&node.name())).unwrap();
    cluster.kill_daemon("virt-controller", None).unwrap();
}

/// Waits until the successors serve.
fn wait_daemons(cluster: &Cluster) {
    for workload in ["daemonset/virt-handler", "deployment/virt-controller"] {
        cluster.kubectl(&["-n", "kubevirt", "rollout", "status", workload, "--timeout=60s"]).unwrap();
    }
}
