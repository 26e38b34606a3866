//! Snapshots of machines on the test bed's own storage, machines that return to them, and machines made from them.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::api::ListParams;
use podvirt_api::cdi::DataVolume;
use podvirt_api::csi::VolumeSnapshot;
use podvirt_api::v1;
use podvirt_e2e::cluster::{
    BOOT, Cluster, Manifest, Namespace, Running, SOON, Security, prepare_storage, prepare_volumes,
};
use podvirt_e2e::{Console, artefacts};

/// A command in the guest.
const COMMAND: Duration = Duration::from_secs(30);
/// An import by CDI.
const FILLED: Duration = Duration::from_secs(240);
/// Debian's start on a busy machine without KVM.
const LONG_BOOT: Duration = Duration::from_secs(600);
/// The group of snapshots and restores.
const SNAPSHOT: &str = "snapshot.kubevirt.io/v1beta1";

/// Makes a claim of a class.
fn claim(namespace: &Namespace<'_>, name: &str, class: &str, mode: &str) {
    let manifest = format!(
        "{{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: {name}}}, spec: {{storageClassName: {class}, \
         volumeMode: {mode}, accessModes: [ReadWriteMany], resources: {{requests: {{storage: 64Mi}}}}}}}}"
    );
    namespace.apply(&manifest).unwrap();
}

fn wait_bound(namespace: &Namespace<'_>, name: &str) {
    let bound = |c: &PersistentVolumeClaim| {
        c.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Bound"))
    };
    namespace.wait(name, "a bound claim", SOON, bound).unwrap();
}

/// A machine with the claim `data` as a disk.
fn manifest(run: &'static str) -> Manifest<'static> {
    Manifest {
        name: "vm",
        run,
        volumes: "{name: data, persistentVolumeClaim: {claimName: data}}",
        disks: "{name: data, serial: data, disk: {bus: virtio}}",
        ..Default::default()
    }
}

fn snapshot(namespace: &Namespace<'_>, name: &str, more: &str) {
    let manifest = format!(
        "{{apiVersion: {SNAPSHOT}, kind: VirtualMachineSnapshot, metadata: {{name: {name}}}, spec: {{source: {{apiGroup: \
         kubevirt.io, kind: VirtualMachine, name: vm}}{more}}}}}"
    );
    namespace.apply(&manifest).unwrap();
}

fn wait_taken(namespace: &Namespace<'_>, name: &str) -> v1::VirtualMachineSnapshot {
    let ready = |one: &v1::VirtualMachineSnapshot| one.status.ready_to_use == Some(true);
    namespace.wait(name, "a snapshot that is ready", SOON, ready).unwrap()
}

fn restore(namespace: &Namespace<'_>, name: &str, snapshot: &str, target: &str, more: &str) {
    let manifest = format!(
        "{{apiVersion: {SNAPSHOT}, kind: VirtualMachineRestore, metadata: {{name: {name}}}, spec: {{target: {{apiGroup: \
         kubevirt.io, kind: VirtualMachine, name: {target}}}, virtualMachineSnapshotName: {snapshot}{more}}}}}"
    );
    namespace.apply(&manifest).unwrap();
}

fn wait_restored(namespace: &Namespace<'_>, name: &str) -> v1::VirtualMachineRestore {
    let complete = |one: &v1::VirtualMachineRestore| one.status.complete == Some(true);
    namespace.wait(name, "a restore that is complete", FILLED, complete).unwrap()
}

fn machine(namespace: &Namespace<'_>, name: &str) -> v1::VirtualMachine {
    namespace.wait(name, "the machine", SOON, |_| true).unwrap()
}

/// The claim of the machine's disk `data`.
fn claim_of(vm: &v1::VirtualMachine) -> String {
    let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref()).unwrap();
    let volume = spec.volumes.iter().find(|volume| volume.name == "data").unwrap();
    volume.persistent_volume_claim.as_ref().unwrap().claim_name.clone()
}

struct Guest {
    // In this order: the console ends with the program.
    console: Console,
    _running: Running,
}

impl Guest {
    fn of(namespace: &Namespace<'_>, name: &str) -> Guest {
        namespace.wait_phase(name, "Running", BOOT).unwrap();
        let (console, running) = namespace.shell(name).unwrap();
        Guest { console, _running: running }
    }

    fn start(namespace: &Namespace<'_>, name: &str) -> Guest {
        namespace.virtctl(&["start", name]).unwrap();
        Guest::of(namespace, name)
    }

    fn sh(&mut self, command: &str) -> String {
        self.console.sh(command, COMMAND).unwrap().trim().to_owned()
    }

    /// Writes a word to the beginning of the disk `data`.
    fn write(&mut self, word: &str) {
        self.sh(&format!("printf '%-16s' {word} | dd of={DATA} bs=16 conv=notrunc,fsync 2>/dev/null"));
    }

    /// The word there.
    fn read(&mut self) -> String {
        self.sh(&format!("head -c 16 {DATA}"))
    }
}

/// The disk `data`, for a shell in the guest.
const DATA: &str = "/dev/$(cd /sys/block; grep -lx data */serial | cut -d / -f 1)";

fn stop(namespace: &Namespace<'_>, name: &str) {
    namespace.virtctl(&["stop", name, "--grace-period=0", "--force"]).unwrap();
    namespace.wait_gone::<v1::VirtualMachineInstance>(name, SOON).unwrap();
}

fn conditions(all: &[v1::SnapshotCondition]) -> String {
    let words = all.iter().map(|one| {
        format!("{}={} ({})", one.r#type.as_str(), one.status, one.reason.as_deref().unwrap_or_default())
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Nothing of the namespace is held any more.
fn is_free(vm: &v1::VirtualMachine) -> bool {
    vm.status.snapshot_in_progress.is_none()
        && vm.status.restore_in_progress.is_none()
        && vm.finalizers().iter().all(|one| !one.contains("snapshot"))
}

/// A snapshot of a machine that runs brings back what the machine wrote before.
#[test]
fn a_machine_returns_to_its_snapshot() {
    prepare_volumes().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.volumes().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    claim(&namespace, "data", "bed-block", "Block");
    wait_bound(&namespace, "data");
    namespace.apply(&manifest("Always").machine()).unwrap();
    let mut guest = Guest::of(&namespace, "vm");
    guest.write("first");
    snapshot(&namespace, "s", "");
    let taken = wait_taken(&namespace, "s");
    let told: Vec<&str> = taken.status.indications.iter().map(v1::Indication::as_str).collect();
    assert_eq!(told, ["NoGuestAgent", "Online"]);
    let volumes = taken.status.snapshot_volumes.unwrap();
    assert_eq!((volumes.included_volumes, volumes.excluded_volumes.len()), (vec!["data".to_owned()], 2));
    let vm = namespace.wait("vm", "a machine that is let go", SOON, is_free).unwrap();
    let told =
        |name: &str| vm.status.volume_snapshot_statuses.iter().find(|one| one.name == name).unwrap().enabled;
    assert_eq!((told("data"), told("root")), (true, false));
    guest.write("second");
    drop(guest);

    // The target has to be off.
    restore(&namespace, "r", "s", "vm", "");
    let waits = |one: &v1::VirtualMachineRestore| conditions(&one.status.conditions).contains("powered off");
    namespace.wait("r", "a restore that waits", SOON, waits).unwrap();
    stop(&namespace, "vm");
    let done = wait_restored(&namespace, "r");
    let vm = machine(&namespace, "vm");
    assert!(is_free(&vm), "{:?}", vm.status);
    assert_eq!(claim_of(&vm), format!("restore-{}-data", done.uid().unwrap()));
    let own: PersistentVolumeClaim = namespace.wait(&claim_of(&vm), "the claim", SOON, |_| true).unwrap();
    assert_eq!(own.owner_references()[0].uid, vm.uid().unwrap());
    let mut guest = Guest::start(&namespace, "vm");
    assert_eq!(guest.read(), "first");
    drop(guest);

    // A clone of the machine as it is goes with the machine that it has made.
    let clone = "{apiVersion: clone.kubevirt.io/v1beta1, kind: VirtualMachineClone, metadata: {name: c}, spec: {source: \
                 {apiGroup: kubevirt.io, kind: VirtualMachine, name: vm}}}";
    namespace.apply(clone).unwrap();
    let made = |one: &v1::VirtualMachineClone| {
        one.status.phase == Some(v1::VirtualMachineClonePhase::Succeeded) && one.status.restore_name.is_none()
    };
    let cloned = namespace.wait("c", "a clone that has succeeded", SOON, made).unwrap();
    namespace.kubectl(&["delete", "vm", &cloned.status.target_name.unwrap()]).unwrap();
    namespace.wait_gone::<v1::VirtualMachineClone>("c", SOON).unwrap();

    // Without its snapshot nothing is left of it.
    namespace.kubectl(&["delete", "vmsnapshot", "s"]).unwrap();
    namespace.wait_gone::<v1::VirtualMachineSnapshot>("s", SOON).unwrap();
    let left = || {
        let all = cluster.block_on(namespace.api::<VolumeSnapshot>().list(&ListParams::default()))?.items;
        Ok(all.is_empty().then_some(()))
    };
    namespace.until("no VolumeSnapshots", SOON, left).unwrap();
}

/// A machine that is made of a snapshot, and a clone, have what the source had, and identities of their own.
#[test]
fn long_new_machines_are_made_from_another_one() {
    prepare_volumes().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.volumes().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    claim(&namespace, "data", "bed-wait", "Filesystem");
    namespace.apply(&manifest("Manual").machine()).unwrap();
    namespace.kubectl(&["label", "vm", "vm", "keep=1", "drop=1"]).unwrap();
    let mut guest = Guest::start(&namespace, "vm");
    guest.write("first");
    let uuid = guest.sh("cat /sys/class/dmi/id/product_uuid");
    snapshot(&namespace, "s", "");
    wait_taken(&namespace, "s");
    guest.write("second");
    // Of the machine as it is, while it runs.
    let clone = "{apiVersion: clone.kubevirt.io/v1beta1, kind: VirtualMachineClone, metadata: {name: c}, spec: {source: \
                 {apiGroup: kubevirt.io, kind: VirtualMachine, name: vm}, labelFilters: ['*', '!drop'], \
                 newMacAddresses: {default: '02:00:00:00:77:01'}, newSMBiosSerial: serial-c}}";
    namespace.apply(clone).unwrap();
    restore(
        &namespace,
        "r",
        "s",
        "other",
        ", volumeRestorePolicy: PrefixTargetName, patches: ['{\"op\": \"add\", \"path\": \"/metadata/labels/new\", \"value\": \"1\"}']",
    );
    wait_restored(&namespace, "r");
    let other = machine(&namespace, "other");
    assert_eq!(claim_of(&other), "other-data");
    assert_eq!(other.labels().get("new").map(String::as_str), Some("1"));
    let succeeded =
        |one: &v1::VirtualMachineClone| one.status.phase == Some(v1::VirtualMachineClonePhase::Succeeded);
    let cloned = namespace.wait("c", "a clone that has succeeded", FILLED, succeeded).unwrap();
    let copy = cloned.status.target_name.unwrap();
    assert!(copy.starts_with("clone-vm-"), "{copy}");
    let labels = machine(&namespace, &copy).labels().clone();
    assert!(labels.contains_key("keep") && !labels.contains_key("drop"), "{labels:?}");
    drop(guest);
    stop(&namespace, "vm");

    // Storage that waits for its pod has been left to the machines.
    let mut guest = Guest::start(&namespace, "other");
    assert_eq!(guest.read(), "first");
    assert_ne!(guest.sh("cat /sys/class/dmi/id/product_uuid"), uuid);
    drop(guest);
    stop(&namespace, "other");
    let mut guest = Guest::start(&namespace, &copy);
    assert_eq!(guest.read(), "second");
    assert_ne!(guest.sh("cat /sys/class/dmi/id/product_uuid"), uuid);
    assert_eq!(guest.sh("cat /sys/class/net/eth0/address"), "02:00:00:00:77:01");
    drop(guest);
    // What the clone took for it is gone once the claims are bound.
    let cleaned = |one: &v1::VirtualMachineClone| one.status.restore_name.is_none();
    namespace.wait("c", "a clone that has cleaned up", SOON, cleaned).unwrap();
    let snapshots = || {
        let all =
            cluster.block_on(namespace.api::<v1::VirtualMachineSnapshot>().list(&ListParams::default()))?;
        Ok((all.items.len() == 1).then_some(()))
    };
    namespace.until("the user's snapshot alone", SOON, snapshots).unwrap();
    // It goes with its machine.
    namespace.kubectl(&["delete", "vm", &copy]).unwrap();
    namespace.wait_gone::<v1::VirtualMachineClone>("c", SOON).unwrap();
}

/// In its own place, each claim under its own name; by the policy that stops the machine.
#[test]
fn long_a_machine_is_stopped_and_restored_in_place() {
    prepare_volumes().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.volumes().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    claim(&namespace, "data", "bed-block", "Block");
    wait_bound(&namespace, "data");
    namespace.apply(&manifest("Always").machine()).unwrap();
    let mut guest = Guest::of(&namespace, "vm");
    guest.write("first");
    snapshot(&namespace, "s", "");
    wait_taken(&namespace, "s");
    guest.write("second");
    drop(guest);
    let before: PersistentVolumeClaim = namespace.wait("data", "the claim", SOON, |_| true).unwrap();
    restore(&namespace, "r", "s", "vm", ", targetReadinessPolicy: StopTarget, volumeRestorePolicy: InPlace");
    wait_restored(&namespace, "r");
    let vm = machine(&namespace, "vm");
    assert_eq!((claim_of(&vm), is_free(&vm)), ("data".to_owned(), true));
    let after: PersistentVolumeClaim = namespace.wait("data", "the claim", SOON, |_| true).unwrap();
    assert_ne!(before.uid(), after.uid());
    let mut guest = Guest::start(&namespace, "vm");
    assert_eq!(guest.read(), "first");
}

/// virt-controller dies again and again while a snapshot is taken and a machine restored: nothing is lost, nothing is left.
#[test]
fn long_snapshots_and_restores_outlive_their_controller() {
    prepare_volumes().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.volumes().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    claim(&namespace, "data", "bed-block", "Block");
    wait_bound(&namespace, "data");
    namespace.apply(&manifest("Halted").machine()).unwrap();
    let kill = || {
        let kill = [
            "-n",
            "kubevirt",
            "delete",
            "pod",
            "-l",
            "kubevirt.io=virt-controller",
            "--force",
            "--grace-period=0",
        ];
        cluster.kubectl(&kill).unwrap();
    };
    for round in 0..3 {
        let (taken, restored) = (format!("s{round}"), format!("r{round}"));
        snapshot(&namespace, &taken, "");
        std::thread::sleep(Duration::from_millis(300 * (round + 1)));
        kill();
        wait_taken(&namespace, &taken);
        restore(&namespace, &restored, &taken, "vm", "");
        std::thread::sleep(Duration::from_millis(400 * (round + 1)));
        kill();
        wait_restored(&namespace, &restored);
        let vm = namespace.wait("vm", "a machine that is let go", SOON, is_free).unwrap();
        assert!(claim_of(&vm).starts_with("restore-"), "{}", claim_of(&vm));
    }
    // The first one and that of each restore, and the snapshot of each.
    let claims = cluster
        .block_on(namespace.api::<PersistentVolumeClaim>().list(&ListParams::default()))
        .unwrap()
        .items;
    assert_eq!(claims.len(), 4, "{:?}", claims.iter().map(ResourceExt::name_any).collect::<Vec<_>>());
    let volumes =
        cluster.block_on(namespace.api::<VolumeSnapshot>().list(&ListParams::default())).unwrap().items;
    assert_eq!(volumes.len(), 3);
    // A machine that is deleted while a snapshot of it is taken goes all the same.
    snapshot(&namespace, "last", "");
    namespace.kubectl(&["delete", "vm", "vm", "--wait=false"]).unwrap();
    kill();
    namespace.wait_gone::<v1::VirtualMachine>("vm", SOON).unwrap();
    namespace.kubectl(&["delete", "vmsnapshot,vmrestore", "--all"]).unwrap();
}

/// A guest with an agent stands still while it is taken, and is thawed.
#[test]
fn long_a_guest_with_an_agent_is_frozen_meanwhile() {
    prepare_volumes().unwrap();
    // Made before this process is in the cluster's network. The usual guest has no agent.
    let image = artefacts::image("disk-debian").unwrap();
    let cluster = Cluster::get().unwrap();
    cluster.load(&image).unwrap();
    let _storage = cluster.volumes().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    claim(&namespace, "data", "bed-block", "Block");
    wait_bound(&namespace, "data");
    let of_debian = manifest("Always").machine().replace("disk-tiny", "disk-debian");
    namespace.apply(&of_debian.replace("guest: 256Mi", "guest: 512Mi")).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (mut console, _running) =
        namespace.until("a shell", LONG_BOOT, || Ok(namespace.shell("vm").ok())).unwrap();
    let agent = |i: &v1::VirtualMachineInstance| {
        i.status.conditions.iter().any(|c| c.r#type.as_str() == "AgentConnected" && c.status == "True")
    };
    namespace.wait("vm", "a connected agent", LONG_BOOT, agent).unwrap();
    let files = format!("mkfs.ext4 -q {DATA} && mount {DATA} /mnt && echo first >/mnt/word");
    console.sh(&files, LONG_BOOT).unwrap();
    snapshot(&namespace, "s", "");
    let taken = wait_taken(&namespace, "s");
    let told: Vec<&str> = taken.status.indications.iter().map(v1::Indication::as_str).collect();
    assert_eq!(told, ["GuestAgent", "Online"]);
    let thawed = |i: &v1::VirtualMachineInstance| i.status.fs_freeze_status.is_none();
    namespace.wait("vm", "a guest that is thawed", SOON, thawed).unwrap();
    let log = cluster
        .kubectl(&["-n", "kubevirt", "logs", "-l", "kubevirt.io=virt-controller", "--tail=400"])
        .unwrap();
    let said = |what: &str| log.lines().any(|line| line.contains(what) && line.contains(namespace.name()));
    assert!(said("file systems are frozen") && said("file systems are thawed"), "{log}");
}

/// A machine whose disk CDI has filled is restored with a DataVolume that takes over the restored claim.
#[test]
fn long_a_data_volume_is_restored_with_its_machine() {
    prepare_storage().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.storage().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let vm = "{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: vm}, spec: {runStrategy: Manual, \
        dataVolumeTemplates: [{metadata: {name: root}, spec: {source: {registry: {url: 'docker://docker.io/podvirt/disk-tiny:dev', \
        pullMethod: node}}, storage: {storageClassName: bed-filesystem, resources: {requests: {storage: 64Mi}}}}}], \
        template: {spec: {terminationGracePeriodSeconds: 5, domain: {memory: {guest: 256Mi}, \
        devices: {disks: [{name: root, serial: data, disk: {bus: virtio}}]}}, volumes: [{name: root, dataVolume: {name: root}}]}}}}";
    namespace.apply(vm).unwrap();
    namespace.wait::<DataVolume>("root", "filled", FILLED, |data| data.status.phase == "Succeeded").unwrap();
    let mut guest = Guest::start(&namespace, "vm");
    let at = "/dev/vda bs=512 seek=131000 conv=notrunc,fsync";
    guest.sh(&format!("echo first | dd of={at} 2>/dev/null"));
    snapshot(&namespace, "s", "");
    wait_taken(&namespace, "s");
    guest.sh(&format!("echo second | dd of={at} 2>/dev/null"));
    drop(guest);
    stop(&namespace, "vm");
    restore(&namespace, "r", "s", "vm", "");
    let done = wait_restored(&namespace, "r");
    let name = done.status.restores[0].data_volume_name.clone().unwrap();
    assert_eq!(done.status.deleted_data_volumes, ["root"]);
    let data: DataVolume = namespace
        .wait(&name, "taken over", SOON, |data: &DataVolume| data.status.phase == "Succeeded")
        .unwrap();
    assert_eq!(data.metadata.owner_references.unwrap()[0].name, "vm");
    namespace.wait_gone::<DataVolume>("root", SOON).unwrap();
    restore(&namespace, "again", "s", "other", "");
    wait_restored(&namespace, "again");
    for name in ["vm", "other"] {
        let mut guest = Guest::start(&namespace, name);
        let word = guest.sh("dd if=/dev/vda bs=512 skip=131000 count=1 2>/dev/null | head -n 1");
        assert_eq!(word, "first", "{name}");
        drop(guest);
        stop(&namespace, name);
    }
    namespace.kubectl(&["delete", "vm", "vm", "other"]).unwrap();
    namespace.wait_gone::<PersistentVolumeClaim>(&name, FILLED).unwrap();
}
