//! EFI firmware, TPMs, and what a machine keeps of them: through a migration, and from one start to the next.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use podvirt_api::v1;
use podvirt_e2e::cluster::{BOOT, Cluster, Namespace, SOON, Security, Storage, prepare_volumes};
use podvirt_e2e::{Console, artefacts};
use serde_json::json;

/// A command in the guest.
const COMMAND: Duration = Duration::from_secs(30);
/// A migration of a small machine on a busy node.
const MOVED: Duration = Duration::from_secs(180);
/// Where the guest has a variable of the firmware.
const VARIABLE: &str = "/sys/firmware/efi/efivars/kvtest-12345678-1234-1234-1234-123456789abc";

/// What TPMs take ("TPM 2.0 Library", part 3): an index for eight bytes that the owner, without a password, defines, writes and
/// reads.
mod tpm {
    const OWNER: [u8; 4] = [0x40, 0, 0, 1];
    const INDEX: [u8; 4] = [1, 0, 0, 0x10];
    /// A session of a password, which is empty, with its size.
    const SESSION: [u8; 13] = [0, 0, 0, 9, 0x40, 0, 0, 9, 0, 0, 0, 0, 0];
    /// Read and written by the owner and by the index's own password; a wrong one locks nothing.
    const ATTRIBUTES: [u8; 4] = [2, 6, 0, 6];

    fn command(code: u32, parts: &[&[u8]]) -> Vec<u8> {
        let body = parts.concat();
        let size = u32::try_from(body.len() + 10).unwrap();
        [&[0x80, 2][..], &size.to_be_bytes(), &code.to_be_bytes(), &body].concat()
    }

    pub(super) fn define() -> Vec<u8> {
        let public = [&[0, 14][..], &INDEX, &[0, 11], &ATTRIBUTES, &[0, 0, 0, 8]].concat();
        command(0x12a, &[&OWNER, &SESSION, &[0, 0], &public])
    }

    pub(super) fn write(data: &[u8; 8]) -> Vec<u8> {
        command(0x137, &[&OWNER, &INDEX, &SESSION, &[0, 8], data, &[0, 0]])
    }

    pub(super) fn read() -> Vec<u8> {
        command(0x14e, &[&OWNER, &INDEX, &SESSION, &[0, 8, 0, 0]])
    }
}

/// Gives the TPM a command; what it answers, in digits.
fn ask(console: &mut Console, command: &[u8]) -> String {
    let text = command.iter().fold(String::new(), |mut text, byte| {
        write!(text, "\\x{byte:02x}").unwrap();
        text
    });
    let exchange = format!(
        "exec 3<>/dev/tpm0; printf '{text}' >&3; head -c 4096 <&3 | hexdump -ve '1/1 \"%02x\"'; exec 3>&-"
    );
    let answer = console.sh(&exchange, COMMAND).unwrap();
    // Behind its kind and its size there is the result: none is zero but success.
    assert_eq!(answer.get(12..20), Some("00000000"), "{answer}");
    answer
}

fn keep(console: &mut Console) {
    ask(console, &tpm::define());
    ask(console, &tpm::write(b"podvirt!"));
    console.sh(&format!("printf '\\x07\\x00\\x00\\x00kept' >{VARIABLE}"), COMMAND).unwrap();
}

fn assert_kept(console: &mut Console) {
    let digits: String = b"podvirt!".iter().map(|byte| format!("{byte:02x}")).collect();
    let answer = ask(console, &tpm::read());
    assert!(answer.contains(&digits), "{answer}");
    assert_eq!(console.sh(&format!("tail -c +5 {VARIABLE}"), COMMAND).unwrap(), "kept");
}

/// The guest's shell, with the firmware's variables.
fn shell(namespace: &Namespace<'_>) -> (Console, podvirt_e2e::cluster::Running) {
    let (mut console, running) = namespace.shell("vm").unwrap();
    let mount = "insmod /efivarfs.ko && mount -t efivarfs efivarfs /sys/firmware/efi/efivars";
    console.sh(&format!("[ -e /efivarfs.ok ] || {{ {mount} && touch /efivarfs.ok; }}"), COMMAND).unwrap();
    (console, running)
}

/// A machine that EFI firmware boots.
fn machine(domain: &str, devices: &str) -> String {
    format!(
        "{{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {{name: vm}}, spec: {{runStrategy: Always, template: {{spec: \
         {{terminationGracePeriodSeconds: 5, networks: [{{name: default, pod: {{}}}}], \
         volumes: [{{name: root, containerDisk: {{image: 'podvirt/disk-efi:dev'}}}}], domain: {{memory: {{guest: 384Mi}}, {domain}, \
         devices: {{interfaces: [{{name: default, passtBinding: {{}}}}], disks: [{{name: root, disk: {{bus: virtio}}}}], {devices}}}}}}}}}}}}}"
    )
}

const KEPT: (&str, &str) =
    ("firmware: {bootloader: {efi: {secureBoot: false, persistent: true}}}", "tpm: {persistent: true}");

fn migrate(namespace: &Namespace<'_>, name: &str) -> v1::VirtualMachineInstanceMigration {
    let manifest = format!(
        "{{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstanceMigration, metadata: {{name: {name}}}, spec: {{vmiName: vm}}}}"
    );
    namespace.apply(&manifest).unwrap();
    let ended = |m: &v1::VirtualMachineInstanceMigration| {
        m.status.phase.as_ref().is_some_and(|phase| ["Succeeded", "Failed"].contains(&phase.as_str()))
    };
    let migration = namespace.wait(name, "a migration that has ended", MOVED, ended).unwrap();
    let phase = migration.status.phase.as_ref().map(|phase| phase.as_str().to_owned());
    assert_eq!(phase.as_deref(), Some("Succeeded"), "{:?}", migration.status);
    migration
}

/// Stops the machine and starts it again.
fn restart(namespace: &Namespace<'_>) {
    let uid = |vmi: &v1::VirtualMachineInstance| vmi.metadata.uid.clone();
    let before = instance(namespace);
    namespace.virtctl(&["restart", "vm"]).unwrap();
    let again = |vmi: &v1::VirtualMachineInstance| {
        uid(vmi) != uid(&before) && vmi.status.phase == Some(v1::VirtualMachineInstancePhase::Running)
    };
    namespace.wait::<v1::VirtualMachineInstance>("vm", "started again", BOOT, again).unwrap();
}

fn instance(namespace: &Namespace<'_>) -> v1::VirtualMachineInstance {
    namespace.cluster().block_on(namespace.api::<v1::VirtualMachineInstance>().get("vm")).unwrap()
}

/// The claims that keep the machine's state: their names.
fn claims(namespace: &Namespace<'_>) -> Vec<String> {
    let list = ListParams::default().labels("persistent-state-for=vm");
    let all = namespace.cluster().block_on(namespace.api::<PersistentVolumeClaim>().list(&list)).unwrap();
    let living = all.items.into_iter().filter(|claim| claim.metadata.deletion_timestamp.is_none());
    living.map(|claim| claim.name_any()).collect()
}

/// Makes what the tests take, with the guest's image.
fn prepare() -> PathBuf {
    prepare_volumes().unwrap();
    artefacts::image("disk-efi").unwrap()
}

fn begin(cluster: &Cluster, image: &Path) -> Storage {
    cluster.load(image).unwrap();
    cluster.volumes().unwrap()
}

/// The claim is of one node at a time: the target's is another, and what was on the first comes with the machine.
#[test]
fn long_what_firmware_and_tpm_hold_moves_with_the_machine_and_outlives_it() {
    let image = prepare();
    let cluster = Cluster::get().unwrap();
    let _storage = begin(&cluster, &image);
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    namespace.apply(&machine(KEPT.0, KEPT.1)).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let first = claims(&namespace);
    assert_eq!(first.len(), 1, "{first:?}");
    assert!(first[0].starts_with("persistent-state-for-vm-"), "{first:?}");
    let told = |vmi: &v1::VirtualMachineInstance, name: &str| {
        let mut volumes = vmi.status.volume_status.iter();
        volumes.any(|told| {
            let info = told.persistent_volume_claim_info.as_ref();
            told.name == name && info.is_some_and(|info| info.claim_name.as_deref() == Some(name))
        })
    };
    assert!(told(&instance(&namespace), &first[0]), "{:?}", instance(&namespace).status.volume_status);
    // Its specification names neither the claim nor the pod.
    let graph = namespace.virtctl(&["objectgraph", "vm"]).unwrap();
    let pod = namespace.launcher("vm").unwrap().name_any();
    assert!([&first[0], &pod].iter().all(|name| graph.contains(&format!("\"{name}\""))), "{graph}");
    let (mut console, running) = shell(&namespace);
    keep(&mut console);
    assert_kept(&mut console);
    drop((console, running));

    let migration = migrate(&namespace, "move");
    let state = migration.status.migration_state.unwrap();
    assert_eq!(state.source_persistent_state_pvc_name.as_ref(), Some(&first[0]));
    let target = state.target_persistent_state_pvc_name.unwrap();
    namespace.wait_gone::<PersistentVolumeClaim>(&first[0], SOON).unwrap();
    assert_eq!(claims(&namespace), [target.as_str()]);
    namespace
        .wait::<v1::VirtualMachineInstance>("vm", "the target's claim in the status", SOON, |vmi| {
            told(vmi, &target) && !told(vmi, &first[0])
        })
        .unwrap();
    let (mut console, running) = shell(&namespace);
    assert_kept(&mut console);
    drop((console, running));

    restart(&namespace);
    assert_eq!(claims(&namespace), [target.as_str()]);
    let (mut console, running) = shell(&namespace);
    assert_kept(&mut console);
    drop((console, running));

    namespace.kubectl(&["delete", "vm", "vm"]).unwrap();
    namespace.wait_gone::<PersistentVolumeClaim>(&target, SOON).unwrap();
}

/// What was kept when the snapshot was taken is the machine's again, on a claim of its own.
#[test]
fn long_a_snapshot_brings_back_what_firmware_and_tpm_held() {
    let image = prepare();
    let cluster = Cluster::get().unwrap();
    let _storage = begin(&cluster, &image);
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    namespace.apply(&machine(KEPT.0, KEPT.1)).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (mut console, running) = shell(&namespace);
    keep(&mut console);
    drop((console, running));
    let stop = || {
        namespace.virtctl(&["stop", "vm"]).unwrap();
        namespace.wait_gone::<v1::VirtualMachineInstance>("vm", SOON).unwrap();
    };
    stop();
    let snapshot = "{apiVersion: snapshot.kubevirt.io/v1beta1, kind: VirtualMachineSnapshot, metadata: {name: s}, spec: {source: \
                    {apiGroup: kubevirt.io, kind: VirtualMachine, name: vm}}}";
    namespace.apply(snapshot).unwrap();
    let ready = |one: &v1::VirtualMachineSnapshot| one.status.ready_to_use == Some(true);
    let taken = namespace.wait("s", "a snapshot that is ready", SOON, ready).unwrap();
    let volumes = taken.status.snapshot_volumes.unwrap();
    assert_eq!(volumes.included_volumes, ["persistent-state-for-vm"]);

    let before = claims(&namespace);
    namespace.virtctl(&["start", "vm"]).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (mut console, running) = shell(&namespace);
    ask(&mut console, &tpm::write(b"changed!"));
    drop((console, running));
    stop();
    let restore = "{apiVersion: snapshot.kubevirt.io/v1beta1, kind: VirtualMachineRestore, metadata: {name: r}, spec: {target: \
                   {apiGroup: kubevirt.io, kind: VirtualMachine, name: vm}, virtualMachineSnapshotName: s}}";
    namespace.apply(restore).unwrap();
    let complete = |one: &v1::VirtualMachineRestore| one.status.complete == Some(true);
    namespace.wait("r", "a restore that is complete", BOOT, complete).unwrap();
    let after = claims(&namespace);
    assert!(after.len() == 1 && after != before, "{before:?} {after:?}");
    namespace.virtctl(&["start", "vm"]).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (mut console, _running) = shell(&namespace);
    assert_kept(&mut console);
}

/// The cluster's configuration, as long as a test wants it otherwise.
struct Configured<'c>(&'c Cluster);

impl Configured<'_> {
    fn new<'c>(cluster: &'c Cluster, class: &str) -> Configured<'c> {
        let configured = Configured(cluster);
        configured.set(&json!(class));
        configured
    }

    fn set(&self, class: &serde_json::Value) {
        let kubevirts: kube::Api<v1::KubeVirt> = kube::Api::namespaced(self.0.client(), "kubevirt");
        let body = json!({"spec": {"configuration": {"vmStateStorageClass": class}}});
        self.0
            .block_on(async {
                kubevirts.patch("kubevirt", &PatchParams::default(), &Patch::Merge(&body)).await
            })
            .unwrap();
    }
}

impl Drop for Configured<'_> {
    fn drop(&mut self) {
        self.set(&serde_json::Value::Null);
    }
}

/// Of a class that was chosen for it the claim is of both nodes: the target has the same one.
#[test]
fn long_a_claim_of_several_nodes_stays_the_machines() {
    let image = prepare();
    let cluster = Cluster::get().unwrap();
    let _storage = begin(&cluster, &image);
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let _configured = Configured::new(&cluster, "bed-filesystem");
    namespace
        .until("the class that was chosen", SOON, || {
            namespace.apply(&machine(KEPT.0, KEPT.1))?;
            namespace.wait_phase("vm", "Running", BOOT)?;
            let claim = claims(&namespace).pop();
            let claim =
                claim.map(|name| cluster.block_on(namespace.api::<PersistentVolumeClaim>().get(&name)));
            let modes = claim.transpose()?.and_then(|claim| claim.spec?.access_modes).unwrap_or_default();
            if modes == ["ReadWriteMany"] {
                return Ok(Some(()));
            }
            // virt-controller had not heard of it.
            namespace.kubectl(&["delete", "vm", "vm"])?;
            Ok(None)
        })
        .unwrap();
    let before = claims(&namespace);
    let (mut console, running) = shell(&namespace);
    keep(&mut console);
    drop((console, running));
    for name in ["there", "back"] {
        let state = migrate(&namespace, name).status.migration_state.unwrap();
        assert_eq!(state.source_persistent_state_pvc_name, state.target_persistent_state_pvc_name);
        assert_eq!(claims(&namespace), before);
        let (mut console, _running) = shell(&namespace);
        assert_kept(&mut console);
    }
    restart(&namespace);
    let (mut console, _running) = shell(&namespace);
    assert_kept(&mut console);
}

/// The guest's loader is signed by no key that the firmware knows.
#[test]
fn long_secure_boot_starts_what_is_signed_and_nothing_else() {
    let image = prepare();
    let cluster = Cluster::get().unwrap();
    cluster.load(&image).unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let refused = namespace.apply(&machine("firmware: {bootloader: {efi: {}}}", "tpm: {}")).unwrap_err();
    let refused = format!("{refused:#}");
    assert!(refused.contains("SecureBoot requires SMM, which is currently disabled."), "{refused}");
    namespace.apply(&machine("features: {smm: {}}, firmware: {bootloader: {efi: {}}}", "tpm: {}")).unwrap();
    namespace.wait_phase("vm", "Running", BOOT).unwrap();
    let (console, _running) = namespace.console("vm").unwrap();
    console.wait_for("Access Denied", BOOT).unwrap();
}
