//! One machine through all that its users do with disks: made by virtctl of an image that is imported, plugged, snapshotted, moved,
//! exported and restored; and the same while what carries it out is killed.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use podvirt_api::cdi::DataVolume;
use podvirt_api::v1;
use podvirt_e2e::artefacts;
use podvirt_e2e::cluster::{BOOT, Cluster, Namespace, SOON, Security, prepare_storage};

/// An import or a copy by CDI, on a busy machine.
const FILLED: Duration = Duration::from_secs(420);
/// From a start, a plug or a move to its end, with Debian under TCG.
const LONG: Duration = Duration::from_secs(600);
/// The disk that is plugged, to the guest's shell: the only one of its size.
const PLUGGED: &str = "$(lsblk -bndo PATH,SIZE | awk '$2 == 67108864 {print $1}')";

/// Ends of programs while something is under way.
#[derive(Clone, Copy)]
struct Deaths<'c> {
    cluster: &'c Cluster,
    wanted: bool,
}

impl Deaths<'_> {
    /// Kills all pods with this label at once, without notice.
    fn pods(&self, namespace: &str, label: &str) {
        if self.wanted {
            let kill = ["-n", namespace, "delete", "pod", "-l", label, "--force", "--grace-period=0"];
            self.cluster.kubectl(&kill).unwrap();
        }
    }

    fn controllers(&self) {
        self.pods("kubevirt", "kubevirt.io=virt-controller");
    }

    fn importers(&self) {
        self.pods("cdi", "cdi.kubevirt.io=cdi-deployment");
    }

    /// Kills virt-handler on both nodes.
    fn handlers(&self) {
        for node in 1..=2 {
            if self.wanted {
                let kill = ["sh", "-c", "kill -9 $(pgrep -x virt-handler)"];
                self.cluster.node(node).run(&kill).unwrap();
            }
        }
    }

    /// Takes a node's power away, and gives it back.
    fn node(&self, name: &str) {
        if self.wanted {
            let number = if name == "node1" { 1 } else { 2 };
            drop(self.cluster.node(number).kill().unwrap());
        }
    }
}

/// A machine of Debian, which its user reaches by ssh.
struct Machine<'n> {
    namespace: &'n Namespace<'n>,
    key: PathBuf,
    deaths: Deaths<'n>,
}

impl<'n> Machine<'n> {
    /// The image as a volume of CDI's that says which preference suits it, an instance type, and a machine of both by virtctl.
    fn made(namespace: &'n Namespace<'n>, key: PathBuf, deaths: Deaths<'n>) -> Machine<'n> {
        let golden = "{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, metadata: {name: golden, labels: \
            {instancetype.kubevirt.io/default-preference: debian, \
            instancetype.kubevirt.io/default-preference-kind: VirtualMachinePreference}}, spec: {source: {registry: \
            {url: 'docker://docker.io/podvirt/disk-debian:dev', pullMethod: node}}, storage: {resources: {requests: {storage: 4Gi}}}}}";
        namespace.apply(golden).unwrap();
        let begun =
            |data: &DataVolume| data.status.phase == "ImportInProgress" || data.status.phase == "Succeeded";
        namespace.wait("golden", "an import that has begun", FILLED, begun).unwrap();
        deaths.importers();
        namespace.wait("golden", "an image", FILLED, |d: &DataVolume| d.status.phase == "Succeeded").unwrap();

        for kind in [
            ["create", "instancetype", "--namespaced", "--cpu=1", "--memory=512Mi", "--name=small"]
                .as_slice(),
            &["create", "preference", "--namespaced", "--name=debian"],
        ] {
            namespace.apply(&namespace.virtctl(kind).unwrap()).unwrap();
        }
        let public = std::fs::read_to_string(key.with_extension("pub")).unwrap();
        namespace
            .kubectl(&[
                "create",
                "secret",
                "generic",
                "keys",
                &format!("--from-literal=key={}", public.trim()),
            ])
            .unwrap();
        let import = format!("--volume-import=type:pvc,src:{}/golden,name:root", namespace.name());
        let draft = [
            "create",
            "vm",
            "--name=life",
            "--instancetype=virtualmachineinstancetype/small",
            "--infer-preference-from=root",
            "--access-cred=type:ssh,src:keys,method:ga,user:root",
            &import,
        ];
        namespace.apply(&namespace.virtctl(&draft).unwrap()).unwrap();
        deaths.controllers();
        let machine = Machine { namespace, key, deaths };
        let vm: v1::VirtualMachine = namespace
            .wait("life", "a preference", SOON, |vm: &v1::VirtualMachine| {
                vm.spec
                    .preference
                    .as_ref()
                    .is_some_and(|preference| preference.name.as_deref() == Some("debian"))
            })
            .unwrap();
        assert_eq!(vm.spec.instancetype.unwrap().name.as_deref(), Some("small"));
        machine.up();
        machine
    }

    /// Waits until the agent has put the user's key into the guest, and the guest answers.
    fn up(&self) {
        let synchronized = |vmi: &v1::VirtualMachineInstance| {
            let mut conditions = vmi.status.conditions.iter();
            conditions.any(|c| c.r#type.as_str() == "AccessCredentialsSynchronized" && c.status == "True")
        };
        self.namespace.wait("life", "a key in the guest", LONG, synchronized).unwrap();
        self.namespace.until("a guest that answers", BOOT, || Ok(self.ssh("true").ok())).unwrap();
    }

    fn ssh(&self, command: &str) -> anyhow::Result<String> {
        let options =
            ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "BatchMode=yes", "LogLevel=ERROR"];
        let options = options.map(|option| format!("--local-ssh-opts=-o {option}"));
        let key = self.key.to_str().unwrap();
        let mut ssh = vec!["ssh", "-l", "root", "vmi/life", "-i", key, "-c", command];
        ssh.extend(options.iter().map(String::as_str));
        let said = self.namespace.virtctl(&ssh)?;
        Ok(said.trim().to_owned())
    }

    /// Writes a word to the root disk and to the plugged disk.
    fn write(&self, word: &str) {
        let both = format!(
            "echo {word} >/root/word && echo {word} | dd of={PLUGGED} bs=512 conv=sync,fsync 2>/dev/null && sync"
        );
        self.ssh(&both).unwrap();
    }

    /// The words there.
    fn read(&self) -> String {
        self.ssh(&format!("cat /root/word && head -n 1 {PLUGGED}")).unwrap()
    }

    fn plug(&self) {
        let claim = "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: extra}, spec: {storageClassName: bed-block, \
            volumeMode: Block, accessModes: [ReadWriteMany], resources: {requests: {storage: 64Mi}}}}";
        self.namespace.apply(claim).unwrap();
        self.namespace.virtctl(&["addvolume", "life", "--volume-name=extra", "--persist"]).unwrap();
        self.deaths.controllers();
        self.deaths.handlers();
        let ready = |vmi: &v1::VirtualMachineInstance| {
            vmi.status.volume_status.iter().any(|volume| {
                volume.name == "extra" && volume.phase.as_ref().is_some_and(|phase| phase.as_str() == "Ready")
            })
        };
        self.namespace.wait("life", "a plugged disk", LONG, ready).unwrap();
        self.namespace
            .until("the disk in the guest", BOOT, || Ok(self.ssh(&format!("test -b \"{PLUGGED}\"")).ok()))
            .unwrap();
    }

    fn snapshot(&self) {
        let manifest = "{apiVersion: snapshot.kubevirt.io/v1beta1, kind: VirtualMachineSnapshot, metadata: {name: taken}, \
            spec: {source: {apiGroup: kubevirt.io, kind: VirtualMachine, name: life}}}";
        self.namespace.apply(manifest).unwrap();
        self.deaths.controllers();
        let ready = |one: &v1::VirtualMachineSnapshot| one.status.ready_to_use == Some(true);
        let taken = self.namespace.wait("taken", "a snapshot", LONG, ready).unwrap();
        let told: Vec<&str> = taken.status.indications.iter().map(v1::Indication::as_str).collect();
        assert!(told.contains(&"GuestAgent"), "{told:?}");
    }

    /// Moves it to the other node, and says which it left.
    fn migrate(&self) -> String {
        let node = |vmi: &v1::VirtualMachineInstance| vmi.status.node_name.clone();
        let source = node(&self.namespace.wait("life", "the instance", SOON, |_| true).unwrap()).unwrap();
        self.namespace.virtctl(&["migrate", "life"]).unwrap();
        self.namespace
            .wait("life", "the move", LONG, |vmi: &v1::VirtualMachineInstance| {
                let state = vmi.status.migration_state.as_ref();
                state.is_some_and(|state| state.completed == Some(true) && state.failed != Some(true))
                    && node(vmi).is_some_and(|now| now != source)
            })
            .unwrap();
        source
    }

    fn stop(&self) {
        self.namespace.virtctl(&["stop", "life"]).unwrap();
        self.namespace.wait_gone::<v1::VirtualMachineInstance>("life", LONG).unwrap();
    }

    /// The first line of the plugged disk, as the export of the machine has it.
    fn exported(&self) -> String {
        let file = std::env::temp_dir().join(format!("podvirt-life-{}", self.namespace.name()));
        self.namespace.virtctl(&["vmexport", "create", "out", "--vm=life"]).unwrap();
        self.deaths.controllers();
        let ready =
            |one: &v1::VirtualMachineExport| one.status.phase == Some(v1::VirtualMachineExportPhase::Ready);
        self.namespace.wait("out", "an export", LONG, ready).unwrap();
        let output = format!("--output={}", file.display());
        let fetch = [
            "vmexport",
            "download",
            "out",
            "--volume=extra",
            "--format=raw",
            "--port-forward",
            "--keep-vme",
            &output,
        ];
        self.namespace.virtctl(&fetch).unwrap();
        let bytes = std::fs::read(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        self.namespace.virtctl(&["vmexport", "delete", "out"]).unwrap();
        assert_eq!(bytes.len(), 64 << 20);
        String::from_utf8_lossy(bytes.split(|byte| *byte == b'\n').next().unwrap()).into_owned()
    }

    fn restore(&self, node: &str) {
        let manifest = "{apiVersion: snapshot.kubevirt.io/v1beta1, kind: VirtualMachineRestore, metadata: {name: back}, \
            spec: {target: {apiGroup: kubevirt.io, kind: VirtualMachine, name: life}, virtualMachineSnapshotName: taken}}";
        self.namespace.apply(manifest).unwrap();
        self.deaths.controllers();
        self.deaths.node(node);
        let complete = |one: &v1::VirtualMachineRestore| one.status.complete == Some(true);
        self.namespace.wait("back", "a machine as it was", LONG, complete).unwrap();
        self.namespace.virtctl(&["start", "life"]).unwrap();
        self.up();
    }
}

fn live(deadly: bool) {
    prepare_storage().unwrap();
    // Made before this process is in the cluster's network.
    let image = artefacts::image("disk-debian").unwrap();
    let cluster = Cluster::get().unwrap();
    cluster.load(&image).unwrap();
    let _storage = cluster.storage().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let keys = tempfile::tempdir().unwrap();
    let key = keys.path().join("key");
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).status();
    assert!(made.unwrap().success());

    let machine = Machine::made(&namespace, key, Deaths { cluster: &cluster, wanted: deadly });
    machine.plug();
    machine.write("before");
    machine.snapshot();
    machine.write("after");
    let left = machine.migrate();
    assert_eq!(machine.read(), "after\nafter");
    machine.stop();
    assert_eq!(machine.exported(), "after");
    machine.restore(&left);
    assert_eq!(machine.read(), "before\nbefore");

    // What was made for it goes with it.
    namespace.kubectl(&["delete", "vm/life", "vmsnapshot/taken", "vmrestore/back"]).unwrap();
    namespace
        .until("nothing to be left", FILLED, || {
            let left = namespace.kubectl(&[
                "get",
                "pods,vmi,dv,vmexport,vmsnapshotcontent,volumesnapshots",
                "-o",
                "name",
            ])?;
            Ok(left.lines().all(|line| line.ends_with("/golden")).then_some(()))
        })
        .unwrap();
}

#[test]
fn long_a_machine_lives_with_all_that_is_done_to_its_disks() {
    live(false);
}

/// CDI's controller, virt-controller, virt-handler and a node.
#[test]
fn long_nothing_is_lost_when_what_carries_it_out_is_killed() {
    live(true);
}
