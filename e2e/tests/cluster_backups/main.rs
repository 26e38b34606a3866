//! Backups of a running machine's disk, whole and of what has changed, on the test bed's own storage.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

mod pull;

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::ListParams;
use podvirt_api::v1;
use podvirt_api::v1::{BackupConditionType as Condition, ChangedBlockTrackingState as Tracking};
use podvirt_e2e::Console;
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, Namespace, SOON, Security, prepare_volumes};
use serde_json::json;

/// A command in the guest.
const COMMAND: Duration = Duration::from_secs(60);
/// Time for a backup, and for a program that looks at one.
const COPIED: Duration = Duration::from_secs(180);
/// What an incremental backup of one mebibyte may be large at most, bytes.
const SMALL: u64 = 4 << 20;
/// The group of backups.
const BACKUP: &str = "backup.kubevirt.io/v1alpha1";

/// Makes a claim that both nodes can have.
fn claim(namespace: &Namespace<'_>, name: &str, mode: &str, size: &str) {
    let class = if mode == "Block" { "bed-block" } else { "bed-filesystem" };
    let manifest = format!(
        "{{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: {name}}}, spec: {{storageClassName: {class}, \
         volumeMode: {mode}, accessModes: [ReadWriteMany], resources: {{requests: {{storage: {size}}}}}}}}}"
    );
    namespace.apply(&manifest).unwrap();
}

/// Starts a machine with the claim `data` as its disk, whose changes are tracked.
fn start(namespace: &Namespace<'_>) {
    let manifest = Manifest {
        name: "vm",
        run: "Halted",
        volumes: "{name: data, persistentVolumeClaim: {claimName: data}}",
        disks: "{name: data, disk: {bus: virtio}}",
        ..Manifest::default()
    };
    namespace.apply(&manifest.machine()).unwrap();
    namespace.kubectl(&["label", "vm", "vm", "changedBlockTracking=true"]).unwrap();
    namespace.virtctl(&["start", "vm"]).unwrap();
    wait_tracked(namespace);
}

fn wait_tracked(namespace: &Namespace<'_>) {
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let enabled = |vm: &v1::VirtualMachine| {
        vm.status.changed_block_tracking.as_ref().is_some_and(|told| told.state == Tracking::Enabled)
    };
    namespace.wait("vm", "a machine whose changes are tracked", SOON, enabled).unwrap();
}

/// The machine's backend claim.
fn backend(namespace: &Namespace<'_>) -> PersistentVolumeClaim {
    let claims = namespace.api::<PersistentVolumeClaim>();
    let of_machine = ListParams::default().labels("persistent-state-for=vm");
    let claims = namespace.cluster().block_on(async { claims.list(&of_machine).await }).unwrap().items;
    assert_eq!(claims.len(), 1, "{claims:?}");
    claims.into_iter().next().unwrap()
}

/// Makes a tracker of the machine, of its name.
fn track(namespace: &Namespace<'_>) {
    let tracker = format!(
        "{{apiVersion: {BACKUP}, kind: VirtualMachineBackupTracker, metadata: {{name: vm}}, spec: {{source: {{apiGroup: \
         kubevirt.io, kind: VirtualMachine, name: vm}}}}}}"
    );
    namespace.apply(&tracker).unwrap();
}

/// How many bitmaps QEMU keeps in the running machine's only tracked disk.
fn bitmaps(namespace: &Namespace<'_>) -> usize {
    let pod = namespace.launcher("vm").unwrap().name_any();
    let asked = namespace.virsh(&pod, "vm", &["qemu-monitor-command"], &["{\"execute\": \"query-block\"}"]);
    asked.unwrap().matches("\"persistent\":true").count()
}

/// Writes a mebibyte that nothing else has, at this place of the disk.
fn write(console: &mut Console, at_mib: u32) {
    let command =
        format!("dd if=/dev/urandom of=/dev/vdc bs=1M count=1 seek={at_mib} conv=notrunc,fsync 2>&1");
    let told = console.sh(&command, COMMAND).unwrap();
    assert!(told.contains("1+0 records out"), "{told}");
}

fn back_up(namespace: &Namespace<'_>, name: &str, source: &str) -> v1::VirtualMachineBackup {
    namespace.apply(&manifest(name, source, "copies")).unwrap();
    let done = |one: &v1::VirtualMachineBackup| is(one, Condition::Done);
    namespace.wait(name, "a backup that is done", COPIED, done).unwrap()
}

fn manifest(name: &str, source: &str, target: &str) -> String {
    format!(
        "{{apiVersion: {BACKUP}, kind: VirtualMachineBackup, metadata: {{name: {name}}}, spec: {{source: {source}, \
         pvcName: {target}, skipQuiesce: true}}}}"
    )
}

fn is(backup: &v1::VirtualMachineBackup, condition: Condition) -> bool {
    backup.status.conditions.iter().any(|one| one.r#type == condition && one.status == "True")
}

/// Why a backup is done.
fn reason(backup: &v1::VirtualMachineBackup) -> String {
    let done = backup.status.conditions.iter().find(|one| one.r#type == Condition::Done);
    done.and_then(|done| done.reason.clone()).unwrap_or_default()
}

/// The file of a backup's only disk, below the claim.
fn file(backup: &v1::VirtualMachineBackup) -> String {
    let name = backup.name_any();
    let checkpoint = backup.status.checkpoint_name.as_deref().unwrap();
    format!("vm/{checkpoint}/{name}-data.qcow2")
}

/// What a script prints in a pod with the program qemu-img that has both claims, with their files' user.
fn look(namespace: &Namespace<'_>, script: &str) -> String {
    let claims = ["copies", "data"];
    let launcher = namespace.launcher("vm");
    let image = launcher.ok().and_then(|pod| {
        let containers = pod.spec.unwrap().containers;
        containers.into_iter().find(|one| one.name == "compute")?.image
    });
    let image = image.unwrap_or_else(|| "podvirt/virt-launcher:dev".to_owned());
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "look"}, "spec": {
        "restartPolicy": "Never",
        "securityContext": {"runAsUser": 107, "runAsGroup": 107, "fsGroup": 107, "runAsNonRoot": true,
            "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "look", "image": image, "command": ["sh", "-ec", script],
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": claims.map(|name| json!({"name": name, "mountPath": format!("/{name}")}))}],
        "volumes": claims.map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}})),
    }});
    namespace.apply(&pod.to_string()).unwrap();
    let over = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    };
    let pod: Pod = namespace.wait("look", "a pod that has ended", COPIED, over).unwrap();
    let told = namespace.kubectl(&["logs", "look"]).unwrap();
    assert_eq!(pod.status.unwrap().phase.as_deref(), Some("Succeeded"), "{told}");
    namespace.kubectl(&["delete", "pod", "look"]).unwrap();
    told
}

/// A full backup and those of what has changed, over a restart, an expansion of the claim and a move of the machine, make up what is on
/// the disk.
#[test]
fn long_incremental_backups_go_on_over_a_restart_an_expansion_and_a_move() {
    prepare_volumes().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.volumes().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    claim(&namespace, "data", "Filesystem", "64Mi");
    claim(&namespace, "copies", "Filesystem", "256Mi");
    start(&namespace);
    let (mut console, running) = namespace.shell("vm").unwrap();
    write(&mut console, 1);

    track(&namespace);
    let tracked = "{apiGroup: backup.kubevirt.io, kind: VirtualMachineBackupTracker, name: vm}";
    let full = back_up(&namespace, "full", tracked);
    assert_eq!(full.status.r#type.as_ref().map(v1::BackupType::as_str), Some("Full"), "{:?}", full.status);
    let volumes: Vec<_> = full.status.included_volumes.iter().map(|one| one.volume_name.as_str()).collect();
    assert_eq!(volumes, ["data"]);
    let mut backups = vec![full];
    let mut incremental = |namespace: &Namespace<'_>, name: &str| {
        let made = back_up(namespace, name, tracked);
        assert_eq!(
            made.status.r#type.as_ref().map(v1::BackupType::as_str),
            Some("Incremental"),
            "{:?}",
            made.status
        );
        backups.push(made);
    };
    write(&mut console, 8);
    incremental(&namespace, "first");
    drop((console, running));

    namespace.virtctl(&["restart", "vm"]).unwrap();
    let old = namespace.launcher("vm").unwrap().name_any();
    namespace.wait_gone::<Pod>(&old, BOOT).unwrap();
    wait_tracked(&namespace);
    let (mut console, running) = namespace.shell("vm").unwrap();
    write(&mut console, 16);
    incremental(&namespace, "restarted");
    drop((console, running));

    // The claim is expanded under the running guest: the disk grows, and its changes are tracked as before.
    let larger = r#"{"spec": {"resources": {"requests": {"storage": "96Mi"}}}}"#;
    namespace.kubectl(&["patch", "pvc", "data", "--type=merge", "-p", larger]).unwrap();
    let (mut console, running) = namespace.shell("vm").unwrap();
    let grown = || {
        let told = console.sh("cat /sys/block/vdc/size", COMMAND)?;
        Ok(told.trim().parse::<u64>().ok().filter(|sectors| *sectors > (64 << 20) / 512))
    };
    namespace.until("the disk has grown with its claim", BOOT, grown).unwrap();
    write(&mut console, 70);
    incremental(&namespace, "grown");
    // That of the backup, and that of the backup before, from which it went on: the tracker has left the others behind.
    assert_eq!(bitmaps(&namespace), 2);
    drop((console, running));

    let modes = backend(&namespace).spec.unwrap().access_modes.unwrap_or_default();
    let is_shared = modes.iter().any(|mode| mode == "ReadWriteMany");
    namespace.virtctl(&["migrate", "vm"]).unwrap();
    let moved = |vmi: &v1::VirtualMachineInstance| {
        vmi.status.migration_state.as_ref().is_some_and(|state| state.completed == Some(true))
    };
    let vmi: v1::VirtualMachineInstance =
        namespace.wait("vm", "a machine that has moved", BOOT, moved).unwrap();
    assert_ne!(vmi.status.migration_state.and_then(|state| state.failed), Some(true));
    let (mut console, running) = namespace.shell("vm").unwrap();
    write(&mut console, 24);
    let last = back_up(&namespace, "moved", tracked);
    // libvirt does not copy bitmaps to another backend claim, which virt-controller makes where the machine's is ReadWriteOnce.
    let kind = if is_shared { "Incremental" } else { "Full" };
    assert_eq!(last.status.r#type.as_ref().map(v1::BackupType::as_str), Some(kind), "{:?}", last.status);
    backups.push(last);
    console.sh("sync", COMMAND).unwrap();
    drop((console, running));

    namespace.virtctl(&["stop", "vm"]).unwrap();
    namespace.wait_gone::<v1::VirtualMachineInstance>("vm", BOOT).unwrap();
    let files: Vec<String> = backups.iter().map(file).collect();
    let mut script = "cd /copies\n".to_owned();
    for pair in files.windows(2) {
        script += &format!("qemu-img rebase -u -f qcow2 -b /copies/{} -F qcow2 {}\n", pair[0], pair[1]);
    }
    script += &format!("qemu-img compare -f qcow2 -F raw {} /data/disk.img\n", files.last().unwrap());
    script += &format!("stat -c %s {}\n", files.join(" "));
    let told = look(&namespace, &script);
    assert!(told.contains("Images are identical."), "{told}");
    let sizes: Vec<u64> = told.lines().filter_map(|line| line.trim().parse().ok()).collect();
    assert_eq!(sizes.len(), 5, "{told}");
    assert!(sizes[1..4].iter().all(|size| *size < SMALL), "{sizes:?}");
}

/// A backup says what it waits for, one that has no room fails and leaves nothing, and one that is deleted is given up.
#[test]
fn a_backup_that_cannot_be_made_says_why_and_leaves_nothing() {
    prepare_volumes().unwrap();
    let cluster = Cluster::get().unwrap();
    let _storage = cluster.volumes().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    claim(&namespace, "data", "Block", "128Mi");
    claim(&namespace, "small", "Filesystem", "64Mi");
    claim(&namespace, "device", "Block", "64Mi");
    let source = "{apiGroup: kubevirt.io, kind: VirtualMachine, name: vm}";
    namespace.apply(&manifest("early", source, "small")).unwrap();
    let waits = |what: &'static str| {
        move |one: &v1::VirtualMachineBackup| {
            let mut conditions = one.status.conditions.iter();
            conditions.any(|told| {
                told.r#type == Condition::Initializing
                    && told.reason.as_deref().is_some_and(|why| why.contains(what))
            })
        }
    };
    namespace.wait("early", "a backup that waits for its machine", SOON, waits("is not there")).unwrap();
    namespace.kubectl(&["delete", "vmbackup", "early"]).unwrap();

    start(&namespace);
    let (mut console, running) = namespace.shell("vm").unwrap();
    let told = console
        .sh("dd if=/dev/urandom of=/dev/vdc bs=1M count=128 conv=notrunc,fsync 2>&1", COMMAND * 2)
        .unwrap();
    assert!(told.contains("128+0 records out"), "{told}");
    namespace.apply(&manifest("full", source, "small")).unwrap();
    let done = |one: &v1::VirtualMachineBackup| is(one, Condition::Done);
    let failed = namespace.wait("full", "a backup without room", COPIED, done).unwrap();
    assert!(reason(&failed).contains("No space left on device"), "{}", reason(&failed));
    namespace.apply(&manifest("device", source, "device")).unwrap();
    let failed = namespace.wait("device", "a backup to a device", COPIED, done).unwrap();
    assert!(reason(&failed).contains("block device"), "{}", reason(&failed));
    // The machine is as it was, and nothing of the claims stays with it.
    let vmi: v1::VirtualMachineInstance = namespace
        .wait("vm", "an instance without the target's claim", SOON, |vmi: &v1::VirtualMachineInstance| {
            vmi.spec.utility_volumes.is_empty()
                && vmi.status.volume_status.iter().all(|told| !told.name.contains("backup"))
        })
        .unwrap();
    assert!(vmi.status.changed_block_tracking.unwrap().backup_status.is_none());
    write(&mut console, 1);
    drop((console, running));
}
